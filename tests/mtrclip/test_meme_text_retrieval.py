import made_retrieval
import numpy as np
import pytest

from memecmd_utils.mtrclip import recall
from memecmd_utils.mtrclip.recall import BOTH, DIFFERENCES, KINDS, MEASURES, RECALLS


def cell(frame, text="meme_caption", counting="pair", direction="T2M", measure="R@1"):
    keys = {"text": text, "counting": counting, "direction": direction, "measure": measure}
    (row,) = [row for _, row in frame.iterrows() if all(row[name] == value for name, value in keys.items())]
    return row


def test_by_hand() -> None:
    """Three memes of two templates: text a finds its meme, b finds c's, c finds b's; a and b say the same."""
    items = made_retrieval.items(3, 0, meme_caption=["a", "b", "c"])
    items = [item._replace(template=name) for item, name in zip(items, ("t", "t", "u"), strict=True)]
    rows = {"m0.png": [1, 0, 0], "m1.png": [0, 1, 0], "m2.png": [0, 0, 1]}
    rows |= {"a": [1, 0.1, 0], "b": [0.1, 0, 1], "c": [0, 1, 0.1]}
    found = recall.evaluate(made_retrieval.of_memes(rows)(), items, ["meme_caption"])
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
    frame = recall.recalls(recall.evaluate(made_retrieval.of_memes(rows)(), same, ["meme_caption"]), "table")
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
    items = made_retrieval.items(n, templates, meme_caption=[f"text {i}" for i in range(n)])
    encoder = made_retrieval.of_memes(rows)()
    found_by = recall.evaluate(encoder, items, ["meme_caption"])
    frame = recall.recalls(found_by, "x")
    row = cell(frame)
    assert row["value"] == 0.5
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


def test_several_captions_each() -> None:
    captions = [[f"first of m{i}", f"second of m{i}"] for i in range(12)]
    items = made_retrieval.items(12, 6, meme_caption=[["x"]] * 12)
    items = [i._replace(texts={"meme_caption": c}) for i, c in zip(items, captions, strict=True)]
    found = recall.evaluate(made_retrieval.MadeUpEncoder(0.3), items, captions="extend")
    ranks = found["meme_caption"].ranks
    assert len(ranks["pair", "T2M"].above) == 24 and len(ranks["pair", "M2T"].above) == 12
    frame = recall.recalls(found, "x")
    assert cell(frame, direction="M2T")["value"] > 0.9 and cell(frame, direction=BOTH)["n"] == 12
