"""A simulated Batch API over real HTTP on loopback, for tests. Its state outlives the client processes."""

import asyncio
import json
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, SecretStr
from tiny_server import chat_reply, error

from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import messages as llm_messages
from memecmd_utils.llm import replies
from memecmd_utils.llm.batch import BatchBackend, Limits
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.messages import InDoubt, Message, Reply, Request, Sampling
from memecmd_utils.recordings import Recordings
from memecmd_utils.settings import Endpoint

KEY = "sk-very-secret-0123456789"
Body = dict[str, Any]


@dataclass
class Fault:
    """An answer that is no answer: a status, a broken connection, or a broken one *after* the work."""

    status: int = 500
    reset: bool = False
    after: bool = False
    message: str = "x"


@dataclass
class Outcome:
    """What becomes of one request of a batch: a status and a body, or a code without any (`expired`)."""

    body: Any = None
    status: int = 200
    code: str = ""


class BatchServer:
    """Files, batches and their results.

    `answer` makes an `Outcome` or a reply's text of a request's body. `faults` maps "POST /files" and so
    on to faults that come first. `end` says of a batch's number and its bodies how it ends: "completed",
    "expired", "cancelled", or a pair (code, message) for "failed". A batch takes `polls` looks.
    `on_call` is told of each call before it is answered.
    """

    def __init__(
        self,
        answer: Callable[[Body], Outcome | str] = lambda body: "好",
        polls: int = 1,
        end: Callable[[int, list[Body]], Any] = lambda number, bodies: "completed",
        faults: dict[str, list[Fault]] | None = None,
        on_call: Callable[[str], None] = lambda call: None,
        token_cap: int | None = None,
    ) -> None:
        self.answer, self.polls, self.end, self.on_call = answer, polls, end, on_call
        self.faults, self.token_cap = faults or {}, token_cap
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Body] = {}
        self.calls: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        """How many times a custom id was given a completion."""
        self._lock = threading.RLock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement

            def do_POST(self) -> None:
                outer._serve(self, "POST")

            def do_GET(self) -> None:
                outer._serve(self, "GET")

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator["BatchServer"]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def sent(self, number: int) -> list[Body]:
        """Lines of the file of the nth batch."""
        return self._lines(list(self.batches.values())[number]["input_file_id"])

    @property
    def sizes(self) -> list[int]:
        """Requests of each batch."""
        return [len(self.sent(n)) for n in range(len(self.batches))]

    # --- the API --------------------------------------------------------------------------------------

    def _serve(self, handler: BaseHTTPRequestHandler, method: str) -> None:
        data = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        url = urlsplit(handler.path)
        path = url.path.removeprefix("/v1").strip("/").split("/")
        call = " ".join([method, "/" + "/".join("ID" if n == 1 else part for n, part in enumerate(path))])
        with self._lock:
            self.calls[call] += 1
            self.on_call(call)
            waiting = self.faults.get(call) or []
            fault = waiting.pop(0) if waiting else None
            status, body = 200, b""
            if fault is None or fault.after:
                status, body = self._do(call, path, parse_qs(url.query), data, handler.headers)
            if fault is not None and not fault.reset:
                status, body = fault.status, json.dumps(error(fault.message)).encode()
        if fault is not None and fault.reset:
            # A linger of zero sends RST instead of FIN.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
            return
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _do(self, call: str, path: list[str], query: Any, data: bytes, headers: Any) -> tuple[int, bytes]:
        def ok(value: Any) -> tuple[int, bytes]:
            return 200, json.dumps(value).encode()

        match call:
            case "POST /chat/ID":  # asked at once and not in a batch
                outcome = self.answer(json.loads(data))
                outcome = Outcome(chat_reply(outcome)) if isinstance(outcome, str) else outcome
                return outcome.status, json.dumps(outcome.body).encode()
            case "POST /files":
                name, content = self._store_upload(data, headers["Content-Type"])
                return ok({"id": name, "object": "file", "bytes": len(content), "created_at": 1,
                           "filename": "x.jsonl", "purpose": "batch", "status": "processed"})  # fmt: skip
            case "GET /files/ID/content":
                found = self.files.get(path[1])
                return (404, json.dumps(error("no such file")).encode()) if found is None else (200, found)
            case "POST /batches":
                return ok(self._create(json.loads(data)))
            case "GET /batches":
                newest = list(reversed(self.batches.values()))
                after = query.get("after", [""])[0]
                names = [batch["id"] for batch in newest]
                start = names.index(after) + 1 if after else 0
                some = newest[start : start + 2]  # small pages, so that tests need more than one
                more = start + 2 < len(newest)
                return ok({"object": "list", "data": [self._shown(b) for b in some], "has_more": more,
                           "last_id": some[-1]["id"] if some else None})  # fmt: skip
            case "GET /batches/ID":
                if path[1] not in self.batches:
                    return 404, json.dumps(error("no such batch")).encode()
                return ok(self._shown(self._progress(self.batches[path[1]])))
        return 404, json.dumps(error("unknown path")).encode()

    def _store_upload(self, data: bytes, kind: str) -> tuple[str, bytes]:
        boundary = kind.partition("boundary=")[2].strip('"').encode()
        fields = {}
        for part in data.split(b"--" + boundary)[1:-1]:
            head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
            name = head.partition(b'name="')[2].partition(b'"')[0].decode()
            fields[name] = content.removesuffix(b"\r\n")
        assert fields["purpose"] == b"batch"
        file_id = f"file-{self.calls['POST /files'] - 1}"
        self.files[file_id] = fields["file"]
        return file_id, fields["file"]

    def _lines(self, file: str) -> list[Body]:
        return [json.loads(line) for line in self.files[file].split(b"\n") if line]

    def _create(self, asked: Body) -> Body:
        assert asked["endpoint"] == "/v1/chat/completions" and asked["completion_window"] == "24h"
        lines = self._lines(asked["input_file_id"])
        ids = [line["custom_id"] for line in lines]
        assert len(set(ids)) == len(ids) and all(line["url"] == asked["endpoint"] for line in lines)
        number = len(self.batches)
        batch = {
            "id": f"batch_{number}", "object": "batch", "endpoint": asked["endpoint"], "errors": None,
            "input_file_id": asked["input_file_id"], "completion_window": "24h", "status": "validating",
            "created_at": 2_000_000_000 + number, "metadata": asked.get("metadata"),
            "output_file_id": None, "error_file_id": None,
            "request_counts": {"total": len(ids), "completed": 0, "failed": 0},
            "_looks": 0, "_end": self.end(number, [line["body"] for line in lines]),
        }  # fmt: skip
        running = [b for b in self.batches.values() if b["status"] in ("validating", "in_progress")]
        enqueued = sum(b["request_counts"]["total"] for b in running)
        if self.token_cap is not None and enqueued + len(ids) > self.token_cap:
            batch["_end"] = ("token_limit_exceeded", "Enqueued token limit reached")
        self.batches[batch["id"]] = batch
        return self._shown(batch)

    @staticmethod
    def _shown(batch: Body) -> Body:
        return {key: value for key, value in batch.items() if not key.startswith("_")}

    def _progress(self, batch: Body) -> Body:
        if batch["status"] not in ("validating", "in_progress"):
            return batch
        batch["_looks"] += 1
        if isinstance(batch["_end"], tuple):
            code, message = batch["_end"]
            batch["status"] = "failed"
            batch["errors"] = {"object": "list", "data": [{"code": code, "message": message, "line": 1}]}
        elif batch["_looks"] <= self.polls:
            batch["status"] = "in_progress"
            total = batch["request_counts"]["total"]
            batch["request_counts"]["completed"] = total * batch["_looks"] // (self.polls + 1)
        else:
            self._finish(batch)
        return batch

    def _finish(self, batch: Body) -> None:
        good, bad = [], []
        lines = self._lines(batch["input_file_id"])
        for n, line in enumerate(lines):
            custom_id = line["custom_id"]
            if batch["_end"] != "completed" and 2 * n >= len(lines):
                outcome = Outcome(code=f"batch_{batch['_end']}")
            else:
                outcome = self.answer(line["body"])
            if isinstance(outcome, str):
                outcome = Outcome(chat_reply(outcome))
            result: Body = {"id": f"r{n}", "custom_id": custom_id, "response": None, "error": None}
            if outcome.code:
                result["error"] = {"code": outcome.code, "message": "not done"}
            else:
                result["response"] = {"status_code": outcome.status, "request_id": "q", "body": outcome.body}
            if not outcome.code and outcome.status == 200:
                self.answered[custom_id] += 1
            (good if outcome.status == 200 and not outcome.code else bad).append(result)
        random.Random(1).shuffle(good)
        for key, results in (("output_file_id", good), ("error_file_id", bad)):
            if results:
                batch[key] = f"{batch['id']}-{key}"
                text = "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
                self.files[batch[key]] = text.encode()
        batch["request_counts"] = {"total": len(lines), "completed": len(good), "failed": len(bad)}
        batch["status"] = batch["_end"]


# --- a client -----------------------------------------------------------------------------------------


class Mood(BaseModel):
    mood: str


def request(n: int = 1, schema: type[BaseModel] | None = Mood, **changes: Any) -> Request:
    messages = [Message(role="user", text=f"第{n}问", images=changes.pop("images", []))]
    sampling = Sampling(max_tokens=40)
    values = {"task": "annotation", "subject": f"m{n}", "messages": messages, "sampling": sampling}
    return Request(**{**values, "seed": 5, "reply_schema": schema, **changes})


def number_of(body: Body) -> int:
    content = body["messages"][0]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    return int(re.search(r"[0-9]+|$", text).group() or 0)  # 0: a neutral request


def mood(body: Body) -> str:
    """A reply that tells which request it belongs to."""
    return json.dumps({"mood": f"{number_of(body)}号"}, ensure_ascii=False)


def parse(reply: Reply) -> str:
    return replies.structured(reply, Mood).mood


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.01))


def backend_for(url: str, folder: Path, **options: Any) -> BatchBackend:
    endpoint = Endpoint(base_url=url, model="tiny", **options.pop("endpoint", {}))
    limits = Limits(**{"quiet_s": 0.05, "poll_s": 0.01, **options})
    return BatchBackend(OpenAIBackend(endpoint, key=SecretStr(KEY)), folder / "jobs", limits, no_wait)


def chat_for(backend: BatchBackend, folder: Path, **options: Any) -> Chat:
    options = {"concurrency": 100_000, "dead_after_s": float("inf"), "sleep": no_wait, **options}
    return Chat(backend, Recordings("s", [folder], folder), "auto", **options)


def ask_all(
    chat: Chat, asked: list[Request], parser: Callable[[Reply], Any] = parse
) -> list[llm_messages.Answer]:
    return llm_chat.run(chat.side_by_side(chat.ask(r, parser) for r in asked))


def run(url: str, folder: Path, asked: list[Request], **options: Any) -> list[llm_messages.Answer]:
    return ask_all(chat_for(backend_for(url, folder, **options), folder), asked)


def completed(url: str, folder: Path, *asked: Request, **options: Any) -> list[Any]:
    """Replies or faults of the backend itself, without `Chat` in front of it."""
    backend = backend_for(url, folder, **options)

    async def work() -> list[Any]:
        return await asyncio.gather(*(settled(r) for r in asked), return_exceptions=True)

    async def settled(asked: Request) -> Reply:
        try:
            return await backend.complete(asked)
        except InDoubt as doubt:  # as `delivery` does
            await backend.complete(doubt.neutral)
            return await backend.complete(asked)

    return llm_chat.run(work())
