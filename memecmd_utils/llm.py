"""The only place that talks to a language model.

`Chat.ask` takes a `Request` and a parser, and returns an `Answer`: from the recordings, else from the
backend, asked up to five times until the parser accepts. Backends are in `llm_backends` and `local_llm`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from memecmd_utils import recordings as rec

T = TypeVar("T")
Task = Literal["utterance", "summary", "annotation", "scenario", "rating"]
Outcome = Literal["accepted", "violations", "unusable", "refusal", "length", "filtered"]
UNCHANGED_RETRIES = 2
RETRIES_WITH_ERROR = 2


class ModelId(BaseModel):
    """What makes a model this model: its name, a label for its version, and a local file's hash."""

    model_config = ConfigDict(frozen=True)
    name: str
    label: str = "default"
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.label}"


class Sampling(BaseModel):
    """Sampling parameters; None leaves the default. `extra` goes into the body as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    top_logprobs: int | None = None
    extra: dict[str, Any] = {}


class Image(BaseModel):
    """An image in a message. `image_id` enters the key; `data_url` is sent and never recorded."""

    image_id: str
    data_url: str


class Message(BaseModel):
    """One chat message: text, then images (for models that see)."""

    role: Literal["system", "user", "assistant"]
    text: str
    images: list[Image] = []


class Request(BaseModel):
    """Everything that changes an answer."""

    task: Task
    subject: str
    """What the request is about, for example a dialogue and turn; not part of the key."""
    messages: list[Message]
    sampling: Sampling = Sampling()
    seed: int | None = None
    sample: int = 0
    reply_schema: type[BaseModel] | None = None
    schema_version: int = 1

    def normal_form(self, model: ModelId) -> dict[str, Any]:
        """Our own normal form, the text behind the recording's key. Holds neither endpoint nor key."""
        schema = self.reply_schema
        return {
            "key_version": rec.KEY_VERSION,
            "task": self.task,
            "schema": None if schema is None else {"name": schema.__name__, "version": self.schema_version},
            "messages": [
                {"role": m.role, "text": m.text, "images": [image.image_id for image in m.images]}
                for m in self.messages
            ],
            "sampling": self.sampling.model_dump(exclude_none=True, exclude_defaults=True),
            "seed": self.seed,
            "sample": self.sample,
            "model": model.model_dump(exclude_none=True),
        }


class Reply(BaseModel):
    """What came back from a model."""

    text: str
    finish_reason: str = "stop"
    refusal: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    think_characters: int = 0
    """Length of `<think>` blocks that were taken out of `text`."""
    first_token: dict[str, float] | None = None
    """Log-probabilities of the first token's alternatives, where asked for."""


class Answer(BaseModel, Generic[T]):
    """A parsed answer, or the reason why there is none; the raw text is kept in both cases."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    value: Any = None
    outcome: Outcome = "accepted"
    violations: list[str] = []
    raw: str = ""
    reason: str = ""
    attempts: int = 1
    source: str
    replayed: bool = False


class UnusableReply(ValueError):
    """Raised by a parser: this reply cannot be used, the text says why (the model is shown it)."""


class BrokenRules(UnusableReply):
    """Raised by a parser of utterances: usable at need, but it breaks the named rules."""

    def __init__(self, value: Any, violations: list[str]) -> None:
        super().__init__("；".join(violations))
        self.value = value
        self.violations = violations


class BudgetReached(RuntimeError):
    """`max_calls` or `max_usd` would be passed by the next call; everything paid for is recorded."""


class Backend(Protocol):
    """A model behind the seam."""

    model: ModelId
    recordable: bool
    """Whether replies belong into the recordings (real models only)."""
    source: str
    """Value of `source` in records made from its replies."""

    async def complete(self, request: Request) -> Reply:
        """Return one reply; raise on anything that no further attempt can mend."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class Usage:
    """Counts of one `Chat`: calls, tokens, money, outcomes."""

    def __init__(self, usd_in: float = 0.0, usd_out: float = 0.0) -> None:
        self.calls = self.replayed = self.tokens_in = self.tokens_out = self.think_characters = 0
        self.outcomes: Counter[str] = Counter()
        self._usd_in, self._usd_out = usd_in / 1e6, usd_out / 1e6

    def add(self, reply: Reply) -> None:
        """Count one live reply."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self.think_characters += reply.think_characters

    @property
    def usd(self) -> float:
        """Money spent so far, in US dollars, by the profile's prices."""
        return self.tokens_in * self._usd_in + self.tokens_out * self._usd_out

    def as_dict(self) -> dict[str, Any]:
        """Figures for the report."""
        return {
            "calls": self.calls,
            "replayed": self.replayed,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "usd": round(self.usd, 6),
            "outcomes": dict(sorted(self.outcomes.items())),
        }


class Chat:
    """Asks a backend, with recordings in front of it and a cap on requests in flight."""

    def __init__(
        self,
        backend: Backend,
        recordings: rec.Recordings | None = None,
        mode: Literal["recorded", "auto", "live"] = "auto",
        concurrency: int = 8,
        max_calls: int | None = None,
        max_usd: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.backend, self.recordings, self.mode = backend, recordings, mode
        self.usage = usage or Usage()
        self.concurrency = concurrency
        self.used_keys: set[str] = set()
        self._slots = asyncio.Semaphore(concurrency)
        self._max_calls, self._max_usd = max_calls, max_usd

    async def ask(self, request: Request, parse: Callable[[Reply], T]) -> Answer[T]:
        """Return the parsed answer to `request`.

        `parse` raises `UnusableReply` for a reply that cannot be used and `BrokenRules` for one that
        can at need. In `recorded` mode a miss raises `RecordingMiss`; `auto` asks the model and records.
        """
        if not self.backend.recordable:
            return await self._ask_live(request, parse, None)
        form = request.normal_form(self.backend.model)
        key = rec.key_of(form)
        self.used_keys.add(key)
        stored = self.recordings.get(key) if self.recordings is not None and self.mode != "live" else None
        if stored is not None and (rec.is_answer(stored) or self.mode == "recorded"):
            self.usage.replayed += 1
            return self._replay(stored, parse)
        if self.mode == "recorded":
            why = self.recordings.explain_miss(form) if self.recordings is not None else "no recordings"
            raise rec.RecordingMiss(
                f"no recorded reply for {request.task} {request.subject} of {self.backend.model} ({why}). "
                "Mode `recorded` never calls a model; SET='mode=auto' asks it and records the answer."
            )
        return await self._ask_live(request, parse, form)

    def _replay(self, stored: dict[str, Any], parse: Callable[[Reply], T]) -> Answer[T]:
        reply = Reply(text=stored["text"], first_token=stored.get("first_token"))
        common = {"raw": reply.text, "attempts": stored.get("attempts", 1), "source": self.backend.source}
        self.usage.outcomes[stored["outcome"]] += 1
        if not rec.is_answer(stored):
            reason = stored.get("reason", "")
            return Answer(outcome=stored["outcome"], reason=reason, replayed=True, **common)
        try:
            return Answer(value=parse(reply), replayed=True, **common)
        except BrokenRules as error:
            return Answer(
                value=error.value, outcome="violations", violations=error.violations, replayed=True, **common
            )
        except UnusableReply as error:
            raise rec.RecordingError(
                f"a recorded reply is no longer accepted ({error}); the parser has changed since: "
                f"raise the request's schema_version. Reply: {reply.text[:200]!r}"
            ) from error

    async def _ask_live(
        self, request: Request, parse: Callable[[Reply], T], form: dict[str, Any] | None
    ) -> Answer[T]:
        answer: Answer[T] | None = None
        asked = request
        for attempt in range(1, 2 + UNCHANGED_RETRIES + RETRIES_WITH_ERROR):
            reply = await self._call(asked)
            answer, error = self._judge(reply, parse, attempt)
            if error is None:
                break
            # A fixed seed would bring the same unusable reply again: the next attempt moves it on.
            seed = None if request.seed is None else request.seed + attempt
            messages = request.messages
            if attempt > UNCHANGED_RETRIES:
                note = f"上一次的回复不能用：{error}。请改正后重新回复，只输出所要求的内容。"
                messages = [
                    *request.messages,
                    Message(role="assistant", text=reply.text or "（空）"),
                    Message(role="user", text=note),
                ]
            asked = request.model_copy(update={"seed": seed, "messages": messages})
        self.usage.outcomes[answer.outcome] += 1
        if form is not None and self.recordings is not None:
            value = {"text": answer.raw, "outcome": answer.outcome, "attempts": answer.attempts}
            if answer.reason:
                value["reason"] = answer.reason
            if reply.first_token is not None:
                value["first_token"] = {k: round(v, 4) for k, v in reply.first_token.items()}
            if reply.tokens_in:
                value["tokens"] = [reply.tokens_in, reply.tokens_out]
            self.recordings.put(form, value)
        return answer

    def _judge(
        self, reply: Reply, parse: Callable[[Reply], T], attempt: int
    ) -> tuple[Answer[T], UnusableReply | None]:
        """Turn a reply into an answer, and say whether it should be asked for again."""
        common = {"raw": reply.text, "attempts": attempt, "source": self.backend.source}
        if reply.refusal:
            return Answer(outcome="refusal", reason="the model refused", **common), UnusableReply("拒绝回答")
        if reply.finish_reason == "content_filter":
            return Answer(outcome="filtered", reason="content filter", **common), UnusableReply("被过滤")
        try:
            return Answer(value=parse(reply), **common), None
        except BrokenRules as error:
            answer = Answer(value=error.value, outcome="violations", violations=error.violations, **common)
            return answer, error
        except UnusableReply as error:
            outcome: Outcome = "length" if reply.finish_reason == "length" else "unusable"
            return Answer(outcome=outcome, reason=str(error), **common), error

    async def _call(self, request: Request) -> Reply:
        async with self._slots:
            if self._max_calls is not None and self.usage.calls >= self._max_calls:
                raise BudgetReached(f"max_calls={self._max_calls} reached; raise it and run again to go on")
            if self._max_usd is not None and self.usage.usd >= self._max_usd:
                raise BudgetReached(f"max_usd={self._max_usd} reached; raise it and run again to go on")
            self.usage.calls += 1
            reply = await self.backend.complete(request)
            self.usage.add(reply)
            return reply


def run(work: Awaitable[T]) -> T:
    """Run a coroutine to its end from ordinary code, also inside Jupyter, where a loop already runs."""

    async def main() -> T:
        return await work

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    box: dict[str, Any] = {}

    def target() -> None:
        try:
            box["value"] = asyncio.run(main())
        except BaseException as error:  # handed to the caller below
            box["error"] = error

    thread = threading.Thread(target=target, name="memecmd-async")
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    return box["value"]
