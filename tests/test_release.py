"""A release: what is in it, who can load it, and what its check finds."""

import json
import re
import shutil
from pathlib import Path

import made_release
import pyarrow.parquet as pq
import pytest
import yaml
from made_release import write
from made_up import annotation, dialogue, meme, placement

from memecmd_utils import __main__ as commands
from memecmd_utils import __version__, files, release, schemas
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile

COUNTS = {"memes": 3, "annotations": 2, "dialogues": 2, "placements": 2, "marks": 2, "grades": 4}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return made_release.run_dir(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def made(tmp_path_factory, run_dir) -> Path:
    """A release with everything in it, not to be changed."""
    target = tmp_path_factory.mktemp("made") / "a release 发布"
    models = {"judges": ["model j@1", "model j@1"]}
    counts = write(
        run_dir, target, models=models, run="some-run", published="2026-01-31", **made_release.truth()
    )
    assert counts == {**COUNTS, "turns": 12, "images": 2} == release.check_release(target)["counts"]
    return target


@pytest.fixture
def target(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "release")


def card(folder: Path) -> tuple[dict, str]:
    """The header and the whole text of a release's card."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return yaml.safe_load(text.split("---\n")[1]), text


# --- Tables and pictures


def test_tables_hold_the_records_and_pictures_those_with_a_licence(made: Path, run_dir: Path) -> None:
    assert files.read_jsonl(made / "dialogues.jsonl", schemas.Dialogue)[0] == dialogue()
    found = files.read_parquet(made / "annotations.parquet", schemas.Annotation)
    assert found == [annotation("m1"), annotation("m3", source="big-model@v2")]
    memes = {row["meme_id"]: row for row in pq.read_table(made / "memes.parquet").to_pylist()}
    assert memes["m1"]["image"]["bytes"] == (run_dir / "images" / "m1.png").read_bytes()
    assert (memes["m3"]["file"], memes["m3"]["image"]) == ("", None)
    assert sorted(path.name for path in (made / "images").iterdir()) == ["m1.png", "m2.png"]


def test_no_ground_truth_makes_no_tables_of_it_and_the_same_records_the_same_bytes(run_dir, tmp_path) -> None:
    assert not {"marks", "grades"} & write(run_dir, tmp_path / "one").keys()
    assert not list((tmp_path / "one").glob("marks.*"))
    assert "Marks and grades" not in card(tmp_path / "one")[1]
    write(made_release.run_dir(tmp_path / "another place"), tmp_path / "two")
    for name in (release.SUMS, release.MANIFEST):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placements": [placement(3, "m1", speaker="B")]}, "placements .*no such turn"),
        ({"placements": [placement(3, "missing")]}, "no meme missing"),
        ({"annotations": [annotation("m7")]}, "annotations m7: no meme"),
        ({"annotations": [annotation("m1"), annotation("m1")]}, "annotations m1: stands twice"),
        ({"annotations": [annotation("m1", unsafe="abuse")]}, "m1: flagged as abuse, more than its id"),
        ({"memes": [meme("../m1")], "annotations": [], "placements": []}, "cannot be a file name"),
        (
            {"marks": [made_release.truth()["marks"][0].model_copy(update={"turn": 9})]},
            "marks .*no such turn",
        ),
        ({"grades": made_release.truth()["grades"][:1] * 2}, "grades .*stands twice"),
    ],
)
def test_a_wrong_release_is_never_put_in_place(target: Path, run_dir: Path, changes, message: str) -> None:
    before = (target / release.SUMS).read_bytes()
    with pytest.raises(release.ReleaseError, match=message):
        write(run_dir, target, **changes)
    assert (target / release.SUMS).read_bytes() == before and not list(target.parent.glob(".*"))


def test_a_folder_that_is_no_release_is_not_deleted(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(release.ReleaseError, match="left as it is"):
        write(run_dir, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").is_file()


# --- The card, the licences, the settings


def test_the_card_says_where_texts_come_from_and_whose_they_are(made: Path) -> None:
    header, text = card(made)
    assert header["language"] == ["zh"] and header["size_categories"] == ["n<1K"]
    assert header["license"] == ["cc-by-sa-4.0", "cc-by-4.0", "other"]
    counts = {info["config_name"]: info["splits"][0]["num_examples"] for info in header["dataset_info"]}
    assert counts == COUNTS
    said = "written by a large language model for this package, not by people and not by the pipeline"
    for row in (
        f"| utterances | 12 | `authored` | {said} |",
        "| turn summaries | 10 | `tiny-model@q4` | generated by the model tiny-model@q4 |",
        "| greedy | 1 | 10.0 % | 1 |",
        "| memes | 3, 2 with their picture |",
        "| pictures: 2 | CC BY-SA 4.0 (OpenMoji) |",
        "| pictures: 1 | none stated: the rights are yours to check |",
        "| meme annotations (`big-model@v2`) | the terms of the model and of its provider |",
    ):
        assert row in text, row
    assert "Images left out of this release: 1." in text and "**model-model agreement**" in text
    note = (made / "LICENSE.md").read_text(encoding="utf-8")
    assert "OpenMoji" in note and "CC BY-SA 4.0" in note and "tiny-model@q4" in note


def test_no_promise_of_a_licence_that_nobody_gave(run_dir: Path, tmp_path: Path) -> None:
    turns = [turn.model_copy(update={"source": "m@v"}) for turn in dialogue().turns]
    spoken = dialogue().model_copy(update={"source": "m@v", "turns": turns})
    changes = {"placements": [placement(2, "m1")], "annotations": [], "dialogues": [spoken]}
    write(run_dir, tmp_path / "r", memes=[meme("m1", ""), meme("m3", "")], **changes)
    header, text = card(tmp_path / "r")
    for page in (text, (tmp_path / "r" / "LICENSE.md").read_text(encoding="utf-8")):
        assert "CC BY" not in page and "Creative Commons" not in page and "yours to check" in page
    assert header["license"] == ["other"]


def test_nothing_private_is_in_the_settings(tmp_path: Path) -> None:
    endpoint = {
        "base_url": "http://gpu-17.example:8000/v1",
        "model": "big-model",
        "key_env": "SECRET_VARIABLE",
    }
    profile = Profile(
        name="x",
        library={"sources": [str(paths.root / "data/raw/x"), "/home" + "/path/me/holiday", "example"],
                 "curation": "../elsewhere/mine.csv"},
        dialogue={"feeds": ["games=https://me:hush@feeds.example/rss?token=hush"], "news": "feeds"},
        models={"llm": "openai", "endpoints": {"generator": endpoint, "judges": [endpoint]}},
        cm50={"imgflip": str(tmp_path / "secret")},
    )  # fmt: skip
    found = release.public_settings(profile)
    text = json.dumps(found)
    for private in ("gpu-17", "SECRET_VARIABLE", "me/", "hush", "elsewhere", str(paths.root), str(tmp_path)):
        assert private not in text, private
    assert found["library"]["sources"] == ["data/raw/x", "holiday", "example"]
    assert found["dialogue"]["feeds"] == ["games=https://feeds.example/rss"]
    assert found["models"]["endpoints"]["generator"]["model"] == "big-model" and "cm50" not in found


def test_texts_of_any_kind_survive_and_break_nothing(run_dir: Path, tmp_path: Path) -> None:
    write(run_dir, tmp_path / "r", published="2026-01-31", **made_release.nasty())
    found = files.read_jsonl(tmp_path / "r" / "dialogues.jsonl", schemas.Dialogue)
    assert found == made_release.nasty()["dialogues"]
    header, text = card(tmp_path / "r")
    assert header["pretty_name"] == "MemeCMD a: b #c" and "\n# x" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} <= {3, 5} and all(line.endswith("|") for line in rows)
    for page in (text, (tmp_path / "r" / "LICENSE.md").read_text(encoding="utf-8")):
        assert "<b>" not in page and "\u2028" not in page and "](z)" not in page
    validate(tmp_path / "r", tmp_path)


# --- The manifest and the check


def test_the_manifest_names_what_a_release_was_made_from(made: Path) -> None:
    found = release.check_release(made)
    assert (found["run"], found["package_version"]) == ("some-run", __version__)
    assert found["models"]["judges"] == ["model j@1"] and found["settings"]["name"] == "example"
    assert found["models"]["meme annotations"] == ["authored", "big-model@v2"]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def sign(folder: Path) -> None:
    """Make the checksums fit, as one would who changed a file on purpose."""
    names = (line.partition("  ")[2] for line in (folder / release.SUMS).read_text("utf-8").splitlines())
    lines = [f"{files.sha256(folder / name)}  {name}\n" for name in names]
    (folder / release.SUMS).write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "signed", "said"),
    [
        (lambda d: edit(d / "dialogues.jsonl", "火锅", "面条"), False, "dialogues.jsonl: not the sha256"),
        (lambda d: (d / "images" / "m1.png").unlink(), False, "m1.png: in sha256sums.txt but missing"),
        (lambda d: (d / "notes.txt").touch(), False, "notes.txt: not listed in sha256sums.txt"),
        (lambda d: (d / "README.md").rename(d.parent / "r") and (d / "README.md").symlink_to(d.parent / "r"),
         False, "README.md: in sha256sums.txt but missing"),
        (lambda d: (d / "sha256sums.txt").unlink(), False, "is not a release"),
        (lambda d: (d / "manifest.json").unlink(), False, "is not a release"),
        (lambda d: (d / "manifest.json").write_text("[]"), False, "manifest.json"),
        (lambda d: edit(d / "manifest.json", '"grades": 4', '"grades": 5'), True, "counts .* are not those"),
        (lambda d: edit(d / "marks.jsonl", '"two"', '"one"'), True, "marks .*one: stands twice"),
        (lambda d: edit(d / "grades.jsonl", '"m1"', '"m9"'), True, "no meme m9"),
        (lambda d: edit(d / "placements.jsonl", '"turn":5', '"turn":50'), True, "no such turn"),
        (lambda d: edit(d / "marks.jsonl", '"one"', "one"), True, "marks.jsonl line 1"),
    ],
)  # fmt: skip
def test_what_was_changed_is_found(target: Path, change, signed: bool, said: str) -> None:
    change(target)
    if signed:
        sign(target)
    with pytest.raises((release.ReleaseError, files.StageOutputError), match=said):
        release.check_release(target)


def test_what_a_hub_puts_beside_the_files_is_no_part_of_it(target: Path, capsys) -> None:
    for name in (".git/config", ".gitattributes", "images/.DS_Store"):
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).touch()
    with pytest.raises(SystemExit) as ended:
        commands.main(["verify", str(target)])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert re.search(r"^run some-run: profile example \(settings \w{12}\), made by memecmd \d", shown, re.M)
    assert re.search(r"^grades +4$", shown, re.M) and "checksums, counts and keys are right" in shown
    (target / "notes.txt").touch()
    with pytest.raises(SystemExit) as ended:
        commands.main(["verify", str(target)])
    assert ended.value.code == 2
    assert "notes.txt: not listed" in capsys.readouterr().err


# --- Others load it

LOAD = """
import json, sys
import mlcroissant as mlc
from datasets import load_dataset
folder = sys.argv[1]
data = mlc.Dataset(folder + "/croissant.json")
issues = [*data.metadata.ctx.issues.errors, *data.metadata.ctx.issues.warnings]
found = {"issues": issues, "language": data.metadata.in_language}
found["default"] = load_dataset(folder)["train"].num_rows
def plain(value):
    return value.decode() if isinstance(value, bytes) else type(value).__name__
for table in data.metadata.record_sets:
    rows = [{k.split("/", 1)[1]: v for k, v in row.items()} for row in data.records(table.id)]
    loaded = load_dataset(folder, table.id, split="train")
    pictures = [m and m.getpixel((1, 1)) for m in loaded["image"]] if "image" in loaded.column_names else []
    found[table.id] = {"rows": rows, "loaded": len(loaded), "pictures": pictures}
    found[table.id]["columns"] = loaded.column_names
print(json.dumps(found, default=plain))
"""


def validate(folder: Path, tmp_path: Path) -> None:
    """mlcroissant finds nothing to say of the metadata."""
    file = str(folder / release.CROISSANT)
    _, log = made_release.outside(made_release.VALIDATE_CROISSANT, tmp_path, "validate", "--jsonld", file)
    assert "Done." in log and not re.findall(r"^[WE]\d{4} .*|WARN.*", log, re.M)


def test_datasets_and_mlcroissant_read_every_table(made: Path, tmp_path: Path) -> None:
    found = json.loads(made_release.outside(LOAD, tmp_path, str(made))[0])
    assert found["issues"] == [] and found["default"] == 2
    for table, count in COUNTS.items():
        assert (len(found[table]["rows"]), found[table]["loaded"]) == (count, count)
        assert found[table]["columns"] == release.arrow_schema(table).names
    assert found["memes"]["pictures"] == [[200, 30, 40], [20, 60, 210], None]
    turns = found["dialogues"]["rows"][0]["turns"]
    assert [turn["dialogues/turns/text"] for turn in turns][:2] == ["周末去爬山吗？", "天气预报说有雨"]
    assert (
        found["marks"]["rows"][0]["best"] == ["m2", "m1"] and found["placements"]["rows"][1]["rank"] is None
    )
