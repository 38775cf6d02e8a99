"""What all studies share: the turns, the memes, the four terms of every pair, and the grades."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from memecmd_utils import ground_truth, retrieval_systems, schemas, seeds
from memecmd_utils.ground_truth import GroundTruth
from memecmd_utils.profiles import Profile
from memecmd_utils.retrieval_systems import Query
from memecmd_utils.runs import Run
from memecmd_utils.selection import Encode, halves

CENTRINGS = ("attribute", "none")
MOST_PAIRS = 4_000_000
"""Pairs of a turn and a meme that the studies look at: each has four terms under four systems, 0.5 GB in all.
The paper's run has 198 million; a sample of its dialogues says as much about each open choice."""


@dataclass(frozen=True)
class StudyData:
    """One run's turns 2..T that have a usable summary, in order, and its annotated memes.

    Rows of every matrix are `asked`, columns are `meme_ids`.
    """

    profile: Profile
    dialogues: Sequence[schemas.Dialogue]
    memes: Mapping[str, schemas.Meme]
    annotations: Sequence[schemas.Annotation]
    truth: GroundTruth
    placements: Sequence[schemas.Placement]
    encoders: Mapping[str, Encode]
    """The run's embedder first, then the one that took no part in retrieval."""
    n_all: int = 0
    """Dialogues of the run, of which these may be a sample; 0 where nobody counted."""
    _terms: dict[tuple[str, str], np.ndarray] = field(default_factory=dict, repr=False)

    @cached_property
    def asked(self) -> list[Query]:
        """The turns, dialogue by dialogue."""
        return retrieval_systems.queries(self.dialogues)

    @cached_property
    def summaries(self) -> list[schemas.Summary]:
        """The run's own summary of every turn."""
        of = {(d.dialogue_id, s.turn): s for d in self.dialogues for s in d.summaries}
        return [of[q.key] for q in self.asked]

    @cached_property
    def keys(self) -> list[ground_truth.Key]:
        """(dialogue id, turn) of every row."""
        return [q.key for q in self.asked]

    @cached_property
    def clusters(self) -> list[str]:
        """Dialogue id of every row: what intervals are over."""
        return [q.dialogue.dialogue_id for q in self.asked]

    @cached_property
    def meme_ids(self) -> list[str]:
        """Memes with a usable annotation."""
        return [a.meme_id for a in self.annotations]

    @cached_property
    def half(self) -> np.ndarray:
        """Half, `a` or `b`, of every row."""
        split = halves(self.dialogues)
        return np.array([split[name] for name in self.clusters])

    @cached_property
    def rows_of(self) -> dict[str, np.ndarray]:
        """Rows of every dialogue, in order of turns."""
        names = np.array(self.clusters)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(self.clusters)}

    def terms(self, embedder: str, centring: str) -> np.ndarray:
        """alpha, delta, beta, gamma of every pair, shape [4, turns, memes] (Eq. 18-21); kept once made."""
        if (embedder, centring) not in self._terms:
            self._terms[embedder, centring] = retrieval_systems.four_terms(
                self.summaries, self.annotations, self.encoders[embedder], centring
            )
        return self._terms[embedder, centring]

    @cached_property
    def gains(self) -> np.ndarray:
        """Sum of the graders' grades, [turns, memes]; nan where nobody graded."""
        return self.grades_of(None)

    def grades_of(self, grader: str | None) -> np.ndarray:
        """Grades of one grader, or the sum over all, [turns, memes]; nan where nobody graded."""
        out = np.full((len(self.asked), len(self.annotations)), np.nan)
        row = {key: i for i, key in enumerate(self.keys)}
        column = {meme: j for j, meme in enumerate(self.meme_ids)}
        for grade in self.truth.grades:
            i, j = row.get((grade.dialogue_id, grade.turn)), column.get(grade.meme_id)
            if i is None or j is None or grader not in (None, grade.grader):
                continue
            out[i, j] = grade.grade + (0 if np.isnan(out[i, j]) else out[i, j])
        return out


def load(run: Run, truth: GroundTruth | None = None) -> StudyData:
    """Read what a run has made so far; `truth`, if it was read before. Without ground truth that is empty."""
    dialogues = run.load(schemas.Dialogue)
    memes = {m.meme_id: m for m in run.load(schemas.Meme)}
    annotations = run.load(schemas.Annotation)
    names = dict.fromkeys([run.profile.embedder, run.profile.consistency_embedder])
    usable = [a for a in annotations if a.usable]
    truth = truth or ground_truth.of_run(run.profile, dialogues, list(memes.values()))
    placements = run.load(schemas.Placement)
    n_all, dialogues = len(dialogues), sample(dialogues, len(usable), run.profile.seed)
    if len(dialogues) < n_all:
        kept = {d.dialogue_id for d in dialogues}
        truth = truth.within(kept)
        placements = [p for p in placements if p.dialogue_id in kept]
    return StudyData(
        profile=run.profile,
        dialogues=dialogues,
        memes=memes,
        annotations=usable,
        truth=truth,
        placements=placements,
        encoders={name: run.embedder(name).encode for name in names},
        n_all=n_all,
    )


def sample(dialogues: Sequence[schemas.Dialogue], n_memes: int, seed: int) -> list[schemas.Dialogue]:
    """All dialogues, or as many of them, drawn by seed, as keep turns times memes within `MOST_PAIRS`."""
    room = MOST_PAIRS // max(1, n_memes)
    if sum(len(d.summaries) for d in dialogues) <= room:
        return list(dialogues)
    taken: set[str] = set()
    for place in seeds.rng(seed, "sample of the studies").permutation(len(dialogues)):
        room -= len(dialogues[place].summaries)
        if room < 0 and taken:
            break
        taken.add(dialogues[place].dialogue_id)
    return [d for d in dialogues if d.dialogue_id in taken]
