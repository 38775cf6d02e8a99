import pytest
import study_world

from memecmd_utils import retrieval, schemas
from memecmd_utils.evaluation import graded_turns
from memecmd_utils.studies import summary_sources
from memecmd_utils.studies.summary_sources import ALL_DIALOGUES, HISTORY, LAST, OWN, SMALL


def small_summaries(data, names: list[str], good: bool = True) -> dict[str, list[schemas.Summary]]:
    """Made-up summaries of a small model: the run's own, or such as speak of another dialogue's turn."""
    of = {d.dialogue_id: d.summaries for d in data.dialogues}
    other = next(reversed(of.values()))
    out = {}
    for name in names:
        texts = (
            of[name]
            if good
            else [m.model_copy(update={"turn": s.turn}) for s, m in zip(of[name], other, strict=True)]
        )
        out[name] = [s.model_copy(update={"source": "made up"}) for s in texts]
    return out


@pytest.fixture
def data():
    return study_world.world(dialogues=12, turns=6)


def test_the_last_turn_and_the_history_stand_in_all_three_fields(data) -> None:
    found = summary_sources.summaries_by_source(data, {})
    assert list(found) == [OWN, LAST, HISTORY] and found[OWN] == data.summaries
    place = data.keys.index(("d03", 4))
    last, history = found[LAST][place], found[HISTORY][place]
    assert {last.scenario, last.emotion, last.motivation} == {"话3-3"}
    assert {history.scenario, history.emotion, history.motivation} == {"话3-1\n话3-2\n话3-3"}
    assert last.turn == 4 and last.source == LAST and history.source == HISTORY
    # Nothing of the turn itself, or of what follows.
    assert all("话3-4" not in found[name][place].scenario for name in (LAST, HISTORY))


def test_turns_of_which_the_small_model_has_no_summary_are_none(data) -> None:
    small = small_summaries(data, ["d01", "d02"])
    small["d01"][2] = small["d01"][2].model_copy(update={"unscored": "unusable", "scenario": ""})
    found = summary_sources.summaries_by_source(data, small)[SMALL]
    have = [key for key, summary in zip(data.keys, found, strict=True) if summary is not None]
    assert have == [("d01", 2), ("d01", 3), ("d01", 5), ("d01", 6), *(("d02", t) for t in range(2, 7))]


def test_the_runs_own_summaries_beat_texts_that_say_nothing(data) -> None:
    found = summary_sources.compare_sources(data, {})
    assert list(found.table.columns) == list(summary_sources.TABLE)
    assert list(found.minus_own.columns) == list(summary_sources.MINUS_OWN)
    table = found.table.set_index(["embedder", "source"])
    # The same as study 2's full score: nothing else is measured for the run's own.
    known = graded_turns.graded_of_study(data)
    full = retrieval.combine(data.terms("one", "attribute"), data.profile.retrieval.weights)
    hit, ndcg, judged = known.measure(full).mean(axis=0)
    assert table.loc[("one", OWN), ["R@1", "nDCG@5", "judged@5"]].tolist() == pytest.approx(
        [hit, ndcg, judged]
    )
    gaps = found.minus_own.set_index(["embedder", "source"])
    for source in (LAST, HISTORY):
        assert gaps.loc[("one", source), "nDCG@5 high"] < 0 > gaps.loc[("one", source), "R@1 high"]
        assert gaps.loc[("one", source), "nDCG@5 judged only high"] < 0
        both = table.loc[("one", source), "nDCG@5"] - table.loc[("one", OWN), "nDCG@5"]
        assert gaps.loc[("one", source), "nDCG@5"] == pytest.approx(both)
    text = summary_sources.sources_sentence(found)
    assert (
        f"{LAST} clearly below" in text and f"{HISTORY} clearly below" in text and "clearly above" not in text
    )
    assert "nDCG@5 by source of the summary, under one" in text and ". Under two" in text


def test_the_small_model_is_compared_on_its_own_dialogues_only(data) -> None:
    names = [f"d{n:02d}" for n in range(6)]
    small = small_summaries(data, names, good=False)
    small["d00"][0] = small["d00"][0].model_copy(update={"unscored": "unusable"})
    found = summary_sources.compare_sources(data, small)
    group = "the small model's 6"
    rows = found.table[found.table["embedder"] == "one"].set_index(["dialogues", "source"])
    assert [source for where, source in rows.index if where == ALL_DIALOGUES] == [OWN, LAST, HISTORY]
    assert [source for where, source in rows.index if where == group] == [OWN, LAST, HISTORY, SMALL]
    there = rows.loc[group]
    assert there["turns"].tolist() == [29] * 4 and there["no summary"].tolist() == [1] * 4
    assert rows.loc[ALL_DIALOGUES, "turns"].tolist() == [60] * 3
    gap = found.minus_own.set_index(["embedder", "dialogues", "source"]).loc[("one", group, SMALL)]
    assert gap["nDCG@5 high"] < 0
    text = summary_sources.sources_sentence(found)
    assert f"{SMALL} clearly below" in text and "29 turns of 6, 1 more without a usable summary" in text
    assert f"{group} dialogues" in text
