"""A simulated chat-completions endpoint over real HTTP, fast, that fails on purpose.

What it replies is a function of the request alone, never of order or time, so that a run with faults can
be compared with one without. A fault is drawn from the request's fingerprint, from how many times it came
before, and from a seed. Every request is one line of the log.

    python tests/helpers/fault_server.py --latency 0.2 --faults 0.2 --seed 1 --log FILE    # prints its port
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from fault_replies import Asked, drawn

BUSY = ("429 seconds", "429 date", "429 plain", "500", "503", "502 html", "408", "409", "425")
"""Faults for which nobody pays: the model was never asked."""
LOST = ("time-out", "reset", "half body", "html 200", "bad json", "no choices", "null choices", "empty body")
"""Faults after which the model has answered, but the answer did not arrive."""
CONTENT = ("cut text", "empty text", "garbled text")
"""Faults after which an answer arrives that is not what the model said."""
HTML = b"<html><body><h1>Bad Gateway</h1></body></html>"
BURST = 10.0
"""Requests that mode `rate` takes at once."""
MODES = ("normal", "500", "429", "401", "404", "silent", "rate")


@dataclass
class Options:
    """What the server does; `latency` and `hang` in seconds, `rate` in requests a second.

    `breaks` is the share of utterances that break a rule: a function of the request, as all replies are.
    Requests that hold the text `refuse` are refused, each time.
    """

    mode: str = "normal"
    latency: float = 0.0
    faults: float = 0.0
    content: bool = True
    breaks: float = 0.0
    refuse: str = ""
    seed: int = 0
    rate: float = 50.0
    retry_after: str = "1"
    hang: float = 60.0
    log: str = ""


def http(status: int, body: bytes, kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def refusal(status: int, *headers: str) -> bytes:
    error = {"error": {"message": f"simulated {status}", "type": "x", "code": None}}
    return http(status, json.dumps(error).encode(), "application/json", *headers)


class Connection(asyncio.Protocol):
    """One connection: reads requests, hands them to the server, sends what it is given."""

    def __init__(self, server: "FaultServer") -> None:
        self.server, self._buffer, self._open = server, b"", True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._open = False

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            found = re.search(rb"\r\ncontent-length: *(\d+)", head)
            total = end + 4 + (int(found[1]) if found else 0)
            if len(self._buffer) < total:
                return
            body, self._buffer = self._buffer[end + 4 : total], self._buffer[total:]
            self.server.handle(self, body if head.startswith(b"post") else None)

    def later(self, seconds: float, data: bytes, end: bool = False, reset: bool = False) -> None:
        def send() -> None:
            if not self._open:
                return
            if reset:  # a linger of zero sends RST instead of FIN
                raw = self.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
                return
            self.transport.write(data)
            if end:
                self.transport.close()

        asyncio.get_running_loop().call_later(seconds, send) if seconds else send()


class FaultServer:
    """The endpoint; `serve` it in this process's loop, or `running` in a thread."""

    def __init__(self, options: Options) -> None:
        self.options, self.lines, self.port = options, [], 0
        self.seen: Counter[str] = Counter()
        self._tokens, self._filled = BURST, time.monotonic()
        self._log = os.open(options.log, os.O_APPEND | os.O_CREAT | os.O_WRONLY) if options.log else None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def handle(self, connection: Connection, body: bytes | None) -> None:
        """Answer one request; `body` is None where it asks for the list of models."""
        mode, wait = self.options.mode, self.options.latency
        if mode == "silent":
            self._note({"task": "any", "fault": "silent"})
        elif mode in ("401", "404") or (mode in ("500", "429") and body is not None):
            self._note({"task": "any", "fault": mode})
            connection.later(wait, refusal(int(mode)))
        elif body is None:
            connection.later(0, http(200, b'{"object": "list", "data": []}'))
        else:
            asked = Asked(body, self.options.breaks)
            if self.options.refuse and any(self.options.refuse in text for _, text in asked.messages):
                self._note({"hash": asked.fingerprint, "task": asked.task, "fault": "refused"})
                connection.later(wait, refusal(403))
                return
            fault = self.fault(asked.fingerprint)
            reply = asked.reply(fault)
            billed = fault not in BUSY and fault != "rate"
            used = (
                (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) if billed else (0, 0)
            )
            self._note({"hash": asked.fingerprint, "task": asked.task, "fault": fault, "tokens": used})
            self._send(connection, fault, json.dumps(reply).encode())

    def fault(self, name: str) -> str:
        """Draw the fault of the next request of this fingerprint; empty for none."""
        self.seen[name] += 1
        if self.options.mode == "rate":
            now = time.monotonic()
            self._tokens += (now - self._filled) * self.options.rate
            self._tokens, self._filled = min(self._tokens, BURST), now
            if self._tokens < 1:
                return "rate"
            self._tokens -= 1
        numbers = drawn(self.options.seed, name, self.seen[name])
        if (next(numbers) * 256 + next(numbers)) / 65536 >= self.options.faults:
            return ""
        kinds = (*BUSY, *LOST, *(CONTENT if self.options.content else ()))
        return kinds[next(numbers) % len(kinds)]

    def _send(self, connection: Connection, fault: str, good: bytes) -> None:
        soon = format_datetime(datetime.now(UTC) + timedelta(seconds=1), usegmt=True)
        wait, retry = self.options.latency, self.options.retry_after
        answers: dict[str, Callable[[], bytes]] = {
            "rate": lambda: refusal(429, *([f"Retry-After: {retry}"] if retry else [])),
            "429 seconds": lambda: refusal(429, "Retry-After: 0.3"),
            "429 date": lambda: refusal(429, f"Retry-After: {soon}"),
            "429 plain": lambda: refusal(429),
            "502 html": lambda: http(502, HTML, "text/html"),
            "half body": lambda: http(200, good)[: -len(good) // 2],
            "html 200": lambda: http(200, HTML, "text/html"),
            "bad json": lambda: http(200, good[:-3]),
            "no choices": lambda: http(200, b'{"id": "x", "choices": []}'),
            "null choices": lambda: http(200, b'{"id": "x", "choices": null}'),
            "empty body": lambda: http(200, b""),
        }
        if fault == "time-out":
            connection.later(self.options.hang, b"", end=True)
        elif fault == "reset":
            connection.later(wait, b"", reset=True)
        elif fault in answers:
            connection.later(0 if fault == "rate" else wait, answers[fault](), end=fault == "half body")
        else:
            connection.later(wait, refusal(int(fault)) if fault in BUSY else http(200, good))

    def _note(self, line: dict[str, Any]) -> None:
        line = {"at": time.time(), **line}
        self.lines.append(line)
        if self._log is not None:
            os.write(self._log, (json.dumps(line) + "\n").encode())

    async def serve(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        self.port = listener.sockets[0].getsockname()[1]
        ready()
        await listener.serve_forever()

    @contextlib.contextmanager
    def running(self) -> Iterator["FaultServer"]:
        """Serve from a thread of this process."""
        loop, ready = asyncio.new_event_loop(), threading.Event()
        task = loop.create_task(self.serve(ready.set))
        thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])), daemon=True)
        thread.start()
        ready.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Options):
        name = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            choices = MODES if field.name == "mode" else None
            parser.add_argument(name, type=type(field.default), default=field.default, choices=choices)
    server = FaultServer(Options(**vars(parser.parse_args())))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(lambda: print(server.port, flush=True)))


if __name__ == "__main__":
    main()
