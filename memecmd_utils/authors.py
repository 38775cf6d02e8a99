"""The authors' own release of MemeCMD (2507.00891), read as our records: chats, memes, placements, scores.

The release is GitHub `Nahtreom/MemeVerse`, fetched by `make paper-data` or named by `RELEASE=DIR`. It has six
sets of dialogues (news or roles; 6, 12 or 18 turns), each generated for itself, and for each set three
strategies. What does not fit is counted and named in `Release.notes`; a file that cannot be read is an error.
Texts, annotations and pictures of the release stay outside this repository.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import schemas
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.schemas import Annotation, Dialogue, Placement, Summary, Turn, speaker_of
from memecmd_utils.settings import Profile

STRATEGIES = {"greedy": "GreedySelection", "sampling": "Diversity-awareSelection", "random": "Random"}
"""Our names of the strategies and theirs; Diversity-aware is the paper's Sampling."""
GENERATOR = "model gpt-4.1 (authors' release)"
"""Who wrote the dialogues, as `version_info.json` says."""
RELEASED = "authors' release"
ANNOTATION = {"s_plus": "1", "s_minus": "2", "emotion": "3", "motivation": "4"}
"""Fields of an annotation and their keys in `final_result.json`."""
SUMMARY = {
    "scenario": "current_chat_scenario",
    "emotion": "suitable_emotion_semantics",
    "motivation": "psychological_motivation",
}
"""Fields of a summary and their keys in the release."""
PERSON = re.compile(r"\s*&?\s*(.+?)\s*[(（]\s*\d+\s*岁*\s*[)）]")
"""A name with its age, as `scenario_info.characters` has them."""
FILES = {
    "placed": "Dialogs_with_meme/{kind}_based_{n_turns}_turns_{strategy}.json",
    "judged": "metric/score_gpt4o/{kind}_based_{n_turns}_turns_{strategy}.json",
    "compared": "metric/clip-score/{kind}_based_{n_turns}_turns_{strategy}_result.json",
    "spoken": "Dialogs/{kind}_based/generated_dialogs_{n_turns}turns.json",
    "summarised": "Summary/{kind}_based/generated_dialogs_{n_turns}turns_summaries.json",
}
"""Files of a set. By strategy: dialogues with its memes, the judge's scores, Chinese-CLIP's cosines. Of all:
dialogues without memes, under the ids that the summaries use, and the summaries."""


class ReleaseUnreadable(MemecmdError, ValueError):
    """The release or one of its files is not there or not in its form; the message says what to do."""


class Set(NamedTuple):
    """One of the six sets: `kind` of cold start and number of turns."""

    kind: str
    n_turns: int

    def __str__(self) -> str:
        return f"{self.kind} {self.n_turns}"

    def file(self, what: str, strategy: str = "") -> str:
        """Path of one of its `FILES` in the release."""
        return FILES[what].format(strategy=STRATEGIES.get(strategy), **self._asdict())


SETS = tuple(Set(kind, n_turns) for kind in ("news", "role") for n_turns in (6, 12, 18))
MEMES = "Meme Warehouse/final_result.json"
PICTURES = "Meme Warehouse/EmojoPackage_processed"
Chat = tuple[str, str]
"""(dialogue id, strategy)"""


@dataclass
class Release:
    """What a release holds, as our records; a meme's id is its file name."""

    folder: Path
    annotations: list[Annotation] = field(default_factory=list)
    dialogues: list[Dialogue] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    scores: dict[Chat, float] = field(default_factory=dict)
    """The judge's score (0-100) of a whole dialogue."""
    cosines: dict[Chat, list[tuple[str, float]]] = field(default_factory=dict)
    """Placed memes, each with Chinese-CLIP's cosine of it and its speaker's text, as they were published."""
    sets: dict[str, Set] = field(default_factory=dict)
    """The set of each dialogue by its id."""
    strategies: dict[Set, list[str]] = field(default_factory=dict)
    """The strategies of each set."""
    notes: Counter[str] = field(default_factory=Counter)
    """What did not fit, and how often; also each file that a whole release has and this one has not."""

    @cached_property
    def pictures(self) -> dict[str, Path]:
        """The pictures that are here by file name: those of the release, else of emo-visual-data."""
        folders = (paths.raw / "sources" / "emo-visual-data", self.folder / PICTURES)
        return {path.name: path for folder in folders for path in folder.rglob("*.*") if path.is_file()}

    def summary(self) -> str:
        """What it holds and what did not fit, in lines."""
        parts = [
            f"{part} turns: {n:,} dialogues, {', '.join(self.strategies[part])}"
            for part, n in Counter(self.sets.values()).items()
        ]
        counts = {
            "memes with annotations": sum(not annotation.unscored for annotation in self.annotations),
            "pictures": len(self.pictures), "placed memes": len(self.placements),
            "scores": len(self.scores), "cosines": sum(map(len, self.cosines.values())),
        }  # fmt: skip
        whole = ", ".join(f"{n:,} {what}" for what, n in counts.items())
        odd = (f"not as expected: {what}: {n:,}" for what, n in self.notes.items())
        return "\n".join([*parts, whole, *odd])

    @property
    def can_be_ranked(self) -> bool:
        """Whether some meme has its annotation and some turn its summary: both sides of retrieval."""
        summaries = (summary for dialogue in self.dialogues for summary in dialogue.summaries)
        return any(a.usable for a in self.annotations) and not all(s.unscored for s in summaries)

    def placements_of_run(self, profile: Profile) -> list[Placement]:
        """The placements under the names that strategies of a run have, such as `released_greedy`."""
        changes = {"profile": profile.name, "seed": profile.seed}
        return [
            p.model_copy(update={"strategy": f"{schemas.RELEASED}{p.strategy}", **changes})
            for p in self.placements
        ]


def of_profile(profile: Profile) -> Release | None:
    """The release that a profile names; None where it names none. Raises `ReleaseUnreadable`."""
    return read_release(paths.user_path(profile.paper_data)) if profile.paper_data else None


def read_release(folder: Path) -> Release:
    """Read all sets that a release holds, in the order of `SETS` and of their files.

    Raises `ReleaseUnreadable` for a folder without any dialogues, for a file that is no list of objects, and
    for an object that lacks a key. A missing file, a repeated id, a meme that has no annotation and whatever
    cannot be joined is counted.
    """
    wanted = [part.file("placed", strategy) for part in SETS for strategy in STRATEGIES]
    if not any((folder / name).is_file() for name in wanted):
        raise ReleaseUnreadable(
            f"{folder} holds no dialogues of the authors' release ({wanted[0]} and its like): "
            "run `make paper-data`, or name a clone of it with RELEASE=DIR"
        )
    release, described = Release(folder), {}
    for row in _rows(release, MEMES, "figure", *ANNOTATION.values()):
        texts = {name: row[key] for name, key in ANNOTATION.items()}
        release.notes["annotations of a file name that has one"] += row["figure"] in described
        described.setdefault(row["figure"], Annotation(meme_id=row["figure"], source=RELEASED, **texts))
    for part in SETS:
        _read_set(release, part)
    unknown = sorted({p.meme_id for p in release.placements} - described.keys())
    release.notes["placed memes without an annotation"] += len(unknown)
    empty = {**dict.fromkeys(ANNOTATION, ""), "unscored": "the release has no annotation of it"}
    undescribed = [Annotation(meme_id=name, source=RELEASED, **empty) for name in unknown]
    release.annotations = [*described.values(), *undescribed]
    release.notes = +release.notes  # what did not happen is no note
    return release


def _rows(release: Release, name: str, *keys: str) -> list[dict[str, Any]]:
    """The objects of a file, each with at least these keys; none of a file that is not there."""
    path = release.folder / name
    if not path.is_file():
        release.notes[f"{name} is not here"] += 1
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ReleaseUnreadable(f"{name} is no whole JSON file ({error}): fetch it again") from error
    for number, row in enumerate(rows if isinstance(rows, list) else [None], start=1):
        absent = [key for key in keys if key not in row] if isinstance(row, dict) else list(keys)
        if absent:
            raise ReleaseUnreadable(f"{name}: object {number} has no {', '.join(map(repr, absent))}")
    return rows


def _read_set(release: Release, part: Set) -> None:
    keys = ("dialog_id", "content", "full_dialog")
    by_strategy = {name: _rows(release, part.file("placed", name), *keys) for name in STRATEGIES}
    first = next((rows for rows in by_strategy.values() if rows), [])
    if not first:
        return
    release.strategies[part] = [name for name, rows in by_strategy.items() if rows]
    ids = _ids(part, first)
    repeated = len(first) - len({row["dialog_id"] for row in first})
    release.notes["dialogues whose id repeats in their set"] += repeated
    summaries = _summaries(release, part, first)
    for name, row, said in zip(ids, first, summaries, strict=True):
        release.sets[name] = part
        release.dialogues.append(_dialogue(name, part, row, said))
    for strategy, rows in by_strategy.items():
        if not rows:
            continue
        if [row["content"] for row in rows] != [row["content"] for row in first]:
            raise ReleaseUnreadable(
                f"{part.file('placed', strategy)}: its dialogues differ from those of the other strategies"
            )
        for name, row in zip(ids, rows, strict=True):
            release.placements += _placements(release, name, row, strategy)
        _read_scores(release, part, strategy)
        _read_cosines(release, part, strategy)


def _ids(part: Set, rows: Sequence[Any]) -> list[str]:
    """An id for each dialogue: the release's own after the set's name, numbered where it repeats."""
    seen, ids = Counter[str](), []
    for name in (row["dialog_id"] for row in rows):
        seen[name] += 1
        ids.append(f"{part.kind}{part.n_turns}-{name}" + f"-{seen[name]}" * (seen[name] > 1))
    return ids


def _dialogue(name: str, part: Set, row: Any, summaries: Sequence[Summary]) -> Dialogue:
    about = row.get("scenario_info") or row.get("document_info") or {}
    people = PERSON.findall(about.get("characters", ""))
    name_a, name_b = people if len(people) == 2 else ("A", "B")
    ref = row.get("document_id") or row.get("scenario_id") or row["dialog_id"]
    title = about.get("title") or f"{about.get('relationship', ref)}：{about.get('basic_event', '')}"
    turns = [
        Turn(turn=n, speaker=speaker_of(n), text=text, source=GENERATOR)
        for n, text in enumerate(row["content"], start=1)
    ]
    return Dialogue(
        dialogue_id=name, kind=part.kind, ref=ref, title=title, name_a=name_a, name_b=name_b, turns=turns,
        summaries=list(summaries), complete=True, source=GENERATOR,
    )  # fmt: skip


def _placements(release: Release, name: str, row: Any, strategy: str) -> Iterator[Placement]:
    """The memes of a dialogue: a line `B:file.jpg` stands before its speaker's line `B: text`."""
    texts, waiting = list[tuple[str, str]](), ""
    for line in row["full_dialog"]:
        speaker, _, words = line.partition(":")
        if words.startswith(" "):
            texts.append((speaker, words.strip()))
            if waiting:
                yield Placement(
                    dialogue_id=name, turn=len(texts), speaker=speaker_of(len(texts)), strategy=strategy,
                    meme_id=waiting, rank=None, score=None, gate_score=None, threshold=None, fold="none",
                    source=RELEASED,
                )  # fmt: skip
            waiting = ""
        elif waiting or not texts:
            release.notes["meme lines at turn 1, or a second one at a turn"] += 1
        else:
            waiting = words
    release.notes["meme lines after the last text"] += bool(waiting)
    if texts != [(speaker_of(turn), text.strip()) for turn, text in enumerate(row["content"], start=1)]:
        raise ReleaseUnreadable(f"{name} ({strategy}): the texts of full_dialog are not those of content")


def _read_scores(release: Release, part: Set, strategy: str) -> None:
    """Scores by the name of the judged screenshot: `role_based_0001_random.png` is of `role_based_0001`.

    The ending says `random` for Diversity-aware too, so the file's name tells the strategy. Dialogues of
    one id have theirs in the order of the files.
    """
    rows = _rows(release, part.file("judged", strategy), "file", "综合得分")
    judged = [{"dialog_id": Path(row["file"]).stem.removesuffix("_random")} for row in rows]
    for name, score in zip(_ids(part, judged), (row["综合得分"] for row in rows), strict=True):
        if name in release.sets and isinstance(score, int | float):
            release.scores[name, strategy] = float(score)
        else:
            release.notes["scores of no dialogue, and such as are no number"] += 1


def _read_cosines(release: Release, part: Set, strategy: str) -> None:
    """Cosines by dialogue; dialogues of one id have theirs in the order of the files."""
    placed = {(p.dialogue_id, p.meme_id) for p in release.placements if p.strategy == strategy}
    rows = _rows(release, part.file("compared", strategy), "dialog_id", "image_text_pairs")
    for name, row in zip(_ids(part, rows), rows, strict=True):
        pairs = [(pair["image"], float(pair["similarity"])) for pair in row["image_text_pairs"]]
        known = [(meme, cosine) for meme, cosine in pairs if (name, meme) in placed]
        release.notes["cosines that belong to no placed meme"] += len(pairs) - len(known)
        if known:
            release.cosines[name, strategy] = known


def _summaries(release: Release, part: Set, rows: Sequence[Any]) -> list[list[Summary]]:
    """The summaries of each dialogue of a set, for its turns 2 to T; `unscored` where there is none.

    The release counts turns from 0. Its ids of role dialogues repeat, and its records interleave, so the k-th
    summary of an id and turn belongs to the k-th dialogue of that id, in the order of the files.
    """
    written = defaultdict(list)
    for row in _rows(release, part.file("summarised"), "dialog_id", "turn", *SUMMARY.values()):
        written[row["dialog_id"], row["turn"] + 1].append(row)
    spoken = _rows(release, part.file("spoken"), "dialog_id", "content") if written else []
    is_same = [row["content"] for row in spoken] == [row["content"] for row in rows]
    if written and not is_same:
        release.notes[f"{part}: dialogues without memes are others than those with memes"] += 1
    # Dialogues with memes have ids of their own, in the same order.
    names = [row["dialog_id"] for row in (spoken if is_same else rows)]
    of_name, before, out = Counter(names), Counter[str](), list[list[Summary]]()
    for name, row in zip(names, rows, strict=True):
        out.append([])
        for turn in range(2, len(row["content"]) + 1):
            given, values = written[name, turn], dict.fromkeys(SUMMARY, "")
            # Else not one for each dialogue of this id: which is whose cannot be told.
            if is_known := 0 < len(given) == of_name[name]:
                values = {own: given[before[name]][theirs] for own, theirs in SUMMARY.items()}
            why = "" if is_known else "the release has no summary of this turn"
            about = Summary(turn=turn, speaker=speaker_of(turn), source=GENERATOR, unscored=why, **values)
            out[-1].append(about)
            release.notes["turns without a summary"] += not is_known
        before[name] += 1
    return out
