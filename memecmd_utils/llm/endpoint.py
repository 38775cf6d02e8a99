"""Any OpenAI-compatible endpoint, through the `openai` package, which sends failed requests again.

No other module reads a key: a profile names the variable that holds it, addresses must hold none, and what
a server repeats of it is replaced before it is shown or recorded.
"""

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import SecretStr

from memecmd_utils import files
from memecmd_utils.llm import chat, refusals
from memecmd_utils.llm.pace import Stopped, pace_of
from memecmd_utils.llm.refusals import Refusal
from memecmd_utils.llm.replies import CONTROL, strict_schema, without_thoughts
from memecmd_utils.llm.spending import Budget
from memecmd_utils.llm.types import Backend, EndpointError, Message, ModelId, Reply, Request
from memecmd_utils.settings import Endpoint, checked_address

T = TypeVar("T")
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
NO_KEY = SecretStr("none")
"""For servers that take any key, and for replaying, which asks nobody."""
SHORTEST_SECRET = 12
"""Shorter keys are words such as `none` or `EMPTY` for servers without keys: they stand in ordinary texts."""
CONNECT_S = 5.0
RETRIES = 2, 10
"""Of one request: before anything came from the endpoint, and after. Where a fifth of all calls fails, ten
retries give up one call in fifty million."""
NO_RETRY = "x-should-retry", "false"
"""A response's header that the SDK heeds."""
IN_A_ROW = 10
"""Refusals, or replies that are no completions, that show it to be the set-up that is wrong."""
FORMS = ["schema", "json", "plain"]
"""How a structured reply is asked for, the surest first."""
FINISHES = {
    "content_filter": re.compile(
        "filter|safety|sensitive|moderat|blocklist|prohibited|toxic|guardrail|recitation|spii|inspection|"
        "policy|policies|violation"
    ),
    "length": re.compile("length|max|limit|trunc|cut|incomplete|error|abort|cancel|insufficient"),
}
"""Finish reasons of a content filter and of a cut, as servers write them; all others say that it is whole."""


class Refused(EndpointError):
    """The endpoint refuses a request with an error status that asking again does not mend."""

    def __init__(self, message: str, meant: Refusal) -> None:
        super().__init__(message)
        self.meant = meant


class GaveUp(EndpointError):
    """No answer came to a request, however often it was sent."""


def address(endpoint: Endpoint) -> str | None:
    """The endpoint's address, or that of the SDK's variable, which no profile checks; None: the SDK's own.

    Raises `EndpointError` for a variable that is empty or holds no address, or one with a key in it.
    """
    url = os.environ.get("OPENAI_BASE_URL")
    if endpoint.base_url is not None or url is None:
        return endpoint.base_url
    try:
        return checked_address(url)
    except ValueError as error:
        told = f"OPENAI_BASE_URL {error}: correct it, unset it, or give `base_url` of the endpoint"
        raise EndpointError(told) from None


def is_local(endpoint: Endpoint) -> bool:
    """Whether the endpoint is a server on this machine."""
    url = address(endpoint)
    return url is not None and urlsplit(url).hostname in LOOPBACK


def api_key(endpoint: Endpoint) -> SecretStr:
    """Read the key from the variable that the profile names; `EndpointError` says what to set."""
    key = SecretStr((os.environ.get(endpoint.key_env) or "").strip())
    plain = key.get_secret_value()
    if not plain:
        raise EndpointError(
            f"no API key: set the environment variable {endpoint.key_env} (its name is the profile's "
            "`key_env`), or use PROFILE=example, which needs none. A server without keys takes any text"
        )
    if not plain.isascii() or not plain.isprintable() or " " in plain:
        plain = ""  # a traceback may show variables
        raise EndpointError(f"the value of {endpoint.key_env} is not an API key: it has odd characters")
    return key


class OpenAIBackend(Backend):
    """One endpoint and model. A structured reply is asked for by its JSON schema, else in JSON mode, else in
    plain text, as far down as the endpoint makes necessary; the caller's parser checks it in every case.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: ModelId | None = None,
        key: SecretStr | None = None,
        repeats: bool = False,
        max_rpm: int | None = None,
    ) -> None:
        if not endpoint.model:
            raise EndpointError(
                "no model is named: set endpoints.generator.model in the profile, for example "
                "SET=\"endpoints='{generator: {model: gpt-4o-mini}}'\""
            )
        self._key = key or api_key(endpoint)
        if key is None:  # a replay asks nobody
            address(endpoint)
        self.endpoint, self.repeats = endpoint, repeats
        self.model = model or ModelId(name=endpoint.model, label=endpoint.model_label)
        self.source = f"model {self.model}"
        self.answered = 0
        """Completions that came."""
        self._heard = False
        """Whether anything came from the endpoint."""
        self._form: str | None = None
        """The surest form of structured replies that the endpoint has taken."""
        self._in_a_row = 0
        """Requests refused since the last answer, or replies before the first one that were no completion."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pace = pace_of(endpoint.base_url, endpoint.key_env, max_rpm)

    async def complete(self, request: Request) -> Reply:
        """Return the reply, or one whose `finish_reason` says why there is none (see `Backend`)."""
        before, forms = self.answered, self.forms(request)
        for form in forms:
            try:
                answer = await self.post("/chat/completions", self.body(request, form))
                break
            except GaveUp as given_up:
                if self.answered == before:  # nobody else had an answer either
                    raise
                return Reply(text=str(given_up), finish_reason="failed")
            except Refused as refused:
                meant = refused.meant
                if meant.kind == "filter":
                    return Reply(text="", finish_reason="content_filter")
                if meant.kind == "json":  # by chance, and asking again brings some
                    return Reply(text=meant.reason)
                if meant.status in (400, 422) and form != forms[-1]:
                    continue
                self._in_a_row += 1
                if not self.answered or self._in_a_row >= IN_A_ROW:
                    raise
                return Reply(text=f"{meant.status}: {meant.reason}", finish_reason="rejected")
        reply = read_reply(answer)
        if reply.finish_reason == "length" and reply.think_characters and not reply.text:
            limit = self.endpoint.extra_body.get("max_tokens", request.sampling.max_tokens)
            reply.no_text = (
                f"the model spent its {limit} tokens on thought ({reply.think_characters:,} characters): "
                "`extra_body: {max_tokens: 4000}` of the endpoint gives it more, or its own parameter there "
                "switches thinking off"
            )
        if reply.finish_reason != "lost":
            self.answered, self._in_a_row = self.answered + 1, 0
            self._form = form if request.reply_schema else self._form
        elif not self.answered:
            self._in_a_row += 1
            if self._in_a_row >= IN_A_ROW:
                shown = self.shown(answer if isinstance(answer, str) else json.dumps(answer))
                raise EndpointError(f"what {self._where} sends is not a chat completion: {shown}")
        return reply

    def forms(self, request: Request) -> list[str]:
        """The forms in which a reply to this request may be asked for, the surest first."""
        if request.reply_schema is None:
            return ["plain"]
        forms = FORMS if strict_schema(request.reply_schema) is not None else FORMS[1:]
        return [self._form] if self._form in forms else forms

    def body(self, request: Request, form: str) -> dict[str, Any]:
        """The request as the endpoint takes it, after its parameter map."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [wire_message(message) for message in request.messages],
            **sampling.model_dump(exclude={"extra", "top_logprobs"}),
            "seed": request.seed,
        }
        if sampling.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
        if form == "schema":
            schema = strict_schema(request.reply_schema)
            strict = {"name": request.reply_schema.__name__[:64], "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": strict}
        elif form == "json":
            body["response_format"] = {"type": "json_object"}
        body |= sampling.extra | self.endpoint.extra_body
        for name, other in self.endpoint.parameters.items():
            value = body.pop(name, None)
            if other and value is not None:
                body[other] = value
        return {key: value for key, value in body.items() if value is not None}

    # --- the line to the server -----------------------------------------------------------------------

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The parsed answer to a request, or its text where it is no JSON. Errors are those of `using`."""
        text = await self.using(lambda c, options: c.post(path, body=body, cast_to=str, options=options))
        try:
            return json.loads(self.blotted(text))
        except (ValueError, RecursionError):
            return text

    async def using(self, work: Callable[[Any, Any], Awaitable[T]]) -> T:
        """What `work` brings of the SDK's client and the options of a request.

        The SDK sends a request again where that may help. Raises `Refused`, `GaveUp`, or `EndpointError`
        where key, model or account have to be seen to first; none hangs on the SDK's frames, which hold
        the key.
        """
        client, heard, is_last = await self._connected(), self._heard, False
        import openai

        try:
            return await work(client, {"max_retries": RETRIES[heard]})
        except Stopped:
            fault = self.fault
        except openai.APIStatusError as error:
            fault, is_last = self._named(error), error.response.headers.get(NO_RETRY[0]) == NO_RETRY[1]
        except openai.APITimeoutError:
            fault = self._gave_up("time-out", "Where it is only slow, raise `timeout_s` of the endpoint")
        except openai.APIConnectionError as error:
            fault = self._gave_up(f"no connection, or a broken one: {self.shown(str(error.__cause__))}")
        if isinstance(fault, GaveUp) and self._heard > heard and not is_last:
            return await self.using(work)  # it is there and only ill: that gets more tries
        raise fault.with_traceback(None)

    def _named(self, error: Any) -> EndpointError:
        """What an error status means, with the server's own words."""
        status, kind, reason, _ = error.response.extensions["meant"]
        reason = self.shown(reason)
        if kind == "credit":
            return EndpointError(f"the account has no credit left ({status}): {reason}")
        if kind == "model":
            return EndpointError(
                f"{self._where} does not know the model {self.endpoint.model!r} ({status}): check `model` "
                f"and `base_url` of the profile. It says: {reason}"
            )
        if kind == "key" or (status == 403 and kind != "filter" and not self.answered):
            return EndpointError(
                f"the endpoint refused the key ({status}): check {self.endpoint.key_env}. It says: {reason}"
            )
        if kind == "busy":
            limit = "Where it takes so many calls a minute, `max_rpm` keeps to that" if status == 429 else ""
            return self._gave_up(f"status {status}: {reason}", limit)
        message = f"the endpoint refuses the request ({status}): {reason}"
        if status in (400, 422):
            message += (
                ". Where that is about a parameter: the endpoint's `parameters: {NAME: null}` leaves it out, "
                "`parameters: {NAME: OTHER}` renames it, and `extra_body: {NAME: VALUE}` adds one"
            )
        return Refused(message, Refusal(status, kind, reason))

    @property
    def _where(self) -> str:
        return f"the endpoint {address(self.endpoint) or 'api.openai.com'}"

    def _gave_up(self, kind: str, advice: str = "") -> GaveUp:
        told = f"{self._where} has not answered ({kind}). What was accepted is recorded: run again to go on"
        return GaveUp(". ".join(filter(None, (told, advice))))

    def shown(self, text: str) -> str:
        """A server's words as a message shows them: one line of plain text, without the key."""
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", CONTROL.sub("", text), flags=re.S | re.I)
        return self.blotted(" ".join(text.split()))[:300]

    def blotted(self, text: str) -> str:
        """`text` without the key, which a server may repeat."""
        plain = self._key.get_secret_value()
        return text.replace(plain, "***") if len(plain) >= SHORTEST_SECRET else text

    async def _connected(self) -> Any:
        """The SDK's client of the running event loop; notebooks start a loop for every call."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._open = self._client_until_loop_ends()
            self._client, self._loop = await anext(self._open), loop
        return self._client

    async def _client_until_loop_ends(self) -> AsyncIterator[Any]:
        import openai  # 0.8 s, so not at the top

        try:  # no proxy stands before a server on this machine
            line = openai.DefaultAsyncHttpxClient(trust_env=not is_local(self.endpoint))
        except ValueError:
            raise EndpointError("check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY: not an address") from None
        # A transport of our own in its place would do without the environment's proxies.
        line.send = partial(self._exchange, line.send, asyncio.Lock())
        timeout = openai.Timeout(self.endpoint.timeout_s, connect=CONNECT_S)
        key, url = self._key.get_secret_value(), address(self.endpoint)
        async with openai.AsyncOpenAI(api_key=key, base_url=url, timeout=timeout, http_client=line) as client:
            yield client  # `asyncio.run` closes all open generators

    async def _exchange(self, send: Any, queue: asyncio.Lock, request: Any, **options: Any) -> Any:
        """One request of the SDK when its turn comes, and its response, with the status that it means.

        After a 429 the pace waits and the request goes to the end of the queue.
        """
        is_again, goes_on = request.headers.get("x-stainless-retry-count", "0") != "0", True
        while goes_on:
            sent, meant = await self.pace.turn(queue, lambda: self.fault is not None), Refusal(0)
            self.tried_again, is_again = self.tried_again + is_again, True
            try:
                response = await send(request, **options)
                has_body = response.is_error or not options.get("stream")
                text = (await response.aread()).decode(errors="replace") if has_body else ""
                meant = refusals.read(response.status_code, response.headers, text)
            finally:
                goes_on = self.pace.ended(sent, meant) and meant.kind != "credit"
        self._heard = True
        response.status_code, response.extensions["meant"] = meant.status, meant
        if meant.status == 429 or meant.kind == "credit":  # money does not come by itself
            response.headers[NO_RETRY[0]] = NO_RETRY[1]
        return response


def wire_message(message: Message) -> dict[str, Any]:
    """A message as the API takes it; images go as data URLs."""
    pictures = [{"type": "image_url", "image_url": {"url": image.load()}} for image in message.images]
    parts = [{"type": "text", "text": message.text}, *pictures]
    return {"role": message.role, "content": parts if pictures else message.text}


def read_reply(body: Any) -> Reply:
    """Turn the body of a chat completion into a `Reply`, without thoughts and control tokens.

    A body that is not a chat completion, also an error sent with status 200, is a `lost` reply.
    """
    try:
        choice, usage = body["choices"][0], body.get("usage") or {}
        message = choice["message"]
        calls = message.get("tool_calls") or [{"function": {"arguments": ""}}]
        text = message.get("content") or calls[0]["function"]["arguments"]  # some call a tool named `json`
        if isinstance(text, list):  # some servers send parts, as in requests
            text = "".join(str(part.get("text") or "") for part in text)
        text = CONTROL.sub("", text)
        thought = str(message.get("reasoning_content") or message.get("reasoning") or "")
        reply = without_thoughts(text)
        tops = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
        first_token = {
            CONTROL.sub("", str(top["token"])): float(top["logprob"])
            for top in tops
            if -1e6 < top["logprob"] < 1.0  # at most 0 but for rounding; infinities are no JSON
        }
        finish = re.sub(r"[^a-z]+", "_", str(choice.get("finish_reason") or "stop").lower())
        return Reply(
            text=reply,
            finish_reason=next((n for n, w in FINISHES.items() if w.search(finish)), "stop"),
            refusal=bool(message.get("refusal")) or finish == "refusal",
            tokens_in=usage.get("prompt_tokens") or 0,
            tokens_out=usage.get("completion_tokens") or 0,
            think_characters=len(text.strip()) - len(reply) + len(thought),
            first_token=first_token or None,
        )
    except (TypeError, KeyError, IndexError, AttributeError, ValueError):
        return Reply(text="", finish_reason="lost")


# --- vectors of texts -----------------------------------------------------------------------------------

Side = Literal["query", "document"]
"""Which of both a text is: some models put another word before each."""
INPUTS = 32
"""Texts of one request: what servers take at least unless they are set up otherwise."""


class EndpointEmbedder:
    """Any `/v1/embeddings` endpoint, held against the caps of `budget`."""

    def __init__(
        self,
        endpoint: Endpoint,
        query_instruction: str | None = None,
        concurrency: int = 8,
        max_rpm: int | None = None,
    ) -> None:
        """`query_instruction` goes before queries only; `concurrency` requests are under way at a time."""
        added = files.dumps(endpoint.extra_body).encode()
        self.name = f"{endpoint.model}@{endpoint.model_label}"
        if endpoint.extra_body:
            self.name += f"-{hashlib.sha256(added).hexdigest()[:8]}"
        self.endpoint, self.query_instruction, self.budget = endpoint, query_instruction, Budget()
        self.concurrency, self.batch, self.max_rpm = concurrency, concurrency * INPUTS, max_rpm

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode, shape [n, dim], in requests of at most `INPUTS` texts; `batch` texts keep all of them busy.

        Raises `EndpointError`, which says what to set, and `BudgetReached`.
        """
        before = (self.query_instruction or "") if side == "query" else ""
        return chat.run(self._encode([before + text for text in texts]))

    def key(self) -> SecretStr:
        """The key, which a server with an address of its own may not need. Raises `EndpointError`."""
        is_free = address(self.endpoint) is not None and not os.getenv(self.endpoint.key_env)
        return NO_KEY if is_free else api_key(self.endpoint)

    async def _encode(self, texts: list[str]) -> np.ndarray:
        backend = OpenAIBackend(self.endpoint, key=self.key(), max_rpm=self.max_rpm)
        parts = (texts[start : start + INPUTS] for start in range(0, len(texts), INPUTS))
        asking = chat.Chat(backend, concurrency=self.concurrency)
        return np.concatenate(await asking.side_by_side(self._rows(backend, part) for part in parts))

    async def _rows(self, backend: OpenAIBackend, texts: list[str]) -> np.ndarray:
        """The vectors of one request; an answer that did not arrive whole is asked for again."""
        messages = [Message(role="user", text=text) for text in texts]
        for _ in range(1 + chat.LOST_IN_A_ROW):
            async with self.budget.call(Request(task="embedding", subject="", messages=messages)) as pay:
                body = {"model": self.endpoint.model, "input": texts, **self.endpoint.extra_body}
                answer = await backend.post("/embeddings", body)
                usage = answer.get("usage") if isinstance(answer, dict) else None
                pay(Reply(text="", tokens_in=(usage or {}).get("prompt_tokens") or 0))
            try:
                items = sorted(answer["data"], key=itemgetter("index"))
                rows = np.array([item["embedding"] for item in items], dtype=np.float32)
            except (TypeError, KeyError, ValueError):
                continue
            if rows.ndim == 2 and len(rows) == len(texts) and rows.size and np.isfinite(rows).all():
                return rows
        raise EndpointError(f"{self.endpoint.model} gives no vectors: is it a model for embeddings?")
