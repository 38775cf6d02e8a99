"""The library of a finished run, searched by turns that the run has never seen."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memecmd_utils import library, retrieval
from memecmd_utils.embedders import RecordedEmbedder, embedder_of
from memecmd_utils.files import paths
from memecmd_utils.llm.types import EndpointError
from memecmd_utils.pictures import LibraryError
from memecmd_utils.retrieval import QUERY_FIELDS, Encode, MemeIndex
from memecmd_utils.runs import RECORDS, Run, open_finished
from memecmd_utils.schemas import Annotation, Dialogue, Meme
from memecmd_utils.settings import load_profile, parse_settings, run_name, settle


def library_run(run: str, profile: str, settings: str) -> Run:
    """The finished run of this name, or else the one that PROFILE and SET make."""
    return open_finished(run or run_name(load_profile(profile, parse_settings(settings))))


def folder_run(folder: Path) -> Run:
    """The run of a folder of pictures, whose memes mean what is read on them, or else in their names.

    No model is asked. Pictures without words are left out. The library is built anew where the folder has
    changed. Raises `LibraryError` where nothing is left.
    """
    run = open_finished(settle(load_profile("example", {"sources": [str(folder)]})))
    made = run.write(RECORDS["Annotation"])
    newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    if not made.is_file() or made.stat().st_mtime < newest:
        library.build_library(run.profile, run.folder, ocr_cache=run.ocr_cache())
        words = {meme.meme_id: meme.words for meme in run.load(Meme) if meme.words}
        if not words:
            raise LibraryError(f"no picture in {folder} has words on it, or in its name, to find it by")
        about = {"source": "computed", "profile": run.profile.name, "s_minus": ""}
        fits = ({"s_plus": said, "emotion": said, "motivation": said} for said in words.values())
        rows = (Annotation(meme_id=m, **texts, **about) for m, texts in zip(words, fits, strict=True))
        run.save(rows, Annotation)
    return run


def asking_run(finished: Run, profile: str, settings: str, purpose: str) -> Run:
    """The run whose model is asked on behalf of a finished one: profile and SET as given, outputs beside it.

    What is spent, used and reported goes to `<finished>-<purpose>`, so that the finished run stays as it is.
    Without a profile that of the run is asked.
    """
    name = f"{finished.name}-{purpose}"
    given = parse_settings(settings)
    loaded = load_profile(profile, given) if profile else finished.profile.replace(**given)
    return Run(name, loaded, paths.processed / name, paths.reports / name)


def encoder(run: Run, asking: Run, name: str | None = None, is_kept: bool = True) -> Encode:
    """Texts and side to unit vectors by a run's embedder, or the one named; `asking` pays.

    New vectors are recorded where the run records. Of what is said in chats nothing `is_kept`, not even in
    memory, however long they go on. An endpoint is asked only if the mode of `asking` allows it.
    """
    if is_kept and run.profile.models.mode != "recorded":
        stored = run.embedder(name)
        asking.with_budget(stored.embedder)
        return stored.encode
    if (name or run.profile.models.embedder) == "endpoint" and asking.profile.models.mode == "recorded":
        raise EndpointError(
            "the run's embedder is an endpoint, which mode=recorded never asks: SET=mode=auto"
        )
    embedder = asking.with_budget(embedder_of(run.profile, name, run.read_dirs))
    if is_kept:
        return RecordedEmbedder(embedder, run.read_dirs).encode
    return lambda texts, side: RecordedEmbedder(embedder, ()).encode(texts, side)


@dataclass(frozen=True)
class Library:
    """The annotated memes of a run, ready to be searched on behalf of `asking`."""

    run: Run
    asking: Run
    memes: Mapping[str, Meme]
    index: MemeIndex
    encode: Encode

    @functools.cached_property
    def query_means(self) -> retrieval.Means:
        """Mean vectors of S, E and Psi of the run's own summaries.

        A chat is too short for a mean of its own, and the run's gate was fitted on scores that had this one.
        """
        summaries = [s for dialogue in self.run.load(Dialogue) for s in dialogue.summaries if not s.unscored]
        if self.run.profile.retrieval.centring != "attribute" or len(summaries) < 2:
            return retrieval.OWN_MEANS
        texts = ([getattr(summary, field) for summary in summaries] for field in QUERY_FIELDS)
        return [self.encode(of_field, "query").mean(axis=0) for of_field in texts]


def open_library(run: Run, asking: Run) -> Library:
    """Read a finished run's memes and annotations and index them, searched on behalf of `asking`.

    Raises `StageMissing` where notebooks 01 and 02 have not been run, `StageOutputError` by another version.
    """
    encode = encoder(run, asking)
    memes, annotations = run.memes(), run.load(Annotation)
    index = retrieval.index_library(annotations, encode, run.profile, run.write(retrieval.FOLDER))
    return Library(run, asking, memes, index, encode)
