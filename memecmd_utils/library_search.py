"""A finished run's library, held against texts that the run has never seen."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memecmd_utils import library_index, paths, profiles, selection, storage
from memecmd_utils.embedding import RecordedEmbedder
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

    def query_means(self) -> dict[str, np.ndarray | None]:
        """Mean vector of the run's own summaries for each of S, E, Psi; None where nothing is centred.

        A chat is too short for a mean of its own, and the run's gate was fitted on scores that had this one.
        """
        if self.run.profile.centring != "attribute":
            return dict.fromkeys(QUERY_FIELDS)
        dialogues = storage.read_jsonl(self.run.read("dialogues.jsonl"), Dialogue)
        usable = [s for dialogue in dialogues for s in dialogue.summaries if not s.unscored]
        if len(usable) < 2:
            return dict.fromkeys(QUERY_FIELDS)
        return {
            field: mean_row(self.encode([getattr(s, field) for s in usable], "query"))
            for field in QUERY_FIELDS
        }

    def queries(
        self, summaries: Sequence[SummaryReply], means: Mapping[str, np.ndarray | None] | None = None
    ) -> np.ndarray:
        """Unweighted queries [n, 4, dim]. Without `means` they are centred by their own, as the profile says.

        With `means` (`query_means`) a turn's query does not depend on the other turns.
        """
        parts = [self.encode([getattr(s, field) for s in summaries], "query") for field in QUERY_FIELDS]
        if means is None:
            return build_queries(*parts, centring=self.run.profile.centring == "attribute")
        centred = [
            vectors if means[field] is None else centre(vectors, means[field])
            for field, vectors in zip(QUERY_FIELDS, parts, strict=True)
        ]
        return build_queries(*centred)

    def rank(
        self, summaries: Sequence[SummaryReply | None], means: Mapping[str, np.ndarray | None]
    ) -> tuple[np.ndarray, Ranking]:
        """Queries [n, 4, dim] and the top K; without a summary zero queries and scores of -inf."""
        profile, n = self.run.profile, len(summaries)
        shape = (n, min(profile.top_k, len(self.index.meme_ids)))
        queries = np.zeros((n, 4, self.index.dim), dtype=np.float32)
        ranking = Ranking(np.full(shape, -1), np.full(shape, -np.inf), np.zeros((*shape, 4)))
        rows = [row for row, summary in enumerate(summaries) if summary is not None]
        if rows:
            queries[rows] = self.queries([s for s in summaries if s is not None], means)
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


def open_library(run: Run, mode: str, asking: Run | None = None) -> Library:
    """Read a finished run's memes and annotations and index them; a large index is kept in the run's folder.

    `mode` is that of the profile that asks. Where the run only replays, vectors of new texts are computed on
    this machine and not recorded; an endpoint's embedder is asked only if `mode` allows it, and `asking`, the
    run on whose behalf the library is searched, pays for it. Raises `StageMissing` where notebooks 01 and 02
    have not been run, or by another version.
    """
    # What somebody looks for is not the run's, and must not become a tracked recording.
    stored = run.embedder(part_of_run=False)
    if asking is not None:
        asking.paying(stored.embedder)
    if run.profile.mode == "recorded":
        if run.profile.embedder == "endpoint" and mode == "recorded":
            raise EndpointError(
                "the run's embedder is an endpoint, which mode=recorded never asks: SET=mode=auto"
            )
        stored = RecordedEmbedder(stored.embedder, run.read_dirs, None, "live")
    try:
        memes = storage.read_parquet(run.read("memes.parquet"), Meme)
        annotations = storage.read_parquet(run.read("annotations.parquet"), Annotation)
    except storage.StageOutputError as error:
        raise StageMissing(f"run {run.name!r} is of another version ({error}): make it anew") from error
    folder = run.write(library_index.FOLDER)
    index = selection.index_library(annotations, stored.encode, run.profile, folder, stored.name)
    return Library(run, {meme.meme_id: meme for meme in memes}, index, stored.encode)
