"""What goes over the wire to an endpoint, and what becomes of its replies, refusals and silences: a reply is
read without thoughts and control tokens, a wrong set-up ends a run in the server's own words, one refused
request does not, and proxies are used but for this machine.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from fault_server import Answer, FaultServer, chat_reply, error
from scripted import Mood, endpoint_at, request

from memecmd_utils.files import dumps
from memecmd_utils.llm import chat, endpoint, refusals
from memecmd_utils.llm.endpoint import OpenAIBackend, read_reply
from memecmd_utils.llm.replies import structured, utterance_text
from memecmd_utils.llm.types import EndpointError, Image, Message, Reply, Request, Sampling
from memecmd_utils.schemas import SummaryReply

pytestmark = pytest.mark.usefixtures("quick")

KEY = "sk-very-secret-0123456789"


def backend(server: FaultServer | str, **changes: Any) -> OpenAIBackend:
    return endpoint_at(server if isinstance(server, str) else server.url, KEY, **changes)


def ask(asked: OpenAIBackend, *requests: Request, at_once: bool = False) -> list[Reply]:
    async def work() -> list[Reply]:
        if at_once:
            return await asyncio.gather(*map(asked.complete, requests))
        return [await asked.complete(one) for one in requests]

    return chat.run(work())


# --- requests -----------------------------------------------------------------------------------------


def test_a_request_goes_out_after_the_parameter_map_and_its_reply_is_read() -> None:
    seen = Message(role="user", text="看", images=[Image(image_id="m", load=lambda: "data:,AA")])
    sampling = Sampling(temperature=0.5, max_tokens=9, top_logprobs=5, extra={"min_p": 0.1})
    asked = request(messages=[seen], sampling=sampling, seed=3)
    with FaultServer([Answer(chat_reply("<think>嗯</think>好"))]).running() as server:
        parameters = {"max_tokens": "max_completion_tokens", "temperature": None}
        sender = backend(server, parameters=parameters, extra_body={"enable_thinking": False})
        (reply,) = ask(sender, asked)
    picture = {"type": "image_url", "image_url": {"url": "data:,AA"}}
    assert server.bodies == [
        {
            "model": "tiny", "seed": 3, "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 5,
            "min_p": 0.1, "enable_thinking": False,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "看"}, picture]}],
        }
    ]  # fmt: skip
    assert server.headers[0]["authorization"] == f"Bearer {KEY}" and server.paths == ["/v1/chat/completions"]
    assert (reply.text, reply.tokens_in, reply.tokens_out) == ("好", 11, 3)
    assert reply.think_characters == len("<think>嗯</think>")
    form, without = sender.normal_form(asked), backend("http://x/v1").normal_form(asked)
    assert form["extra_body"] == {"enable_thinking": False} and "temperature" not in form["sampling"]
    assert "extra_body" not in without and without["sampling"]["temperature"] == 0.5


@pytest.mark.parametrize(
    ("knows", "forms"),
    [
        ("json_schema", ["json_schema"] * 2),
        ("json_object", ["json_schema", "json_object", "json_object"]),
        (None, ["json_schema", "json_object", None, None]),
    ],
)
def test_a_server_without_schemas_is_asked_in_json_mode_or_plain_text(knows, forms) -> None:
    def answer(body: dict) -> Answer:
        form = body.get("response_format", {}).get("type")
        return Answer(chat_reply("{}")) if form == knows else Answer(error("unknown response_format"), 422)

    with FaultServer(answer).running() as server:
        replies = ask(backend(server), request(reply_schema=Mood), request("还有", reply_schema=Mood))
    assert [r.text for r in replies] == ["{}"] * 2
    assert [body.get("response_format", {}).get("type") for body in server.bodies] == forms


# --- replies ------------------------------------------------------------------------------------------


def test_replies_of_several_services_are_read() -> None:
    meant = {None: "stop", "end_turn": "stop", "MAX_TOKENS": "length", "sensitive": "content_filter"}
    for finish, reason in meant.items():
        assert read_reply(chat_reply("好", finish_reason=finish)).finish_reason == reason
    for body in (None, [], {"choices": []}, {"choices": [{"message": {"content": 7}}]}):
        assert read_reply(body).finish_reason == "lost"
    refused = read_reply(chat_reply(None, message={"refusal": "I can't"}))
    assert refused.refusal and refused.text == ""
    parts = [{"type": "text", "text": "一"}, {"type": "text", "text": "二\x00"}]
    thought = read_reply(chat_reply(None, message={"content": parts, "reasoning_content": "想想"}))
    assert (thought.text, thought.think_characters) == ("一二", 2)
    tops = [{"token": "是", "logprob": -0.1}, {"token": "否", "logprob": float("-inf")}]
    first = read_reply(chat_reply("是", logprobs={"content": [{"token": "是", "top_logprobs": tops}]}))
    assert first.first_token == {"是": -0.1} and first.yes_no[0] == pytest.approx(0.905, abs=1e-3)
    assert read_reply(chat_reply("是", logprobs={"content": None})).first_token is None


REPLY = "行啊，周末一起去吃火锅"
DRAFT, FINAL = (dumps({"scenario": text, "emotion": "笑", "motivation": "逗"}) for text in ("草稿", "定稿"))
THOUGHTS = (
    "<think>a<think>b</think>%s</think>%s",
    "%s</think><answer>%s</answer>",
    "<|channel|>analysis<|message|>%s<|end|><|channel|>final <|constrain|>json<|message|>%s[DONE]",
    "<plan>%s</plan>%s<|im_end|>",
)


@pytest.mark.parametrize("form", THOUGHTS)
def test_of_a_reply_with_thoughts_only_the_reply_is_kept(form: str) -> None:
    reply = read_reply(chat_reply(form % ("说点轻松的", REPLY)))
    assert reply.text == REPLY and reply.think_characters > 0
    assert structured(read_reply(chat_reply(form % (DRAFT, FINAL))), SummaryReply).scenario == "定稿"


def test_a_control_token_ends_a_reply_and_signs_of_a_text_do_not() -> None:
    for token in ("<|im_end|>\n<|im_start|>user\n你好", "</s>"):
        assert read_reply(chat_reply(f"<|im_start|>assistant\n{REPLY}{token}")).text == REPLY
    for plain in ("1<2，3>2", "我 <3 你"):
        assert utterance_text(read_reply(chat_reply(plain)), ()) == plain


def test_a_call_of_a_tool_is_read_by_its_arguments_and_a_thought_alone_is_told() -> None:
    call = {"content": None, "tool_calls": [{"function": {"name": "json", "arguments": FINAL}}]}
    assert structured(read_reply(chat_reply(None, message=call)), SummaryReply).scenario == "定稿"
    thought = chat_reply("", message={"content": "", "reasoning_content": "想" * 200}, finish_reason="length")

    async def answers(asking: chat.Chat, n: int) -> list:
        asked = [request(f"第{i}句", sampling=Sampling(max_tokens=60)) for i in range(n)]
        return [await asking.ask(one, lambda reply: structured(reply, Mood)) for one in asked]

    with FaultServer(lambda _: Answer(thought)).running() as server:
        (answer,) = chat.run(answers(chat.Chat(backend(server)), 1))
        assert answer.outcome == "length" and "60 tokens on thought (200 characters)" in answer.reason
        with pytest.raises(EndpointError, match=r"none of the first 20 answers .* on thought"):
            chat.run(answers(chat.Chat(backend(server)), 30))


# --- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "told", "tries"),
    [
        (Answer(error("no such key"), 401), "refused the key .401.: check OPENAI_API_KEY.*no such key", 1),
        (Answer(error("no such model"), 404), "does not know the model 'tiny'.*no such model", 1),
        (Answer(error("pay first", code="insufficient_quota"), 429), "no credit left .429.: pay first", 1),
        (Answer({"message": {"detail": [{"msg": "presence_penalty is extra"}]}}, 422),
         "presence_penalty is extra. .*`parameters: {NAME: null}` leaves it out", 1),
        (Answer("<title>Proxy</title> says <b>no</b>", 403, "text/html"), "403.*Proxy says no", 1),
        (Answer("<html>hello</html>", 200, "text/html"), "not a chat completion: hello", 10),
    ],
)  # fmt: skip
def test_a_wrong_set_up_ends_the_run_with_the_servers_own_words(
    answer: Answer, told: str, tries: int
) -> None:
    with FaultServer(lambda _: answer).running() as server, pytest.raises(EndpointError, match=told):
        asked = request(seed=1, sampling=Sampling(max_tokens=5, presence_penalty=0.5))
        ask(backend(server), *[asked] * 10)
    assert len(server.bodies) == tries


BEHIND = {"raw": dumps({"error": {"message": "upstream: bring your own key"}}), "provider_name": "X"}
FAILED = {"error": {"code": 502, "message": "upstream is idle"}, "message": {"content": ""}}
REPEATED = {"detail": [{"msg": "extra inputs", "input": "余额不足，又欠费了，这是违规"}]}


@pytest.mark.parametrize(
    ("status", "body", "meant"),
    [
        (403, error("your account is overdue", code="Overdue"), (403, "credit", "your account is overdue")),
        (429, error("资源包已用完，请充值", code="1113"), (429, "credit", "资源包已用完")),
        (200, {"base_resp": {"status_code": 1008, "status_msg": "not enough credits"}}, (502, "credit", "")),
        (429, error("Provider error", metadata=BEHIND), (429, "busy", "Provider error: upstream: bring")),
        (200, {"choices": [{"finish_reason": "error", **FAILED}]}, (502, "busy", "upstream is idle")),
        (200, chat_reply("", finish_reason="error"), (502, "busy", "finish_reason: error")),
        (400, error("模型不存在，请检查模型代码。", code="1211"), (400, "model", "模型不存在")),
        (422, REPEATED, (422, "", "extra inputs")),
    ],
)  # fmt: skip
def test_what_an_error_means_is_read_wherever_it_stands(status, body, meant) -> None:
    told = refusals.read(status, {}, dumps(body))
    assert (told.status, told.kind) == meant[:2] and told.reason.startswith(meant[2])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"contentFilter": [{"level": 1}], "error": {"code": "1301", "message": "可能包含敏感内容"}}),
        (200, {"base_resp": {"status_code": 1026, "status_msg": "input new_sensitive"}, "choices": None}),
        (400, error("Failed to generate JSON.", code="json_validate_failed", failed_generation="{")),
    ],
)
def test_a_filter_and_json_that_failed_are_asked_again(status: int, body: dict) -> None:
    answers = [Answer(body, status), Answer(body, status), Answer(chat_reply('{"mood": "好"}'))]
    with FaultServer(answers).running() as server:
        asking = chat.Chat(backend(server))
        answer = chat.run(asking.ask(request(reply_schema=Mood), lambda reply: structured(reply, Mood)))
    assert answer.value.mood == "好" and asking.usage.outcomes == {"accepted": 1}
    assert {body["response_format"]["type"] for body in server.bodies} == {"json_schema"}


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("try again after 1 seconds", 1), ("in 1m20.5s. Visit", 80.5), ("retry in 880ms", 0.88),
        ("请在 20 秒后重试", 20), ("1分钟后再试", 60), ('{"retryDelay": "36s"}', 36),
        ('{"retry_after": 1.5}', 1.5), ("wait 2 minutes", 120), ("Limit 6000 tokens per min", None),
    ],
)  # fmt: skip
def test_a_wait_is_read_from_words(words: str, seconds: float | None) -> None:
    assert refusals.asked_wait({}, words) == seconds
    assert refusals.asked_wait({"retry-after": "7"}, words) == 7
    assert refusals.asked_wait({"retry-after": "Sat, 99 Nov 99999 00:00:00 GMT"}, words) == seconds
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert refusals.asked_wait({"retry-after": soon}, words) == pytest.approx(90, abs=2)


def test_a_server_that_hangs_is_told_after_two_retries() -> None:
    with FaultServer(lambda _: Answer(hang=True)).running() as server:
        begun = time.monotonic()
        with pytest.raises(EndpointError, match=r"has not answered .time-out.*raise `timeout_s`"):
            ask(backend(server, timeout_s=0.2), request())
        assert len(server.bodies) == 3 and time.monotonic() - begun < 5


def test_one_request_that_is_refused_or_never_answered_is_left_and_the_others_go_on() -> None:
    def answer(body: dict) -> Answer:
        text = body["messages"][0]["content"]
        if text == "长":
            return Answer(error("context too long"), 413)
        if text == "脏":
            return Answer(error("no", code="content_filter"), 400)
        return Answer(error("busy"), 500) if text == "坏" else Answer(chat_reply("好"), wait_s=0.02)

    with FaultServer(answer).running() as server:
        asked = backend(server)
        replies = ask(asked, *map(request, ("好", "长", "脏", "好")))
        assert [r.finish_reason for r in replies] == ["stop", "rejected", "content_filter", "stop"]
        assert replies[1].text == "413: context too long"
        bad, good = ask(asked, request("坏"), request("好"), at_once=True)
        assert (bad.finish_reason, good.text) == ("failed", "好") and "busy" in bad.text
        with pytest.raises(EndpointError, match="has not answered"):
            ask(asked, request("坏"))
        with pytest.raises(EndpointError, match=r"refuses the request .413."):
            ask(asked, *[request("长")] * endpoint.IN_A_ROW)


# --- addresses, keys, proxies -------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "told"), [("socks9", "ALL_PROXY"), ("socks5", "no connection")])
def test_a_proxy_is_used_but_for_this_machine_and_one_that_fails_is_told_without_its_password(
    scheme, told, monkeypatch
) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    with FaultServer(lambda _: Answer(chat_reply("好"))).running() as server:
        monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
        assert ask(backend("http://models.example/v1"), request())[0].text == "好"
        assert server.headers[-1]["host"] == "models.example"
        monkeypatch.delenv("HTTP_PROXY")
        monkeypatch.setenv("ALL_PROXY", f"{scheme}://me:secret@127.0.0.1:9")
        same = backend(server)  # a notebook has a loop for each cell
        assert [ask(same, request())[0].text for _ in range(2)] == ["好"] * 2 and same._client.is_closed()
    with pytest.raises(EndpointError, match=told) as caught:
        ask(backend("http://models.example/v1"), request())
    assert "secret" not in str(caught.value)
