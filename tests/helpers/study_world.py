"""A made-up study in which it is known what carries the meaning, which memes are hubs, and what fits."""

from collections.abc import Collection, Sequence

import made_up
import numpy as np

from memecmd_utils import statistics
from memecmd_utils.evaluation import graded_turns, ground_truth

FIELDS = ("scenario", "emotion", "motivation")
MEME_SIDE = {"scenario": "s_plus", "emotion": "emotion", "motivation": "motivation"}


def _unit(*names: str) -> np.ndarray:
    vector = statistics.rng(7, "study world", *names).standard_normal(24)
    return vector / np.linalg.norm(vector)


def encode(texts: Sequence[str], side: str) -> np.ndarray:
    """`subject/detail` to a vector of the subject, a little of the detail, and of a common part.

    All texts of turns have the common part, and of the memes those whose subject begins with `hub`.
    """
    rows = []
    for text in texts:
        subject, _, _ = text.partition("/")
        common = 1.0 if side == "query" else 3.0 if subject.startswith("hub") else 0.0
        rows.append(_unit(subject) + 0.5 * _unit(text) + common * _unit("common"))
    stacked = np.array(rows, dtype=np.float32).reshape(len(texts), 24)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)


def world(
    dialogues: int = 8,
    turns: int = 9,
    memes: int = 12,
    carried_by: Collection[str] = FIELDS,
    hubs: int = 0,
    graded: bool = True,
    embedders: Sequence[str] = ("one", "two"),
    **settings: object,
) -> graded_turns.StudyData:
    """Turns that each want one meme; the summary's fields in `carried_by` speak of it, the others of another.

    The wanted meme is graded 2 by both graders, half of the others 0, the rest not at all (made up).
    """
    rng = np.random.default_rng(3)
    ids = [f"m{i:03d}" for i in range(memes)]
    subject = {name: f"hub{name}" if i < hubs else name for i, name in enumerate(ids)}
    # Which attribute it is stands in the subject, so that S+ says nothing of E.
    annotations = [
        made_up.annotation(
            name, s_minus=f"minus {name}", **{MEME_SIDE[f]: f"{subject[name]} {f}" for f in FIELDS}
        )
        for name in ids
    ]
    built, grades = [], []
    for number in range(dialogues):
        texts = tuple(f"话{number}-{turn}" for turn in range(1, turns + 1))
        plain = made_up.dialogue(f"d{number:02d}", texts)
        summaries = []
        for summary in plain.summaries:
            wanted, other = rng.choice(memes, 2, replace=False)
            said = {f: subject[ids[wanted if f in carried_by else other]] for f in FIELDS}
            detail = f"{number}-{summary.turn}"
            texts_of = {f: f"{said[f]} {f}/{detail}" for f in FIELDS}
            summaries.append(summary.model_copy(update=texts_of))
            for i in range(memes if graded else 0):
                if i == wanted or rng.random() < 0.5:
                    value = 2 if i == wanted else 0
                    for grader in ("g1", "g2"):
                        place = (summary.turn, ids[i], grader, value, plain.dialogue_id)
                        grades.append(made_up.grade(*place, source="made up"))
        built.append(plain.model_copy(update={"summaries": summaries}))
    values = {"embedder": embedders[0], "consistency_embedder": "none of them", **settings}
    sent = [(d.dialogue_id, s.turn) for d in built for s in d.summaries[::3]]
    return graded_turns.StudyData(
        profile=made_up.profile(**values),
        dialogues=built,
        memes={name: made_up.meme(name) for name in ids},
        annotations=annotations,
        truth=ground_truth.GroundTruth([], grades),
        placements=[made_up.placement(turn, ids[0], dialogue_id=name) for name, turn in sent],
        encoders=dict.fromkeys(embedders, encode),
    )
