"""A web site without a network: an answer for each path, or a list of them, one a request; 404 for others."""

from functools import partial

import httpx2
import pytest

Page = tuple[int, dict[str, str], bytes]
"""Status, headers and body; status 0: the connection breaks."""


class Site:
    """Answers every client that is made from now on; `asked` holds path and headers of each request."""

    url = "http://site.example/"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **pages: Page | list[Page]) -> None:
        self.pages = {path: page if isinstance(page, list) else [page] for path, page in pages.items()}
        self.asked: list[tuple[str, httpx2.Headers]] = []
        transport = httpx2.MockTransport(self._answer)
        monkeypatch.setattr(httpx2, "Client", partial(REAL, transport=transport))

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append((request.url.path, request.headers))
        answers = self.pages.get(request.url.path.lstrip("/"), [(404, {}, b"")])
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 0:
            raise httpx2.ReadError("the connection broke")
        if "ETag" in headers and request.headers.get("If-None-Match") == headers["ETag"]:
            status, body = 304, b""
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))


REAL = httpx2.Client
