"""A finished run's library, held against texts that the run has never seen."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memecmd_utils import large_library, paths, profiles, selection, storage
from memecmd_utils.embedding import RecordedEmbedder, embedder_of
from memecmd_utils.llm import EndpointError
from memecmd_utils.retrieval import (
    QUERY_FIELDS,
    MemeIndex,
    Ranking,
    build_queries,
    centre,
    mean_row,
    top_k,
)
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.schemas import Annotation, Dialogue, Meme, SummaryReply
from memecmd_utils.selection import Encode
from memecmd_utils.threshold import Gate, ScoreScale


def finished_run(name: str) -> Run:
    """The run of this name with the settings it was made with (its `profile.yaml`).

    Raises `StageMissing` where there is none, `ProfileError` where this version cannot read its settings.
    """
    folder = paths.processed / name
    profile = profiles.settled(folder)
    if profile is None:
        raise StageMissing(f"there is no run {name!r}: `make reproduce` with its PROFILE and SET makes it")
    return Run(name, profile, folder, paths.reports / name)


def asking_run(library: Run, profile: str, settings: str, purpose: str) -> Run:
    """The run whose model is asked on behalf of `library`: profile and SET as given, outputs beside it.

    Usage, its ledger and reports go to `<library>-<purpose>`, so that the finished run stays as it is.
    """
    name = f"{library.name}-{purpose}"
    loaded = profiles.load_profile(profile, profiles.parse_settings(settings))
    return Run(name, loaded, paths.processed / name, paths.reports / name)


def library_of(run_name: str, profile: str, settings: str) -> Run:
    """The run that is named, or else the one that PROFILE and SET make."""
    loaded = profiles.load_profile(profile, profiles.parse_settings(settings))
    return finished_run(run_name or profiles.run_name(loaded))


def unrecorded(run: Run, asking: Run) -> Encode:
    """Vectors of texts by a run's embedder: from its recordings, or made now and not recorded.

    The embedder is opened at the first text. Where it is an endpoint it is asked only if the mode of `asking`
    allows it, and `asking`, the run on whose behalf texts are turned into vectors, pays for it.
    """

    @functools.cache
    def embedder() -> RecordedEmbedder:
        if run.profile.embedder == "endpoint" and asking.profile.mode == "recorded":
            raise EndpointError(
                "the run's embedder is an endpoint, which mode=recorded never asks: SET=mode=auto"
            )
        made = asking.paying(embedder_of(run.profile, read_dirs=run.read_dirs))
        return RecordedEmbedder(made, run.read_dirs, None, "live")

    return lambda texts, side: embedder().encode(texts, side)


@dataclass(frozen=True)
class Library:
    """The annotated memes of a run, ready to be searched."""

    run: Run
    memes: Mapping[str, Meme]
    index: MemeIndex
    encode: Encode
    """Texts and side to unit vectors."""

    def picture(self, meme_id: str) -> Path:
        """File of a meme's picture."""
        return self.run.read(self.memes[meme_id].file)

    @functools.cached_property
    def query_means(self) -> dict[str, np.ndarray | None]:
        """Mean vector of the run's own summaries for each of S, E, Psi; None where nothing is centred.

        A chat is too short for a mean of its own, and the run's gate was fitted on scores that had this one.
        """
        if self.run.profile.centring != "attribute":
            return dict.fromkeys(QUERY_FIELDS)
        dialogues = self.run.load(Dialogue)
        usable = [s for dialogue in dialogues for s in dialogue.summaries if not s.unscored]
        if len(usable) < 2:
            return dict.fromkeys(QUERY_FIELDS)
        return {
            field: mean_row(self.encode([getattr(s, field) for s in usable], "query"))
            for field in QUERY_FIELDS
        }

    def queries(self, summaries: Sequence[SummaryReply]) -> np.ndarray:
        """Unweighted queries [n, 4, dim], centred by `query_means`: none depends on the others."""
        parts = []
        for field in QUERY_FIELDS:
            mean = self.query_means[field]
            vectors = self.encode([getattr(s, field) for s in summaries], "query")
            parts.append(vectors if mean is None else centre(vectors, mean))
        return build_queries(*parts)

    def rank(self, summaries: Sequence[SummaryReply | None]) -> tuple[np.ndarray, Ranking]:
        """Queries [n, 4, dim] and the top K; without a summary zero queries and scores of -inf."""
        profile, n = self.run.profile, len(summaries)
        shape = (n, min(profile.top_k, len(self.index.meme_ids)))
        queries = np.zeros((n, 4, self.index.dim), dtype=np.float32)
        ranking = Ranking(np.full(shape, -1), np.full(shape, -np.inf), np.zeros((*shape, 4)))
        rows = [row for row, summary in enumerate(summaries) if summary is not None]
        if rows:
            queries[rows] = self.queries([s for s in summaries if s is not None])
            found = top_k(self.index, queries[rows], profile.weights, profile.top_k)
            ranking.memes[rows], ranking.scores[rows] = found.memes, found.scores
            ranking.components[rows] = found.components
        return queries, ranking

    def gate(self) -> tuple[Gate, ScoreScale]:
        """The run's gate for a chat that is in neither half: the mean of the gates of the two halves.

        Read from `gates.json` of notebook 04. With one dialogue there is one gate.
        """
        path = self.run.read("gates.json")
        gates = list(json.loads(path.read_text(encoding="utf-8")).values())

        def mean(key: str) -> float:
            return float(np.mean([gate[key] for gate in gates]))

        return (
            Gate(mean("theta0"), mean("penalty"), mean("decay")),
            ScoreScale(mean("score_mean"), mean("score_std")),
        )


def open_library(run: Run, asking: Run) -> Library:
    """Read a finished run's memes and annotations and index them; a large index is kept in the run's folder.

    `asking` is the run on whose behalf the library is searched. Where `run` only replays, vectors of new
    texts are `unrecorded`. Raises `StageMissing` where notebooks 01 and 02 have not been run, or by another
    version.
    """
    if run.profile.mode == "recorded":
        encode = unrecorded(run, asking)
    else:
        # What somebody looks for is not the run's, and must not become a tracked recording.
        stored = run.embedder(part_of_run=False)
        asking.paying(stored.embedder)
        encode = stored.encode
    try:
        memes = run.load(Meme)
        annotations = run.load(Annotation)
    except storage.StageOutputError as error:
        raise StageMissing(f"run {run.name!r} is of another version ({error}): make it anew") from error
    folder = run.write(large_library.FOLDER)
    index = selection.index_library(annotations, encode, run.profile, folder, run.embedder_name())
    return Library(run, {meme.meme_id: meme for meme in memes}, index, encode)
