"""What goes to a language model and comes back: requests, replies, answers, and the errors between them."""

import math
import unicodedata
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from memecmd_utils.files import MemecmdError
from memecmd_utils.llm import recordings as rec
from memecmd_utils.llm.pace import Pace
from memecmd_utils.llm.recordings import Outcome
from memecmd_utils.settings import Endpoint

T = TypeVar("T")
UNRECORDED: Outcome = "unrecorded"
NO_REPLY = ("failed", "rejected", UNRECORDED)
"""Finish reasons of what is no reply: nobody pays for it, and asking again would bring the same."""
YES = {"是", "是的", "yes", "对", "有"}
NO = {"否", "不", "不是", "no", "没有", "无"}
TOKENS_KEPT = 5
"""Alternatives of a first token that are recorded. An answer other than yes and no that is not among them is
less likely than yes and no together."""


class ModelId(BaseModel):
    """What makes a model this model: its name, a label for its version, and a local file's hash."""

    model_config = ConfigDict(frozen=True, defer_build=True)
    name: str
    label: str = "default"
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.label}"


class Sampling(BaseModel):
    """Sampling parameters; None leaves the default. `extra` goes into the body as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    temperature: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = None
    top_logprobs: int | None = None
    extra: dict[str, Any] = {}


class Image(BaseModel):
    """An image in a message. `image_id` enters the key; what `load` gives is sent and never recorded."""

    image_id: str
    load: Callable[[], str]
    """Makes the data URL, only when the request is sent: a library's pictures do not fit in memory."""


class Message(BaseModel):
    """One chat message: text, then images (for models that see)."""

    role: Literal["system", "user", "assistant"]
    text: str
    images: list[Image] = []


class Request(BaseModel):
    """Everything that changes an answer."""

    task: str
    """utterance, summary, annotation, scenario, choice, rating, gloss or embedding."""
    subject: str
    """What the request is about, for example a dialogue and turn; not part of the key."""
    messages: list[Message]
    sampling: Sampling = Sampling()
    seed: int | None = None
    reply_schema: type[BaseModel] | None = None
    options: list[str] = []
    """Ids of what the numbers of an answer stand for; the texts that the model sees are in the messages."""
    ask_again: str = "ask_again"
    """Prompt file with the words for an unusable reply, in the language of the prompt; no part of the key."""


class Reply(BaseModel):
    """What came back from a model."""

    text: str
    finish_reason: str = "stop"
    refusal: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    think_characters: int = 0
    """Length of `<think>` blocks that were taken out of `text`."""
    no_text: str = ""
    """Why there is no text and what to do about it, where the endpoint knows."""
    first_token: dict[str, float] | None = None
    """Log-probabilities of the first token's `TOKENS_KEPT` likeliest alternatives, where asked for."""
    yes_no: tuple[float, float] | None = None
    """Probabilities of yes and of no in all alternatives of the first token that came."""

    @model_validator(mode="after")
    def _as_recorded(self) -> "Reply":
        # Rounded before use, so that a run that asks equals a run that replays. No probability is above 1.
        if self.first_token is not None:
            tops = {token: round(min(p, 0.0), 4) for token, p in self.first_token.items() if math.isfinite(p)}
            if self.yes_no is None:
                self.yes_no = _mass(tops, YES), _mass(tops, NO)
            self.first_token = dict(sorted(tops.items(), key=lambda top: -top[1])[:TOKENS_KEPT])
        return self


def plain_word(text: str) -> str:
    """A short answer without blanks and signs around it, in half-width small letters."""
    return unicodedata.normalize("NFKC", text).strip(" \n。.!,“”\"'「」").lower()


def _mass(tops: dict[str, float], words: set[str]) -> float:
    mass = 0.0
    for token, logprob in tops.items():
        mass += math.exp(logprob) * (plain_word(token) in words)
    return mass


class Answer(BaseModel, Generic[T]):
    """A parsed answer, or the reason why there is none; the raw text is kept in both cases."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    value: Any = None
    outcome: Outcome = "accepted"
    violations: list[str] = []
    raw: str = ""
    reason: str = ""
    attempts: int = 1
    source: str


class UnusableReply(ValueError):
    """Raised by a parser: this reply cannot be used.

    `reason` is a short name for why. Its words for the model stand in the prompt file `Request.ask_again`, in
    the language of the prompt, with a gap for each of the `details`.
    """

    def __init__(self, reason: str, *details: object) -> None:
        super().__init__(": ".join([reason, ", ".join(map(str, details))]) if details else reason)
        self.reason, self.details = reason, details


class BrokenRules(UnusableReply):
    """Raised by a parser of utterances: usable at need, but it breaks the named rules.

    Of several attempts the one that breaks the fewest is kept.
    """

    def __init__(self, value: Any, violations: list[str]) -> None:
        super().__init__("broken rules", "；".join(violations))
        self.value, self.violations = value, violations


class BudgetReached(MemecmdError, RuntimeError):
    """`max_calls` or `max_usd` would be passed by the next call; everything paid for is recorded."""


class EndpointError(MemecmdError, RuntimeError):
    """The endpoint cannot be used as set up; the message says what to set. It never holds a key."""


class Backend:
    """A model that answers requests one at a time."""

    model: ModelId
    source: str
    """Value of `source` in records made from its replies."""
    recordable = True
    """Whether replies belong into the recordings (real models only)."""
    repeats = False
    """Whether a fixed seed brings the same reply again, so that asking unchanged is in vain."""
    endpoint = Endpoint()
    """Parameters that it leaves out cannot change an answer; those that it adds can."""
    fault: BaseException | None = None
    """What ends the calls that stand side by side: a request that waits for its turn does not go out."""
    pace = Pace()
    """When the next request may go out."""
    tried_again = 0
    """Requests that had to be sent once more because no whole answer came."""

    def normal_form(self, request: Request) -> dict[str, Any]:
        """Our own normal form of a request, the text behind a recording's key, without endpoint and key."""
        # Every recording's key hangs on this text; `version` and `sample` are parts of it that never vary.
        schema, dropped = request.reply_schema, self.endpoint.dropped
        sampling = request.sampling.model_dump(exclude_none=True, exclude_defaults=True)
        return {
            "key_version": rec.KEY_VERSION,
            "task": request.task,
            "schema": None if schema is None else {"name": schema.__name__, "version": 1},
            "messages": [
                {"role": m.role, "text": m.text, "images": [image.image_id for image in m.images]}
                for m in request.messages
            ],
            "sampling": {name: value for name, value in sampling.items() if name not in dropped},
            "seed": None if "seed" in dropped else request.seed,
            "sample": 0,
            "model": self.model.model_dump(exclude_none=True),
            **({"extra_body": self.endpoint.extra_body} if self.endpoint.extra_body else {}),
        }

    async def complete(self, request: Request) -> Reply:
        """Return one reply, or raise `EndpointError` where no other request would fare better.

        A reply's `finish_reason` is `rejected` or `failed` where this one request has no answer (its text
        says why), and `lost` where what arrived is no completion.
        """
        raise NotImplementedError
