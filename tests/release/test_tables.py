import json
import re
from pathlib import Path

import made_release
import pyarrow.parquet as pq
import pytest
from made_release import write
from made_up import placement

from memecmd_utils.release.tables import CROISSANT, DATASETS, arrow_schema

LOAD = """
import json, sys
from datasets import load_dataset
folder, found = sys.argv[1], {}
for table in sys.argv[2:]:
    data = load_dataset(folder, table, split="train")
    found[table] = {"rows": len(data), "columns": data.column_names}
    for name in ("dialogue_id", "meme_id"):
        found[table][name] = data[name][:] if name in data.column_names else None
memes = load_dataset(folder, "memes", split="train")
found["pictures"] = [m["image"] and [type(m["image"]).__name__, m["image"].getpixel((1, 1))] for m in memes]
found["default"] = load_dataset(folder)["train"].num_rows
files = {table: f"{folder}/{table}.parquet" for table in sys.argv[2:]}
found["plain"] = load_dataset("parquet", data_files=files["memes"], split="train").num_rows
found["json"] = load_dataset("json", data_files=f"{folder}/memes.jsonl", split="train").num_rows
print(json.dumps(found))
"""


def test_datasets_loads_every_table(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "a release 发布"
    write(run_dir, target, **made_release.truth())
    tables = list(DATASETS["dialogues"].tables)
    found = json.loads(made_release.outside(LOAD, tmp_path, str(target), *tables)[0])
    counts = {"memes": 3, "annotations": 2, "dialogues": 2, "placements": 2, "marks": 2, "grades": 4}
    assert {table: found[table]["rows"] for table in tables} == counts
    for table in tables:
        assert found[table]["columns"] == arrow_schema(table).names
    assert found["dialogues"]["dialogue_id"] == ["news-made-1", "news-made-2"]
    assert found["memes"]["meme_id"] == ["m1", "m2", "m3"]
    picture = "PngImageFile"
    assert found["pictures"] == [[picture, [200, 30, 40]], [picture, [20, 60, 210]], None]
    assert (found["default"], found["plain"], found["json"]) == (2, 3, 3)


def test_a_column_of_nulls_keeps_its_type(run_dir: Path, tmp_path: Path) -> None:
    nothing = placement(2, "m1", gate_score=None, threshold=None, rank=None)
    write(run_dir, tmp_path / "r", placements=[nothing])
    schema = pq.read_schema(tmp_path / "r" / "placements.parquet")
    assert [str(schema.field(n).type) for n in ("gate_score", "rank", "seed")] == ["double", "int64", "int64"]


# --- Croissant

READ_CROISSANT = """
import json, sys
import mlcroissant as mlc
data = mlc.Dataset(sys.argv[1])
found = {"issues": [*data.metadata.ctx.issues.errors, *data.metadata.ctx.issues.warnings]}
def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, (int, float, str, list, dict, type(None))) else type(value).__name__
for table in data.metadata.record_sets:
    rows = [{k.split("/", 1)[1]: v for k, v in row.items()} for row in data.records(table.id)]
    found[table.id] = rows
print(json.dumps(found, default=plain))
"""


@pytest.mark.parametrize("kind", ["nasty", "empty"])
def test_mlcroissant_validates_without_a_warning(run_dir: Path, tmp_path: Path, kind: str) -> None:
    nothing = {"dialogues": [], "placements": [], "memes": [], "annotations": []}
    changes = {"nasty": made_release.nasty(), "empty": nothing}
    write(run_dir, tmp_path / "r", published="2026-01-31", **changes[kind])
    _, log = made_release.outside(
        made_release.VALIDATE_CROISSANT, tmp_path, "validate", "--jsonld", str(tmp_path / "r" / CROISSANT)
    )
    assert "Done." in log and not re.findall(r"^[WE]\d{4} .*|WARN.*", log, re.M)


def test_mlcroissant_reads_every_table(run_dir: Path, tmp_path: Path) -> None:
    write(run_dir, tmp_path / "r", published="2026-01-31", **made_release.truth())
    found = json.loads(made_release.outside(READ_CROISSANT, tmp_path, str(tmp_path / "r" / CROISSANT))[0])
    assert found.pop("issues") == []
    counts = {"memes": 3, "annotations": 2, "dialogues": 2, "placements": 2, "marks": 2, "grades": 4}
    assert {table: len(rows) for table, rows in found.items()} == counts
    turns = found["dialogues"][0]["turns"]
    assert [turn["dialogues/turns/text"] for turn in turns][:2] == ["周末去爬山吗？", "天气预报说有雨"]
    assert [meme["image"] for meme in found["memes"]] == ["PngImageFile", "PngImageFile", None]
    assert found["placements"][1]["rank"] is None and found["placements"][0]["turn"] == 2
    assert found["marks"][0]["best"] == ["m2", "m1"] and found["grades"][3]["grade"] == 2
