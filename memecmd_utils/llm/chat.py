"""The only place that talks to a language model, and the live line of a loop that asks it.

`Chat.ask` takes a `Request` and a parser, and returns an `Answer`: from the recordings, else from the
backend, asked up to five times until the parser accepts. How a request gets there is in `delivery`;
backends are in `authored`, `endpoint`, `batch` and `local`.
"""

import asyncio
import inspect
import math
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from memecmd_utils import recordings as rec
from memecmd_utils.core.machine import STATUS_VARIABLE
from memecmd_utils.llm import prompts
from memecmd_utils.llm.budget import Budget
from memecmd_utils.llm.delivery import Delivery, Throttle
from memecmd_utils.llm.messages import (
    UNRECORDED,
    Answer,
    Backend,
    BrokenRules,
    CutReply,
    Message,
    Reply,
    Request,
    UncertainReply,
    UnusableReply,
)
from memecmd_utils.llm.replies import garbled
from memecmd_utils.llm.usage import Usage
from memecmd_utils.recordings import Outcome

T = TypeVar("T")
MODELS_OWN: frozenset[Outcome] = frozenset({"unusable", "length", "refusal", "filtered"})
"""Outcomes without an answer that tell of the model, and not of the endpoint or the day."""
UNCHANGED_RETRIES = 2
RETRIES_WITH_ERROR = 2
ATTEMPTS = 1 + UNCHANGED_RETRIES + RETRIES_WITH_ERROR
LOST_IN_A_ROW = 5
"""Replies that did not arrive whole and cost no attempt. What is lost at random comes back before that. What
a model always cuts off or leaves empty then goes the way of other unusable replies, and so to an end."""


class Chat:
    """Asks a backend, with recordings in front of it and a cap on requests in flight."""

    def __init__(
        self,
        backend: Backend,
        recordings: rec.Recordings | None = None,
        mode: Literal["recorded", "auto", "live"] = "auto",
        concurrency: int = 8,
        budget: Budget | None = None,
        dead_after_s: float = 50.0,
        sleep: Callable[[float], Any] = asyncio.sleep,
        strict: bool = True,
    ) -> None:
        """`strict`: in mode `recorded` a miss is an error; otherwise it is an answer without a value."""
        self.backend, self.recordings, self.mode = backend, recordings, mode
        self.strict = strict
        self.concurrency, self.in_bulk = concurrency, backend.in_bulk
        self.usage, self.budget = Usage(), budget or Budget()
        self.throttle = Throttle(concurrency, dead_after_s)
        self._delivery = Delivery(backend, self.throttle, self.budget, self.usage, sleep)
        self._fault: BaseException | None = None
        self._asking: dict[str, asyncio.Event] = {}
        """Keys that are asked for at this moment, each with the event of its end."""

    async def ask(self, request: Request, parse: Callable[[Reply], T], again: bool = True) -> Answer[T]:
        """Return the parsed answer to `request`.

        `parse` raises `UnusableReply` for a reply that cannot be used and `BrokenRules` for one that
        can at need. In `recorded` mode a miss raises `RecordingMiss`, or is the outcome `unrecorded` where
        the chat is not `strict`; `auto` asks the model and records, also where what is recorded could not be
        used, unless `again` is false.
        """
        self._stop_after_fault()
        if not self.backend.recordable:
            return await self._ask_live(request, parse, None, "")
        form = request.normal_form(self.backend.model, self.backend.dropped)
        key = rec.key_of(form)
        if (stored := self._recorded(key, again)) is not None:
            return self._replay(stored, parse, key)
        if self.mode == "recorded" and not self.strict:
            self.usage.outcomes[UNRECORDED] += 1
            return Answer(
                outcome=UNRECORDED, reason="no recorded answer", attempts=0, source=self.backend.source
            )
        if self.mode == "recorded":
            why = self.recordings.explain_miss(form) if self.recordings is not None else "no recordings"
            raise rec.RecordingMiss(
                f"no recorded reply for {request.task} {request.subject} of {self.backend.model} ({why}). "
                "Mode `recorded` never calls a model; SET='mode=auto' asks it and records the answer."
            )
        if self.recordings is None:
            return await self._ask_live(request, parse, form, key)
        async with self._alone(key) as waited:
            if (stored := self._recorded(key, again, waited)) is not None:
                return self._replay(stored, parse, key)
            return await self._ask_live(request, parse, form, key)

    def _recorded(self, key: str, again: bool, just_now: bool = False) -> dict[str, Any] | None:
        """The recorded value that counts in our mode; `just_now`: others have asked while we waited."""
        if self.recordings is None or (self.mode == "live" and key not in self.recordings.fresh_keys):
            return None
        stored = self.recordings.get(key)
        if stored is None or self.mode != "auto" or just_now or rec.is_answer(stored):
            return stored
        return None if again or stored["outcome"] not in MODELS_OWN else stored

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[bool]:
        """Wait until nobody else in this process asks for `key`; yield whether somebody did."""
        waited = False
        while key in self._asking:
            waited = True
            await self._asking[key].wait()
            self._stop_after_fault()
        self._asking[key] = done = asyncio.Event()
        try:
            yield waited
        finally:
            del self._asking[key]
            done.set()

    @property
    def used_keys(self) -> set[str]:
        """Keys of the recordings that were replayed or made."""
        return self.recordings.used_keys if self.recordings is not None else set()

    async def side_by_side(
        self,
        work: Iterable[Awaitable[T]],
        at_once: int | None = None,
        keep: Callable[[T], Any] | None = None,
    ) -> list[T]:
        """Await coroutines that ask this chat, `at_once` of them at a time; results in their order.

        `work` is drawn from as places become free, so a generator keeps memory flat; with `keep` each
        result is handed over in order instead of being collected. On the first fault no further request
        goes out, but those under way are waited for and recorded, because they are paid for.
        """
        results: list[T] = []
        keep = keep or results.append
        at_once = at_once or self.concurrency
        work = iter(work)
        in_order: deque[asyncio.Task[T]] = deque()
        running: set[asyncio.Task[T]] = set()
        finished: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
        try:
            while True:
                # A slow one at the head must not let finished ones pile up behind it without end.
                while len(running) < at_once and len(in_order) < 4 * at_once:
                    item = next(work, None)
                    if item is None:
                        break
                    task = asyncio.ensure_future(item)
                    task.add_done_callback(finished.put_nowait)
                    in_order.append(task)
                    running.add(task)
                if not running:
                    return results
                task = await finished.get()
                running.discard(task)
                task.result()  # a fault shows at once, wherever it stands in the order
                while in_order and in_order[0].done():
                    keep(in_order.popleft().result())
        except Exception as error:
            self._fault = error
            self._delivery.stop_waiting()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._fault = None
            if inspect.isgenerator(work):
                work.close()
            for item in work:
                if inspect.iscoroutine(item):
                    item.close()

    def _stop_after_fault(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    def _replay(self, stored: dict[str, Any], parse: Callable[[Reply], T], key: str) -> Answer[T]:
        self.usage.replayed += 1
        reply = Reply(text=stored["text"], first_token=stored.get("first_token"), yes_no=stored.get("yes_no"))
        answer = Answer(
            raw=reply.text, attempts=stored.get("attempts", 1), source=self.backend.source, replayed=True
        )
        try:
            if rec.is_answer(stored):
                answer.value = parse(reply)
            else:
                answer.outcome, answer.reason = stored["outcome"], stored.get("reason", "")
        except BrokenRules as error:
            answer.value, answer.outcome, answer.violations = error.value, "violations", error.violations
        except UncertainReply as error:
            answer.outcome, answer.reason = "unusable", str(error)
        except UnusableReply as error:
            raise rec.RecordingError(
                f"a recorded reply is no longer accepted ({error}); the parser has changed since: "
                f"raise the request's schema_version. Reply: {reply.text[:200]!r}"
            ) from error
        self.usage.outcomes[answer.outcome] += 1
        return answer

    async def _ask_live(
        self, request: Request, parse: Callable[[Reply], T], form: dict[str, Any] | None, key: str
    ) -> Answer[T]:
        best: tuple[float, Answer[T], Reply] | None = None
        asked, attempt, lost = request, 1, 0
        while True:
            reply = await self._delivery.send(asked, self._stop_after_fault)
            answer, error = self._judge(reply, parse, asked)
            why_lost = _lost(reply, error, asked)
            # Asked unchanged, a server that lost a reply brings it yet; a fixed seed brings the same again.
            if why_lost and lost < LOST_IN_A_ROW and not self.backend.repeats:
                lost += 1
                self.usage.retries[why_lost] += 1
                continue
            lost = LOST_IN_A_ROW if why_lost else 0
            # Accepted, then broken rules (fewer and milder first), then no answer at all.
            weight = 0.0 if answer.outcome == "accepted" else getattr(error, "weight", math.inf)
            if best is None or weight <= best[0]:
                best = weight, answer, reply
            if error is None or attempt == ATTEMPTS:
                break
            # Where a fixed seed brings the same unusable reply again, the next attempt moves it on.
            seed = request.seed
            if self.backend.repeats and seed is not None:
                seed += attempt
            messages = request.messages
            if attempt > UNCHANGED_RETRIES:
                note = prompts.render(request.ask_again, reason=str(error), fence=prompts.fence)
                messages = [
                    *request.messages,
                    Message(role="assistant", text=reply.text or "（空）"),
                    Message(role="user", text=note),
                ]
            asked = request.model_copy(update={"seed": seed, "messages": messages})
            attempt += 1
        _, answer, reply = best
        answer.attempts = attempt
        self.usage.outcomes[answer.outcome] += 1
        if form is not None and self.recordings is not None:
            self.recordings.put(form, _recorded(answer, reply))
        return answer

    def _judge(
        self, reply: Reply, parse: Callable[[Reply], T], asked: Request
    ) -> tuple[Answer[T], UnusableReply | None]:
        """Turn a reply into an answer, and say whether it should be asked for again."""
        answer = Answer(raw=reply.text, source=self.backend.source)
        if reply.finish_reason in ("failed", "rejected"):  # asking again would bring the same
            answer.outcome, answer.reason = reply.finish_reason, reply.text
            return answer, None
        if reply.refusal:
            answer.outcome, answer.reason = "refusal", "the model refused"
            return answer, UnusableReply("拒绝回答")
        if reply.finish_reason == "content_filter":
            answer.outcome, answer.reason = "filtered", "content filter"
            return answer, UnusableReply("被过滤")
        try:
            if garbled(reply.text):
                raise UnusableReply("文字里有乱码")
            answer.value = parse(reply)
        except BrokenRules as error:
            answer.value, answer.outcome, answer.violations = error.value, "violations", error.violations
            return answer, error
        except UnusableReply as error:
            answer.outcome = "length" if _is_cut(reply, asked) else "unusable"
            answer.reason = str(error)
            return answer, error
        return answer, None


def _is_cut(reply: Reply, asked: Request) -> bool:
    """Whether the server says that the reply breaks off where it should not: one token is always cut."""
    return reply.finish_reason == "length" and asked.sampling.max_tokens != 1


def _lost(reply: Reply, error: UnusableReply | None, asked: Request) -> str:
    """In what way an unusable reply did not arrive whole; empty where it did, and the model is to blame."""
    if error is None or isinstance(error, BrokenRules):
        return ""
    if reply.refusal or reply.finish_reason == "content_filter":
        return ""
    if not reply.text:  # a model that spent its tokens on thought has nothing left to send
        thought = reply.think_characters > 0 or asked.sampling.max_tokens == 1
        return "" if thought and reply.finish_reason == "length" else "empty reply"
    if garbled(reply.text) or "\ufffd" in reply.text:
        return "garbled reply"
    return "cut reply" if isinstance(error, CutReply) or _is_cut(reply, asked) else ""


def _recorded(answer: Answer, reply: Reply) -> dict[str, Any]:
    """Value of a recording."""
    value: dict[str, Any] = {"text": answer.raw, "outcome": answer.outcome, "attempts": answer.attempts}
    if answer.reason:
        value["reason"] = answer.reason
    if reply.first_token is not None:
        value |= {"first_token": reply.first_token, "yes_no": list(reply.yes_no)}
    if reply.tokens_in:
        value["tokens"] = [reply.tokens_in, reply.tokens_out]
    return value


def run(work: Awaitable[T]) -> T:
    """Run a coroutine to its end from ordinary code, also inside Jupyter, where a loop already runs."""
    outer: asyncio.AbstractEventLoop | None = None
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

    async def main() -> T:
        started.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    with suppress(RuntimeError):
        outer = asyncio.get_running_loop()
    if outer is None:
        return asyncio.run(main())
    with ThreadPoolExecutor(1, thread_name_prefix="memecmd-async") as thread:
        running = thread.submit(asyncio.run, main())
        try:
            return running.result()
        except KeyboardInterrupt:
            # The stop button reaches this thread only: without a word the other one would go on asking.
            for loop, task in started:
                if not running.done():
                    loop.call_soon_threadsafe(task.cancel)
            raise


LIVE_LINE_EVERY_S = 1.0


class Progress:
    """How far a loop that asks `chat` is, how fast, for how much money, and how long still.

    A context manager for coroutines: a bar in a notebook, and a line in the file that a headless run shows in
    the terminal (`machine`).
    """

    def __init__(self, chat: Chat, total: int, label: str, unit: str) -> None:
        self.chat, self.total, self.label = chat, total, label
        self.done, self._calls_before = 0, chat.usage.calls
        from tqdm.auto import tqdm  # looks for widgets, which takes a while

        self._bar = tqdm(total=total, desc=label, unit=unit)
        status = os.environ.get(STATUS_VARIABLE)
        self._status = Path(status) if status else None
        self._replayed_at = time.monotonic()
        self._live_from: tuple[float, int] | None = None
        self._ticker: asyncio.Task[None] | None = None

    def __enter__(self) -> "Progress":
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def _tick(self) -> None:
        # Units may take minutes, and a batch hours: the line must not look dead in between.
        while True:
            await asyncio.sleep(LIVE_LINE_EVERY_S)
            self._show()

    def __exit__(self, *_: object) -> None:
        self._ticker.cancel()
        self._show()
        self._bar.close()

    def update(self, n: int = 1) -> None:
        """Count `n` more units."""
        self.done += n
        now = time.monotonic()
        if self._live_from is None and self.chat.usage.calls > self._calls_before:
            # What is replayed takes no time: it must not make the rest look short.
            self._live_from = self._replayed_at, self.done - n
        elif self._live_from is None:
            self._replayed_at = now
        self._bar.update(n)

    def _show(self) -> None:
        self._bar.set_postfix_str(self.extra())
        if self._status is not None:
            # Whole or not at all is not needed here: a reader that meets half a line shows the next.
            self._status.write_text(self.line(), encoding="utf-8")

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the units that the model was asked for, or None while these tell little."""
        if self._live_from is None or self.done == self._live_from[1]:
            return None
        since, first = self._live_from
        taken = time.monotonic() - since
        return taken / (self.done - first) * (self.total - self.done) if taken >= LIVE_LINE_EVERY_S else None

    def line(self) -> str:
        """The whole line, for a terminal."""
        left = self.seconds_left
        parts = [f"{self.label} {self.done:,}/{self.total:,}", self.extra()]
        if left is not None and self.done < self.total:
            parts.append(f"{duration(left)} left")
        return " · ".join(part for part in parts if part)

    def extra(self) -> str:
        """Speed, money and trouble: what a bar does not say by itself."""
        usage, budget = self.chat.usage, self.chat.budget
        parts = [self.chat.backend.status] if self.chat.backend.status else []
        if usage.tokens_out:
            parts.append(f"{usage.tokens_per_second:,.0f} tokens/s")
            cap = f" of ${budget.max_usd:,.2f}" if budget.max_usd is not None else ""
            if cap or budget.ledger.usd:
                parts.append(f"${budget.ledger.usd:,.2f}{cap}")
        if usage.retries:
            parts.append(f"{sum(usage.retries.values()):,} tried again")
        if self.chat.throttle.room < self.chat.throttle.cap:
            parts.append(f"{self.chat.throttle.room} of {self.chat.throttle.cap} at once")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
