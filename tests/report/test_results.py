from types import SimpleNamespace

import made_up
import pytest

from memecmd_utils import runs, schemas
from memecmd_utils import settings as settings_
from memecmd_utils.core import storage
from memecmd_utils.core.llm import authored
from memecmd_utils.report import results


def row(metric: str, comparison: str, mean, low, high, dialogues: int = 9) -> dict:
    found = {"metric": metric, "comparison": comparison, "mean": mean, "low": low, "high": high}
    return found | {"dialogues": dialogues}


CHOICE, TIMING = "greedy - random_same_turns", "random_same_turns - random"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, "yes"), (-0.3, -0.1, "worse"), (-0.1, 0.3, "cannot be told"), (None, None, "cannot be told")],
)
def test_the_interval_decides_what_is_said(low, high, verdict) -> None:
    text = results.beats_random([row("grade", CHOICE, 0.2, low, high)])
    assert verdict in text and "+0.20" in text and "; 9 dialogues)" in text and "timing" not in text


def test_too_few_dialogues_are_called_so() -> None:
    assert "too few dialogues to say" in results.beats_random([row("grade", CHOICE, 0.2, None, None, 5)])


def test_choice_and_timing_are_told_apart() -> None:
    rows = [row("grade", CHOICE, 0.2, 0.1, 0.3), row("grade", TIMING, 0.0, -0.1, 0.1)]
    text = results.beats_random(rows)
    choice, timing = text.split("By timing")
    assert "yes" in choice and "cannot be told" in timing


def test_levels_stand_beside_the_difference() -> None:
    levels = [{"strategy": "greedy", "fits": 0.2}, {"strategy": "random_same_turns", "fits": 0.06}]
    text = results.beats_random([row("grade", CHOICE, 0.2, 0.1, 0.3)], levels)
    assert "they fit at 20% of these turns, random ones at 6%" in text
    assert "fit" not in results.beats_random([row("consistency", CHOICE, 0.2, 0.1, 0.3)], levels)


def test_a_runs_answers_quote_its_files(tmp_path) -> None:
    (tmp_path / "judge_checks.json").write_text('{"sentence": "It cannot tell.", "trust": [{"judge": "j"}]}')
    made = '{"sentences": {"claims": "One holds."}, "tables": {"claims": [{"claim": "c"}], "hubs": []}}'
    (tmp_path / "studies.json").write_text(made)
    run = SimpleNamespace(read=lambda name: tmp_path / name)
    found = results.answers_of(run, [])
    assert found["answers"].startswith("Does retrieval beat random? No measure of this run")
    assert " Which judge can be trusted? It cannot tell. In how many" in found["answers"]
    assert found["answers"].endswith("survive? One holds.")
    assert found["studies"]["claims"] == [{"claim": "c"}] and found["studies"]["trust"] == [{"judge": "j"}]


def run_of(tmp_path, **settings):
    profile = settings_.load_profile("example", settings)
    return runs.Run("made", profile, tmp_path / "data", tmp_path / "report")


def dialogue(kind, ref):
    return made_up.dialogue(f"{kind}-{ref}").model_copy(update={"kind": kind, "ref": ref})


def test_titles_of_the_example_have_english(tmp_path):
    run = run_of(tmp_path)
    item = authored.load_news()[0]
    scenario = schemas.Scenario(
        source="made up", scenario_id="R01-1", pair_id="R01", scenario="甲", gloss="A scene",
        background_a="a", personality_a="a", state_a="a", background_b="b", personality_b="b", state_b="b",
        relationship="r", event="e",
    )  # fmt: skip
    storage.write_jsonl(run.write("scenarios.jsonl"), [scenario])
    asked = [dialogue("news", item.news_id), dialogue("role", "R01-1"), dialogue("role", "R99-1")]
    found = results.title_glosses(run, asked)
    assert found == {f"news-{item.news_id}": item.gloss, "role-R01-1": "A scene"}


def test_news_of_others_is_not_read_again_for_its_gloss(tmp_path):
    run = run_of(tmp_path, news="feeds", feeds=["sports=http://127.0.0.1:9/x"])
    assert results.title_glosses(run, [dialogue("news", "sports-1")]) == {}
