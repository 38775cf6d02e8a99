import json

import made_up
import pytest

from memecmd_utils.core import statistics
from memecmd_utils.evaluation import tables

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
