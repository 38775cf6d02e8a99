"""Consistency, Tables 1 and 2, effects and numbers, worked out by hand."""

import json
from types import SimpleNamespace

import made_up
import numpy as np
import pytest

from memecmd_utils import consistency, grades, statistics, tables
from memecmd_utils.embedders import RecordedEmbedder
from memecmd_utils.grades import GroundTruth

SPOKEN = {
    name: made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 7)))
    for name in ("d1", "d2", "d3")
}


class FakeEmbedder:
    name = "fake-1"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def encode(self, texts, side):
        self.asked.append(list(texts))
        return made_up.vectors(texts, side)


def scorer() -> consistency.TextScorer:
    return consistency.TextScorer(RecordedEmbedder(FakeEmbedder(), [], None), "other-1")


def placed(name: str, turn: int, meme_id: str = "m1", strategy: str = "greedy"):
    return made_up.placement(turn, meme_id, dialogue_id=name, strategy=strategy)


def memes(**texts: str):
    return {name: made_up.meme(name).model_copy(update={"text": text}) for name, text in texts.items()}


def test_equation_26_by_hand() -> None:
    """(cos + 1) / 2 * 100: -1 gives 0, 0 gives 50, .5 gives 75, 1 gives 100; rounding above 1 is cut off."""
    assert consistency.score(np.array([-1, 0, 0.5, 1, 1 + 1e-7])).tolist() == [0, 50, 75, 100, 100]


def test_scores_are_cosines_of_caption_and_utterance(monkeypatch) -> None:
    """Meme (.6, .8) against u_t (1, 0): cos .6, score 50 * 1.6 = 80; against u_t+1 (0, -1): cos -.8,
    score 10."""
    rows = {"caption": (0.6, 0.8), "d1 says 2": (1.0, 0.0), "d1 says 3": (0.0, -1.0)}

    class Table:
        name = "text:table"

        def memes(self, memes):
            return np.array([rows[m.text] for m in memes])

        def texts(self, texts):
            return np.array([rows[t] for t in texts])

    monkeypatch.setattr(consistency, "open_scorer", lambda run: Table())
    run = SimpleNamespace(profile=made_up.profile())
    got = consistency.measure_consistency(run, [placed("d1", 2)], SPOKEN, memes(m1="caption"))
    assert [(r.text, r.score) for r in got] == [("u_t", 80), ("u_t+1", 10)]
    assert (got[0].scorer, got[0].source, got[0].turn) == ("text:table", "model text:table", 2)


def test_which_texts_stand_beside_a_meme() -> None:
    group = [placed("d1", 2), placed("d1", 6), placed("d2", 3)]
    pairs = consistency.text_pairs(group, SPOKEN, made_up.profile())
    said = {(p.dialogue_id, p.turn, kind): text for p, kind, text in pairs}
    assert said["d1", 2, "u_t"] == "d1 says 2" and said["d1", 2, "u_t+1"] == "d1 says 3"
    assert said["d1", 6, "u_t"] == "d1 says 6"
    assert ("d1", 6, "u_t+1") not in said  # the dialogue ends there
    assert said["d1", 2, "shuffled"] == said["d1", 6, "shuffled"] == "d2 says 3"
    assert said["d2", 3, "shuffled"] in ("d1 says 2", "d1 says 6")


def test_shuffled_texts_are_of_other_dialogues_and_of_all_of_them() -> None:
    group = [placed(name, turn) for turn in (2, 3, 4, 5) for name in SPOKEN]  # dialogues interleaved
    group += [placed(name, turn, strategy="random") for name in ("d1", "d2") for turn in (2, 6)]
    drawn: dict[str, set[str]] = {name: set() for name in SPOKEN}
    for seed in range(40):
        for p, kind, text in consistency.text_pairs(group, SPOKEN, made_up.profile(seed=seed)):
            if kind == "shuffled":
                assert not text.startswith(p.dialogue_id)
                if p.strategy == "random":
                    assert text[-1] in "26"  # a placement of the same strategy
                else:
                    drawn[p.dialogue_id].add(text)
    for name, texts in drawn.items():
        assert texts == {f"{o} says {t}" for o in SPOKEN if o != name for t in (2, 3, 4, 5)}


def test_the_embedder_that_chose_may_not_score() -> None:
    embedder = RecordedEmbedder(FakeEmbedder(), [], None)
    with pytest.raises(ValueError, match="fake-1 already chose the memes"):
        consistency.TextScorer(embedder, "fake-1")


ALL = ("greedy", "sampling", "random", "random_same_turns")


@pytest.fixture(autouse=True)
def two_clusters_are_enough(monkeypatch):
    """Cases worked out by hand have two or three dialogues; the real floor has a test of its own."""
    monkeypatch.setattr(statistics, "MIN_CLUSTERS", 2)


def dialogues(*names: str, n_turns: int = 6):
    texts = tuple(f"{t}" for t in range(1, n_turns + 1))
    return [made_up.dialogue(name, texts).model_copy(update={"kind": name.split("-")[0]}) for name in names]


def ratings(table: dict[tuple[str, str], dict[int, float | None]], **changes):
    """{(dialogue, strategy): {turn: overall}} as ratings."""
    return [
        made_up.rating(turn, overall, dialogue_id=name, strategy=strategy, **changes)
        for (name, strategy), scores in table.items()
        for turn, overall in scores.items()
    ]


def texts(table: dict[tuple[str, str], dict[int, float]], **changes):
    return [
        made_up.consistency(turn, score, dialogue_id=name, strategy=strategy, **changes)
        for (name, strategy), scores in table.items()
        for turn, score in scores.items()
    ]


def cell(table, dataset: str, metric: str, strategy: str):
    found = table[(table.dataset == dataset) & (table.metric == metric) & (table.strategy == strategy)]
    assert len(found) == 1
    return found.iloc[0]


def test_table_1_by_hand() -> None:
    """Two news dialogues, 6 turns. greedy: a 60, 70 and one unscored, b 50: mean 60, n 3, 1 unscored.
    random: a 40, b 60: mean 50. Difference 10."""
    scores = {
        ("news-a", "greedy"): {2: 60, 3: 70, 5: None},
        ("news-b", "greedy"): {4: 50},
        ("news-a", "random"): {2: 40},
        ("news-b", "random"): {6: 60},
    }
    fit = {("news-a", "greedy"): {2: 70, 3: 72}, ("news-b", "random"): {6: 68}}
    profile = made_up.profile(strategies=ALL)
    got = tables.table_1(ratings(scores), texts(fit), dialogues("news-a", "news-b"), profile)
    assert list(got.dataset.unique()) == ["news-6"]  # no role dialogues, no longer ones
    greedy = cell(got, "news-6", "judge", "greedy")
    assert (greedy["mean"].value, greedy.n, greedy.dialogues, greedy.unscored) == (60, 3, 2, 1)
    of_two = statistics.cluster_mean([60, 70, 50], ["a", "a", "b"])
    assert greedy["mean"] == of_two and of_two.low < 60 < of_two.high
    assert greedy.difference == 10
    random = cell(got, "news-6", "judge", "random")
    assert (random["mean"].value, random.n, random.unscored, random.difference) == (50, 2, 0, 0)
    empty = cell(got, "news-6", "judge", "sampling")
    assert np.isnan(empty["mean"].value) and empty.n == 0 and np.isnan(empty.difference)
    fitted = cell(got, "news-6", "consistency", "greedy")
    assert (fitted["mean"].value, fitted.n, fitted.unscored, fitted.difference) == (71, 2, 0, 3)
    assert np.isnan(fitted["mean"].low)  # one dialogue has no interval
    own = [one.model_copy(update={"kind": "own"}) for one in dialogues("news-a", "news-b")]
    of_own = tables.table_1(ratings(scores), texts(fit), own, profile)
    assert cell(of_own, "own-6", "judge", "greedy")["mean"] == of_two, "one's own dialogues have a row, too"
    assert list(tables.table_1_printed(of_own).Dataset) == ["Own 6 Turns"]


def test_ratings_of_whole_dialogues_count_for_their_own_length() -> None:
    rated = ratings({("news-a", "greedy"): {3: 10}}, judge_unit="dialogue", n_turns=6)
    rated += ratings({("news-a", "greedy"): {3: 40, 9: None}}, judge_unit="dialogue", n_turns=12)
    rated += ratings({("news-a", "greedy"): {3: 50, 9: 70}}, judge_unit="dialogue", n_turns=18)
    got = tables.table_1(rated, [], dialogues("news-a", n_turns=18), made_up.profile(n_turns=18))
    cells = [cell(got, f"news-{n}", "judge", "greedy") for n in (6, 12, 18)]
    assert [(c["mean"].value, c.n, c.unscored) for c in cells] == [(10, 1, 0), (40, 1, 1), (60, 2, 0)]


def test_the_papers_differences_that_disagree_with_its_cells() -> None:
    """Role, 6 turns: sampling 68.06 - 67.89 = .17, printed .19. Role, 12 turns: greedy 68.03 - 67.85 = .18,
    printed .16; sampling 68.01 - 67.85 = .16, printed .14. All others agree."""
    paper = tables.paper_table_1()
    assert len(paper) == 12
    wrong = {
        (row.dataset, row.metric, s): (row[f"{s}_difference"], row[f"{s}_recomputed"])
        for _, row in paper.iterrows()
        for s in ("greedy", "sampling")
        if not row[f"{s}_agrees"]
    }
    assert wrong == {
        ("role-6", "consistency", "sampling"): (0.19, 0.17),
        ("role-12", "consistency", "greedy"): (0.16, 0.18),
        ("role-12", "consistency", "sampling"): (0.14, 0.16),
    }


def test_choice_effect_is_paired_by_turn() -> None:
    """greedy - control at shared turns: a2 60-50, a3 80-50, b2 40-50: 10, 30, -10, mean 10. Turn a5 has no
    control and does not count."""
    scores = {
        ("news-a", "greedy"): {2: 60, 3: 80, 5: 100},
        ("role-b", "greedy"): {2: 40},
        ("news-a", "random_same_turns"): {2: 50, 3: 50, 5: None},
        ("role-b", "random_same_turns"): {2: 50},
        ("news-a", "random"): {4: 20},
    }
    got = tables.effects(ratings(scores), [], dialogues("news-a", "role-b"), made_up.profile(strategies=ALL))
    row = got[(got.effect == "choice") & (got.metric == "judge")].iloc[0]
    assert row.comparison == "greedy - random_same_turns" and (row.difference.value, row.n) == (10, 3)
    wanted = statistics.cluster_mean([10, 30, -10], ["a", "a", "b"])
    assert (row.difference.low, row.difference.high, row.dialogues) == (wanted.low, wanted.high, 2)
    timing = got[(got.effect == "timing") & (got.metric == "judge")].iloc[0]
    assert timing.difference.value == pytest.approx(50 - 20)


def test_holm_stands_over_the_four_choice_effects_only() -> None:
    names = [f"news-{i}" for i in range(8)]
    rng = np.random.default_rng(1)
    shift = {"greedy": 2.0, "sampling": 1.0, "random": 0.0, "random_same_turns": 0.0}
    scores = {(n, s): {t: float(rng.normal(60 + shift[s], 2)) for t in (2, 4)} for n in names for s in ALL}
    both = [*texts(scores), *texts(scores, text="u_t+1")]
    got = tables.effects(ratings(scores), both, dialogues(*names), made_up.profile(strategies=ALL))
    primary = got[got.effect == "choice"]
    assert list(primary.metric) == ["judge", "judge", "consistency", "consistency"]
    assert list(primary.p_holm) == pytest.approx(statistics.holm(list(primary.p)))
    assert got[got.effect != "choice"].p_holm.isna().all()
    assert set(got[got.effect == "choice (secondary)"].metric) == {"consistency u_t+1"}


def test_table_2_by_hand() -> None:
    """5a is greedy in the first case: judge (60 + 70) / 2 = 65, consistency (70 + 71) / 2 = 70.5."""
    rated = ratings({("news-a", "greedy"): {2: 60, 3: 70, 4: None}, ("news-a", "random"): {5: 40}})
    fit = texts({("news-a", "greedy"): {2: 70, 3: 71}})
    got = tables.table_2(["news-a", "role-b"], rated, fit, made_up.profile())
    assert list(got.case) == ["5a", "5b", "5c", "5d", "5e", "5f"]
    assert list(got.strategy) == ["greedy", "sampling", "random"] * 2
    first = got.iloc[0]
    assert (first.judge, first.consistency, first.memes) == (65, 70.5, 2)
    assert got.judge[2] == 40 and np.isnan(got.consistency[2]) and np.isnan(got.judge[4])


def test_meme_use_by_hand() -> None:
    """a: turns 2, 3, 6; b: turn 4. 4 memes in 2 * 5 turns: rate .4. Gaps 1 and 3, mean 2, one of them 1."""
    placed = [
        made_up.placement(t, m, dialogue_id=d)
        for d, t, m in (("a", 6, "m1"), ("a", 2, "m1"), ("a", 3, "m2"), ("b", 4, "m1"))
    ]
    got = tables.meme_use(placed, dialogues("news-a", "news-b")).iloc[0]
    assert (got["memes sent"], got.rate, got["mean gap"], got.consecutive, got["distinct memes"]) == (
        4, 0.4, 2, 1, 2,
    )  # fmt: skip
    alone = tables.meme_use(placed[-1:], dialogues("news-a", "news-b")).iloc[0]
    assert np.isnan(alone["mean gap"]) and alone.consecutive == 0
    assert tables.meme_use([], dialogues("news-a")).empty


def test_case_dialogues_are_the_first_by_id_where_all_three_place() -> None:
    chats = dialogues("role-2", "news-3", "news-1", "role-1", "news-2")

    def place(name, *strategies, score=0.1):
        return [made_up.placement(2, "m1", dialogue_id=name, strategy=s, score=score) for s in strategies]

    three = ("greedy", "sampling", "random")
    placed = [
        *place("news-3", *three, score=0.9),  # the better scores do not count
        *place("news-2", *three),
        *place("news-1", "greedy", "sampling", "random_same_turns", score=0.9),
        *place("role-2", *three),
    ]
    profile = made_up.profile()
    assert tables.case_dialogues(placed, chats, profile) == ["news-2", "role-2"]
    moved = [p.model_copy(update={"score": -p.score, "gate_score": 99.0}) for p in placed]
    assert tables.case_dialogues(moved, chats, profile) == ["news-2", "role-2"]
    assert tables.case_dialogues([], chats, profile) == []
    fewer = profile.replace(strategies=["sampling", "random_same_turns"])
    assert tables.case_dialogues(placed, chats, fewer) == ["news-1", "role-2"], "those that the run has"
    none = profile.replace(strategies=["random_same_turns"])
    assert tables.case_dialogues(placed, chats, none) == []


PROFILE = made_up.profile(strategies=ALL)
DIALOGUES = [made_up.dialogue("news-a"), made_up.dialogue("role-b").model_copy(update={"kind": "role"})]


def records():
    placements, ratings = [], []
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
    return placements, ratings


def test_numbers_by_hand() -> None:
    """Two dialogues of 6 turns, TEXTS each: 7 + 7 + 7 + 7 + 5 + 7 characters = 40 / 6 a turn. Texts repeat,
    so at most half of the character pairs differ. 4 memes a strategy in 2 * 5 turns: rate .4."""
    placements, ratings = records()
    library = [made_up.meme(name) for name in ("m1", "m2", "m3")]
    found = tables.counts(PROFILE, library, DIALOGUES, placements, ratings)
    assert found["dialogues"]["total"] == 2 and found["dialogues"]["turns"] == 12
    assert found["dialogues"]["mean_characters"] == pytest.approx(40 / 6, abs=1e-6)
    assert 0 < found["dialogues"]["distinct_2"] <= 0.5
    assert found["dialogues"]["summaries"] == 10 and found["dialogues"]["summaries_unscored"] == 0
    assert tables.meme_use(placements, DIALOGUES)["rate"].tolist() == [0.4] * 4
    assert found["ratings"] == {
        "total": 16, "memes": 16, "judges": 1, "placed": 16, "unscored": 0, "sources": ["scripted"]
    }  # fmt: skip
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_levels_by_hand() -> None:
    """Mean grades of two graders: 2 lands for both, 1 fits, 0.5 does not, 0 is 0 from both."""
    pairs = {2: (2, 2), 3: (1, 1), 4: (1, 0), 5: (0, 0)}
    given = [made_up.grade(t, "m1", "xy"[i], n) for t, both in pairs.items() for i, n in enumerate(both)]
    placed = [made_up.placement(t, "m1") for t in pairs]
    (row,) = statistics.rows(tables.levels(placed, GroundTruth([], given)))
    shares = {"fits": 0.5, "lands": 0.25, "nobody": 0.25}
    means = {"mean grade": 0.875, "ungraded as 0": 0.875}
    assert row == {"strategy": "greedy", "memes": 4, "ungraded": 0.0, **shares, **means}
    placed.append(made_up.placement(6, "m2"))
    (row,) = statistics.rows(tables.levels(placed, GroundTruth([], given)))
    assert (row["fits"], row["ungraded"], row["mean grade"], row["ungraded as 0"]) == (None, 0.2, 0.875, 0.7)
    assert tables.levels(placed, grades.NONE).empty
