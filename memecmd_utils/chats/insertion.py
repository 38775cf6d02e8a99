"""Put memes into one's own chats: the library and the gate of a finished run, on a file of messages."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from markupsafe import Markup

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


class ToldChat(NamedTuple):
    """A chat by its turns, those from the second on with their summaries, as far as there are any."""

    name: str
    turns: list[SpokenTurn]

    def known(self) -> list[SpokenTurn]:
        """The turns that a model or the learned weights look at; the first has nothing before it."""
        return [turn for turn in self.turns[1:] if turn.summary is not None]


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
    cannot be read or written, and where something is there that no insertion wrote.
    """
    given = readers.parse_fields(fields)
    export = readers.read(source, given)
    run = library_run(run_name, profile, settings)
    asking = asking_run(run, profile, settings, "chats")
    if strategy not in get_args(Strategy):
        raise ChatError(f"no strategy {strategy!r}; there are: {', '.join(get_args(Strategy))}")
    _check_output(source, target, export, given)
    library = open_library(run, asking)
    before = runs.spent(asking).total("usd")
    chats, writers = _summarised(export.chats, asking, run.name)
    usd = runs.spent(asking).total("usd") - before
    if strategy == retrieval.LEARNED:
        insertions = _learned_insertions(chats, learned_library(library, asking), run)
    elif strategy == retrieval.RERANKED:
        insertions = _reranked_insertions(chats, library, asking)
    else:
        insertions = _insertions(chats, library, strategy)
    n_different = len({insertion.meme_id for insertion in insertions})
    about = (
        f"{counted(len(insertions), 'meme')} ({n_different:,} different) in "
        f"{counted(sum(len(chat.turns) for chat in chats), 'turn')} of {counted(len(chats), 'chat')}; "
        f"summaries: {writers}" + (f"; ${usd:.4f}" if usd else "")
    )
    title = f"{about}. Memes by {strategy} from the library of run {run.name}."
    paths = _write(target, export, insertions, strategy, library, {"title": source.name, "about": title})
    return "\n".join([about, f"read: {export.taken}", *map(str, paths)])


# --- what may be overwritten, and what is written


def _beside(target: Path) -> tuple[Path, Path]:
    """The page and the folder of pictures of an output."""
    return target.with_suffix(".html"), target.with_name(target.stem + PICTURES)


def _check_output(source: Path, target: Path, export: Export, given: Mapping[str, str]) -> None:
    """Raise `ChatError` where OUT is IN, has another format, or would overwrite what no insertion wrote.

    What an insertion wrote bears its marks: memes in the file, and the file's name on the page beside it.
    """
    if target.suffix.lower() != source.suffix.lower():
        raise ChatError(f"OUT has the format of IN: call it {target.stem}{source.suffix}")
    if target.exists() and target.samefile(source):
        raise ChatError(f"OUT is the file that IN names, {source.name}: name another, it would be lost")
    folder = next(folder for folder in target.absolute().parents if folder.exists())
    if not os.access(folder, os.W_OK):  # told before a model is asked
        raise ChatError(f"{folder} cannot be written to: name another OUT")
    page, pictures = _beside(target)
    there = [path for path in (target, page, pictures) if path.exists()]
    has_page = page.is_file() and _mark(target) in page.read_text(encoding="utf-8", errors="replace")
    if there and not (has_page and (target not in there or _has_memes(target, export, given))):
        raise ChatError(f"{there[0]} was not written by this command, or lacks its page: name another OUT")


def _has_memes(target: Path, export: Export, given: Mapping[str, str]) -> bool:
    """Whether an insertion wrote `target`, perhaps the same chats without a meme."""
    try:
        there = readers.read(target, {part: name for part, name in given.items() if part != "encoding"})
    except ChatError:
        return False
    return there.content.has_memes or target.read_bytes() == export.render({})


def _mark(target: Path) -> Markup:
    """What stands in the source of the page that is written beside `target`."""
    return Markup('data-out="{}"').format(target.name)


def _write(
    target: Path,
    export: Export,
    insertions: Sequence[Insertion],
    strategy: str,
    library: Library,
    head: Mapping[str, str],
) -> list[Path]:
    """Write the page with this `head`, the pictures, then the file: a killed insertion can be repeated."""
    page, folder = _beside(target)
    at = {(insertion.chat, insertion.turn.first): insertion for insertion in insertions}
    pictures = {it.meme_id: folder / (it.meme_id + library.picture(it.meme_id).suffix) for it in insertions}
    columns = {key: it.columns(pictures[it.meme_id], strategy) for key, it in at.items()}
    contents = {page: _page(export.chats, at, library, mark=_mark(target), **head).encode()}
    contents |= {path: library.picture(meme_id).read_bytes() for meme_id, path in pictures.items()}
    contents[target] = export.render(columns)
    try:
        for path, data in contents.items():
            with files.atomic_path(path) as part:
                part.write_bytes(data)
    except OSError as error:
        raise ChatError(f"{error.filename} cannot be written: {error.strerror}") from error
    return [target, page, *([folder] if pictures else [])]


# --- summaries and memes


def _summarised(
    conversations: Sequence[Conversation], asking: Run, library: str
) -> tuple[list[ToldChat], str]:
    """All chats by their turns, and in words who wrote the summaries and how many there are not.

    The model of `asking` sums up the turns whose file gives no summary.
    """
    chats = [ToldChat(conversation.name, spoken_turns(conversation)) for conversation in conversations]
    given = any(chat.known() for chat in chats)
    wanted = [
        context
        for chat in chats
        for context, turn in zip(contexts(*chat), chat.turns[1:], strict=True)
        if turn.summary is None
    ]
    is_asked = not given or asking.profile.models.llm != "authored"
    answers = summarise(wanted, asking, "own_chats", library) if is_asked else []
    written = {(c.chat, c.turn): answer.value for c, answer in zip(wanted, answers, strict=False)}
    chats = [
        chat._replace(
            turns=[t._replace(summary=t.summary or written.get((chat.name, t.turn))) for t in chat.turns]
        )
        for chat in chats
    ]
    sources = [*(["in the file"] if given else []), *sorted({answer.source for answer in answers})]
    words = ", ".join(sources) or "none needed"
    if missing := sum(len(chat.turns[1:]) - len(chat.known()) for chat in chats):
        faults = Counter(
            f" ({answer.outcome}: {answer.reason})" for answer in answers if answer.value is None
        )
        why = faults.most_common(1)[0][0] if faults else ""
        words += f"; {counted(missing, 'turn')} without a summary{why}"
    return chats, words


def _insertions(chats: Sequence[ToldChat], library: Library, strategy: str) -> list[Insertion]:
    """Memes by the strategy in all chats (Eq. 22-25)."""
    profile, index, insertions = library.run.profile, library.index, []
    ranked = [library.rank([turn.summary for turn in chat.turns[1:]]) for chat in chats]
    top1 = [ranking.scores[:, 0] for _, ranking in ranked]
    if not any(np.isfinite(scores).any() for scores in top1):
        return []
    rule, rate = retrieval.rule_of(profile), profile.retrieval.wanted_rate
    ((gate, scale, _),) = retrieval.fit_gates(retrieval.pad(top1)[None], rule, rate, sum(map(len, top1)))
    for number, (chat, (queries, ranking)) in enumerate(zip(chats, ranked, strict=True)):
        gate_scores = scale.apply(ranking.scores[:, 0])
        trace = retrieval.simulate(gate_scores, gate)
        chosen = retrieval.pick_memes(strategy, ranking, trace.sent, len(index.meme_ids), profile, chat.name)
        for row, meme, _ in chosen:
            turn = chat.turns[1 + row]
            if turn.summary is None:
                continue
            parts = retrieval.pair_components(index, queries[row : row + 1], np.array([[meme]]))[0, 0]
            score = float(parts @ np.asarray(profile.retrieval.weights))
            gated = (float(gate_scores[row]), float(trace.thresholds[row]))
            asked = gated if strategy != "random" else (None, None)
            insertions.append(Insertion(number, turn, index.meme_ids[meme], score, *asked))
    return insertions


def _learned_insertions(
    chats: Sequence[ToldChat], library: learned.LearnedLibrary, run: Run
) -> list[Insertion]:
    """Memes where learned placement promises most: scored by the mean grade to expect, gated by it."""
    rows = []
    for number, chat in enumerate(chats):
        if known := chat.known():
            before = [turn.text[:MAX_CHARS] for turn in chat.turns]
            texts = [learned.turn_texts(before[: turn.turn - 1], turn.summary) for turn in known]
            speakers = ["A" if turn.speaker == chat.turns[0].speaker else "B" for turn in known]
            promises = library.promises("", texts, [turn.turn for turn in known], speakers)
            rows += [(number, *row) for row in zip(known, *promises, strict=True)]
    rate = run.profile.retrieval.wanted_rate
    threshold = float(np.quantile([promise for *_, promise in rows], 1 - rate)) if rows else 0.0
    return [
        Insertion(
            number, turn, library.meme_ids[meme], float(gain), float(promise), threshold, "expected grade"
        )
        for number, turn, meme, gain, promise in rows
        if promise >= threshold
    ]


def _reranked_insertions(chats: Sequence[ToldChat], library: Library, asking: Run) -> list[Insertion]:
    """Memes that the model of `asking` chooses among the best of the run's library."""
    if asking.profile.models.llm == "authored":
        raise NoSummaryAgent(
            f"strategy {retrieval.RERANKED} asks a model at every turn, and profile "
            f"{asking.profile.name!r} has none: PROFILE=local RUN={library.run.name} after `make local-llm`, "
            f"or PROFILE=openai RUN={library.run.name} with a key"
        )
    weights, ranked, rows = library.run.profile.retrieval.weights, [], []
    for number, chat in enumerate(chats):
        known = chat.known()
        queries, best = library.rank([turn.summary for turn in known], reranking.depth(asking.profile))
        lines, turns = [(turn.speaker, turn.text) for turn in chat.turns], [turn.turn for turn in known]
        memes = reranking.candidate_ids(best, library.index)
        ranked.append(reranking.RankedChat(chat.name, lines, turns, memes))
        rows += [(number, turn, query) for turn, query in zip(known, queries, strict=True)]
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
    chats: Sequence[Conversation],
    insertions: Mapping[tuple[int, int], Insertion],
    library: Library,
    **head: str,
) -> str:
    """The page; `insertions` by chat and message. Whoever speaks first in a chat stands right.

    All texts come out escaped, nothing is loaded from elsewhere, and each picture is in the page once.
    """
    names = dict.fromkeys(insertion.meme_id for insertion in insertions.values())
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
    shown = {"chats": shown_chats, "memes": list(memes.values()), **head}
    return page.render(shown)
