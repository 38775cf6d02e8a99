"""`memecmd serve`: memes for chats over HTTP, from one warm library, with the standard library alone."""

import json
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memecmd_utils import files
from memecmd_utils.chats.ranking import TURNS, LiveLibrary
from memecmd_utils.chats.turns import ChatError, NoSummaryAgent
from memecmd_utils.files import MemecmdError

MAX_BYTES = 1 << 20
"""Of a request: thousands of turns."""
FIELDS = {"turns": list, "k": int, "choose": bool}
"""What a request may hold; `turns` has to be there."""


class Handler(BaseHTTPRequestHandler):
    """`POST /rank` with the arguments of `LiveLibrary.rank` as JSON gives `{"memes": [...]}`.

    What is wrong is told in one sentence, `{"error": "..."}`: 4xx where it is the request, 503 the model.
    """

    protocol_version, timeout = "HTTP/1.1", 60
    live: LiveLibrary

    def do_POST(self) -> None:
        """Answer one request."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length):
            return self.send_error(HTTPStatus.LENGTH_REQUIRED, "give the body's Content-Length")
        body = self.rfile.read(min(int(length), MAX_BYTES))
        for read in range(len(body), int(length), MAX_BYTES):  # left unread, it would break the connection
            self.rfile.read(min(MAX_BYTES, int(length) - read))
        if self.path != "/rank":
            return self.send_error(HTTPStatus.NOT_FOUND, "there is nothing but POST /rank")
        if self.headers.get("Origin"):  # any page in a browser of this machine can reach its ports
            return self.send_error(HTTPStatus.FORBIDDEN, "pages in a browser are not served")
        if int(length) > MAX_BYTES:
            return self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {MAX_BYTES:,} bytes")
        try:
            memes = self.live.rank(**read_request(body))
        except (ChatError, NoSummaryAgent) as error:
            return self.send_error(HTTPStatus.BAD_REQUEST, str(error))
        except MemecmdError as error:
            return self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        self._send(HTTPStatus.OK, {"memes": [{**m._asdict(), "picture": str(m.picture)} for m in memes]})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Tell what is wrong, and close the connection."""
        code = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else code
        self.close_connection = True
        self._send(code, {"error": message or HTTPStatus(code).description})

    def _send(self, code: int, value: dict[str, Any]) -> None:
        body = files.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: what is asked is somebody's chat."""


def read_request(body: bytes) -> dict[str, Any]:
    """The arguments of `LiveLibrary.rank` in a request's JSON; `ChatError` for anything else."""
    try:
        asked = json.loads(body)
        is_read = "turns" in asked and all(type(value) is FIELDS[name] for name, value in asked.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_read = False
    if not is_read or asked.get("k", 1) < 1:
        raise ChatError('send {"turns": [["name", "words"], ...], "k": 3, "choose": false} as JSON; ' + TURNS)
    return asked


class Server(ThreadingHTTPServer):
    """A thread a request; as many may wait to be taken up as a busy group sends at once."""

    daemon_threads, request_queue_size = True, 1024


def server(live: LiveLibrary, host: str, port: int) -> Server:
    """A server of a library, bound and ready for `serve_forever`."""
    try:
        return Server((host, port), type("LiveHandler", (Handler,), {"live": live}))
    except OSError as error:
        raise MemecmdError(f"{host}:{port} cannot be served ({error.strerror}): name another") from error
