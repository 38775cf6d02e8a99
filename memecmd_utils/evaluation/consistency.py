"""Semantic consistency of a placed meme with a text: 50 (cos + 1) (paper, Section 5.2, Eq. 26)."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from memecmd_utils import embedders, statistics
from memecmd_utils.embedders import RecordedEmbedder
from memecmd_utils.evaluation.judges import meme_files
from memecmd_utils.files import paths
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Consistency, Dialogue, Meme, Placement
from memecmd_utils.settings import Profile

TextKind = Literal["u_t", "u_t+1", "shuffled"]


def score(cosine: np.ndarray | float) -> np.ndarray | float:
    """Cosine to the 0-100 scale (Eq. 26)."""
    return 50.0 * (np.clip(cosine, -1.0, 1.0) + 1.0)


class Scorer(Protocol):
    """Encodes memes and texts into one space; rows are unit vectors."""

    name: str

    def memes(self, memes: Sequence[Meme]) -> np.ndarray:
        """Rows for memes, shape [n, dim]."""
        ...

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Rows for texts, shape [n, dim]."""
        ...


class TextScorer:
    """Meme text against utterance under an embedder that took no part in retrieval (offline stand-in).

    This is text consistency, not the paper's cross-modal score; its name says so in every table.
    """

    def __init__(self, embedder: RecordedEmbedder, retrieval_embedder: str) -> None:
        if embedder.name == retrieval_embedder:
            raise ValueError(f"{embedder.name} already chose the memes: it must not also score them")
        self._embedder = embedder
        self.name = f"text:{embedder.name}"

    def memes(self, memes: Sequence[Meme]) -> np.ndarray:
        """Encode the visible text, or the picture note of a meme without text."""
        return self._embedder.encode([meme_words(meme) for meme in memes], "document")

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Encode utterances."""
        return self._embedder.encode(list(texts), "document")


def meme_words(meme: Meme) -> str:
    """What a text model can know of a meme: its visible text, else the note of its picture."""
    return meme.text or meme.picture_note


def text_pairs(
    placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], profile: Profile
) -> list[tuple[Placement, TextKind, str]]:
    """Each placement with its u_t, its u_{t+1} (where the dialogue goes on) and one shuffled text.

    u_t is the utterance beside the meme. The shuffled text is the u_t of a placement of the same
    strategy in another dialogue, drawn by seed: what unrelated pairs score.
    """
    by_strategy: dict[str, list[Placement]] = {}
    for placed in placements:
        by_strategy.setdefault(placed.strategy, []).append(placed)

    def utterance(placed: Placement, offset: int = 0) -> str | None:
        turns = dialogues[placed.dialogue_id].turns
        position = placed.turn - 1 + offset
        return turns[position].text if position < len(turns) else None

    pairs: list[tuple[Placement, TextKind, str]] = []
    for strategy, group in by_strategy.items():
        rng = statistics.rng(profile.seed, "shuffled", strategy)
        own: dict[str, list[int]] = {}
        for position, placed in enumerate(group):
            own.setdefault(placed.dialogue_id, []).append(position)
        for placed in group:
            pairs.append((placed, "u_t", utterance(placed)))
            following = utterance(placed, 1)
            if following is not None:
                pairs.append((placed, "u_t+1", following))
            mine = own[placed.dialogue_id]
            if len(mine) < len(group):
                drawn = int(rng.integers(len(group) - len(mine)))  # among the others, then past one's own
                for position in mine:
                    drawn += position <= drawn
                pairs.append((placed, "shuffled", utterance(group[drawn])))
    return pairs


def measure(
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
    scorer: Scorer,
    profile: Profile,
) -> list[Consistency]:
    """Score every pair. Memes without any words are left out, save for a scorer of pictures."""
    able = [placed for placed in placements if can_score(scorer, memes[placed.meme_id])]
    pairs = text_pairs(able, dialogues, profile)
    scores = score_pairs([(placed.meme_id, text) for placed, _, text in pairs], memes, scorer)
    return [
        Consistency(
            dialogue_id=placed.dialogue_id,
            turn=placed.turn,
            strategy=placed.strategy,
            meme_id=placed.meme_id,
            scorer=scorer.name,
            text=kind,
            score=round(value, 6),
            source=f"model {scorer.name}",
            profile=profile.name,
            seed=profile.seed,
        )
        for (placed, kind, _), value in zip(pairs, scores, strict=True)
    ]


def can_score(scorer: Scorer, meme: Meme) -> bool:
    """Whether there is something of a meme that the scorer can encode."""
    return scorer.name.startswith("cn_clip") or bool(meme_words(meme))


def score_pairs(pairs: Sequence[tuple[str, str]], memes: Mapping[str, Meme], scorer: Scorer) -> list[float]:
    """50 (cos + 1) of every pair of a meme's id and a text (Eq. 26); each is encoded once."""
    if not pairs:
        return []
    meme_ids, texts = sorted({meme for meme, _ in pairs}), sorted({text for _, text in pairs})
    meme_rows = dict(zip(meme_ids, scorer.memes([memes[name] for name in meme_ids]), strict=True))
    text_rows = dict(zip(texts, scorer.texts(texts), strict=True))
    return [float(score(float(meme_rows[meme] @ text_rows[text]))) for meme, text in pairs]


def clip_scorer(run: Run, memes: Mapping[str, Meme]) -> embedders.ChineseClipScorer:
    """Chinese-CLIP on the run's pictures; its vectors are recorded beside those of the embedders."""
    files, profile = meme_files(run, memes), run.profile
    # A relative path counts from the project's root: notebooks run in a folder of their own.
    checkpoint = paths.root / profile.models.clip_checkpoint if profile.models.clip_checkpoint else None
    folder = paths.interim / "clip"
    here = embedders.weights_file(profile.models.clip_model, folder, checkpoint).is_file()
    # A replay computes what is not recorded, but fetches no weights for it.
    mode = run.vector_mode if here else profile.models.mode
    return embedders.ChineseClipScorer(
        profile.models.clip_model,
        lambda meme: files[meme.meme_id],
        folder,
        checkpoint,
        run.read_dirs,
        None if mode == "recorded" else run.write_dir,
        mode,
        run.folder,
    )


def measure_consistency(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> tuple[list[Consistency], str]:
    """Consistency of all placed memes, and the scorer's name with what it could not read."""
    profile = run.profile
    if profile.evaluation.consistency == "cn_clip":
        scorer = clip_scorer(run, memes)
        rows = measure(placements, dialogues, memes, scorer, profile)
        return rows, scorer.name
    scorer = TextScorer(run.embedder(profile.models.consistency_embedder), run.embedder_name())
    return measure(placements, dialogues, memes, scorer, profile), scorer.name
