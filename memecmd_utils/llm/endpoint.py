"""Any OpenAI-compatible endpoint, through the `openai` package's async client: one exchange at a time.

Here a request is put into the endpoint's words and its reply or fault is named; tries, waits, caps and
money are the business of `delivery`. No other module reads a key: a profile names the variable that holds
it, addresses must hold none, and what a server repeats of it is blotted out before it is shown or recorded.
"""

import asyncio
import base64
import json
import math
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from memecmd_utils import files
from memecmd_utils.core import machine
from memecmd_utils.llm.messages import (
    Backend,
    EndpointError,
    Image,
    InDoubt,
    Message,
    ModelId,
    Reply,
    Request,
    RequestRejected,
    TransientFault,
)
from memecmd_utils.llm.replies import THINK, strict_schema
from memecmd_utils.settings import Endpoint

T = TypeVar("T")
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
DEFAULT_ADDRESS = "https://api.openai.com/v1"
"""The SDK's own, where neither profile nor environment names one."""
NO_KEY = SecretStr("none")
"""For servers that take any key, and for replaying, which asks nobody."""
SHORTEST_SECRET = 12
"""Shorter keys are words such as `none` or `EMPTY` for servers without keys: they stand in ordinary texts."""
BLOT = "***"


def address(endpoint: Endpoint) -> str | None:
    """The endpoint's address, or that of the SDK's variable, which no profile checks; None: the SDK's own.

    Raises `EndpointError` for one that is none, or that holds a user, a password or a query.
    """
    url = endpoint.base_url or os.environ.get("OPENAI_BASE_URL") or None
    if url is not None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or not url.isprintable() or set(url) & set("@?# "):
            name = "base_url" if endpoint.base_url else "OPENAI_BASE_URL"
            raise EndpointError(f"{name} must be an http(s) address without user, password or query")
    return url


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
        raise EndpointError(f"what stands in {endpoint.key_env} is not an API key: it has odd characters")
    return key


class KeyGuard:
    """Knows one key in the forms in which it travels: as it is, quoted for a URL, in base64 and in hex."""

    def __init__(self, key: SecretStr) -> None:
        plain = key.get_secret_value()
        self._forms: list[str] = []
        if len(plain) < SHORTEST_SECRET:
            return
        raw = plain.encode()
        # What stands before the key in an encoded text shifts it by none, one or two bytes.
        shifted = [base64.b64encode(bytes(n) + raw).decode().rstrip("=") for n in range(3)]
        inner = [text[start : len(text) - 1] for text, start in zip(shifted, (0, 2, 3), strict=True)]
        self._forms = [plain, quote(plain, safe=""), shifted[0], *inner, raw.hex()]

    def __repr__(self) -> str:
        return "KeyGuard(...)"

    def blot(self, text: str) -> str:
        """`text` without the key. Cheap, for every reply."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, BLOT)
        return text

    def message(self, text: str) -> str:
        """A server's message without the key, or a word in its place where a piece of the key remains."""
        text, n = self.blot(text), SHORTEST_SECRET
        pieces = (form[i : i + n] for form in self._forms for i in range(len(form) - n + 1))
        return "(not shown: it repeats the key)" if any(piece in text for piece in pieces) else text


def client_options(endpoint: Endpoint) -> dict[str, Any]:
    """How a client of the SDK reaches an endpoint; a server on this machine never stands behind a proxy.

    The proxy is chosen here: the SDK's libraries would take offence at variables that they do not know, also
    where these are not for this address.
    """
    import urllib.request  # which loads TLS: a start without a network does without

    try:
        proxy = None if is_local(endpoint) else machine.proxy_for(address(endpoint) or DEFAULT_ADDRESS)
    except machine.ProxyError as error:
        raise EndpointError(str(error)) from error
    others = set(urllib.request.getproxies()) & {"http", "https", "all"}
    return {"proxy": proxy, "trust_env": not is_local(endpoint) and (proxy is not None or not others)}


def wire_message(message: Message) -> dict[str, Any]:
    """A message as the API takes it; images go as data URLs."""
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.text}]
    parts += [{"type": "image_url", "image_url": {"url": image.load()}} for image in message.images]
    return {"role": message.role, "content": parts}


CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs: they cannot be written or shown."""
FINISHED = {
    "", "null", "none", "stop", "stop_sequence", "stop_token", "eos", "eos_token", "endoftext", "end_of_text",
    "end", "end_turn", "complete", "completed", "finish", "finished", "done", "normal",
}  # fmt: skip
"""Finish reasons of a whole reply, as servers write them: nothing at all, OpenAI's word, a stop word or the
end of the text reached (TGI, Together, AI21), Anthropic's, Cohere's and Titan's words, Qianfan's `normal`."""
FILTERED = re.compile(
    "filter|safety|sensitive|moderat|blocklist|prohibited|toxic|guardrail|recitation|spii|inspection|"
    "policy|policies|violation"
)
"""Finish reasons of a content filter: OpenAI, Zhipu, Gemini, Cohere, Bedrock, DashScope."""


class EmptyReply(ValueError):
    """A reply without a message."""


def read_reply(body: Any) -> Reply:
    """Turn the body of a chat completion into a `Reply`. `<think>` blocks are taken out and counted.

    Raises `EmptyReply` for a body that is no chat completion, also an error sent with status 200.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise EmptyReply("no choices")
    text = message.get("content")
    if isinstance(text, list):  # some servers send parts, as in requests
        text = "".join(str(part.get("text") or "") for part in text if isinstance(part, dict))
    if not isinstance(text, str | None):
        raise EmptyReply("no text")
    text = CONTROL.sub("", text or "")
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    finish = _finish_reason(choice.get("finish_reason"))
    return Reply(
        text=THINK.sub("", text).strip(),
        finish_reason="stop" if finish == "refusal" else finish,
        refusal=bool(message.get("refusal")) or finish == "refusal",
        tokens_in=_count(usage.get("prompt_tokens")),
        tokens_out=_count(usage.get("completion_tokens")),
        think_characters=sum(len(block.group()) for block in THINK.finditer(text))
        + (len(thought) if isinstance(thought, str) else 0),
        first_token=_first_token(choice.get("logprobs")),
    )


def _finish_reason(value: Any) -> str:
    """`stop`, `content_filter`, `refusal` or, for whatever else a server may say, `length`: a cut."""
    if value is None:
        return "stop"
    if not isinstance(value, str):
        return "length"
    word = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_").removeprefix("finish_reason_")
    if word in FINISHED:
        return "stop"
    if word == "refusal":
        return "refusal"
    return "content_filter" if FILTERED.search(word) else "length"


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0


def _first_token(logprobs: Any) -> dict[str, float] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(content, list) and content and isinstance(content[0], dict)):
        return None
    tops = content[0].get("top_logprobs")
    return {
        CONTROL.sub("", str(top["token"])): min(float(top["logprob"]), 0.0)
        for top in (tops if isinstance(tops, list) else [])
        if isinstance(top, dict) and "token" in top and _is_logprob(top.get("logprob"))
    }


def _is_logprob(value: Any) -> bool:
    # At most 0 but for rounding; infinities and what is not a number cannot be written as JSON.
    return isinstance(value, int | float) and -1e6 < value < 1.0


MAX_WAIT_S = 60.0


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait (`Retry-After` as seconds or as a date), at most a minute."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_WAIT_S)


RETRY_STATUS = {408, 409, 425, 429}
FORM_STATUS = {400, 422}
"""How servers say that they do not know a form of structured replies."""
SET_UP_STATUS = {401, 402, 404, 405}
"""Key, money, model, address. Any other 4xx may be for the request's own sake: its length, a moderation."""
FILTER_CODE = re.compile(
    "content_?(?:filter|policy|moderation)|data_?inspection|moderat|sensitive|responsible_?ai", re.IGNORECASE
)
"""Some services tell of a content filter by a status instead of a reply."""
FORMS = ["schema", "json", "plain"]
"""Of structured replies, the surest first."""
MAPPED = {"max_tokens", "temperature", "top_p", "presence_penalty", "seed", "stop", "logprobs"}
OUT_OF_MONEY = {"insufficient_quota", "billing_hard_limit_reached"}
REJECTED_IN_A_ROW = 10
"""Requests of one task: by then a neutral request has to show that it is not the set-up."""
NEUTRAL = "neutral request"
"""Subject of a request that nobody refuses for what it says."""
NEUTRAL_TEXT = 'Reply with this JSON object: {"ok": true}'
NEUTRAL_SIDE = 64
"""Pixels of a neutral picture: some servers refuse smaller ones than 28."""
EVENTS = re.compile(r"\ufeff?\s*(?:(?:event|id|retry)?:[^\n]*\n\s*)*data:")
"""How a stream of events begins (`text/event-stream`), also behind comments that only keep it open."""
STREAM = "a stream of events instead of one reply"
NO_STREAM = "replies are not streamed here: take a server or a model that answers in one piece"
SAMPLE_STRIDE = 1000  # seeds of sample n + 1 begin after those of the further attempts of sample n


@dataclass(frozen=True)
class Refusal:
    """What came with an error status, without the key."""

    status: int
    message: str
    code: str = ""
    parameter: str = ""
    """Name of the parameter that is to blame, where the endpoint names one."""
    wait_s: float | None = None


class UnknownForm(Exception):
    """The endpoint does not know this form of structured replies."""


class Filtered(Exception):
    """The service's content filter stopped the request."""


class OnePerLoop(Generic[T]):
    """What one event loop uses, from its first use to the loop's end; notebooks start a loop per call."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._loop: asyncio.AbstractEventLoop | None = None
        self.current: T | None = None

    async def get(self) -> T:
        """Return that of the running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._keeper = self._until_loop_ends()
            self.current = await anext(self._keeper)  # waits for nothing
            self._loop = loop
        return self.current

    async def _until_loop_ends(self) -> AsyncIterator[T]:
        # `asyncio.run` closes all open generators at once, so none may hold another one.
        one = self._make()
        try:
            yield one
        finally:
            self._loop = self.current = None
            await self._close(one)


class OpenAIBackend(Backend):
    """One endpoint and model.

    The form of structured replies is probed once per endpoint: JSON schema, else JSON mode, else plain
    text; the caller's parser checks the reply in every case.
    """

    path = "/chat/completions"
    forms = FORMS

    def __init__(
        self,
        endpoint: Endpoint,
        model: ModelId | None = None,
        key: SecretStr | None = None,
        repeats: bool = False,
    ) -> None:
        if not endpoint.model:
            raise EndpointError(
                "no model is named: set endpoints.generator.model in the profile, for example "
                "SET=\"endpoints='{generator: {model: gpt-4o-mini}}'\""
            )
        self._key = key or api_key(endpoint)
        self.guard = KeyGuard(self._key)
        address(endpoint)
        self.endpoint, self.repeats = endpoint, repeats
        self.model = model or ModelId(name=endpoint.model, label=endpoint.model_label)
        self.source = f"model {self.model}"
        self.dropped = endpoint.dropped
        self._clients = OnePerLoop(self._client, lambda client: client.close())
        self._forms = list(self.forms)
        self._works = False
        self._proven_ways: set[str] = set()
        """Ways of asking that the endpoint takes, see `way`."""
        self._rejected: Counter[str] = Counter()

    async def connect(self) -> Any:
        """Return the SDK's client for this event loop."""
        return await self._clients.get()

    def _client(self) -> Any:
        files.need_live_extra("an endpoint")
        import openai  # 0.8 s, so not at the top

        fault, options = "", client_options(self.endpoint)
        try:
            # Over aiohttp a call takes two thirds of the CPU time that the SDK's default transport takes.
            return openai.AsyncOpenAI(
                api_key=self._key.get_secret_value(),
                base_url=address(self.endpoint),
                timeout=self.endpoint.timeout_s,
                max_retries=0,
                http_client=openai.DefaultAioHttpClient(**options),
            )
        except Exception as error:
            fault = type(error).__name__
        # Outside of the handler: the SDK's frames hold the key as an argument.
        raise EndpointError(f"no client can be made for this endpoint ({fault}): check `base_url`")

    def form(self, request: Request) -> str:
        """How a structured reply is asked for now: `schema`, `json` or `plain`."""
        if request.reply_schema is None:
            return "plain"
        if self._forms[0] == "schema" and strict_schema(request.reply_schema) is None:
            return "json"
        return self._forms[0]

    def body(self, request: Request) -> dict[str, Any]:
        """The request as the endpoint takes it, after its parameter map."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [wire_message(message) for message in request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "max_tokens": sampling.max_tokens,
            "stop": sampling.stop,
            "seed": None if request.seed is None else request.seed + SAMPLE_STRIDE * request.sample,
        }
        if sampling.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
        schema, form = request.reply_schema, self.form(request)
        if form == "schema":
            strict = {"name": schema.__name__[:64], "strict": True, "schema": strict_schema(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": strict}
        elif form == "json":
            body["response_format"] = {"type": "json_object"}
        body |= sampling.extra
        for name, other in self.endpoint.parameters.items():
            value = body.pop(name, None)
            if other and value is not None:
                body[other] = value
        return {key: value for key, value in body.items() if value is not None}

    async def complete(self, request: Request) -> Reply:
        """Make one exchange; step down the ladder of forms where the endpoint does not know one."""
        client = await self.connect()
        while True:
            form, body = self.form(request), self.body(request)
            outcome = await self._exchange(client, request, form, body)
            # Raised out of reach of the SDK's faults, whose headers hold the key.
            if isinstance(outcome, UnknownForm):
                # Of requests sent side by side, which all come back, only the first takes the step.
                if form in self._forms:
                    self._forms = self._forms[self._forms.index(form) + 1 :]
            elif isinstance(outcome, Filtered):
                return Reply(text="", finish_reason="content_filter")
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                self.note_success(request, form)
                return self._without_key(outcome)

    async def _exchange(
        self, client: Any, request: Request, form: str, body: dict[str, Any]
    ) -> Reply | Exception:
        """The reply, or what went wrong by its name."""
        import openai

        try:
            # The SDK's own limit is one for each silence, which a server that sends blank lines never
            # meets. `post` gives the parsed JSON as it is: building the SDK's objects would take as long
            # as all the rest of a call.
            async with asyncio.timeout(self.endpoint.timeout_s):
                answer = await client.post(self.path, body=body, cast_to=object)
            if isinstance(answer, str):  # the SDK leaves it as text where the content type is not JSON's
                answer = json.loads(answer.removeprefix("\ufeff"))
            return self.read(answer, request)
        except openai.APIStatusError as error:
            return self.name_status(self.refusal_of(error), request, form)
        except json.JSONDecodeError as error:
            if not EVENTS.match(error.doc):
                return name_fault(error)
            if self._works:
                return TransientFault(STREAM, paid=True)
            return EndpointError(f"the endpoint answers with {STREAM}; {NO_STREAM}", paid=True)
        except Exception as error:  # a library's complaint, with frames that hold the key
            return name_fault(error)

    def read(self, answer: Any, request: Request) -> Reply:
        """What the endpoint answered, from its JSON."""
        return read_reply(answer)

    def note_success(self, request: Request, form: str) -> None:
        """Note that the endpoint took this request, which was sent in `form`."""
        self._works = True
        self._rejected[request.task] = 0
        self._proven_ways.add(self.way(request, form))

    def way(self, request: Request, form: str) -> str:
        """How a request is put, whatever it says: form and schema, roles, pictures, names of parameters."""
        sampling = request.sampling.model_dump(exclude_none=True, exclude_defaults=True)
        names = {*sampling, *sampling.pop("extra", {})} - {"extra"} - self.dropped
        if request.seed is not None and "seed" not in self.dropped:
            names.add("seed")
        names |= {message.role for message in request.messages}
        if any(message.images for message in request.messages):
            names.add("picture")
        asked = form if form != "schema" else f"schema {request.reply_schema.__name__}"
        return " ".join([asked, *sorted(names)])

    def neutral(self, request: Request) -> Request:
        """A tiny request put like another one, of which nothing can be refused but how it is put."""
        picture = Image(image_id=NEUTRAL, load=_white_square)
        messages = [
            Message(role=message.role, text=NEUTRAL_TEXT, images=[picture] if message.images else [])
            for message in request.messages
        ]
        return request.model_copy(update={"messages": messages, "subject": NEUTRAL})

    def refusal_of(self, error: Any) -> Refusal:
        """What the SDK's exception for an error status says."""
        parameter = error.body.get("param") if isinstance(error.body, dict) else None
        return Refusal(
            error.status_code,
            self.redacted(error.message),
            str(error.code or ""),
            parameter if isinstance(parameter, str) else "",
            retry_after(error.response.headers),
        )

    def redacted(self, message: str) -> str:
        """The server's message, in which it may have put the key."""
        return self.guard.message(CONTROL.sub("", str(message)))[:300]

    def name_status(self, refusal: Refusal, request: Request, form: str) -> Exception:
        """Say what an error status means for a request sent in `form`, as the exception to raise."""
        status, message, is_neutral = refusal.status, refusal.message, request.subject == NEUTRAL
        if status < 500 and status != 429 and FILTER_CODE.search(refusal.code) and not is_neutral:
            return Filtered()
        if status == 404:
            return EndpointError(
                f"the endpoint does not know the model {self.endpoint.model!r} (404): check `model` and "
                "`base_url` of the profile"
            )
        if refusal.code in OUT_OF_MONEY:
            return EndpointError(f"the account has no credit left ({status}): {message}")
        if status in RETRY_STATUS or status >= 500:
            return TransientFault(f"status {status}", refusal.wait_s, limited=status == 429)
        # Others may have given the form up meanwhile; of a neutral request only the form can be refused.
        if status in FORM_STATUS and (form not in self._forms or (is_neutral and form != "plain")):
            return UnknownForm()
        if 400 <= status < 500 and status not in SET_UP_STATUS and not is_neutral:
            way = self.way(request, form)
            proven = way in self._proven_ways
            self._rejected[request.task] += proven
            if proven and self._rejected[request.task] < REJECTED_IN_A_ROW:
                return RequestRejected(f"{status}: {message}")
            return InDoubt(f"{status}: {message}", self.neutral(request), way)
        if status in (401, 403):
            return EndpointError(f"the endpoint refused the key ({status}): check {self.endpoint.key_env}")
        hint = f"; {NO_STREAM}" if re.search(r"\bstream", message, re.IGNORECASE) else ""
        if refusal.parameter in MAPPED:
            other = "max_completion_tokens" if refusal.parameter == "max_tokens" else "null"
            hint = (
                f"; to leave out or rename it: `parameters: {{{refusal.parameter}: {other}}}` of the endpoint"
            )
        return EndpointError(f"the endpoint refuses the request ({status}): {message}{hint}")

    def _without_key(self, reply: Reply) -> Reply:
        """The reply, in which the server may have put the key: replies are recorded."""
        tops = reply.first_token and {self.guard.blot(word): p for word, p in reply.first_token.items()}
        text = self.guard.blot(reply.text)
        if text != reply.text or tops != reply.first_token:
            return reply.model_copy(update={"text": text, "first_token": tops})
        return reply

    async def alive(self, within_s: float) -> bool:
        """Whether the endpoint answers a request for the list of its models, with whatever."""
        import openai

        client = (await self.connect()).with_options(timeout=within_s, max_retries=0)
        try:
            async with asyncio.timeout(within_s):
                await client.get("/models", cast_to=object)
        except (openai.APIConnectionError, TimeoutError):
            return False
        except Exception:  # whatever cannot be read was sent by somebody
            return True
        return True


@lru_cache(maxsize=1)
def _white_square() -> str:
    from PIL import Image as Picture

    from memecmd_utils import pictures

    return pictures.picture_url(Picture.new("RGB", (NEUTRAL_SIDE, NEUTRAL_SIDE), "white"), "PNG")


def name_fault(error: BaseException) -> TransientFault:
    """Name a fault that is no answer of the endpoint.

    Where no connection was made nothing was sent. Anything else may be paid for: also what cannot be read,
    such as half a body, HTML, broken HTTP, or nesting and numbers without end.
    """
    import aiohttp
    import openai
    from aiohttp.http_exceptions import HttpProcessingError

    # The libraries call a broken connection a time-out, so what it was stands further down the chain.
    broken = (aiohttp.ClientPayloadError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
    kind, step = "", error
    while step is not None and not kind:
        if isinstance(step, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return TransientFault("no connection")
        if isinstance(step, aiohttp.ClientHttpProxyError):
            return TransientFault(f"the proxy answered with status {step.status}")
        if isinstance(step, (*broken, ConnectionError)):
            kind = "broken connection"
        elif isinstance(step, aiohttp.ClientResponseError | HttpProcessingError):
            kind = "malformed HTTP"
        elif isinstance(step, TimeoutError):
            kind = "time-out"
        step = step.__cause__ or step.__context__
    if not kind:
        inner = error.__cause__ if isinstance(error, openai.APIConnectionError) else None
        kind = f"unreadable body ({type(inner or error).__name__})"
    return TransientFault(kind, paid=True)
