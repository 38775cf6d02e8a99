import numpy as np
import pytest
from made_studies import sends_nothing, study

from memecmd_utils.retrieval import scoring
from memecmd_utils.studies import choice_of_k, gates, specification_curve


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=14, n_memes=12)


def gate(data):
    scores = gates.own_scores(data)
    best = scoring.best_memes(scores, data.meme_ids, 10)
    top1 = np.take_along_axis(scores, best[:, :1], axis=1).T
    return best, gates.sent(data, top1, gates.own_rule(data))[0]


def test_one_of_one_is_greedy(data) -> None:
    best, sent = gate(data)
    table, differences = choice_of_k.choice_tables(data)
    first = table.iloc[0]
    chosen = [(data.clusters[row], best[row, 0]) for row in np.flatnonzero(sent)]
    again = sum(pair in chosen[:i] for i, pair in enumerate(chosen))
    assert first["memes"] == len(chosen) and first["repeats"] == pytest.approx(again / len(chosen))
    assert first["distinct memes"] == len({meme for _, meme in chosen})
    assert first["mean grade"] == pytest.approx(
        np.mean([np.nan_to_num(data.gains[row, best[row, 0]]) / 2 for row in np.flatnonzero(sent)])
    )
    assert set(differences["K"]) == set(range(2, 11)) and set(differences["minus"]) == {1}


def test_grades_are_exact_means_over_the_top(data) -> None:
    best, sent = gate(data)
    table, _ = choice_of_k.choice_tables(data)
    for row in table.to_dict("records"):
        pairs = [(r, m) for r in np.flatnonzero(sent) for m in best[r, : row["K"]]]
        grades = np.array([data.gains[pair] / 2 for pair in pairs])
        assert row["mean grade"] == pytest.approx(np.nan_to_num(grades).mean())
        assert row["mean grade of judged"] == pytest.approx(np.nanmean(grades))
        assert row["judged@K"] == pytest.approx(np.isfinite(grades).mean())
        assert row["mean grade low"] <= row["mean grade"] <= row["mean grade high"]


def test_every_rank_is_drawn_as_often() -> None:
    best, luck = np.array([[7, 5, 3, 1]]), np.array([[0.0, 0.33, 0.34, 0.66, 0.67, 0.99]])
    assert choice_of_k.draw(best, luck, 3).tolist() == [[7, 7, 5, 5, 3, 3]]
    assert choice_of_k.draw(best, luck, 1).tolist() == [[7] * 6]


def test_repeats_and_variety_are_those_of_draws_from_the_whole_top(data) -> None:
    """The mean over the draws lies at the exact expectation, and every one of the top K is drawn."""
    best, sent = gate(data)
    for row in choice_of_k.choice_tables(data)[0].to_dict("records"):
        top = best[None, :, : row["K"]]
        exact = specification_curve.expected_repeats(data, top, sent[None, None]).sum() / sent.sum()
        assert row["repeats"] == pytest.approx(exact, abs=0.02)
        assert row["distinct memes"] <= len(np.unique(top[0, sent]))
    last = choice_of_k.choice_tables(data)[0].iloc[-1]
    assert last["distinct memes"] > 0.8 * len(np.unique(best[sent]))


def test_repeats_stay_within_a_dialogue() -> None:
    chosen = np.array([[1, 1], [1, 2], [1, 1], [2, 2], [1, 2]])
    found = choice_of_k.repeats(chosen, ["a", "a", "b", "b", "b"])
    assert found.tolist() == [[False] * 2, [True, False], [False] * 2, [False] * 2, [True, True]]


def test_variety_by_hand() -> None:
    """Draw 1 uses two memes twice each: 2 memes, 1 bit. Draw 2 one meme four times: 1 meme, 0 bits."""
    chosen = np.array([[0, 3], [0, 3], [1, 3], [1, 3]])
    assert choice_of_k.variety(chosen, 5) == (1.5, 0.5)


def test_no_meme_no_table() -> None:
    for empty in (study(**sends_nothing()), study(1, n_turns=2, unscored=[(0, 2)])):
        table, differences = choice_of_k.choice_tables(empty)
        assert table.empty and differences.empty and list(table) == list(choice_of_k.COLUMNS)
        assert choice_of_k.choice_sentence(table, differences).startswith("No meme was sent")
