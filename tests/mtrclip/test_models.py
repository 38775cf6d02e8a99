from pathlib import Path

import made_retrieval
import pytest
from made_retrieval import clip_folder as folder
from PIL import Image

from memecmd_utils.core.encoders.clip import ALIGN, ARCHITECTURES, B32, L14, ModelMissing
from memecmd_utils.mtrclip import models as mtrclip_models
from memecmd_utils.mtrclip import tables
from memecmd_utils.mtrclip.recall import DataMissing
from memecmd_utils.mtrclip.tuning import Tuned
from memecmd_utils.recordings import RecordingMiss
from memecmd_utils.settings import MtrclipSettings

HUB = {label: known.hub for label, known in ARCHITECTURES.items()}


@pytest.fixture(autouse=True)
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-hub"))


def tuned_to(**folders: Path) -> Tuned:
    return Tuned(None, None, {}, folders, "validation")


def labels(rows) -> list[tuple[str, str]]:
    return [(row.label, row.selection) for row in rows]


def test_rows_of_the_default_profile() -> None:
    rows = mtrclip_models.model_rows(MtrclipSettings())
    assert labels(rows) == [
        (ALIGN, ""), ("Fine-tuned ALIGN", "validation"), ("Fine-tuned ALIGN", "paper"),
        (B32, ""), (L14, ""), ("Fine-tuned CLIP", "validation"), ("Fine-tuned CLIP", "paper"),
    ]  # fmt: skip
    of = {(row.label, row.selection): row for row in rows}
    assert of[L14, ""].model == HUB[L14] and not of[L14, ""].missing
    assert "mtrclip.tune=true" in of["Fine-tuned CLIP", "validation"].missing
    assert "measured and not tuned" in of["Fine-tuned ALIGN", "paper"].missing
    rows = mtrclip_models.model_rows(MtrclipSettings(tune=True))
    assert any("no weights chosen by mtrclip.selection=paper" in row.missing for row in rows)


def test_tuned_weights_go_where_their_architecture_belongs(tmp_path: Path) -> None:
    large = folder(tmp_path / "weights" / "validation", L14)
    tiny = folder(tmp_path / "weights" / "paper", L14, **{"vision_config.num_hidden_layers": 1})
    rows = mtrclip_models.model_rows(MtrclipSettings(tune=True), tuned_to(validation=large, paper=tiny))
    of = {(row.label, row.selection): row for row in rows}
    assert of["Fine-tuned CLIP", "validation"] == ("Fine-tuned CLIP", "validation", str(large), "", L14)
    said = of["Fine-tuned CLIP", "paper"].missing
    assert "of another model: paper is no CLIP-ViT-L/14@336px (vision_config.num_hidden_layers 1" in said
    assert of[f"fine-tuned {L14}", "paper"].model == str(tiny)
    align = folder(tmp_path / "align", ALIGN)
    rows = mtrclip_models.model_rows(MtrclipSettings(tune=True, model=HUB[ALIGN]), tuned_to(validation=align))
    (tuned,) = [row for row in rows if row.label == "Fine-tuned ALIGN" and row.selection == "validation"]
    assert tuned.model == str(align) and tuned.base == ALIGN


def test_other_baselines_keep_their_own_names(tmp_path: Path) -> None:
    tiny = folder(tmp_path / "tiny", B32, projection_dim=16)
    copy = folder(tmp_path / "copy", L14)
    settings = MtrclipSettings(baselines=[str(tiny), "some/clip", HUB[L14], str(copy)], model=str(tiny))
    rows = {row.label: row for row in mtrclip_models.model_rows(settings) if not row.selection}
    assert set(rows) == {ALIGN, B32, L14, "tiny", "some/clip", "copy"}
    assert rows[L14].model == HUB[L14], "the first of two"
    assert rows[B32].missing == "no model of mtrclip.baselines is CLIP-ViT-B/32"
    assert {r.base for r in mtrclip_models.model_rows(settings) if r.selection} == {"tiny"}


def test_what_cannot_be_had_becomes_a_note() -> None:
    def load(name: str):
        if name == HUB[ALIGN]:
            raise ModelMissing("kakaobrain/align-base cannot be loaded: give a folder")
        if name == HUB[B32]:
            raise RecordingMiss("no recorded vector")
        return made_retrieval.MadeUpEncoder(dim=768, name="made-up")

    rows = mtrclip_models.model_rows(MtrclipSettings())
    found = {
        one.row.label: one for one in mtrclip_models.measure_models(rows, made_retrieval.items, load=load)
    }
    assert found[ALIGN].note == "not computed here: kakaobrain/align-base cannot be loaded: give a folder"
    assert found[B32].note == "not computed here: no recorded vector"
    assert found[L14].note == "" and len(found[L14].rankings) == 4 and found[L14].weights == "made-up"

    def nothing():
        raise DataMissing("set memecap=FILE")

    notes = [one.note for one in mtrclip_models.measure_models(rows, nothing, load=load)]
    assert notes.count("not computed here: set memecap=FILE") == 3 and len(notes) == 7

    def broken(name: str):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mtrclip_models.measure_models(rows, made_retrieval.items, load=broken)


def test_all_that_was_computed_and_what_changed(tmp_path: Path) -> None:
    tiny, tuned = (folder(tmp_path / n, B32, projection_dim=16) for n in ("tiny", "validation"))
    settings = MtrclipSettings(baselines=[str(tiny)], model=str(tiny), tune=True)
    rows = mtrclip_models.model_rows(settings, tuned_to(validation=tuned))

    def load(name: str):
        return made_retrieval.MadeUpEncoder(0.4 if name == str(tuned) else 1.6, name=Path(name).name)

    measured = mtrclip_models.measure_models(rows, made_retrieval.items, load=load)
    frame = mtrclip_models.all_recalls(measured)
    assert set(zip(frame["model"], frame["selection"], frame["weights"], strict=True)) == {
        ("tiny", "", "tiny"), ("fine-tuned tiny", "validation", "validation")
    }  # fmt: skip
    others = mtrclip_models.other_models(measured)
    assert set(others["model"]) == {"tiny", "fine-tuned tiny"} and set(others["measure"]) == {"R@1", "Mean"}
    gaps = mtrclip_models.tuning_changes(measured, 13)
    assert set(gaps["model"]) == {"fine-tuned tiny"} and (gaps["tuned"] >= gaps["base"]).mean() > 0.8
    for table in (tables.table_2, tables.table_3, tables.table_4):
        assert (table(measured)["n"] == 0).all(), "no tiny number in the paper's form"
    alone = [one for one in measured if one.row.selection]
    assert mtrclip_models.tuning_changes(alone, 13).empty, "nothing to compare the tuned model with"
    nothing = [one for one in measured if not one.rankings]
    assert mtrclip_models.all_recalls(nothing).empty and mtrclip_models.tuning_changes(nothing, 13).empty
    assert list(mtrclip_models.tuning_changes(nothing, 13).columns) == list(gaps.columns)


def test_tiny_real_models_stand_under_their_own_names(tmp_path: Path) -> None:
    """Wiring only: random weights of the real CLIP and ALIGN classes through the real loader."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    import tiny_clips
    from PIL import ImageDraw

    items = made_retrieval.items(12, 6, tmp_path)
    for n, item in enumerate(items):
        picture = Image.new("RGB", (40, 36), (20 * n, 90, 250 - 20 * n))
        ImageDraw.Draw(picture).ellipse((n, 4, 18 + n, 30), fill=(255, 20 * n, 10))
        picture.save(item.image)
    models = [tiny_clips.folder_of(kind, tmp_path / f"tiny-{kind}") for kind in ("clip", "align")]
    settings = MtrclipSettings(baselines=list(map(str, models)), model=str(models[0]), tune=True)
    rows = mtrclip_models.model_rows(settings, tuned_to(validation=models[0]))
    measured = mtrclip_models.measure_models(rows, lambda: items)
    assert (tables.table_2(measured)["n"] == 0).all()
    measured = [one for one in measured if one.rankings]
    assert labels(one.row for one in measured) == [
        ("tiny-clip", ""), ("tiny-align", ""), ("fine-tuned tiny-clip", "validation")
    ]  # fmt: skip
    assert measured[0].weights.startswith("clip:tiny-clip@") and measured[0].rankings["title"].dim == 24
    gaps = mtrclip_models.tuning_changes(measured, 13)
    assert (gaps["difference"] == 0).all(), "the same weights"
