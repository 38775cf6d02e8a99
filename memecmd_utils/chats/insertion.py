"""Put memes into one's own chats: the library and the gate of a finished run, on a file of messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from markupsafe import Markup

from memecmd_utils import files, learned, reranking, retrieval, runs
from memecmd_utils.chats import readers
from memecmd_utils.chats.formats import MEME_COLUMNS, PICTURES
from memecmd_utils.chats.readers import OWN, Export, counted
from memecmd_utils.chats.search import (
    Library,
    asking_run,
    encoder,
    library_run,
    open_library,
    passing_encoder,
)
from memecmd_utils.chats.turns import (
    MAX_CHARS,
    ChatError,
    Context,
    Conversation,
    NoSummaryAgent,
    SpokenTurn,
    missing,
    spoken_turns,
    summarise,
)
from memecmd_utils.drawing import ShownTurn, initials, shown_meme
from memecmd_utils.embedders import embedder_of
from memecmd_utils.learned import SpokenTurns
from memecmd_utils.llm import local_model
from memecmd_utils.llm.types import Answer
from memecmd_utils.retrieval import LEARNED, RERANKED
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Choice, Dialogue, Placement, Summary, SummaryReply, Turn
from memecmd_utils.settings import Strategy
from memecmd_utils.splits import Split, Turns


class Chat(NamedTuple):
    """A chat of a file, its turns, and these as the pipeline has them: the text cut, the first speaker A.

    Everybody else is B, in a group too: what is retrieved goes by the summaries, which name all people.
    """

    conversation: Conversation
    spoken: list[SpokenTurn]
    dialogue: Dialogue


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
    if asking.profile.models.llm == "local" and (strategy == RERANKED or _lack_summaries(export.chats)):
        local_model.check(asking.profile.models.local_model)  # before the library is read
    library = open_library(run, asking)
    before = runs.spent(asking).total("usd")
    chats, writers = _summed_up(export.chats, asking, run.name, strategy == LEARNED)
    placements, choices = _place(chats, library, strategy, asking)
    usd = runs.spent(asking).total("usd") - before
    about = (
        f"{counted(len(placements), 'meme')} ({len({p.meme_id for p in placements}):,} different) in "
        f"{counted(sum(len(chat.spoken) for chat in chats), 'turn')} of {counted(len(chats), 'chat')}; "
        f"summaries: {writers}{_chosen(choices)}" + (f"; ${usd:.4f}" if usd else "")
    )
    title = f"{about}. Memes by {strategy} from the library of run {run.name}."
    written = _write(target, export, chats, placements, library, {"title": source.name, "about": title})
    return "\n".join([about, f"read: {export.taken}", *map(str, written)])


# --- what may be overwritten, and what is written


def _beside(target: Path) -> tuple[Path, Path]:
    """The page and the folder of pictures of an output."""
    return target.with_suffix(".html"), target.with_name(target.stem + PICTURES)


def _mark(target: Path) -> Markup:
    """What stands in the source of the page that is written beside `target`."""
    return Markup('data-out="{}"').format(target.name)


def _check_output(source: Path, target: Path, export: Export, given: Mapping[str, str]) -> None:
    """Raise `ChatError` where OUT is IN, has another format, or would overwrite what no insertion wrote."""
    if target.suffix.lower() != source.suffix.lower():
        raise ChatError(f"OUT has the format of IN: call it {target.stem}{source.suffix}")
    if target.exists() and target.samefile(source):
        raise ChatError(f"OUT is the file that IN names, {source.name}: name another, it would be lost")
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


def _write(
    target: Path,
    export: Export,
    chats: Sequence[Chat],
    placements: Sequence[Placement],
    library: Library,
    head: Mapping[str, str],
) -> list[Path]:
    """Write the page with this `head`, the pictures, then the file: a killed insertion can be repeated."""
    page, folder = _beside(target)
    numbers = {chat.dialogue.dialogue_id: number for number, chat in enumerate(chats)}
    at, columns = {}, {}
    for placed in placements:
        number = numbers[placed.dialogue_id]
        place = number, chats[number].spoken[placed.turn - 1].first
        file = f"{folder.name}/{placed.meme_id}{library.picture(placed.meme_id).suffix}"
        scores = (placed.score, placed.gate_score, placed.threshold)
        rounded = (None if score is None else round(score, 6) for score in scores)
        values = (placed.meme_id, file, *rounded, placed.strategy)
        at[place], columns[place] = placed, dict(zip(MEME_COLUMNS, values, strict=True))
    contents = {page: _page(chats, at, library, mark=_mark(target), **head).encode()}
    for placed in placements:
        picture = library.picture(placed.meme_id)
        contents[folder / (placed.meme_id + picture.suffix)] = picture.read_bytes()
    contents[target] = export.render(columns)
    try:
        for path, data in contents.items():
            with files.atomic_path(path) as part:
                part.write_bytes(data)
    except OSError as error:
        raise ChatError(f"{error.filename} cannot be written: {error.strerror}") from error
    return [target, page, *([folder] if placements else [])]


def _page(
    chats: Sequence[Chat], at: Mapping[tuple[int, int], Placement], library: Library, **head: str
) -> str:
    """The page with the memes `at` chat and message. Whoever speaks first in a chat stands right.

    All texts come out escaped, nothing is loaded from elsewhere, and each picture is in the page once.
    """
    names = dict.fromkeys(placed.meme_id for placed in at.values())
    memes = {
        name: shown_meme(library.memes[name], library.picture(name), defined=f"meme-{number}")
        for number, name in enumerate(names)
    }
    shown_chats = []
    for number, chat in enumerate(chats):
        messages, turns = chat.conversation.messages, []
        first = next((message.speaker for message in messages if message.speaker), "")
        for place, message in enumerate(messages):
            placed = at.get((number, place))
            meme = placed and replace(memes[placed.meme_id], lines=_lines(placed, chat.dialogue))
            side = "right" if message.speaker and message.speaker == first else "left"
            note = " · ".join(filter(None, (message.speaker, "" if message.text.strip() else "(no text)")))
            turns.append(ShownTurn(place + 1, side, message.speaker, message.text, note=note, meme=meme))
        shown_chats.append({"name": chat.conversation.name, "turns": turns})
    page = files.templates(initials=initials).get_template("inserted_chat.html.j2")
    shown = {"chats": shown_chats, "memes": list(memes.values()), **head}
    return page.render(shown)


def _lines(placed: Placement, dialogue: Dialogue) -> tuple[str, ...]:
    """What is written beside a meme on the page."""
    lines = [placed.meme_id + ("" if placed.score is None else f", T = {placed.score:+.3f}")]
    if placed.threshold is not None:
        lines.append(f"gate: {placed.gate_score:+.2f} > {placed.threshold:+.2f}")
    motivation = dialogue.summaries[placed.turn - 2].motivation
    return (*lines, *filter(None, [placed.reason, motivation and f"Ψ {motivation}"]))


# --- summaries and memes


def _lack_summaries(conversations: Sequence[Conversation]) -> bool:
    return any(next(missing(chat.name, spoken_turns(chat)), None) for chat in conversations)


def _summed_up(
    conversations: Sequence[Conversation], asking: Run, library: str, can_go_without: bool
) -> tuple[list[Chat], str]:
    """All chats, and in words who wrote the summaries (the file, else a model) and how many there are not.

    Where the strategy can go without, nobody is asked for want of a model.
    """
    spoken = [spoken_turns(conversation) for conversation in conversations]
    wanted = [
        (number, context)
        for number, (chat, turns) in enumerate(zip(conversations, spoken, strict=True))
        for context in missing(chat.name, turns)
    ]
    is_given = any(turn.summary for turns in spoken for turn in turns[1:])
    answers: list[Answer] = []
    has_model = asking.profile.models.llm != "authored"
    goes_without = can_go_without and not (has_model or is_given)
    if has_model or not (is_given or goes_without):
        answers = summarise([context for _, context in wanted], asking, "own_chats", library)
    pairs = zip(wanted, answers, strict=bool(answers))
    told = {(number, context.turn): answer.value for (number, context), answer in pairs}
    sources = [*(["in the file"] if is_given else []), *sorted({answer.source for answer in answers})]
    words = ", ".join(sources) or ("none, the last turns are read" if wanted else "none needed")
    lacking = len(wanted) - sum(summary is not None for summary in told.values())
    if lacking and not goes_without:
        faults = Counter(f" ({a.outcome}: {a.reason})" for a in answers if a.value is None)
        words += f"; {counted(lacking, 'turn')} without a summary"
        words += "".join(fault for fault, _ in faults.most_common(1))
    chats, unscored = [], "" if goes_without else "no summary"
    for n, (chat, turns) in enumerate(zip(conversations, spoken, strict=True)):
        summaries = [t.summary or told.get((n, t.turn)) for t in turns]
        chats.append(Chat(chat, turns, _dialogue(chat.name, turns, summaries, unscored)))
    return chats, words


def _dialogue(
    name: str, spoken: Sequence[SpokenTurn], summaries: Sequence[SummaryReply | None], unscored: str
) -> Dialogue:
    """The turns of a chat as a dialogue of A, who speaks first, and B; a missing summary is `unscored`."""
    nothing = dict.fromkeys(SummaryReply.model_fields, "") | {"unscored": unscored}
    turns, told = [], []
    for t, summary in zip(spoken, summaries, strict=True):
        place = {"turn": t.turn, "speaker": "A" if t.speaker == spoken[0].speaker else "B", "source": OWN}
        turns.append(Turn(text=t.text[:MAX_CHARS], **place))
        if t.turn > 1:
            texts = summary.model_dump(include=set(SummaryReply.model_fields)) if summary else nothing
            told.append(Summary(**texts, **place))
    named = dict.fromkeys(("dialogue_id", "ref", "title"), name) | {"name_a": "A", "name_b": "B"}
    return Dialogue(kind="own", turns=turns, summaries=told, complete=True, source=OWN, **named)


def _place(
    chats: Sequence[Chat], library: Library, strategy: Strategy, asking: Run
) -> tuple[list[Placement], Sequence[Choice]]:
    """Memes by a strategy in all chats (Eq. 22-25), under one gate that is fitted on them together.

    With the choices of `reranked`, also those that cannot be used.
    """
    dialogues, run = [chat.dialogue for chat in chats], library.run
    if strategy == RERANKED and asking.profile.models.llm == "authored":
        raise NoSummaryAgent(f"strategy {RERANKED} asks a model at every turn", asking.profile.name, run.name)
    summaries = [summary for dialogue in dialogues for summary in dialogue.summaries]
    if all(summary.unscored for summary in summaries):
        return [], []
    profile, index = run.profile.replace(strategies=[strategy]), library.index
    by_learned: Sequence[retrieval.ScoredDialogue] = ()
    choices: Sequence[Choice] = ()
    has_summaries = any(summary.motivation for summary in summaries)
    if strategy == LEARNED:
        by_learned = _by_learned(dialogues, library, asking, has_summaries)
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
    dialogues: Sequence[Dialogue], library: Library, asking: Run, has_summaries: bool
) -> list[retrieval.ScoredDialogue]:
    """The best meme of learned placement at every turn: by summaries, or by what was said where none is."""
    run, models = library.run, library.run.profile.models
    both = (models.embedder, models.consistency_embedder)
    encoders = dict(zip(both, (library.encode, encoder(run, asking, both[1])), strict=True))
    names = [embedder_of(run.profile, name, run.read_dirs).name for name in both]
    placement = learned.open_placement(run, names)
    split, means = Split(run.name, dialogues, library.memes, run.load(Annotation)), placement.turn_means
    if has_summaries:
        return placement.rank(Turns(split, run.profile, encoders, means=means))
    spoken = passing_encoder(run, asking, both[1])
    reader = learned.chat_reader(placement, run.profile, encoders, spoken)
    turns = SpokenTurns(split, run.profile, encoders, means=means, reader=reader)
    return placement.without_summaries().rank(turns)


def _chosen(choices: Sequence[Choice]) -> str:
    """How many choices a model was asked for, who it is, and how many of them cannot be used."""
    asked = [choice for choice in choices if choice.shown]
    sources = ", ".join(sorted({choice.source for choice in asked}))
    words = f"; {counted(len(asked), 'choice')}: {sources}" if asked else ""
    return "; ".join(filter(None, (words, reranking.unusable(asked))))
