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
