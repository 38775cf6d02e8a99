import asyncio
import base64
import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, SecretStr, create_model
from tiny_server import Answer, TinyServer, chat_reply, error

from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import messages
from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.endpoint import (
    NEUTRAL_TEXT,
    REJECTED_IN_A_ROW,
    EmptyReply,
    KeyGuard,
    OpenAIBackend,
    address,
    is_local,
    read_reply,
    retry_after,
)
from memecmd_utils.llm.messages import (
    EndpointError,
    Image,
    InDoubt,
    Message,
    Reply,
    Request,
    RequestRejected,
    Sampling,
    TransientFault,
)
from memecmd_utils.llm.replies import strict_schema
from memecmd_utils.recordings import Recordings
from memecmd_utils.settings import Endpoint

KEY = "sk-very-secret-0123456789"
FILTER_CODES = [
    "content_filter",
    "content_policy_violation",
    "data_inspection_failed",
    "DataInspectionFailed",
    "ResponsibleAIPolicyViolation",
    "moderation_blocked",
]


class Mood(BaseModel):
    mood: str = Field(min_length=1, description="how it feels")
    score: int = Field(default=0, ge=0, le=100)


class Free(BaseModel):
    """Outside of the strict subset."""

    values: dict[str, int]


def request(text: str = "你好", schema: type[BaseModel] | None = None, **changes) -> Request:
    values = {"task": "utterance", "subject": "d/1", "messages": [Message(role="user", text=text)]}
    return Request(**{**values, "reply_schema": schema, **changes})


def backend_for(url: str | None, **endpoint) -> OpenAIBackend:
    return OpenAIBackend(Endpoint(**{"base_url": url, "model": "tiny", **endpoint}), key=SecretStr(KEY))


async def outcome(backend: OpenAIBackend, asked: Request) -> Reply | Exception:
    """What becomes of a request; a doubt is settled by a neutral one, as `delivery` does."""
    try:
        try:
            return await backend.complete(asked)
        except InDoubt as doubt:
            await backend.complete(doubt.neutral)
            return await backend.complete(asked)
    except Exception as fault:
        return fault


def exchange(script, *requests: Request, **endpoint) -> tuple[list[Any], TinyServer, OpenAIBackend]:
    """Send requests one after another, each once; return what became of them."""
    with TinyServer(script).running() as server:
        backend = backend_for(server.url, **endpoint)

        async def work():
            return [await outcome(backend, r) for r in requests or (request(),)]

        return llm_chat.run(work()), server, backend


def one(answer: Answer, asked: Request | None = None, **endpoint) -> Any:
    return exchange(lambda _: answer, asked or request(), **endpoint)[0][0]


GOOD = Answer(chat_reply("好"))


def text_of(reply: Reply) -> str:
    return reply.text


def is_neutral(body: dict) -> bool:
    """Whether a request as the server sees it is the one that asks for nothing."""
    content = body["messages"][0]["content"]
    return (content if isinstance(content, str) else content[0]["text"]) == NEUTRAL_TEXT


def after_success(answer: Answer, asked: Request | None = None) -> Any:
    return exchange([GOOD, answer], request(), asked or request())[0][1]


def test_a_plain_request_and_its_reply() -> None:
    sampling = Sampling(temperature=0.9, max_tokens=60, top_logprobs=20, extra={"min_p": 0.05})
    (reply,), server, _ = exchange([Answer(chat_reply("好的"))], request(sampling=sampling, seed=7))
    assert (reply.text, reply.tokens_in, reply.tokens_out, reply.finish_reason) == ("好的", 11, 3, "stop")
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert server.bodies[0] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "你好"}],
        "temperature": 0.9,
        "max_tokens": 60,
        "min_p": 0.05,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 20,
    }


def test_parameter_map_renames_and_drops() -> None:
    names = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": None, "top_p": "nucleus"}
    sampling = Sampling(temperature=0.9, max_tokens=60, top_p=0.5, extra={"min_p": 0.1})
    names["min_p"] = None
    _, server, backend = exchange([GOOD], request(sampling=sampling, seed=3), parameters=names)
    body = server.bodies[0]
    assert body["max_completion_tokens"] == 60 and body["nucleus"] == 0.5
    assert not {"max_tokens", "temperature", "seed", "top_p", "min_p"} & set(body)
    assert set(backend.dropped) == {"temperature", "seed", "min_p"}


def test_each_sample_of_a_request_has_a_seed_of_its_own_on_the_wire() -> None:
    _, server, _ = exchange([GOOD] * 2, request(seed=7), request(seed=7, sample=1))
    first, second = (body["seed"] for body in server.bodies)
    assert first == 7 and second > 7 + 4, "further attempts of sample 0 use 8 to 11"


def test_images_go_as_data_urls_are_recorded_by_id_and_loaded_only_to_be_sent(tmp_path: Path) -> None:
    loaded: list[str] = []

    def load() -> str:
        loaded.append("m001")
        return "data:image/png;base64,AAAA"

    seen = request(messages=[Message(role="user", text="看", images=[Image(image_id="m001", load=load)])])
    with TinyServer([Answer(chat_reply("猫"))]).running() as server:
        for mode in ("auto", "auto", "recorded"):
            store = Recordings("s", [tmp_path], tmp_path)
            answer = llm_chat.run(
                Chat(backend_for(server.url), store, mode).ask(seen, lambda reply: reply.text)
            )
            assert answer.value == "猫" and loaded == ["m001"], "not when it is replayed"
    assert server.bodies[0]["messages"][0]["content"] == [
        {"type": "text", "text": "看"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    written = (tmp_path / "s" / "w0.jsonl").read_text(encoding="utf-8")
    assert '"m001"' in written and "base64" not in written
    assert KEY not in written and server.url not in written


def forms(server: TinyServer) -> list[str | None]:
    return [body.get("response_format", {}).get("type") for body in server.bodies]


def knows(*known: str):
    """A server that knows these forms of structured replies."""

    def serve(body: dict) -> Answer:
        form = body.get("response_format", {}).get("type")
        return Answer(chat_reply("{}")) if form in (None, *known) else Answer(error("form?"), status=400)

    return serve


@pytest.mark.parametrize("status", [400, 422])
def test_ladder_schema_then_json_then_plain_is_probed_once(status: int) -> None:
    def serve(body):
        form = body.get("response_format", {}).get("type")
        return Answer(error("response_format?"), status=status) if form else Answer(chat_reply("{}"))

    replies, server, _ = exchange(serve, *[request(schema=Mood)] * 2)
    assert forms(server) == ["json_schema", *("json_schema", "json_object", None), None, None]
    assert [is_neutral(body) for body in server.bodies] == [False, *[True] * 3, False, False]
    assert [reply.text for reply in replies] == ["{}", "{}"]
    sent = server.bodies[0]["response_format"]["json_schema"]
    assert sent["name"] == "Mood" and sent["strict"] is True
    assert sent["schema"]["additionalProperties"] is False and sent["schema"]["required"] == ["mood", "score"]


def test_requests_side_by_side_take_one_step_down_together() -> None:
    with TinyServer(knows("json_object")).running() as server:
        backend = backend_for(server.url)

        async def work():
            chat = Chat(backend, None)
            return await chat.side_by_side(chat.ask(request(schema=Mood), text_of) for _ in range(8))

        assert [a.value for a in llm_chat.run(work())] == ["{}"] * 8
    assert set(forms(server)) == {"json_schema", "json_object"} and len(forms(server)) <= 18
    assert sum(map(is_neutral, server.bodies)) == 2, "eight in doubt share one neutral request"


def test_a_schema_outside_the_strict_subset_starts_at_json_mode() -> None:
    got, server, _ = exchange(
        knows("json_schema", "json_object"), request(schema=Free), request(schema=Mood), request(schema=Free)
    )
    assert forms(server) == ["json_object", "json_schema", "json_object"]
    assert all(isinstance(reply, Reply) for reply in got)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    title: str
    moods: list[Mood]
    maybe: int | None = None
    kind: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED


def nested(levels: int) -> type[BaseModel]:
    kind: Any = str
    for _ in range(levels):
        kind = list[kind]
    return create_model("Nested", deep=(kind, ...))


def test_strict_schema_holds_what_the_strict_subset_allows() -> None:
    schema = strict_schema(Inner)
    text = json.dumps(schema)
    assert not any(
        f'"{word}":' in text for word in ("minLength", "maximum", "minimum", "default", "description")
    )
    assert set(schema["properties"]) == {"title", "moods", "maybe", "kind", "colour"}, (
        "`title` is a field here"
    )
    assert schema["required"] == list(schema["properties"]), "also what has a default"
    assert schema["$defs"]["Mood"]["required"] == ["mood", "score"]
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["properties"]["maybe"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert all(d["additionalProperties"] is False for d in (schema, schema["$defs"]["Mood"]))


@pytest.mark.parametrize(
    "model",
    [
        Free,
        create_model("Loose", x=(dict, ...)),
        create_model("Pair", x=(tuple[int, str], ...)),
        create_model("Inside", x=(list[Free], ...)),
        RootModel[list[int]],
        RootModel[Mood | Inner],
        nested(12),
        create_model("Any", x=(set[int], ...)),
    ],
)
def test_what_the_strict_subset_cannot_say_is_asked_for_in_json_mode(model: type[BaseModel]) -> None:
    assert strict_schema(model) is None


def test_the_schemas_of_the_stages_are_within_the_strict_subset() -> None:
    from memecmd_utils.evaluation.judges import RatingsReply
    from memecmd_utils.schemas import AnnotationReply, SummaryReply

    assert all(strict_schema(model) for model in (RatingsReply, AnnotationReply, SummaryReply))


@pytest.mark.parametrize("set_up_is_right", [True, False])
def test_after_ten_refused_requests_of_a_task_in_a_row_a_neutral_one_decides(set_up_is_right: bool) -> None:
    bad, nine = Answer(error("too long"), status=400), REJECTED_IN_A_ROW - 1
    script = iter([GOOD, *[bad] * nine, GOOD, *[bad] * 3 * REJECTED_IN_A_ROW])

    def serve(body: dict) -> Answer:
        return (GOOD if set_up_is_right else bad) if is_neutral(body) else next(script)

    got, server, _ = exchange(serve, *[request()] * (2 + 2 * nine + 1))
    kinds = [type(x) for x in got]
    last = RequestRejected if set_up_is_right else EndpointError
    assert kinds == [Reply, *[RequestRejected] * nine, Reply, *[RequestRejected] * nine, last]
    assert sum(map(is_neutral, server.bodies)) == 1


def test_refused_requests_of_another_task_do_not_count() -> None:
    bad = Answer(error("too long"), status=400)
    asked = [request(), *[request(task=("summary", "utterance")[n % 2]) for n in range(18)]]
    got, _, _ = exchange([GOOD, *[bad] * 18], *asked)
    assert {type(x) for x in got[1:]} == {RequestRejected}


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_an_empty_account_is_not_waited_for(code: str) -> None:
    fault = one(Answer(error("You exceeded your quota", code=code), status=429))
    assert isinstance(fault, EndpointError) and "credit" in str(fault) and "your quota" in str(fault)


@pytest.mark.parametrize("code", FILTER_CODES)
@pytest.mark.parametrize("status", [400, 403])
def test_a_content_filter_that_answers_by_a_status_is_an_outcome(code: str, status: int) -> None:
    reply = one(Answer(error("policy", code=code), status=status))
    assert (reply.finish_reason, reply.text) == ("content_filter", "")


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_mend_itself_is_a_transient_fault_that_was_not_paid(status: int) -> None:
    busy = Answer(error("busy"), status=status, Retry_After="7")
    (fault,), server, _ = exchange([busy, GOOD])
    assert isinstance(fault, TransientFault) and len(server.bodies) == 1, "the SDK's own retries are off"
    assert (fault.kind, fault.wait_s, fault.paid) == (f"status {status}", 7.0, False)
    assert fault.limited == (status == 429)
    assert one(Answer(error("busy"), status=status)).wait_s is None


@pytest.mark.parametrize(
    ("parameter", "hint"),
    [("max_tokens", "{max_tokens: max_completion_tokens}"), ("temperature", "{temperature: null}")],
)
def test_a_parameter_that_the_endpoint_does_not_take_comes_with_what_to_set(
    parameter: str, hint: str
) -> None:
    refused = Answer(error(f"Unsupported parameter: {parameter}", param=parameter), status=400)
    assert hint in str(one(refused))
    assert hint not in str(one(Answer(error("Unsupported: x", param="x"), status=400)))


@pytest.mark.parametrize(
    "body",
    ["", "oops", "<html>bad gateway</html>", "null", "[]", '{"error": "told"}', '{"error": null}',
     '{"error": {"message": null, "code": 7}}', '{"detail": [{"loc": ["body"]}]}', b"\xff\xfe"],
)  # fmt: skip
def test_bodies_of_errors_may_be_anything(body: str | bytes) -> None:
    for kind in ("application/json", "text/html"):
        assert isinstance(one(Answer(body, status=400, kind=kind)), EndpointError)
        assert one(Answer(body, status=503, kind=kind)).kind == "status 503"


def test_the_servers_words_can_be_recorded_and_shown(tmp_path: Path) -> None:
    bad = Answer(r'{"error": {"message": "no \ud800 \u0000 \u001b[31m way"}}', status=400)
    with TinyServer([GOOD, bad]).running() as server:
        store = Recordings("s", [tmp_path], tmp_path)
        chat = Chat(backend_for(server.url), store)
        llm_chat.run(chat.ask(request("一"), lambda r: r.text))
        answer = llm_chat.run(chat.ask(request("二"), lambda r: r.text))
    assert answer.outcome == "rejected" and "no" in answer.reason and "way" in answer.reason
    assert not any(bad in answer.reason for bad in ("\ud800", "\0", "\x1b"))


BAD = "坏"
REFUSALS = {
    "too long": (400, "context_length_exceeded"),
    "too large": (413, None),
    "moderated": (403, None),
    "moderated by a gateway": (403, 403),
    "for legal reasons": (451, None),
}


def is_bad(body: dict) -> bool:
    return BAD in json.dumps(body, ensure_ascii=False)


def refuses(status: int, code: Any, what: Callable[[dict], bool] = is_bad):
    """A server that refuses some requests and knows JSON mode, but no schemas."""

    def serve(body: dict) -> Answer:
        if body.get("response_format", {}).get("type") == "json_schema":
            return Answer(error("response_format?"), status=400)
        if what(body):
            return Answer(error("not this one", code=code), status=status)
        return Answer(chat_reply("{}"))

    return serve


def ask_all(server: TinyServer, asked: list[Request], **options: Any) -> tuple[list[messages.Answer], Chat]:
    """Ask one after another through the seam, as a process that has just begun does."""
    endpoint = Endpoint(base_url=server.url, model="tiny")
    backend = OpenAIBackend(endpoint, key=SecretStr(KEY))
    chat = Chat(backend, **{"concurrency": 1, "sleep": lambda _: asyncio.sleep(0), **options})
    return llm_chat.run(chat.side_by_side(chat.ask(r, text_of) for r in asked)), chat


@pytest.mark.parametrize(("status", "code"), REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("schema", [None, Mood])
def test_a_refused_request_is_left_unscored_and_the_run_goes_on_also_where_it_is_the_first(
    status: int, code: Any, schema: type[BaseModel] | None
) -> None:
    asked = [request(text, schema) for text in (BAD, "一", BAD + BAD, "二")]
    with TinyServer(refuses(status, code)).running() as server:
        for _ in range(2):  # and every time that the run goes on
            answers, _ = ask_all(server, asked)
            assert [a.outcome for a in answers] == ["rejected", "accepted"] * 2
            assert answers[0].reason.startswith(f"{status}: ") and "not this one" in answers[0].reason
            sent = forms(server)[-4:]
            assert set(sent) == {None if schema is None else "json_object"}, "the ladder stops where it holds"
        assert sum(map(is_neutral, server.bodies)) == 2 * (1 if schema is None else 2)


def test_a_neutral_request_is_put_like_the_refused_one_and_counted_and_paid_for() -> None:
    sampling = Sampling(temperature=0.9, max_tokens=60, top_logprobs=3, stop=["x"], extra={"min_p": 0.05})
    picture = Image(image_id="m001", load=lambda: "data:image/png;base64,AAAA")
    roles = [Message(role="system", text="长" * 900), Message(role="user", text=BAD, images=[picture] * 3)]
    asked = request(messages=roles, sampling=sampling, seed=7, schema=Mood)

    def serve(body: dict) -> Answer:
        return Answer(chat_reply("{}")) if is_neutral(body) else Answer(error("no"), status=400)

    with TinyServer(serve).running() as server:
        budget = Budget(usd_in=1.0, usd_out=1.0)
        (answer,), chat = ask_all(server, [asked], budget=budget)
    own, neutral, again = server.bodies
    assert answer.outcome == "rejected" and own == again
    assert {k: v for k, v in neutral.items() if k != "messages"} == {
        k: v for k, v in own.items() if k != "messages"
    }
    assert [message["role"] for message in neutral["messages"]] == ["system", "user"]
    text, image = neutral["messages"][1]["content"]
    assert "JSON" in text["text"] and image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert len(json.dumps(neutral["messages"])) < 1000
    assert (chat.usage.calls, chat.usage.tokens_in, chat.usage.tokens_out) == (3, 11, 3)
    assert [(row.calls, row.tokens_in) for row in budget.ledger.spent.values()] == [(1, 11)]
    assert budget.ledger.usd == pytest.approx(14e-6) and not budget.ledger.open_calls


@pytest.mark.parametrize("schema", [None, Mood])
@pytest.mark.parametrize("status", [400, 402, 403, 413, 422])
def test_a_set_up_that_is_wrong_ends_the_run_at_once_with_what_to_set(
    status: int, schema: type[BaseModel] | None
) -> None:
    refused = Answer(error("Unsupported parameter: temperature", param="temperature"), status=status)
    asked = [request(str(n), schema, sampling=Sampling(temperature=1.0)) for n in range(50)]
    with TinyServer(lambda _: refused).running() as server:
        with pytest.raises(EndpointError) as caught:
            ask_all(server, asked, concurrency=8)
        count = len(server.bodies)
    said = "check OPENAI_API_KEY" if status == 403 else "`parameters: {temperature: null}`"
    assert said in str(caught.value) and f"({status})" in str(caught.value)
    assert count <= 8 + 8 + 3, "the first ones, and one neutral request"


def test_a_model_that_sees_no_pictures_ends_the_run_and_not_every_item() -> None:
    def serve(body: dict) -> Answer:
        sees = isinstance(body["messages"][0]["content"], list)
        return Answer(error("this model takes no images"), status=400) if sees else GOOD

    image = Image(image_id="m001", load=lambda: "data:image/png;base64,AAAA")
    seen = request(messages=[Message(role="user", text="看", images=[image])])
    with TinyServer(serve).running() as server:
        with pytest.raises(EndpointError, match="takes no images"):
            ask_all(server, [request("一"), seen, seen])
        assert len(server.bodies) == 3


def test_a_neutral_request_is_not_sent_past_a_cap() -> None:
    with TinyServer(lambda _: Answer(error("no"), status=400)).running() as server:
        with pytest.raises(messages.BudgetReached):
            ask_all(server, [request(BAD)], budget=Budget(max_usd=20.0, usd_in=1e6))  # a dollar a token
        assert len(server.bodies) == 1


def test_a_refused_connection_was_certainly_not_paid() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        fault = llm_chat.run(outcome(backend_for(f"http://127.0.0.1:{taken.getsockname()[1]}/v1"), request()))
    assert (fault.kind, fault.paid) == ("no connection", False)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (Answer(reset=True), "broken connection"),
        (Answer(chat_reply("好"), cut=True), "broken connection"),
        (Answer(hang=True), "time-out"),
        (Answer("<html>hello</html>", kind="text/html"), "unreadable body"),
        (Answer('{"choices": [{"mess'), "unreadable body"),
        (Answer(""), "unreadable body"),
        (Answer(b'{"choices": "\xff\xfe"}'), "unreadable body"),
        (Answer("plain words", Content_Encoding="gzip"), ""),
        (Answer("[" * 200_000), "unreadable body"),
        (Answer('{"usage": ' + "9" * 5000 + "}"), "unreadable body"),
    ],
    ids=["reset", "cut", "hang", "html", "half-json", "empty", "not-utf8", "not-gzip", "deep", "long"],
)  # fmt: skip
def test_an_answer_that_does_not_arrive_whole_may_be_paid(bad: Answer, kind: str) -> None:
    (fault,), server, _ = exchange([bad, GOOD], timeout_s=0.3)
    assert isinstance(fault, TransientFault) and fault.paid and not fault.limited
    assert len(server.bodies) == 1, "no layer below ours sends it again"
    if not bad.cut:
        assert fault.kind.startswith(kind)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BODY = json.dumps(chat_reply("好")).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "garbage": b"\x00\xff garbage\r\n\r\n",
    "a page without a head": b"<html>hi</html>",
    "a doubled length": OK + LENGTH + LENGTH + b"\r\n" + BODY,
    "a length too short": OK + b"Content-Length: %d\r\n\r\n" % (len(BODY) - 5) + BODY,
    "a length too long": OK + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 5) + BODY,
    "a broken chunk": CHUNKED + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk without an end": CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n",
    "a header without a name": b"HTTP/1.1 200 OK\r\nhello\r\n" + LENGTH + b"\r\n" + BODY,
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "a packed body that is none": OK + b"Connection: close\r\nContent-Encoding: gzip\r\n\r\n" + BODY,
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_http_is_tried_again_and_may_be_paid(raw: bytes) -> None:
    with TinyServer([Answer(raw=raw), GOOD]).running() as server:
        budget = Budget(usd_out=1.0)
        chat = Chat(backend_for(server.url), budget=budget, sleep=lambda _: asyncio.sleep(0))
        assert llm_chat.run(chat.ask(request(), lambda reply: reply.text)).value == "好"
        assert chat.usage.calls == 2 and sum(chat.usage.retries.values()) == 1
        assert [row.unsure_calls for row in budget.ledger.spent.values()] == [1]


@pytest.mark.parametrize(("timeout_s", "drip_s"), [(0.4, 0.05), (0.4, 0.3)])
def test_an_exchange_ends_in_time_also_where_bytes_drip(timeout_s: float, drip_s: float) -> None:
    begun = time.monotonic()
    fault = one(Answer(drip_s=drip_s), timeout_s=timeout_s)
    assert (fault.kind, fault.paid) == ("time-out", True)
    assert timeout_s <= time.monotonic() - begun < 2.0


@pytest.mark.parametrize("kind", ["", "text/plain", "text/plain; charset=utf-8", "text/html", "binary/x"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n\n "])
def test_json_is_read_whatever_its_content_type_says(kind: str, mark: bytes) -> None:
    assert one(Answer(mark + json.dumps(chat_reply("好")).encode(), kind=kind)).text == "好"


EVENTS = f"data: {json.dumps({'choices': [{'delta': {'content': '好'}}]})}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain", "application/json", ""])
@pytest.mark.parametrize("before", ["", ": keep-alive\n\n", "event: message\nid: 1\n"])
def test_an_endpoint_that_only_streams_ends_the_run_with_a_word_on_it(kind: str, before: str) -> None:
    with TinyServer(lambda _: Answer(before + EVENTS, kind=kind)).running() as server:
        budget = Budget(usd_out=1.0)
        chat = Chat(backend_for(server.url), budget=budget)
        with pytest.raises(EndpointError, match="stream"):
            llm_chat.run(chat.ask(request(), lambda reply: reply.text))
        assert len(server.bodies) == 1, "not ten times"
        assert [row.unsure_calls for row in budget.ledger.spent.values()] == [1], "the model was at work"


def test_one_stream_among_replies_is_a_fault_like_any_other() -> None:
    fault = after_success(Answer(EVENTS, kind="text/event-stream"))
    assert isinstance(fault, TransientFault) and fault.paid and "stream" in fault.kind


def test_a_model_that_must_be_streamed_says_so() -> None:
    bad = Answer(error("This model only supports stream mode, please enable stream"), status=400)
    assert "not streamed here" in str(one(bad))
    assert "not streamed here" not in str(one(Answer(error("bad upstream"), status=400)))


ODD = {
    "null": None,
    "no choices": {"id": "x"},
    "choices empty": {"choices": []},
    "choice null": {"choices": [None]},
    "message null": {"choices": [{"message": None}]},
    "content a number": {"choices": [{"message": {"content": 5}}]},
    "error in 200": {"error": {"message": "overloaded"}},
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD.keys())
def test_a_body_that_is_no_chat_completion_is_a_fault_that_may_be_paid(body: Any) -> None:
    with pytest.raises(EmptyReply):
        read_reply(body)


def reply_of(message: dict | None = None, **changes: Any) -> Reply:
    choice = {"message": {"content": "好", **(message or {})}}
    return read_reply({"choices": [choice | changes.pop("choice", {})], **changes})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("  好 ", "好"),
        ([{"type": "text", "text": "你"}, {"type": "text", "text": "好"}], "你好"),
        ([{"type": "image"}, None, "x", {"type": "text", "text": None}, {"text": 5}], "5"),
        ([], ""),
        ("好\ud83d尾", "好尾"),
        ("\x00好\x1b[31m\x7f\n行", "好[31m\n行"),
        ("😀\u2028\ufffd", "😀\u2028\ufffd"),
    ],
)
def test_content_in_every_form(content: Any, text: str) -> None:
    reply = reply_of({"content": content})
    assert reply.text == text
    reply.text.encode()


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"prompt_tokens": 3.0, "completion_tokens": None}, (3, 0)),
        ({"prompt_tokens": -3, "completion_tokens": float("inf")}, (0, 0)),
        ({"prompt_tokens": float("nan"), "completion_tokens": [1]}, (0, 0)),
        (None, (0, 0)),
    ],
)
def test_usage_in_every_form(usage: Any, tokens: tuple[int, int]) -> None:
    reply = reply_of(usage=usage)
    assert (reply.tokens_in, reply.tokens_out) == tokens


def top(*pairs: tuple[Any, Any]) -> dict:
    return {"content": [{"token": "x", "top_logprobs": [{"token": t, "logprob": p} for t, p in pairs]}]}


@pytest.mark.parametrize(
    ("logprobs", "first"),
    [
        (top(("是", -0.123456), ("否", -2.5)), {"是": -0.1235, "否": -2.5}),
        (top(("是", -0.5), ("否", "x"), ("不", None), (7, -1)), {"是": -0.5, "7": -1.0}),
        (top(("\ud800是", -0.5)), {"是": -0.5}),
        ({"content": [{"token": "x", "top_logprobs": None}]}, {}),
        ({"content": [{"token": "x", "top_logprobs": [None, "x", 3, {}]}]}, {}),
        ({"content": [None]}, None),
        ([], None),
        (None, None),
    ],
)
def test_log_probabilities_in_every_form(logprobs: Any, first: dict | None) -> None:
    assert reply_of(choice={"logprobs": logprobs}).first_token == first


@pytest.mark.parametrize("value", [5000.0, float("inf"), 10**400], ids=["5000", "inf", "huge"])
def test_a_log_probability_beyond_all_bounds_does_not_end_a_run(value: float) -> None:
    from memecmd_utils.evaluation import judges

    reply = reply_of({"content": "是"}, choice={"logprobs": top(("是", value), ("否", -0.2))})
    assert 0 <= judges.p_yes(reply) <= 1


@pytest.mark.parametrize(
    ("message", "kept", "thought"),
    [
        ({"content": "<think>想想</think>好"}, "好", 17),
        ({"content": "<think>没有想完"}, "", 11),
        ({"content": "模板已写了开头</think>\n好"}, "好", 15),
        ({"reasoning_content": "想想看"}, "好", 3),
        ({"reasoning_content": None, "reasoning": "想想"}, "好", 2),
        ({"content": "<think>一</think>好", "reasoning_content": "二三"}, "好", 18),
    ],
)
def test_thoughts_are_taken_out_and_counted(message: dict, kept: str, thought: int) -> None:
    reply = reply_of(message)
    assert (reply.text, reply.think_characters) == (kept, thought)


WHOLE = [
    None, "", "stop", "STOP", "eos", "eos_token", "endoftext", "end_turn", "end", "stop_sequence",
    "COMPLETE", "FINISH_REASON_STOP", "completed", "normal",
]  # fmt: skip
FILTERED = [
    "sensitive", "SAFETY", "content_filtered", "content_filter: PROHIBITED_CONTENT", "ERROR_TOXIC",
    "RECITATION", "guardrail_intervened", "BLOCKLIST",
]  # fmt: skip
CUT = [
    "insufficient_system_resource", "network_error", "error", "abort", "max_tokens", "MAX_TOKENS",
    "time_limit", "model_length", "tool_calls", "cancelled", "failed", "rejected", "fail\ud800ed",
    "a new word", 7, True, ["stop"], {"a": "stop"},
]  # fmt: skip


def test_finish_reasons() -> None:
    for reasons, meant in ((WHOLE, "stop"), (FILTERED, "content_filter"), (CUT, "length")):
        for reason in reasons:
            assert reply_of(choice={"finish_reason": reason}).finish_reason == meant, reason


def test_retry_after() -> None:
    now = datetime.now(UTC)
    assert retry_after({}) is None and retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "3.5"}) == 3.5
    assert retry_after({"retry-after": "9999"}) == 60 and retry_after({"retry-after": "-2"}) == 0
    assert retry_after({"retry-after": "inf"}) == 60 and retry_after({"retry-after": ""}) is None
    assert retry_after({"retry-after": format_datetime(now - timedelta(hours=1), usegmt=True)}) == 0
    assert 25 <= retry_after({"retry-after": format_datetime(now + timedelta(seconds=30), usegmt=True)}) <= 30
    assert retry_after({"retry-after": "Wed, 21 Oct 2026 07:28:00 -0000"}) is None, "a date without zone"


def test_no_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "  \n"):
        monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(EndpointError, match="MY_KEY"):
            OpenAIBackend(Endpoint(model="m", key_env="MY_KEY"))
    with pytest.raises(EndpointError, match=r"endpoints\.generator\.model"):
        OpenAIBackend(Endpoint(), key=SecretStr("x"))


def test_a_picture_that_cannot_be_read_is_our_fault_and_not_the_endpoints() -> None:
    def load() -> str:
        raise ValueError("no such picture")

    seen = request(messages=[Message(role="user", text="看", images=[Image(image_id="m001", load=load)])])
    (fault,), server, _ = exchange([], seen)
    assert isinstance(fault, ValueError) and "no such picture" in str(fault) and server.bodies == []


def test_one_backend_serves_several_event_loops_and_leaves_no_open_connection(caplog) -> None:
    with TinyServer(lambda _: GOOD).running() as server:
        backend = backend_for(server.url)
        clients = []

        async def ask() -> None:
            assert (await backend.complete(request())).text == "好"
            clients.append(await backend.connect())

        for _ in range(2):
            llm_chat.run(ask())
        assert clients[0] is not clients[1] and all(client.is_closed() for client in clients)
    assert [r.message for r in caplog.records if r.name == "asyncio"] == [], "a loop's end closes each once"


@pytest.mark.parametrize(
    ("got", "lives"),
    [
        (Answer({"data": []}), True),
        (Answer(error("no list here"), status=404), True),
        (Answer("<html>", kind="text/html"), True),
        (Answer(raw=MALFORMED["garbage"]), True),
        (Answer(hang=True), False),
    ],
    ids=["models", "404", "html", "garbage", "hang"],
)
def test_signs_of_life(got: Answer, lives: bool) -> None:
    with TinyServer([], got).running() as server:
        assert llm_chat.run(backend_for(server.url).alive(0.3)) is lives
        assert set(server.gets) == {"/v1/models"} and server.bodies == []


ODD_KEY = "sk-made/up+0123456789=abc"


@given(st.text(max_size=40), st.text(max_size=40))
def test_every_form_of_a_key_is_blotted_out_of_any_text(before: str, after: str) -> None:
    guard = KeyGuard(SecretStr(ODD_KEY))
    encoded = base64.b64encode((before + ODD_KEY + after).encode()).decode()
    for form in (ODD_KEY, quote(ODD_KEY, safe=""), ODD_KEY.encode().hex()):
        assert form not in guard.blot(before + form + after)
    inner = base64.b64encode(ODD_KEY.encode()).decode()[4:-4]
    assert inner not in guard.blot(encoded)


def test_what_holds_no_key_stays_as_it_is() -> None:
    guard = KeyGuard(SecretStr(ODD_KEY))
    assert guard.blot("好的，0123456789") == "好的，0123456789"
    assert guard.message("rate limit") == "rate limit" and "abc" not in repr(guard)


def test_a_piece_of_the_key_hides_a_servers_whole_message() -> None:
    guard = KeyGuard(SecretStr(ODD_KEY))
    assert ODD_KEY[5:17] not in guard.message(f"bad key …{ODD_KEY[5:17]}…")
    assert guard.message(f"bad key …{ODD_KEY[5:14]}…").startswith("bad key"), "shorter pieces are no secret"


def test_which_servers_are_on_this_machine_and_the_sdks_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://localhost/v1", "http://[::1]:1/v1"):
        assert is_local(Endpoint(base_url=url))
    assert not is_local(Endpoint(base_url="http://127.0.0.1.example.com/v1"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    assert is_local(Endpoint(model="m")) and address(Endpoint(model="m")) == "http://127.0.0.1:8000/v1"
    assert not is_local(Endpoint(model="m", base_url="https://host.example/v1"))
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://me:{ODD_KEY}@host.example/v1")
    with pytest.raises(EndpointError, match="OPENAI_BASE_URL") as caught:
        address(Endpoint(model="m"))
    assert ODD_KEY not in str(caught.value)
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert address(Endpoint(model="m")) is None and not is_local(Endpoint(model="m"))
