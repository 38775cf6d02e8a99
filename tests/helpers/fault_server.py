"""A real HTTP server on loopback: it answers from a list or by a function, or plays a model that fails.

    python tests/helpers/fault_server.py LOG '{"faults": 0.2, "seed": 1, "latency": 0.2}'    # prints its port

What `Simulated` says is a function of the request alone, never of order or time, so that a run with faults
can be compared with one without. A fault is drawn from the request, how many times it came, and a seed.
"""

import json
import socket
import struct
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fault_replies import Asked, drawn, vectors_of


def chat_reply(text: str | None = "好", **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": changes.pop("finish_reason", "stop")}
    choice |= {"logprobs": changes.pop("logprobs", None)}
    choice |= {"message": {"role": "assistant", "content": text, **changes.pop("message", {})}}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    about = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return {**about, "choices": [choice], "usage": usage}


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "code": None, **more}}


class Answer:
    """Status, body and headers. `wait_s` comes before them; `reset` breaks the connection in their place,
    `hang` sends nothing while the server runs, `cut` sends half of the body.
    """

    def __init__(
        self, body: Any = "", status: int = 200, kind: str = "application/json", reset: bool = False,
        cut: bool = False, hang: bool = False, wait_s: float = 0.0, **headers: str,
    ) -> None:  # fmt: skip
        self.status, self.kind, self.wait_s = status, kind, wait_s
        self.reset, self.hang, self.cut = reset, hang, cut
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        self.body = text.encode() if isinstance(text, str) else text
        self.headers = {key.replace("_", "-"): value for key, value in headers.items()}


class FaultServer:
    """Answers with the next of `script`, or with what a function makes of the request's JSON."""

    def __init__(self, script: list[Answer] | Callable[[Any], Answer]) -> None:
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.script = script if callable(script) else iter(script)
        self.service: Callable[[str, str, Any], Answer] | None = None
        """Answers path, method and body in its place, where a test needs more than completions."""
        self._lock, self._ended = threading.Lock(), threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                outer._answer(self)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 1024

            def handle_error(self, *_: object) -> None:
                """Clients that went away are part of the tests."""

        self._http = Server(("127.0.0.1", 0), Handler)
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        body = json.loads(raw) if raw[:1] == b"{" else raw
        with self._lock:
            self.bodies.append(body)
            self.paths.append(handler.path)
            self.headers.append({key.lower(): value for key, value in handler.headers.items()})
            if self.service is not None:
                answer = self.service(handler.path, handler.command, body)
            else:
                answer = self.script(body) if callable(self.script) else next(self.script)
        self._ended.wait(None if answer.hang else answer.wait_s)
        handler.close_connection = answer.hang or answer.reset or answer.cut
        if answer.reset:  # a linger of zero sends RST instead of FIN
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        elif not answer.hang:
            handler.send_response(answer.status)
            usual = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body))}
            for key, value in (usual | answer.headers).items():
                handler.send_header(key, value)
            handler.end_headers()
            handler.wfile.write(answer.body[: len(answer.body) // 2] if answer.cut else answer.body)

    def serve(self) -> None:
        self._http.serve_forever(poll_interval=0.01)

    @contextmanager
    def running(self) -> Iterator["FaultServer"]:
        thread = threading.Thread(target=self.serve)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()


BUSY = ("429 seconds", "429 plain", "500", "502 html", "408", "409")
"""Faults for which nobody pays: the model was never asked."""
LOST = ("time-out", "reset", "half body", "html 200", "bad json", "no choices", "error 200", "empty body")
"""Faults after which the model has answered, but the answer did not arrive."""
CONTENT = ("cut text", "empty text", "garbled text")
"""Faults after which an answer arrives that is not what the model said."""
HTML = "<html><body><h1>Bad Gateway</h1></body></html>"


@dataclass
class Simulated:
    """A model that answers by `fault_replies`; a share `faults` of all exchanges goes wrong.

    `breaks` is the share of utterances that break a rule. Every request is a line of `lines`, and of the file
    `log`.
    """

    faults: float = 0.0
    seed: int = 0
    latency: float = 0.0
    breaks: float = 0.0
    log: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def __call__(self, body: dict[str, Any]) -> Answer:
        if "input" in body:
            return Answer(vectors_of(body))
        asked = Asked(body, self.breaks)
        fault = self.fault(asked.fingerprint)
        reply = asked.reply(fault)
        usage = reply["usage"] if fault not in BUSY else Counter()
        tokens = usage["prompt_tokens"], usage["completion_tokens"]
        line = {"hash": asked.fingerprint, "fault": fault, "tokens": tokens}
        self.lines.append(line)
        if self.log:
            with Path(self.log).open("a") as handle:
                handle.write(json.dumps(line) + "\n")
        return self.answer(fault, reply)

    def fault(self, name: str) -> str:
        """Draw the fault of the next request of this fingerprint; empty for none."""
        self.seen[name] += 1
        numbers = drawn(self.seed, name, self.seen[name])
        if (next(numbers) * 256 + next(numbers)) / 65536 >= self.faults:
            return ""
        kinds = (*BUSY, *LOST, *CONTENT)
        return kinds[next(numbers) % len(kinds)]

    def answer(self, fault: str, reply: dict[str, Any]) -> Answer:
        refusal, status = error(f"simulated {fault}"), fault.partition(" ")[0]
        more: dict[str, Any] = {
            "429 seconds": {"retry_after": "0.3"},
            "502 html": {"body": HTML, "kind": "text/html"},
            "time-out": {"reset": True, "wait_s": 60.0},
            "reset": {"reset": True},
            "half body": {"cut": True},
            "html 200": {"body": HTML, "kind": "text/html"},
            "bad json": {"body": json.dumps(reply)[:-3]},
            "no choices": {"body": {"id": "x", "choices": []}},
            "error 200": {"body": refusal},
            "empty body": {"body": ""},
        }.get(fault, {})
        usual = {"body": refusal, "status": int(status)} if status.isdigit() else {"body": reply}
        return Answer(**{"wait_s": self.latency, **usual, **more})


if __name__ == "__main__":
    server = FaultServer(Simulated(log=sys.argv[1], **json.loads(sys.argv[2])))
    # Nobody looks into this process: what came is not kept, else screenshots fill the memory.
    server.bodies = server.headers = server.paths = server.script.lines = deque(maxlen=1)
    print(server.port, flush=True)
    server.serve()
