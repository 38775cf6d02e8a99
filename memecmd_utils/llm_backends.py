"""Backends that are no endpoint: the authored texts of the example corpus, and scripted replies for tests."""

from collections.abc import Callable, Iterable, Mapping

from memecmd_utils.errors import MemecmdError
from memecmd_utils.llm_types import ModelId, Reply, Request


class MissingText(MemecmdError, LookupError):
    """The authored corpus has no text for a request."""


class AuthoredBackend:
    """Texts of the example corpus, looked up by (task, subject). The prompt does not change them."""

    recordable = False
    repeats = True
    dropped = ()
    in_bulk = False
    status = ""
    source = "authored"
    model = ModelId(name="authored")

    def __init__(self, texts: Mapping[tuple[str, str], str]) -> None:
        self._texts = texts

    async def complete(self, request: Request) -> Reply:
        """Return the authored text; `MissingText` says how to go live."""
        try:
            return Reply(text=self._texts[request.task, request.subject])
        except KeyError:
            raise MissingText(
                f"the example corpus has no {request.task} for {request.subject}. It holds its own memes, "
                "24 news and 23 role dialogues of 18 turns only; for anything else use a live model: "
                "PROFILE=local after `make local-llm`, or PROFILE=openai with a key"
            ) from None

    async def alive(self, within_s: float) -> bool:
        """Always there."""
        return True

    async def aclose(self) -> None:
        """Nothing to release."""


class ScriptedBackend:
    """Replies from a list or a function, for tests; raises when they run out."""

    source = "scripted"
    dropped = ()
    in_bulk = False
    status = ""

    def __init__(
        self,
        replies: Iterable[Reply | str | Exception] | Callable[[Request], Reply | str | Exception],
        recordable: bool = True,
        repeats: bool = False,
    ) -> None:
        self.model = ModelId(name="scripted")
        self.recordable, self.repeats = recordable, repeats
        self.requests: list[Request] = []
        self._function = replies if callable(replies) else None
        self._replies = None if callable(replies) else iter(replies)

    async def complete(self, request: Request) -> Reply:
        """Return the next reply; an exception among the replies is raised."""
        self.requests.append(request)
        if self._function is not None:
            reply = self._function(request)
        else:
            try:
                reply = next(self._replies)
            except StopIteration:
                asked = f"{request.task} {request.subject} (request {len(self.requests)})"
                raise RuntimeError(f"scripted replies ran out at {asked}") from None
        if isinstance(reply, Exception):
            raise reply
        return Reply(text=reply) if isinstance(reply, str) else reply

    async def alive(self, within_s: float) -> bool:
        """Always there."""
        return True

    async def aclose(self) -> None:
        """Nothing to release."""
