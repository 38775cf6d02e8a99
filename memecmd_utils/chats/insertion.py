"""Put memes into one's own chats: the library and the gate of a finished run, on a file of messages."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from memecmd_utils import files, learned, reranking, retrieval, runs
from memecmd_utils.chats import readers
from memecmd_utils.chats.formats import MEME_COLUMNS, PICTURES
from memecmd_utils.chats.readers import Export, counted
from memecmd_utils.chats.search import Library, asking_run, learned_library, library_run, open_library
from memecmd_utils.chats.turns import (
    MAX_CHARS,
    ChatError,
    Conversation,
    NoSummaryAgent,
    SpokenTurn,
    contexts,
    spoken_turns,
    summarise,
)
from memecmd_utils.drawing import ShownTurn, initials, shown_meme
from memecmd_utils.runs import Run
from memecmd_utils.settings import Strategy

WRITTEN = "written.json"
"""In the folder of pictures: every SHA-256 that the output and its page had when they were written."""


class Insertion(NamedTuple):
    """A meme at a turn of a chat."""

    chat: int
    turn: SpokenTurn
    meme_id: str
    score: float
    gate_score: float | None
    threshold: float | None
    measure: str = "T"
    """What the score is called on the page."""
    reason: str = ""
    """Why a model chose it."""

    def columns(self, picture: Path, strategy: str) -> dict[str, Any]:
        """Values of `MEME_COLUMNS`."""
        numbers = (self.score, self.gate_score, self.threshold)
        rounded = (None if number is None else round(number, 6) for number in numbers)
        values = (self.meme_id, "/".join(picture.parts[-2:]), *rounded, strategy)
        return dict(zip(MEME_COLUMNS, values, strict=True))

    def lines(self) -> list[str]:
        """What is written beside the meme on the page."""
        lines = [f"{self.meme_id}, {self.measure} = {self.score:+.3f}"]
        if self.threshold is not None:
            lines.append(f"gate: {self.gate_score:+.2f} > {self.threshold:+.2f}")
        if self.reason:
            lines.append(self.reason)
        return [*lines, f"Ψ {self.turn.summary.motivation}"]


def insert_file(
    source: Path,
    target: Path,
    profile: str,
    settings: str = "",
    run_name: str = "",
    strategy: str = "greedy",
    fields: str = "",
) -> str:
    """Put memes into the chats of `source`, write `target` and say how it went (`make insert-memes`).

    The library, embedder and weights are those of the finished run `run_name`, or else of the run that
    `profile` and `settings` make; its `wanted_rate` is met on the turns of the file. The summary agent, and
    for `reranked` the model that chooses, are asked by `profile` and `settings`. `fields` names
    columns (`readers.parse_fields`). A turn from the second on whose file gives no S, E and Psi is summarised
    by the model of the profile, which is recorded and held to its caps; where it has none, `NoSummaryAgent`
    is raised if no turn has a summary, else such turns get no meme. Raises `ChatError` for a file that
    cannot be read or written, and where `target` is there and not as an earlier insertion left it.
    """
    export = readers.read(source, readers.parse_fields(fields))
    run = library_run(run_name, profile, settings)
    asking = asking_run(run, profile, settings, "chats")
    if strategy not in get_args(Strategy):
        raise ChatError(f"no strategy {strategy!r}; there are: {', '.join(get_args(Strategy))}")
    if target.suffix.lower() != source.suffix.lower():
        raise ChatError(f"OUT has the format of IN: call it {target.stem}{source.suffix}")
    page, pictures = target.with_suffix(".html"), target.with_name(target.stem + PICTURES)
    _check_outputs(source, target, page, pictures)
    turns = [spoken_turns(chat) for chat in export.chats]
    library = open_library(run, asking)
    before = runs.spent(asking).total("usd")
    turns, writers, why = _summarised(export, turns, asking, run.name)
    usd = runs.spent(asking).total("usd") - before
    if strategy == retrieval.LEARNED:
        insertions = _learned_insertions(turns, learned_library(library, asking), run)
    elif strategy == retrieval.RERANKED:
        insertions = _reranked_insertions(export.chats, turns, library, asking)
    else:
        insertions = _insertions(export.chats, turns, library, strategy)
    position = run.profile.retrieval.meme_position
    end = "last" if position == "after" else "first"
    by_message = {(one.chat, getattr(one.turn, end)): one for one in insertions}
    # Ids of a table of one's own may be any text; a file's name may not.
    names = {one.meme_id: re.sub(r"[^\w.-]", "_", one.meme_id).lstrip(".-") for one in insertions}
    placed = {meme_id: pictures / (name + library.picture(meme_id).suffix) for meme_id, name in names.items()}
    missing = sum(turn.summary is None for of_chat in turns for turn in of_chat[1:])
    about = (
        f"{counted(len(insertions), 'meme')} ({len(placed):,} different) in "
        f"{counted(sum(map(len, turns)), 'turn')} of {counted(len(turns), 'chat')}; summaries: {writers}"
        + (f" for ${usd:.4f}" if usd else "")
        + (f"; {counted(missing, 'turn')} without a summary{why}" if missing else "")
    )
    title = f"{about}. Memes by {strategy} from the library of run {run.name}."
    columns = {at: one.columns(placed[one.meme_id], strategy) for at, one in by_message.items()}
    contents = {path: library.picture(meme_id).read_bytes() for meme_id, path in placed.items()}
    contents[page] = _page(source.name, title, export.chats, by_message, library).encode()
    contents[target] = export.render(columns, position)
    _write(contents, [page, target], pictures)
    return "\n".join([about, f"read: {export.taken}", *map(str, (target, page, pictures))])


def _check_outputs(source: Path, target: Path, page: Path, pictures: Path) -> None:
    """Raise `ChatError` where an output would overwrite what no insertion wrote, or what was changed."""
    if target.exists() and source.exists() and target.samefile(source):
        raise ChatError(f"OUT is the file that IN names, {source.name}: name another, it would be lost")
    folder = next(folder for folder in target.absolute().parents if folder.exists())
    if not os.access(folder, os.W_OK):  # told before a model is asked
        raise ChatError(f"{folder} cannot be written to: name another OUT")
    known = _noted(pictures)
    present = [path for path in (target, page) if path.exists()]
    foreign = [path for path in present if files.sha256(path) not in known.get(path.name, [])]
    foreign += [pictures] * (pictures.exists() and target.name not in known)
    if foreign:
        raise ChatError(f"{foreign[0]} was not written by this command, or was changed: name another OUT")


def _noted(pictures: Path) -> dict[str, list[str]]:
    note = pictures / WRITTEN
    return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}


def _write(contents: Mapping[Path, bytes], noted: Sequence[Path], pictures: Path) -> None:
    """Write all files. The note comes first and keeps old hashes: a killed insertion can be repeated."""
    known = _noted(pictures)
    for path in noted:
        hashes = [hashlib.sha256(contents[path]).hexdigest(), *known.get(path.name, [])]
        known[path.name] = list(dict.fromkeys(hashes))
    try:
        files.write_json(pictures / WRITTEN, known)
        for path, data in contents.items():
            with files.atomic_path(path) as part:
                part.write_bytes(data)
    except OSError as error:
        raise ChatError(f"{error.filename} cannot be written: {error.strerror}") from error


def _summarised(
    export: Export, turns: Sequence[list[SpokenTurn]], asking: Run, library: str
) -> tuple[list[list[SpokenTurn]], str, str]:
    """The turns of every chat with summaries from the second on, who wrote them, and why one is missing."""
    given = any(turn.summary is not None for of_chat in turns for turn in of_chat[1:])
    wanted = [
        context
        for chat, of_chat in zip(export.chats, turns, strict=True)
        for context, turn in zip(contexts(chat.name, of_chat), of_chat[1:], strict=True)
        if turn.summary is None
    ]
    is_asked = not given or asking.profile.models.llm != "authored"
    answers = summarise(wanted, asking, "own_chats", library) if is_asked else []
    written = {(c.chat, c.turn): answer.value for c, answer in zip(wanted, answers, strict=False)}
    told = [
        [turn._replace(summary=turn.summary or written.get((chat.name, turn.turn))) for turn in of_chat]
        for chat, of_chat in zip(export.chats, turns, strict=True)
    ]
    writers = [*(["in the file"] if given else []), *sorted({answer.source for answer in answers})]
    faults = Counter(f"{answer.outcome}: {answer.reason}" for answer in answers if answer.value is None)
    why = f" ({faults.most_common(1)[0][0]})" if faults else ""
    return told, ", ".join(writers) or "none needed", why


def _insertions(
    chats: Sequence[Conversation], turns: Sequence[list[SpokenTurn]], library: Library, strategy: str
) -> list[Insertion]:
    """Memes by the strategy in all chats (Eq. 22-25)."""
    profile, index, insertions = library.run.profile, library.index, []
    # The first turn has nothing before it.
    ranked = [library.rank([turn.summary for turn in of_chat[1:]]) for of_chat in turns]
    top1 = [ranking.scores[:, 0] for _, ranking in ranked]
    if not any(np.isfinite(scores).any() for scores in top1):
        return []
    rule, rate = retrieval.rule_of(profile), profile.retrieval.wanted_rate
    ((gate, scale, _),) = retrieval.fit_gates(retrieval.pad(top1)[None], rule, rate, sum(map(len, top1)))
    for number, (chat, of_chat, (queries, ranking)) in enumerate(zip(chats, turns, ranked, strict=True)):
        of_chat = of_chat[1:]
        gate_scores = scale.apply(ranking.scores[:, 0])
        trace = retrieval.simulate(gate_scores, gate)
        chosen = retrieval.choose(strategy, ranking, trace.sent, len(index.meme_ids), profile, chat.name)
        for row, meme, _ in chosen:
            if of_chat[row].summary is None:
                continue
            parts = retrieval.pair_components(index, queries[row : row + 1], np.array([[meme]]))[0, 0]
            score = float(parts @ np.asarray(profile.retrieval.weights))
            gated = (float(gate_scores[row]), float(trace.thresholds[row]))
            asked = gated if strategy != "random" else (None, None)
            insertions.append(Insertion(number, of_chat[row], index.meme_ids[meme], score, *asked))
    return insertions


def _learned_insertions(
    turns: Sequence[list[SpokenTurn]], library: learned.LearnedLibrary, run: Run
) -> list[Insertion]:
    """Memes where learned placement promises most: scored by the gain to expect (0-4), gated by promise."""
    found = []
    for number, of_chat in enumerate(turns):
        known = [turn for turn in of_chat[1:] if turn.summary is not None]
        if not known:
            continue
        said = [turn.text[:MAX_CHARS] for turn in of_chat]
        texts = [learned.turn_texts(said[: turn.turn - 1], turn.summary) for turn in known]
        speakers = ["A" if turn.speaker == of_chat[0].speaker else "B" for turn in known]
        promises = library.promises("", texts, [turn.turn for turn in known], speakers)
        found += [(number, *row) for row in zip(known, *promises, strict=True)]
    rate = run.profile.retrieval.wanted_rate
    threshold = float(np.quantile([promise for *_, promise in found], 1 - rate)) if found else 0.0
    return [
        Insertion(
            number, turn, library.meme_ids[meme], float(gain), float(promise), threshold, "gain to expect"
        )
        for number, turn, meme, gain, promise in found
        if promise >= threshold
    ]  # fmt: skip


def _reranked_insertions(
    chats: Sequence[Conversation], turns: Sequence[list[SpokenTurn]], library: Library, asking: Run
) -> list[Insertion]:
    """Memes that the model of `asking` chooses among the best of the run's library."""
    if asking.profile.models.llm == "authored":
        raise NoSummaryAgent(
            f"strategy {retrieval.RERANKED} asks a model at every turn, and profile "
            f"{asking.profile.name!r} has none: PROFILE=local RUN={library.run.name} after `make local-llm`, "
            f"or PROFILE=openai RUN={library.run.name} with a key"
        )
    weights, ranked, rows = library.run.profile.retrieval.weights, [], []
    for number, (chat, of_chat) in enumerate(zip(chats, turns, strict=True)):
        known = [turn for turn in of_chat[1:] if turn.summary is not None]
        found = library.rank([turn.summary for turn in known], reranking.depth(asking.profile))
        lines, names = [(turn.speaker, turn.text) for turn in of_chat], [turn.turn for turn in known]
        best = reranking.candidate_ids(found[1], library.index)
        ranked.append(reranking.RankedChat(chat.name, lines, names, best))
        rows += [(number, turn, query) for turn, query in zip(known, found[0], strict=True)]
    image = reranking.pictures(library.run, asking)
    with asking.chat("chooser", "own_chats_choice", at_once=1) as chat:
        choices = reranking.ask_model(ranked, chat, library.memes, asking.profile, image)
    insertions = []
    for (number, turn, query), choice in zip(rows, choices, strict=True):
        if choice.meme_id:
            place = np.array([[library.index.meme_ids.index(choice.meme_id)]])
            score = float(retrieval.pair_components(library.index, query[None], place)[0, 0] @ weights)
            insertions.append(
                Insertion(number, turn, choice.meme_id, score, None, None, reason=choice.reason)
            )
    return insertions


def _page(
    title: str,
    about: str,
    chats: Sequence[Conversation],
    insertions: Mapping[tuple[int, int], Insertion],
    library: Library,
) -> str:
    """The page; `insertions` by chat and message. Whoever speaks first in a chat stands right.

    All texts come out escaped, nothing is loaded from elsewhere, and each picture is in the page once.
    """
    names = dict.fromkeys(one.meme_id for one in insertions.values())
    memes = {
        name: shown_meme(library.memes[name], library.picture(name), defined=f"meme-{number}")
        for number, name in enumerate(names)
    }
    shown_chats = []
    for number, chat in enumerate(chats):
        first = next((message.speaker for message in chat.messages if message.speaker), "")
        turns = []
        for place, message in enumerate(chat.messages):
            insertion = insertions.get((number, place))
            meme = insertion and replace(memes[insertion.meme_id], lines=tuple(insertion.lines()))
            side = "right" if message.speaker and message.speaker == first else "left"
            note = " · ".join(filter(None, (message.speaker, "" if message.text.strip() else "(no text)")))
            turns.append(ShownTurn(place + 1, side, message.speaker, message.text, note=note, meme=meme))
        shown_chats.append({"name": chat.name, "turns": turns})
    page = files.templates(initials=initials).get_template("inserted_chat.html.j2")
    shown = {"title": title, "about": about, "chats": shown_chats, "memes": list(memes.values())}
    return page.render(shown, meme_position=library.run.profile.retrieval.meme_position)
