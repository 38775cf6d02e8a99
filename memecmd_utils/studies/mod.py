"""MOD (DSTC10 track 1) as a benchmark of meme retrieval: questions, memes, and which one was really sent.

The data is for research only and is not part of this package; who has it names its folder. A file of
dialogues maps names to messages `{"speaker_id", "txt", "img_id", "emotion_id"}`, of which a message may lack
any but the first. A task file is a list of `{"history", "answer", "candidate"}`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, statistics
from memecmd_utils import grades as rankings
from memecmd_utils.chats import Context, Conversation, Library, Message
from memecmd_utils.chats import library as insertion
from memecmd_utils.chats import messages as chats_messages
from memecmd_utils.evaluation import benchmark, meme_words
from memecmd_utils.evaluation.benchmark import Benchmark
from memecmd_utils.files import MemecmdError
from memecmd_utils.grades import CAPTION, CONTEXT_TURNS, FULL, RANDOM, System
from memecmd_utils.llm import prompts
from memecmd_utils.retrieval import QUERY_FIELDS, build_queries, order, weigh
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation

PEOPLE = "甲乙丙丁戊己庚辛"
"""Names for `[speaker1]`, `[speaker2]`, ...: a chat reads better with names than with brackets."""
STAGE = "mod"
"""Folder of the summary agent's recorded answers, below those of the profile that asked."""
WHOLE, OFFERED = "whole library", "candidates"
UNTOLD = ["judged@5", "bpref"]
"""Measures that say nothing where one meme a question is known to be right and none to be wrong."""
EMPTY = "…"
"""What a picture without a caption, and turns without words, are compared by."""


class ModError(MemecmdError, ValueError):
    """A file that is not as MOD's files are; the message names file and item and what is expected."""


class Question(NamedTuple):
    """A query: which meme does `sender` send now? Memes go by their numbers in MOD, without leading zeros."""

    name: str
    dialogue: str
    """Questions of one dialogue count as one cluster."""
    history: tuple[Message, ...]
    """What was said and sent before, and what the sender says with the meme."""
    sender: str
    meme: str
    """The meme that was sent: the one that is relevant. Empty in a test file that keeps it back."""
    candidates: tuple[str, ...] = ()
    """Memes to choose from; empty: the whole set."""

    @property
    def key(self) -> tuple[str, str]:
        """(dialogue, name)."""
        return self.dialogue, self.name


class Split(NamedTuple):
    """The questions of one file."""

    name: str
    questions: tuple[Question, ...]
    openers: int = 0
    """Memes that open a dialogue: nothing is known before them, so they are no questions."""


def read_all(path: Path) -> tuple[list[Split], list[str]]:
    """Questions of a file, or of all JSON files of a folder with what was passed over and why."""
    if path.is_file():
        return [read(path)], []
    if not path.is_dir():
        raise ModError(f"{path} is neither a file nor a folder: name where your copy of MOD lies")
    splits, notes = [], []
    for file in sorted(path.glob("*.json")):
        try:
            splits.append(read(file))
        except ModError as error:
            notes.append(str(error))
    if not splits:
        raise ModError(f"{path}: no file asks for memes" + "".join(f"; {note}" for note in notes[:5]))
    return splits, notes


def read(path: Path) -> Split:
    """Read the questions of a file of dialogues or of a task file of meme retrieval.

    In dialogues each meme from the second message on is one question, whose history ends with the words
    that came with the meme, as in the task files. Raises `ModError`, also for a task file of the other
    two tasks, which ask for a text or an emotion.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModError(f"{path.name}: not JSON ({error})") from error
    if isinstance(value, list):
        questions = tuple(
            _task_question(entry, f"{path.name}, item {i}", i) for i, entry in enumerate(value, 1)
        )
        if not questions:
            raise ModError(f"{path.name}: the list is empty")
        return Split(path.stem, questions)
    if not isinstance(value, dict) or not value or not all(isinstance(v, list) for v in value.values()):
        raise ModError(f'{path.name}: expected {{"dialogue 1": [messages ...], ...}}')
    sent = [
        question
        for name, values in value.items()
        for question in _dialogue_questions(name, values, path.name)
    ]
    asked = tuple(question for question in sent if any(m.text or m.meme for m in question.history))
    if not asked:
        raise ModError(f"{path.name}: no meme is sent after the first message of a dialogue")
    return Split(path.stem, asked, len(sent) - len(asked))


def _dialogue_questions(name: str, values: Sequence[Any], file: str) -> Iterator[Question]:
    """A question for each meme of a dialogue; the history of one that opens it is empty."""
    messages = [_message(value, f"{file}, {name}, message {i}") for i, value in enumerate(values, 1)]
    for place, sent in enumerate(messages):
        if sent.meme:
            history = (*messages[:place], Message(sent.speaker, sent.text)) if place else ()
            yield Question(f"{name}/{place + 1}", name, history, sent.speaker, sent.meme)


def _task_question(entry: Any, where: str, number: int) -> Question:
    answer = entry.get("answer") if isinstance(entry, dict) else None
    if not isinstance(answer, dict) or not isinstance(entry.get("history"), list):
        raise ModError(f'{where}: expected {{"history": [messages], "answer": ..., "candidate": ...}}')
    if "img_id" not in answer:
        raise ModError(f"{where} asks for {', '.join(sorted(answer))}, not for a meme (img_id)")
    history = tuple(_message(m, f"{where}, message {i}") for i, m in enumerate(entry["history"], 1))
    if not any(m.text or m.meme for m in history):
        raise ModError(f"{where}: a history with at least one text or meme is expected")
    offered = entry.get("candidate")
    offered = offered.get("set") if isinstance(offered, dict) else offered
    if offered is not None and (not isinstance(offered, list) or not offered):
        raise ModError(f'{where}: `candidate` is expected as {{"set": [ids of memes]}}')
    candidates = tuple(_number(one, where) for one in offered or ())
    if len(set(candidates)) != len(candidates):
        raise ModError(f"{where}: a candidate stands twice")
    sender = _message({**answer, "txt": "", "img_id": ""}, where).speaker
    meme = _number(answer["img_id"], where)
    if meme and candidates and meme not in candidates:
        raise ModError(f"{where}: the meme sent, {meme}, is not among the candidates")
    # Questions that begin with the same message come from one dialogue.
    dialogue = json.dumps(entry["history"][0], ensure_ascii=False, sort_keys=True)
    return Question(str(number), dialogue, history, sender, meme, candidates)


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or not str(value.get("speaker_id", "")).strip():
        raise ModError(f'{where}: expected {{"speaker_id": ..., "txt": ..., "img_id": ...}}')
    text = value.get("txt") or ""
    if not isinstance(text, str):
        raise ModError(f"{where}: `txt` is expected as text")
    name = str(value["speaker_id"]).strip().strip("[]")
    number = name.removeprefix("speaker")
    if number.isdecimal() and 1 <= int(number) <= len(PEOPLE):
        name = PEOPLE[int(number) - 1]
    return Message(name, text, meme=_number(value.get("img_id"), where))


def _number(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ModError(f"{where}: `img_id` is expected as a text such as 030")
    return plain_number(str(value).strip())


def plain_number(text: str) -> str:
    """A meme's number without leading zeros; other names as they are."""
    return str(int(text)) if text.isdecimal() else text


def corpus(library: Library) -> dict[str, str]:
    """Number of a meme in MOD to its id in a library made of MOD's folder of pictures.

    The file's name is the number: `030.jpg` is meme 30.
    """
    memes = (library.memes[name] for name in library.index.meme_ids)
    return {plain_number(PurePosixPath(meme.origin).stem): meme.meme_id for meme in memes}


# --- The same as a benchmark that anybody can enter


SENT = 4
"""Score of the meme that was really sent, in qrels from 0 to 4."""


def benchmarks(
    path: Path, profile: str, settings: str = "", run_name: str = "", n_dialogues: int | None = None
) -> tuple[list[Benchmark], Run, list[str]]:
    """The questions of a file or folder of MOD as benchmarks, the run that takes what is made of them, notes.

    The corpus is the library of the finished run, as in `evaluate_file`; candidates are not told apart. A
    question without a summary, for want of a model that could write one, has none. The layout is written to
    `benchmark/` of the run `<run>-mod`. Raises as `evaluate_file` does.
    """
    splits, notes = read_all(path)
    run = insertion.library_run(run_name, profile, settings)
    asking = insertion.asking_run(run, profile, settings, "mod")
    library = insertion.open_library(run, asking)
    numbers, annotations = corpus(library), {a.meme_id: a for a in run.load(Annotation)}
    documents = tuple(
        benchmark.document(library.memes[name], annotations[name]) for name in library.index.meme_ids
    )
    found = []
    for split in splits:
        drawn = _draw(split.questions, n_dialogues, run.profile.seed)
        asked = [question for question in drawn if question.meme]
        contexts = [context(split.name, question, library, numbers) for question in asked]
        try:
            summaries = chats_messages.summarise(contexts, asking, STAGE, run.name)
        except chats_messages.NoSummaryAgent as error:
            notes.append(f"{split.name}: the paper's score is left out; {error}")
            summaries = [chats_messages.Summarised(None, "")] * len(asked)
        turns, judged = [], []
        for question, told, said in zip(asked, contexts, summaries, strict=True):
            name = benchmark.query_id(split.name, question.name)
            before = tuple(benchmark.Utterance(*line) for line in told.lines)
            summary = said.summary.model_dump() if said.summary else {}
            turns.append(
                benchmark.Turn(name, question.dialogue, told.turn, question.sender, before, **summary)
            )
            # A meme that the library lacks keeps its number: it is missed.
            meme = numbers.get(question.meme, question.meme)
            judged.append(benchmark.Judgement(name, meme, SENT, "sent"))
        found.append(Benchmark(split.name, tuple(turns), documents, tuple(judged)))
    benchmark.write(asking.folder / "benchmark", found)
    # What is measured is the run's library, under the run's embedder and weights.
    return found, replace(run, name=asking.name, folder=asking.folder, report=asking.report), notes


# --- Measuring


class Evaluated(NamedTuple):
    """Measures of all splits, and what stands behind them."""

    table: pd.DataFrame
    """A row a split, set of memes and system."""
    notes: list[str]
    folder: Path

    def text(self) -> str:
        """The table, the notes, and where the files are."""
        return "\n".join([self.table.round(3).to_string(index=False), *self.notes, str(self.folder)])


def evaluate_file(
    path: Path, profile: str, settings: str = "", run_name: str = "", n_dialogues: int | None = None
) -> Evaluated:
    """Measure retrieval on a file of MOD, or on all of a folder, each a split: what `make evaluate-mod` does.

    The library is that of the finished run `run_name`, or else of the run that `profile` and `settings` make
    with MOD's folder of pictures as its source; the summary agent is asked by `profile` and `settings`.
    `n_dialogues` draws that many dialogues of each split by the run's seed. Writes `measures.csv` and
    `differences.csv` to the report folder `<run>-mod`. Raises `ModError` for files of another form,
    `NoSummaryAgent` where no model can be asked.
    """
    splits, notes = read_all(path)
    run = insertion.library_run(run_name, profile, settings)
    asking = insertion.asking_run(run, profile, settings, "mod")
    library = insertion.open_library(run, asking)
    memes = corpus(library)
    frames: dict[str, list[pd.DataFrame]] = {"measures": [], "differences": []}
    for split in splits:
        drawn = _draw(split.questions, n_dialogues, run.profile.seed)
        asked = [question for question in drawn if question.meme]
        contexts = [context(split.name, question, library, memes) for question in asked]
        summaries = chats_messages.summarise(contexts, asking, STAGE, run.name)
        counts = {
            "ask for a meme that the library lacks: missed": sum(q.meme not in memes for q in asked),
            "have no summary: missed": sum(one.summary is None for one in summaries),
            "keep their answer back: not asked": len(drawn) - len(asked),
        }
        total = f"of {len(drawn):,} questions"
        notes += [f"{split.name}: {count:,} {total} {fate}" for fate, count in counts.items() if count]
        if split.openers:
            notes.append(f"{split.name}: {split.openers:,} memes open a dialogue: no questions")
        scores = score_matrices(asked, summaries, library)
        for among in (WHOLE, OFFERED):
            measured, clusters = measure(asked, scores, library, among)
            tables = rankings.tabulate(measured, clusters, next(iter(scores)))
            for name, table in zip(frames, tables, strict=True):
                frames[name].append(_headed(table, split.name, among))
    joined = {}
    for name, parts in frames.items():
        # A frame without rows would change the types of columns.
        joined[name] = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
        files.write_frame(asking.report / f"{name}.csv", joined[name], float_format=None)
    return Evaluated(joined["measures"], notes, asking.report)


def _headed(table: pd.DataFrame, split: str, among: str) -> pd.DataFrame:
    """A table of `rankings` in the words of a benchmark of questions."""
    named = table.rename(columns={"uses": "system", "turns": "questions"})
    named = named.drop(columns=["embedder", "centring", *UNTOLD], errors="ignore")
    if "measure" in named:
        named = named[~named["measure"].isin(UNTOLD)]
    named.insert(0, "split", split)
    named.insert(1, "among", among)
    return named


def _draw(questions: Sequence[Question], n_dialogues: int | None, seed: int) -> Sequence[Question]:
    names = list(dict.fromkeys(question.dialogue for question in questions))
    if n_dialogues is None or n_dialogues >= len(names):
        return questions
    chosen = {names[i] for i in statistics.rng(seed, "mod dialogues").permutation(len(names))[:n_dialogues]}
    return [question for question in questions if question.dialogue in chosen]


def context(split: str, question: Question, library: Library, memes: Mapping[str, str]) -> Context:
    """What the summary agent reads for a question; memes sent before are told by their captions."""
    spoken = []
    for message in question.history:
        mark = ""
        if message.meme:
            meme = library.memes.get(memes.get(message.meme, ""))
            mark = prompts.render("sent_meme", caption=meme_words(meme) if meme else "")
        spoken.append(Message(message.speaker, f"{message.text}{mark}"))
    turns = chats_messages.spoken_turns(Conversation(question.name, tuple(spoken)))
    lines = tuple((t.speaker, t.text) for t in turns[-chats_messages.HISTORY_TURNS :])
    return Context(f"{split}/{question.name}", len(turns) + 1, lines, question.sender)


def score_matrices(
    asked: Sequence[Question], summaries: Sequence[chats_messages.Summarised], library: Library
) -> dict[System, np.ndarray]:
    """Scores [questions, memes] of the run's own score (Eq. 22) and of last turns against captions.

    Both are centred by their own means, as the profile says. A question without a summary has nan.
    """
    profile, index = library.run.profile, library.index
    full = np.full((len(asked), len(index.meme_ids)), np.nan)
    rows = [i for i, one in enumerate(summaries) if one.summary is not None]
    if rows:
        parts = (
            library.encode([getattr(summaries[i].summary, field) for i in rows], "query")
            for field in QUERY_FIELDS
        )
        queries = build_queries(parts, profile.retrieval.centring == "attribute")
        full[rows] = weigh(queries, profile.retrieval.weights) @ index.rows.T
    last = ["\n".join(m.text for m in question.history[-CONTEXT_TURNS:] if m.text) for question in asked]
    # Some embedders refuse an empty text.
    contexts = library.encode([text or EMPTY for text in last], "query")
    captions = library.encode([library.memes[name].text or EMPTY for name in index.meme_ids], "document")
    caption = rankings.cosines(contexts, captions, profile.retrieval.centring)
    name = library.run.embedder_name()
    return {
        System(name, profile.retrieval.centring, uses): m for uses, m in ((FULL, full), (CAPTION, caption))
    }


def measure(
    asked: Sequence[Question], scores: Mapping[System, np.ndarray], library: Library, among: str
) -> tuple[dict[System, np.ndarray], list[str]]:
    """Measures of every system, and of random rankings, at the questions that have what `among` names.

    Candidates come before all other memes. A question without a summary, or whose meme the library lacks,
    counts as missed.
    """
    memes, ids, seed = corpus(library), library.index.meme_ids, library.run.profile.seed
    rows = [i for i, question in enumerate(asked) if among == WHOLE or question.candidates]
    here = [asked[i] for i in rows]
    keys = [question.key for question in here]
    relevant = {question.key: {memes.get(question.meme, ""): 1} for question in here}
    gains = rankings.grade_matrix(keys, ids, relevant)
    offered = np.ones((len(here), len(ids)), dtype=bool)
    if among == OFFERED:
        for row, question in enumerate(here):
            offered[row] = np.isin(ids, [memes.get(number, "") for number in question.candidates])

    def values(order: np.ndarray) -> np.ndarray:
        first = np.argsort(~np.take_along_axis(offered, order, axis=1), axis=1, kind="stable")
        order = np.take_along_axis(order, first, axis=1)
        # A meme that was sent and is not in the library is missed by every ranking.
        return np.nan_to_num(rankings.per_turn(order, gains, level=1))

    found: dict[System, np.ndarray] = {}
    if not here:
        return found, []
    for system, matrix in scores.items():
        part = matrix[rows]
        found[system] = values(order(np.nan_to_num(part, nan=-np.inf), ids))
        found[system][np.isnan(part).any(axis=1)] = 0
    draws = range(rankings.RANDOM_DRAWS)
    random = [values(rankings.random_order(here, len(ids), seed, draw)) for draw in draws]
    found[System("", "", RANDOM)] = np.mean(random, axis=0)
    return found, [name for name, _ in keys]
