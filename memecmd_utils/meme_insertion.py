"""Put memes into one's own chats: the library and the gate of a finished run, on a file of messages.

What comes out: the chat file with memes in it, the pictures used in a folder named after it, and a page to
look at. Nothing is overwritten that an earlier insertion did not write (`own_outputs`).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from memecmd_utils import (
    chat_columns,
    chat_exports,
    chat_summaries,
    conversations,
    insertion_page,
    library_search,
)
from memecmd_utils.chat_columns import MEME_COLUMNS, ChatFileError
from memecmd_utils.chat_exports import Export
from memecmd_utils.chat_summaries import Told
from memecmd_utils.conversations import SpokenTurn
from memecmd_utils.insertion_page import Shown
from memecmd_utils.library_search import Library
from memecmd_utils.own_outputs import Outputs
from memecmd_utils.profiles import Strategy
from memecmd_utils.retrieval import Ranking, pair_components
from memecmd_utils.runs import Run
from memecmd_utils.schemas import SummaryReply
from memecmd_utils.selection import choose
from memecmd_utils.threshold import simulate

STAGE = "own_chats"
"""Folder of the summary agent's recorded answers, below those of the profile that asked."""
PICTURES = "_memes"
"""What is added to the name of the file written: the folder beside it that takes the pictures."""


@dataclass(frozen=True)
class Inserted:
    """What was written, and counts."""

    target: Path
    page: Path
    pictures: Path
    chats: int
    turns: int
    memes: int
    different: int
    """Different memes among them."""
    unscored: int
    """Turns from the second on that have no summary: there the gate never opens."""
    summaries: str
    """Who wrote the summaries, in words."""
    taken: str
    """What was taken for what in the file read, in words."""

    def text(self) -> str:
        """The counts in a line, how the file was read in another, then the files."""
        missing = f"; {_counted(self.unscored, 'turn')} without a summary" if self.unscored else ""
        where = f"{_counted(self.turns, 'turn')} of {_counted(self.chats, 'chat')}"
        return (
            f"{_counted(self.memes, 'meme')} ({self.different:,} different) in {where}; "
            f"summaries: {self.summaries}{missing}\n"
            f"read: {self.taken}\n"
            f"{self.target}\n{self.page}\n{self.pictures}"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Insertion:
    """A meme at a turn of a chat."""

    chat: int
    turn: SpokenTurn
    meme_id: str
    summary: SummaryReply | None
    score: float | None
    gate_score: float | None
    threshold: float | None


def insert_file(
    source: Path,
    target: Path,
    profile: str = "example",
    settings: str = "",
    run_name: str = "",
    strategy: str = "greedy",
    columns: str = "",
) -> Inserted:
    """Put memes into the chats of `source` and write `target`: what `make insert-memes` does.

    The library, embedder, weights and gate are those of the finished run `run_name`, or else of the run that
    `profile` and `settings` make; the summary agent is asked by `profile` and `settings`. `columns` names
    columns as `chat_exports.parse_columns` reads them.
    """
    run = library_search.library_of(run_name, profile, settings)
    asking = library_search.asking_run(run, profile, settings, "chats")
    return insert(source, target, run, asking, strategy, chat_exports.parse_columns(columns))


def insert(
    source: Path,
    target: Path,
    run: Run,
    asking: Run,
    strategy: str = "greedy",
    columns: Mapping[str, str] | None = None,
) -> Inserted:
    """Put memes of the finished `run` into the chats of `source`; `asking` asks for missing summaries.

    A turn from the second on whose file gives no S, E and Psi is summarised by the model of `asking`, which
    is recorded and held to its caps; where it has none, `NoSummaryAgent` is raised if no turn has a summary,
    else such turns get no meme. Raises `ChatFileError` for a file that cannot be read or written, and where
    `target`, its page or its folder is there and not of an earlier insertion.
    """
    if strategy not in get_args(Strategy):
        raise ChatFileError(f"no strategy {strategy!r}; there are: {', '.join(get_args(Strategy))}")
    if target.resolve() == source.resolve():
        raise ChatFileError(f"OUT is the file that IN names, {source.name}: name another, it would be lost")
    if target.suffix.lower() != source.suffix.lower():
        raise ChatFileError(f"OUT has the format of IN: call it {target.stem}{source.suffix}")
    page, pictures = target.with_suffix(".html"), target.with_name(target.stem + PICTURES)
    outputs = Outputs(target, pictures)
    outputs.check([target, page])
    export = chat_exports.read(source, columns)
    spoken = [conversations.spoken_turns(chat) for chat in export.chats]
    library = library_search.open_library(run, asking.profile.mode, asking)
    # Before anything is paid for: can the cells be written that may be added?
    export.encoding.encode("".join([pictures.name, *library.memes]))
    summaries, who = _summaries(export, spoken, asking, run.name)
    placed = _place(spoken, summaries, export, library, strategy)
    files = _pictures(placed, library, pictures)
    after = run.profile.meme_position == "after"
    rows = {(p.chat, p.turn.last if after else p.turn.first): p for p in placed}
    done = Inserted(
        target=target,
        page=page,
        pictures=pictures,
        chats=len(spoken),
        turns=sum(map(len, spoken)),
        memes=len(placed),
        different=len(files),
        unscored=sum(summary is None for chat in summaries for summary in chat),
        summaries=who,
        taken=export.taken,
    )
    about = f"{done.text().splitlines()[0]}. Memes by {strategy} from the library of run {run.name}."
    shown = insertion_page.render(
        chat_columns.text_of(source.name),
        about,
        export.chats,
        {at: _shown(p, library) for at, p in rows.items()},
        {name: library.picture(name) for name in files},
        run.profile.meme_position,
    )
    written = {path: library.picture(name).read_bytes() for name, path in files.items()}
    written[page] = shown.encode()
    written[target] = export.render(
        {at: _columns(p, files, strategy) for at, p in rows.items()}, run.profile.meme_position
    )
    outputs.write(written)
    return done


def _summaries(
    export: Export, spoken: Sequence[list[SpokenTurn]], asking: Run, library: str
) -> tuple[list[list[SummaryReply | None]], str]:
    """A summary for each turn from the second on of every chat, and who wrote them."""
    given = sum(turn.summary is not None for turns in spoken for turn in turns[1:])
    wanted = [
        context
        for chat, turns in zip(export.chats, spoken, strict=True)
        for context, turn in zip(conversations.contexts(chat.name, turns), turns[1:], strict=True)
        if turn.summary is None
    ]
    told: list[Told] = []
    if not given or asking.profile.llm != "authored":
        told = chat_summaries.ask(wanted, asking, STAGE, library)
    written = {(w.chat, w.turn): t.summary for w, t in zip(wanted, told, strict=False)}
    summaries = [
        [turn.summary or written.get((chat.name, turn.turn)) for turn in turns[1:]]
        for chat, turns in zip(export.chats, spoken, strict=True)
    ]
    sources = sorted({t.source for t in told})
    return summaries, ", ".join([*(["in the file"] if given else []), *sources]) or "none needed"


def _place(
    spoken: Sequence[list[SpokenTurn]],
    summaries: Sequence[list[SummaryReply | None]],
    export: Export,
    library: Library,
    strategy: str,
) -> list[Insertion]:
    """Memes by the strategy over the run's gate, in all chats (Eq. 22-25)."""
    profile = library.run.profile
    flat = [summary for chat in summaries for summary in chat]
    queries, ranking = library.rank(flat, library.query_means() if any(flat) else {})
    gate, scale = library.gate()
    out, start = [], 0
    for number, (chat, turns) in enumerate(zip(export.chats, spoken, strict=True)):
        part = slice(start, start + len(summaries[number]))
        start = part.stop
        rows = Ranking(ranking.memes[part], ranking.scores[part], ranking.components[part])
        gate_scores = scale.apply(rows.scores[:, 0])
        trace = simulate(gate_scores, gate)
        n_memes = len(library.index.meme_ids)
        for row, meme, _ in choose(strategy, rows, trace.sent, n_memes, profile, chat.name):
            parts = pair_components(library.index, queries[part][row : row + 1], np.array([[meme]]))[0, 0]
            scored, gated = summaries[number][row] is not None, strategy != "random"
            out.append(
                Insertion(
                    chat=number,
                    turn=turns[row + 1],
                    meme_id=library.index.meme_ids[meme],
                    summary=summaries[number][row],
                    score=float(parts @ np.asarray(profile.weights)) if scored else None,
                    gate_score=float(gate_scores[row]) if gated else None,
                    threshold=float(trace.thresholds[row]) if gated else None,
                )
            )
    return out


def _pictures(placed: Sequence[Insertion], library: Library, folder: Path) -> dict[str, Path]:
    """Meme id to the file in `folder` that takes its picture."""
    files: dict[str, Path] = {}
    taken = set()
    for meme_id in sorted({p.meme_id for p in placed}):
        # Ids of a table of one's own may be any text; a file's name may not.
        name = re.sub(r"[^\w.-]", "_", meme_id).lstrip(".-")
        if name.casefold() in taken:
            name += "-" + hashlib.sha256(meme_id.encode()).hexdigest()[:8]
        taken.add(name.casefold())
        files[meme_id] = folder / (name + library.picture(meme_id).suffix)
    return files


def _columns(placed: Insertion, pictures: Mapping[str, Path], strategy: str) -> dict[str, Any]:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    values = (
        placed.meme_id,
        "/".join(pictures[placed.meme_id].parts[-2:]),
        rounded(placed.score),
        rounded(placed.gate_score),
        rounded(placed.threshold),
        strategy,
    )
    return dict(zip(MEME_COLUMNS, values, strict=True))


def _shown(placed: Insertion, library: Library) -> Shown:
    meme = library.memes[placed.meme_id]
    lines = [meme.meme_id if placed.score is None else f"{meme.meme_id}, T = {placed.score:+.3f}"]
    if placed.threshold is not None:
        lines.append(f"gate: {placed.gate_score:+.2f} > {placed.threshold:+.2f}")
    if placed.summary is not None:
        lines.append(f"Ψ {placed.summary.motivation}")
    return Shown(meme.meme_id, meme.text or meme.picture_note or meme.meme_id, tuple(lines))
