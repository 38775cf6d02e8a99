"""The parts of a profile that are settings of their own: endpoints, judges, filters of the library."""

from collections.abc import Hashable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class Setting(BaseModel):
    """Base of all settings: unknown keys are refused, and so are numbers that are none or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads yes, no, on and off as booleans, and pydantic would go on and read those as 1 and 0.
        if isinstance(value, bool) and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("yes and no are no values of this key")
        return value


def each_once(values: Sequence[Any], same: Sequence[Hashable] | None = None) -> Sequence[Any]:
    """`values`, of which no two may be equal, or be equal in what `same` says of them; else `ValueError`."""
    first: dict[Hashable, Any] = {}
    for value, key in zip(values, values if same is None else same, strict=True):
        if key in first:
            other = "" if first[key] == value else f", as {first[key]!r}"
            raise ValueError(f"each may be named once; {value!r} is there already{other}")
        first[key] = value
    return values


class Endpoint(Setting):
    """One OpenAI-compatible endpoint. The key itself never stands here, only its variable's name."""

    base_url: str | None = Field(None, pattern=r"^https?://[^@?#\s]+$")
    """None: the SDK's `OPENAI_BASE_URL`, else api.openai.com. No user, password or query: keys hide there."""
    model: str = ""
    model_label: str = "default"
    """Part of a recording's key: change it when the weights behind a name change."""
    key_env: str = Field("OPENAI_API_KEY", pattern=r"^[A-Z_][A-Z0-9_]*$")
    usd_per_million_in: float | None = Field(None, ge=0)
    usd_per_million_out: float | None = Field(None, ge=0)
    """None: not known, which `max_usd` does not accept; 0 for a server of one's own."""
    tokens_per_image: int | None = Field(None, ge=0)
    """Of a picture within 512 x 512 pixels: gpt-4o counts 255, gpt-4o-mini 8,500. None: not known."""
    parameters: dict[str, str | None] = {}
    """Parameter map, for example {max_tokens: max_completion_tokens, temperature: null, seed: null}."""
    vision: bool = False
    timeout_s: float = Field(120.0, gt=0)
    dead_after_s: float = Field(50.0, gt=0)
    """Without any sign of life for so long the run ends with one message."""

    @property
    def dropped(self) -> frozenset[str]:
        """Parameters of a request that the parameter map leaves out."""
        return frozenset(name for name, other in self.parameters.items() if not other)


class Endpoints(Setting):
    """Which endpoint serves which task."""

    generator: Endpoint = Endpoint()
    annotator: Endpoint | None = None
    judges: list[Endpoint] = []
    embedder: Endpoint | None = None


class Judge(Setting):
    """A judge: `yes_no` asks five one-token questions, `rating` asks for five numbers 0-100."""

    kind: Literal["yes_no", "rating"]
    llm: Literal["local", "openai"] = "local"
    local_model: str | None = None
    """Of a local judge; None: the profile's own."""


class Filters(Setting):
    """What an image must be like to enter the library; every key can be left out."""

    min_side: int = Field(0, ge=0)
    """Pixels of the shorter side, before anything is scaled."""
    max_aspect_ratio: float | None = Field(None, ge=1)
    """Longer over shorter side: above it are comic strips and banners."""
    max_text_chars: int | None = Field(None, ge=0)
    """Characters that were read from the image: above it are pages of text."""
    needs_text: bool = False

    @model_validator(mode="after")
    def _lets_something_in(self) -> "Filters":
        if self.needs_text and self.max_text_chars == 0:
            raise ValueError("needs_text with max_text_chars 0 lets no image in: allow at least 1 character")
        return self
