import math

import numpy as np
import pytest
from made_up import dialogue, profile

from memecmd_utils.evaluation import rankings
from memecmd_utils.evaluation.rankings import System

IDS = ["m1", "m2", "m3", "m4", "m5", "m6", "m7"]
KEY = ("news-made-1", 2)
COLUMN = {name: i for i, name in enumerate(rankings.COLUMNS)}


def measures(order: list[int], grades: dict[str, int], level: int = 2) -> dict[str, float]:
    row = rankings.per_turn(rankings.ranking(np.array([order]), IDS, [KEY]), {KEY: grades}, level)[0]
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


def test_unjudged_memes_hurt_all_measures_but_bpref() -> None:
    grades = {"m1": 4, "m2": 0}
    clean, crowded = measures([0, 1, 2, 3, 4, 5, 6], grades), measures([2, 3, 4, 5, 6, 0, 1], grades)
    assert clean["bpref"] == crowded["bpref"] == 1
    assert clean["R@5"] == 1 and crowded["R@5"] == 0 and crowded["judged@5"] == 0


def world(turns: int = 9, dialogues: int = 8) -> tuple[list[rankings.Query], dict, np.ndarray]:
    texts = tuple(f"第{n}句话" for n in range(turns))
    asked = rankings.queries([dialogue(f"news-{n}", texts) for n in range(dialogues)])
    best = np.arange(len(asked)) % len(IDS)
    relevant = {
        q.key: {m: (3 if i == b else 0) for i, m in enumerate(IDS)} for q, b in zip(asked, best, strict=True)
    }
    return asked, relevant, best


def test_a_perfect_system_beats_random_and_the_interval_says_so() -> None:
    asked, relevant, best = world()
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
    asked, relevant, _ = world()
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
    asked, relevant, best = world()
    relevant[asked[0].key] = dict.fromkeys(IDS, 1)  # nothing reaches the level
    del relevant[asked[1].key]  # nobody judged it
    own = System("tiny", "attribute", rankings.FULL)
    settings = profile(embedder="tiny", consistency_embedder="other")
    [found] = rankings.evaluate({own: np.eye(len(IDS))[best]}, asked, IDS, relevant, settings)
    measured, keys = found
    assert len(keys) == len(asked) - 2 == len(measured[own])
    assert not {asked[0].key, asked[1].key} & set(keys)
