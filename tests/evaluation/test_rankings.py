import json
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import annotation, dialogue, grade, mark, meme, placement, profile, vectors

from memecmd_utils import retrieval, runs
from memecmd_utils.embedders import RecordedEmbedder
from memecmd_utils.evaluation import ground_truth, rankings
from memecmd_utils.evaluation.ground_truth import GroundTruth
from memecmd_utils.evaluation.rankings import FULL, System

MEMES = ["m1", "m2", "m3"]


def matrices(weights: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)) -> dict[System, np.ndarray]:
    annotations = [
        annotation(m, s_plus=f"{m}好", s_minus=f"{m}坏", emotion=f"{m}情", motivation=f"{m}意") for m in MEMES
    ]
    library = {m: meme(m).model_copy(update={"text": f"{m}的字"}) for m in MEMES}
    asked = rankings.queries([varied()])
    encoders = {
        "tiny": lambda texts, side: vectors(texts, side),
        "other": lambda t, s: vectors(t, "other" + s),
    }
    return dict(rankings.score_matrices(asked, library, annotations, encoders, weights))


def varied():
    made = dialogue()
    summaries = [
        s.model_copy(
            update={"scenario": f"景{s.turn}", "emotion": f"情{s.turn}", "motivation": f"意{s.turn}"}
        )
        for s in made.summaries
    ]
    return made.model_copy(update={"summaries": summaries})


@pytest.mark.parametrize("centring", ["attribute", "none"])
def test_the_full_score_is_the_one_that_retrieval_places_by(centring: str) -> None:
    weights = (0.4, 0.3, 0.2, 0.1)
    blocks = [vectors([f"{m}{sign}" for m in MEMES], "document") for sign in "好坏情意"]
    turns = [s.turn for s in varied().summaries]
    parts = [vectors([f"{sign}{t}" for t in turns], "query") for sign in "景情意"]
    index = retrieval.build_index(MEMES, blocks, centring == "attribute")
    queries = retrieval.build_queries(parts, centring == "attribute")
    ranking = retrieval.top_k(index, queries, weights, 3)
    mine = matrices(weights)[System("tiny", centring, FULL)]
    order = retrieval.order(mine, MEMES)
    assert np.array_equal(order, ranking.memes)
    assert np.allclose(np.take_along_axis(mine, order, 1), ranking.scores, atol=1e-6)


def test_single_terms_add_up_and_a_reserved_scenario_counts_against_a_meme() -> None:
    found = matrices((1, 1, 1, 1))
    of = {uses: found[System("tiny", "none", uses)] for uses in ("S+", "S-", "E", "Psi", "S+ S-", FULL)}
    assert np.allclose(of["S+"] + of["S-"], of["S+ S-"])
    assert np.allclose(of["S+ S-"] + of["E"] + of["Psi"], of[FULL])
    wanted = vectors(["景2"], "query")[0] @ vectors(["m1坏"], "document")[0]
    assert of["S-"][0, 0] == pytest.approx(-wanted, abs=1e-6)


def test_the_context_is_the_last_three_turns_and_nothing_later() -> None:
    made = dialogue()
    texts = [turn.text for turn in made.turns]
    by_turn = {q.turn: q.context for q in rankings.queries([made])}
    assert by_turn[2] == texts[0] and by_turn[6] == "\n".join(texts[2:5])


def test_random_rankings_are_permutations_that_differ_by_draw_and_turn_and_come_again() -> None:
    asked = rankings.queries([dialogue()])
    first, again = (rankings.random_order(asked, 50, 13, 0) for _ in range(2))
    assert np.array_equal(first, again) and (np.sort(first, axis=1) == np.arange(50)).all()
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, rankings.random_order(asked, 50, 13, 1))


def test_a_turn_without_a_usable_summary_is_not_asked() -> None:
    made = dialogue()
    made.summaries[1] = made.summaries[1].model_copy(update={"unscored": "refused"})
    assert [q.turn for q in rankings.queries([made])] == [2, 4, 5, 6]


IDS = ["m1", "m2", "m3", "m4", "m5", "m6", "m7"]
KEY = ("news-made-1", 2)
COLUMN = {name: i for i, name in enumerate(rankings.COLUMNS)}


def measures(order: list[int], grades: dict[str, int], level: int = 2) -> dict[str, float]:
    row = rankings.per_turn(np.array([order]), rankings.gains_of([KEY], IDS, {KEY: grades}), level)[0]
    return {name: float(row[i]) for name, i in COLUMN.items()}


def test_measures_by_hand() -> None:
    # m3 (gain 4) stands second, m1 (gain 1, below the level) first, m5 (gain 2) sixth; m7 was not judged.
    got = measures([0, 2, 1, 3, 6, 4, 5], {"m1": 1, "m2": 0, "m3": 4, "m4": 0, "m5": 2, "m6": 0})
    assert got["R@1"] == 0 and got["R@5"] == 1 and got["MRR"] == 0.5
    assert got["judged@5"] == pytest.approx(4 / 5)
    gained = 1 / math.log2(2) + 4 / math.log2(3)
    ideal = 4 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert got["nDCG@5"] == pytest.approx(gained / ideal)
    # bpref: 2 relevant, 4 judged not relevant; m1 before m3, and m1, m2, m4 before m5.
    assert got["bpref"] == pytest.approx(((1 - 1 / 2) + (1 - 2 / 2)) / 2)


@given(
    st.lists(st.sampled_from([np.nan, 0, 1, 2, 3, 4]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.randoms(),
)
def test_measures_equal_those_of_trec_eval(gains: list[float], level: int, luck: Random) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    order = luck.sample(range(len(gains)), len(gains))
    row = rankings.per_turn(np.array([order]), np.array([gains]), level)[0]
    judged = {f"m{i}": int(gain) for i, gain in enumerate(gains) if not np.isnan(gain)}
    if not judged:
        assert np.isnan(row).all()
        return
    names = {
        "R@1": "success_1", "R@5": "success_5", "MRR": "recip_rank", "nDCG@5": "ndcg_cut_5", "bpref": "bpref"
    }  # fmt: skip
    judge = pytrec_eval.RelevanceEvaluator({"q": judged}, set(names.values()), relevance_level=level)
    theirs = judge.evaluate({"q": {f"m{i}": -float(rank) for rank, i in enumerate(order)}})["q"]
    assert {name: row[COLUMN[name]] for name in names} == pytest.approx(
        {name: theirs[key] for name, key in names.items()}
    )


def test_unjudged_memes_hurt_all_measures_but_bpref() -> None:
    grades = {"m1": 4, "m2": 0}
    clean, crowded = measures([0, 1, 2, 3, 4, 5, 6], grades), measures([2, 3, 4, 5, 6, 0, 1], grades)
    assert clean["bpref"] == crowded["bpref"] == 1
    assert clean["R@5"] == 1 and crowded["R@5"] == 0 and crowded["judged@5"] == 0


def perfect_world(turns: int = 9, dialogues: int = 8) -> tuple[list[rankings.Query], dict, np.ndarray]:
    texts = tuple(f"第{n}句话" for n in range(turns))
    asked = rankings.queries([dialogue(f"news-{n}", texts) for n in range(dialogues)])
    best = np.arange(len(asked)) % len(IDS)
    relevant = {
        q.key: {m: (3 if i == b else 0) for i, m in enumerate(IDS)} for q, b in zip(asked, best, strict=True)
    }
    return asked, relevant, best


def test_a_perfect_system_beats_random_and_the_interval_says_so() -> None:
    asked, relevant, best = perfect_world()
    perfect = np.eye(len(IDS))[best]
    own = System("tiny", "attribute", rankings.FULL)
    worst = System("tiny", "attribute", "S+")
    settings = profile(embedder="tiny", consistency_embedder="other")
    [found] = rankings.evaluate({own: perfect, worst: -perfect}, asked, IDS, relevant, settings)
    table, differences = rankings.tabulate(found, settings, "tiny")
    row = table.set_index("uses").loc
    assert row[rankings.FULL]["R@1"] == 1 and row["S+"]["R@1"] == 0
    assert row["random"]["R@1"] == pytest.approx(1 / len(IDS), abs=0.05)
    of = differences.set_index(["uses", "minus", "measure"]).sort_index()
    against_random = of.loc[(rankings.FULL, "random", "nDCG@5")]
    assert against_random["low"] > 0 and against_random["p"] < 0.05
    against_full = of.loc[("S+", "the full score", "R@1")]
    # It loses at every turn of every dialogue: p is as small as so many dialogues allow, and no interval is
    # made of what does not vary.
    assert against_full["mean"] == -1 and np.isnan(against_full["low"])
    assert against_full["p"] == differences.p.min() < 0.05
    assert set(table.dialogues) == set(differences.dialogues) == {len({q.key[0] for q in asked})}
    assert (rankings.FULL, "the full score") not in set(zip(differences.uses, differences.minus, strict=True))


def test_two_equal_systems_do_not_differ_and_a_useless_one_is_not_called_better() -> None:
    asked, relevant, _ = perfect_world()
    own = System("tiny", "attribute", rankings.FULL)
    twin = System("tiny", "none", rankings.FULL)
    scores = np.random.default_rng(0).normal(size=(len(asked), len(IDS)))
    settings = profile(embedder="tiny", consistency_embedder="other")
    [found] = rankings.evaluate({own: scores, twin: scores.copy()}, asked, IDS, relevant, settings)
    _, differences = rankings.tabulate(found, settings, "tiny")
    same = differences[(differences.centring == "none") & (differences.minus == "the full score")]
    assert (same["mean"] == 0).all() and (same.p == 1).all()
    chance = differences[
        (differences.centring == "none") & (differences.minus == "random") & (differences.measure == "nDCG@5")
    ]
    assert chance.low.item() < 0 < chance.high.item()


def test_turns_without_a_relevant_meme_are_left_out() -> None:
    asked, relevant, best = perfect_world()
    relevant[asked[0].key] = dict.fromkeys(IDS, 1)  # nothing reaches the level
    del relevant[asked[1].key]  # nobody judged it
    own = System("tiny", "attribute", rankings.FULL)
    settings = profile(embedder="tiny", consistency_embedder="other")
    [found] = rankings.evaluate({own: np.eye(len(IDS))[best]}, asked, IDS, relevant, settings)
    measured, keys = found
    assert len(keys) == len(asked) - 2 == len(measured[own])
    assert not {asked[0].key, asked[1].key} & set(keys)


LIBRARY = [f"m{i}" for i in range(1, 81)]
NAMES = [f"news-made-{i}" for i in range(1, 8)]


class Tiny:
    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, texts, side) -> np.ndarray:
        return vectors(texts, side + self.name)


def made_run(tmp_path):
    settings = profile(embedder="tiny", consistency_embedder="other")
    asked: list[str] = []

    def embedder(name: str | None = None) -> RecordedEmbedder:
        asked.append(name or "")
        return RecordedEmbedder(Tiny(name or "tiny"), [], None, "live", tmp_path)

    run = runs.Run("made", settings, tmp_path, tmp_path / "report")
    run.embedder = embedder
    annotations = [
        annotation(m, s_plus=f"{m}好", s_minus=f"{m}坏", emotion=f"{m}情", motivation=f"{m}意")
        for m in LIBRARY
    ]
    dialogues = [told_apart(name) for name in NAMES]
    return (
        run,
        asked,
        dialogues,
        {m: meme(m).model_copy(update={"text": f"{m}字"}) for m in LIBRARY},
        annotations,
    )


def told_apart(name: str):
    made = dialogue(name)
    summaries = [s.model_copy(update={"scenario": f"{name}{s.turn}"}) for s in made.summaries]
    return made.model_copy(update={"summaries": summaries})


def graded(asked, best) -> list:
    return [
        grade(q.turn, m, grader, 2 if m in best[q.key] else 0, q.key[0])
        for q in asked
        for m in LIBRARY
        for grader in ("g1", "g2")
    ]


def test_the_run_is_measured_end_to_end_and_written_down(tmp_path) -> None:
    run, _, dialogues, library, annotations = made_run(tmp_path)
    asked = rankings.queries(dialogues)
    terms = rankings.four_terms(
        [s for d in dialogues for s in d.summaries], annotations, run.embedder("tiny").encode, "attribute"
    )
    order = retrieval.order(retrieval.combine(terms, run.profile.retrieval.weights), LIBRARY)
    best = {q.key: {LIBRARY[row[0]]} for q, row in zip(asked, order, strict=True)}
    truth = GroundTruth([mark(2, w, True, name=NAMES[0]) for w in "ab"], graded(asked, best))
    found = rankings.evaluate_systems(run, dialogues, library, annotations, truth)
    rows = found.systems.set_index(["embedder", "centring", "uses"])
    mine = rows.loc[("tiny", "attribute", rankings.FULL)]
    assert mine["R@1"] == mine["nDCG@5"] == mine["judged@5"] == 1 and mine["turns"] == len(asked)
    assert rows.loc[("", "", "random")]["R@1"] == pytest.approx(1 / len(LIBRARY), abs=0.02)
    assert len(found.systems) == len(found.strict) == 50
    agreement = ground_truth.grader_agreement(truth)
    placed = [placement(turn, max(memes), dialogue_id=name) for (name, turn), memes in best.items()]
    grades = ground_truth.mean_grades(placed, truth)
    found.save(run, agreement, ground_truth.timing_agreement(truth, [], dialogues), grades)
    said = json.loads((tmp_path / "ground_truth.json").read_text(encoding="utf-8"))
    assert [(row["strategy"], row["memes"], row["ungraded"]) for row in said["placed"]] == [
        ("greedy", len(best), 0)
    ]
    assert set(said) - {"placed"} == {
        "agreement",
        "timing",
        "retrieval",
        "retrieval_strict",
        "retrieval_differences",
    }
    assert len(said["retrieval"]) == 50 and said["agreement"][1]["value"] == 1
    assert (tmp_path / "usage" / "embedding:other.keys.json").is_file()
    assert (tmp_path / "report" / "tables" / "retrieval_strict.csv").is_file()
    assert found.overview()["nDCG@5"].is_monotonic_decreasing and len(found.overview(strict=True)) == 50


def test_without_ground_truth_no_text_is_embedded(tmp_path) -> None:
    run, asked, dialogues, library, annotations = made_run(tmp_path)
    found = rankings.evaluate_systems(run, dialogues, library, annotations, ground_truth.NONE)
    assert asked == [] and found.systems.empty and {"R@1", "uses"} <= set(found.systems.columns)
    assert "measure" in found.differences.columns
    assert ground_truth.grades_of_placed([placement(2, "m1")], ground_truth.NONE) == {}


def test_grades_of_a_part_of_the_placed_memes_are_no_effect() -> None:
    truth = GroundTruth([], [grade(2, "m1", who, 2) for who in ("g1", "g2")])
    assert ground_truth.grades_of_placed([placement(2, "m1")], truth) == {"greedy": {("news-made-1", 2): 2.0}}
    more = [placement(2, "m1"), placement(3, "m1"), placement(2, "m2", strategy="random")]
    assert ground_truth.grades_of_placed(more, truth) == {}
    found = ground_truth.mean_grades(more, truth).set_index("strategy")
    assert found.loc["greedy"].tolist() == [2, 0.5, 2.0, 1.0], "one of two was graded, with 2"
    assert found.loc["random", "ungraded"] == 1 and np.isnan(found.loc["random", "mean grade"])
    assert ground_truth.mean_grades(more, ground_truth.NONE).empty
