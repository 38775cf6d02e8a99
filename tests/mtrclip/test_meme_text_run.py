import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tunable_clip
from made_templates import memecap_row
from PIL import Image

from memecmd_utils.cm50 import data
from memecmd_utils.core.encoders.clip import ModelMissing
from memecmd_utils.files import ExtraMissing, paths
from memecmd_utils.mtrclip import models
from memecmd_utils.mtrclip import tuning as mtrclip_tuning
from memecmd_utils.mtrclip.recall import DataMissing
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, TemplateMeme
from memecmd_utils.settings import Profile


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMECMD_OFFLINE", "1")
    for name in ("raw", "processed"):
        monkeypatch.setattr(paths, name, tmp_path / name)


def run_of(tmp_path: Path, mode: str = "auto", memecap: str | None = None, **settings: object) -> Run:
    settings = {"images": str(tmp_path / "pictures"), "tune": True, **settings}
    profile = Profile(name="p", mode=mode, meme_retrieval=settings, memecap=memecap)
    return Run("p-1", profile, tmp_path / "data", tmp_path / "reports")


def made(run: Run, n_train: int = 4, n_validation: int = 2, template: Callable = "T{}".format) -> list[str]:
    """What notebook 07 leaves: memes of both parts, each read and with a picture but for the last."""
    memes, readings = [], []
    parts = ["train"] * n_train + ["validation"] * n_validation
    for number, part in enumerate([*parts, "validation"]):
        memes.append(
            TemplateMeme(
                source="made up", meme_id=f"m{number}", template=template(number % 2), url="u",
                title=f"title {number}", captions=["top", "below"], split=part,
            )
        )  # fmt: skip
        said = {"meme_caption": f"meaning {number}", "image_caption": "" if number == 1 else "a picture"}
        readings.append(MemeReading(source="made up", meme_id=f"m{number}", **said))
    data.write_memes(run, memes, readings)
    return draw(run, [meme.meme_id for meme in memes[:-1]])


def draw(run: Run, names: list[str]) -> list[str]:
    folder = Path(run.profile.mtrclip.images)
    folder.mkdir(exist_ok=True)
    for name in names:
        Image.new("RGB", (32, 32)).save(folder / f"{name}.png")
    return names


def memecap_of(tmp_path: Path, *names: str) -> str:
    (tmp_path / "memecap").mkdir()
    rows = json.dumps([memecap_row(name) for name in names])
    (tmp_path / "memecap" / "memes-test.json").write_text(rows, encoding="utf-8")
    return str(tmp_path / "memecap")


def test_items_are_memes_of_a_part_with_reading_and_picture(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    made(run)
    assert [item.meme_id for item in models.cm50_items(run)] == ["m4", "m5"]
    assert [item.meme_id for item in models.cm50_items(run, "train")] == ["m0", "m1", "m2", "m3"]
    assert models.cm50_items(run)[0].texts == {
        "meme_caption": ["meaning 4"], "image_caption": ["a picture"], "embedded_text": ["top\nbelow"],
        "title": ["title 4"],
    }  # fmt: skip
    for picture in Path(run.profile.mtrclip.images).glob("m[45].png"):
        picture.rename(picture.with_name(f"other-{picture.name}"))
    with pytest.raises(DataMissing, match="none of the annotated template memes has its picture"):
        models.cm50_items(run)


def test_items_of_memecap_have_all_their_captions(tmp_path: Path) -> None:
    run = run_of(tmp_path, memecap=memecap_of(tmp_path, "a1", "b2"))
    draw(run, ["other"])
    with pytest.raises(DataMissing, match="none of the memes of MemeCap"):
        models.memecap_items(run)
    draw(run, ["memes_b2"])
    (item,) = models.memecap_items(run)
    assert (item.meme_id, item.template, item.text("embedded_text")) == ("b2", "", "")
    assert item.texts["meme_caption"] == ["b2 is tired.", "b2 wants the weekend."]


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Notes what would be tuned, in place of tuning."""
    calls: list[dict] = []

    def tune(train, validation, test, settings, folder, seed):
        calls.append(
            {"train": train, "validation": validation, "settings": settings, "folder": folder, "test": test}
        )
        return "tuned"

    monkeypatch.setattr(mtrclip_tuning, "tune", tune)
    return calls


def test_tuning_has_the_parts_of_cm50_and_memecap_as_test_set(tmp_path: Path, tuning: list[dict]) -> None:
    run = run_of(tmp_path, memecap=memecap_of(tmp_path, "a1"))
    made(run)
    draw(run, ["memes_a1"])
    assert models.tune(run) == "tuned"
    (call,) = tuning
    assert [pair.text for pair in call["train"]] == [f"meaning {n}" for n in range(4)]
    assert [pair.text for pair in call["validation"]] == ["meaning 4", "meaning 5"]
    assert [pair.template for pair in call["train"]] == ["T0", "T1", "T0", "T1"]
    assert [pair.text for pair in call["test"]] == ["a1 is tired."]
    assert call["folder"] == run.folder / "mtrclip" and call["settings"] is run.profile.mtrclip


def test_tuning_takes_the_kind_of_text_that_the_profile_names(
    tmp_path: Path, tuning: list[dict], capsys: pytest.CaptureFixture
) -> None:
    run = run_of(tmp_path, text="image_caption")
    made(run)
    models.tune(run)
    assert len(tuning[0]["train"]) == 3, "one has no image caption"
    assert tuning[0]["test"] == [] and capsys.readouterr().out.startswith("no test set: MemeCap: not here")


def test_a_search_comes_first_where_the_profile_asks_for_one(
    tmp_path: Path, tuning: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, trials=2)
    made(run)
    best = run.profile.mtrclip.model_copy(update={"epochs": 7})
    searched = []

    def search(train, validation, test, settings, folder, seed):
        searched.append((len(train), len(validation), test, folder.name, seed))
        return best, folder / "best"

    monkeypatch.setattr(mtrclip_tuning, "search", search)
    models.tune(run)
    assert searched == [(4, 2, [], "search", run.profile.seed)]
    assert tuning[0]["settings"] is best
    assert tuning[0]["folder"] == run.folder / "mtrclip" / "search" / "best", "read, not tuned once more"


def no_torch(*_: object, **__: object) -> None:
    raise ExtraMissing("tuning of x: install the `paper` extra")


def no_weights(*_: object, **__: object) -> None:
    raise ModelMissing("x cannot be loaded")


def no_memory(*_: object, **__: object) -> None:
    raise RuntimeError("out of memory: take a smaller mini_batch_size")


def test_selection_by_the_test_set_needs_one(
    tmp_path: Path, tuning: list[dict], capsys: pytest.CaptureFixture
) -> None:
    wanted = "not computed here: mtrclip.selection: paper needs MemeCap's captions and pictures"
    for memecap in (None, memecap_of(tmp_path, "a1")):  # no captions, then no picture
        run = run_of(tmp_path, memecap=memecap, selection="paper", trials=1)
        made(run)
        assert models.tune(run) is None and tuning == []
        assert capsys.readouterr().out.splitlines()[-1] == wanted
    draw(run, ["memes_a1"])
    assert models.tune(run_of(tmp_path, memecap=memecap, selection="paper")) == "tuned"


def test_broken_pictures_are_left_out_of_every_part(
    tmp_path: Path, tuning: list[dict], capsys: pytest.CaptureFixture
) -> None:
    run = run_of(tmp_path, memecap=memecap_of(tmp_path, "a1", "b2"))
    made(run, n_validation=3)
    draw(run, ["memes_a1", "memes_b2"])
    pictures = Path(run.profile.mtrclip.images)
    for name in ("m1", "m5", "memes_a1"):
        (pictures / f"{name}.png").write_bytes((pictures / f"{name}.png").read_bytes()[:60])
    (pictures / "more").mkdir()
    (pictures / "more" / "m2.png").write_text("another file of this name")
    assert models.tune(run) == "tuned"
    (call,) = tuning
    sizes = {part: len(call[part]) for part in ("train", "validation", "test")}
    assert sizes == {"train": 3, "validation": 2, "test": 1}
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "1 of 4 memes left out", "1 of 3 memes left out", "1 of 2 memes left out"
    ]  # fmt: skip
    assert lines[0].partition("the first: ")[2].startswith("m1.png: broken image data")


def test_packages_and_weights_that_are_missing_are_named_and_faults_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = run_of(tmp_path)
    made(run)
    for fails, said in ((no_torch, "install the `paper` extra"), (no_weights, "x cannot be loaded")):
        monkeypatch.setattr(mtrclip_tuning, "tune", fails)
        assert models.tune(run) is None
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("not computed here: ") and said in last
    monkeypatch.setattr(mtrclip_tuning, "tune", no_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        models.tune(run)


def test_a_tiny_clip_is_tuned_and_stands_in_no_row_of_the_paper(tmp_path: Path) -> None:
    tunable_clip.need_tuning()
    import torch

    torch.set_num_threads(1)
    clip = tunable_clip.clip_folder(tmp_path / "clip")
    short = {"batch_size": 4, "mini_batch_size": 2, "epochs": 1, "model": str(clip), "baselines": []}
    run = run_of(tmp_path, **short)
    made(run)
    tuned = models.tune(run)
    assert list(tuned.history.epoch) == [0, 1] and tuned.epochs == {"validation": 1}
    assert tuned.folders == {"validation": run.folder / "mtrclip" / "weights" / "validation"}
    rows = models.model_rows(run.profile.mtrclip, tuned)
    assert [r.label for r in rows if not r.missing] == ["clip", "fine-tuned clip"]
    before = (run.folder / "mtrclip" / "tuned.json").stat().st_mtime_ns
    assert models.tune(run).epochs == tuned.epochs
    assert (run.folder / "mtrclip" / "tuned.json").stat().st_mtime_ns == before, "read, not made again"
