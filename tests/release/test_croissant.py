import json
import re
from pathlib import Path

import made_release
import pytest
from made_release import write

from memecmd_utils.release import manifest
from memecmd_utils.release import tables as release_tables

FILE = release_tables.CROISSANT
VALIDATE = """
from mlcroissant.scripts import cli
cli.main()
"""
READ = """
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


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return made_release.run_dir(tmp_path / "run")


@pytest.mark.parametrize("kind", ["plain", "with truth", "nasty", "empty"])
def test_mlcroissant_validates_without_a_warning(run_dir: Path, tmp_path: Path, kind: str) -> None:
    nothing = {"dialogues": [], "placements": [], "memes": [], "annotations": []}
    changes = {
        "plain": {},
        "with truth": made_release.truth(),
        "nasty": made_release.nasty(),
        "empty": nothing,
    }
    write(run_dir, tmp_path / "r", published="2026-01-31", **changes[kind])
    _, log = made_release.outside(VALIDATE, tmp_path, "validate", "--jsonld", str(tmp_path / "r" / FILE))
    assert "Done." in log and not re.findall(r"^[WE]\d{4} .*|WARN.*", log, re.M)


def test_mlcroissant_reads_every_table(run_dir: Path, tmp_path: Path) -> None:
    write(run_dir, tmp_path / "r", published="2026-01-31", **made_release.truth())
    found = json.loads(made_release.outside(READ, tmp_path, str(tmp_path / "r" / FILE))[0])
    assert found.pop("issues") == []
    counts = {"memes": 3, "annotations": 2, "dialogues": 2, "placements": 2, "marks": 2, "grades": 4}
    assert {table: len(rows) for table, rows in found.items()} == counts
    turns = found["dialogues"][0]["turns"]
    assert [turn["dialogues/turns/text"] for turn in turns][:2] == ["周末去爬山吗？", "天气预报说有雨"]
    assert [meme["image"] for meme in found["memes"]] == ["PngImageFile", "PngImageFile", None]
    assert found["placements"][1]["rank"] is None and found["placements"][0]["turn"] == 2
    assert found["marks"][0]["best"] == ["m2", "m1"] and found["grades"][3]["grade"] == 2


def test_problems_names_what_is_not_so(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "r"
    write(run_dir, target)
    files = {p: d for p, d in manifest.sums(target).items() if p not in (FILE, manifest.FILE)}
    tables = [
        name for name, table in release_tables.DATASETS["dialogues"].tables.items() if not table.optional
    ]
    assert release_tables.croissant_problems(target, files, tables) == []
    assert release_tables.croissant_problems(target, files, tables[:-1]) == [
        "croissant.json: columns of placements differs"
    ]
    changed = {**files, "LICENSE.md": "0"}
    assert release_tables.croissant_problems(target, changed, tables) == [
        "croissant.json: LICENSE.md differs"
    ]
    del changed["images/m1.png"]
    assert "croissant.json: images/m1.png differs" in release_tables.croissant_problems(
        target, changed, tables
    )
