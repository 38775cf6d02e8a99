"""Meme retrieval as a benchmark in the layout of BEIR and `mteb`, its leaderboard, and MOD in that layout.

A split has memes, turns to rank them for, and grades. `write` makes a folder of it and `read` reads that
back: nothing else of a run is needed to rank memes and to be measured.
"""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from memecmd_utils import files, grades, learned, retrieval, runs, statistics
from memecmd_utils.chats import asking_run, library_run
from memecmd_utils.chats.turns import (
    HISTORY_TURNS,
    Context,
    Conversation,
    Message,
    NoSummaryAgent,
    spoken_turns,
    summarise,
)
from memecmd_utils.files import MemecmdError
from memecmd_utils.llm import prompts
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Meme
from memecmd_utils.splits import CONTEXT_TURNS, Split, splits_of_run
from memecmd_utils.studies import landing
from memecmd_utils.studies.landing import PAPER

DEPTH = 20
"""Memes of a turn that are measured."""
MEASURES = ("R@1", "R@5", f"MRR@{DEPTH}", "nDCG@5", "judged@5")
"""Columns of the leaderboard."""
NONE = "none"
"""Stands in the place of a meme in a run file: at this turn no meme is sent."""
EMPTY = "…"
"""What a meme without words, and a turn without any, are compared by: some embedders refuse an empty text."""
FILE = "leaderboard.json"
SHOWN = ("system", "kind", *MEASURES, "difference", "p Holm", "dialogues")
"""Columns that the terminal shows."""
Ranking = dict[str, list[str]]
"""Turn -> memes, the best first."""


class BenchmarkError(MemecmdError, ValueError):
    """A benchmark or an entry that cannot be read or made; the message says what is wrong and where."""


@dataclass(frozen=True)
class Benchmark:
    """One split: all that an entry may read, and what it is measured by."""

    name: str
    turns: pd.DataFrame
    """id, dialogue, turn, speaker (who would send the meme), before (what was said: speaker and text), the
    summary (scenario, emotion, motivation: S, E and Psi of Eq. 16), text (the whole chat before the turn) and
    context (its last three messages). Nothing in a row was said at the turn or later."""
    memes: pd.DataFrame
    """id, caption, picture (a note on it), s_plus, s_minus, emotion, motivation (Eq. 1), and text: what
    speaks for the meme, all but the caption and S-."""
    judgements: pd.DataFrame
    """query-id, corpus-id, score (`grades.relevance` of the graders' mean grade, 0 to 4), batch (why it was
    graded: `pool`, `learned`, `user` or `sent`)."""

    @cached_property
    def qrels(self) -> pd.DataFrame:
        """Judgements at the turns where some judged meme fits: no other tells systems apart."""
        best = self.judgements.groupby("query-id")["score"].transform("max")
        return self.judgements.loc[best >= grades.RELEVANT, ["query-id", "corpus-id", "score"]]

    @cached_property
    def relevant(self) -> dict[str, dict[str, int]]:
        """The same by turn, in the order of the turns, and meme, as `grades.measure` reads it."""
        rows = {turn: table.set_index("corpus-id")["score"] for turn, table in self.qrels.groupby("query-id")}
        return {turn: rows[turn].to_dict() for turn in self.turns["id"] if turn in rows}

    @property
    def asked(self) -> pd.DataFrame:
        """The turns of `qrels`, which every entry has to rank memes for."""
        return self.turns[self.turns["id"].isin(self.relevant)]


def _turn(
    name: str, dialogue: str, turn: int, speaker: str, before: list[dict], summary: Any
) -> dict[str, Any]:
    parts = {part: getattr(summary, part, "") for part in ("scenario", "emotion", "motivation")}
    text = "\n".join(f"{line['speaker']}: {line['text']}" for line in before)
    context = "\n".join(line["text"] for line in before[-CONTEXT_TURNS:] if line["text"])
    word = re.sub(r"\s+", "_", name)  # as TREC files want ids to be
    row = {"id": word, "dialogue": dialogue, "turn": turn, "speaker": speaker, "before": before}
    return {**row, **parts, "text": text, "context": context}


def _meme(meme: Meme, annotation: Annotation) -> dict[str, Any]:
    row = {"id": meme.meme_id, "caption": meme.text, "picture": meme.picture_note}
    row |= {part: getattr(annotation, part) for part in ("s_plus", "s_minus", "emotion", "motivation")}
    spoken = (row["picture"], row["s_plus"], row["emotion"], row["motivation"])
    return {**row, "text": "\n".join(filter(None, spoken))}


def _judgements(rows: list[tuple[str, str, int, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["query-id", "corpus-id", "score", "batch"])


def build(split: Split) -> Benchmark:
    """A split as a benchmark: turns that have a summary, memes that may be sent, and their grades."""
    turns = [
        _turn(
            f"{dialogue.dialogue_id}/{summary.turn}", dialogue.dialogue_id, summary.turn, summary.speaker,
            [{"speaker": u.speaker, "text": u.text} for u in dialogue.turns[: summary.turn - 1]], summary,
        )
        for dialogue in split.dialogues
        for summary in dialogue.summaries
        if not summary.unscored
    ]  # fmt: skip
    ids = {(turn["dialogue"], turn["turn"]): turn["id"] for turn in turns}
    if len(set(ids.values())) < len(ids):
        raise BenchmarkError("two dialogue ids differ only in spaces: rename one dialogue")
    memes = [_meme(split.memes[a.meme_id], a) for a in split.annotations if a.usable]
    known, place = {meme["id"] for meme in memes}, {name: number for number, name in enumerate(ids.values())}
    judged = [
        (ids[key], meme, grades.relevance(mean), batch)
        for batch, given in split.truth.batches.items()
        for key, means in grades.mean_grades(given).items() if key in ids
        for meme, mean in means.items() if meme in known
    ]  # fmt: skip
    judged.sort(key=lambda row: (place[row[0]], row[1]))
    return Benchmark(split.name, pd.DataFrame(turns), pd.DataFrame(memes), _judgements(judged))


# --- The layout: one folder a split


def write(folder: Path, benchmarks: Sequence[Benchmark]) -> None:
    """Write every split into a folder of its own, and `README.md`, which `datasets` and readers read."""
    for split in benchmarks:
        place = folder / split.name
        memes, turns = (table.to_dict("records") for table in (split.memes, split.turns))
        corpus = [{"_id": m["id"], "title": m["caption"], "text": m["text"], "metadata": m} for m in memes]
        _write_lines(place / "corpus.jsonl", corpus)
        queries = [{"_id": t["id"], "text": t["text"], "metadata": t} for t in turns]
        _write_lines(place / "queries.jsonl", queries)
        files.write_text(place / "qrels" / "test.tsv", _tsv(split.qrels))
        _write_lines(place / "qrels" / "test.jsonl", split.qrels.to_dict("records"))
        files.write_text(place / "judgements.tsv", _tsv(split.judgements))
    card = files.templates(thousands="{:,}".format).get_template("benchmark_card.md.j2")
    files.write_text(
        folder / "README.md", card.render(splits=benchmarks, relevant=grades.RELEVANT, depth=DEPTH)
    )


def _tsv(table: pd.DataFrame) -> str:
    return table.to_csv(sep="\t", index=False, lineterminator="\n")


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    files.write_text(path, "".join(files.dumps(row) + "\n" for row in rows))


def read(folder: Path) -> list[Benchmark]:
    """Read every split of a folder that `write` made; `BenchmarkError` names what cannot be read."""
    places = sorted(path.parent for path in folder.glob("*/corpus.jsonl"))
    if not places:
        raise BenchmarkError(f"{folder}: no benchmark is here; each split needs a folder with corpus.jsonl")
    splits = []
    for place in places:
        try:
            rows = (files.read_rows(place / name) for name in ("queries.jsonl", "corpus.jsonl"))
            turns, memes = (pd.DataFrame([row["metadata"] for row in table]) for table in rows)
            judged = pd.read_csv(place / "judgements.tsv", sep="\t", dtype=str, keep_default_na=False)
            splits.append(Benchmark(place.name, turns, memes, judged.astype({"score": int})))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(f"{place}: not a split of a benchmark: {error}") from error
    return splits


# --- Systems of the package, and entries


def package_systems(split: Benchmark, run: Run) -> dict[str, Ranking]:
    """The caption baseline, and with summaries the paper's score (Eq. 22) and each of its terms alone."""
    profile, encode = run.profile, learned.on_this_machine(run).embedder().encode
    turns, memes = split.turns.replace("", EMPTY), split.memes.replace("", EMPTY)
    contexts, captions = encode([*turns["context"]], "query"), encode([*memes["caption"]], "document")
    scores = {grades.CAPTION: grades.cosines(contexts, captions, profile.retrieval.centring)}
    if split.turns["scenario"].any():
        asked = [*turns.itertuples(index=False)]
        known = [*memes.rename(columns={"id": "meme_id"}).itertuples(index=False)]
        index = retrieval.index_of(known, encode, profile.retrieval.centring)
        queries = retrieval.queries_of(asked, encode, profile.retrieval.centring)
        terms = retrieval.component_matrices(index, queries)
        scores[PAPER] = retrieval.combine(terms, profile.retrieval.weights)
        scores |= {f"{part} alone": term for part, term in zip(grades.PARTS, terms, strict=True)}
    return {name: ranked(matrix, split) for name, matrix in scores.items()}


def saved_systems(split: Benchmark, run: Run) -> dict[str, Ranking]:
    """The rankings that notebook 04c saved, every turn by what did not see its dialogue."""
    saved = landing.saved_rankings(run, split.name)
    if saved is None or not {*split.memes["id"]} <= {*saved[1]}:
        return {}
    place = {meme: column for column, meme in enumerate(saved[1])}
    columns = [place[meme] for meme in split.memes["id"]]
    rows = {who: scores[:, columns] for who, scores in saved[0].items() if len(scores) == len(split.turns)}
    return {who: ranked(scores, split) for who, scores in rows.items() if who != PAPER}


def ranked(scores: np.ndarray, split: Benchmark) -> Ranking:
    """The first `DEPTH` memes of every asked turn, from scores of all turns and memes; equal ones by id.

    A meme with -inf is not ranked.
    """
    order, ids = retrieval.order(scores, [*split.memes["id"]])[:, :DEPTH], split.memes["id"].to_numpy()
    named = np.isfinite(np.take_along_axis(scores, order, axis=1))
    rows = zip(split.turns["id"], order, named, strict=True)
    return {turn: ids[memes[there]].tolist() for turn, memes, there in rows if turn in split.relevant}


def rank_by_entry(path: Path, split: Benchmark, known: set[str]) -> Ranking | None:
    """The ranking of an entry; None where a run file has turns of other splits only.

    An entry is a TREC run, in which `none` in the place of a meme abstains, or a Python file with
    `rank(turn, memes)`. `known` are ids of the turns of all splits. Raises `BenchmarkError` for an entry that
    lacks turns, names unknown ids or gives no numbers.
    """
    if not path.is_file():
        raise BenchmarkError(
            f"entry {path}: there is no such file (a TREC run, or a .py with rank(turn, memes))"
        )
    scores = _call(path, split) if path.suffix == ".py" else _read_trec(path, split, known)
    if scores is None:
        return None
    if missing := [turn for turn in split.relevant if scores.get(turn) is None]:
        counts = f"{len(missing):,} of {len(split.relevant):,} turns of split {split.name} have no meme"
        raise BenchmarkError(f"entry {path.name}: {counts}: {', '.join(missing[:3])}")
    asked = ((turn, scores[turn]) for turn in split.relevant)
    return {turn: sorted(of_memes, key=lambda m: (-of_memes[m], m))[:DEPTH] for turn, of_memes in asked}


def _read_trec(path: Path, split: Benchmark, known: set[str]) -> dict[str, dict[str, float]] | None:
    """Scores of a TREC run: `query-id Q0 corpus-id rank score tag`, a line a meme, in any order."""
    memes, mine = set(split.memes["id"]), set(split.turns["id"])
    scores: dict[str, dict[str, float]] = {}
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if not line.strip():
                continue
            turn, _, meme, _, score, _ = line.split()
            if turn in mine and meme == NONE:
                scores.setdefault(turn, {})
            elif turn in mine and meme in memes and np.isfinite(float(score)):
                if meme in scores.setdefault(turn, {}):
                    raise ValueError(f"meme {meme} is listed twice at turn {turn}")
                scores[turn][meme] = float(score)
            elif turn in mine or turn not in known:
                raise ValueError(f"no turn {turn}, no meme {meme}, or no finite score {score}")
        except ValueError as error:
            raise BenchmarkError(f"entry {path.name}, line {number}: {error}") from error
    return None if text.strip() and not scores else scores


def _call(path: Path, split: Benchmark) -> dict[str, dict[str, float]]:
    """Scores of a Python file's `rank(turn, memes)`: a number for each meme, the best highest."""
    spec = importlib.util.spec_from_file_location(f"leaderboard_entry_{path.stem}", path)
    module, where = importlib.util.module_from_spec(spec), f"entry {path.name}"
    memes, scores = tuple(split.memes.itertuples(index=False, name="Meme")), {}
    try:
        spec.loader.exec_module(module)
        for turn in split.asked.itertuples(index=False, name="Turn"):
            where = f"entry {path.name}, turn {turn.id}"
            row = np.asarray(module.rank(turn, memes), dtype=np.float64)
            if row.shape != (len(memes),) or not np.isfinite(row).all():
                raise ValueError(f"{row.size:,} scores for {len(memes):,} memes, or no finite ones")
            scores[turn.id] = dict(zip(split.memes["id"], row.tolist(), strict=True))
    except (Exception, SystemExit) as error:  # a stranger's code
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BenchmarkError(f"{where}: rank(turn, memes) gives no scores: {text}") from error
    return scores


# --- The leaderboard


def table(split: Benchmark, systems: Mapping[str, tuple[str, Ranking]], seed: int) -> pd.DataFrame:
    """A row a system (name -> kind and ranking), the best nDCG@5 first, with intervals over dialogues.

    Beside them the random ranking whose top was graded with the pool of the example. The difference in nDCG@5
    is that to the paper's score (to the caption baseline where there is none), paired by turn; `p Holm`
    corrects for all systems of the split.
    """
    clusters, base = [*split.asked["dialogue"]], PAPER if PAPER in systems else grades.CAPTION
    order = grades.random_order(zip(clusters, split.asked["turn"], strict=True), len(split.memes), seed)
    drawn = split.memes["id"].to_numpy()[order[:, :DEPTH]].tolist()
    systems = {**systems, grades.RANDOM: ("package", dict(zip(split.relevant, drawn, strict=True)))}
    measured = {name: grades.measure(ranking, split.relevant) for name, (_, ranking) in systems.items()}
    rows = []
    for name, (kind, ranking) in systems.items():
        means = dict(zip(MEASURES, measured[name].mean(axis=0), strict=True))
        gaps = (measured[name] - measured[base])[:, grades.NDCG] if name != base else ()
        gap = statistics.cluster_mean(gaps, clusters, statistics.FINE_DIFFERENCE)
        ndcg = statistics.cluster_mean(measured[name][:, grades.NDCG], clusters, statistics.MEASURE)
        answered = sum(map(bool, ranking.values())) / len(clusters)
        rows.append(
            {
                "split": split.name, "system": name, "kind": kind, **means, "nDCG@5": ndcg,
                "minus": base, "difference": gap, "p": gap.p,
                "answered": answered, "R@1 answered": means["R@1"] / answered if answered else np.nan,
                "turns": len(clusters), "dialogues": len(set(clusters)),
            }
        )  # fmt: skip
    for row, p in zip(rows, statistics.holm([row["p"] for row in rows]), strict=True):
        row["p Holm"] = p
    return pd.DataFrame(sorted(rows, key=lambda row: -row["nDCG@5"].value))


def score(benchmarks: Sequence[Benchmark], run: Run, entries: Sequence[str] = (), name: str = "") -> str:
    """Score the package's systems and `entries` on every split; the best of each as text.

    Writes `tables/leaderboard.*` and `leaderboard.json`, which page and READMEs quote, into the report of
    `run`. `name` is shown in the place of an entry's file name.
    """
    known = {turn for split in benchmarks for turn in split.turns["id"]}
    tables, text = [], []
    for split in benchmarks:
        if not split.relevant:
            continue
        own = package_systems(split, run) | saved_systems(split, run)
        systems = {system: ("package", ranking) for system, ranking in own.items()}
        for path in (Path(entry).expanduser() for entry in entries):
            called, ranking = name or path.stem, rank_by_entry(path, split, known)
            if called in (*systems, grades.RANDOM):
                raise BenchmarkError(f"entry {path.name}: a system is called {called}; give another NAME=")
            if ranking is not None:
                systems[called] = ("function" if path.suffix == ".py" else "file", ranking)
        tables.append(table(split, systems, run.profile.seed))
        shown = files.markdown(pd.DataFrame(first(tables[-1].to_dict("records"), 12))[[*SHOWN]].round(3))
        text.append(f"{split.name}: {len(split.asked):,} turns, {len(split.memes):,} memes\n{shown}")
    if not tables:
        raise BenchmarkError("no leaderboard: no turn has a graded meme that fits")
    leaderboard = pd.concat(tables, ignore_index=True)
    run.save_tables(leaderboard=leaderboard)
    files.write_json(run.report / FILE, {"rows": leaderboard}, statistics.as_json)
    return "\n".join([*text, f"written: {run.report / 'tables' / 'leaderboard.csv'}"])


def load(folder: Path) -> list[dict[str, Any]]:
    """Rows of the `leaderboard.json` in a folder; none without it."""
    file = folder / FILE
    if not file.is_file():
        return []
    return json.loads(file.read_text(encoding="utf-8"), object_hook=statistics.from_json)["rows"]


def first(rows: Sequence[Mapping[str, Any]], n: int) -> list[Mapping[str, Any]]:
    """The first `n` rows, and the paper's score and random wherever they stand."""
    return [row for place, row in enumerate(rows) if place < n or row["system"] in (PAPER, grades.RANDOM)]


def score_run(run: Run, entries: Sequence[str] = (), name: str = "", given: Path | None = None) -> str:
    """The leaderboard of a run's grades, or of a user's table of grades (`given`)."""
    splits = [split for split in splits_of_run(run, given) if split.truth.grades]
    if not splits:
        raise BenchmarkError(
            f"run {run.name} has no grades, so no benchmark: GRADES=grades.csv names a file with the columns "
            f"{', '.join(grades.COLUMNS)}"
        )
    return score([build(split) for split in splits], run, entries, name)


def score_release(folder: Path, profile: str, settings: str, entries: Sequence[str], name: str = "") -> str:
    """The leaderboard of a release's benchmark, under the embedder and weights of a profile."""
    inner = folder / "benchmark"
    run = runs.open_run(profile, settings, "leaderboard")
    return score(read(inner if inner.is_dir() else folder), run, entries, name)


# --- MOD (DSTC10 track 1): questions, memes, and which one was really sent
# The data is for research only and is not part of this package; who has it names its folder. A file of
# dialogues maps names to messages `{"speaker_id", "txt", "img_id"}`; a task file is a list of
# `{"history", "answer"}`.

PEOPLE = "甲乙丙丁戊己庚辛"
"""Names for `[speaker1]`, `[speaker2]`, ...: a chat reads better with names than with brackets."""
SENT = 4
"""Score of the meme that was really sent."""


def read_mod(path: Path, captions: Mapping[str, str]) -> list[tuple[str, Context, str]]:
    """Questions of a file of MOD: dialogue (a cluster), what is known, the number of the meme sent.

    In dialogues each meme from the second message on is a question, whose history ends with the words that
    came with the meme, as in the task files. Memes sent before are told by their `captions`, by number.
    Raises `BenchmarkError`, also for a file that asks for no memes.
    """

    def spoken(message: Mapping[str, Any]) -> Message:
        number = _number(message.get("img_id"))
        mark = prompts.render("sent_meme", text=captions.get(number, ""), picture="") if number else ""
        return Message(_speaker(message), f"{message.get('txt') or ''}{mark}")

    questions = []
    try:
        for name, dialogue, history, sent in _mod_entries(json.loads(path.read_text(encoding="utf-8-sig"))):
            if meme := _number(sent.get("img_id")):
                turns = spoken_turns(Conversation(name, tuple(map(spoken, history))))
                lines = tuple((turn.speaker, turn.text) for turn in turns[-HISTORY_TURNS:])
                context = Context(f"{path.stem}/{name}", len(turns) + 1, lines, _speaker(sent))
                questions.append((dialogue, context, meme))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BenchmarkError(f"{path} is not a file of MOD: {type(error).__name__}: {error}") from error
    if not questions:
        raise BenchmarkError(f"{path.name} asks for no memes")
    return questions


def _mod_entries(value: Any) -> Iterator[tuple[str, str, list[dict], dict]]:
    """Name, dialogue, history and answer of whatever may be a question."""
    for name, messages in value.items() if isinstance(value, dict) else ():
        for place, sent in enumerate(messages):
            if place and sent.get("img_id"):
                yield f"{name}/{place + 1}", name, [*messages[:place], {**sent, "img_id": None}], sent
    for number, entry in enumerate(value if isinstance(value, list) else (), start=1):
        # Questions that begin with the same message come from one dialogue.
        dialogue = json.dumps(entry["history"][0], ensure_ascii=False, sort_keys=True)
        yield str(number), dialogue, entry["history"], entry["answer"]


def _speaker(message: Mapping[str, Any]) -> str:
    name = str(message["speaker_id"]).strip("[] ")
    number = name.removeprefix("speaker")
    return PEOPLE[int(number) - 1] if number.isdecimal() and 1 <= int(number) <= len(PEOPLE) else name


def _number(name: str | int | None) -> str:
    """A meme's number without leading zeros; other names as they are."""
    text = str(name or "").strip()
    return str(int(text)) if text.isdecimal() else text


def score_mod(
    path: Path,
    profile: str,
    settings: str = "",
    run_name: str = "",
    entries: Sequence[str] = (),
    name: str = "",
) -> str:
    """The leaderboard of a file or folder of MOD, whose pictures are the library of a finished run.

    The summary agent is asked by `profile` and `settings`; without one, questions have no summaries and the
    paper's score is left out. Writes `benchmark/` and the leaderboard into the folders of run `<run>-mod`.
    """
    run = library_run(run_name, profile, settings)
    asking = asking_run(run, profile, settings, "mod")
    memes = run.memes()
    usable = [a for a in run.load(Annotation) if a.usable and a.meme_id in memes]
    corpus = pd.DataFrame([_meme(memes[annotation.meme_id], annotation) for annotation in usable])
    # The file's name is the meme's number: `030.jpg` is meme 30.
    ids = {_number(PurePosixPath(meme.origin).stem): meme.meme_id for meme in memes.values()}
    captions = {number: memes[meme].words for number, meme in ids.items()}
    splits, notes = [], []
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            questions = read_mod(file, captions)
        except BenchmarkError as error:
            notes.append(str(error))
            continue
        try:
            answers = summarise([context for _, context, _ in questions], asking, "mod", run.name)
            summaries = [answer.value for answer in answers]
        except NoSummaryAgent as error:
            notes.append(f"{file.stem}: the paper's score is left out; {error}")
            summaries = [None] * len(questions)
        turns, judged = [], []
        for (dialogue, context, meme), summary in zip(questions, summaries, strict=True):
            before = [{"speaker": speaker, "text": text} for speaker, text in context.lines]
            turns.append(_turn(context.chat, dialogue, context.turn, context.next_speaker, before, summary))
            # A meme that the library lacks keeps its number: it is missed.
            judged.append((turns[-1]["id"], ids.get(meme, meme), SENT, "sent"))
        splits.append(Benchmark(file.stem, pd.DataFrame(turns), corpus, _judgements(judged)))
    if not splits:
        raise BenchmarkError("; ".join(notes) or f"{path} holds no .json file")
    write(asking.folder / "benchmark", splits)
    # What is measured is the run's library, under the run's embedder and weights.
    target = replace(run, name=asking.name, folder=asking.folder, report=asking.report)
    return "\n".join([score(splits, target, entries, name), *notes])
