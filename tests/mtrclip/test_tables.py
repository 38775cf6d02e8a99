from pathlib import Path

import made_retrieval
import numpy as np
import pytest
from made_retrieval import clip_folder as folder

from memecmd_utils.core.encoders.clip import ALIGN, B32, L14
from memecmd_utils.mtrclip import models
from memecmd_utils.mtrclip import tables as mtrclip_tables
from memecmd_utils.mtrclip.models import Measured, Row
from memecmd_utils.mtrclip.recall import KINDS, MEASURES
from memecmd_utils.settings import MtrclipSettings


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """A model of the size of L/14 and its tuned copy by made-up vectors; nothing for the other rows."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-hub"))
    base, tuned = (folder(tmp_path / name, L14) for name in ("base", "validation"))
    settings = MtrclipSettings(baselines=[str(base)], model=str(base), tune=True)
    noise = {str(base): 5.0, str(tuned): 2.5}
    items = made_retrieval.items(30, 6, title=[""] * 30)
    return models.measure_models(
        models.model_rows(settings, {"validation": tuned}),
        lambda: items,
        load=lambda name: made_retrieval.MadeUpEncoder(noise[name], 768, name=Path(name).name),
    )


def test_the_papers_numbers_as_printed() -> None:
    two, three, four = (mtrclip_tables.paper_table(n) for n in (2, 3, 4))
    assert list(two["model"]) == list(models.ORDER)
    assert two.set_index("model").loc["Fine-tuned CLIP"].tolist() == [0.760, 0.780]
    for table in (three, four):
        assert list(table["text"]) == [*KINDS, *KINDS]
        by_k = table[["R@1", "R@5", "R@10"]].mean(axis=1)
        assert np.allclose(by_k, table["Mean"], atol=0.0011), "the paper's mean is that of the three"
    # The mean of both directions in Table 2 is Table 3's R@1.
    both = two.set_index("model")[["t2m", "m2t"]].mean(axis=1)
    meme = three[three["text"] == "meme_caption"].set_index("fine_tuned")["R@1"]
    assert both[L14] == pytest.approx(meme["no"]) and both["Fine-tuned CLIP"] == pytest.approx(meme["yes"])


def test_table_2(measured) -> None:
    table = mtrclip_tables.table_2(measured)
    assert list(table["model"]) == [ALIGN, *["Fine-tuned ALIGN"] * 2, B32, L14, *["Fine-tuned CLIP"] * 2]
    filled = table[table["n"] > 0].set_index(["model", "selection"])
    assert list(filled.index) == [(L14, ""), ("Fine-tuned CLIP", "validation")]
    base, tuned = filled.iloc[0], filled.iloc[1]
    frame = next(m for m in measured if m.row.label == L14).recalls()
    keys = (frame["text"] == "meme_caption") & (frame["counting"] == "pair") & (frame["measure"] == "R@1")
    for direction, paper in (("T2M", 0.648), ("M2T", 0.712)):
        (row,) = frame[keys & (frame["direction"] == direction)].to_dict("records")
        assert base[f"{direction} R@1"] == row["value"] and base[f"{direction} R@1 low"] == row["low"]
        assert base[f"{direction} R@1 paper"] == paper
        assert tuned[f"{direction} R@1"] > base[f"{direction} R@1"]
    assert base["n"] == 30 and base["weights"] == "base" and base["note"] == ""
    empty = table[table["n"] == 0]
    assert empty["note"].str.startswith("not computed here: ").all() and empty["T2M R@1"].isna().all()
    shown = mtrclip_tables.printed_table(table)
    assert list(shown["T2M R@1 here"][:4]) == ["–"] * 4 and shown["T2M R@1 paper"][4] == "0.648"


@pytest.mark.parametrize(("make", "first"), [("table_3", 0.680), ("table_4", 0.696)])
def test_tables_3_and_4(measured, make, first) -> None:
    table = getattr(mtrclip_tables, make)(measured)
    assert list(table["text"]) == [*KINDS] * 3 and list(table["fine-tuned"]) == ["no"] * 4 + ["yes"] * 8
    assert list(table["selection"]) == [""] * 4 + ["validation"] * 4 + ["paper"] * 4
    assert table["R@1 paper"][0] == first
    titles = table[table["text"] == "title"]
    assert (titles["n"] == 0).all() and "no meme has a text of this kind" in titles["note"].iloc[0]
    filled = table[table["n"] > 0]
    assert len(filled) == 6 and (filled["R@1"] <= filled["R@5"]).all()
    assert np.allclose(filled[list(MEASURES[:3])].mean(axis=1), filled["Mean"])
    assert "Mean here" in mtrclip_tables.printed_table(table).columns


def test_a_model_under_a_false_label_is_refused(tmp_path: Path) -> None:
    """Rows made by hand: a wrong architecture, then vectors of a wrong length."""
    tiny, large = folder(tmp_path / "tiny", L14, projection_dim=16), folder(tmp_path / "large", L14)
    items = made_retrieval.items()
    for model, dim, said in (
        (tiny, 16, "projection_dim 16, not 768"),
        (large, 16, "vectors of large have length 16, not 768"),
    ):
        rows = [Row(L14, model=str(model)), Row("Fine-tuned CLIP", "validation", str(model))]
        measured = models.measure_models(
            rows,
            lambda: items,
            load=lambda name, d=dim: made_retrieval.MadeUpEncoder(0.1, d, name=Path(name).name),
        )
        for make in (mtrclip_tables.table_2, mtrclip_tables.table_3, mtrclip_tables.table_4):
            table = make(measured)
            assert (table["n"] == 0).all()
            assert table["note"].str.contains(said, regex=False).any()
