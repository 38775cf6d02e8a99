"""One question to a model: when it is asked again and with which words, what is recorded and replayed, what
is read out of a reply, and that the example's texts and prompts are those that were shipped.
"""

import asyncio
import hashlib
import json
import os
import re
import time
from pathlib import Path

import pytest
import scripted
from pydantic import BaseModel
from scripted import ScriptedBackend

from memecmd_utils import progress as progress_
from memecmd_utils.files import paths
from memecmd_utils.llm import authored, chat, replies
from memecmd_utils.llm.chat import LOST_IN_A_ROW, Chat, progress
from memecmd_utils.llm.pace import Pace
from memecmd_utils.llm.recordings import RecordingMiss, Recordings
from memecmd_utils.llm.spending import Budget
from memecmd_utils.llm.types import Answer, BrokenRules, EndpointError, Message, Reply, Request, UnusableReply
from memecmd_utils.schemas import Text
from memecmd_utils.settings import Endpoint


class Mood(BaseModel):
    mood: Text
    score: float = 0


GOOD = '{"mood": "开心"}'


def request(n: int = 1, **changes) -> Request:
    return scripted.request(f"第{n}问", **{"task": "summary", "subject": f"d/{n}", "seed": 100, **changes})


def parse(reply: Reply) -> str:
    return replies.structured(reply, Mood).mood


def short(reply: Reply) -> str:
    """Rules like those of utterances: each character after the third breaks one."""
    if not reply.text:
        raise UnusableReply("empty reply")
    if len(reply.text) > 3:
        raise BrokenRules(reply.text, [f"太长{n}" for n in range(4, len(reply.text) + 1)])
    return reply.text


def ask(backend: ScriptedBackend, folder: Path | None = None, parser=parse, **options) -> Answer:
    store = Recordings("s", [folder], folder) if folder else None
    return chat.run(Chat(backend, store, **options).ask(request(), parser))


# --- attempts -----------------------------------------------------------------------------------------


def test_twice_unchanged_then_twice_with_the_error_then_unscored(tmp_path: Path) -> None:
    backend = ScriptedBackend([*(f"不会{n}" for n in range(4)), "不会"])
    answer = ask(backend, tmp_path)
    asked = backend.requests
    assert [r.seed for r in asked] == [100, 101, 102, 103, 104], "a fixed seed may bring the same again"
    assert [r.messages for r in asked[:3]] == [request().messages] * 3
    told = (
        "上一次的回复不能用，原因是：\n<<<\n回复不是 JSON 对象\n>>>\n请改正后重新回复，只输出所要求的内容。"
    )
    for number, later in enumerate(asked[3:], start=2):
        said, note = Message(role="assistant", text=f"不会{number}"), Message(role="user", text=told)
        assert later.messages == [*request().messages, said, note]
    assert (answer.outcome, answer.value, answer.raw, answer.attempts) == ("unusable", None, "不会", 5)
    assert ask(ScriptedBackend([]), tmp_path, mode="recorded") == answer


@pytest.mark.parametrize(
    ("prompt", "error", "told", "nothing"),
    [
        (
            "ask_again",
            UnusableReply("not the numbers asked for", 2, [1]),
            "需要编号1到2各一项，收到[1]",
            "（空）",
        ),
        ("template_ask_again", UnusableReply("cut off"), "it breaks off", "(empty)"),
    ],
)
def test_a_model_is_told_in_the_language_of_its_prompt_what_was_wrong(prompt, error, told, nothing) -> None:
    def read(_: Reply) -> None:
        raise error

    backend = ScriptedBackend(lambda _: Reply(text=""), repeats=True)
    answer = chat.run(Chat(backend).ask(request(ask_again=prompt), read))
    _, before, note = backend.requests[-1].messages
    assert before.text == nothing and f"\n<<<\n{told}\n>>>\n" in note.text
    assert not re.search("[一-鿿]", answer.reason), "tables are in English"


def test_of_broken_rules_the_fewest_and_latest_are_kept() -> None:
    given = ["一二三四五六", "一二三四五", "五四三二一", *[""] * 6, "一二三四五六七"]
    answer = ask(ScriptedBackend(given), parser=short)
    assert (answer.outcome, answer.value) == ("violations", "五四三二一")
    assert answer.violations == ["太长4", "太长5"]


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("empty reply", Reply(text="", finish_reason="lost")),
        ("cut reply", '{"mood": "开'),
        ("garbled reply", "å¼€å¿ƒ"),
    ],
)
def test_a_reply_that_did_not_arrive_whole_costs_no_attempt_but_comes_to_an_end(name, reply) -> None:
    lost = [reply] * LOST_IN_A_ROW
    asking = Chat(ScriptedBackend([*lost, "不会", *lost, Reply(text="", refusal=True), GOOD]))
    answer = chat.run(asking.ask(request(), parse))
    assert (answer.value, answer.attempts) == ("开心", 3) and asking.usage.calls == 2 * LOST_IN_A_ROW + 3
    assert asking.usage.retries == {name: 2 * LOST_IN_A_ROW, "unusable": 1, "refusal": 1}
    always = ScriptedBackend(lambda _: reply)
    assert ask(always).value is None and len(always.requests) == LOST_IN_A_ROW + 5


@pytest.mark.parametrize(
    ("reply", "outcome", "asked"),
    [
        (Reply(text="", finish_reason="content_filter"), "filtered", 5),
        (Reply(text="", finish_reason="length", think_characters=9), "length", 5),
        (Reply(text="413: too long", finish_reason="rejected"), "rejected", 1),
    ],
)
def test_what_is_no_answer_is_written_down_as_such_and_asked_for_by_the_next_run(
    reply: Reply, outcome: str, asked: int, tmp_path: Path
) -> None:
    backend = ScriptedBackend(lambda _: reply)
    assert ask(backend, tmp_path).outcome == outcome and len(backend.requests) == asked
    assert ask(ScriptedBackend([]), tmp_path, mode="recorded").outcome == outcome
    assert ask(ScriptedBackend([GOOD]), tmp_path).value == "开心"


# --- recordings ---------------------------------------------------------------------------------------


def test_what_is_asked_equals_what_is_replayed_to_the_last_digit(tmp_path: Path) -> None:
    tops = {"是": -0.123456789, "不": -2.2, "Yes": -3.0, "嗯": -9.0, "哦": -10.0, "否": -11.0}

    def read(reply: Reply) -> tuple:
        return reply.first_token, reply.yes_no

    first = ask(ScriptedBackend([Reply(text="是", first_token=tops)]), tmp_path, parser=read).value
    assert first[0] == {"是": -0.1235, "不": -2.2, "Yes": -3.0, "嗯": -9.0, "哦": -10.0}
    again = ask(ScriptedBackend([]), tmp_path, parser=read, mode="recorded").value
    assert again == first, "the mass of yes and no is that of all alternatives"
    value = '"value":{"text":"是","outcome":"accepted","attempts":1,"first_token":{"是":-0.1235,'
    assert value in (tmp_path / "s" / "w0.jsonl").read_text(encoding="utf-8").replace(" ", "")


def test_a_miss_names_what_was_asked_and_how_to_go_live(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)
    replay = Chat(ScriptedBackend([]), Recordings("s", [tmp_path]), "recorded")
    with pytest.raises(RecordingMiss, match=r"summary d/3 of scripted@default.*mode=auto"):
        chat.run(replay.ask(request(3), parse))
    stricter = chat.run(replay.ask(request(), lambda _: parse(Reply(text="x"))))
    assert (stricter.outcome, stricter.value) == ("unusable", None), "as a new reply would be"


def test_live_mode_asks_once_although_it_is_recorded_and_its_answer_counts(tmp_path: Path) -> None:
    ask(ScriptedBackend([GOOD]), tmp_path)
    live = Chat(ScriptedBackend(['{"mood": "难过"}']), Recordings("s", [tmp_path], tmp_path), "live")
    twins = chat.run(live.side_by_side(live.ask(request(), parse) for _ in range(4)))
    assert [answer.value for answer in twins] == ["难过"] * 4
    assert (live.usage.calls, live.usage.replayed) == (1, 3)
    assert ask(ScriptedBackend([]), tmp_path, mode="recorded").value == "难过"


# --- side by side -------------------------------------------------------------------------------------


class Slow(ScriptedBackend):
    async def complete(self, request: Request) -> Reply:
        reply = await super().complete(request)
        await asyncio.sleep(0.05)
        return reply


def test_after_the_first_fault_nothing_more_is_sent_and_what_is_under_way_is_recorded(tmp_path) -> None:
    store = Recordings("s", [tmp_path], tmp_path)
    asking = Chat(Slow([GOOD, EndpointError("no connection"), *[GOOD] * 9]), store, concurrency=2)
    with pytest.raises(EndpointError, match="no connection"):
        chat.run(asking.side_by_side(asking.ask(request(n), parse) for n in range(4)))
    assert len(asking.backend.requests) == 2 and len(store.fresh_keys) == 1
    assert chat.run(asking.side_by_side([asking.ask(request(0), parse)]))[0].value, "the chat goes on"


def test_the_bar_says_money_and_trouble_and_its_clock_moves_before_the_first_answer(monkeypatch) -> None:
    monkeypatch.setattr(chat, "COMPARED_AFTER_S", 0.5)
    main, terminal = os.openpty()
    monkeypatch.setenv("MEMECMD_TERMINAL", os.ttyname(terminal))
    replies_ = [Reply(text=""), Reply(text=GOOD, tokens_in=9, tokens_out=500_000)]
    budget = Budget(max_usd=9, endpoint=Endpoint(usd_per_million_out=4))
    asking = Chat(ScriptedBackend(replies_), budget=budget)
    asking.backend.pace = Pace()
    asking.backend.pace.ready_at = time.monotonic() + 29
    with progress(asking, 1, "turns", "turn") as bar:
        asking.usage.calls += 1  # one is under way
        time.sleep(1.3)
        early = os.read(main, 100_000).decode()
        chat.run(asking.ask(request(), parse))
        bar()
    time.sleep(0.1)
    shown = os.read(main, 100_000).decode()
    told = (
        r"turns:   0%.*00:01<\?.* 0\.0 tokens/s · \d\.\d times the hours of `make cost` · next call in 2\d s"
    )
    assert re.search(told, early, re.DOTALL)
    assert "turns: 100%" in shown and "$2.02 of $9.00 · 1 tried again" in shown


def test_a_log_gets_a_plain_line_now_and_then_and_none_for_what_is_short(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(progress_, "LOG_S", 0.2)
    monkeypatch.setenv("MEMECMD_TERMINAL", str(tmp_path / "log"))
    asking = Chat(ScriptedBackend([GOOD] * 9))
    with progress(asking, 9, "turns", "turn") as bar:
        bar(2)  # replayed
        for n in range(3):
            chat.run(asking.ask(request(n), parse))
            bar()
            time.sleep(0.15)
    with progress(asking, 1, "short", "turn") as bar:
        bar()
    *_, last = lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and re.fullmatch(
        r"turns: 5 of 9, 00:00 gone, 00:00 to go, .*, 0\.0 tokens/s", last
    )


# --- replies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '好的，这是结果：\n```json\n{"mood": "开心", "score": "85"}\n```\n希望对你有帮助！',
        '格式 {"x": 1}，初稿 {"mood": "难过", "score": 5}\n改成 {"mood": "开心", "score": 85}',
    ],
)
def test_the_last_object_is_read_out_of_what_models_write(text: str) -> None:
    assert replies.structured(Reply(text=text), Mood) == Mood(mood="开心", score=85)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"score": "很高"}', "wrong fields: mood: .*, score: "),
        ('{"score": 3, "mood": "开心，因为', "cut off"),
        ('{"mood": "开\\u0000心"}', "unreadable text"),
        ('{"mood": "\u200b\u202e"}', "empty text"),
        ('{"mood": "开心",}', "no JSON object"),
        ('{"mood": "' + "哈" * 50_000 + '"}', "too long"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(UnusableReply, match=reason):
        replies.structured(Reply(text=text), Mood)


def test_the_line_a_speaker_says() -> None:
    for text, line in {
        "阿橙：“今天好累”": "今天好累",
        "<think>想</think>\n“真的吗？”他问\n第二句": "“真的吗？”他问",
        "```\n甲: 《活着》\n```": "《活着》",
        "\u200b\n": "",
    }.items():
        assert replies.utterance_text(Reply(text=text), ("阿橙",)) == line


def test_the_strict_schema_requires_every_key_and_leaves_bounds_to_us() -> None:
    schema = replies.strict_schema(Mood)
    assert schema["required"] == ["mood", "score"] and schema["additionalProperties"] is False
    assert schema["properties"]["mood"] == {"type": "string"}

    class Free(BaseModel):
        anything: dict[str, int]

    assert replies.strict_schema(Free) is None


# --- prompts and the example's texts --------------------------------------------------------------------


def test_prompts_and_corpus_are_those_that_were_shipped() -> None:
    shipped = json.loads((paths.example / "prompt_hashes.json").read_text(encoding="utf-8"))
    assert {name: authored.prompt_sha256("authored", name) for name in shipped} == shipped
    folders = (paths.example, paths.example / "untouched", paths.example / "untouched_2")
    for folder in folders:
        frozen = json.loads((folder / "TEXT_HASHES.json").read_text(encoding="utf-8"))
        # What stands in a plan from this heading on came after the freeze, with its date.
        notes = b"\n## Notes after the fact\n"
        texts = {name: (folder / name).read_bytes().partition(notes)[0] for name in frozen}
        assert {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()} == frozen
    tasks = [task for task, _ in authored.texts()]
    assert (tasks.count("utterance"), tasks.count("summary"), tasks.count("annotation")) == (846, 799, 200)
