"""The Batch API of OpenAI-compatible services: half the price, and up to a day's wait.

Requests are collected until no new one comes, sent as files, and each waits for the batch that holds it.
`Chat` works with it as with any other backend. What was sent is found again after a kill (`batch_jobs`).
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from memecmd_utils import storage
from memecmd_utils.batch_jobs import Result
from memecmd_utils.batch_service import Service
from memecmd_utils.batch_session import Limits, Session
from memecmd_utils.llm_types import (
    EndpointError,
    InDoubt,
    Reply,
    Request,
    RequestRejected,
    TransientFault,
)
from memecmd_utils.llm_wire import EmptyReply, read_reply
from memecmd_utils.openai_backend import NEUTRAL, Filtered, OpenAIBackend, UnknownForm

MAX_REQUESTS, MAX_BYTES = 50_000, 190_000_000
"""Of one file. The service takes 200 MB."""
ROUNDS = 3
"""Batches that a request may go into without a result."""


def plan(requests: int, bytes_each: float, most: int = MAX_REQUESTS, most_bytes: int = MAX_BYTES) -> int:
    """Number of files that so many requests of so many bytes each make."""
    return -(-requests // max(1, min(most, int(most_bytes // max(1.0, bytes_each)))))


class BatchBackend:
    """Sends the requests of `inner` in batches, and survives a kill through the files in `folder`."""

    in_bulk = True

    def __init__(
        self,
        inner: OpenAIBackend,
        folder: Path,
        quiet_s: float = 2.0,
        poll_s: float = 30.0,
        max_requests: int = MAX_REQUESTS,
        max_bytes: int = MAX_BYTES,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """`quiet_s` without a new request close a file; batches are looked at every `poll_s`."""
        self.inner, self.folder = inner, folder
        self.model, self.recordable, self.source = inner.model, inner.recordable, inner.source
        self.repeats, self.dropped = inner.repeats, inner.dropped
        self._limits, self._sleep = Limits(quiet_s, poll_s, max_requests, max_bytes), sleep
        self._service = Service(inner, sleep)
        self._session: Session | None = None
        self._closer: Any = None
        self._times: Counter[str] = Counter()
        self._cut_short = False

    @property
    def status(self) -> str:
        """How far the batches are, in words for the live line; empty while there are none."""
        return "" if self._session is None else self._session.status

    async def complete(self, request: Request) -> Reply:
        """Return the reply once its batch is back. What failed for good has `finish_reason` `failed`.

        Raises `EndpointError` for what needs a hand, `RequestRejected`, `InDoubt`, and `TransientFault` for a
        reply that cannot be read; the next call with the same request then sends it anew. What is in doubt
        is not left so for a day: a neutral request goes out at once, and not in a batch.
        """
        if request.subject == NEUTRAL:
            return await self.inner.complete(request)
        try:
            return await self._complete(request, await self._open())
        except (RequestRejected, InDoubt, TransientFault):
            raise
        except BaseException:
            self._cut_short = True
            raise

    async def alive(self, within_s: float) -> bool:
        """Say yes: a batch may take a day, and a dead endpoint shows at the next look at it."""
        return True

    async def aclose(self) -> None:
        """Let go of the folder and of connections; batches under way go on at the service."""
        if self._closer is not None:
            await self._closer.aclose()
            self._closer = None
        await self.inner.aclose()

    async def _open(self) -> Session:
        """Return the session of this event loop; notebooks start one loop per call."""
        if self._session is None or self._session.loop is not asyncio.get_running_loop():
            if self._session is not None:  # its loop was dropped without an end
                self._session.jobs.close()
                self._session = None
            self._closer = self._until_loop_ends()
            await anext(self._closer)  # waits for nothing
        session = self._session
        await session.ready()
        return session

    async def _until_loop_ends(self) -> AsyncIterator[None]:
        """Keep a session. `asyncio.run` closes open generators, and so the session."""
        session = self._session = Session(self.folder, self._service, self._limits, self._sleep)
        self._times, self._cut_short = Counter(), False
        try:
            yield
        finally:
            self._session = None
            # After a stage that came to its end the same request means: ask anew.
            await session.close(used_up=not self._cut_short)

    async def _complete(self, request: Request, session: Session) -> Reply:
        form, digest, body = self._body(request)
        custom_id, rounds = self._custom_id(digest), 0
        while True:
            session.offer(custom_id, self._kind(form), body)
            body = b""  # images are large, and batches take a day
            result = await session.result(custom_id)
            outcome = self._read(result, form, request, session.jobs.works)
            if isinstance(outcome, Reply):
                return outcome
            if isinstance(outcome, UnknownForm):
                self._step_down(form, request)
                rounds = 0
            elif isinstance(outcome, TransientFault) and not outcome.paid:
                rounds += 1
                if rounds == ROUNDS:
                    return self._given_up(outcome.kind, session.jobs.works)
                session.jobs.forget(custom_id)
            elif isinstance(outcome, EndpointError | InDoubt) and not result.fresh:
                session.jobs.forget(custom_id)  # whatever it was may have been mended since
            else:
                raise outcome
            before = digest
            form, digest, body = self._body(request)
            if digest != before:
                custom_id = self._custom_id(digest)

    def _body(self, request: Request) -> tuple[str, str, bytes]:
        """Return the form of reply that is asked for now, a digest of the request, and its body."""
        form = "plain" if request.reply_schema is None else self.inner.form(request)
        body = storage.dumps(self.inner.body(request)).encode()
        # The sample is not in the body where the endpoint knows no seed.
        return form, hashlib.sha256(b"%d %s" % (request.sample, body)).hexdigest()[:40], body

    def _custom_id(self, digest: str) -> str:
        """Name a request by what it says and how many times it has been asked since the loop began.

        A process that asks the same again after a kill so comes to the same names.
        """
        self._times[digest] += 1
        return f"{digest}-{self._times[digest]}"

    def _kind(self, form: str) -> str:
        return f"{form} {self.inner.endpoint.model}"

    def _read(self, result: Result | None, form: str, request: Request, works: set[str]) -> Reply | Exception:
        """Turn a line of results into a reply, or into the fault that it stands for."""
        line = {} if result is None else result.line
        response = line.get("response") or {}
        status, body = response.get("status_code"), response.get("body")
        if status == 200:
            try:
                reply = read_reply(body)
            except EmptyReply:
                if works:
                    return TransientFault("unreadable reply", paid=True)
                return EndpointError(
                    "the batch came back without a single chat completion; `batch: false` asks one by one"
                )
            self.inner.worked(request, form)
            return reply
        if not status:
            error = line.get("error")
            return TransientFault(str((error if isinstance(error, dict) else {}).get("code") or "no result"))
        error = body.get("error") if isinstance(body, dict) else None
        error = error if isinstance(error, dict) else {"message": error or body}
        if self._kind(form) in works:
            self.inner.worked(request, form)
        message = str(error.get("message"))[:300]
        code = str(error.get("code") or "")
        fault = self.inner.name_status(status, code, message, error.get("param"), request, form)
        if isinstance(fault, Filtered):
            return Reply(text="", finish_reason="content_filter")
        if isinstance(fault, UnknownForm) and self._kind(form) in works:
            return RequestRejected(f"{status}: {message}")
        return fault

    def _step_down(self, form: str, request: Request) -> None:
        self.inner.step_down(form)
        if self.inner.form(request) == form:
            # Its schema is outside the strict subset, so it was sent one rung below the others.
            self.inner.step_down("schema")
            self.inner.step_down(form)

    def _given_up(self, kind: str, works: set[str]) -> Reply:
        # A fault would make the throttle count a day's wait as silence of the endpoint.
        if works:
            return Reply(text=f"{ROUNDS} batches, the last: {kind}", finish_reason="failed")
        raise EndpointError(
            f"{ROUNDS} batches brought not a single answer; the last fault was {kind}. Run again to go on, "
            "or ask one by one with `batch: false`"
        )
