"""Learned placement for one's own chats: where to send a meme, and which."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memecmd_utils.chats.messages import SpokenTurn
from memecmd_utils.retrieval import learned
from memecmd_utils.retrieval.learned import LearnedPlacement
from memecmd_utils.retrieval.placement import Encode
from memecmd_utils.retrieval.scoring import best_memes
from memecmd_utils.schemas import SummaryReply


@dataclass(frozen=True)
class LearnedLibrary:
    """The memes of a run as learned placement compares them; `rows` stand in the order of `meme_ids`."""

    placement: LearnedPlacement
    encoders: Sequence[Encode]
    meme_ids: Sequence[str]
    rows: np.ndarray

    def choose(
        self, turns: Sequence[SpokenTurn], summaries: Sequence[SummaryReply | None], rate: float
    ) -> list[tuple[int, str, float, float]]:
        """Where to send a meme in one chat, and which: row of `summaries`, id, gain to expect, promise.

        A turn without a summary gets none. `rate` is the share of turns wanted over many chats.
        """
        known = [row for row, summary in enumerate(summaries) if summary is not None]
        if not known:
            return []
        said = [turn.text for turn in turns]
        texts = [learned.turn_texts(said[: row + 1], summaries[row]) for row in known]
        vectors = [
            learned.encode_texts(texts, encode, "query", means)[0]
            for encode, means in zip(self.encoders, self.placement.turn_means, strict=True)
        ]
        model = self.placement.model
        scores = model.ranker.score(vectors, self.rows)
        best = best_memes(scores, self.meme_ids, 1)[:, 0]
        top = np.take_along_axis(scores, best[:, None], axis=1)[:, 0]
        opener = turns[0].speaker
        speakers = ["A" if turns[row + 1].speaker == opener else "B" for row in known]
        inputs = learned.gate_inputs(vectors[0], [turns[row + 1].turn for row in known], speakers)
        promise, gains = model.promise(top, inputs), model.expected_gain(top)
        sent = np.flatnonzero(promise >= self.placement.threshold(rate))
        return [(known[i], self.meme_ids[best[i]], float(gains[i]), float(promise[i])) for i in sent]
