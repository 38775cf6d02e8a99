"""Any OpenAI-compatible chat endpoint, through the `openai` package's async client: one exchange at a time.

Here a request is put into the endpoint's words and its reply or fault is named; tries, waits, caps and
money are the business of `delivery`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from pydantic import SecretStr

from memecmd_utils import live_extra
from memecmd_utils.key_guard import KeyGuard, address, api_key, is_local
from memecmd_utils.llm_types import (
    EndpointError,
    ModelId,
    Reply,
    Request,
    RequestRejected,
    TransientFault,
)
from memecmd_utils.llm_wire import CONTROL, read_reply, retry_after, strict_schema, wire_message
from memecmd_utils.profiles import Endpoint

RETRY_STATUS = {408, 409, 425, 429}
FORM_STATUS = {400, 422}
"""How servers say that they do not know a form of structured replies."""
FILTER_CODES = {"content_filter", "content_policy_violation", "data_inspection_failed"}
"""Some services tell of a content filter by a status instead of a reply."""
MAPPED = {"max_tokens", "temperature", "top_p", "presence_penalty", "seed", "stop", "logprobs"}
OUT_OF_MONEY = {"insufficient_quota", "billing_hard_limit_reached"}
REJECTED_IN_A_ROW = 10
"""Requests of one task: by then it is the set-up and not the request."""
SAMPLE_STRIDE = 1000  # seeds of sample n + 1 begin after those of the further attempts of sample n


class OpenAIBackend:
    """One endpoint and model.

    The form of structured replies is probed once per endpoint: JSON schema, else JSON mode, else plain
    text; the caller's parser checks the reply in every case.
    """

    recordable = True
    in_bulk = False
    status = ""

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
        self._client: Any = None
        self._loop: Any = None
        self._closer: Any = None
        self._forms = ["schema", "json", "plain"]
        self._works = False
        self._proven = {"plain"}
        self._rejected: Counter[str] = Counter()

    async def connect(self) -> Any:
        """Return the SDK's client for this event loop; notebooks start one loop per call."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop, self._closer = loop, self._client_until_loop_ends()
            self._client = await anext(self._closer)
        return self._client

    async def _client_until_loop_ends(self) -> AsyncIterator[Any]:
        """Yield the one client of this loop. `asyncio.run` closes open generators, and so the client."""
        live_extra.need("an endpoint")
        import openai  # 0.8 s, so not at the top

        # A server on this machine is never behind the proxy that the environment may name. Over aiohttp a
        # call takes two thirds of the CPU time that it takes over the SDK's default transport.
        client, what = None, ""
        try:
            client = openai.AsyncOpenAI(
                api_key=self._key.get_secret_value(),
                base_url=address(self.endpoint),
                timeout=self.endpoint.timeout_s,
                max_retries=0,
                http_client=openai.DefaultAioHttpClient(trust_env=not is_local(self.endpoint)),
            )
        except Exception as error:
            what = type(error).__name__
        if client is None:  # outside of the handler: the SDK's frames hold the key as an argument
            raise EndpointError(f"no client can be made for this endpoint ({what}): check `base_url`")
        try:
            yield client
        finally:
            await client.close()

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
        import openai

        client = await self.connect()
        while True:
            form, body = self.form(request), self.body(request)
            fault: Exception
            try:
                # `post` gives the parsed JSON as it is: building the SDK's objects would take as long as
                # all the rest of a call.
                reply = read_reply(await client.post("/chat/completions", body=body, cast_to=object))
                self.worked(request)
                return self._without_key(reply)
            except openai.APIStatusError as error:
                # The body may hold the key, so it is no variable here: tracebacks may show those.
                fault = self.name_status(
                    error.status_code, str(error.code or ""), self.plain(error.message), _parameter(error),
                    request, form, retry_after(error.response.headers),
                )  # fmt: skip
            except openai.APIConnectionError as error:
                fault = _name_connection(error)
            except (openai.APIError, ValueError, RecursionError) as error:
                # Half a body, HTML, nesting or numbers without end: it cannot be read.
                fault = TransientFault(f"unreadable body ({type(error).__name__})", paid=True)
            except Exception as error:  # a library's complaint, with frames that hold the key
                fault = EndpointError(f"the request cannot be sent: {type(error).__name__}")
            # Outside of the handlers, so that no fault of ours carries the SDK's, whose headers hold the key.
            if isinstance(fault, UnknownForm):
                self.step_down(form)
                continue
            if isinstance(fault, Filtered):
                return Reply(text="", finish_reason="content_filter")
            raise fault

    def step_down(self, form: str) -> None:
        """Give up a form that the endpoint does not know.

        Of requests sent side by side, which all come back, only the first takes the step.
        """
        if form in self._forms:
            self._forms = self._forms[self._forms.index(form) + 1 :]

    def worked(self, request: Request) -> None:
        """Note that the endpoint took this request in the form in which it was sent."""
        self._works = True
        self._proven.add(self.form(request))
        self._rejected[request.task] = 0

    def name_status(
        self,
        status: int,
        code: str,
        message: str,
        parameter: str,
        request: Request,
        form: str,
        wait_s: float | None = None,
    ) -> Exception:
        """Say what an error status means for a request sent in `form`, as the exception to raise."""
        if status in (401, 403) and code not in FILTER_CODES:
            return EndpointError(f"the endpoint refused the key ({status}): check {self.endpoint.key_env}")
        if status == 404:
            return EndpointError(
                f"the endpoint does not know the model {self.endpoint.model!r} (404): check `model` and "
                "`base_url` of the profile"
            )
        if code in FILTER_CODES:
            return Filtered()
        if code in OUT_OF_MONEY:
            return EndpointError(f"the account has no credit left ({status}): {message}")
        if status in RETRY_STATUS or status >= 500:
            return TransientFault(f"status {status}", wait_s, limited=status == 429)
        probing = form not in self._forms or form not in self._proven
        if request.reply_schema is not None and status in FORM_STATUS and probing:
            return UnknownForm()
        if self._works and status in (400, 413, 422):
            self._rejected[request.task] += 1
            if self._rejected[request.task] < REJECTED_IN_A_ROW:
                return RequestRejected(f"{status}: {message}")
        hint = ""
        if parameter in MAPPED:
            other = "max_completion_tokens" if parameter == "max_tokens" else "null"
            hint = f"; to leave out or rename it: `parameters: {{{parameter}: {other}}}` of the endpoint"
        return EndpointError(f"the endpoint refuses the request ({status}): {message}{hint}")

    def plain(self, message: str) -> str:
        """The server's message, in which it may have put the key."""
        return self.guard.message(CONTROL.sub("", str(message)))[:300]

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
            await client.get("/models", cast_to=object)
        except openai.APIConnectionError:
            return False
        except (openai.APIError, ValueError):
            return True
        return True

    async def aclose(self) -> None:
        """Close the client's connections."""
        if self._closer is not None:
            await self._closer.aclose()
            self._client = self._closer = None


class UnknownForm(Exception):
    """The endpoint does not know this form of structured replies."""


class Filtered(Exception):
    """The service's content filter stopped the request."""


def _parameter(error: Any) -> str:
    found = error.body.get("param") if isinstance(error.body, dict) else None
    return found if isinstance(found, str) else ""


def _name_connection(error: BaseException | None) -> TransientFault:
    """Name a fault of the connection. Where none was made nothing was sent; anything later may be paid.

    The transport calls a broken connection a time-out, so what it was stands further down the chain.
    """
    import aiohttp

    kind = "time-out"
    while error is not None:
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return TransientFault("no connection")
        if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
            kind = "broken connection"
        error = error.__cause__ or error.__context__
    return TransientFault(kind, paid=True)
