"""One question to a language model: from the recordings, else asked, parsed, asked again where that helps.

`Chat.ask` takes a `Request` and a parser, and returns an `Answer`. Models are in `authored` and `endpoint`.
A question is asked again on three levels, each within the next:

    no answer came                   the SDK sends it again       `endpoint.RETRIES`           not counted
      the answer came broken         asked again unchanged        `LOST_IN_A_ROW` in a row     not counted
        the reply cannot be used     with another seed, then      `ATTEMPTS` in all            counted
                                     told why; a broken rule at once

All three are in the usage of a run as "tried again".
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from memecmd_utils.llm import prompts, spending
from memecmd_utils.llm import recordings as rec
from memecmd_utils.llm.recordings import Outcome
from memecmd_utils.llm.replies import garbled
from memecmd_utils.llm.spending import Budget, Usage
from memecmd_utils.llm.types import (
    NO_REPLY,
    UNRECORDED,
    Answer,
    Backend,
    BrokenRules,
    EndpointError,
    Message,
    Reply,
    Request,
    UnusableReply,
)
from memecmd_utils.progress import bar

S, T = TypeVar("S"), TypeVar("T")
Bar = Callable[..., None]
"""Counts so many units as done, one by default (`progress`)."""
MODELS_OWN: frozenset[Outcome] = frozenset({"unusable", "length", "refusal", "filtered"})
"""Outcomes without an answer that tell of the model, and not of the endpoint or the day."""
UNCHANGED_RETRIES = 2
ATTEMPTS = 1 + UNCHANGED_RETRIES + 2
"""The last two are shown what was wrong; where a rule is broken, all but the first are."""
LOST_IN_A_ROW = 5
"""Replies that did not arrive whole and cost no attempt. What is lost at random comes back before that. What
a model always cuts off or leaves empty then goes the way of other unusable replies, and so to an end."""
NOTHING_USABLE = 20
"""Answers of which one at least has to be usable, else the rest would be as these."""
COMPARED_AFTER_S = 120.0


class Chat:
    """Asks a backend, with recordings in front of it."""

    def __init__(
        self,
        backend: Backend,
        recordings: rec.Recordings | None = None,
        mode: Literal["recorded", "auto", "live"] = "auto",
        concurrency: int = 8,
        budget: Budget | None = None,
        strict: bool = True,
        usage: Usage | None = None,
    ) -> None:
        """`strict`: a miss in mode `recorded` is an error, and so are `NOTHING_USABLE` answers that cannot be
        used at the beginning; otherwise such an answer has no value.

        `usage`: counts to go on with.
        """
        self.backend, self.recordings, self.mode, self.strict = backend, recordings, mode, strict
        self.concurrency, self.budget, self.usage = concurrency, budget or Budget(), usage or Usage()
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
            return await self._ask_live(request, parse)
        form = self.backend.normal_form(request)
        key = rec.key_of(form)
        while key in self._asking:  # by a twin, whose answer is ours, whatever it is
            again = False
            await self._asking[key].wait()
            self._stop_after_fault()
        if (stored := self._on_record(key, again)) is not None:
            return self._replay(stored, request, parse)
        if self.mode == "recorded":
            if self.strict:
                raise rec.RecordingMiss(
                    f"no recorded reply for {request.task} {request.subject} of {self.backend.model}. "
                    "Mode `recorded` never calls a model; SET='mode=auto' asks it and records the answer."
                )
            missing = {"outcome": UNRECORDED, "reason": "no recorded answer", "attempts": 0}
            return self._counted(Answer(source=self.backend.source, **missing))
        self._asking[key] = asyncio.Event()
        try:
            return await self._ask_live(request, parse, form)
        finally:
            self._asking.pop(key).set()

    def _on_record(self, key: str, again: bool) -> dict[str, Any] | None:
        """The recorded value that counts in our mode: where it is asked `again`, an answer only."""
        if self.recordings is None or (self.mode == "live" and key not in self.recordings.fresh_keys):
            return None
        stored = self.recordings.get(key)
        if stored is None or self.mode != "auto" or rec.is_answer(stored):
            return stored
        return None if again or stored["outcome"] not in MODELS_OWN else stored

    async def side_by_side(self, work: Iterable[Awaitable[T]]) -> list[T]:
        """Await coroutines that ask this chat, `concurrency` of them at a time; results in their order.

        Each asks one question after the other. `work` is drawn from as places become free. On the first fault
        no further request goes out, but those under way are waited for and recorded, because they are paid
        for.
        """
        results: dict[int, T] = {}
        waiting = enumerate(work)

        async def place() -> None:
            try:
                while self.backend.fault is None and (item := next(waiting, None)) is not None:
                    results[item[0]] = await item[1]
            except Exception as error:
                self.backend.fault = self.backend.fault or error

        try:
            async with asyncio.TaskGroup() as places:
                for _ in range(self.concurrency):
                    places.create_task(place())
            if self.backend.fault is not None:
                raise self.backend.fault
            return [results[number] for number in sorted(results)]
        finally:
            self.backend.fault = None

    def _stop_after_fault(self) -> None:
        if self.backend.fault is not None:
            raise self.backend.fault.with_traceback(None)

    def _replay(self, stored: dict[str, Any], request: Request, parse: Callable[[Reply], T]) -> Answer[T]:
        self.usage.replayed += 1
        reply = Reply(text=stored["text"], first_token=stored.get("first_token"), yes_no=stored.get("yes_no"))
        if rec.is_answer(stored):
            answer, _ = self._verdict(reply, request, parse)
        else:
            about = {"outcome": stored["outcome"], "reason": stored.get("reason", "")}
            answer = Answer(raw=reply.text, source=self.backend.source, **about)
        answer.attempts = stored["attempts"]
        return self._counted(answer)

    def _counted(self, answer: Answer[T]) -> Answer[T]:
        self.usage.outcomes[answer.outcome] += 1
        return answer

    async def _ask_live(
        self, request: Request, parse: Callable[[Reply], T], form: rec.Form | None = None
    ) -> Answer[T]:
        best: tuple[float, Answer[T], Reply] | None = None
        asked, attempt, lost = request, 1, 0
        while True:
            reply = await self._send(asked)
            answer, error = self._verdict(reply, asked, parse)
            if answer.outcome == UNRECORDED:  # a batch has no answer, or none any more
                return self._counted(answer)
            broken = _lost(reply, asked, answer) if answer.outcome in ("unusable", "length") else ""
            # Asked unchanged, a server that lost a reply brings it yet; a fixed seed brings the same again.
            if broken and lost < LOST_IN_A_ROW and not self.backend.repeats:
                lost += 1
                self.usage.retries[broken] += 1
                continue
            lost = LOST_IN_A_ROW if broken else 0
            # Accepted, then broken rules (fewer first), then no answer at all.
            faults = len(answer.violations) if answer.value is not None else math.inf
            if best is None or faults <= best[0]:
                best = faults, answer, reply
            if error is None or attempt == ATTEMPTS:
                break
            self.usage.retries[answer.outcome] += 1
            asked = self._next_attempt(request, attempt, reply, error)
            attempt += 1
        _, answer, reply = best
        answer.attempts = attempt
        if form is not None and self.recordings is not None:
            self.recordings.put(form, _recorded(answer, reply))
        self._counted(answer)
        useless = sum(self.usage.outcomes[outcome] for outcome in MODELS_OWN)
        if self.strict and useless == self.usage.outcomes.total() >= NOTHING_USABLE:
            raise EndpointError(
                f"none of the first {useless} answers of {answer.source} can be used; the last: "
                f"{answer.outcome}: {answer.reason}"
            )
        return answer

    def _next_attempt(self, request: Request, attempt: int, reply: Reply, error: UnusableReply) -> Request:
        """The request of the attempt after number `attempt`, whose `reply` had this `error`."""
        # A fixed seed may bring the same unusable reply again, so each attempt moves it on.
        changed: dict[str, Any] = {} if request.seed is None else {"seed": request.seed + attempt}
        # A rule is a thing that a model can keep once it is told; most other faults come by chance.
        if isinstance(error, BrokenRules) or attempt > UNCHANGED_RETRIES:
            reason = {"reason": error.reason, "details": error.details}
            # Above the mark stands what takes the place of an empty reply, in the language of the prompt.
            told = prompts.render(request.ask_again, **reason)
            nothing, _, note = told.partition("\n@user\n")
            answered = Message(role="assistant", text=reply.text or nothing)
            changed["messages"] = [*request.messages, answered, Message(role="user", text=note)]
        return request.model_copy(update=changed)

    async def _send(self, request: Request) -> Reply:
        """One exchange within the caps."""
        async with self.budget.call(request) as pay:
            self._stop_after_fault()
            self.usage.calls += 1
            reply = await self.backend.complete(request)
            self.usage.usd += pay(reply)
        self.usage.tokens_in += reply.tokens_in
        self.usage.tokens_out += reply.tokens_out
        self.usage.think_characters += reply.think_characters
        if again := self.backend.tried_again:
            self.usage.retries["sent again"] += again
            self.backend.tried_again = 0
        return reply

    def _verdict(
        self, reply: Reply, asked: Request, parse: Callable[[Reply], T]
    ) -> tuple[Answer[T], UnusableReply | None]:
        """The answer that a reply is, and the error for which it should be asked for again."""
        answer = Answer(raw=reply.text, source=self.backend.source)
        if reply.finish_reason in NO_REPLY:
            answer.outcome, answer.reason = reply.finish_reason, reply.text
            return answer, None
        try:
            if reply.refusal or reply.finish_reason == "content_filter":
                raise UnusableReply("refused" if reply.refusal else "filtered")
            if reply.finish_reason == "lost" or garbled(reply.text):
                raise UnusableReply("garbled text")
            answer.value = parse(reply)
        except BrokenRules as error:
            answer.value, answer.outcome, answer.violations = error.value, "violations", error.violations
            return answer, error
        except UnusableReply as error:
            # The server says that it breaks off where it should not: one token is always cut.
            is_cut = reply.finish_reason == "length" and asked.sampling.max_tokens != 1
            outcomes: dict[str, Outcome] = {"refused": "refusal", "filtered": "filtered"}
            answer.outcome = outcomes.get(error.reason, "length" if is_cut else "unusable")
            answer.reason = (answer.outcome == "length" and reply.no_text) or str(error)
            return answer, error
        return answer, None


def _lost(reply: Reply, asked: Request, answer: Answer) -> str:
    """In what way an unusable reply did not arrive whole; empty where it did, and the model is to blame."""
    if not reply.text:  # a model that spent its tokens on thought has nothing left to send
        thought = reply.think_characters > 0 or asked.sampling.max_tokens == 1
        return "" if thought and reply.finish_reason == "length" else "empty reply"
    if garbled(reply.text) or "\ufffd" in reply.text:
        return "garbled reply"
    return "cut reply" if answer.outcome == "length" or answer.reason == "cut off" else ""


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
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

    async def main() -> T:
        started.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

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


async def each(
    chat: Chat, items: Collection[S], ask: Callable[[S], Awaitable[T]], label: str, unit: str
) -> list[T]:
    """Await what `ask` makes of every item, side by side and counted by a progress bar; in their order."""

    async def counted(item: S) -> T:
        made = await ask(item)
        bar()
        return made

    with progress(chat, len(items), label, unit) as bar:
        return await chat.side_by_side(map(counted, items))


@contextmanager
def progress(chat: Chat, total: int, label: str, unit: str) -> Iterator[Bar]:
    """A progress bar for what asks `chat`, with tokens a second, money and what was tried again beside it.

    After `COMPARED_AFTER_S` seconds it says how the time compares with the estimate of `make cost`. Its clock
    starts with the first call: what is replayed tells no pace.
    """
    usage, budget, backend = chat.usage, chat.budget, chat.backend
    calls, tokens_in, tokens_out = usage.calls, usage.tokens_in, usage.tokens_out

    def words(shown: Any) -> str:
        parts = []
        if usage.calls > calls:
            seconds, written = max(shown.format_dict["elapsed"], 1), usage.tokens_out - tokens_out
            parts.append(f"{written / seconds:.1f} tokens/s")
            answered, read = usage.calls - calls - budget.open_calls, usage.tokens_in - tokens_in
            how = backend.repeats, chat.concurrency, backend.pace.apart
            reckoned = spending.reckoned_seconds(answered, read, written, *how)
            if seconds >= COMPARED_AFTER_S and reckoned > 0:
                parts.append(f"{seconds / reckoned:.1f} times the hours of `make cost`")
        if (wait := backend.pace.ready_at - time.monotonic()) > 1:
            parts.append(f"next call in {wait:.0f} s")
        if (usd := budget.spent.total("usd")) or budget.max_usd:
            parts.append(f"${usd:,.2f}" + (f" of ${budget.max_usd:,.2f}" if budget.max_usd else ""))
        if usage.retries:
            parts.append(f"{usage.retries.total():,} tried again")
        return " · ".join(parts)

    with bar(total, label, unit, words) as shown:

        def count(n: int = 1) -> None:
            shown.update(n)
            if usage.calls == calls:
                shown.start_t, shown.initial = time.time(), shown.n

        yield count
