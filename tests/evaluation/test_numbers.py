import json

import made_up
import numpy as np
import pandas as pd
import pytest

from memecmd_utils.core import statistics
from memecmd_utils.evaluation import tables
from memecmd_utils.retrieval import gate as retrieval_gate
from memecmd_utils.retrieval import placement
from memecmd_utils.retrieval.placement import Calibration

ALL = ("greedy", "sampling", "random", "random_same_turns")
PROFILE = made_up.profile(strategies=ALL)
DIALOGUES = [made_up.dialogue("news-a"), made_up.dialogue("role-b").model_copy(update={"kind": "role"})]


@pytest.fixture(autouse=True)
def two_clusters_are_enough(monkeypatch):
    """Cases worked out by hand have two or three dialogues; the real floor has a test of its own."""
    monkeypatch.setattr(statistics, "MIN_CLUSTERS", 2)


def records():
    placements, ratings, rows = [], [], []
    for number, name in enumerate(("news-a", "role-b")):
        for s, strategy in enumerate(ALL):
            for turn in (2, 4):
                where = {"dialogue_id": name, "strategy": strategy, "meme_id": f"m{1 + s % 3}"}
                placements.append(
                    made_up.placement(
                        turn, where["meme_id"], **{k: v for k, v in where.items() if k != "meme_id"}
                    )
                )
                ratings.append(
                    made_up.rating(turn, 60.0 - 5 * s - number * s / 3 + turn, raw=50.0 - s, **where)
                )
                for text in ("u_t", "u_t+1", "shuffled"):
                    rows.append(made_up.consistency(turn, 70.0 - s - number, text=text, **where))
    return placements, ratings, rows


def numbers():
    placements, ratings, rows = records()
    library = [made_up.meme(name) for name in ("m1", "m2", "m3")]
    return tables.numbers(PROFILE, library, DIALOGUES, placements, ratings, rows, {"a": {"theta0": 0.5}})


def test_frame_rows_are_plain_json() -> None:
    frame = pd.DataFrame({"x": [1.23456789, np.nan], "n": [1, 2], "ok": [True, False], "s": ["a", None]})
    rows = tables.frame_rows(frame)
    assert rows[0] == {"x": 1.234568, "n": 1, "ok": True, "s": "a"} and rows[1]["x"] is None
    assert type(rows[0]["n"]) is int and type(rows[0]["ok"]) is bool and type(rows[0]["x"]) is float


def test_numbers_by_hand() -> None:
    """Two dialogues of 6 turns, TEXTS each: 7 + 7 + 7 + 7 + 5 + 7 characters = 40 / 6 a turn. Texts repeat,
    so at most half of the character pairs differ. 4 memes a strategy in 2 * 5 turns: rate .4."""
    found = numbers()
    assert found["dialogues"]["total"] == 2 and found["dialogues"]["turns"] == 12
    assert found["dialogues"]["mean_characters"] == pytest.approx(40 / 6, abs=1e-6)
    assert 0 < found["dialogues"]["distinct_2"] <= 0.5
    assert found["dialogues"]["summaries"] == 10 and found["dialogues"]["summaries_unscored"] == 0
    assert [row["rate"] for row in found["meme_use"]] == [0.4] * 4
    assert found["ratings"] == {"total": 16, "placed": 16, "unscored": 0, "sources": ["scripted"]}
    assert found["gates"] == {"a": {"theta0": 0.5}}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_gates_are_rounded_and_in_order() -> None:
    gate = retrieval_gate.Gate(1 / 3, 1.0, 1.0)
    found = placement.calibrated_gates(
        {
            "b": Calibration(gate, retrieval_gate.ScoreScale(), "a"),
            "a": Calibration(gate, retrieval_gate.ScoreScale(), "b"),
        }
    )
    assert list(found) == ["a", "b"] and found["a"]["fitted_on"] == "b" and found["a"]["theta0"] == 0.333333


def test_figure_4_has_one_shuffled_baseline_a_source() -> None:
    _, _, rows = records()
    frame = tables.consistency_frame(rows, DIALOGUES, PROFILE)
    assert list(frame.dataset.unique()) == ["news-based", "role-based"]
    news = frame[frame.dataset == "news-based"].set_index("strategy")
    assert list(news.index) == [*ALL, "shuffled"]
    assert (news["mean"]["greedy"], news.n["greedy"]) == (70, 2)
    assert (news["mean"]["shuffled"], news.n["shuffled"]) == (68.5, 8)  # 70, 69, 68, 67 twice each
    assert tables.consistency_frame(rows, DIALOGUES[:1], PROFILE).dataset.unique() == ["news-based"]


def check(auc: float, low: float | None, high: float | None, score: str = "centred") -> dict:
    told = "no interval" if low is None else "yes" if low > 0.5 else "reversed" if high < 0.5 else "no"
    row = {"judge": "j", "score": score, "auc": auc, "low": low, "high": high, "n": 9, "dialogues": 8}
    return row | {"tells apart": told}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (check(0.7, 0.6, 0.8), "The judge tells greedy's memes from random ones at the same turns (AUC 0.70"),
        (check(0.55, 0.45, 0.6), "cannot tell greedy's memes from random ones"),
        (check(0.55, 0.45, 0.6), "say nothing about quality"),
        (check(0.3, 0.2, 0.4), "prefers random memes to greedy's at the same turns (AUC 0.30"),
        (check(0.46, 0.42, 0.495), "it is no measure of quality here"),
        (check(0.7, 0.6, 0.8, "rating"), "tells greedy's memes from random ones"),
        (check(0.7, 0.6, 0.8), "n = 9 in 8 dialogues)."),
        (check(0.65, 0.6, 0.69), ", but only weakly."),
        (check(0.7, None, None), "at least 2 dialogues"),
    ],
)
def test_verdict_on_the_judge(row, words) -> None:
    assert words in tables.judge_verdict({"judge_check": [check(0.9, 0.8, 1.0, "raw"), row]})


def test_verdict_without_any_rating() -> None:
    assert "could be checked" in tables.judge_verdict({"judge_check": []})


def test_headline_says_the_same_as_the_verdict() -> None:
    found = numbers()
    for row, words in ((check(0.3, 0.2, 0.4), "prefers random"), (check(0.5, 0.4, 0.6), "cannot tell")):
        found["judge_check"] = [row, check(0.9, 0.8, 1.0)]  # a second judge does not take the first's place
        shown = tables.headline(found)["AUC of the judge"]
        assert shown["value"] == row["auc"] and words in shown["note"]
        assert words in tables.judge_verdict(found)


def test_headline_quotes_the_choice_effects_with_intervals() -> None:
    shown = tables.headline(numbers())
    assert shown["Memes in the library"] == 3
    assert shown["Meme rate of the gate"] == {"value": 0.4, "note": "4 memes sent"}
    effect = shown["judge: greedy - random_same_turns"]
    assert effect["value"] == 15.5 and effect["low"] < 15.5 < effect["high"]
    assert (effect["n"], effect["dialogues"]) == (4, 2)
    assert effect["note"].startswith("Holm-corrected p = ")
    assert not any("u_t+1" in name for name in shown)
