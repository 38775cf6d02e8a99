"""The backend that is no endpoint: the authored texts of the example corpus."""

from collections.abc import Mapping

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
