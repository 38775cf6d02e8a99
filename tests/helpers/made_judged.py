"""Made-up dialogues, memes and grades for the tests of the judges' checks."""

from collections.abc import Mapping

import made_up

from memecmd_utils import schemas
from memecmd_utils.evaluation.graded_turns import StudyData
from memecmd_utils.evaluation.ground_truth import GroundTruth

GRADERS = ("made-up grader 1", "made-up grader 2")
MEMES = [f"m{n}" for n in range(8)]
Sums = Mapping[tuple[str, int, str], tuple[int, int]]
"""(dialogue, turn, meme) -> the made-up grades of the two graders."""


def dialogue(name: str, turns: int = 6) -> schemas.Dialogue:
    return made_up.dialogue(name, tuple(f"{name}的第{t}句话" for t in range(1, turns + 1)))


def usual(names: list[str]) -> Sums:
    """At turns 2, 3 and 4 of every dialogue another meme lands, and the two others got 0 there."""
    lands = {2: "m0", 3: "m1", 4: "m2"}
    return {
        (name, turn, meme): (2, 2) if mine == meme else (0, 0)
        for name in names
        for turn, mine in lands.items()
        for meme in lands.values()
    }


def data(names: list[str], grades: Sums | None = None, **changes: object) -> StudyData:
    grades = usual(names) if grades is None else grades
    found = [
        made_up.grade(t, m, g, x, d, "made up")
        for (d, t, m), both in grades.items()
        for g, x in zip(GRADERS, both, strict=True)
    ]
    memes = {m: made_up.meme(m).model_copy(update={"text": "字" * (n + 1)}) for n, m in enumerate(MEMES)}
    return StudyData(
        profile=made_up.profile(**{"judge_checks": 94, "judge_wordings": 50, "judge_contexts": 1, **changes}),
        dialogues=[dialogue(name) for name in names],
        memes=memes,
        annotations=[made_up.annotation(m, s_plus=f"约饭{m}", emotion=f"开心{m}") for m in MEMES],
        truth=GroundTruth([], found),
        placements=[],
        encoders={"one": made_up.vectors, "two": made_up.vectors},
    )
