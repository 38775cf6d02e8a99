"""Put memes into one's own chats: the library and the gate of a finished run, on a file of messages.

What comes out: the chat file with memes in it, the pictures used in a folder named after it, and a page to
look at. Nothing is overwritten that an earlier insertion did not write, or that was changed since: the folder
holds `written.json` with the sha256 of every file that was written.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from memecmd_utils import files, learned, retrieval
from memecmd_utils.chats import messages, readers
from memecmd_utils.chats.messages import ChatError, Conversation, SpokenTurn, text_of
from memecmd_utils.chats.readers import MEME_COLUMNS, Export, counted
from memecmd_utils.core.encoders.text import RecordedEmbedder, embedder_of
from memecmd_utils.core.llm.messages import EndpointError
from memecmd_utils.drawing import ShownMeme, ShownTurn, Thumbnails, caption_of
from memecmd_utils.files import atomic_path, paths, templates, write_json
from memecmd_utils.retrieval import (
    QUERY_FIELDS,
    Encode,
    Gate,
    MemeIndex,
    Ranking,
    ScoreScale,
    at_all_turns,
    build_queries,
    centre,
    choose,
    mean_row,
    pair_components,
    simulate,
    top_k,
)
from memecmd_utils.runs import Run, StageMissing, open_finished
from memecmd_utils.schemas import Annotation, Dialogue, Meme, SummaryReply
from memecmd_utils.settings import Strategy, load_profile, parse_settings, run_name

# --- a finished run's library, held against texts that the run has never seen


def asking_run(library: Run, profile: str, settings: str, purpose: str) -> Run:
    """The run whose model is asked on behalf of `library`: profile and SET as given, outputs beside it.

    Usage, its ledger and reports go to `<library>-<purpose>`, so that the finished run stays as it is.
    """
    name = f"{library.name}-{purpose}"
    loaded = load_profile(profile, parse_settings(settings))
    return Run(name, loaded, paths.processed / name, paths.reports / name)


def library_of(run: str, profile: str, settings: str) -> Run:
    """The finished run of this name, or else the one that PROFILE and SET make."""
    return open_finished(run or run_name(load_profile(profile, parse_settings(settings))))


def unrecorded(run: Run, asking: Run, name: str | None = None) -> Encode:
    """Vectors of texts by a run's embedder, or the one named: from its recordings, or made now, not recorded.

    The embedder is opened at the first text. Where it is an endpoint it is asked only if the mode of `asking`
    allows it, and `asking`, the run on whose behalf texts are turned into vectors, pays for it.
    """

    @functools.cache
    def embedder() -> RecordedEmbedder:
        if (name or run.profile.models.embedder) == "endpoint" and asking.profile.models.mode == "recorded":
            raise EndpointError(
                "the run's embedder is an endpoint, which mode=recorded never asks: SET=mode=auto"
            )
        made = asking.paying(embedder_of(run.profile, name, run.read_dirs))
        return RecordedEmbedder(made, run.read_dirs, None, "live")

    return lambda texts, side: embedder().encode(texts, side)


def encoder(run: Run, asking: Run, name: str | None = None) -> Encode:
    """Texts and side to unit vectors by a run's embedder, or the one named, on behalf of `asking`."""
    if run.profile.models.mode == "recorded":
        return unrecorded(run, asking, name)
    # What somebody looks for is not the run's, and must not become a tracked recording.
    stored = run.embedder(name, part_of_run=False)
    asking.paying(stored.embedder)
    return stored.encode


@dataclass(frozen=True)
class Library:
    """The annotated memes of a run, ready to be searched."""

    run: Run
    memes: Mapping[str, Meme]
    index: MemeIndex
    encode: Encode
    """Texts and side to unit vectors."""

    def picture(self, meme_id: str) -> Path:
        """File of a meme's picture."""
        return self.run.read(self.memes[meme_id].file)

    @functools.cached_property
    def query_means(self) -> dict[str, np.ndarray] | None:
        """Mean vector of the run's own summaries for each of S, E, Psi; None where nothing is centred.

        A chat is too short for a mean of its own, and the run's gate was fitted on scores that had this one.
        """
        if self.run.profile.retrieval.centring != "attribute":
            return None
        summaries = [s for dialogue in self.run.load(Dialogue) for s in dialogue.summaries if not s.unscored]
        if len(summaries) < 2:
            return None
        return {
            field: mean_row(self.encode([getattr(s, field) for s in summaries], "query"))
            for field in QUERY_FIELDS
        }

    def queries(self, summaries: Sequence[SummaryReply]) -> np.ndarray:
        """Queries [n, 3, dim], centred by `query_means`: none depends on the others."""
        parts = []
        for field in QUERY_FIELDS:
            vectors = self.encode([getattr(s, field) for s in summaries], "query")
            parts.append(centre(vectors, self.query_means[field]) if self.query_means else vectors)
        return build_queries(parts)

    def rank(self, summaries: Sequence[SummaryReply | None]) -> tuple[np.ndarray, Ranking]:
        """Queries [n, 3, dim] and the top K; without a summary zero queries and scores of -inf."""
        profile, known = self.run.profile, [s for s in summaries if s is not None]
        found = self.queries(known) if known else np.zeros((0, 3, self.index.dim), dtype=np.float32)
        queries = at_all_turns(found, np.array([s is not None for s in summaries], dtype=bool))
        return queries, top_k(self.index, queries, profile.retrieval.weights, profile.retrieval.top_k)

    def gate(self) -> tuple[Gate, ScoreScale]:
        """The run's gate for a chat that is in neither half: the mean of the gates of the two halves.

        Read from `gates.json` of notebook 04. With one dialogue there is one gate.
        """
        path = self.run.read("gates.json")
        gates = list(json.loads(path.read_text(encoding="utf-8")).values())

        def means(*keys: str) -> list[float]:
            return [float(np.mean([gate[key] for gate in gates])) for key in keys]

        return Gate(*means("theta0", "penalty", "decay")), ScoreScale(*means("score_mean", "score_std"))


def open_library(run: Run, asking: Run) -> Library:
    """Read a finished run's memes and annotations and index them; a large index is kept in the run's folder.

    `asking` is the run on whose behalf the library is searched. Where `run` only replays, vectors of new
    texts are `unrecorded`. Raises `StageMissing` where notebooks 01 and 02 have not been run, or by another
    version.
    """
    encode = encoder(run, asking)
    try:
        memes = run.load(Meme)
        annotations = run.load(Annotation)
    except files.StageOutputError as error:
        raise StageMissing(f"run {run.name!r} is of another version ({error}): make it anew") from error
    index = retrieval.index_library(annotations, encode, run.profile, run.write(retrieval.FOLDER))
    return Library(run, {meme.meme_id: meme for meme in memes}, index, encode)


def learned_library(library: Library, asking: Run) -> learned.LearnedLibrary:
    """A library for the strategy `learned`, by the weights that the run fitted, or else by the shipped ones.

    Raises `PlacementError` where the run has other embedders than the weights, and for a library that is too
    large to compare every meme.
    """
    run = library.run
    models = run.profile.models
    names = (models.embedder, models.consistency_embedder)
    found = learned.open_placement(
        run.folder, [embedder_of(run.profile, name, run.read_dirs).name for name in names]
    )
    encoders = [library.encode, encoder(run, asking, models.consistency_embedder)]
    return learned.open_library(found, library.memes, run.load(Annotation), encoders)


# --- insertion

STAGE = "own_chats"
"""Folder of the summary agent's recorded answers, below those of the profile that asked."""
PICTURES = "_memes"
"""What is added to the name of the file written: the folder beside it that takes the pictures."""
WRITTEN, BY = "written.json", "memecmd insert-memes"
"""The list in that folder, and who wrote it."""


class Inserted(NamedTuple):
    """What was written, and counts."""

    target: Path
    page: Path
    pictures: Path
    memes: int
    about: str
    """Memes, chats, turns, and who wrote the summaries, in words."""
    taken: str
    """What was taken for what in the file read, in words."""

    def text(self) -> str:
        """The counts in a line, how the file was read in another, then the files."""
        return f"{self.about}\nread: {self.taken}\n{self.target}\n{self.page}\n{self.pictures}"


class Insertion(NamedTuple):
    """A meme at a turn of a chat."""

    chat: int
    turn: SpokenTurn
    meme_id: str
    summary: SummaryReply | None
    score: float | None
    gate_score: float | None
    threshold: float | None
    measure: str = "T"
    """What the score is called on the page."""


def insert_file(
    source: Path,
    target: Path,
    profile: str,
    settings: str = "",
    run_name: str = "",
    strategy: str = "greedy",
    columns: str = "",
) -> Inserted:
    """Put memes into the chats of `source` and write `target`: what `make insert-memes` does.

    The library, embedder, weights and gate are those of the finished run `run_name`, or else of the run that
    `profile` and `settings` make; the summary agent is asked by `profile` and `settings`. `columns` names
    columns as `readers.parse_columns` reads them. A turn from the second on whose file gives no S, E and
    Psi is summarised by the model of the profile, which is recorded and held to its caps; where it has none,
    `NoSummaryAgent` is raised if no turn has a summary, else such turns get no meme. `learned` goes by the
    weights that the run fitted (`make fit-placement`), or by the shipped ones. Raises `ChatError` for a
    file that cannot be read or written, and where `target`, its page or its folder is there and not of an
    earlier insertion.
    """
    run = library_of(run_name, profile, settings)
    asking = asking_run(run, profile, settings, "chats")
    strategies = get_args(Strategy)
    if strategy not in strategies:
        raise ChatError(f"no strategy {strategy!r}; there are: {', '.join(strategies)}")
    if target.resolve() == source.resolve():
        raise ChatError(f"OUT is the file that IN names, {source.name}: name another, it would be lost")
    if target.suffix.lower() != source.suffix.lower():
        raise ChatError(f"OUT has the format of IN: call it {target.stem}{source.suffix}")
    page, pictures = target.with_suffix(".html"), target.with_name(target.stem + PICTURES)
    outputs = Outputs(target, pictures)
    outputs.check({target: None, page: None})
    export = readers.read(source, readers.parse_columns(columns))
    turns = [messages.spoken_turns(chat) for chat in export.chats]
    library = open_library(run, asking)
    # Before anything is paid for: can the cells be written that may be added?
    export.encoding.encode("".join([pictures.name, *library.memes]))
    summaries, writers = _summaries(export, turns, asking, run.name)
    if strategy == retrieval.LEARNED:
        insertions = _learned_insertions(turns, summaries, learned_library(library, asking), run)
    else:
        insertions = _insertions(export, turns, summaries, library, strategy)
    files = _pictures(insertions, library, pictures)
    position = run.profile.retrieval.meme_position
    by_message = {
        (one.chat, one.turn.last if position == "after" else one.turn.first): one for one in insertions
    }
    unscored = sum(summary is None for of_chat in summaries for summary in of_chat)
    about = (
        f"{counted(len(insertions), 'meme')} ({len(files):,} different) in "
        f"{counted(sum(map(len, turns)), 'turn')} of {counted(len(turns), 'chat')}; summaries: {writers}"
        + (f"; {counted(unscored, 'turn')} without a summary" if unscored else "")
    )
    contents = {path: library.picture(meme_id).read_bytes() for meme_id, path in files.items()}
    contents[page] = _page(
        text_of(source.name),
        f"{about}. Memes by {strategy} from the library of run {run.name}.",
        export.chats,
        by_message,
        library,
    ).encode()
    columns_of = {at: _meme_columns(one, files[one.meme_id], strategy) for at, one in by_message.items()}
    contents[target] = export.render(columns_of, position)
    outputs.write(contents)
    return Inserted(target, page, pictures, len(insertions), about, export.taken)


def _summaries(
    export: Export, turns: Sequence[list[SpokenTurn]], asking: Run, library: str
) -> tuple[list[list[SummaryReply | None]], str]:
    """A summary for each turn from the second on of every chat, and who wrote them."""
    given = any(turn.summary is not None for of_chat in turns for turn in of_chat[1:])
    wanted = [
        context
        for chat, of_chat in zip(export.chats, turns, strict=True)
        for context, turn in zip(messages.contexts(chat.name, of_chat), of_chat[1:], strict=True)
        if turn.summary is None
    ]
    answers = []
    if not given or asking.profile.models.llm != "authored":
        answers = messages.summarise(wanted, asking, STAGE, library)
    written = {
        (context.chat, context.turn): answer.summary for context, answer in zip(wanted, answers, strict=False)
    }
    summaries = [
        [turn.summary or written.get((chat.name, turn.turn)) for turn in of_chat[1:]]
        for chat, of_chat in zip(export.chats, turns, strict=True)
    ]
    writers = [*(["in the file"] if given else []), *sorted({answer.source for answer in answers})]
    return summaries, ", ".join(writers) or "none needed"


def _insertions(
    export: Export,
    turns: Sequence[list[SpokenTurn]],
    summaries: Sequence[list[SummaryReply | None]],
    library: Library,
    strategy: str,
) -> list[Insertion]:
    """Memes by the strategy over the run's gate, in all chats (Eq. 22-25)."""
    profile, index = library.run.profile, library.index
    queries, ranking = library.rank([summary for of_chat in summaries for summary in of_chat])
    gate, scale = library.gate()
    insertions, start = [], 0
    for number, chat in enumerate(export.chats):
        part = slice(start, start + len(summaries[number]))
        start = part.stop
        rows = Ranking(ranking.memes[part], ranking.scores[part], ranking.components[part])
        gate_scores = scale.apply(rows.scores[:, 0])
        trace = simulate(gate_scores, gate)
        for row, meme, _ in choose(strategy, rows, trace.sent, len(index.meme_ids), profile, chat.name):
            query, summary = queries[part][row : row + 1], summaries[number][row]
            components = pair_components(index, query, np.array([[meme]]))[0, 0]
            score = float(components @ np.asarray(profile.retrieval.weights))
            gated = strategy != "random"
            insertions.append(
                Insertion(
                    chat=number,
                    turn=turns[number][row + 1],
                    meme_id=index.meme_ids[meme],
                    summary=summary,
                    score=None if summary is None else score,
                    gate_score=float(gate_scores[row]) if gated else None,
                    threshold=float(trace.thresholds[row]) if gated else None,
                )
            )
    return insertions


def _learned_insertions(
    turns: Sequence[list[SpokenTurn]],
    summaries: Sequence[list[SummaryReply | None]],
    library: learned.LearnedLibrary,
    run: Run,
) -> list[Insertion]:
    """Memes where learned placement promises most: scored by the gain to expect (0-4), gated by promise."""
    placement, insertions = library.placement, []
    threshold = placement.threshold(run.profile.retrieval.wanted_rate)
    for number, (of_chat, given) in enumerate(zip(turns, summaries, strict=True)):
        known = [
            (turn, summary) for turn, summary in zip(of_chat[1:], given, strict=True) if summary is not None
        ]
        if not known:
            continue
        said = [turn.text for turn in of_chat]
        texts = [learned.turn_texts(said[: turn.turn - 1], summary) for turn, summary in known]
        speakers = ["A" if turn.speaker == of_chat[0].speaker else "B" for turn, _ in known]
        found = library.promises(placement.model, texts, [turn.turn for turn, _ in known], speakers)
        for (turn, summary), meme, gain, promise in zip(known, *found, strict=True):
            if promise >= threshold:
                insertions.append(
                    Insertion(
                        chat=number,
                        turn=turn,
                        meme_id=library.meme_ids[meme],
                        summary=summary,
                        score=float(gain),
                        gate_score=float(promise),
                        threshold=threshold,
                        measure="gain to expect",
                    )
                )
    return insertions


def _pictures(insertions: Sequence[Insertion], library: Library, folder: Path) -> dict[str, Path]:
    """Meme id to the file in `folder` that takes its picture."""
    files: dict[str, Path] = {}
    taken = set()
    for meme_id in sorted({insertion.meme_id for insertion in insertions}):
        # Ids of a table of one's own may be any text; a file's name may not.
        name = re.sub(r"[^\w.-]", "_", meme_id).lstrip(".-")
        if name.casefold() in taken:
            name += "-" + _sha256(meme_id.encode())[:8]
        taken.add(name.casefold())
        files[meme_id] = folder / (name + library.picture(meme_id).suffix)
    return files


def _meme_columns(insertion: Insertion, picture: Path, strategy: str) -> dict[str, Any]:
    numbers = (insertion.score, insertion.gate_score, insertion.threshold)
    rounded = (None if number is None else round(number, 6) for number in numbers)
    values = (insertion.meme_id, "/".join(picture.parts[-2:]), *rounded, strategy)
    return dict(zip(MEME_COLUMNS, values, strict=True))


# --- the page

NOTHING = "(no text)"
MANY = 800
"""Different pictures of a page from which on each is drawn smaller: at full size 800 take some 4 MB."""


def _page(
    title: str,
    about: str,
    chats: Sequence[Conversation],
    insertions: Mapping[tuple[int, int], Insertion],
    library: Library,
) -> str:
    """The page. `insertions`: by chat and message.

    Whoever speaks first in a chat stands right. All texts come out escaped; nothing is loaded from elsewhere.
    Each picture is in the page once, however often it is shown.
    """
    meme_ids = list(dict.fromkeys(insertion.meme_id for insertion in insertions.values()))
    files = {meme_id: library.picture(meme_id) for meme_id in sorted(meme_ids)}
    pictures = Thumbnails(files, 120 if len(files) < MANY else 48)
    memes = {}
    for number, meme_id in enumerate(meme_ids):
        meme = library.memes[meme_id]
        memes[meme_id] = ShownMeme(meme_id, pictures[meme_id], caption_of(meme), defined=f"meme-{number}")
    shown_chats = []
    for number, chat in enumerate(chats):
        first = next((message.speaker for message in chat.messages if message.speaker), "")
        turns = []
        for place, message in enumerate(chat.messages):
            insertion = insertions.get((number, place))
            meme = insertion and replace(memes[insertion.meme_id], lines=_lines(insertion))
            side = "right" if message.speaker and message.speaker == first else "left"
            note = " · ".join(filter(None, (message.speaker, "" if message.text.strip() else NOTHING)))
            turns.append(ShownTurn(place + 1, side, message.speaker, message.text, note=note, meme=meme))
        shown_chats.append({"name": chat.name, "turns": turns})
    page = templates().get_template("inserted_chat.html.j2")
    position = library.run.profile.retrieval.meme_position
    return page.render(
        title=title, about=about, chats=shown_chats, memes=list(memes.values()), meme_position=position
    )


def _lines(insertion: Insertion) -> tuple[str, ...]:
    """What is written beside a meme."""
    meme_id, score = insertion.meme_id, insertion.score
    lines = [meme_id if score is None else f"{meme_id}, {insertion.measure} = {score:+.3f}"]
    if insertion.threshold is not None:
        lines.append(f"gate: {insertion.gate_score:+.2f} > {insertion.threshold:+.2f}")
    if insertion.summary is not None:
        lines.append(f"Ψ {insertion.summary.motivation}")
    return tuple(lines)


# --- what may be overwritten


@dataclass(frozen=True)
class Outputs:
    """The output file `target`, what stands beside it, and the `folder` that keeps the list."""

    target: Path
    folder: Path

    def check(self, files: Mapping[Path, bytes | None]) -> None:
        """Raise `ChatError` if one of `files` exists and is not ours, or the folder is another's.

        A file that has the bytes already that would be written is let pass.
        """
        known = self._known()
        in_use = self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))
        if known is None and in_use:
            raise self._refusal(self.folder)
        for path, new in files.items():
            if not path.exists():
                continue
            now = path.read_bytes() if path.is_file() else None
            if now is None or (now != new and _sha256(now) not in (known or {}).get(self._key(path), [])):
                raise self._refusal(path)

    def write(self, files: Mapping[Path, bytes]) -> None:
        """Write `files`, each atomically, in their order, after `check`; the list first.

        Until all are there the list holds what each was and what it becomes, so that a run that was killed
        can be repeated. Raises `ChatError`, also where a file cannot be written.
        """
        self.check(files)
        known = self._known() or {}
        try:
            for path, data in files.items():
                before = [_sha256(path.read_bytes())] if path.exists() else []
                known[self._key(path)] = list(dict.fromkeys([*before, _sha256(data)]))
            listed = {"written_by": BY, "output": self.target.name, "files": known}
            write_json(self.folder / WRITTEN, listed)
            for path, data in files.items():
                with atomic_path(path) as part:
                    part.write_bytes(data)
        except OSError as error:
            raise ChatError(f"{error.filename} cannot be written: {error.strerror}") from error

    def _known(self) -> dict[str, list[str]] | None:
        """Path beside the output to the hashes that it may have; None where there is no list of ours."""
        try:
            listed = json.loads((self.folder / WRITTEN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        own = {"written_by": BY, "output": self.target.name}
        return dict(listed["files"]) if isinstance(listed, dict) and own.items() <= listed.items() else None

    def _key(self, path: Path) -> str:
        return path.relative_to(self.target.parent).as_posix()

    def _refusal(self, path: Path) -> ChatError:
        return ChatError(
            f"{path} was not written by this command for {self.target.name}, or was changed since: "
            "name another OUT, or move it away"
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
