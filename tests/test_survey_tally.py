"""All answers here are made up."""

from datetime import timedelta

import pytest
from made_surveys import AT, SYSTEMS, answers, survey

from memecmd_utils import survey_tally
from memecmd_utils.survey_tally import PAPER_TOTALS


def test_the_papers_cells_add_up_to_its_totals() -> None:
    table = survey_tally.paper_table()
    assert len(table) == 26
    total = table.iloc[-1]
    assert total["meme"] == "Total" and total[2:].to_dict() == PAPER_TOTALS
    assert list(PAPER_TOTALS.values()) == [49, 34, 44, 28, 14, 21]
    # "LLaVA achieved 89.8 % of GPT-4o's performance", "82.3 % without it" (Section 3.2.2)
    with_context, without = 44 / 49, 28 / 34
    assert with_context == pytest.approx(0.898, abs=5e-4) and without == pytest.approx(0.823, abs=1e-3)


def test_votes_are_counted_by_meme_subtask_and_system() -> None:
    _, key = survey()
    table = survey_tally.tally([*answers(key, "r1"), *answers(key, "r2", SYSTEMS[1])], key)
    assert list(table.columns) == ["meme", "subtask", *SYSTEMS]
    assert len(table) == 3 * 4 + 1 and set(table["meme"]) - {"Total"} <= {f"secret-{i}" for i in range(4)}
    by = table.groupby("subtask")[list(SYSTEMS)].sum()
    assert by.loc["meme caption"].tolist() == [3, 3, 0]
    assert by.loc["embedded text"].tolist() == [3, 3, 3]  # the third says what the second says
    total = table.iloc[-1]
    assert total[SYSTEMS[0]] == table[SYSTEMS[0]][:-1].sum() == 12
    assert table.attrs == {"source": "made up", "raters": 2}


def test_no_answers_make_a_table_of_zeros() -> None:
    _, key = survey()
    table = survey_tally.tally([], key)
    assert table[list(SYSTEMS)].to_numpy().sum() == 0 and table.attrs["source"] is None


def test_people_count_and_made_up_answers_only_where_nobody_answered() -> None:
    _, key = survey()
    table = survey_tally.tally([*answers(key, "r1"), *answers(key, "r2", SYSTEMS[1], source="human")], key)
    assert table.attrs == {"source": "human", "raters": 1}
    assert table.iloc[-1][SYSTEMS[1]] == 12


def test_the_latest_answer_of_a_rater_counts() -> None:
    _, key = survey()
    later = answers(key, "r1", SYSTEMS[1], at=AT + timedelta(hours=1))
    for order in ([*answers(key), *later], [*later, *answers(key)]):
        assert survey_tally.latest(order) == later or set(survey_tally.latest(order)) == set(later)


def test_totals_stand_beside_the_papers() -> None:
    _, key = survey()
    found = survey_tally.totals(survey_tally.tally(answers(key), key))
    assert found.loc[SYSTEMS[0], "votes"] == 12 and found.loc[SYSTEMS[0], "share of the best"] == 1
    assert found.loc["GPT-4o, with context", "votes (paper)"] == 49
    named = [row.model_copy(update={"system": "GPT-4o, with context"}) for row in key]
    joined = survey_tally.totals(survey_tally.tally(answers(named, prefers="GPT-4o, with context"), named))
    assert joined.loc["GPT-4o, with context", ["votes", "votes (paper)"]].notna().all()
