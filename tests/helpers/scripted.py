"""A model that replies from a list or a function."""

from collections.abc import Callable, Iterable

from memecmd_utils.llm.types import Backend, ModelId, Reply, Request


class ScriptedBackend(Backend):
    """Raises when its replies run out."""

    source = "scripted"

    def __init__(
        self,
        replies: Iterable[Reply | str | Exception] | Callable[[Request], Reply | str | Exception],
        recordable: bool = True,
        repeats: bool = False,
    ) -> None:
        self.model, self.recordable, self.repeats = ModelId(name="scripted"), recordable, repeats
        self.requests: list[Request] = []
        given = iter(()) if callable(replies) else iter(replies)
        self._reply_to = replies if callable(replies) else lambda _: next(given)

    async def complete(self, request: Request) -> Reply:
        """Return the next reply; an exception among the replies is raised."""
        self.requests.append(request)
        reply = self._reply_to(request)
        if isinstance(reply, Exception):
            raise reply
        return Reply(text=reply) if isinstance(reply, str) else reply
