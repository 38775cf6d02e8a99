"""Meme retrieval as a benchmark in the layout of BEIR and `mteb`: corpus, queries, qrels, and when to send.

A split has a library, turns to rank it for, and grades. `write` makes a folder of it, `read` reads that back:
nothing else of a run is needed to rank memes and to be measured (`evaluation.leaderboard`).
"""

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from memecmd_utils import files
from memecmd_utils import grades as rankings
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.grades import (  # noqa: F401
    EXAMPLE,
    LATER,
    POOL,
    UNTOUCHED,
    Split,
    mean_grades,
    splits_of_run,
    untouched_split,
)
from memecmd_utils.schemas import Annotation, Meme

RELEVANT = 2
"""Score from which a meme fits: a mean grade of 1."""
QRELS = ("query-id", "corpus-id", "score")
JUDGED = (*QRELS, "batch")
TIMING = ("query-id", "marker", "send")


class BenchmarkError(MemecmdError, ValueError):
    """A benchmark that cannot be made or read; the message says what is missing or wrong."""


class Utterance(NamedTuple):
    """Who said what."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Turn:
    """A query: the turn for which memes are ranked. Nothing in it was said at the turn or later."""

    id: str
    """`<dialogue>/<turn>`, without spaces."""
    dialogue: str
    """Turns of one dialogue count as one cluster."""
    turn: int
    speaker: str
    """Who would send the meme."""
    before: tuple[Utterance, ...]
    """u_1..u_{t-1}."""
    scenario: str = ""
    """S, E and Psi (Eq. 16); empty where nobody summarised the chat."""
    emotion: str = ""
    motivation: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """(dialogue, turn)."""
        return self.dialogue, self.turn

    @property
    def text(self) -> str:
        """The whole chat before the turn, a line a message."""
        return "\n".join(f"{speaker}: {text}" for speaker, text in self.before)

    @property
    def context(self) -> str:
        """The last three messages as they were said: what the caption baseline reads."""
        return "\n".join(text for _, text in self.before[-rankings.CONTEXT_TURNS :] if text)


@dataclass(frozen=True)
class KnownMeme:
    """A document: what is known of a meme without its picture."""

    id: str
    caption: str
    picture: str = ""
    """A note on the picture."""
    s_plus: str = ""
    """When it fits, when it does not, its emotion, why one sends it (Eq. 1)."""
    s_minus: str = ""
    emotion: str = ""
    motivation: str = ""

    @property
    def text(self) -> str:
        """What speaks for the meme, a line a text: all but the caption and S-."""
        return "\n".join(filter(None, (self.picture, self.s_plus, self.emotion, self.motivation)))


class Judgement(NamedTuple):
    """What graders say of a meme at a turn: twice their mean grade, rounded, so that of two it is the sum."""

    query: str
    meme: str
    score: int
    """0 to 4."""
    batch: str
    """Why it was graded, `POOL` or `LATER`; `user` for grades of a file."""


class Marked(NamedTuple):
    """Whether one marker would send a meme at a turn: 1 or 0."""

    query: str
    marker: str
    send: int


@dataclass(frozen=True)
class Benchmark:
    """One split: all that an entry may read, and what it is measured by."""

    split: str
    turns: tuple[Turn, ...]
    memes: tuple[KnownMeme, ...]
    judgements: tuple[Judgement, ...]
    marks: tuple[Marked, ...] = ()

    @cached_property
    def qrels(self) -> dict[str, dict[str, int]]:
        """Query -> meme -> score, at the turns where some judged meme fits: no other tells systems apart."""
        found: dict[str, dict[str, int]] = {}
        for query, meme, score, _ in self.judgements:
            found.setdefault(query, {})[meme] = score
        return {query: scores for query, scores in found.items() if max(scores.values()) >= RELEVANT}

    @property
    def qrels_rows(self) -> list[tuple[str, str, int]]:
        """Query, meme and score of `qrels`."""
        return [(query, meme, score) for query, found in self.qrels.items() for meme, score in found.items()]

    @property
    def qrels_text(self) -> str:
        """The file of `qrels`."""
        return _tsv(QRELS, self.qrels_rows)

    @property
    def digest(self) -> str:
        """SHA-256 of that file: by it one knows which grades a leaderboard was made with."""
        return hashlib.sha256(self.qrels_text.encode()).hexdigest()

    @property
    def asked(self) -> tuple[Turn, ...]:
        """The turns of `qrels`, which every entry has to rank memes for."""
        return tuple(turn for turn in self.turns if turn.id in self.qrels)


def query_id(dialogue: str, turn: int | str) -> str:
    """The id of a turn: one word, as TREC files want it."""
    return re.sub(r"\s+", "_", f"{dialogue}/{turn}")


# --- From records to a benchmark


def files_of(splits: Sequence[Split]) -> list[Path]:
    """Files of the example corpus that splits and their run files hold and a run does not read."""
    if not splits:
        return []
    weights = [paths.example / "placement.json"]
    later = [paths.example / "grades_learned.jsonl" for one in splits if LATER in one.grades]
    untouched = any(one.name == UNTOUCHED for one in splits)
    texts = (path for path in (paths.example / UNTOUCHED).iterdir() if path.is_file()) if untouched else ()
    return [*weights, *later, *sorted(texts)]


def document(meme: Meme, said: Annotation) -> KnownMeme:
    """What is known of a meme."""
    texts = said.s_plus, said.s_minus, said.emotion, said.motivation
    return KnownMeme(meme.meme_id, meme.text, meme.picture_note, *texts)


def build(split: Split) -> Benchmark:
    """A split as a benchmark: turns that have a summary, memes that may be sent, and their grades.

    Raises `BenchmarkError` where two turns get one id.
    """
    turns = []
    for query in rankings.queries(split.dialogues):
        dialogue, number = query
        (summary,) = (s for s in dialogue.summaries if s.turn == number)
        before = tuple(Utterance(u.speaker, u.text) for u in dialogue.turns if u.turn < number)
        turns.append(
            Turn(
                query_id(*query.key), dialogue.dialogue_id, number, summary.speaker, before,
                summary.scenario, summary.emotion, summary.motivation,
            )
        )  # fmt: skip
    ids = {turn.key: turn.id for turn in turns}
    if len(set(ids.values())) < len(ids):
        raise BenchmarkError("two dialogues differ in spaces only: their turns would have one id")
    memes = tuple(
        document(split.memes[a.meme_id], a)
        for a in split.annotations
        if a.usable and a.meme_id in split.memes
    )
    known = {meme.id for meme in memes}
    judgements = [
        Judgement(ids[key], meme, int(2 * grade + 0.5), batch)
        for batch, grades in split.grades.items()
        for key, means in mean_grades(grades).items() if key in ids
        for meme, grade in means.items() if meme in known
    ]  # fmt: skip
    marks = [
        Marked(ids[mark.dialogue_id, mark.turn], mark.marker, int(mark.send))
        for mark in split.marks
        if (mark.dialogue_id, mark.turn) in ids
    ]
    place = {turn.id: number for number, turn in enumerate(turns)}
    judgements.sort(key=lambda row: (place[row.query], row.meme))
    marks.sort(key=lambda row: (place[row.query], row.marker))
    return Benchmark(split.name, tuple(turns), memes, tuple(judgements), tuple(marks))


# --- The layout: one folder a split


def write(folder: Path, benchmarks: Sequence[Benchmark]) -> None:
    """Write every split into a folder of its own, and `README.md` with what `datasets` and readers need."""
    for one in benchmarks:
        place = folder / one.split
        texts = [
            {"_id": meme.id, "title": meme.caption, "text": meme.text, "metadata": asdict(meme)}
            for meme in one.memes
        ]
        _write_lines(place / "corpus.jsonl", texts)
        queries = [{"_id": turn.id, "text": turn.text, "metadata": _metadata(turn)} for turn in one.turns]
        _write_lines(place / "queries.jsonl", queries)
        files.write_text(place / "qrels" / "test.tsv", one.qrels_text)
        rows = [dict(zip(QRELS, row, strict=True)) for row in one.qrels_rows]
        _write_lines(place / "qrels" / "test.jsonl", rows)
        files.write_text(place / "judgements.tsv", _tsv(JUDGED, one.judgements))
        if one.marks:
            files.write_text(place / "timing" / "test.tsv", _tsv(TIMING, one.marks))
    files.write_text(folder / "README.md", readme(benchmarks))


def _metadata(turn: Turn) -> dict[str, Any]:
    return {**asdict(turn), "before": [u._asdict() for u in turn.before], "last_turns": turn.context}


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    files.write_text(path, "".join(files.dumps(row) + "\n" for row in rows))


def _tsv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    # Ids are single words, so nothing needs a quote.
    return "".join("\t".join(map(str, row)) + "\n" for row in (columns, *rows))


def read(folder: Path) -> list[Benchmark]:
    """Read every split of a folder that `write` made; `BenchmarkError` names what cannot be read."""
    places = sorted(path.parent for path in folder.glob("*/corpus.jsonl"))
    if not places:
        raise BenchmarkError(f"{folder}: no benchmark is here (a folder a split, with corpus.jsonl)")
    return [_read_split(place) for place in places]


def _read_split(place: Path) -> Benchmark:
    try:
        memes = [KnownMeme(**row["metadata"]) for row in _read_lines(place / "corpus.jsonl")]
        turns = []
        for row in _read_lines(place / "queries.jsonl"):
            values = dict(row["metadata"])
            values.pop("last_turns")
            turns.append(Turn(**{**values, "before": tuple(Utterance(**u) for u in values["before"])}))
        judged = [Judgement(q, m, int(s), b) for q, m, s, b in _read_tsv(place / "judgements.tsv", JUDGED)]
        timing = place / "timing" / "test.tsv"
        marks = [Marked(q, m, int(s)) for q, m, s in _read_tsv(timing, TIMING)] if timing.is_file() else []
    except (KeyError, TypeError, ValueError) as error:
        raise BenchmarkError(f"{place}: not a split of a benchmark: {error}") from error
    return Benchmark(place.name, tuple(turns), tuple(memes), tuple(judged), tuple(marks))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _read_tsv(path: Path, columns: Sequence[str]) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    if tuple(head) != tuple(columns):
        raise ValueError(f"{path.name} begins with {head}, not with {list(columns)}")
    return rows


# --- What it says of itself


TEXT = """# Which meme comes next? A benchmark

Of a chat before turn t, rank the memes of a library: which one should its speaker send? The chats are Chinese.
Unless the release says otherwise, chats, memes, grades and marks were written by a large language model, not by people.

| split | turns with a fitting meme (queries of `qrels`) | all turns | memes | graded pairs |
|---|---:|---:|---:|---:|
{sizes}

In a split's folder:

- `corpus.jsonl`: a meme a line: `_id`, `title` (its caption), `text` (its picture, when it fits, its emotion, why one sends it); `metadata` holds each text
  apart, and `s_minus`, when it does not fit.
- `queries.jsonl`: a turn a line: `_id` (`<dialogue>/<turn>`), `text` (the chat before the turn); `metadata` holds every message, the last three
  (`last_turns`), and a summary of the chat: `scenario`, `emotion`, `motivation`.
- `qrels/test.tsv` (the same in `test.jsonl`): `query-id`, `corpus-id`, `score`: 0 to 4, twice the graders' mean grade (of two graders: the sum), rounded. From {relevant} on a meme fits.
  Only turns with a fitting meme are in it. A meme that is not in it was not graded.
- `judgements.tsv`: the grades of all turns; `batch` tells those of the first pool (`pool`) from those of memes that learned placement found and that were
  graded later (`learned`).
- `timing/test.tsv`: the second task. Would a marker send a meme at this turn (`send`: 1 or 0)?
- `runs/<split>/*.trec`, beside these folders: the first 20 memes of systems of the package, for comparison.

## Enter

A TREC run has a line a meme, `query-id Q0 corpus-id rank score tag`. The score counts, not the rank; equal scores are ordered by id. Memes that are not listed
are not found. Or a Python file with one function:

```python
def rank(turn, memes):
    # turn: id, dialogue, turn, speaker, before (messages with speaker and text), scenario, emotion, motivation, text, context
    # memes: a tuple, each with id, caption, picture, s_plus, s_minus, emotion, motivation, text
    return [len(set(turn.context) & set(meme.s_plus)) for meme in memes]  # a number for each meme, the best highest

def wanted(turn):  # may be left out: the timing task
    return turn.turn  # the higher, the more a meme is wanted
```

In a checkout of the package `make leaderboard ENTRY=my.trec` (or `my.py`, or the name of an embedder) scores it beside the systems of the package, with intervals over
dialogues and paired tests; `RELEASE=DIR` takes the benchmark of a release. An entry has to rank memes for every turn of `qrels` and may name no other ids.

Measures count the first {depth} memes of a turn: nDCG@5 with the scores as gains; R@1, R@5 (is a fitting meme among them?) and MRR@{depth} with the fitting memes. In
`ir-measures`: `nDCG@5`, `Success(rel={relevant})@1`, `Success(rel={relevant})@5`, `RR(rel={relevant})@{depth}`, `Judged@5`.

```python
from datasets import load_dataset

corpus = load_dataset(".", "{first}-corpus", split="test")  # also {first}-queries, {first}-qrels; `mteb` reads the same
```
"""  # noqa: E501
DEPTH = 20
"""Memes of a turn that are measured: what run files hold, so that every tool sees the same."""
_PARTS = {
    "corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "qrels/test.jsonl",
}  # fmt: skip
"""Configurations of `datasets`, which reads one kind of file in a folder: `mteb` has qrels as JSON, too."""


def readme(benchmarks: Sequence[Benchmark]) -> str:
    """The card of a benchmark: a header for `datasets` and `mteb`, what is in it, how to enter."""
    configs = [
        {
            "config_name": f"{one.split}-{part}",
            "data_files": [{"split": "test", "path": f"{one.split}/{file}"}],
        }
        for one in benchmarks
        for part, file in _PARTS.items()
    ]
    header = {"language": ["zh"], "task_categories": ["text-retrieval"], "configs": configs}
    sizes = []
    for one in benchmarks:
        batches = Counter(row.batch for row in one.judgements)
        graded = f"{len(one.judgements):,} ({', '.join(f'{n:,} {batch}' for batch, n in batches.items())})"
        sizes.append(
            f"| `{one.split}` | {len(one.qrels):,} | {len(one.turns):,} | {len(one.memes):,} | {graded} |"
        )
    text = TEXT.format(
        sizes="\n".join(sizes),
        relevant=RELEVANT,
        depth=DEPTH,
        first=benchmarks[0].split if benchmarks else "",
    )
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n{text}"
