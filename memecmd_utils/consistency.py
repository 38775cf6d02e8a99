"""Consistency of a placed meme with a text: 50 (cos + 1), of MemeCMD (2507.00891), Section 5.2, Eq. 26."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.llm.recordings import normalise
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Consistency, Dialogue, Meme, Placement
from memecmd_utils.settings import Profile

TextKind = Literal["u_t", "u_t+1", "shuffled"]
PLACE = {"dialogue_id", "turn", "strategy", "meme_id"}
"""Fields that say which placed meme a record is about."""


def score(cosine: np.ndarray | float) -> np.ndarray | float:
    """Cosine to the 0-100 scale (Eq. 26)."""
    return 50.0 * (np.clip(cosine, -1.0, 1.0) + 1.0)


class Scorer(NamedTuple):
    """Encodes memes and texts into one space: unit vectors [n, dim]."""

    name: str
    memes: Callable[[Sequence[Meme]], np.ndarray]
    texts: Callable[[Sequence[str]], np.ndarray]
    can_score: Callable[[Meme], bool]
    """Whether there is something of a meme that can be encoded."""


def open_scorer(run: Run) -> Scorer:
    """Chinese-CLIP on the pictures (the paper's cross-modal score), or an embedder on memes' words.

    The latter is a stand-in without weights: text consistency, and its name says so in every table.
    """
    models = run.profile.models
    if run.profile.evaluation.consistency == "text":
        embedder = run.embedder(models.consistency_embedder)
        encode = partial(embedder.encode, side="document")
        return Scorer(
            f"text:{embedder.name}",
            lambda memes: encode([meme.words for meme in memes]),
            encode,
            lambda meme: bool(meme.words),
        )
    encoder = run.clip(models.clip_model)
    return Scorer(
        encoder.name,
        lambda memes: normalise(encoder.encode_images([run.read(meme.file) for meme in memes])),
        lambda texts: normalise(encoder.encode_texts(texts)),
        lambda meme: True,
    )


def score_pairs(pairs: Sequence[tuple[str, str]], memes: Mapping[str, Meme], scorer: Scorer) -> list[float]:
    """50 (cos + 1) of every pair of a meme's id and a text (Eq. 26); each is encoded once.

    nan without a text, or for a meme of which nothing can be encoded.
    """
    known = {(meme, text) for meme, text in pairs if text and scorer.can_score(memes[meme])}
    if not known:
        return [np.nan] * len(pairs)
    meme_ids, texts = (sorted(set(side)) for side in zip(*known, strict=True))
    meme_rows = dict(zip(meme_ids, scorer.memes([memes[name] for name in meme_ids]), strict=True))
    text_rows = dict(zip(texts, scorer.texts(texts), strict=True))
    scores = {(meme, text): float(score(float(meme_rows[meme] @ text_rows[text]))) for meme, text in known}
    return [scores.get(pair, np.nan) for pair in pairs]


def text_pairs(
    placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], profile: Profile
) -> list[tuple[Placement, TextKind, str]]:
    """Each placement with its u_t, its u_{t+1} (where the dialogue goes on) and one shuffled text.

    u_t is the utterance beside the meme. The shuffled text is the u_t of a placement of the same
    strategy in another dialogue, drawn by seed: what unrelated pairs score.
    """
    texts = {(name, t.turn): t.text for name, dialogue in dialogues.items() for t in dialogue.turns}
    pairs: list[tuple[Placement, TextKind, str]] = []
    for strategy in dict.fromkeys(placed.strategy for placed in placements):
        group = [placed for placed in placements if placed.strategy == strategy]
        rng = statistics.rng(profile.seed, "shuffled", strategy)
        chats, _ = pd.factorize(np.array([placed.dialogue_id for placed in group]))
        for placed, chat in zip(group, chats, strict=True):
            pairs.append((placed, "u_t", texts[placed.dialogue_id, placed.turn]))
            if following := texts.get((placed.dialogue_id, placed.turn + 1)):
                pairs.append((placed, "u_t+1", following))
            if len(others := np.flatnonzero(chats != chat)):
                other = group[others[rng.integers(len(others))]]
                pairs.append((placed, "shuffled", texts[other.dialogue_id, other.turn]))
    return pairs


def measure_consistency(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> list[Consistency]:
    """Consistency of all placed memes with the texts of `text_pairs`.

    Memes without any words are left out, save for a scorer of pictures.
    """
    scorer, profile = open_scorer(run), run.profile
    able = [placed for placed in placements if scorer.can_score(memes[placed.meme_id])]
    pairs = text_pairs(able, dialogues, profile)
    scores = score_pairs([(placed.meme_id, text) for placed, _, text in pairs], memes, scorer)
    return [
        Consistency(
            **placed.model_dump(include=PLACE), scorer=scorer.name, text=kind, score=round(value, 6),
            source=f"model {scorer.name}", profile=profile.name, seed=profile.seed,
        )
        for (placed, kind, _), value in zip(pairs, scores, strict=True)
    ]  # fmt: skip
