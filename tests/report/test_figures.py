import io
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from memecmd_utils import retrieval
from memecmd_utils.core import plots
from memecmd_utils.report import results


def pixels(fig: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    with plots.style():
        fig.savefig(buffer, format="png", dpi=60)
    return np.asarray(Image.open(buffer).convert("RGB"))


def consistency_frame() -> pd.DataFrame:
    rows = [
        ("新闻", "greedy", 70.0, 69.0, 71.0, 40, 24),
        ("新闻", "random", 66.0, 65.0, 67.5, 44, 24),
        ("新闻", "shuffled", 65.0, 64.5, 65.5, 84, 24),
        ("Role", "greedy", 69.0, 68.0, 70.0, 38, 23),
    ]
    return pd.DataFrame(rows, columns=["dataset", "strategy", "mean", "low", "high", "n", "dialogues"])


SCORES = {"news scores": np.array([0.1, 0.3, 0.2]), "news top1": np.array([0.3])}


def test_saved_bytes_are_equal_and_carry_no_date_or_version(tmp_path: Path) -> None:
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        fig = retrieval.score_distributions(SCORES)
        written.append(plots.save(fig, folder, "gate"))
    assert [path.name for path in written[0]] == ["gate.png", "gate.pdf"]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    png, pdf = (path.read_bytes() for path in written[0])
    assert Image.open(io.BytesIO(png)).info.get("Software") is None
    assert b"CreationDate" not in pdf and b"Matplotlib" not in pdf and b"Producer" not in pdf
    assert not list(tmp_path.rglob("*.part*"))


def test_a_users_settings_do_not_change_a_figure() -> None:
    before = dict(matplotlib.rcParams)
    plain = pixels(retrieval.score_distributions(SCORES))
    assert dict(matplotlib.rcParams) == before, "nor does a figure change theirs"
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.facecolor": "yellow"}):
        assert np.array_equal(pixels(retrieval.score_distributions(SCORES)), plain)


def test_consistency_points_intervals_and_baseline() -> None:
    fig = results.consistency_bars(consistency_frame())
    axes = fig.axes[0]
    greedy, random = axes.containers
    assert greedy.get_label() == "Greedy" and list(greedy[0].get_ydata()) == [70.0, 69.0]
    low, high = random[2][0].get_segments()[0][:, 1]
    assert (low, high) == (65.0, 67.5)
    assert np.isnan(random[0].get_ydata()[1])  # no such strategy in the second dataset
    legend = [text.get_text() for text in fig.legends[0].get_texts()]
    assert sorted(legend) == ["Greedy", "Random", "Shuffled pairs"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "新闻\nn = 40-44\nin 24 dialogues",
        "Role\nn = 38\nin 23 dialogues",
    ]


def test_figure_3_has_a_row_for_news_as_in_the_paper_and_one_for_role() -> None:
    rng = np.random.default_rng(5)
    found = {
        "scores": rng.normal(9, 1, 500), "top1": rng.normal(9, 1, 50),
        "news scores": rng.normal(0.3, 0.1, 400), "news top1": rng.normal(0.5, 0.1, 40),
        "role scores": rng.normal(0.1, 0.1, 300), "role top1": rng.normal(0.4, 0.1, 30),
    }  # fmt: skip
    fig = retrieval.score_distributions(found)
    titles = [axes.get_title(loc="left") for axes in fig.axes]
    assert titles == [
        "News-based: memes x turns (n = 400)", "News-based: best meme of each turn (n = 40)",
        "Role-based: memes x turns (n = 300)", "Role-based: best meme of each turn (n = 30)",
    ]  # fmt: skip
    assert fig.axes[0].get_xlim() == fig.axes[2].get_xlim(), "both on one scale"
    peak = fig.axes[0].lines[0].get_data()
    assert peak[0][np.argmax(peak[1])] == pytest.approx(found["news scores"].mean(), abs=0.01)
    alone = retrieval.score_distributions({k: v for k, v in found.items() if not k.startswith("news")})
    assert [axes.get_title(loc="left")[:10] for axes in alone.axes] == ["Role-based"] * 2


def test_a_large_picture_on_a_page_has_fewer_colours_and_its_file_all() -> None:
    rows, columns = np.mgrid[0:500, 0:500]
    smooth = np.stack([rows / 2, columns / 2, (rows + columns) / 4], axis=-1).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 9, smooth.shape, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(smooth + noise).save(buffer, "PNG")
    whole = buffer.getvalue()
    shown = plots.fewer_colours(whole)
    assert len(whole) > plots.LARGE and len(shown) < len(whole) / 2
    with Image.open(io.BytesIO(shown)) as picture:
        assert picture.size == (500, 500) and len(picture.convert("RGB").getcolors()) <= 256
        gap = np.abs(np.asarray(picture.convert("RGB"), int) - (smooth + noise).astype(int))
    assert gap.mean() < 8
    small = io.BytesIO()
    Image.fromarray(smooth[:20, :20]).save(small, "PNG")
    assert plots.fewer_colours(small.getvalue()) == small.getvalue()
