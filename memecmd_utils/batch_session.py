"""The batches of one event loop: requests are collected into files, and each is followed to its results."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memecmd_utils.batch_jobs import Jobs, Part, Result
from memecmd_utils.batch_service import ENDED, URL, Service
from memecmd_utils.llm_types import EndpointError, RequestRejected

TOO_MANY_TOKENS = "token_limit_exceeded"


@dataclass(frozen=True)
class Limits:
    """When a file is closed, and how often batches are looked at."""

    quiet_s: float
    """Seconds without a new request."""
    poll_s: float
    """Seconds between two looks."""
    requests: int
    """Most requests of a file."""
    size: int
    """Most bytes of a file."""


class Session:
    """Work on a folder of batches; it ends with the event loop in which it was made, or with `close`."""

    def __init__(
        self, folder: Path, service: Service, limits: Limits, sleep: Callable[[float], Awaitable[Any]]
    ) -> None:
        """Go on with what an earlier process has sent. Raises `EndpointError` if the folder is in use."""
        self.loop = asyncio.get_running_loop()
        self.jobs = Jobs(folder)
        self._service, self._limits, self._sleep = service, limits, sleep
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._parts: list[Part] = []
        self._part: Part | None = None
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._one_ended = asyncio.Event()
        self._resting: set[Part] = set()
        self._crowded: set[Part] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovered = asyncio.ensure_future(self._recover())

    @property
    def status(self) -> str:
        """How far the batches are, in words for the live line."""
        text = f"collecting {len(self._part.forms):,} requests" if self._part is not None else ""
        if self._parts:
            back = sum(part.tag not in self.jobs.open and part.at > 0 for part in self._parts)
            done, total = sum(part.done for part in self._parts), sum(len(part.forms) for part in self._parts)
            of = f"{back} of {len(self._parts)} batches back, {done:,} of {total:,} requests done"
            text = f"{text}, {of}" if text else of
        return text

    async def ready(self) -> None:
        """Wait until it is known what an earlier process has sent."""
        await asyncio.shield(self._recovered)

    def offer(self, custom_id: str, form: str, body: bytes) -> None:
        """Put a request into the next file, unless its result is there or on its way.

        Raises `RequestRejected` where it is larger than a file may be.
        """
        if self.jobs.status(custom_id) is not None or self.jobs.holder(custom_id) is not None:
            return
        head = json.dumps({"custom_id": custom_id, "method": "POST", "url": URL})
        line = head[:-1].encode() + b', "body": ' + body + b"}\n"
        if len(line) > self._limits.size:
            raise RequestRejected(f"{len(line):,} bytes; a file of a batch may have {self._limits.size:,}")
        if self._part is not None and self._part.size + len(line) > self._limits.size:
            self._send()
        if self._part is None:
            self._part = self.jobs.new_part()
        self.jobs.add(self._part, custom_id, form, line)
        self._last = self.loop.time()
        if len(self._part.forms) >= self._limits.requests:
            self._send()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.quiet_s, self._look)

    async def result(self, custom_id: str) -> Result | None:
        """Wait for the result of a request that was offered; None where its batch ended without one."""
        found = self.jobs.result(custom_id)
        if found is not None:
            return found
        back = self._waiting[custom_id] = self.loop.create_future()
        try:
            await back
        finally:
            self._waiting.pop(custom_id, None)
        return self.jobs.result(custom_id)

    async def close(self, used_up: bool) -> None:
        """Let go of the folder. `used_up`: every result that was taken has come to its end."""
        if self._timer is not None:
            self._timer.cancel()
        used_up = used_up and not self._waiting
        tasks = [self._recovered, *self._tasks]
        for pending in (*tasks, *self._waiting.values()):
            pending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.jobs.close(used_up)

    def _look(self) -> None:
        left = self._last + self._limits.quiet_s - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        else:
            self._send()

    def _send(self) -> None:
        part, self._part = self._part, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._follow(part)

    async def _recover(self) -> None:
        """Go on with what an earlier process has sent."""
        for part in list(self.jobs.open.values()):
            if not part.batch:
                batch = await self._service.find(part)
                if batch is None:
                    self.jobs.dropped(part, "never became a batch")
                    continue
                self.jobs.created(part, batch, part.file)
            self._follow(part)

    def _follow(self, part: Part) -> None:
        self._parts.append(part)
        task = asyncio.ensure_future(self._carry(part))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, part: Part) -> None:
        """Take a part from file to results; whatever ends that badly ends the stage."""
        try:
            if not part.batch:
                if not any(one in self._waiting for one in part.forms):
                    self.jobs.dropped(part, "nobody waits for it")
                    return
                if not part.at:
                    self.jobs.seal(part)
                if set(self.jobs.open.values()) - self._resting - {part}:
                    self._crowded.add(part)
                self.jobs.created(part, await self._service.create(part), part.file)
            await self._until_back(part)
        except Exception as error:
            self._stop(error)

    async def _until_back(self, part: Part) -> None:
        batch = await self._service.look(part.batch)
        while batch.status not in ENDED:
            counts = batch.request_counts
            part.done = 0 if counts is None else counts.completed + counts.failed
            await self._sleep(self._limits.poll_s)
            batch = await self._service.look(part.batch)
        if batch.status == "failed":
            await self._failed(part, batch)
            return
        self.jobs.save(part, await self._service.results(batch))
        part.done = len(part.forms)
        self._note_end()
        answered, other = [], []
        for one in part.forms:
            (answered if self.jobs.status(one) == 200 else other).append(one)
        # Answers first: they show that set-up and form work, so that a fault is the request's own.
        for one in answered + other * (batch.status != "cancelled"):
            back = self._waiting.get(one)
            if back is not None and not back.done():
                back.set_result(None)
        if batch.status == "cancelled":
            raise EndpointError(f"batch {part.batch} was cancelled; run again to submit the rest anew")

    async def _failed(self, part: Part, batch: Any) -> None:
        """Deal with a batch that the service did not take as a whole."""
        code, message = await self._service.why_failed(batch)
        if code != TOO_MANY_TOKENS:
            self.jobs.dropped(part, "failed")
            raise EndpointError(
                f"the endpoint refused batch {part.batch} ({code}): {message}. Check `model` and "
                "`parameters` of the endpoint; `batch: false` asks one by one"
            )
        self._parts.remove(part)
        if any(other.batch for other in self.jobs.open.values() if other is not part):
            part = self.jobs.again(part)
            self._resting.add(part)
            await self._one_ended.wait()
            self._resting.remove(part)
            self._follow(part)
        elif part in self._crowded:  # by batches that have ended since
            self._follow(self.jobs.again(part))
        elif len(part.forms) > 1:
            for half in self.jobs.halves(part):
                self._follow(half)
        else:
            self.jobs.dropped(part, "failed")
            raise EndpointError(
                f"the account takes no more tokens in batches at this time: {message}. Run again when its "
                "other batches have ended; `batch: false` asks one by one"
            )

    def _note_end(self) -> None:
        self._one_ended.set()
        self._one_ended = asyncio.Event()

    def _stop(self, error: Exception) -> None:
        """End every wait, because a person has to look. What is under way is found again."""
        for back in self._waiting.values():
            if not back.done():
                back.set_exception(EndpointError(str(error)) if isinstance(error, EndpointError) else error)
