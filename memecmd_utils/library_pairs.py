"""Pairs of picture and text from the run's own library, to tune Chinese-CLIP on, split without a leak.

The texts are what an annotator says of a meme: fitting scenarios S+, emotion E and motivation Psi
(2507.00891, Eq. 1). S- says where it does not fit, so it is no caption.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from memecmd_utils import hamming_pairs, near_duplicates, seeds
from memecmd_utils.errors import MemecmdError
from memecmd_utils.schemas import Annotation, Meme
from memecmd_utils.tuning_data import Pair

FIELDS = ("s_plus", "emotion", "motivation")
MAX_DISTANCE = 6
"""Bits by which perceptual hashes of one picture may differ, as in stage 01."""


class TooFewMemes(MemecmdError, ValueError):
    """A library that cannot be split; the message says how many groups of memes are left."""


class Split(NamedTuple):
    """Pairs to tune on and to validate with; no meme of one is a near duplicate of one of the other."""

    train: list[Pair]
    validation: list[Pair]
    kept_out: frozenset[str]
    """Memes that were to stay out, with all that are near duplicates of them."""


def groups(memes: Sequence[Meme], annotations: Sequence[Annotation] = ()) -> dict[str, int]:
    """Number of each meme's group of near duplicates, by meme id.

    Two memes are of one group if their pictures are near (whatever the caption: in training the picture
    alone would give the other away), if they bear the same caption, or if an annotation text of one is one
    of the other's; and so are memes that a third one links.
    """
    place = {meme.meme_id: i for i, meme in enumerate(memes)}
    parent = list(range(len(memes)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def join(i: int, j: int) -> None:
        low, high = sorted((root(i), root(j)))
        parent[high] = low

    for i, j in hamming_pairs.close_pairs([int(m.phash, 16) for m in memes], MAX_DISTANCE).tolist():
        join(i, j)
    said = [(meme.text, i) for i, meme in enumerate(memes)]
    said += [(getattr(a, f), place[a.meme_id]) for a in annotations if a.meme_id in place for f in FIELDS]
    first: dict[str, int] = {}
    for text, i in said:
        if normal := near_duplicates.normalise_text(text):
            join(first.setdefault(normal, i), i)
    return {meme.meme_id: root(i) for i, meme in enumerate(memes)}


def pairs(
    annotations: Sequence[Annotation], files: Mapping[str, Path], fields: Sequence[str] = FIELDS
) -> list[Pair]:
    """A pair a usable annotation and text that is not blank; the meme is the template.

    So with `mask_same_template` the three texts of a meme are no negatives of each other. Memes without a
    file are left out.
    """
    return [
        Pair(files[a.meme_id], text, a.meme_id)
        for a in annotations
        if a.usable and a.meme_id in files
        for field in fields
        if (text := getattr(a, field).strip())
    ]


def split(
    memes: Sequence[Meme],
    annotations: Sequence[Annotation],
    files: Mapping[str, Path],
    held_out: Collection[str] = (),
    validation_share: float = 0.1,
    seed: int = 0,
) -> Split:
    """Split the library's pairs by groups of near duplicates.

    Groups with a meme of `held_out` stay out altogether. Of the others, groups drawn by seed go to the
    validation until it has `validation_share` of their memes, at least one group. Raises `TooFewMemes` where
    fewer than two groups are left.
    """
    group = groups(memes, annotations)
    shut = {group[name] for name in held_out if name in group}
    of_group: dict[int, list[str]] = {}
    usable = {a.meme_id for a in annotations if a.usable and a.meme_id in files}
    for name, number in group.items():
        if number not in shut and name in usable:
            of_group.setdefault(number, []).append(name)
    if len(of_group) < 2:
        raise TooFewMemes(
            f"{len(of_group)} groups of memes are left to tune on, {len(group)} memes in all: 2 are needed"
        )
    names = sorted(of_group)
    wanted, chosen = validation_share * sum(map(len, of_group.values())), set()
    for i in seeds.rng(seed, "library pairs").permutation(len(names))[:-1]:  # one group is left to train on
        if chosen and len(chosen) >= wanted:
            break
        chosen |= set(of_group[names[i]])
    every = [pair for pair in pairs(annotations, files) if group.get(pair.template, -1) in of_group]
    kept_out = frozenset(name for name, number in group.items() if number in shut)
    return Split(
        [pair for pair in every if pair.template not in chosen],
        [pair for pair in every if pair.template in chosen],
        kept_out,
    )
