from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from memecmd_utils.evaluation import judge_checks
from memecmd_utils.evaluation.judge_checks import (
    CENTRED,
    CONSISTENCY,
    KINDS,
    NO,
    P_YES,
    RETRIEVAL,
    REVERSED,
    TOPIC,
    TRUSTED,
    UNSTEADY,
    UNTOLD,
    YARDSTICK,
    Answers,
)

NAMES = [f"d{n}" for n in range(20)]
NAN = float("nan")


def scored(value, judge: str = "made-up judge", reading: str = P_YES, length=lambda meme: 5) -> pd.DataFrame:
    """Made-up scores `value(dialogue number, turn, kind)` at two turns of twenty dialogues."""
    rows = []
    for n, name in enumerate(NAMES):
        for turn in (2, 3):
            for k, kind in enumerate(KINDS):
                score = float(value(n, turn, kind))
                meme = f"m{(7 * n + turn + k) % 11}"
                p = score / 100 if reading == P_YES else NAN
                rows.append((judge, reading, kind, name, turn, meme, length(meme), score, p))
    return pd.DataFrame(rows, columns=list(judge_checks.SCORES))


def worded(value, judge: str = "made-up judge") -> pd.DataFrame:
    """Made-up p(yes) `value(wording, dialogue number, kind)` of one turn of twenty dialogues."""
    rows = [
        (judge, wording, kind, name, 2, f"m{k}", float(value(wording, n, kind)))
        for wording in ("as asked", "second", "third", "no or yes")
        for n, name in enumerate(NAMES)
        for k, kind in enumerate(KINDS[:2])
    ]
    return pd.DataFrame(rows, columns=list(judge_checks.ANSWER_COLUMNS))


NOT_WORDED = worded(lambda *_: 0)[:0]


def random_scores(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return scored(lambda *_: 100 * rng.random())


def only_row(frame: pd.DataFrame, in_words: pd.DataFrame = NOT_WORDED) -> pd.Series:
    return judge_checks.measure(Answers(frame, in_words)).trust.iloc[0]


def test_a_perfect_judge_a_judge_of_topics_and_one_that_guesses() -> None:
    rng = np.random.default_rng(3)

    def perfect(n, turn, kind):
        return 80 + rng.random() if kind == "fitting" else 20 + rng.random()

    def topic(n, turn, kind):
        return 20 + rng.random() if kind == "random" else 80 + (7 * n + 3 * turn + len(kind)) % 10

    row = only_row(scored(perfect))
    assert (row["AUC random"], row["AUC hard"], row["wins random"], row["wins hard"]) == (1, 1, 1, 1)
    assert (row["verdict"], row["turns"], row["unscored"]) == (TRUSTED, 40, 0)
    row = only_row(scored(topic))
    assert row["AUC random"] == 1 and row["AUC hard low"] <= 0.5 <= row["AUC hard high"]
    assert row["verdict"] == TOPIC
    row = only_row(random_scores(4))
    assert row["AUC random low"] < 0.5 < row["AUC random high"] and row["verdict"] == NO
    # Worse than chance is no merit.
    row = only_row(scored(lambda n, turn, kind: 100 - perfect(n, turn, kind)))
    assert row["AUC random"] == 0 and row["verdict"] == REVERSED


def test_wins_count_a_tie_half_and_leave_out_turns_without_both() -> None:
    """Turn 2: fitting 50, random 50 (tie), turn 3: fitting 60, random 50 (won): .75"""
    frame = scored(lambda n, turn, kind: 60 if (turn, kind) == (3, "fitting") else 50)
    assert judge_checks.wins(frame, "random") == 0.75
    frame.loc[(frame.turn == 2) & (frame.kind == "random"), "score"] = NAN
    assert judge_checks.wins(frame, "random") == 1.0 and judge_checks.wins(frame, "hard negative") == 0.75
    assert np.isnan(judge_checks.wins(frame[frame.kind == "fitting"], "random"))


def test_calibration_is_of_p_yes_only() -> None:
    """p .9 where it fits and .3 elsewhere: ECE (.1 + .3 + .3) / 3, Brier (.01 + .09 + .09) / 3, base 2/9."""
    checks = judge_checks.measure(
        Answers(
            pd.concat(
                [
                    scored(lambda n, turn, kind: 90 if kind == "fitting" else 30),
                    scored(lambda n, turn, kind: 70 if kind == "fitting" else 40, reading=CENTRED),
                ]
            ),
            NOT_WORDED,
        )
    )
    asked, centred = (checks.trust.iloc[i] for i in (0, 1))
    # 120 items in ten bins of twelve; the 40 that fit are the last, so one bin is mixed: 8 of 12 do not fit.
    mixed = abs((8 * 0.3 + 4 * 0.9) / 12 - 4 / 12)
    assert asked["ECE"] == pytest.approx((6 * 0.3 + mixed + 3 * 0.1) / 10)
    assert asked["Brier"] == pytest.approx(0.19 / 3) and asked["Brier base rate"] == pytest.approx(2 / 9)
    assert np.isnan([centred["ECE"], centred["Brier"], centred["Brier base rate"]]).all()
    assert list(checks.calibration.bin) == list(range(1, 11)) and set(checks.calibration["items"]) == {12}


def test_length_counts_memes_that_do_not_fit() -> None:
    def score(n, turn, kind):
        k = KINDS.index(kind)
        longer = (7 * n + turn + k) % 11
        return -longer if kind == "fitting" else longer

    frame = scored(score, length=lambda meme: int(meme[1:]))
    got = judge_checks.length_correlation(frame)
    assert (got.mean, got.high) == pytest.approx((1, 1)) and 0.5 < got.low < 1 and got.n == 80
    same = judge_checks.length_correlation(scored(score))  # all captions equally long
    assert np.isnan([same.mean, same.low, same.high]).all()
    # A meme that is both random and the hard negative of a turn counts once.
    doubled = frame.assign(meme_id=frame["meme_id"].where(frame["kind"] == "fitting", "m9"))
    assert judge_checks.length_correlation(doubled).n == 40


def test_alpha_and_order_over_wordings() -> None:
    base = scored(lambda n, turn, kind: 80 + n / 10 if kind == "fitting" else 20 + n / 10)

    def steady(wording, n, kind):
        p = n / 40 + (0.4 if kind == "fitting" else 0.0)
        return p - 0.04 - 0.02 * (n % 2) if wording == "no or yes" else p

    row = only_row(base, worded(steady))
    assert row["alpha wordings"] == pytest.approx(1) and row["verdict"] == TRUSTED
    assert row["order shift"] == pytest.approx(-0.05)
    assert -0.06 < row["order shift low"] < -0.05 < row["order shift high"] < -0.04
    rng = np.random.default_rng(5)
    row = only_row(base, worded(lambda *_: rng.random()))
    assert row["alpha wordings"] < 0.4 and row["verdict"] == UNSTEADY
    # A judge with one wording only is judged by its AUCs, and another judge's wordings are not its own.
    assert np.isnan(only_row(base)["alpha wordings"]) and only_row(base)["verdict"] == TRUSTED
    others = worded(lambda *_: rng.random(), judge="another")
    assert only_row(base, others)["verdict"] == TRUSTED


@pytest.mark.parametrize(
    ("random", "hard_low", "alpha", "expected"),
    [
        ((0.51, 0.7), 0.51, NAN, TRUSTED),
        ((0.51, 0.7), 0.51, 0.667, TRUSTED),
        ((0.51, 0.7), 0.51, 0.666, UNSTEADY),
        ((0.51, 0.7), 0.50, 0.9, TOPIC),
        ((0.51, 0.7), 0.40, 0.1, TOPIC),
        ((0.50, 0.7), 0.60, 0.9, NO),
        ((0.42, 0.50), 0.60, 0.9, NO),
        ((0.42, 0.495), 0.60, 0.9, REVERSED),
        ((NAN, NAN), NAN, 0.9, UNTOLD),
        ((0.51, 0.7), NAN, NAN, TOPIC),
    ],
)
def test_the_rule(random, hard_low, alpha, expected) -> None:
    row = {"AUC random": sum(random) / 2, "AUC random low": random[0], "AUC random high": random[1]}
    row |= {"AUC hard low": hard_low, "alpha wordings": alpha}
    assert judge_checks.verdict({"reading": P_YES, **row}) == expected
    assert judge_checks.verdict({"reading": RETRIEVAL, **row}) == YARDSTICK


def test_two_judges_agree_by_ranks() -> None:
    """Alpha of ranks: 1 for the same order on another scale, -1 for the order turned round."""
    rng = np.random.default_rng(6)
    base = scored(lambda *_: 100 * rng.random(), "one", CENTRED)
    other = [
        base.assign(judge=name, score=f(base.score)) for name, f in (("two", np.exp), ("three", np.negative))
    ]
    random = scored(lambda *_: 100 * rng.random(), "four", CONSISTENCY)
    ignored = [base.assign(judge="one", reading=P_YES), base.assign(judge="T", reading=RETRIEVAL)]
    table = judge_checks.measure(Answers(pd.concat([base, *other, random, *ignored]), NOT_WORDED)).agreement
    found = {(r["judge"], r["other"]): r for _, r in table.iterrows()}
    assert list(found) == list(combinations(["one", "two", "three", "four"], 2))
    assert found["one", "two"]["alpha"] == pytest.approx(1)
    assert found["one", "three"]["alpha"] == pytest.approx(-1, abs=0.02)
    assert found["one", "four"]["alpha low"] < 0 < found["one", "four"]["alpha high"]
    assert set(table["items"]) == {120}


def test_few_dialogues_give_no_interval_and_no_trust() -> None:
    frame = scored(lambda n, turn, kind: 90 if kind == "fitting" else 10)
    few = Answers(frame[frame.dialogue_id.isin(NAMES[:3])], NOT_WORDED)
    trust = judge_checks.measure(few).trust
    row = trust.iloc[0]
    assert row["AUC random"] == 1 and np.isnan(row["AUC random low"]) and row["verdict"] == UNTOLD
    assert "too few dialogues" in judge_checks.trust_table(trust)["AUC random"][0]
    text = judge_checks.trust_sentence(judge_checks.measure(few))
    assert "could not be held against the ground truth" in text and "cannot tell" not in text
    alike = frame.assign(score=50.0, p=0.5)  # all dialogues alike: no interval, but nothing is open
    assert only_row(alike)["verdict"] == NO


# --- does p(yes) mean what it says? -----------------------------------------------------------------------


def test_bins_by_hand(monkeypatch) -> None:
    """p .1 .2 | .6 .8 with truth 0 1 | 1 1: means .15 and .7, shares .5 and 1."""
    monkeypatch.setattr(judge_checks, "BINS", 2)
    p, fits = np.array([0.8, 0.1, 0.6, 0.2]), np.array([1.0, 0, 1, 1])
    rows = judge_checks.bins(p, fits)
    assert [(r["bin"], r["items"]) for r in rows] == [(1, 2), (2, 2)]
    assert [r["mean p"] for r in rows] == pytest.approx([0.15, 0.7])
    assert [r["share that fits"] for r in rows] == [0.5, 1.0]
    # (2 * .35 + 2 * .3) / 4
    assert judge_checks.calibration_error(p, fits) == pytest.approx(0.325)
    # (.04 + .01 + .16 + .64) / 4
    assert judge_checks.brier(p, fits) == pytest.approx(0.2125)


def test_what_was_not_scored_counts_nowhere_but_in_its_column() -> None:
    frame = scored(lambda n, turn, kind: 90 if kind == "fitting" else 10)
    gone = frame.index[::7]
    frame.loc[gone, ["score", "p"]] = NAN
    row = only_row(frame)
    assert row["unscored"] == len(gone) and row["AUC random"] == row["wins hard"] == 1
    assert np.isfinite([row["ECE"], row["Brier"]]).all()
    frame[["score", "p"]] = NAN
    row = only_row(frame)
    assert row["unscored"] == 120 and row["verdict"] == UNTOLD
    assert np.isnan([row["AUC random"], row["wins random"], row["ECE"], row["Brier base rate"]]).all()
