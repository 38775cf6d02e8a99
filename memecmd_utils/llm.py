"""The only place that talks to a language model.

`Chat.ask` takes a `Request` and a parser, and returns an `Answer`: from the recordings, else from the
backend, asked up to five times until the parser accepts. Backends are in `llm_backends` and `local_llm`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

from memecmd_utils import prompting
from memecmd_utils import recordings as rec
from memecmd_utils.llm_types import (
    Answer,
    Backend,
    BrokenRules,
    BudgetReached,
    Image,
    Message,
    ModelId,
    Outcome,
    Reply,
    Request,
    Sampling,
    Task,
    UnusableReply,
    Usage,
)

__all__ = [
    "Answer",
    "Backend",
    "BrokenRules",
    "BudgetReached",
    "Chat",
    "Image",
    "Message",
    "ModelId",
    "Outcome",
    "Reply",
    "Request",
    "Sampling",
    "Task",
    "UnusableReply",
    "Usage",
    "run",
]

T = TypeVar("T")
UNCHANGED_RETRIES = 2
RETRIES_WITH_ERROR = 2
# What a call may cost at most, for `max_usd`, where the request does not say.
TOKENS_PER_IMAGE = 1000
TOKENS_OUT = 1000


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
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._max_calls, self._max_usd = max_calls, max_usd
        self._reserved_usd = 0.0
        self._fault: Exception | None = None

    async def ask(self, request: Request, parse: Callable[[Reply], T]) -> Answer[T]:
        """Return the parsed answer to `request`.

        `parse` raises `UnusableReply` for a reply that cannot be used and `BrokenRules` for one that
        can at need. In `recorded` mode a miss raises `RecordingMiss`; `auto` asks the model and records.
        """
        self._stop_after_fault()
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

    async def side_by_side(self, work: Iterable[Awaitable[T]]) -> list[T]:
        """Await coroutines that ask this chat, all at once; results in their order.

        On the first fault no further request goes out, but those under way are waited for and
        recorded, because they are paid for. Then the fault is raised.
        """
        tasks = [asyncio.ensure_future(item) for item in work]
        try:
            return list(await asyncio.gather(*tasks))
        except Exception as error:
            self._fault = error
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            self._fault = None

    def _stop_after_fault(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)

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
        best: tuple[Answer[T], Reply] | None = None
        asked = request
        for attempt in range(1, 2 + UNCHANGED_RETRIES + RETRIES_WITH_ERROR):
            reply = await self._call(asked)
            answer, error = self._judge(reply, parse, attempt)
            if best is None or _rank(answer) <= _rank(best[0]):
                best = answer, reply
            if error is None:
                break
            # A fixed seed would bring the same unusable reply again: the next attempt moves it on.
            seed = None if request.seed is None else request.seed + attempt
            messages = request.messages
            if attempt > UNCHANGED_RETRIES:
                note = prompting.render("ask_again", reason=str(error))
                messages = [
                    *request.messages,
                    Message(role="assistant", text=reply.text or "（空）"),
                    Message(role="user", text=note),
                ]
            asked = request.model_copy(update={"seed": seed, "messages": messages})
        answer, reply = best
        answer.attempts = attempt
        self.usage.outcomes[answer.outcome] += 1
        if form is not None and self.recordings is not None:
            self.recordings.put(form, _recorded(answer, reply))
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
        async with self._slot():
            self._stop_after_fault()
            if self._max_calls is not None and self.usage.calls >= self._max_calls:
                raise BudgetReached(f"max_calls={self._max_calls} reached; raise it and run again to go on")
            # Requests in flight have no price yet, so what they may cost is set aside.
            price = self._price_at_most(request)
            if self._max_usd is not None and (
                self.usage.usd >= self._max_usd or self.usage.usd + self._reserved_usd + price > self._max_usd
            ):
                raise BudgetReached(
                    f"max_usd={self._max_usd} would be passed by the next call (spent {self.usage.usd:.4f}); "
                    "raise it and run again to go on"
                )
            self.usage.calls += 1
            self._reserved_usd += price
            try:
                reply = await self.backend.complete(request)
            finally:
                self._reserved_usd -= price
            self.usage.add(reply)
            return reply

    def _slot(self) -> asyncio.Semaphore:
        # A semaphore belongs to one event loop; notebooks start one per `run`.
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = loop, asyncio.Semaphore(self.concurrency)
        return self._slots[1]

    def _price_at_most(self, request: Request) -> float:
        tokens_in = sum(len(m.text) + TOKENS_PER_IMAGE * len(m.images) for m in request.messages)
        return self.usage.price(tokens_in, request.sampling.max_tokens or TOKENS_OUT)


def _rank(answer: Answer) -> int:
    """Order of outcomes: accepted, then broken rules (fewer first), then no answer at all."""
    return len(answer.violations) if answer.outcome in ("accepted", "violations") else 1000


def _recorded(answer: Answer, reply: Reply) -> dict[str, Any]:
    """Value of a recording."""
    value: dict[str, Any] = {"text": answer.raw, "outcome": answer.outcome, "attempts": answer.attempts}
    if answer.reason:
        value["reason"] = answer.reason
    if reply.first_token is not None:
        value["first_token"] = reply.first_token
    if reply.tokens_in:
        value["tokens"] = [reply.tokens_in, reply.tokens_out]
    return value


def run(work: Awaitable[T]) -> T:
    """Run a coroutine to its end from ordinary code, also inside Jupyter, where a loop already runs."""

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        box["cancel"] = lambda: loop.call_soon_threadsafe(task.cancel)
        return await work

    box: dict[str, Any] = {}
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())

    def target() -> None:
        try:
            box["value"] = asyncio.run(main())
        except BaseException as error:  # handed to the caller below
            box["error"] = error

    thread = threading.Thread(target=target, name="memecmd-async")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        # The stop button reaches this thread only: without a word the other one would go on asking.
        box.get("cancel", bool)()
        thread.join()
        raise
    if "error" in box:
        raise box["error"]
    return box["value"]
