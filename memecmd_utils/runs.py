"""A run: its profile, its folders, and the models it may use. What every notebook opens first."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from memecmd_utils import files, schemas, statistics
from memecmd_utils import settings as settings_
from memecmd_utils.embedders import DualEncoder, Embedder, RecordedEmbedder, embedder_of
from memecmd_utils.fetch import may_fetch
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import authored
from memecmd_utils.llm.authored import AuthoredBackend
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.endpoint import NO_KEY, EndpointEmbedder, OpenAIBackend, is_local
from memecmd_utils.llm.local_model import LocalServer
from memecmd_utils.llm.recordings import Recordings
from memecmd_utils.llm.spending import Budget, Spent, Usage
from memecmd_utils.llm.types import UNRECORDED, Backend, EndpointError
from memecmd_utils.settings import Endpoint, Profile, load_profile, parse_settings

if TYPE_CHECKING:
    import pandas as pd


Record = TypeVar("Record", bound=schemas.Record)
Role = Literal["generator", "annotator", "chooser", "judge", "embedder"]


class StageMissing(MemecmdError, FileNotFoundError):
    """A stage's input is not there; the message names the notebook that writes it."""


class Stage(NamedTuple):
    """A notebook of a run: the notebooks that it follows, and the files of the run that it always writes."""

    after: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    templates: bool = False
    """Whether it needs data sets from outside: `make templates` runs it, `make reproduce` does not."""


STAGES = {
    "01_library_build": Stage((), ("memes.parquet", "rejected.csv", "funnel.csv")),
    "02_annotation": Stage(("01_library_build",), ("annotations.parquet",)),
    "03_dialogue_generation": Stage((), ("cold_starts.jsonl", "dialogues.jsonl", "scenarios.jsonl")),
    "04_retrieval": Stage(
        ("02_annotation", "03_dialogue_generation"),
        ("candidates.parquet", "choices.parquet", "placements.parquet", "gates.json", "scores.npz"),
    ),
    "04b_learned_placement": Stage(("04_retrieval",)),
    "04c_reranking": Stage(("04_retrieval",), ("landing.json", "learned.npz")),
    "05_evaluation": Stage(
        ("04_retrieval",),
        ("ratings.parquet", "consistency.parquet", "ground_truth.json", "judge_checks.json"),
    ),
    "05b_studies": Stage(("02_annotation", "03_dialogue_generation"), ("studies.json",)),
    "09_the_papers_data": Stage((), ("paper_data.json",)),
    "06_figures": Stage(("04c_reranking", "05_evaluation", "05b_studies", "09_the_papers_data")),
    "07_template_memes": Stage(),
    "07b_templates_with_data": Stage((), ("template_memes.parquet", "readings.parquet"), templates=True),
    "08_meme_text_retrieval": Stage(("02_annotation",)),
    "08b_clip_with_data": Stage(("07b_templates_with_data",), templates=True),
}
"""All notebooks, each after those that it follows."""
WRITTEN_BY = {name: stage for stage, row in STAGES.items() for name in row.writes}
RECORDS = {
    "Meme": "memes.parquet",
    "Annotation": "annotations.parquet",
    "Scenario": "scenarios.jsonl",
    "ColdStart": "cold_starts.jsonl",
    "Dialogue": "dialogues.jsonl",
    "Candidate": "candidates.parquet",
    "Choice": "choices.parquet",
    "Placement": "placements.parquet",
    "Rating": "ratings.parquet",
    "Consistency": "consistency.parquet",
    "TemplateMeme": "template_memes.parquet",
    "MemeReading": "readings.parquet",
}
"""The file of a run that holds the records of each schema (`Run.load`, `Run.save`)."""


class Model(NamedTuple):
    """Who answers for a role: authored texts, an endpoint, or a model on this machine by its name."""

    llm: Literal["authored", "openai", "local"]
    endpoint: Endpoint
    local_model: str


def model_of(profile: Profile, role: Role, number: int = 0) -> Model:
    """Who answers for a role; the generator's endpoint serves what has none of its own.

    `number` counts judges from 0. An embedder that is no endpoint is no model of this kind.
    """
    given, ends = profile.models, profile.models.endpoints
    llm, local_model, endpoint = given.llm, given.local_model, ends.generator
    if role == "judge":
        judge = profile.evaluation.judges[number]
        llm, local_model = judge.llm, judge.local_model or local_model
        endpoint = ends.judges[number] if number < len(ends.judges) else endpoint
    elif role == "embedder":
        llm, endpoint = "openai", ends.embedder or Endpoint()
    elif role != "generator":
        endpoint = getattr(ends, role) or endpoint
    return Model(llm, endpoint, local_model)


def models_asked(profile: Profile, templates: bool = False) -> dict[tuple[Role, int], Model]:
    """All models that a run asks, by role and number; `make templates` asks the annotator and nobody else."""
    places: list[tuple[Role, int]] = [("annotator", 0)]
    if not templates:
        places.insert(0, ("generator", 0))
        if "reranked" in profile.retrieval.strategies:
            places.append(("chooser", 0))
        places += [("judge", number) for number in range(len(profile.evaluation.judges))]
        if "endpoint" in (profile.models.embedder, profile.models.consistency_embedder):
            places.append(("embedder", 0))
    asked = {place: model_of(profile, *place) for place in places}
    return {place: model for place, model in asked.items() if model.llm != "authored"}


@dataclass
class Run:
    """One run. `folder` takes its data, `report` its tables, figures and executed notebooks."""

    name: str
    profile: Profile
    folder: Path
    report: Path
    read_also: Path | None = None
    """Where inputs are read from when this run does not have them (notebooks run by hand)."""
    used: dict[str, set[str]] = field(default_factory=dict)
    counted: dict[str, Usage] = field(default_factory=dict)
    _replayed: dict[str, Recordings] = field(default_factory=dict, repr=False)

    def read(self, name: str) -> Path:
        """Path of an input, or `StageMissing` with the notebook to run first."""
        for folder in (self.folder, self.read_also):
            if folder is not None and (folder / name).exists():
                return folder / name
        # For a picture, and a file that a stage does not always write:
        todo = f"delete {self.read_also or self.folder} and `make reproduce` again; answers stay recorded"
        if first := WRITTEN_BY.get(name):
            todo = f"run {first} first (or `make {'templates' if STAGES[first].templates else 'reproduce'}`)"
        raise StageMissing(f"{name} of run {self.name!r} is not there: {todo}")

    def load(self, schema: type[Record]) -> list[Record]:
        """All records of a schema from a stage before; `StageMissing` names the notebook to run first."""
        path = self.read(RECORDS[schema.__name__])
        reader = files.read_parquet if path.suffix == ".parquet" else files.read_jsonl
        return reader(path, schema)

    def memes(self) -> dict[str, schemas.Meme]:
        """The library by id, each meme in the words of an annotator who saw it (`Meme.as_seen`)."""
        said = {annotation.meme_id: annotation for annotation in self.load(schemas.Annotation)}
        memes = self.load(schemas.Meme)
        return {m.meme_id: m.as_seen(said[m.meme_id]) if m.meme_id in said else m for m in memes}

    def save(self, rows: Iterable[Record], schema: type[Record]) -> Path:
        """Write all records of one schema, which may be none, where `load` of a later stage finds them."""
        path = self.write(RECORDS[schema.__name__])
        if path.suffix == ".parquet":
            files.write_parquet(path, rows, schema)
        else:
            files.write_jsonl(path, rows)
        return path

    def load_json(self, name: str) -> Any:
        """What an earlier stage wrote by `save_json`; `StageMissing` as in `load`."""
        return statistics.read_tables(self.read(name))

    def save_json(self, name: str, values: Any) -> Path:
        """Write what is no record (`gates.json`, `judge_checks.json`, ...) into the run's folder."""
        files.write_json(self.write(name), values, statistics.as_json)
        return self.write(name)

    def save_arrays(self, name: str, **arrays: Any) -> Path:
        """Write named NumPy arrays into one `.npz` file of the run's folder."""
        import numpy as np

        with files.atomic_path(self.write(name)) as part:
            np.savez(part, **arrays)
        return self.write(name)

    def save_tables(self, **tables: "pd.DataFrame") -> None:
        """Write each table as CSV, Markdown and LaTeX into `tables/` of the report.

        Of an estimate the CSV has its value and both ends, the other two the printed form.
        """
        for name, table in tables.items():
            target = self.report / "tables" / name
            files.write_frame(target.with_suffix(".csv"), statistics.flat(table))
            files.write_text(target.with_suffix(".md"), files.markdown(table))
            files.write_text(target.with_suffix(".tex"), files.latex(table))

    def not_recorded(self) -> str:
        """How many ratings the run lacks for want of a recorded answer, and how to have them; else empty."""
        reasons = [rating.unscored for rating in self.load(schemas.Rating)]
        lacking = sum(reason.startswith(UNRECORDED) for reason in reasons)
        told = (
            f"{lacking:,} of {len(reasons):,} ratings by judges have no recorded answer, as mode=recorded "
            "asks nobody; they are left out of every mean. To have them answered, install local judges "
            "(`make local-llm MODEL=NAME`) and add mode=auto to SET (or to `settings`)."
        )
        return told if lacking else ""

    def write(self, name: str) -> Path:
        """Path of an output."""
        return self.folder / name

    @property
    def strict(self) -> bool:
        """Whether what is not on record ends the run: so it does in the example without other settings.

        Any other run goes on: what only a model could say stays unanswered and is counted, what this machine
        computes without paying anybody is computed.
        """
        return self.name == "example" == settings_.run_name(self.profile)

    @property
    def computes(self) -> bool:
        """Whether this machine computes vectors that are not recorded, for which nobody is paid."""
        return self.profile.models.mode != "recorded" or not self.strict

    @property
    def read_dirs(self) -> list[Path]:
        """Folders of recordings: the tracked ones, `live` has its own, then the user's for this profile."""
        tracked = [paths.example, *([paths.live] if self.profile.name == paths.live.name else [])]
        return [*(folder / "recordings" for folder in tracked), self.write_dir]

    @property
    def write_dir(self) -> Path:
        """Folder of new recordings; shared by all runs of the profile, so that nothing is paid for twice."""
        return paths.raw / "recordings" / self.profile.name

    def recordings(self, stage: str) -> Recordings:
        """Open the recordings of a stage; those that are only replayed are read once."""
        if self.profile.models.mode != "recorded":
            return Recordings(stage, self.read_dirs, self.write_dir)
        if stage not in self._replayed:
            self._replayed[stage] = Recordings(stage, self.read_dirs)
        return self._replayed[stage]

    def ocr_cache(self) -> Recordings:
        """Texts read from images by earlier runs of the profile. New ones are kept in every mode.

        They are no replies of a model that is asked, and reading thousands of images takes an hour.
        """
        return Recordings("ocr", self.read_dirs, self.write_dir)

    def embedder(self, name: str | None = None) -> RecordedEmbedder:
        """The retrieval embedder, or the one named, with its recordings."""
        chosen = self.with_budget(embedder_of(self.profile, name, self.read_dirs))
        is_remote = (name or self.profile.models.embedder) == "endpoint"
        compute = self.profile.models.mode != "recorded" if is_remote else self.computes
        return RecordedEmbedder(chosen, self.read_dirs, self.write_dir if compute else None, compute)

    def with_budget(self, embedder: Embedder) -> Embedder:
        """The same embedder; where it is an endpoint its requests are held against this run's caps."""
        if self.profile.models.mode != "recorded" and isinstance(embedder, EndpointEmbedder):
            embedder.budget = budget(self, "embedding", embedder.endpoint, reads_only=True)
        return embedder

    def clip(self, name: str) -> DualEncoder:
        """A CLIP model with this run's recordings; a replay fetches no weights to compute what they lack."""
        write_dir = self.write_dir if self.computes else None
        download = may_fetch() and self.profile.models.mode != "recorded"
        return DualEncoder(name, self.read_dirs, write_dir, self.computes, download)

    def endpoint(self, role: Role, number: int = 0) -> Endpoint:
        """The endpoint that serves a role; the generator's serves what has none of its own."""
        return model_of(self.profile, role, number).endpoint

    @contextmanager
    def chat(
        self, role: Role, stage: str, number: int = 0, at_once: int = 2, is_kept: bool = True
    ) -> Iterator[Chat]:
        """Open the model of a role with its recordings of `stage` and caps; counts are written at the end.

        `at_once`: requests that a local model gets at a time; with 1 an answer depends on its prompt alone.
        Without `is_kept` nothing is recorded: the owner of what is asked about wants nobody to keep it.
        """
        name = stage if number == 0 else f"{stage}-{number + 1}"
        llm = model_of(self.profile, role, number).llm
        concurrency, mode = self.profile.models.concurrency, self.profile.models.mode
        with ExitStack() as stack:
            backend = backend_of(self.profile, role, number, at_once, None if mode == "recorded" else stack)
            concurrency = min(concurrency, at_once) if llm == "local" else concurrency
            caps = None if llm == "authored" else budget(self, name, backend.endpoint)
            store = self.recordings(stage) if backend.recordable and is_kept else None
            if store is not None:
                stack.enter_context(store.writing())
            # A run can go on without judges, who measure what is there without them, or without one strategy.
            strict = self.strict or role not in ("judge", "chooser")
            # A stage may open a judge twice: for placed memes, and for the items it is checked on.
            used, counts = self.counted.setdefault(name, Usage()), self.folder / "usage" / f"{name}.json"
            chat = Chat(backend, store, mode, concurrency, caps, strict, used)
            # Also of a chat that a cap, a fault or the stop button ended.
            stack.callback(lambda: files.write_json(counts, {"source": backend.source, **vars(used)}))
            yield chat
            if store is not None and store.used_keys:  # for `.ci/recordings.py`; several judges add up
                self.used[stage] = self.used.get(stage, set()) | store.used_keys
                files.write_json(self.folder / "usage" / f"{stage}.keys.json", sorted(self.used[stage]))


def open_run(profile: str = "example", settings: str = "", run_name: str = "") -> Run:
    """Open a run by profile and settings (as in `SET=`).

    A run that `make reproduce` settled has the settings it was settled with, also where the profile's file
    was edited since: all stages of a run go by the same ones. Without `run_name`, as in a notebook run by
    hand, outputs go to `<profile>-lab` and inputs come from there or else from the run that `make reproduce`
    made of the profile.
    """
    given = parse_settings(settings)
    loaded = settings_.settled(paths.processed / run_name, given) if run_name else None
    if loaded is None:
        loaded = load_profile(profile, given)
    name = run_name or f"{loaded.name}-lab"
    read_also = None if run_name else paths.processed / loaded.name
    return Run(name, loaded, paths.processed / name, paths.reports / name, read_also)


def open_finished(name: str) -> Run:
    """Open a run that `make reproduce` has made, with the settings it was made with (its `profile.yaml`).

    Raises `StageMissing` where there is none, `ProfileError` where this version cannot read its settings.
    """
    if not (paths.processed / name / settings_.RESOLVED).is_file():
        raise StageMissing(f"there is no run {name!r}: `make reproduce` with its PROFILE and SET makes it")
    return open_run(run_name=name)


# --- Who answers, and what it may cost


def backend_of(
    profile: Profile, role: Role, number: int = 0, at_once: int = 2, stack: ExitStack | None = None
) -> Backend:
    """Who answers for a role: authored texts, a local server that `stack` stops, or an endpoint.

    Without `stack` nothing is started and no key is needed: what was answered can be read.
    """
    llm, endpoint, local_model = model_of(profile, role, number)
    if llm == "authored":
        return AuthoredBackend(authored.texts())
    if llm == "local":
        server = LocalServer(local_model, min(profile.models.concurrency, at_once))
        return (server if stack is None else stack.enter_context(server)).backend()
    max_rpm = profile.models.max_rpm
    return OpenAIBackend(endpoint, key=NO_KEY if stack is None else None, max_rpm=max_rpm)


def spent(run: Run) -> Spent:
    """What a run has spent so far, in all its processes."""
    return Spent(None if run.profile.models.mode == "recorded" else run.folder / "usage" / "spent.jsonl")


def budget(run: Run, stage: str, endpoint: Endpoint, reads_only: bool = False) -> Budget:
    """The profile's caps, held against what the run has spent, at the endpoint's prices.

    `reads_only`: the endpoint writes nothing, so its price for that need not be known.
    """
    check_price(endpoint, run.profile, reads_only)
    return Budget(spent(run), stage, run.profile.models.max_calls, run.profile.models.max_usd, endpoint)


def check_price(endpoint: Endpoint, profile: Profile, reads_only: bool = False) -> None:
    """Raise `EndpointError` where `max_usd` would count nothing."""
    known = endpoint.usd_per_million_in, 0.0 if reads_only else endpoint.usd_per_million_out
    pays = profile.models.max_usd is not None and profile.models.mode != "recorded" and not is_local(endpoint)
    if None in known and pays:
        raise EndpointError(
            f"max_usd={profile.models.max_usd} is set, but the price of {endpoint.model!r} is not known: "
            f"give usd_per_million_in{'' if reads_only else ' and usd_per_million_out'} of its endpoint "
            "(0 for a server of your own), or set max_usd=null"
        )
