"""A real HTTP server on loopback that answers from a list, for tests of endpoints."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def chat_reply(text: str | None = "好", **changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "finish_reason": changes.pop("finish_reason", "stop"),
        "logprobs": changes.pop("logprobs", None),
        "message": {"role": "assistant", "content": text, **changes.pop("message", {})},
    }
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "code": None, **more}}


class Answer:
    """Status, body and headers.

    `reset` breaks the connection, `cut` sends half of the body, `hang` sends nothing while the server runs,
    `drip_s` sends a blank line every so many seconds and the body never, `raw` is sent
    in place of all that HTTP would say.
    """

    def __init__(
        self,
        body: Any = "",
        status: int = 200,
        kind: str = "application/json",
        reset=False,
        cut=False,
        hang=False,
        drip_s=0.0,
        raw=b"",
        **headers: str,
    ) -> None:
        self.drip_s, self.raw = drip_s, raw
        self.status, self.kind, self.reset, self.cut = status, kind, reset, cut
        self.hang = hang
        self.body = body if isinstance(body, str | bytes) else json.dumps(body)
        self.headers = {key.replace("_", "-"): value for key, value in headers.items()}


class TinyServer:
    """Answers with the next of `script`, or with what a function makes of the request's JSON.

    What is asked for with GET, such as the list of models, gets `got`.
    """

    def __init__(
        self, script: list[Answer] | Callable[[dict[str, Any]], Answer], got: Answer | None = None
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.gets: list[str] = []
        self._got = got or Answer({"object": "list", "data": []})
        self._script = script if callable(script) else iter(script)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._answer(self)

            def do_GET(self) -> None:
                outer.gets.append(self.path)
                outer._send(self, outer._got)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                """Clients that went away are part of the tests."""

        self._http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            self.bodies.append(body)
            self.headers.append({k.lower(): v for k, v in handler.headers.items()})
            answer = self._script(body) if callable(self._script) else next(self._script)
        self._send(handler, answer)

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        if answer.hang:
            self._ended.wait()
            handler.close_connection = True
            return
        if answer.reset:
            # A linger of zero sends RST instead of FIN.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
            return
        if answer.raw or answer.drip_s:
            handler.close_connection = True
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
            handler.wfile.write(answer.raw or head)
            while answer.drip_s and not self._ended.wait(answer.drip_s):
                handler.wfile.write(b"\n")
            return
        data = answer.body if isinstance(answer.body, bytes) else answer.body.encode()
        handler.send_response(answer.status)
        if answer.kind:
            handler.send_header("Content-Type", answer.kind)
        handler.send_header("Content-Length", str(len(data)))
        for key, value in answer.headers.items():
            handler.send_header(key, value)
        handler.end_headers()
        handler.wfile.write(data[: len(data) // 2] if answer.cut else data)
        handler.close_connection = answer.cut

    @contextmanager
    def running(self) -> Iterator["TinyServer"]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()
