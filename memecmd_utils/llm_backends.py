"""Backends of the seam in `llm`: authored texts, any OpenAI-compatible endpoint, and scripted replies."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from memecmd_utils.llm import ModelId, Reply, Request
from memecmd_utils.llm_wire import EmptyReply, read_reply, retry_after, strict_schema, wire_message
from memecmd_utils.profiles import Endpoint

RETRY_STATUS = {408, 409, 425, 429}
FORM_STATUS = {400, 422}  # how servers say that they do not know a form of structured replies
MAX_TRIES = 6
SAMPLE_STRIDE = 1000  # seeds of sample n + 1 begin after those of the further attempts of sample n
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


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
        key = (api_key or os.environ.get(endpoint.key_env) or "").strip()
        if not key:
            raise EndpointError(
                f"no API key: set the environment variable {endpoint.key_env} (its name is the profile's "
                "`key_env`), or use PROFILE=example, which needs none. A server without keys takes any text"
            )
        if not key.isascii() or len(key.split()) > 1:
            raise EndpointError(f"what stands in {endpoint.key_env} is not an API key: it has odd characters")
        self.endpoint = endpoint
        self.model = model or ModelId(name=endpoint.model, label=endpoint.model_label)
        self.source = f"model {self.model}"
        self.retries = 0
        self._key, self._sleep = key, sleep
        self._client: Any = None
        self._loop: Any = None
        self._closer: Any = None
        self._forms = ["schema", "json", "plain"]
        self._form_works = False

    async def _connect(self) -> Any:
        # A client belongs to the event loop it was first used in; notebooks start one per call.
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop, self._closer = loop, self._client_until_loop_ends()
            self._client = await anext(self._closer)
        return self._client

    async def _client_until_loop_ends(self) -> AsyncIterator[Any]:
        """Yield the one client of this loop. `asyncio.run` closes open generators, and so the client."""
        import openai  # 0.8 s, so not at the top

        # A server on this machine is never behind the proxy that the environment may name.
        local = self.endpoint.base_url and urlsplit(self.endpoint.base_url).hostname in LOOPBACK
        client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self.endpoint.base_url,
            timeout=self.endpoint.timeout_s,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if local else None,
        )
        try:
            yield client
        finally:
            await client.close()

    def _body(self, request: Request, form: str) -> dict[str, Any]:
        sampling = request.sampling
        seed = None if request.seed is None else request.seed + SAMPLE_STRIDE * request.sample
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [wire_message(message) for message in request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "max_tokens": sampling.max_tokens,
            "stop": sampling.stop,
            "seed": seed,
        }
        if sampling.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs}
        if request.reply_schema is not None:
            schema = request.reply_schema
            if form == "schema":
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": schema.__name__, "strict": True, "schema": strict_schema(schema)},
                }
            elif form == "json":
                body["response_format"] = {"type": "json_object"}
        extra = dict(sampling.extra)  # also for renamed parameters, whose names the SDK need not know
        for name, other in self.endpoint.parameters.items():
            value = body.pop(name, None)
            if other and value is not None:
                extra[other] = value
        known = {key: value for key, value in body.items() if value is not None}
        return known | ({"extra_body": extra} if extra else {})

    async def complete(self, request: Request) -> Reply:
        """Return one reply; transient faults are retried, a wrong key or model raises `EndpointError`."""
        import openai

        client = await self._connect()
        structured = request.reply_schema is not None
        last, tries = "", 0
        while tries < MAX_TRIES:
            form = self._forms[0]
            try:
                reply = read_reply(await client.chat.completions.create(**self._body(request, form)))
                self._form_works |= structured
                return reply
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise EndpointError(
                    f"the endpoint refused the key ({error.status_code}): check {self.endpoint.key_env}"
                ) from None
            except openai.NotFoundError:
                raise EndpointError(
                    f"the endpoint does not know the model {self.endpoint.model!r} (404): check `model` and "
                    "`base_url` of the profile"
                ) from None
            except openai.APIStatusError as error:
                status = error.status_code
                if error.code == "content_filter":  # Azure says so by a status
                    return Reply(text="", finish_reason="content_filter")
                if structured and status in FORM_STATUS:
                    # This endpoint does not take that form: the next one down. Of requests sent side by
                    # side, which all come back, only the first takes the step.
                    if form != self._forms[0]:
                        continue
                    if form != "plain" and not self._form_works:
                        self._forms.pop(0)
                        continue
                if (status not in RETRY_STATUS and status < 500) or error.code == "insufficient_quota":
                    raise EndpointError(
                        f"the endpoint refuses the request ({status}): {self._plain(error)}"
                    ) from None
                last, wait = f"status {status}", retry_after(error.response.headers)
            except (openai.APIError, json.JSONDecodeError, UnicodeDecodeError, EmptyReply) as error:
                # Time-outs and resets are connection errors; half a body or HTML cannot be read.
                last, wait = type(error).__name__, None
            tries += 1
            if tries < MAX_TRIES:
                self.retries += 1
                await self._sleep(wait if wait is not None else random.uniform(0.5, 1.0) * 2 ** (tries - 1))
        raise EndpointError(f"the endpoint did not answer {MAX_TRIES} tries; the last fault was {last}")

    def _plain(self, error: Any) -> str:
        """The server's message without headers or request; a server may have put the key into it."""
        return str(getattr(error, "message", error)).replace(self._key, "***")[:300]

    async def aclose(self) -> None:
        """Close the client's connections."""
        if self._closer is not None:
            await self._closer.aclose()
            self._client = self._closer = None
