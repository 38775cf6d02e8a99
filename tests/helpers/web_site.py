"""A web site on loopback."""

from fault_server import Answer, FaultServer


class Site(FaultServer):
    """Answers a path with what `pages` has for it, 404 for others."""

    def __init__(self) -> None:
        super().__init__([])
        self.pages: dict[str, Answer] = {}
        self.service = lambda path, *_: self.pages.get(path, Answer(status=404))
        self.url = f"http://127.0.0.1:{self.port}"
