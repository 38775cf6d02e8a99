"""Backends of the seam in `llm`: authored texts, any OpenAI-compatible endpoint, and scripted replies."""

import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic import BaseModel

from memecmd_utils.llm import ModelId, Reply, Request
from memecmd_utils.profiles import Endpoint

RETRY_STATUS = {408, 409, 425, 429}
MAX_TRIES = 6
MAX_WAIT_S = 60.0
THINK = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


class EndpointError(RuntimeError):
    """The endpoint cannot be used as set up; the message says what to set. It never holds a key."""


class MissingText(LookupError):
    """The authored corpus has no text for a request."""


class AuthoredBackend:
    """Texts of the example corpus, looked up by (task, subject). The prompt does not change them."""

    recordable = False
    source = "authored"
    model = ModelId(name="authored")

    def __init__(self, texts: Mapping[tuple[str, str], str]) -> None:
        self._texts = texts

    async def complete(self, request: Request) -> Reply:
        """Return the authored text; `MissingText` says how to go live."""
        try:
            return Reply(text=self._texts[request.task, request.subject])
        except KeyError:
            raise MissingText(
                f"the example corpus has no {request.task} for {request.subject}. It holds its own memes, "
                "6 news and 6 role dialogues of 18 turns only; for anything else use a live model: "
                "PROFILE=local after `make local-llm`, or PROFILE=openai with a key"
            ) from None

    async def aclose(self) -> None:
        """Nothing to release."""


class ScriptedBackend:
    """Replies from a list or a function, for tests; raises when they run out."""

    source = "scripted"

    def __init__(
        self, replies: Iterable[Reply | str] | Callable[[Request], Reply | str], recordable: bool = True
    ) -> None:
        self.model = ModelId(name="scripted")
        self.recordable = recordable
        self.requests: list[Request] = []
        self._function = replies if callable(replies) else None
        self._replies = None if callable(replies) else iter(replies)

    async def complete(self, request: Request) -> Reply:
        """Return the next reply."""
        self.requests.append(request)
        if self._function is not None:
            reply = self._function(request)
        else:
            try:
                reply = next(self._replies)
            except StopIteration:
                asked = f"{request.task} {request.subject} (request {len(self.requests)})"
                raise RuntimeError(f"scripted replies ran out at {asked}") from None
        return Reply(text=reply) if isinstance(reply, str) else reply

    async def aclose(self) -> None:
        """Nothing to release."""


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema within OpenAI's strict subset: every key required, nothing additional, no formats."""

    def tighten(node: Any) -> Any:
        if isinstance(node, list):
            return [tighten(item) for item in node]
        if not isinstance(node, dict):
            return node
        node = {
            key: tighten(value)
            for key, value in node.items()
            if key not in ("title", "default", "minLength", "maxLength", "minimum", "maximum", "description")
            or isinstance(value, dict)
        }
        if node.get("type") == "object" and "properties" in node:
            node["required"] = list(node["properties"])
            node["additionalProperties"] = False
        return node

    return tighten(model.model_json_schema())


class OpenAIBackend:
    """Any OpenAI-compatible chat endpoint, through the `openai` package's async client.

    One retry layer (ours; the SDK's is off) for 408/409/425/429/5xx, time-outs and broken connections,
    with jittered back-off and `Retry-After`. The form of structured replies is probed once per endpoint:
    JSON schema, else JSON mode, else plain text; the caller's parser checks the reply in every case.
    """

    recordable = True

    def __init__(
        self,
        endpoint: Endpoint,
        model: ModelId | None = None,
        api_key: str | None = None,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        if not endpoint.model:
            raise EndpointError(
                "no model is named: set endpoints.generator.model in the profile, for example "
                "SET=\"endpoints='{generator: {model: gpt-4o-mini}}'\""
            )
        key = api_key or os.environ.get(endpoint.key_env)
        if not key:
            raise EndpointError(
                f"no API key: set the environment variable {endpoint.key_env} (its name is the profile's "
                "`key_env`), or use PROFILE=example, which needs none. A server without keys takes any text"
            )
        self.endpoint = endpoint
        self.model = model or ModelId(name=endpoint.model, label=endpoint.model_label)
        self.source = f"model {self.model}"
        self.retries = 0
        self._key, self._sleep = key, sleep
        self._client: Any = None
        self._loop: Any = None
        self._forms = ["schema", "json", "plain"]

    def _connect(self) -> Any:
        import openai  # 0.8 s, so not at the top

        # A client belongs to the event loop it was first used in; notebooks start one per call.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = openai.AsyncOpenAI(
                api_key=self._key,
                base_url=self.endpoint.base_url,
                timeout=self.endpoint.timeout_s,
                max_retries=0,
            )
            self._loop = loop
        return self._client

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [_wire_message(message) for message in request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "max_tokens": sampling.max_tokens,
            "stop": sampling.stop,
            "seed": request.seed,
        }
        if sampling.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
        if request.reply_schema is not None:
            schema = request.reply_schema
            if self._forms[0] == "schema":
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": schema.__name__, "strict": True, "schema": strict_schema(schema)},
                }
            elif self._forms[0] == "json":
                body["response_format"] = {"type": "json_object"}
        for name, other in self.endpoint.parameters.items():
            value = body.pop(name, None)
            if other and value is not None:
                body[other] = value
        known = {key: value for key, value in body.items() if value is not None}
        return known | ({"extra_body": sampling.extra} if sampling.extra else {})

    async def complete(self, request: Request) -> Reply:
        """Return one reply; transient faults are retried, a wrong key or model raises `EndpointError`."""
        import openai

        client = self._connect()
        for attempt in range(1, MAX_TRIES + 1):
            try:
                raw = await client.chat.completions.create(**self._body(request))
                return _read(raw)
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise EndpointError(
                    f"the endpoint refused the key ({error.status_code}): check {self.endpoint.key_env}"
                ) from None
            except openai.NotFoundError:
                raise EndpointError(
                    f"the endpoint does not know the model {self.endpoint.model!r} (404): check `model` and "
                    "`base_url` of the profile"
                ) from None
            except openai.BadRequestError as error:
                if request.reply_schema is not None and len(self._forms) > 1:
                    self._forms.pop(0)  # this endpoint does not take that form; the next one down
                    continue
                raise EndpointError(f"the endpoint refuses the request (400): {_plain(error)}") from None
            except openai.APIStatusError as error:
                if error.status_code not in RETRY_STATUS and error.status_code < 500:
                    raise EndpointError(f"status {error.status_code}: {_plain(error)}") from None
                last, wait = f"status {error.status_code}", retry_after(error.response.headers)
            except (openai.APIConnectionError, openai.APIError, json.JSONDecodeError, EmptyReply) as error:
                # Time-outs and resets are connection errors; half a body or HTML is a decoding error.
                last, wait = type(error).__name__, None
            if attempt < MAX_TRIES:
                self.retries += 1
                await self._sleep(wait if wait is not None else random.uniform(0.5, 1.0) * 2 ** (attempt - 1))
        raise EndpointError(f"the endpoint did not answer {MAX_TRIES} tries; the last fault was {last}")

    async def aclose(self) -> None:
        """Close the client's connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None


class EmptyReply(ValueError):
    """A reply without choices."""


def _plain(error: Any) -> str:
    """The server's message without headers or request."""
    return str(getattr(error, "message", error))[:300]


def _wire_message(message: Any) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.text}]
    parts += [{"type": "image_url", "image_url": {"url": image.data_url}} for image in message.images]
    return {"role": message.role, "content": parts}


def _read(raw: Any) -> Reply:
    """Turn the SDK's object into a `Reply`. `<think>` blocks are taken out and counted."""
    if isinstance(raw, str) or not getattr(raw, "choices", None):
        raise EmptyReply("no choices")
    choice = raw.choices[0]
    text = choice.message.content or ""
    kept = THINK.sub("", text).strip()
    first = None
    if choice.logprobs and choice.logprobs.content:
        first = {top.token: top.logprob for top in choice.logprobs.content[0].top_logprobs}
    usage = raw.usage
    return Reply(
        text=kept,
        finish_reason=choice.finish_reason or "stop",
        refusal=bool(getattr(choice.message, "refusal", None)),
        tokens_in=usage.prompt_tokens if usage else 0,
        tokens_out=usage.completion_tokens if usage else 0,
        think_characters=len(text) - len(kept) if "<think>" in text else 0,
        first_token=first,
    )


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
    return min(max(seconds, 0.0), MAX_WAIT_S)
