"""Put memes into one's own chats: the library and the gate of a finished run, on a file of messages."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from markupsafe import Markup

from memecmd_utils import drawing, files, learned, reranking, retrieval, runs, schemas
from memecmd_utils.chats import formats, readers, search, turns
from memecmd_utils.chats.readers import Export, counted
from memecmd_utils.chats.turns import ChatError, Conversation
from memecmd_utils.dialogue import Context
from memecmd_utils.retrieval import LEARNED, RERANKED
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Choice, Dialogue, Placement
from memecmd_utils.settings import Strategy
from memecmd_utils.splits import Split, Turns


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
    by the model of the profile, which is recorded and held to its caps; where it has none, `ChatError` is
    raised if no turn has a summary, else such turns get no meme. It is also raised for a file that cannot be
    read or written, and where something is there that no insertion wrote.
    """
    export = readers.read(source, readers.parse_fields(fields))
    run = search.library_run(run_name, profile, settings)
    asking = search.asking_run(run, profile, settings, "chats")
    if strategy not in get_args(Strategy):
        raise ChatError(f"no strategy {strategy!r}; there are: {', '.join(get_args(Strategy))}")
    if strategy == RERANKED and asking.profile.models.llm == "authored":
        raise turns.no_model(f"strategy {RERANKED} asks a model at every turn", asking.profile.name, run.name)
    _check_output(source, target)
    library = search.open_library(run, asking)
    before = runs.spent(asking).total("usd")
    dialogues, writers = _summed_up(export.chats, asking, run.name, strategy)
    placements, choices = _place(export.chats, dialogues, library, strategy)
    usd = runs.spent(asking).total("usd") - before
    about = (
        f"{counted(len(placements), 'meme')} ({len({p.meme_id for p in placements}):,} different) in "
        f"{counted(sum(len(chat.spoken) for chat in export.chats), 'turn')} of "
        f"{counted(len(dialogues), 'chat')}; summaries: {writers}{_chosen(choices)}"
    ) + (f"; ${usd:.4f}" if usd else "")
    title = f"{about}. Memes by {strategy} from the library of run {run.name}."
    head = {"title": source.name, "about": title}
    written = _write(target, export, dialogues, placements, library, head)
    return "\n".join([about, f"read: {export.taken}", *map(str, written)])


# --- what may be overwritten, and what is written

MARK = 'data-out="{}"'
"""What stands in the source of the page that is written beside an output, with the output's name."""


def _check_output(source: Path, target: Path) -> None:
    """Raise `ChatError` where OUT is IN, has another format, or would overwrite what no insertion wrote."""
    if target.suffix.lower() != source.suffix.lower():
        raise ChatError(f"OUT has the format of IN: call it {target.stem}{source.suffix}")
    if target.exists() and target.samefile(source):
        raise ChatError(f"OUT is the file that IN names, {source.name}: name another, it would be lost")
    page, pictures = target.with_suffix(".html"), target.with_name(target.stem + formats.PICTURES)
    there = [path for path in (target, page, pictures) if path.exists()]
    mark = Markup(MARK).format(target.name)
    has_page = page.is_file() and mark in page.read_text(encoding="utf-8", errors="replace")
    if there and not has_page:
        raise ChatError(f"{there[0]} was not written by this command, or lacks its page: name another OUT")


def _write(
    target: Path,
    export: Export,
    dialogues: Sequence[Dialogue],
    placements: Sequence[Placement],
    library: search.Library,
    head: Mapping[str, str],
) -> list[Path]:
    """Write the page with this `head`, the pictures, then the file: a killed insertion can be repeated."""
    page, folder = target.with_suffix(".html"), target.with_name(target.stem + formats.PICTURES)
    numbers = {dialogue.dialogue_id: number for number, dialogue in enumerate(dialogues)}
    columns, shown, pictures = {}, {}, {}
    for placed in placements:
        number, name = numbers[placed.dialogue_id], placed.meme_id
        picture = library.run.read(library.memes[name].file)
        place = number, export.chats[number].spoken[placed.turn - 1].first
        scores = (placed.score, placed.gate_score, placed.threshold)
        rounded = (None if score is None else round(score, 6) for score in scores)
        values = (name, f"{folder.name}/{name}{picture.suffix}", *rounded, placed.strategy)
        columns[place] = dict(zip(formats.MEME_COLUMNS, values, strict=True))
        pictures[target.parent / columns[place]["meme_file"]] = picture.read_bytes()
        lines = _lines(placed, dialogues[number])
        shown[place] = drawing.shown_meme(library.memes[name], picture, lines=lines)
    mark = Markup(MARK).format(target.name)
    html = _page(export.chats, shown, mark=mark, **head)
    try:
        for path, data in {page: html.encode(), **pictures, target: export.render(columns)}.items():
            with files.atomic_path(path) as part:
                part.write_bytes(data)
    except OSError as error:
        raise ChatError(f"{error.filename} cannot be written: {error.strerror}") from error
    return [target, page, *([folder] if placements else [])]


def _page(
    chats: Sequence[Conversation], memes_at: Mapping[tuple[int, int], Mapping[str, Any]], **shown: Any
) -> str:
    """The page with memes at chat and message. Whoever says something first in a chat stands right.

    All texts come out escaped, and nothing is loaded from elsewhere.
    """
    shown["chats"] = []
    for number, chat in enumerate(chats):
        turns = []
        for place, (name, text, *_) in enumerate(chat.messages):
            side = "right" if [name] == chat.people[:1] else "left"
            note = " · ".join(filter(None, (name, "" if text.strip() else "(no text)")))
            turn = {"number": place + 1, "side": side, "name": name, "text": text, "gloss": "", "note": note}
            turns.append({**turn, "meme": memes_at.get((number, place))})
        shown["chats"].append({"name": chat.name, "turns": turns})
    return files.templates(initials=drawing.initials).get_template("inserted_chat.html.j2").render(shown)


def _lines(placed: Placement, dialogue: Dialogue) -> tuple[str, ...]:
    """What is written beside a meme on the page."""
    lines = [placed.meme_id + ("" if placed.score is None else f", T = {placed.score:+.3f}")]
    if placed.threshold is not None:
        lines.append(f"gate: {placed.gate_score:+.2f} > {placed.threshold:+.2f}")
    motivation = dialogue.summaries[placed.turn - 2].motivation
    return (*lines, *filter(None, [placed.reason, motivation and f"Ψ {motivation}"]))


# --- summaries and memes


def _summed_up(
    chats: Sequence[Conversation], asking: Run, library: str, strategy: str
) -> tuple[list[Dialogue], str]:
    """The chats as dialogues, and in words who wrote the summaries and how many are lacking still.

    The file gives them, else a model; learned placement can go without where there is neither. Texts of
    dialogues are cut; what is retrieved goes by the summaries, which name all people of a group.
    """
    lacking = [context for chat in chats for context in turns.missing(chat)]
    is_given = any(turn.summary for chat in chats for turn in chat.spoken[1:])
    has_model = asking.profile.models.llm != "authored"
    goes_without = strategy == LEARNED and not (has_model or is_given)
    asks = has_model or not (is_given or goes_without)
    answers = turns.summarise(lacking, asking, "own_chats", library) if asks else []
    pairs = zip(lacking, answers, strict=bool(answers))
    told = {(context.chat, context.turn): answer.value for context, answer in pairs}
    words = ", ".join(["in the file"] * is_given + sorted({answer.source for answer in answers})) or "none"
    n_lacking = len(lacking) - sum(summary is not None for summary in told.values())
    words += f"; {counted(n_lacking, 'turn')} without a summary" if n_lacking else ""
    dialogues = []
    for chat in chats:
        about = {
            "dialogue_id": chat.name,
            "title": chat.name,
            "kind": "own",
            "source": readers.OWN,
            "profile": "",
        }
        spoken = []
        for turn in chat.spoken:
            given = turn.summary or told.get((chat.name, turn.turn))
            spoken.append(turn._replace(text=turn.text[: turns.MAX_CHARS], summary=given))
        dialogues.append(turns.dialogue_of(spoken, about, lacking="" if goes_without else "no summary"))
    return dialogues, words


def _place(
    chats: Sequence[Conversation], dialogues: Sequence[Dialogue], library: search.Library, strategy: Strategy
) -> tuple[list[Placement], Sequence[Choice]]:
    """Memes by a strategy in all chats (Eq. 22-25), under one gate that is fitted on them together.

    With the choices of `reranked`, also those that cannot be used.
    """
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    if all(summary.unscored for summary in summaries):
        return [], []
    run, asking, index = library.run, library.asking, library.index
    profile = run.profile.replace(strategies=[strategy])
    by_learned: Sequence[retrieval.ScoredDialogue] = ()
    choices: Sequence[Choice] = ()
    has_summaries = any(summary.motivation for summary in summaries)
    if strategy == LEARNED:
        by_learned = _by_learned(dialogues, library, has_summaries)
    if has_summaries:
        scored = retrieval.score_dialogues(dialogues, index, library.encode, profile, library.query_means)
    else:  # there is nothing to score memes by
        scored = [replace(item, queries=np.zeros((len(item.turns), 3, index.dim))) for item in by_learned]
    if strategy == RERANKED:
        ranked = []
        for places, chat in zip(reranking.rank_chats(scored, index, profile), chats, strict=True):
            lines = [(turn.speaker, turn.text) for turn in chat.spoken]  # with all names of a group
            ranked.append([(Context.before(at.chat, lines, at.turn), best) for at, best in places])
        picture = reranking.pictures(run, asking)
        with asking.chat("chooser", "own_chats_choice", at_once=1) as chat:
            choices = reranking.ask_model(ranked, chat, library.memes, asking.profile, picture)
    one_half = dict.fromkeys((dialogue.dialogue_id for dialogue in dialogues), "a")
    placements = retrieval.place(scored, index, profile, by_learned, choices, one_half)
    if not has_summaries:
        return [placed.model_copy(update={"score": None}) for placed in placements], choices
    # At random, turns without a summary get one, too.
    return [placed for placed in placements if placed.score is not None], choices


def _by_learned(
    dialogues: Sequence[Dialogue], library: search.Library, has_summaries: bool
) -> list[retrieval.ScoredDialogue]:
    """The best meme of learned placement at every turn: by summaries, or by what was said where none is."""
    run, last = library.run, library.run.profile.models.consistency_embedder
    encoder = partial(search.encoder, run, library.asking, last)
    encoders = {run.profile.models.embedder: library.encode, last: encoder()}
    names, _ = learned.open_encoders(run)
    placement = learned.open_placement(run, names)
    split = Split(run.name, dialogues, library.memes, run.load(schemas.Annotation))
    asked = Turns(split, run.profile, encoders, means=placement.turn_means)
    if has_summaries:
        return placement.rank(asked)
    reader = learned.ChatReader(placement, run.profile, encoders, encoder(is_kept=False))
    return placement.without_summaries().rank(replace(asked, read_chats=reader.vectors))


def _chosen(choices: Sequence[Choice]) -> str:
    """How many choices a model was asked for, who it is, and how many of them cannot be used."""
    asked = [choice for choice in choices if choice.shown]
    sources = ", ".join(sorted({choice.source for choice in asked}))
    words = f"; {counted(len(asked), 'choice')}: {sources}" if asked else ""
    return "; ".join(filter(None, (words, reranking.unusable(asked))))
