import tracemalloc
from pathlib import Path

import made_retrieval
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from memecmd_utils import drawing
from memecmd_utils.mtrclip import recall, tables
from memecmd_utils.mtrclip.recall import (
    BOTH,
    DIFFERENCES,
    KINDS,
    MEASURES,
    RECALLS,
    DataMissing,
    Gallery,
    Ranks,
    RetrievalItem,
    gallery,
    rank_all,
)


def item(name: str, *captions: str, template: str = "") -> RetrievalItem:
    return RetrievalItem(name, Path(f"{name}.png"), template, {"meme_caption": list(captions)})


def test_the_first_text_of_each_meme_counts_that_is_not_blank() -> None:
    items = [item("a", " ", "one", "two"), item("b"), item("c", "three", template="t")]
    first = gallery(items, "meme_caption")
    assert first.texts == ("one", "three") and first.left_out == 1
    assert [path.name for path in first.images] == ["a.png", "c.png"]
    assert first.clusters == (("", 0), ("t", -1)), "a meme without a template is one of its own"
    assert gallery(items, "title").texts == ()


def test_files_by_name_and_stem(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.jpg", "deep/b.PNG", "notes.txt"):
        (tmp_path / name).touch()
    found = recall.files_below(tmp_path)
    assert set(found) == {"a.jpg", "a", "b.PNG", "b"} and found["b"] == tmp_path / "deep" / "b.PNG"
    for name in ("deep/a.jpg", "deep/a.png"):
        (tmp_path / name).touch()
    (tmp_path / "c.png").mkdir()
    found = recall.files_below(tmp_path)
    assert found["a.jpg"] == found["a"] == tmp_path / "a.jpg", "the first by path"
    assert found["a.png"] == tmp_path / "deep" / "a.png" and "c" not in found
    with pytest.raises(DataMissing, match=r"give mtrclip\.images=DIR"):
        recall.files_below(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match="holds no picture"):
        recall.files_below(tmp_path / "empty")


def test_items_with_broken_pictures_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    def named(*names: str) -> list[RetrievalItem]:
        return [RetrievalItem(name, tmp_path / name, "", {"title": [name]}) for name in names]

    for name in ("a.png", "b.jpg", "c.jpg"):
        Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / name)
    items = named("b.jpg", "a.png", "c.jpg")
    assert recall.readable(items) == items and capsys.readouterr().out == ""
    # The header of a file that was cut off is whole.
    (tmp_path / "c.jpg").write_bytes((tmp_path / "c.jpg").read_bytes()[:-900])
    (tmp_path / "d.png").write_text("<html>not found</html>")
    items += named("d.png")
    assert recall.readable(items) == items[:2]
    said = capsys.readouterr().out
    assert said.startswith("2 of 4 memes left out, their pictures cannot be read; the first: c.jpg: broken")
    with pytest.raises(DataMissing, match=r"none of 1 pictures can be read; the first: d\.png: not an image"):
        recall.readable(items[3:])
    gone = named("gone.png")
    assert recall.readable(gone) == gone and recall.readable([]) == []


def pairs(templates, texts) -> Gallery:
    files = tuple(Path(f"{i}.png") for i in range(len(templates)))
    return Gallery("title", files, tuple(templates), tuple(texts))


def is_right(gallery: Gallery, counting: str, text: int, meme: int) -> bool:
    """One pair at a time, as the definitions say it."""
    if text == meme or counting == "pair":
        return text == meme
    if counting == "template":
        return "" != gallery.templates[text] == gallery.templates[meme]
    return gallery.texts[text] == gallery.texts[meme]


def slow(texts, images, gallery, counting, direction) -> list[tuple[int, int, int]]:
    """The same counts by loops over all pairs in float64."""
    t = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    m = images / np.linalg.norm(images, axis=1, keepdims=True)
    counts = []
    for query in range(len(t)):
        scored = []
        for other in range(len(t)):
            text, meme = (query, other) if direction == "T2M" else (other, query)
            scored.append((float(t[text] @ m[meme]), is_right(gallery, counting, text, meme)))
        best = max(s for s, right in scored if right)
        above = sum(s > best + 1e-6 for s, _ in scored)
        level = [right for s, right in scored if abs(s - best) <= 1e-6]
        counts.append((above, level.count(False), level.count(True)))
    return counts


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counts_are_those_of_a_loop_over_all_pairs(data) -> None:
    """Few distinct vectors and texts, so that ties and equal texts abound; blocks of one row and more."""
    n = data.draw(st.integers(1, 9))
    templates = data.draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=n, max_size=n))
    texts = data.draw(st.lists(st.sampled_from("xyz"), min_size=n, max_size=n))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    known = rng.normal(size=(4, 3))
    text_rows, image_rows = known[rng.integers(4, size=n)], known[rng.integers(4, size=n)]
    gallery = pairs(templates, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "MOST_BYTES", data.draw(st.sampled_from([1, 100, 1 << 20])))
        found = rank_all(text_rows, image_rows, gallery)
    wanted = ["pair", "same text", *(["template"] if any(templates) else [])]
    assert set(found) == {(c, d) for c in wanted for d in ("T2M", "M2T")}
    for (counting, direction), ranks in found.items():
        got = list(zip(*map(np.ndarray.tolist, (ranks.above, ranks.level, ranks.right)), strict=True))
        assert got == slow(text_rows, image_rows, gallery, counting, direction), (counting, direction)


def shuffled_hits(above: int, level: int, right: int, k: int) -> float:
    """A hit at k when equal candidates come in random order, by simulation."""
    rng = np.random.default_rng(3)
    tied = np.array([True] * right + [False] * level)
    return np.mean([above < k and rng.permutation(tied)[: k - above].any() for _ in range(20_000)])


@pytest.mark.parametrize(
    "case", [(0, 1, 1), (0, 4, 1), (2, 3, 2), (4, 6, 1), (5, 0, 1), (0, 0, 3), (9, 1, 1)]
)
@pytest.mark.parametrize("k", [1, 5, 10])
def test_expected_hits_among_equals(case, k) -> None:
    ranks = Ranks(*(np.array([x]) for x in case))
    assert ranks.hits(k)[0] == pytest.approx(shuffled_hits(*case, k), abs=0.015)


def test_a_model_that_knows_nothing_scores_k_of_n() -> None:
    n = 20
    gallery = pairs([""] * n, [str(i) for i in range(n)])
    found = rank_all(np.ones((n, 4)), np.ones((n, 4)), gallery)
    for k in (1, 5, 10):
        assert found["pair", "T2M"].hits(k) == pytest.approx(np.full(n, k / n))


def test_lengths_of_vectors_do_not_count_and_bad_ones_are_refused() -> None:
    rng = np.random.default_rng(0)
    gallery = pairs([""] * 6, "abcdef")
    texts, images = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    long = images * rng.uniform(0.1, 30, size=(6, 1))
    one, two = rank_all(texts, images, gallery), rank_all(texts, long, gallery)
    assert all(np.array_equal(one[key].above, two[key].above) for key in one)
    images[2, 1] = np.nan
    with pytest.raises(ValueError, match="not all finite"):
        rank_all(texts, images, gallery)
    with pytest.raises(ValueError, match="5 rows for 6 texts"):
        rank_all(texts[:5], long, gallery)


@pytest.mark.slow
def test_memory_stays_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    n, most = 6_000, 4 << 20  # the whole matrix of scores would take 144 MB
    monkeypatch.setattr(recall, "MOST_BYTES", most)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(n, 8)).astype(np.float32)
    gallery = pairs([f"t{i % 50}" for i in range(n)], [str(i % 5_000) for i in range(n)])
    tracemalloc.start()
    found = rank_all(images, images, gallery)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["pair", "T2M"].hits(1).mean() > 0.99
    # Beside the block: vectors, counts, and lists of right candidates, about 1.5 KB a meme.
    assert peak < most + n * 2_000


def cell(frame, text="meme_caption", counting="pair", direction="T2M", measure="R@1"):
    keys = {"text": text, "counting": counting, "direction": direction, "measure": measure}
    (row,) = [row for _, row in frame.iterrows() if all(row[name] == value for name, value in keys.items())]
    return row


def test_by_hand() -> None:
    """Three memes of two templates: text a finds its meme, b finds c's, c finds b's; a and b say the same."""
    items = made_retrieval.items(3, 0, kinds=(), meme_caption=["a", "b", "c"])
    items = [item._replace(template=name) for item, name in zip(items, ("t", "t", "u"), strict=True)]
    rows = {"m0.png": [1, 0, 0], "m1.png": [0, 1, 0], "m2.png": [0, 0, 1]}
    rows |= {"a": [1, 0.1, 0], "b": [0.1, 0, 1], "c": [0, 1, 0.1]}
    found = recall.evaluate(made_retrieval.of_memes(rows)(), items)
    frame = recall.recalls(found, "table")
    assert list(frame.columns) == list(RECALLS) and len(frame) == 3 * 3 * 4
    assert cell(frame)["value"] == pytest.approx(1 / 3)
    # Ranks 1, 3 (before it c's meme and a's) and 2: at 5 and 10 everything is found.
    assert found["meme_caption"].ranks["pair", "T2M"].above.tolist() == [0, 2, 1]
    assert cell(frame, measure="Mean")["value"] == pytest.approx((1 / 3 + 1 + 1) / 3)
    assert cell(frame, direction="M2T")["value"] == pytest.approx(1 / 3)
    assert cell(frame, counting="template")["value"] == pytest.approx(1 / 3)
    assert cell(frame)["n"] == 3 and cell(frame)["clusters"] == 2
    assert np.isnan(cell(frame)["low"]), "two templates give no interval"
    same = [item._replace(texts={"meme_caption": ["b" if i else "c"]}) for i, item in enumerate(items)]
    frame = recall.recalls(recall.evaluate(made_retrieval.of_memes(rows)(), same), "table")
    # Texts c, b, b: both b's find m2, which is right for either where equal texts count.
    assert cell(frame)["value"] == pytest.approx(1 / 3)
    assert cell(frame, counting="same text")["value"] == pytest.approx(2 / 3)


def test_both_is_the_mean_of_both_directions_and_the_near_score_higher() -> None:
    items = made_retrieval.items(40, 8)
    near, far = (recall.evaluate(made_retrieval.MadeUpEncoder(noise), items) for noise in (0.6, 1.6))
    frame = recall.recalls(far, "far")
    assert set(frame["text"]) == set(KINDS) and set(frame["counting"]) == {"pair", "same text", "template"}
    for kind in KINDS:
        both, *ways = (cell(frame, kind, direction=d) for d in (BOTH, "T2M", "M2T"))
        assert both["value"] == pytest.approx(np.mean([way["value"] for way in ways]))
        assert both["low"] <= both["value"] <= both["high"] and both["clusters"] == 8
        by_k = [cell(frame, kind, measure=m)["value"] for m in MEASURES]
        assert by_k[0] <= by_k[1] <= by_k[2] and by_k[3] == pytest.approx(np.mean(by_k[:3]))
        assert cell(frame, kind, "template")["value"] >= cell(frame, kind)["value"]
    gaps = recall.differences(near, far, 7)
    assert list(gaps.columns) == list(DIFFERENCES)
    gap, old = cell(gaps, direction=BOTH), cell(frame, direction=BOTH)
    assert gap["base"] == pytest.approx(old["value"])
    assert gap["difference"] == pytest.approx(gap["tuned"] - gap["base"])
    assert 0 < gap["low"] <= gap["difference"] <= gap["high"] and gap["p"] < 0.05
    none = recall.differences(far, far, 7)
    assert (none["difference"] == 0).all() and (none["p"] == 1).all() and none["low"].isna().all()
    assert set(gaps["clusters"]) == {8}


def test_the_interval_is_over_templates() -> None:
    """Whole templates are found or not, so the interval must be far wider than that of single memes."""
    n, templates = 60, 6
    rows = {f"m{i}.png": np.eye(n)[i] for i in range(n)}
    found = [i % templates < 3 for i in range(n)]
    rows |= {f"text {i}": np.eye(n)[i if found[i] else (i + 1) % n] for i in range(n)}
    items = made_retrieval.items(n, templates, kinds=(), meme_caption=[f"text {i}" for i in range(n)])
    encoder = made_retrieval.of_memes(rows)()
    frame = recall.recalls(recall.evaluate(encoder, items), "x")
    assert cell(frame)["value"] == 0.5
    for direction in ("T2M", "M2T", BOTH):
        row = cell(frame, direction=direction)
        assert row["high"] - row["low"] > 0.55, direction


def test_each_picture_is_encoded_once_and_the_order_of_memes_is_no_matter() -> None:
    items = made_retrieval.items(24, 6, title=["", *[f"title of m{i}" for i in range(1, 24)]])
    encoder = made_retrieval.MadeUpEncoder(1.2)
    one = recall.recalls(recall.evaluate(encoder, items), "x")
    assert encoder.asked == [24]
    assert cell(one, "title")["n"] == 23
    other = recall.recalls(recall.evaluate(encoder, items[::-1]), "x")
    assert np.allclose(one["value"], other["value"])


def made(**texts) -> pd.DataFrame:
    """Recalls of three made-up encoders, shaped as `models.all_recalls` gives them."""
    frames = []
    items = made_retrieval.items(40, 8, **texts)
    for model, selection, noise in (("Base", "", 2.2), ("Tuned", "validation", 1.3), ("Tuned", "paper", 1.1)):
        found = recall.evaluate(made_retrieval.MadeUpEncoder(noise), items)
        frame = recall.recalls(found, model)
        frames.append(frame.assign(selection=selection, weights="made up"))
    return pd.concat(frames, ignore_index=True)


def test_every_point_is_a_row_of_the_table() -> None:
    frame = made()
    fig = tables.recall_figure(frame)
    panels = [axes for axes in fig.axes if axes.containers]
    assert len(panels) == 8 and [axes.get_title("left") for axes in panels[:4]] == list(tables.TEXTS.values())
    for place, axes in enumerate(panels):
        kind, counting = list(tables.TEXTS)[place % 4], list(tables.BY)[place // 4]
        here = frame[
            (frame["text"] == kind) & (frame["counting"] == counting) & (frame["direction"] == "both")
        ]
        here = here[here["measure"] != "Mean"]
        drawn = [container.lines[0].get_ydata() for container in axes.containers]
        assert np.allclose(np.concatenate(drawn), here["value"])
        ends = [segment[:, 1] for c in axes.containers for segment in c.lines[2][0].get_segments()]
        assert np.allclose(np.sort(ends, axis=1), here[["low", "high"]], atol=1e-9)
    legend = [text.get_text() for text in fig.legends[0].get_texts()]
    assert legend == ["Base", "Tuned, epoch by validation set", "Tuned, epoch by test set"]
    assert drawing.figure_png(fig) == drawing.figure_png(tables.recall_figure(frame))
