"""What the judges are checked on: memes that fit, random ones and hard negatives, drawn by seed."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from memecmd_utils import seeds
from memecmd_utils.profiles import Profile
from memecmd_utils.study_data import StudyData

Kind = Literal["fitting", "random", "hard negative"]
KINDS: tuple[Kind, ...] = ("fitting", "random", "hard negative")
FITS = 2
"""Sum of two graders' grades (0-4) from which a meme fits a turn."""
LANDS = 3
"""Sum from which it fits well enough to stand for what a judge should like."""
TURNS_PER_DIALOGUE = 2


class Item(NamedTuple):
    """A meme at a turn, and what the ground truth says of it."""

    kind: Kind
    dialogue_id: str
    turn: int
    meme_id: str

    @property
    def pair(self) -> tuple[str, int, str]:
        """(dialogue id, turn, meme id)."""
        return self.dialogue_id, self.turn, self.meme_id


def draw(data: StudyData) -> list[Item]:
    """Three items, in the order of `KINDS`, at each of up to `judge_checks` turns that have all three.

    *Fitting*: a sum of `LANDS` or more. *Random*: uniform over the library without memes that fit there; it
    may be ungraded. *Hard negative*: lands at another turn of the same dialogue and got 0 from every grader
    here. Every dialogue gives one turn before any gives a second, and none more than two. Without ground
    truth there are no items.
    """
    wanted = data.profile.judge_checks
    if not wanted or not data.truth.grades:
        return []
    found = _candidates(data)
    chosen: list[tuple[int, float, int]] = []  # which of its dialogue's turns, a lot, the row
    for name, rows in data.rows_of.items():
        rng = seeds.rng(data.profile.seed, "judge items", name)
        able = [int(row) for row in rows if all(len(found[row][kind]) for kind in KINDS)]
        drawn = [able[i] for i in rng.permutation(len(able))[:TURNS_PER_DIALOGUE]]
        lot = float(rng.random())
        chosen += [(place, lot, row) for place, row in enumerate(drawn)]
    rows = sorted(row for _, _, row in sorted(chosen)[:wanted])
    return [_item(data, row, kind, found[row][kind]) for row in rows for kind in KINDS]


def for_wordings(items: Sequence[Item], profile: Profile) -> list[Item]:
    """The fitting and the random meme of `judge_wordings` of the turns, drawn by seed."""
    turns = list(dict.fromkeys((item.dialogue_id, item.turn) for item in items))
    order = seeds.rng(profile.seed, "judge wordings").permutation(len(turns))
    kept = {turns[i] for i in order[: profile.judge_wordings]}
    return [i for i in items if i.kind != "hard negative" and (i.dialogue_id, i.turn) in kept]


def _candidates(data: StudyData) -> list[dict[Kind, np.ndarray]]:
    """For every row of the data: the columns of the memes that could serve as each kind."""
    gains = data.gains
    # A comparison with nan is false: what nobody graded neither fits nor is a hard negative.
    lands, fits = gains >= LANDS, gains >= FITS
    refused = np.all([data.grades_of(grader) == 0 for grader in data.truth.graders], axis=0)
    out: list[dict[Kind, np.ndarray]] = []
    for row, name in enumerate(data.clusters):
        # Over all its dialogue's turns: what lands at this one was not refused here.
        landed = lands[data.rows_of[name]].any(axis=0)
        kinds = {"fitting": lands[row], "random": ~fits[row], "hard negative": landed & refused[row]}
        out.append({kind: np.flatnonzero(able) for kind, able in kinds.items()})
    return out


def _item(data: StudyData, row: int, kind: Kind, columns: np.ndarray) -> Item:
    name, turn = data.keys[row]
    drawn = seeds.rng(data.profile.seed, "judge item", kind, name, turn).integers(len(columns))
    return Item(kind, name, turn, data.meme_ids[columns[drawn]])
