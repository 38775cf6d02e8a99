import json
import math
import random
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import reply_mutations as wrong
from pydantic import BaseModel
from scripted import ScriptedBackend

from memecmd_utils import dialogue, schemas
from memecmd_utils.evaluation import judges
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import messages, replies
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.endpoint import read_reply
from memecmd_utils.llm.messages import BrokenRules, Message, Reply, Request, UnusableReply
from memecmd_utils.recordings import Outcome, Recordings
from memecmd_utils.schemas import Text
from memecmd_utils.settings import Profile


class Mood(BaseModel):
    mood: Text
    score: float = 0


def read(text: str, finish: str = "stop") -> tuple[str, float]:
    mood = replies.structured(Reply(text=text, finish_reason=finish), Mood)
    return mood.mood, mood.score


@pytest.mark.parametrize(
    "text",
    [
        '{"mood": "开心", "score": 85}',
        '```json\n{"mood": "开心", "score": 85}\n```',
        '好的，这是结果：\n{"mood": "开心", "score": 85}\n希望对你有帮助！',
        '{"mood": "开心", "score": ８５}',
        '{"mood": "开心", "score": "８５"}',
        "{'mood': '开心', 'score': 85,}",
        '{"mood"："开心"，"score"：85}',
        "{mood: 开心, score: 85}",
        '说明 [1]：{"mood": "开心", "score": 85}',
        '格式 {"x": 1}，结果 {"mood": "开心", "score": 85}',
        '｛"mood"："开心"，"score"：８５｝',
        "{“mood”：“开心”，“score”：85}",
        '{"mood": "开心", // 备注\n "score": 85}',
        '{"mood": "开心" /* 备注 */, "score": 85;}',
        '{"score": 1, "mood": "开心", "score": 85}',
        '{"mood": "开心", "score": 85, "ok": true, "more": [[{}], null, "\\ud83d"]}',
        '{"mood": "开心", "score": 85}\n{"mood": "难过", "score": 5}',
        '{"score": 85}，改成 {"mood": "开心", "score": 85}',
        '<think>\n先试试 {"mood": "想", "score": 1}\n</think>\n{"mood": "开心", "score": 85}',
        '他说“可以"：\n{"mood": "开心", "score": 85,}\n"好"',
        "[" * 9 + '{"mood": "开心", "score": 85}' + "]" * 9,
        '\ufeff{"mood": "开心", "score": 85}',
    ],
)
def test_json_is_found_in_what_models_write(text: str) -> None:
    assert read(text) == ("开心", 85)


@pytest.mark.parametrize(
    ("text", "mood"),
    [
        ('{"mood": "他说\\"算了\\"就走"}', '他说"算了"就走'),
        ('{"mood": "他说“算了”，{真的}"}', "他说“算了”，{真的}"),
        ('{"mood": "{{ 7*7 }} >>> [x]"}', "{{ 7*7 }} >>> [x]"),
        ('{"mood": "两\n行"}', "两\n行"),
        ('{"mood": "１８岁，走：好"，"score"：８５}', "１８岁，走：好"),
        ('{"mood": "他说"算了，１８岁"就走"，"score"：８５}', '他说"算了，１８岁"就走'),
        ("{'mood': '他说\"算了\"', 'score': 85}", '他说"算了"'),
        ("{'mood': 'I don't know', 'score': 85}", "I don't know"),
        ('{“mood”：“他说"算了"”}', '他说"算了"'),
        ('{"mood": "{}真的", "score": 85,}', "{}真的"),
        ('{"mood": "a\\nb\\\\c", "score": 85,}', "a\nb\\c"),
        ('{"mood": "\\ud83d\\ude02"}', "😂"),
        ('{"mood": "a\u2028\u202e</b>b\u200b"}', "a\u2028\u202e</b>b\u200b"),
        ('{"mood": "<think>想</think>"}', "<think>想</think>"),
    ],
)
def test_quotes_and_braces_inside_a_text(text: str, mood: str) -> None:
    assert read(text)[0] == mood


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "不是 JSON"),
        ("我觉得很开心", "不是 JSON"),
        ("[]", "不是 JSON 对象"),
        ('{"score": 3}', "mood"),
        ('{"mood": "", "score": 3}', "mood"),
        ('{"mood": "开心", "score": "很高"}', "score"),
        ('{"score": 3, "mood": "开心，因为", "oth', "截断"),
        ('```json\n{"mood": "开心', "截断"),
        ('{"mood": "开心}', "不成对"),
        ("{'mood': '他说{真的}}，然后走}去", "截断"),
        ('<think>{"mood": "想"}', "不是 JSON"),
        ('{"mood": "开心", "score": "85分"}', "score"),
        ('{"mood": 85}', "mood"),
        ('{"mood": "开心", "score": true}', "true"),
        ('{"mood": "开心", "score": NaN}', "数字"),
        ('{"mood": "开心", "score": 1e999}', "数字"),
        ('{"mood": "开心", "score": ' + "9" * 5000 + "}", "数字"),
        ('{"mood": "开心", "score": 1,000}', "不是 JSON 对象"),
        ('{"mood": "开心", "score": 80~90}', "不是 JSON 对象"),
        ('{"mood": "\\ud83d"}', "mood"),
        ('{"mood": "开\ud83d心"}', "mood"),
        ('{"mood": undefined}', "引号"),
        ('{"mood":算了”，就走了{真的}}。早', "引号"),
        ('{"mood": "开\\u0000心"}', "乱码"),
        ('{"mood": "开\x1b[31m心"}', "乱码"),
        ('{"mood": "\u200b\u202e"}', "空的"),
        ('{"mood": "到了\\路口"就走", "score": 85,}', "引号"),
        ('"{\\"mood\\": \\"开心\\"}"', "截断"),
        ('{"mood": "' + "哈" * 50_000 + '"}', "太长"),
        ("{" * 101, "太长"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(UnusableReply, match=reason):
        read(text)


def test_a_reply_cut_by_length_counts_only_if_its_json_is_whole() -> None:
    assert read('{"mood": "开心"} 另外我还想说', "length") == ("开心", 0)
    with pytest.raises(UnusableReply, match="截断"):
        read('{"mood": "开心"', "length")


NAMES = ("外婆", "女友（小林）")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("早啊", "早啊"),
        ("\n\n  早啊  \n后面的不要", "早啊"),
        ("外婆：早啊", "早啊"),
        ("甲 ：早啊", "早啊"),
        ("外婆：\n早啊", "早啊"),
        ("```\n早啊\n```", "早啊"),
        ("“早啊”", "早啊"),
        ("「早啊」", "早啊"),
        ("“外婆：早啊”", "早啊"),
        ("“早啊", "早啊"),
        ("早啊”", "早啊"),
        # What must stay:
        ("我说：算了", "我说：算了"),
        ("「我说：算了」", "我说：算了"),
        ("他说“算了”", "他说“算了”"),
        ("“算了”他说", "“算了”他说"),
        ("“好”和“坏”", "“好”和“坏”"),
        ("你看过《三体》", "你看过《三体》"),
        ("3:2 赢了", "3:2 赢了"),
        ("{{ 7*7 }}>>>", "{{ 7*7 }}>>>"),
        ("<b>早啊</b>", "<b>早啊</b>"),
        ("１８岁", "１８岁"),
        ("<think>想\n想</think>\n早啊", "早啊"),
        ("想\n想</think>早啊", "早啊"),
        ("\u200b\n\u202e早啊", "\u202e早啊"),
        ("早啊\u2028后面的不要", "早啊"),
        ("", ""),
        ("<think>没想完", ""),
        ("外婆：", ""),
        ("“”", ""),
    ],
)
def test_the_line_a_speaker_says(text: str, said: str) -> None:
    assert replies.utterance_text(Reply(text=text), NAMES) == said


@pytest.mark.parametrize("text", ["早\x00啊", "早\ud83d啊", "早\ufffd啊", "哈" * 2001, "早啊\n" * 20_000])
def test_an_utterance_that_cannot_be_written(text: str) -> None:
    with pytest.raises(UnusableReply, match=r"乱码|太长"):
        replies.utterance_text(Reply(text=text), NAMES)


@pytest.mark.parametrize("text", ["早啊，今天", "外婆：早啊，今", "```\n早啊", "“早啊", "早啊。"])
def test_a_line_that_the_token_limit_cut_is_no_utterance(text: str) -> None:
    with pytest.raises(UnusableReply, match="截断"):
        replies.utterance_text(Reply(text=text, finish_reason="length"), NAMES)
    for rest in ("\n", "\n```", "\n外孙女：早"):
        assert replies.utterance_text(Reply(text=text + rest, finish_reason="length"), NAMES)


# What models say when all goes well, with texts that are hard to tell from JSON.

HARD = '他说：“算了”，就走了{真的}}。早上 8:30 催"到哪了", 85分；[刚]换好鞋, don\'t'
CALM = "他说：“算了”，就走了。早上 8：30 还没醒、１８岁，85分；刚换好鞋……"


def said(schema: type[BaseModel], text: str) -> dict[str, str]:
    return {name: f"{i}{text[i:]}{text[:i]}{i}" for i, name in enumerate(schema.model_fields)}


def ratings(n: int) -> dict[str, Any]:
    scores = [{d: (37 * i + 11 * k) % 101 for k, d in enumerate(schemas.DIMENSIONS)} for i in range(n)]
    return {"ratings": [{"meme": i, **score} for i, score in enumerate(scores, start=1)]}


def written(value: Any) -> list[str]:
    return [json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, indent=4)]


@lru_cache(maxsize=1)
def utterance_parser():
    """The parser of the third turn's utterances, as the dialogue stage makes it."""
    found = {}

    class Catching(Chat):
        async def ask(self, request, parse):
            found[request.subject, request.task] = parse
            return await super().ask(request, parse)

    start = schemas.ColdStart(
        source="authored", dialogue_id="d", kind="news", ref="1", title="题", name_a="外婆", name_b="小林",
        context="背景", brief="背景",
    )  # fmt: skip
    summary = json.dumps(said(schemas.SummaryReply, CALM))
    backend = ScriptedBackend(
        lambda r: summary if r.task == "summary" else "天地玄"[int(r.subject[-1]) - 1] * 3
    )
    bar = SimpleNamespace(update=lambda n=1: None)
    llm_chat.run(dialogue.talk(start, Catching(backend), Profile(name="p", n_turns=3), {}, bar))
    return found["d/3", "utterance"]


def reader(schema: type[BaseModel]):
    return lambda reply: replies.structured(reply, schema)


TEXTS = (schemas.AnnotationReply, schemas.SummaryReply, schemas.ScenarioReply, schemas.ScenarioDetails)
PARSERS: dict[str, tuple[int, list[str], Any]] = {
    **{
        schema.__name__: (
            13_000,
            written(said(schema, HARD)) + written(said(schema, CALM)),
            reader(schema),
        )
        for schema in TEXTS[1:3]
    },
    **{
        f"{n} ratings": (count, written(ratings(n)), lambda reply, n=n: judges.parse_ratings(reply, n))
        for n, count in ((3, 11_000), (17, 2_000))
    },
    "yes or no": (11_000, ["是", "否", "yes", "“是”。", "不是"], judges.p_yes),
    "utterance": (
        13_000,
        ["外婆：“早啊，吃了没？”", "昨天 8:30 那场球\n小林：看了", "```\n今天出门\n```", "「走」他说"],
        lambda reply: utterance_parser()(reply),
    ),
}
"""Parsers by name: how many mutations they get, good replies, and the parser."""


def check_writable(value: Any) -> None:
    if isinstance(value, BaseModel):
        assert type(value).model_validate_json(value.model_dump_json().encode()) == value
        value = value.model_dump()
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            check_writable(item)
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, str):
        assert value.encode() and "\x00" not in value


def outcome(parse: Any, reply: Reply) -> str:
    """Name of the outcome, as `Chat` gives it; anything but an answer or `UnusableReply` is an error."""
    start = time.thread_time()
    try:
        value, name = parse(reply), "accepted"
    except BrokenRules as error:
        value, name = error.value, "violations"
    except UnusableReply:
        value, name = None, "length" if reply.finish_reason == "length" else "unusable"
    # A collection of garbage in a large process takes half a second by itself.
    assert time.thread_time() - start < 2, f"slow: {reply.text[:200]!r}"
    check_writable(value)
    if isinstance(value, BaseModel) and "\\" not in reply.text:
        for text in value.model_dump().values():
            assert text in reply.text, f"{text!r} is not what was said in {reply.text!r}"
    return name


@pytest.mark.parametrize("name", PARSERS)
def test_mutated_replies_have_a_named_outcome(name: str) -> None:
    count, good, parse = PARSERS[name]
    assert all(outcome(parse, Reply(text=text)) == "accepted" for text in good)
    found = Counter(outcome(parse, Reply(text=text)) for text in wrong.mutated(good, count, seed=1))
    assert set(found) <= set(get_args(Outcome)) and found["accepted"] > count / 50, found
    assert found["unusable"] > count / 50, found
    for text in wrong.nasty(good[0]).values():
        assert outcome(parse, Reply(text=text)) in get_args(Outcome)
        assert outcome(parse, Reply(text=text, finish_reason="length")) in get_args(Outcome)


@pytest.mark.slow
def test_through_a_chat_every_outcome_has_its_name(tmp_path: Path) -> None:
    """Four thousand questions, up to five attempts each; what was recorded replays to the same answers."""
    rng, every = random.Random(3), Counter()
    finish = ["stop"] * 12 + ["length", "length", "content_filter"]
    for name in ("SummaryReply", "3 ratings", "yes or no", "utterance"):
        _, good, parse = PARSERS[name]
        texts = wrong.mutated(good, 10**9, seed=2, most=8)

        def answer(request: Request, texts=texts) -> Reply:
            message = {"content": next(texts), "refusal": "no" if rng.random() < 0.05 else None}
            always_cut = request.sample % 50 == 7
            choice = {"message": message, "finish_reason": "length" if always_cut else rng.choice(finish)}
            return read_reply({"choices": [choice]})

        def ask(chat: Chat, parse=parse) -> list[messages.Answer]:
            question = Request(task="summary", subject="s", messages=[Message(role="user", text="问")])
            samples = (question.model_copy(update={"sample": i}) for i in range(1_000))
            return llm_chat.run(chat.side_by_side(chat.ask(sample, parse) for sample in samples))

        chat = Chat(ScriptedBackend(answer), Recordings(name, [tmp_path], tmp_path))
        answers = ask(chat)
        assert Counter(a.outcome for a in answers) == chat.usage.outcomes
        assert 1 < max(a.attempts for a in answers) <= 5
        for a in answers:
            assert (a.value is None) == (a.outcome not in ("accepted", "violations"))
            assert a.value is not None or (a.reason and a.attempts == 5)
            assert bool(a.violations) == (a.outcome == "violations")
            check_writable(a.value)
        replayed = ask(Chat(ScriptedBackend([]), Recordings(name, [tmp_path]), mode="recorded"))
        assert [(a.outcome, a.value) for a in replayed] == [(a.outcome, a.value) for a in answers]
        every += chat.usage.outcomes
    assert set(every) == {"accepted", "violations", "unusable", "refusal", "length", "filtered"}, every


FORMS: dict[str, Any] = {
    "plain": lambda value: json.dumps(value, ensure_ascii=False),
    "indented, fenced": lambda value: (
        f"好的：\n```json\n{json.dumps(value, ensure_ascii=False, indent=2)}\n```"
    ),
    "escaped": json.dumps,
    "python": repr,
    "trailing comma": lambda value: json.dumps(value, ensure_ascii=False)[:-1] + ",}",
    "unquoted keys": lambda value: "{" + ", ".join(f"{k}: {json.dumps(v)}" for k, v in value.items()) + "}",
    "chinese signs": lambda value: "｛" + "，".join(f"“{k}”：“{v}”" for k, v in value.items()) + "｝",
    "inner quotes": lambda value: "{" + ", ".join(f'"{k}": "{v}"' for k, v in value.items()) + "}",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schema", TEXTS[1:3])
@pytest.mark.parametrize("text", [HARD, CALM, '说"好"，就{走}', "{{{", "}}}", "a, b: c"])
def test_a_reply_cut_anywhere_is_whole_or_unusable(schema: type[BaseModel], form: str, text: str) -> None:
    fields = said(schema, text)
    reply = FORMS[form](fields)
    for end in range(len(reply) + 1):
        for finish in ("stop", "length"):
            try:
                value = replies.structured(Reply(text=reply[:end], finish_reason=finish), schema)
            except UnusableReply:
                continue
            assert value.model_dump() == fields, reply[:end]


@pytest.mark.parametrize("schema", TEXTS)
def test_texts_come_back_as_they_were_said(schema: type[BaseModel]) -> None:
    """Other quotes, signs, comments, fences, prose, and all of it cut off: the texts stay."""
    fields, rng, n = said(schema, CALM), random.Random(4), 0
    for text in wrong.mutated(written(fields), 2_000, seed=5, mutations=wrong.SHAPES):
        for part in (text, text[: rng.randrange(len(text) + 1)]):
            try:
                value = replies.structured(Reply(text=part), schema)
            except UnusableReply:
                continue
            n += 1
            assert value.model_dump() == fields, part
    assert n > 1_000


@pytest.mark.parametrize("indent", [None, 4])
def test_ratings_of_seventeen_memes_are_repaired(indent: int | None) -> None:
    """The bounds on work leave room for the longest real reply."""
    text = json.dumps(ratings(17), indent=indent).replace("}", ",}")
    parsed = judges.parse_ratings(Reply(text="好的：\n" + text), 17)
    assert [rating.model_dump() for rating in parsed] == ratings(17)["ratings"]
