"""The Batch API of OpenAI-compatible services: half the price, and up to a day's wait.

Requests are collected until no new one comes, sent as files, and each waits for the batch that holds it.
`Chat` works with it as with any other backend. What was sent, and what came back, is in a journal before
anything else is done with it, so that a kill at any point loses nothing and makes nothing be paid twice.
"""

import asyncio
import hashlib
import json
import random
import secrets
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from memecmd_utils import files
from memecmd_utils.llm.endpoint import (
    NEUTRAL,
    EmptyReply,
    Filtered,
    OnePerLoop,
    OpenAIBackend,
    Refusal,
    UnknownForm,
    name_fault,
    read_reply,
)
from memecmd_utils.llm.messages import (
    Backend,
    EndpointError,
    InDoubt,
    Reply,
    Request,
    RequestRejected,
    TransientFault,
)

T = TypeVar("T")
URL = "/v1/chat/completions"
TAG = "memecmd"
"""Name of the entry of a batch's metadata that says which of our files it was made from."""
TRIES_AT_FIRST, TRIES = 8, 60
"""Of one call: two minutes before the service ever answered, an hour after."""
LONGEST_WAIT_S = 60.0
TRANSFER_S = 3600.0
"""Longest silence while a file goes over the line."""
LOOK_AGAIN_S, SETTLED_AFTER_S = 5.0, 120.0
"""A batch made a moment ago may not be in the service's list yet."""
CLOCK_SKEW_S = 86_400.0
OURS = {400, 404, 405, 413, 422}
"""Statuses that say that the service does not do what we ask for."""
NO_BATCHES = "has it a Batch API? `batch: false` asks one by one"
STRANGE_BATCH = (
    "was it sent with another account or endpoint, or too long ago? Delete the stage's folder of batches to "
    "send anew what is not recorded"
)
NO_REQUEST = Request(task="annotation", subject=NEUTRAL, messages=[])
"""Stands for a request where a fault is the file's or the batch's."""


class Service:
    """The endpoint of `inner`, spoken to about files and batches.

    Every call is tried again for as long as a fault may mend; a batch is looked for before it is made again.
    """

    def __init__(self, inner: OpenAIBackend, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self.inner, self.sleep = inner, sleep
        self._reached = False

    async def upload(self, name: str, lines: BinaryIO) -> str:
        """Send a file of requests, one JSON line each, and return its id."""

        async def upload(client: Any, _: int) -> Any:
            lines.seek(0)
            return await client.files.create(file=(name, lines), purpose="batch", timeout=TRANSFER_S)

        return (await self._call("uploading a file", upload)).id

    async def create(self, file: str, tag: str, at: float) -> Any:
        """Make a batch of a file. `at`: Unix time before which none was made with this tag."""

        async def create(client: Any, tries: int) -> Any:
            # The try before may have made it without our hearing of it.
            known = await self._look_up(client, tag, at) if tries > 1 else None
            return known or await client.batches.create(
                input_file_id=file, endpoint=URL, completion_window="24h", metadata={TAG: tag}
            )

        return await self._call("making a batch", create)

    async def find(self, tag: str, at: float) -> Any:
        """Return the batch that a killed process may have made since `at`, or None."""
        return await self._call("listing batches", lambda client, _: self._look_up(client, tag, at))

    async def look(self, batch: str) -> Any:
        """Return the batch as it stands now."""
        return await self._call(f"looking at batch {batch}", lambda client, _: client.batches.retrieve(batch))

    async def results(self, batch: Any) -> dict[str, dict[str, Any]]:
        """Return the lines of an ended batch by custom id; the key is nowhere in them."""
        results: dict[str, dict[str, Any]] = {}
        for file in filter(None, (batch.error_file_id, batch.output_file_id)):
            action = f"fetching the results of batch {batch.id}"
            results |= await self._call(action, lambda client, _, file=file: self._lines(client, file))
        return results

    def why_failed(self, batch: Any) -> tuple[str, str]:
        """Return code and message of the first error of a failed batch."""
        errors = (batch.errors.data if batch.errors is not None else None) or []
        if not errors:
            return "", "the service does not say why"
        line = f" (line {errors[0].line})" if errors[0].line else ""
        return str(errors[0].code or ""), self.inner.redacted(errors[0].message) + line

    async def _lines(self, client: Any, file: str) -> dict[str, dict[str, Any]]:
        """Return the lines of a file by custom id; `ValueError` where it did not arrive whole."""
        content = (await client.files.content(file, timeout=TRANSFER_S)).content.decode(errors="replace")
        lines = [json.loads(raw) for raw in self.inner.guard.blot(content).split("\n") if raw.strip()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("not lines of results")
        return {str(line.get("custom_id")): line for line in lines}

    async def _look_up(self, client: Any, tag: str, at: float) -> Any:
        young = time.time() - at < SETTLED_AFTER_S
        for wait_s in (0.0, LOOK_AGAIN_S) if young else (0.0,):
            if wait_s:
                await self.sleep(wait_s)
            async for batch in client.batches.list(limit=100):
                if (batch.metadata or {}).get(TAG) == tag:
                    return batch
                if batch.created_at < at - CLOCK_SKEW_S:
                    break
        return None

    async def _call(self, action: str, call: Callable[[Any, int], Awaitable[T]]) -> T:
        import aiohttp
        import openai

        client = await self.inner.connect()
        tries = 0
        while True:
            tries += 1
            fault: Exception
            try:
                result = await call(client, tries)
                self._reached = True
                return result
            except openai.APIStatusError as error:
                fault = self._name(action, self.inner.refusal_of(error))
            except (openai.APIError, aiohttp.ClientError, TimeoutError, ValueError) as error:
                fault = name_fault(error)
            # Outside of the handlers, so that no fault of ours carries the SDK's, whose headers hold the key.
            if not isinstance(fault, TransientFault):
                raise fault
            if tries >= (TRIES if self._reached else TRIES_AT_FIRST):
                raise EndpointError(
                    f"{action} failed {tries} times, the last time with {fault.kind}. Batches that were sent "
                    "go on at the service: run again to go on"
                )
            back_off = min(LONGEST_WAIT_S, 2.0 ** (tries - 1))
            wait = back_off if fault.wait_s is None else fault.wait_s
            await self.sleep(wait * random.uniform(1.0, 1.25))

    def _name(self, action: str, refusal: Refusal) -> Exception:
        message = refusal.message.removeprefix(f"Error code: {refusal.status} - ")
        refused = f"the endpoint refused {action} ({refusal.status}): {message}"
        if refusal.status in OURS:
            hint = STRANGE_BATCH if action.startswith(("looking", "fetching")) else NO_BATCHES
            return EndpointError(f"{refused}; {hint}")
        fault = self.inner.name_status(refusal, NO_REQUEST, "plain")
        return fault if isinstance(fault, TransientFault | EndpointError) else EndpointError(refused)


ROUNDS = 3
"""Batches that a request may go into without a result."""
ENDED = {"completed", "failed", "expired", "cancelled"}
TOO_MANY_TOKENS = "token_limit_exceeded"
AGAIN: dict[str, Any] = {}
"""In place of a line of results: the request did not get into a batch and has to be offered again."""
JOURNAL = "journal.sqlite"


@dataclass(frozen=True)
class Limits:
    """When a file is closed, and how often batches are looked at."""

    quiet_s: float = 2.0
    """Seconds without a new request."""
    poll_s: float = 30.0
    """Seconds between two looks."""
    requests: int = 50_000
    """Most requests of a file."""
    size: int = 190_000_000
    """Most bytes of a file. The service takes 200 MB."""


@dataclass(eq=False)
class Part:
    """Requests that go into one batch together."""

    tag: str = field(default_factory=lambda: secrets.token_hex(8))
    """Under which its batch is found at the service."""
    at: float = 0.0
    """Unix time before which no batch was made of it; 0 before it is sent."""
    file: str = ""
    """Id of the file at the service; empty before the upload."""
    batch: str = ""
    """Id of the batch; empty before it is known that there is one."""
    ids: list[str] = field(default_factory=list)
    """Custom ids of its requests."""
    lines: BinaryIO | None = None
    """The requests until they are uploaded; a kill takes the file with it."""
    size: int = 0
    """Bytes of `lines`."""
    done: int = 0
    """Requests that the service has worked off, by its last word."""


class Journal:
    """The batches of one folder that are on their way, and the answers that came back."""

    def __init__(self, folder: Path) -> None:
        """Hold the folder until `close`. Raises `EndpointError` while another process does."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / JOURNAL
        self._database = sqlite3.connect(path, timeout=0, check_same_thread=False)
        try:
            self._database.execute("pragma locking_mode = exclusive")
            self._database.execute("begin exclusive")
            self._database.execute(
                "create table if not exists batches (tag primary key, at, file, batch, ids)"
            )
            self._database.execute("create table if not exists answers (custom_id primary key, line)")
            self._database.commit()
        except sqlite3.DatabaseError as error:
            self._database.close()
            busy = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            raise EndpointError(
                f"another process works with the batches in {folder}: wait until it has ended, or end it. "
                "Batches that it has sent go on at the server and are found again"
                if busy
                else f"{path} cannot be read ({error}); restore the file, or delete its folder to send anew "
                "what is not recorded (batches under way would be paid twice)"
            ) from None

    def parts(self) -> list[Part]:
        """Return what an earlier process has sent and not seen come back."""
        rows = self._database.execute("select tag, at, file, batch, ids from batches order by at")
        return [Part(*row, ids=ids.split()) for *row, ids in rows]

    def note(self, part: Part) -> None:
        """Write down that a batch is going to be made of a part or, with its id, that there is one."""
        row = part.tag, part.at, part.file, part.batch, " ".join(part.ids)
        with self._database:
            self._database.execute("insert or replace into batches values (?, ?, ?, ?, ?)", row)

    def save(self, part: Part, answers: dict[str, dict[str, Any]]) -> None:
        """Keep the answers to a part by custom id, all or none; nothing else will come back for it."""
        rows = [(custom_id, files.dumps(line)) for custom_id, line in answers.items()]
        with self._database:
            self._database.executemany("insert or replace into answers values (?, ?)", rows)
            self._database.execute("delete from batches where tag = ?", (part.tag,))

    def answer(self, custom_id: str) -> dict[str, Any] | None:
        """Return the line that answers a request, or None."""
        rows = self._database.execute("select line from answers where custom_id = ?", (custom_id,))
        return next((json.loads(line) for (line,) in rows), None)

    def close(self, used_up: Collection[str] = ()) -> None:
        """Let go of the folder; the answers to `used_up` answer no later request."""
        with self._database:
            self._database.executemany("delete from answers where custom_id = ?", [(one,) for one in used_up])
        self._database.close()


def is_free(folder: Path) -> bool:
    """Whether no process works with the batches in `folder`."""
    try:
        if (folder / JOURNAL).is_file():
            Journal(folder).close()
    except EndpointError:
        return False
    return True


class Session:
    """Work on a folder of batches; it ends with the event loop in which it was made, or with `close`."""

    def __init__(self, folder: Path, service: Service, limits: Limits) -> None:
        """Go on with what an earlier process has sent. Raises `EndpointError` if the folder is in use."""
        self.journal = Journal(folder)
        self._folder, self._service, self._limits = folder, service, limits
        self._most = limits.requests
        self._waiting: dict[str, asyncio.Future[dict[str, Any] | None]] = {}
        self._on_their_way: set[str] = set()
        """Custom ids of requests that are in a file or a batch."""
        self._times: Counter[str] = Counter()
        self._taken: set[str] = set()
        self.cut_short = False
        """Whether answers were handed out that did not come to their end in a stage."""
        self._parts: list[Part] = []
        self._under_way: set[Part] = set()
        self._started = 0
        self._one_is_back = asyncio.Event()
        self._filling: Part | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for part in self.journal.parts():
            self._on_their_way.update(part.ids)
            self._follow(part)

    @property
    def status(self) -> str:
        """How far the batches are, in words for the live line."""
        words = [f"collecting {len(self._filling.ids):,} requests"] if self._filling is not None else []
        if self._parts:
            back = sum(part.batch != "" and part not in self._under_way for part in self._parts)
            done, total = sum(part.done for part in self._parts), sum(len(part.ids) for part in self._parts)
            words.append(f"{back} of {len(self._parts)} batches back, {done:,} of {total:,} requests done")
        return ", ".join(words)

    def name(self, digest: str) -> str:
        """Name a request by what it says and how many times it has been asked since the loop began.

        A process that asks the same again after a kill so comes to the same names.
        """
        self._times[digest] += 1
        return f"{digest}-{self._times[digest]}"

    def offer(self, custom_id: str, body: bytes) -> asyncio.Future[dict[str, Any] | None]:
        """Send a request, unless its answer is there or on its way; the future gets its line of results.

        It gets None where the batch ended without one, or `AGAIN`. Raises `RequestRejected` where the
        request is larger than a file may be.
        """
        answer = self.journal.answer(custom_id)
        if answer is None and custom_id not in self._on_their_way:
            self._collect(custom_id, body)
        back = self._waiting[custom_id] = asyncio.get_running_loop().create_future()
        back.add_done_callback(lambda _: self._waiting.pop(custom_id, None))
        if answer is not None:
            self._hand_out(custom_id, answer)
        return back

    async def close(self) -> None:
        """Let go of the folder. After a stage that came to its end the same request means: ask anew."""
        if self._timer is not None:
            self._timer.cancel()
        used_up = () if self.cut_short or self._waiting else self._taken
        for pending in (*self._tasks, *self._waiting.values()):
            pending.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.journal.close(used_up)

    def _collect(self, custom_id: str, body: bytes) -> None:
        head = json.dumps({"custom_id": custom_id, "method": "POST", "url": URL})
        line = head[:-1].encode() + b', "body": ' + body + b"}\n"
        if len(line) > self._limits.size:
            raise RequestRejected(f"{len(line):,} bytes; a file of a batch may have {self._limits.size:,}")
        if self._filling is not None and self._filling.size + len(line) > self._limits.size:
            self._send()
        if self._filling is None:
            self._filling = Part(lines=tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
        part = self._filling
        part.lines.write(line)
        part.size += len(line)
        part.ids.append(custom_id)
        self._on_their_way.add(custom_id)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._limits.quiet_s, self._send)
        if len(part.ids) >= self._most:
            self._send()

    def _send(self) -> None:
        self._timer.cancel()
        part, self._filling = self._filling, None
        self._follow(part)

    def _follow(self, part: Part) -> None:
        self._parts.append(part)
        task = asyncio.ensure_future(self._carry(part))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, part: Part) -> None:
        """Take a part from requests to results; whatever ends that badly ends the stage."""
        try:
            while True:
                alone, started = not self._under_way, self._started
                batch = await self._ended(part)
                alone = alone and self._started == started + 1  # nobody began, and perhaps ended, meanwhile
                if batch is None:
                    self._give_back(part)
                    return
                if batch.status != "failed":
                    await self._take_in(part, batch)
                    return
                self.journal.save(part, {})
                code, message = self._service.why_failed(batch)
                if code != TOO_MANY_TOKENS:
                    raise EndpointError(
                        f"the endpoint refused batch {batch.id} ({code}): {message}. Check `model` and "
                        "`parameters` of the endpoint; `batch: false` asks one by one"
                    )
                part.tag, part.at = secrets.token_hex(8), 0.0
                part.file, part.batch = batch.input_file_id, ""
                if self._under_way:  # which may take up the account's tokens
                    await self._one_is_back.wait()
                elif alone and len(part.ids) > 1:
                    self._most = min(self._most, -(-len(part.ids) // 2))
                    self._give_back(part)
                    return
                elif alone:
                    raise EndpointError(
                        f"the account takes no more tokens in batches at this time: {message}. Run again "
                        "when its other batches have ended; `batch: false` asks one by one"
                    )
        except Exception as error:
            self._stop(error)

    async def _ended(self, part: Part) -> Any:
        """Make the batch of a part, unless there is one, and return it when it has ended.

        None where an earlier process was killed before it made the batch.
        """
        self._under_way.add(part)
        self._started += 1
        try:
            if part.batch:
                batch = await self._service.look(part.batch)
            elif part.at:
                batch = await self._service.find(part.tag, part.at)
            else:
                part.at = time.time()
                self.journal.note(part)
                part.file = part.file or await self._service.upload(f"{part.tag}.jsonl", part.lines)
                part.lines = None
                batch = await self._service.create(part.file, part.tag, part.at)
            if batch is None:
                self.journal.save(part, {})
                return None
            if not part.batch:
                part.batch = batch.id
                self.journal.note(part)
            while batch.status not in ENDED:
                await self._service.sleep(self._limits.poll_s)
                batch = await self._service.look(part.batch)
                counts = batch.request_counts
                part.done = 0 if counts is None else counts.completed + counts.failed
            return batch
        finally:
            self._under_way.discard(part)

    async def _take_in(self, part: Part, batch: Any) -> None:
        """Save what came back for a part, and hand it out."""
        results = await self._service.results(batch)
        answers = {one: line for one, line in results.items() if _is_answer(line)}
        self.journal.save(part, answers)
        self._let_go(part)
        part.done = len(part.ids)
        # Answers first: they show that set-up and form work, so that a fault is the request's own.
        for one in sorted(part.ids, key=lambda one: one not in answers):
            if one in answers or batch.status != "cancelled":
                self._hand_out(one, results.get(one))
        if batch.status == "cancelled":
            raise EndpointError(f"batch {part.batch} was cancelled; run again to submit the rest anew")

    def _give_back(self, part: Part) -> None:
        """Have the requests of a part offered again: it was too large, or a kill came before its batch."""
        self._parts.remove(part)
        self._let_go(part)
        for one in part.ids:
            self._hand_out(one, AGAIN)

    def _let_go(self, part: Part) -> None:
        """Note that a part is on its way no more, and wake those that wait for the account's tokens."""
        self._on_their_way.difference_update(part.ids)
        self._one_is_back.set()
        self._one_is_back = asyncio.Event()

    def _hand_out(self, custom_id: str, line: dict[str, Any] | None) -> None:
        back = self._waiting.get(custom_id)
        if back is not None and not back.done():
            self._taken.add(custom_id)
            back.set_result(line)

    def _stop(self, error: Exception) -> None:
        """End every wait, because a person has to look. What is under way is found again."""
        for back in self._waiting.values():
            if not back.done():
                back.set_exception(EndpointError(str(error)) if isinstance(error, EndpointError) else error)


def _is_answer(line: dict[str, Any]) -> bool:
    response = line.get("response") or {}
    try:
        read_reply(response.get("body"))
    except EmptyReply:
        return False
    return response.get("status_code") == 200


class BatchBackend(Backend):
    """Sends the requests of `inner` in batches, and survives a kill through the journal in `folder`.

    It always counts as alive: a batch may take a day, and a dead endpoint shows at the next look at it.
    """

    in_bulk = True

    def __init__(
        self,
        inner: OpenAIBackend,
        folder: Path,
        limits: Limits = Limits(),
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self.inner, self.folder = inner, folder
        self.model, self.source = inner.model, inner.source
        self.repeats, self.dropped = inner.repeats, inner.dropped
        self._service = Service(inner, sleep)
        self._sessions = OnePerLoop(lambda: Session(folder, self._service, limits), Session.close)
        self._works: set[str] = set()
        """Forms in which a chat completion came back."""

    @property
    def status(self) -> str:
        """How far the batches are, in words for the live line; empty while there are none."""
        return "" if self._sessions.current is None else self._sessions.current.status

    async def complete(self, request: Request) -> Reply:
        """Return the reply once its batch is back. What failed for good has `finish_reason` `failed`.

        Raises `EndpointError` for what needs a hand, `RequestRejected`, `InDoubt`, and `TransientFault` for a
        reply that cannot be read; the next call with the same request then sends it anew. What is in doubt
        is not left so for a day: a neutral request goes out at once, and not in a batch.
        """
        if request.subject == NEUTRAL:
            return await self.inner.complete(request)
        session = await self._sessions.get()
        try:
            return await self._complete(request, session)
        except (RequestRejected, InDoubt, TransientFault):
            raise
        except BaseException:
            session.cut_short = True
            raise

    async def _complete(self, request: Request, session: Session) -> Reply:
        digest, custom_id, rounds = "", "", 0
        while True:
            form = self.inner.form(request)
            body = files.dumps(self.inner.body(request)).encode()
            # The sample is not in the body where the endpoint knows no seed.
            before, digest = digest, hashlib.sha256(b"%d %s" % (request.sample, body)).hexdigest()[:40]
            if digest != before:  # else it did not get through under its name
                custom_id = session.name(digest)
            back = session.offer(custom_id, body)
            del body  # images are large, and batches take a day
            line = await back
            if line is AGAIN:
                continue
            outcome = self._read(line or {}, form, request)
            if isinstance(outcome, Reply):
                return outcome
            if isinstance(outcome, TransientFault) and not outcome.paid:
                rounds += 1
                if rounds == ROUNDS and self._works:
                    # A fault would make the throttle count a day's wait as silence of the endpoint.
                    return Reply(text=f"{ROUNDS} batches, the last: {outcome.kind}", finish_reason="failed")
                if rounds == ROUNDS:
                    raise EndpointError(
                        f"{ROUNDS} batches brought not a single answer; the last fault was {outcome.kind}. "
                        "Run again to go on, or ask one by one with `batch: false`"
                    )
            elif not isinstance(outcome, UnknownForm):  # else `inner` has given the form up meanwhile
                raise outcome

    def _read(self, line: dict[str, Any], form: str, request: Request) -> Reply | Exception:
        """Turn a line of results into a reply, or into the fault that it stands for."""
        response = line.get("response") or {}
        status, body = response.get("status_code"), response.get("body")
        if status == 200:
            try:
                reply = read_reply(body)
            except EmptyReply:
                if self._works:
                    return TransientFault("unreadable reply", paid=True)
                return EndpointError(
                    "the batch came back without a single chat completion; `batch: false` asks one by one"
                )
            self._works.add(form)
            self.inner.note_success(request, form)
            return reply
        if not status:
            error = line.get("error")
            return TransientFault(str((error if isinstance(error, dict) else {}).get("code") or "no result"))
        error = body.get("error") if isinstance(body, dict) else None
        error = error if isinstance(error, dict) else {"message": error or body}
        if form in self._works:
            self.inner.note_success(request, form)
        message, code = str(error.get("message"))[:300], str(error.get("code") or "")
        parameter = str(error.get("param") or "")
        fault = self.inner.name_status(Refusal(status, message, code, parameter), request, form)
        return Reply(text="", finish_reason="content_filter") if isinstance(fault, Filtered) else fault
