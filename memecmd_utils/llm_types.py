"""What goes over the seam of `llm`: requests, replies, answers, the outcomes that are no answer, and counts.

Import these names from `memecmd_utils.llm`; they stand here so that each module stays on one page.
"""

from collections import Counter
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, field_validator

from memecmd_utils import recordings as rec

T = TypeVar("T")
Task = Literal["utterance", "summary", "annotation", "scenario", "rating"]
Outcome = Literal["accepted", "violations", "unusable", "refusal", "length", "filtered"]


class ModelId(BaseModel):
    """What makes a model this model: its name, a label for its version, and a local file's hash."""

    model_config = ConfigDict(frozen=True)
    name: str
    label: str = "default"
    sha256: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.label}"


class Sampling(BaseModel):
    """Sampling parameters; None leaves the default. `extra` goes into the body as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    top_logprobs: int | None = None
    extra: dict[str, Any] = {}


class Image(BaseModel):
    """An image in a message. `image_id` enters the key; `data_url` is sent and never recorded."""

    image_id: str
    data_url: str


class Message(BaseModel):
    """One chat message: text, then images (for models that see)."""

    role: Literal["system", "user", "assistant"]
    text: str
    images: list[Image] = []


class Request(BaseModel):
    """Everything that changes an answer."""

    task: Task
    subject: str
    """What the request is about, for example a dialogue and turn; not part of the key."""
    messages: list[Message]
    sampling: Sampling = Sampling()
    seed: int | None = None
    sample: int = 0
    reply_schema: type[BaseModel] | None = None
    schema_version: int = 1

    def normal_form(self, model: ModelId) -> dict[str, Any]:
        """Our own normal form, the text behind the recording's key. Holds neither endpoint nor key."""
        schema = self.reply_schema
        return {
            "key_version": rec.KEY_VERSION,
            "task": self.task,
            "schema": None if schema is None else {"name": schema.__name__, "version": self.schema_version},
            "messages": [
                {"role": m.role, "text": m.text, "images": [image.image_id for image in m.images]}
                for m in self.messages
            ],
            "sampling": self.sampling.model_dump(exclude_none=True, exclude_defaults=True),
            "seed": self.seed,
            "sample": self.sample,
            "model": model.model_dump(exclude_none=True),
        }


class Reply(BaseModel):
    """What came back from a model."""

    text: str
    finish_reason: str = "stop"
    refusal: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    think_characters: int = 0
    """Length of `<think>` blocks that were taken out of `text`."""
    first_token: dict[str, float] | None = None
    """Log-probabilities of the first token's alternatives, where asked for."""

    @field_validator("first_token")
    @classmethod
    def _as_recorded(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        # Rounded before use, so that a run that asks equals a run that replays.
        return None if value is None else {token: round(p, 4) for token, p in value.items()}


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
    replayed: bool = False


class UnusableReply(ValueError):
    """Raised by a parser: this reply cannot be used, the text says why (the model is shown it)."""


class BrokenRules(UnusableReply):
    """Raised by a parser of utterances: usable at need, but it breaks the named rules."""

    def __init__(self, value: Any, violations: list[str]) -> None:
        super().__init__("；".join(violations))
        self.value = value
        self.violations = violations


class BudgetReached(RuntimeError):
    """`max_calls` or `max_usd` would be passed by the next call; everything paid for is recorded."""


class Backend(Protocol):
    """A model behind the seam."""

    model: ModelId
    recordable: bool
    """Whether replies belong into the recordings (real models only)."""
    source: str
    """Value of `source` in records made from its replies."""

    async def complete(self, request: Request) -> Reply:
        """Return one reply; raise on anything that no further attempt can mend."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class Usage:
    """Counts of one `Chat`: calls, tokens, money, outcomes."""

    def __init__(self, usd_in: float = 0.0, usd_out: float = 0.0) -> None:
        self.calls = self.replayed = self.tokens_in = self.tokens_out = self.think_characters = 0
        self.outcomes: Counter[str] = Counter()
        self._usd_in, self._usd_out = usd_in / 1e6, usd_out / 1e6

    def add(self, reply: Reply) -> None:
        """Count one live reply."""
        self.tokens_in += reply.tokens_in
        self.tokens_out += reply.tokens_out
        self.think_characters += reply.think_characters

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """US dollars for so many tokens, by the profile's prices."""
        return tokens_in * self._usd_in + tokens_out * self._usd_out

    @property
    def usd(self) -> float:
        """Money spent so far."""
        return self.price(self.tokens_in, self.tokens_out)

    def as_dict(self) -> dict[str, Any]:
        """Figures for the report."""
        return {
            "calls": self.calls,
            "replayed": self.replayed,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "usd": round(self.usd, 6),
            "outcomes": dict(sorted(self.outcomes.items())),
        }
