"""A real HTTP server on loopback with feeds of every kind, good and bad, for tests of the collection."""

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

BODIES = (
    "市队昨晚在主场赢下关键一战，门将在补时阶段扑出点球，全场球迷起立鼓掌，教练说这是训练换来的。",
    "新款折叠手机今天开始预约，铰链比上一代薄了三成，工程师解释说用了一种新的钢材，价格没有变化。",
    "一部讲老街面馆的电影悄悄成了黑马，观众说看完想吃面，导演透露剧本改了十一稿，主角真的学会了拉面。",
    "独立工作室做的种田游戏卖出一百万份，玩家最喜欢的是会下雨的黄昏，团队只有三个人，其中一位负责画牛。",
    "乡里的小学把操场边的空地改成菜园，孩子们每周去量一次豆苗的高度，数学课从此有了自己的数据可用。",
    "医生提醒久坐的人每小时站起来走两分钟，一项跟踪三年的研究发现，这样做的人腰疼的次数少了将近一半。",
    "图书馆把闭馆时间推迟到夜里十一点，门口多了一台自动还书机，值班的老人说年轻人比从前更爱看纸书。",
    "气象台说周末有一股冷空气南下，最低气温下降八度，街边卖烤红薯的摊子提前摆了出来，排队的人不少。",
)


def item(number: int, host: str = "a.b", title: str = "", body: str = "") -> dict[str, str]:
    """A made-up news item; those of different numbers share little."""
    text = body or BODIES[number % len(BODIES)] + f"这是第{number * 7919 % 99991}号稿件，{number}人读过。"
    return {"title": title or f"第{number}条：{text[:9]}", "link": f"https://{host}/{number}", "text": text}


def rss(
    items: list[dict[str, str]], title: str = "频道", head: str = '<?xml version="1.0"?>', extra: str = ""
) -> str:
    """RSS 2.0 with HTML in CDATA."""
    rows = "".join(
        f"<item><title>{escape(i['title'])}</title><link>{escape(i['link'])}</link>"
        f"<pubDate>Mon, 02 Nov 2026 08:00:00 +0800</pubDate>"
        f"<description><![CDATA[<p>{i['text']}</p>]]></description></item>"
        for i in items
    )
    return f'{head}<rss version="2.0"><channel><title>{title}</title>{extra}{rows}</channel></rss>'


def atom(items: list[dict[str, str]]) -> str:
    """Atom with escaped HTML in content."""
    rows = "".join(
        f"<entry><id>{escape(i['link'])}</id><title>{escape(i['title'])}</title>"
        f'<link href="{escape(i["link"])}"/><updated>2026-11-02T00:00:00Z</updated>'
        f'<content type="html">{escape("<div>" + i["text"] + "</div>")}</content></entry>'
        for i in items
    )
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><title>频道</title><id>x</id>{rows}</feed>'


class Page:
    """What one path answers. A function `body` writes to the socket itself: after the headers, or `early`."""

    def __init__(
        self,
        body: str | bytes | Callable[["Handler"], None] = b"",
        code: int = 200,
        kind: str = "application/rss+xml; charset=utf-8",
        early: bool = False,
        **headers: str,
    ) -> None:
        self.body = body.encode() if isinstance(body, str) else body
        self.code, self.kind, self.early = code, kind, early
        self.headers = {key.replace("_", "-"): value for key, value in headers.items()}


class Handler(BaseHTTPRequestHandler):
    """Looks the path up; unknown paths are 404."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        site = self.server.site
        site.log.append((self.path, dict(self.headers), time.monotonic()))
        page = site.pages.get(self.path, Page(code=404))
        if isinstance(page, list):
            page = page.pop(0) if len(page) > 1 else page[0]
        if page.headers.get("ETag") and self.headers.get("If-None-Match") == page.headers["ETag"]:
            page = Page(code=304)
        if page.early:
            self.close_connection = True
            page.body(self)
            return
        self.send_response(page.code)
        self.send_header("Content-Type", page.kind)
        if callable(page.body):
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(page.body)))
        for key, value in page.headers.items():
            self.send_header(key, value)
        self.end_headers()
        if callable(page.body):
            page.body(self)
        else:
            self.wfile.write(page.body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Clients that go away are part of the tests."""

    daemon_threads = True
    request_queue_size = 64
    site: "FeedSite"

    def handle_error(self, *_: object) -> None:
        pass


class FeedSite:
    """Paths and pages; `log` holds (path, headers, time) of each request."""

    def __init__(self, pages: dict[str, Page | list[Page]] | None = None) -> None:
        self.pages = pages or {}
        self.log: list[tuple[str, dict[str, str], float]] = []
        self.ended = threading.Event()
        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.site = self
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def asked(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(found == path for found, _, _ in self.log)

    # --- pages that mean harm --------------------------------------------------------------------

    def drip(self, handler: Handler) -> None:
        """One byte at a time, for ever."""
        while not self.ended.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    def hang(self, handler: Handler) -> None:
        """Nothing, for ever."""
        self.ended.wait()

    def drip_headers(self, handler: Handler) -> None:
        """A header now and then, for ever."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.ended.wait(0.05):
            handler.wfile.write(b"X-A: 1\r\n")
            handler.wfile.flush()

    def endless(self, handler: Handler) -> None:
        """As much as is taken."""
        while not self.ended.is_set():
            handler.wfile.write(b"<item><title>x</title></item>" * 1000)

    @contextmanager
    def running(self) -> Iterator["FeedSite"]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()


def bomb(megabytes: int) -> bytes:
    """Zeros that unpack to so many megabytes."""
    return gzip.compress(bytes(megabytes << 20))
