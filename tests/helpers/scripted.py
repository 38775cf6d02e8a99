"""A request of one message, a model that replies from a list or a function, and an endpoint without a key."""

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, SecretStr

from memecmd_utils.llm.endpoint import OpenAIBackend
from memecmd_utils.llm.types import Backend, Message, ModelId, Reply, Request
from memecmd_utils.settings import Endpoint


class Mood(BaseModel):
    mood: str


def request(text: str = "你好", **changes: Any) -> Request:
    message = Message(role="user", text=text)
    return Request(**{"task": "utterance", "subject": "x", "messages": [message], **changes})


def endpoint_at(url: str, key: str = "none", max_rpm: int | None = None, **changes: Any) -> OpenAIBackend:
    return OpenAIBackend(Endpoint(base_url=url, model="tiny", **changes), key=SecretStr(key), max_rpm=max_rpm)


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
