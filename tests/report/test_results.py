from types import SimpleNamespace

import made_up

from memecmd_utils import files, runs, schemas
from memecmd_utils import settings as settings_
from memecmd_utils.llm import authored
from memecmd_utils.report import results


def test_numbers_quote_the_studies_of_a_run(tmp_path) -> None:
    (tmp_path / "judge_checks.json").write_text('{"sentence": "It cannot tell.", "trust": [{"judge": "j"}]}')
    moves = '[{"claim": "c", "sign": 0.3, "choice": "a"}, {"claim": "c", "sign": 0.1, "choice": "b"}]'
    tables = f'{{"claims": [{{"claim": "c"}}], "hubs": [], "claims_what_matters": {moves}}}'
    (tmp_path / "studies.json").write_text(f'{{"sentences": {{}}, "tables": {tables}}}')
    found = results.studies_of(SimpleNamespace(read=lambda name: tmp_path / name))
    assert found["claims"] == [{"claim": "c"}] and found["trust"] == [{"judge": "j"}]
    assert found["ablation"] == [] and "hubs" not in found, "only what is quoted"
    assert [row["choice"] for row in found["matters"]] == ["a"]


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
    files.write_jsonl(run.write("scenarios.jsonl"), [scenario])
    asked = [dialogue("news", item.news_id), dialogue("role", "R01-1"), dialogue("role", "R99-1")]
    found = results.title_glosses(run, asked)
    assert found == {f"news-{item.news_id}": item.gloss, "role-R01-1": "A scene"}


def test_news_of_others_is_not_read_again_for_its_gloss(tmp_path):
    run = run_of(tmp_path, news="feeds", feeds=["sports=http://127.0.0.1:9/x"])
    assert results.title_glosses(run, [dialogue("news", "sports-1")]) == {}
