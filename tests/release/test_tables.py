import json
from pathlib import Path

import made_release
import pyarrow.parquet as pq
import pytest
from made_release import write
from made_up import placement

from memecmd_utils.release import tables as release_tables

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


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return made_release.run_dir(tmp_path / "run")


def test_datasets_loads_every_table(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "a release 发布"
    write(run_dir, target, **made_release.truth())
    tables = list(release_tables.DATASETS["dialogues"].tables)
    found = json.loads(made_release.outside(LOAD, tmp_path, str(target), *tables)[0])
    counts = {"memes": 3, "annotations": 2, "dialogues": 2, "placements": 2, "marks": 2, "grades": 4}
    assert {table: found[table]["rows"] for table in tables} == counts
    for table in tables:
        assert found[table]["columns"] == release_tables.arrow_schema(table).names
    assert found["dialogues"]["dialogue_id"] == ["news-made-1", "news-made-2"]
    assert found["memes"]["meme_id"] == ["m1", "m2", "m3"]
    picture = "PngImageFile"
    assert found["pictures"] == [[picture, [200, 30, 40]], [picture, [20, 60, 210]], None]
    assert (found["default"], found["plain"], found["json"]) == (2, 3, 3)


def test_datasets_loads_texts_of_any_kind(run_dir: Path, tmp_path: Path) -> None:
    write(run_dir, tmp_path / "r", **made_release.nasty())
    tables = ("memes", "annotations", "dialogues", "placements", "marks")
    found = json.loads(made_release.outside(LOAD, tmp_path, str(tmp_path / "r"), *tables)[0])
    assert found["dialogues"]["dialogue_id"] == [made_release.NASTY]
    assert found["marks"]["dialogue_id"] == [made_release.NASTY]
    assert found["memes"]["meme_id"] == ["图.一", "m3"] and found["pictures"][1] is None


def test_a_column_of_nulls_keeps_its_type(run_dir: Path, tmp_path: Path) -> None:
    nothing = placement(2, "m1", gate_score=None, threshold=None, rank=None)
    write(run_dir, tmp_path / "r", placements=[nothing])
    schema = pq.read_schema(tmp_path / "r" / "placements.parquet")
    assert [str(schema.field(n).type) for n in ("gate_score", "rank", "seed")] == ["double", "int64", "int64"]


def test_pictures_stand_in_parquet_as_they_are_on_disk(run_dir: Path, tmp_path: Path) -> None:
    write(run_dir, tmp_path / "r")
    found = list(release_tables.read_images(tmp_path / "r"))
    assert [(meme_id, file) for meme_id, file, _ in found][2] == ("m3", "") and found[2][2] is None
    assert found[0][2] == {"path": "images/m1.png", "bytes": (tmp_path / "r/images/m1.png").read_bytes()}
    assert '"image"' not in (tmp_path / "r" / "memes.jsonl").read_text(encoding="utf-8")
