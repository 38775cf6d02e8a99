import asyncio
import json
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from pydantic import BaseModel, Field
from tiny_server import Answer, TinyServer, chat_reply, error

from memecmd_utils import llm
from memecmd_utils.llm import Image, Message, Request, Sampling
from memecmd_utils.llm_backends import (
    MAX_TRIES,
    AuthoredBackend,
    EndpointError,
    MissingText,
    OpenAIBackend,
    ScriptedBackend,
)
from memecmd_utils.llm_wire import retry_after, strict_schema
from memecmd_utils.profiles import Endpoint
from memecmd_utils.recordings import Recordings

KEY = "sk-very-secret-0123456789"


class Mood(BaseModel):
    mood: str = Field(min_length=1, description="how it feels")
    score: int = Field(default=0, ge=0, le=100)


def request(text: str = "你好", schema: type[BaseModel] | None = None, **changes) -> Request:
    values = {"task": "utterance", "subject": "d/1", "messages": [Message(role="user", text=text)]}
    return Request(**{**values, "reply_schema": schema, **changes})


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def ask(script, *requests: Request, **endpoint):
    """Send the requests one after another; return replies, server, backend and the waits between tries."""
    waits = Waits()
    with TinyServer(script).running() as server:
        settings = Endpoint(**{"base_url": server.url, "model": "tiny", **endpoint})
        backend = OpenAIBackend(settings, api_key=KEY, sleep=waits)

        async def work():
            return [await backend.complete(r) for r in requests or (request(),)]

        replies = llm.run(work())
    return replies, server, backend, waits.seconds


def fails_with(script, *requests: Request, **endpoint) -> tuple[str, list[float]]:
    waits = Waits()
    with TinyServer(script).running() as server:
        backend = OpenAIBackend(
            Endpoint(**{"base_url": server.url, "model": "tiny", **endpoint}), api_key=KEY, sleep=waits
        )
        with pytest.raises(EndpointError) as caught:
            llm.run(backend.complete((requests or (request(),))[0]))
    told = "".join(traceback.format_exception(caught.value))
    assert KEY not in told and KEY not in repr(caught.value)
    return str(caught.value), waits.seconds


def test_a_plain_request_and_its_reply() -> None:
    sampling = Sampling(temperature=0.9, max_tokens=60, extra={"min_p": 0.05})
    (reply,), server, _, _ = ask([Answer(chat_reply("好的"))], request(sampling=sampling, seed=7))
    assert (reply.text, reply.tokens_in, reply.tokens_out, reply.finish_reason) == ("好的", 11, 3, "stop")
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert server.bodies[0] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "你好"}],
        "temperature": 0.9,
        "max_tokens": 60,
        "min_p": 0.05,
        "seed": 7,
    }


def test_ladder_schema_then_json_then_plain_is_probed_once() -> None:
    def serve(body):
        form = body.get("response_format", {}).get("type")
        return (
            Answer(error("response_format?"), status=422 if form == "json_object" else 400)
            if form
            else Answer(chat_reply("{}"))
        )

    replies, server, backend, waits = ask(serve, *[request(schema=Mood)] * 2)
    forms = [body.get("response_format", {}).get("type") for body in server.bodies]
    assert forms == ["json_schema", "json_object", None, None]
    assert [reply.text for reply in replies] == ["{}", "{}"]
    assert waits == [] and backend.retries == 0
    sent = server.bodies[0]["response_format"]["json_schema"]
    assert sent["name"] == "Mood" and sent["strict"] is True
    assert sent["schema"]["additionalProperties"] is False and sent["schema"]["required"] == ["mood", "score"]


def test_requests_side_by_side_take_one_step_down_together() -> None:
    def serve(body):
        if body.get("response_format", {}).get("type") == "json_schema":
            return Answer(error("no schema"), status=400)
        return Answer(chat_reply("{}"))

    with TinyServer(serve).running() as server:
        backend = OpenAIBackend(Endpoint(base_url=server.url, model="tiny"), api_key=KEY)

        async def work():
            return await asyncio.gather(*(backend.complete(request(schema=Mood)) for _ in range(8)))

        assert [r.text for r in llm.run(work())] == ["{}"] * 8
    assert {b["response_format"]["type"] for b in server.bodies} == {"json_schema", "json_object"}


def test_a_form_that_has_worked_is_not_given_up_for_one_bad_request() -> None:
    script = [Answer(chat_reply("{}")), Answer(error("context too long"), status=400)]
    with TinyServer(script).running() as server:
        backend = OpenAIBackend(Endpoint(base_url=server.url, model="tiny"), api_key=KEY)

        async def work():
            await backend.complete(request(schema=Mood))
            await backend.complete(request(schema=Mood))

        with pytest.raises(EndpointError, match=r"400\): .*context too long"):
            llm.run(work())
    assert len(server.bodies) == 2


def test_faults_are_retried_by_our_layer_alone() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    script = [
        Answer(error("slow down"), status=429, Retry_After="7"),
        Answer(error("slow down"), status=429, Retry_After=later),
        Answer(error("oops"), status=500),
        Answer("<html>bad gateway</html>", kind="text/html"),
        Answer({"id": "x", "choices": []}),
        Answer(chat_reply("好")),
    ]
    (reply,), server, backend, waits = ask(script)
    assert reply.text == "好"
    assert len(server.bodies) == 6 and backend.retries == 5, "the SDK's own retries are off"
    assert waits[0] == 7 and 25 <= waits[1] <= 30
    assert all(0.5 * 2**n <= wait <= 2**n for n, wait in ((2, waits[2]), (3, waits[3]), (4, waits[4])))


@pytest.mark.parametrize(
    "bad",
    [
        Answer(reset=True),
        Answer(chat_reply("好"), cut=True),
        Answer('{"choices": [{"mess'),
        Answer("<html>", kind="application/json"),
        Answer("null"),
        Answer("[]"),
        Answer({"choices": [{}]}),
        Answer({"choices": [None]}),
        Answer({"error": {"message": "overloaded"}}),
        Answer(error("busy"), status=503),
        Answer(error("again"), status=409),
    ],
    ids=[
        "reset",
        "cut",
        "half-json",
        "html-as-json",
        "null",
        "list",
        "no-message",
        "null-choice",
        "error-in-200",
        "503",
        "409",
    ],
)
def test_each_fault_then_success(bad: Answer) -> None:
    (reply,), server, _, waits = ask([bad, Answer(chat_reply("好"))])
    assert reply.text == "好" and len(server.bodies) == 2 and len(waits) == 1


def test_an_endpoint_that_never_answers_ends_after_six_tries() -> None:
    message, waits = fails_with(lambda _: Answer(error("x"), status=503))
    assert f"{MAX_TRIES} tries" in message and "503" in message
    assert len(waits) == MAX_TRIES - 1


def test_a_wrong_key_stops_at_once_and_names_the_variable() -> None:
    for status in (401, 403):
        script = [Answer(error(f"Incorrect API key provided: {KEY}"), status=status)]
        message, waits = fails_with(script, key_env="MY_KEY")
        assert "MY_KEY" in message and str(status) in message and waits == []


def test_a_wrong_model_stops_at_once_and_names_it() -> None:
    message, waits = fails_with([Answer(error("no such model"), status=404)], model="gpt-none")
    assert "gpt-none" in message and "`model`" in message and waits == []


def test_other_refusals_stop_and_a_key_in_the_servers_words_is_blotted_out() -> None:
    message, waits = fails_with([Answer(error(f"bad header Bearer {KEY}"), status=400)])
    assert "bad header Bearer ***" in message and waits == []
    message, waits = fails_with([Answer(error("no credit", code="insufficient_quota"), status=429)])
    assert "no credit" in message and waits == []


def test_no_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(EndpointError, match="MY_KEY"):
        OpenAIBackend(Endpoint(model="m", key_env="MY_KEY"))
    monkeypatch.setenv("MY_KEY", "密钥-secret")
    with pytest.raises(EndpointError, match="MY_KEY") as caught:
        OpenAIBackend(Endpoint(model="m", key_env="MY_KEY"))
    assert "secret" not in str(caught.value)
    with pytest.raises(EndpointError, match=r"endpoints\.generator\.model"):
        OpenAIBackend(Endpoint(), api_key="x")


def test_a_key_with_a_line_end_from_a_file_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY + "\n")
    with TinyServer([Answer(chat_reply("好"))]).running() as server:
        backend = OpenAIBackend(Endpoint(base_url=server.url, model="m", key_env="MY_KEY"))
        llm.run(backend.complete(request()))
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_parameter_map_renames_and_drops() -> None:
    names = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": None, "top_p": "nucleus"}
    sampling = Sampling(temperature=0.9, max_tokens=60, top_p=0.5)
    _, server, _, _ = ask([Answer(chat_reply())], request(sampling=sampling, seed=3), parameters=names)
    body = server.bodies[0]
    assert body["max_completion_tokens"] == 60 and body["nucleus"] == 0.5
    assert not {"max_tokens", "temperature", "seed", "top_p"} & set(body)


def test_each_sample_of_a_request_has_a_seed_of_its_own_on_the_wire() -> None:
    script = [Answer(chat_reply())] * 2
    _, server, _, _ = ask(script, request(seed=7), request(seed=7, sample=1))
    first, second = (body["seed"] for body in server.bodies)
    assert first == 7 and second > 7 + 4, "further attempts of sample 0 use 8 to 11"


@pytest.mark.parametrize(
    ("text", "kept", "thought"),
    [
        ("<think>想想</think>好", "好", 17),
        ("<think>一</think>好<think>二</think>", "好", 32),
        ("<think>没有想完", "", 11),
        ("模板已写了开头</think>\n好", "好", 15),
        ("  好 ", "好", 0),
    ],
)
def test_thoughts_are_taken_out_and_counted(text: str, kept: str, thought: int) -> None:
    (reply,), _, _, _ = ask([Answer(chat_reply(text))])
    assert (reply.text, reply.think_characters) == (kept, thought)


def test_refusals_filters_and_cuts_are_seen() -> None:
    script = [
        Answer(chat_reply(None, message={"refusal": "I cannot"})),
        Answer(chat_reply("", finish_reason="content_filter")),
        Answer(chat_reply("话没说", finish_reason="length")),
        Answer(error("policy", code="content_filter"), status=400),
    ]
    refused, filtered, cut, azure = ask(script, *[request()] * 4)[0]
    assert refused.refusal and refused.text == ""
    assert [r.finish_reason for r in (filtered, cut, azure)] == ["content_filter", "length", "content_filter"]


def test_log_probabilities_of_the_first_token() -> None:
    tops = [{"token": t, "logprob": p, "bytes": None} for t, p in (("是", -0.123456), ("否", -2.5))]
    first = {"token": "是", "logprob": -0.123456, "bytes": None, "top_logprobs": tops}
    script = [
        Answer(chat_reply("是", logprobs={"content": [first], "refusal": None})),
        Answer(chat_reply("是", logprobs={"content": [{**first, "top_logprobs": None}]})),
    ]
    ones = request(sampling=Sampling(top_logprobs=20, max_tokens=1))
    (one, none), server, _, _ = ask(script, ones, ones)
    assert one.first_token == {"是": -0.1235, "否": -2.5} and none.first_token == {}
    assert server.bodies[0]["logprobs"] is True and server.bodies[0]["top_logprobs"] == 20


def test_images_go_as_data_urls_and_are_recorded_by_id(tmp_path: Path) -> None:
    url = "data:image/png;base64,AAAA"
    seen = request(messages=[Message(role="user", text="看", images=[Image(image_id="m001", data_url=url)])])
    with TinyServer([Answer(chat_reply("猫"))]).running() as server:
        store = Recordings("s", [tmp_path], tmp_path)
        backend = OpenAIBackend(Endpoint(base_url=server.url, model="tiny"), api_key=KEY)
        llm.run(llm.Chat(backend, store).ask(seen, lambda reply: reply.text))
        store.close()
    assert server.bodies[0]["messages"][0]["content"] == [
        {"type": "text", "text": "看"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    written = (tmp_path / "s" / "w0.jsonl").read_text(encoding="utf-8")
    assert '"m001"' in written and "base64" not in written
    assert KEY not in written and server.url not in written


def test_one_backend_serves_several_event_loops_and_leaves_no_open_connection() -> None:
    with TinyServer(lambda _: Answer(chat_reply("好"))).running() as server:
        backend = OpenAIBackend(Endpoint(base_url=server.url, model="m"), api_key=KEY)
        clients = []
        for _ in range(2):
            llm.run(backend.complete(request()))
            clients.append(backend._client)
        assert clients[0] is not clients[1] and all(client.is_closed() for client in clients)

        async def closed_by_hand() -> bool:
            await backend.complete(request())
            client = backend._client
            await backend.aclose()
            return client.is_closed()

        assert llm.run(closed_by_hand())


def test_a_server_on_this_machine_is_not_sought_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    (reply,), _, _, _ = ask([Answer(chat_reply("好"))])
    assert reply.text == "好"


def test_retry_after() -> None:
    now = datetime.now(UTC)
    assert retry_after({}) is None and retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "3.5"}) == 3.5
    assert retry_after({"retry-after": "9999"}) == 60 and retry_after({"retry-after": "-2"}) == 0
    assert retry_after({"retry-after": format_datetime(now - timedelta(hours=1), usegmt=True)}) == 0
    assert retry_after({"retry-after": "Wed, 21 Oct 2026 07:28:00 -0000"}) is None, "a date without zone"


def test_strict_schema_holds_what_the_strict_subset_allows() -> None:
    class Named(BaseModel):
        title: str
        moods: list[Mood]

    text = json.dumps(strict_schema(Named))
    assert not any(
        f'"{word}":' in text for word in ("minLength", "maximum", "minimum", "default", "description")
    )
    assert set(strict_schema(Named)["properties"]) == {"title", "moods"}, "a field may be named title"
    assert strict_schema(Named)["$defs"]["Mood"]["required"] == ["mood", "score"]


def test_authored_texts_do_not_look_at_the_prompt_and_say_how_to_go_live() -> None:
    backend = AuthoredBackend({("utterance", "d/1"): "早"})
    assert llm.run(backend.complete(request("one"))) == llm.run(backend.complete(request("another")))
    with pytest.raises(MissingText, match="PROFILE=local"):
        llm.run(backend.complete(request(subject="d/99")))


def test_scripted_replies_run_out_loudly() -> None:
    backend = ScriptedBackend(["一"])
    assert llm.run(backend.complete(request())).text == "一"
    with pytest.raises(RuntimeError, match=r"ran out at utterance d/1 \(request 2\)"):
        llm.run(backend.complete(request()))
