import numpy as np
import pytest
from made_up import annotation, dialogue, meme, vectors

from memecmd_utils.evaluation import rankings
from memecmd_utils.evaluation.rankings import FULL, System
from memecmd_utils.retrieval import scoring

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
    index = scoring.build_index(MEMES, blocks, centring == "attribute")
    queries = scoring.build_queries(*parts, centring=centring == "attribute")
    ranking = scoring.top_k(index, queries, weights, 3)
    mine = matrices(weights)[System("tiny", centring, FULL)]
    order = scoring.order(mine, MEMES)
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
