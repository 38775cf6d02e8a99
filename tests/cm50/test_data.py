import json
import os
from pathlib import Path

import made_templates
import pytest
from made_templates import TEMPLATES, run_of, world, write_cm50, write_source

from memecmd_utils import files
from memecmd_utils.cm50 import data as cm50_data
from memecmd_utils.cm50 import filter
from memecmd_utils.cm50.data import STATE
from memecmd_utils.core.fetch import download
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme
from memecmd_utils.settings import Profile, TemplateRule


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Keys of a profile that name a made-up ImgFlip575K and a made-up CM50 of two of its templates."""
    records = world(sizes=(30, 20, 10, 6, 4, 2))
    pairs = [(name, records[name][number]) for name in TEMPLATES[:2] for number in (3, 5)]
    imgflip, cm50 = write_source(tmp_path, records), write_cm50(tmp_path, pairs)
    return {"imgflip": str(imgflip), "cm50": str(cm50)}


def state_after(profile: Profile, folder: Path) -> tuple[dict[str, str], bool]:
    """What is written down, and whether it was written just now."""
    file = folder / STATE
    if file.is_file():
        os.utime(file, (1, 1))
    cm50_data.settle(profile, folder)
    return json.loads(file.read_text(encoding="utf-8")), file.stat().st_mtime > 1


def test_the_state_is_written_only_where_something_changed(
    tmp_path: Path, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "interim", tmp_path / "interim")
    pictures, saved = tmp_path / "my pictures", tmp_path / "said.csv"
    profile = Profile(
        name="x",
        meme_retrieval={"images": str(pictures)},
        template_matching={"confirmed": str(saved)},
        **given,
    )
    folder = tmp_path / "run"
    first, written = state_after(profile, folder)
    assert written and set(first) == {"imgflip", "cm50", "images", "confirmed"}
    assert first["images"] == "0 images below my pictures" and first["confirmed"] == "missing"
    assert state_after(profile, folder) == (first, False)
    changes = {
        "images": pictures / "deeper" / "a.PNG",
        "confirmed": saved,
        "imgflip": Path(given["imgflip"]) / "dataset" / "memes" / "Sad-Kettle.json",
    }
    for key, file in changes.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("[]", encoding="utf-8")
        now, written = state_after(profile, folder)
        assert written and [name for name in now if now[name] != first.get(name)] == [key]
        first = now
    assert first["images"].startswith("1 images below my pictures, ")
    changes["images"].write_text("another picture", encoding="utf-8")
    now, written = state_after(profile, folder)
    assert written and [name for name in now if now[name] != first[name]] == ["images"]
    first = now
    (pictures / "index.jsonl").touch()
    assert state_after(profile, folder) == (first, False), "notes beside the pictures are none"


def test_pictures_that_the_run_fetches_do_not_make_it_run_again(
    tmp_path: Path, given: dict[str, str]
) -> None:
    run = run_of(tmp_path, meme_retrieval={"images": str(tmp_path / "pictures")}, **given)
    before, _ = state_after(run.profile, run.folder)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "sa00003.jpg").touch()
    cm50_data.note_sources(run.profile, run.folder, cm50_data.load_data(run).found)
    after, written = state_after(run.profile, run.folder)
    assert not written and after != before


def test_both_data_sets_are_read_and_their_templates_joined(tmp_path: Path, given: dict[str, str]) -> None:
    data = cm50_data.load_data(run_of(tmp_path, **given))
    assert len(data.records.frame) == 72 and data.upstream["Sad-Kettle"] == 30
    assert len(data.infos) == len(TEMPLATES), "each template once"
    of = {info.template: info for info in data.infos}
    assert of["Sad-Kettle"].about == "What Sad-Kettle means." and of["Wet-Sock"].about == ""
    assert of["Sad-Kettle"].names == ["one more name", "another"], "names that only ImgFlip575K has"
    assert of["Sad-Kettle"].picture and data.have("imgflip", "cm50")
    assert list(data.sample["meme_id"]) == ["sa00003", "sa00005", "do00003", "do00005"]


@pytest.mark.parametrize("name", cm50_data.NEEDED)
def test_what_is_missing_is_said_and_the_rest_is_read(
    tmp_path: Path, given: dict[str, str], name: str, capsys: pytest.CaptureFixture
) -> None:
    data = cm50_data.load_data(run_of(tmp_path, **{name: given[name]}))
    missing = {"imgflip": "cm50", "cm50": "imgflip"}[name]
    assert data.have(name) and capsys.readouterr().out == ""
    assert not data.have(name, missing, "memecap")
    lines = capsys.readouterr().out.splitlines()
    assert [line[:17] for line in lines] == ["not computed here"] * 2
    assert f"key {missing}," in lines[0] and "key memecap," in lines[1]
    assert (data.records is None, data.cm50 is None, data.sample is None) == (
        (True, False, False) if name == "cm50" else (False, True, True)
    )
    assert len(data.infos) == (2 if name == "cm50" else 6)
    assert len(data.joined()) == (4 if name == "cm50" else 0)


def test_reading_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMECMD_OFFLINE")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def asked(*words: object, **_: object) -> None:
        raise AssertionError(f"a server is asked: {words}")

    monkeypatch.setattr(download.subprocess, "Popen", asked)
    data = cm50_data.load_data(run_of(tmp_path))
    assert data.records is data.cm50 is None and data.infos == [] and data.joined() == []


def test_a_meme_that_is_kept_and_published_counts_once(tmp_path: Path, given: dict[str, str]) -> None:
    data = cm50_data.load_data(run_of(tmp_path, **given))
    kept = [
        TemplateMeme(source="imgflip575k", meme_id=name, template="Sad-Kettle", url="u", split="validation")
        for name in ("sa00003", "sa00009")
    ]
    joined = data.joined(iter(kept))
    assert [m.meme_id for m in joined] == ["sa00003", "sa00005", "do00003", "do00005", "sa00009"]
    assert joined[0] == kept[0], "the record, not the copy of it"


def annotated(folder: Path, name: str, template: str, *numbers: int) -> None:
    rows = [made_templates.annotated(template, made_templates.record(template, n)) for n in numbers]
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / name).write_text(json.dumps(rows), encoding="utf-8")


def test_the_published_part_of_the_split_stays(tmp_path: Path, given: dict[str, str]) -> None:
    annotated(Path(given["cm50"]), "training_set.json", "Sad-Kettle", 3, 8, 9)
    annotated(Path(given["cm50"]), "more.json", "Sad-Kettle", 10)
    data = cm50_data.load_data(run_of(tmp_path, **given))
    assert set(data.sample["meme_id"]) == {"sa00003", "sa00005", "do00003", "do00005"}
    assert data.training == {"sa00008", "sa00009"}, "one in both files counts for validation"
    parts = {"sa00003": "train", "sa00008": "validation", "sa00010": "validation", "sa00011": "validation"}
    kept = [
        TemplateMeme(source="x", meme_id=name, template="Sad-Kettle", url="u", split=part)
        for name, part in parts.items()
    ]
    found = {meme.meme_id: meme for meme in data.joined(kept)}
    assert {name: found[name].split for name in parts} == {
        "sa00003": "validation", "sa00008": "train", "sa00010": "validation", "sa00011": "validation",
    }  # fmt: skip
    assert all(found[name].source == "x" for name in parts), "the record, not the copy of it"
    rule = TemplateRule(min_memes=1, min_votes=0, title_differs="ignored", validation_share=0.5)
    filtered = filter.filter_records(
        data.records, rule, sample=data.sample, training=data.training
    ).memes.set_index("meme_id")["split"]
    assert set(filtered[list(data.training)]) == {"train"}
    assert set(filtered[list(data.sample["meme_id"])]) == {"validation"}


def reading(meme_id: str, source: str, **more: object) -> MemeReading:
    return MemeReading(source=source, meme_id=meme_id, **more)


def test_the_last_reading_counts_but_for_one_that_came_to_nothing(tmp_path: Path) -> None:
    memes = [TemplateMeme(source="made up", meme_id=name, template="A", url="u") for name in "abc"]
    run = run_of(tmp_path)
    readings = [
        reading("a", "published", meme_caption="first"),
        reading("b", "published", meme_caption="second"),
        reading("a", "own", meme_caption="again"),
        reading("b", "own", unscored="rejected"),
        reading("c", "own", unscored="rejected"),
        reading("z", "own", meme_caption="of another data set"),
    ]
    written = cm50_data.write_memes(run, memes, iter(readings))
    assert [(r.meme_id, r.source) for r in written] == [("a", "own"), ("b", "published"), ("c", "own")]
    assert files.read_parquet(run.read("readings.parquet"), MemeReading) == written
    assert files.read_parquet(run.read("template_memes.parquet"), TemplateMeme) == memes
