"""Meme retrieval as a benchmark in the layout of BEIR and `mteb`, its leaderboard, and MOD in that layout.

A split has memes, turns to rank them for, and grades. `write` makes a folder of it and `read` reads that
back: nothing else of a run is needed to rank memes and to be measured.
"""

import gzip
import importlib.util
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from memecmd_utils import files, grades, learned, people, pictures, retrieval, runs, statistics
from memecmd_utils.chats import asking_run, library_run
from memecmd_utils.chats.turns import ChatError, Conversation, Message, summarise
from memecmd_utils.dialogue import HISTORY_TURNS, Context
from memecmd_utils.files import MemecmdError
from memecmd_utils.grades import JUDGED
from memecmd_utils.llm import prompts
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Meme, Placement
from memecmd_utils.splits import CONTEXT_TURNS, PURPOSES, Split, splits_of_run
from memecmd_utils.studies import landing
from memecmd_utils.studies.landing import GREEDY, PAPER

DEPTH = 20
"""Memes of a turn that are measured."""
MEASURES = ("R@1", "R@5", f"MRR@{DEPTH}", "nDCG@5", "judged@5")
"""Columns of the leaderboard that say how good a whole ranking is."""
NET, GRADED, BY_CHANCE = "landing - unfit a chat", "nDCG@5 of graded", "nDCG@5 by chance"
"""Its first column, by which systems are ordered; the two by which a system is told from chance."""
LANDS = 4
"""Score (0-4) of a meme that all graders gave a 2."""
NONE = "none"
"""Stands in the place of a meme in a run file: at this turn no meme is sent."""
EMPTY = "…"
"""What a meme without words, and a turn without any, are compared by: some embedders refuse an empty text."""
FILE = "leaderboard.json"
SHOWN = (
    "system", NET, "rate", "lands", "specificity", "nDCG@5", BY_CHANCE, "above chance", "ungraded",
    "difference", "p Holm",
)  # fmt: skip
"""Columns that the terminal shows."""
LEGEND = (
    "The best sender stands first: memes that land less those that do not fit, a chat. A dash: fewer than"
    " 90 % of its memes have a grade, and what nobody graded is no miss; its nDCG@5 is that of the graded"
    " memes alone. By chance: the nDCG@5 of a random ranking there."
)
POOLED = 2
"""Memes of a turn that a page for grading takes from the paper's score, and as many drawn at random."""
Ranking = dict[str, list[str]]
"""Turn -> memes, the best first; an empty list abstains."""


class BenchmarkError(MemecmdError, ValueError):
    """A benchmark or an entry that cannot be read or made; the message says what is wrong and where."""


class System(NamedTuple):
    """Whoever ranks memes: its `kind` is package, function or file."""

    kind: str
    ranking: Ranking
    sends: frozenset[str] | None = None
    """Turns at which its first meme is sent, by its gate; none: wherever it ranks any."""


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
        """The same by turn, in the order of the turns, and meme: every entry has to rank memes for these."""
        rows: dict[str, dict[str, int]] = {turn: {} for turn in self.turns["id"]}
        known = self.qrels[self.qrels["query-id"].isin(rows)]
        for turn, meme, score in known.itertuples(index=False, name=None):
            rows[turn][meme] = score
        return {turn: memes for turn, memes in rows.items() if memes}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Score [turns with any judgement, memes] of every meme; nan where nobody graded."""
        judged = self.judgements.drop_duplicates(["query-id", "corpus-id"], keep="last")
        at = judged.pivot(index="query-id", columns="corpus-id", values="score")
        turns = self.turns["id"][self.turns["id"].isin(at.index)]
        table = at.reindex(index=turns, columns=self.memes["id"]).astype(float)
        return table.fillna(0.0) if self.is_closed else table

    @cached_property
    def is_closed(self) -> bool:
        """Whether the meme that was really sent is the one right answer (MOD), so that no grade lacks."""
        return {*self.judgements["batch"]} == {"sent"}


def _turn(dialogue: str, place: Context, summary: Any) -> dict[str, Any]:
    row = {
        "id": re.sub(r"\s+", "_", place.chat),  # as TREC files want ids to be
        "dialogue": dialogue, "turn": place.turn, "speaker": place.next_speaker,
        "before": [{"speaker": speaker, "text": text} for speaker, text in place.lines],
    }  # fmt: skip
    row |= {part: getattr(summary, part, "") for part in ("scenario", "emotion", "motivation")}
    row["text"] = "\n".join(f"{speaker}: {text}" for speaker, text in place.lines)
    return row | {"context": "\n".join(text for _, text in place.lines[-CONTEXT_TURNS:] if text)}


def _meme(meme: Meme, annotation: Annotation) -> dict[str, Any]:
    row = {"id": meme.meme_id, "caption": meme.text, "picture": meme.picture_note}
    row |= {part: getattr(annotation, part) for part in ("s_plus", "s_minus", "emotion", "motivation")}
    spoken = (row["picture"], row["s_plus"], row["emotion"], row["motivation"])
    return {**row, "text": "\n".join(filter(None, spoken))}


def _judgements(rows: list[tuple[str, str, int, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["query-id", "corpus-id", "score", "batch"])


def build(split: Split) -> Benchmark:
    """A split as a benchmark: turns that have a summary, memes that may be sent, and their grades."""
    turns = []
    for dialogue in split.dialogues:
        lines = [(turn.speaker, turn.text) for turn in dialogue.turns]
        for told in (summary for summary in dialogue.summaries if not summary.unscored):
            name, before = f"{dialogue.dialogue_id}/{told.turn}", lines[: told.turn - 1]
            turns.append(_turn(dialogue.dialogue_id, Context(name, told.turn, before, told.speaker), told))
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
        memes, turns = (table.to_dict("records") for table in (split.memes, split.turns))
        corpus = [{"_id": m["id"], "title": m["caption"], "text": m["text"], "metadata": m} for m in memes]
        queries = [{"_id": turn["id"], "text": turn["text"], "metadata": turn} for turn in turns]
        lines = {"corpus": corpus, "queries": queries, "qrels/test": split.qrels.to_dict("records")}
        for name, rows in lines.items():
            text = "".join(files.dumps(row) + "\n" for row in rows)
            files.write_text(folder / split.name / f"{name}.jsonl", text)
        for name, table in (("qrels/test", split.qrels), ("judgements", split.judgements)):
            text = table.to_csv(sep="\t", index=False, lineterminator="\n")
            files.write_text(folder / split.name / f"{name}.tsv", text)
    card = files.templates(thousands="{:,}".format).get_template("benchmark_card.md.j2")
    about = {"relevant": grades.RELEVANT, "depth": DEPTH, "purposes": PURPOSES}
    files.write_text(folder / "README.md", card.render(splits=benchmarks, **about))


def read(folder: Path) -> list[Benchmark]:
    """Read every split of a release or of a folder that `write` made; `BenchmarkError` if one is broken."""
    folder = folder / "benchmark" if (folder / "benchmark").is_dir() else folder
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


def package_systems(split: Benchmark, run: Run) -> dict[str, System]:
    """The caption baseline, the paper's score (Eq. 22) and each of its terms alone.

    They rank memes for all turns, and send one at every turn.
    """
    profile, encode = run.profile, learned.on_this_machine(run).embedder().encode
    turns, memes = split.turns.replace("", EMPTY), split.memes.replace("", EMPTY)
    contexts, captions = encode([*turns["context"]], "query"), encode([*memes["caption"]], "document")
    scores = {grades.CAPTION: grades.cosines(contexts, captions, profile.retrieval.centring)}
    asked = [*turns.itertuples(index=False)]
    known = [*memes.rename(columns={"id": "meme_id"}).itertuples(index=False)]
    index = retrieval.index_of(known, encode, profile.retrieval.centring)
    queries = retrieval.queries_of(asked, encode, profile.retrieval.centring)
    terms = retrieval.component_matrices(index, queries)
    scores[PAPER] = retrieval.combine(terms, profile.retrieval.weights)
    scores |= {f"{part} alone": term for part, term in zip(grades.PARTS, terms, strict=True)}
    return {name: System("package", ranked(matrix, split)) for name, matrix in scores.items()}


def random_system(split: Benchmark, seed: int) -> System:
    """The random ranking whose top was graded with the pool of the example."""
    keys = zip(split.turns["dialogue"], split.turns["turn"], strict=True)
    drawn = split.memes["id"].to_numpy()[grades.random_order(keys, len(split.memes), seed)].tolist()
    return System("package", dict(zip(split.turns["id"], drawn, strict=True)))


def with_saved_systems(systems: Mapping[str, System], split: Benchmark, run: Run) -> dict[str, System]:
    """Beside `systems` those of notebook 04c, every turn by what did not see its dialogue.

    Whoever has a gate, the paper's score, too, sends where it lets a meme through.
    """
    saved = landing.saved_rankings(run, split.name)
    if saved is None or not {*split.memes["id"]} <= {*saved.meme_ids}:
        return {**systems}
    place = {meme: column for column, meme in enumerate(saved.meme_ids)}
    columns, turns = [place[meme] for meme in split.memes["id"]], split.turns["id"]
    found = dict(systems)
    for who, scores in saved.scores.items():
        if len(scores) == len(turns):
            mask = saved.sends.get(GREEDY if who == PAPER else who)
            ranking = systems[who].ranking if who in systems else ranked(scores[:, columns], split)
            found[who] = System("package", ranking, None if mask is None else frozenset(turns[mask]))
    return found


def ranked(scores: np.ndarray, split: Benchmark) -> Ranking:
    """All memes of every turn, from scores of all turns and memes, the best first; equal ones by id.

    A meme with -inf is not ranked.
    """
    order, ids = retrieval.order(scores, [*split.memes["id"]]), split.memes["id"].to_numpy()
    named = np.isfinite(np.take_along_axis(scores, order, axis=1))
    rows = zip(split.turns["id"], order, named, strict=True)
    return {turn: ids[memes[there]].tolist() for turn, memes, there in rows}


def rank_by_entry(path: Path, split: Benchmark, known: set[str]) -> Ranking | None:
    """The ranking of an entry; None where a run file has turns of other splits only.

    An entry is a TREC run, in which `none` in the place of a meme abstains, or a Python file with
    `rank(turn, memes)`. `known` are ids of the turns of all splits. Raises `BenchmarkError` for an entry that
    lacks turns, names unknown ids or gives no numbers.
    """
    scores = _call(path, split) if path.suffix == ".py" else _read_trec(path, split, known)
    if scores and scores.keys().isdisjoint(split.turns["id"]):
        return None
    if missing := [turn for turn in split.relevant if turn not in scores]:
        counts = f"{len(missing):,} of {len(split.relevant):,} turns of split {split.name} have no meme"
        raise BenchmarkError(
            f"entry {path.name}: {counts}: {', '.join(missing[:3])} (`{NONE}` sends none at a turn)"
        )
    given = {turn: scores[turn] for turn in split.turns["id"] if turn in scores}
    return {turn: sorted(known, key=lambda m: (-known[m], m)) for turn, known in given.items()}


def _read_trec(path: Path, split: Benchmark, known: set[str]) -> dict[str, dict[str, float]]:
    """Scores of a TREC run: `query-id Q0 corpus-id rank score tag`, a line a meme, in any order."""
    mine, memes = {*split.turns["id"]}, {NONE, *split.memes["id"]}
    scores: dict[str, dict[str, float]] = {}
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise BenchmarkError(f"entry {path.name}: no TREC run in UTF-8, nor one as gzip: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            turn, _, meme, _, score, _ = line.split()
            of_turn, value = scores.setdefault(turn, {}), float(score)
            is_known = turn in known and (turn not in mine or meme in memes)
            if not is_known or meme in of_turn or not np.isfinite(value):
                raise ValueError(line)
            of_turn[meme] = value
        except ValueError as error:
            raise BenchmarkError(
                f"entry {path.name}, line {number}: not `query-id Q0 corpus-id rank score tag` of a turn, one"
                f" of its memes, once, and a finite score: {line[:80]}"
            ) from error
    return {turn: {m: n for m, n in of_turn.items() if m != NONE} for turn, of_turn in scores.items()}


class Row(dict[str, Any]):
    """A turn or a meme that an entry reads by name or by key: `turn.context`, `turn["context"]`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"no field {name}; there are {', '.join(self)}")
        return self[name]


def _call(path: Path, split: Benchmark) -> dict[str, dict[str, float]]:
    """Scores of a Python file's `rank(turn, memes)`: a number for each meme, the best highest.

    It abstains at a turn by an empty list or None.
    """
    spec = importlib.util.spec_from_file_location(f"leaderboard_entry_{path.stem}", path)
    module, where, scores = importlib.util.module_from_spec(spec), f"entry {path.name}", {}
    memes = tuple(map(Row, split.memes.to_dict("records")))
    turns = split.turns[split.turns["id"].isin(split.scores.index)].to_dict("records")
    try:
        spec.loader.exec_module(module)
        for turn in tqdm(map(Row, turns), desc=f"{path.stem} on {split.name}", unit="turn", total=len(turns)):
            where = f"entry {path.name}, turn {turn.id}"
            given = module.rank(turn, memes)
            row = np.asarray([] if given is None else given, dtype=np.float64)
            if row.size and (row.shape != (len(memes),) or not np.isfinite(row).all()):
                raise ValueError(f"{row.size:,} scores for {len(memes):,} memes, or no finite ones")
            scores[turn.id] = dict(zip(split.memes["id"], row.tolist(), strict=True)) if row.size else {}
    except (Exception, SystemExit) as error:  # a stranger's code
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BenchmarkError(f"{where}: rank(turn, memes) gives no scores: {text}") from error
    return scores


# --- The leaderboard


def as_sender(split: Benchmark, system: System) -> dict[str, Any]:
    """What the memes that a system sends are worth, at the turns with any grade.

    `NET`: memes that land, less those that do not fit, a chat, with its interval over chats; whoever never
    sends has 0. rate: share of the turns with a meme. lands: share of the memes. specificity: fits, less how
    often the same meme fits at other turns. A meme that nobody graded counts in rate and `ungraded` alone;
    with more of them than `JUDGED` allows, the others are nan.
    """
    sends, known = system.ranking if system.sends is None else system.sends, split.scores.to_numpy()
    at = [turn for turn in split.scores.index if turn in sends and system.ranking.get(turn)]
    rows = split.scores.index.get_indexer(at)
    columns = split.scores.columns.get_indexer([system.ranking[turn][0] for turn in at])
    turns = split.turns.set_index("id")["dialogue"]
    chats, chat = list(dict.fromkeys(turns[split.scores.index])), turns[at].to_numpy()
    score, fits = known[rows, columns], known >= grades.RELEVANT
    is_graded, lands = np.isfinite(score), score == LANDS
    worth = 1.0 * lands - (score < grades.RELEVANT)
    by_chat = pd.Series(worth, chat).groupby(level=0).sum().reindex(chats, fill_value=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        others = np.isfinite(known).sum(axis=0)[columns] - 1
        specific = fits[rows, columns] - (fits.sum(axis=0)[columns] - fits[rows, columns]) / others
    specific = specific[is_graded & (others > 0)]
    ungraded = 1 - is_graded.mean() if at else 0.0
    told = slice(None) if ungraded <= 1 - JUDGED else slice(0)
    return {
        NET: statistics.cluster_mean(by_chat[told].tolist(), chats[told], statistics.DIFFERENCE),
        "rate": len(at) / len(split.scores),
        "lands": statistics.cluster_mean(lands[is_graded][told], chat[is_graded][told], statistics.SHARE),
        "specificity": specific[told].mean() if len(specific[told]) else np.nan,
        "ungraded": ungraded,
    }


def of_graded_memes(split: Benchmark, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """nDCG@5 of a ranking without the memes that nobody graded, and of as many of the others at random.

    Both [turns of `qrels`]. The second is an expectation: what an order that knows nothing gets.
    """
    turns = {turn: ranking.get(turn, []) for turn in split.relevant}
    kept = {turn: [m for m in memes if m in split.relevant[turn]] for turn, memes in turns.items()}
    by_chance = grades.ndcg_by_chance(split.scores.loc[[*turns]].to_numpy(), [*map(len, kept.values())])
    return grades.measure(kept, split.relevant)[:, grades.NDCG], by_chance


def table(split: Benchmark, systems: Mapping[str, System], seed: int) -> pd.DataFrame:
    """A row a system, the best `NET` first, with intervals over dialogues; last those with too few grades.

    The difference in nDCG@5 is that to the paper's score, paired by turn; it is told where `JUDGED` of the
    memes of both have grades. above chance: whether nDCG@5 is above that of the random ranking whose top was
    graded with the pool of the example, for as many memes at the same turns. Where grades lack it is that of
    the graded memes against a random order of them. Both tests are corrected (Holm) for all systems.
    """
    clusters = split.turns.set_index("id")["dialogue"][[*split.relevant]].tolist()
    systems = {**systems, grades.RANDOM: random_system(split, seed)}
    measured, judged = {}, {}
    for name, system in systems.items():
        tops = {turn: system.ranking.get(turn, [])[:DEPTH] for turn in split.relevant}
        measured[name] = grades.measure(tops, split.relevant)
        answered = measured[name][[*map(bool, tops.values())], MEASURES.index("judged@5")]
        judged[name] = 1.0 if split.is_closed or not len(answered) else answered.mean()
    rows, above, drawn = [], [], systems[grades.RANDOM].ranking
    for name, system in systems.items():
        means = dict(zip(MEASURES, measured[name].mean(axis=0), strict=True))
        gaps = (measured[name] - measured[PAPER])[:, grades.NDCG] if name != PAPER else ()
        gap = statistics.cluster_mean(gaps, clusters, statistics.FINE_DIFFERENCE)
        ndcg = measured[name][:, grades.NDCG]
        if min(judged[name], judged[grades.RANDOM]) >= JUDGED:
            as_many = {turn: drawn[turn][: len(system.ranking.get(turn, []))] for turn in split.relevant}
            of_graded, by_chance = ndcg, grades.measure(as_many, split.relevant)[:, grades.NDCG]
        else:
            of_graded, by_chance = of_graded_memes(split, system.ranking)
        above.append(statistics.cluster_mean(of_graded - by_chance, clusters, statistics.FINE_DIFFERENCE))
        rows.append(
            {
                "split": split.name, "system": name, "kind": system.kind, **as_sender(split, system),
                **means, "nDCG@5": statistics.cluster_mean(ndcg, clusters, statistics.MEASURE),
                "judged@5": judged[name], GRADED: of_graded.mean(), BY_CHANCE: by_chance.mean(),
                "minus": PAPER, "difference": gap, "p": gap.p,
                "turns": len(clusters), "dialogues": len(set(clusters)),
            }
        )  # fmt: skip
    tests = (statistics.holm(p) for p in ([row["p"] for row in rows], [gap.p for gap in above]))
    for row, gap, p, by_chance in zip(rows, above, *tests, strict=True):
        is_above = "yes" if by_chance < 0.05 and gap.value > 0 else "not shown"
        row |= {"above chance": "–" if np.isnan(by_chance) else is_above, "p Holm": p}
        if min(judged[row["system"]], judged[PAPER]) < JUDGED:
            nothing = replace(statistics.EMPTY, kind=statistics.FINE_DIFFERENCE)
            row |= {"difference": nothing, "p": np.nan, "p Holm": np.nan}
    rows.sort(key=lambda row: (np.isnan(row[NET].value), -row[NET].value, -row[GRADED]))
    return pd.DataFrame(rows)


def ndcg_told(row: Mapping[str, Any]) -> str:
    """nDCG@5 of a row of the leaderboard as it is shown: without enough grades that of graded memes alone."""
    return f"{row['nDCG@5']}" if row["judged@5"] >= JUDGED else f"{row[GRADED]:.3f} of graded"


def missing(split: Benchmark, ranking: Ranking) -> list[tuple[str, str]]:
    """Turn and meme of what nobody graded among the first five of each turn, all first memes first."""
    tops = [(turn, ranking.get(turn, [])[: grades.DEPTH]) for turn in split.scores.index]
    rows = [(rank, turn, meme) for turn, memes in tops for rank, meme in enumerate(memes)]
    is_missing = split.scores.isna()
    return [(turn, meme) for _, turn, meme in sorted(rows, key=lambda r: r[0]) if is_missing.at[turn, meme]]


def score(
    benchmarks: Sequence[Benchmark],
    run: Run,
    entries: Sequence[str] = (),
    name: str = "",
    given: Path | None = None,
) -> str:
    """Score the package's systems and `entries` on every split; the best of each as text.

    Writes `tables/leaderboard.*` and `leaderboard.json`, which page and READMEs quote, into the report of
    `run`, and for each entry a page on which the memes that nobody graded can be graded. `name` is shown in
    the place of an entry's file name; a user's table of grades (`given`) adds what the splits lack.
    """
    benchmarks = with_grades(benchmarks, given) if given else benchmarks
    known = {turn for split in benchmarks for turn in split.turns["id"]}
    tables, text = [], []
    for split in benchmarks:
        if not split.relevant:
            continue
        systems, notes = with_saved_systems(package_systems(split, run), split, run), []
        for path in (Path(entry).expanduser() for entry in entries):
            called = name or Path(path.name.removesuffix(".gz")).stem
            ranking = rank_by_entry(path, split, known)
            if called in (*systems, grades.RANDOM):
                raise BenchmarkError(f"entry {path.name}: a system is called {called}; give another NAME=")
            if ranking is None:
                continue
            systems[called] = System("function" if path.suffix == ".py" else "file", ranking)
            if pairs := missing(split, ranking):
                page = write_page(run, re.sub(r"[^\w-]+", "_", f"grade_{called}_{split.name}"), split, pairs)
                notes.append(
                    f"{called}: {len(pairs):,} memes among its first five have no grade. Grade them by key on"
                    f" {page}, and add GRADES=FILE, the table that the page gives."
                )
        tables.append(table(split, systems, run.profile.seed))
        shown = first(tables[-1].to_dict("records"), 12)
        rows = pd.DataFrame([{**row, "nDCG@5": ndcg_told(row)} for row in shown])
        purpose = f" ({PURPOSES[split.name]})" if split.name in PURPOSES else ""
        head = f"{split.name}{purpose}: {len(split.relevant):,} turns, {len(split.memes):,} memes"
        text += [f"{head}\n{files.markdown(rows[[*SHOWN]].round(3))}", *notes]
    if not tables:
        raise BenchmarkError("no leaderboard: no turn has a graded meme that fits")
    leaderboard = pd.concat(tables, ignore_index=True)
    run.save_tables(leaderboard=leaderboard)
    files.write_json(run.report / FILE, {"rows": leaderboard}, statistics.as_json)
    text.append(LEGEND)
    return "\n".join([*text, f"written: {run.report / 'tables' / 'leaderboard.csv'}"])


def load(folder: Path) -> list[dict[str, Any]]:
    """Rows of the `leaderboard.json` in a folder; none without it, nor of one with the columns of old."""
    if not (file := folder / FILE).is_file():
        return []
    return [row for row in statistics.read_tables(file)["rows"] if NET in row]


def first(rows: Sequence[Mapping[str, Any]], n: int) -> list[Mapping[str, Any]]:
    """The first `n` rows, and entries, the paper's score and random wherever they stand."""
    always = (PAPER, grades.RANDOM)
    return [r for place, r in enumerate(rows) if place < n or r["system"] in always or r["kind"] != "package"]


def with_grades(benchmarks: Sequence[Benchmark], path: Path) -> list[Benchmark]:
    """The same with a user's grades of pairs that nobody had graded (`grades.read_grades`)."""
    turns = pd.concat([split.turns for split in benchmarks])
    ids = dict(zip(zip(turns["dialogue"], turns["turn"], strict=True), turns["id"], strict=True))
    memes = {meme for split in benchmarks for meme in split.memes["id"]}
    given = grades.mean_grades(grades.read_grades(path, ids, memes))
    rows = [(ids[key], m, grades.relevance(mean)) for key, of in given.items() for m, mean in of.items()]
    out, added = [], 0
    for split in benchmarks:
        known = set(zip(split.judgements["query-id"], split.judgements["corpus-id"], strict=True))
        mine = {*split.turns["id"]}
        new = _judgements([(*row, "user") for row in rows if row[0] in mine and row[:2] not in known])
        added += len(new)
        out.append(replace(split, judgements=pd.concat([split.judgements, new], ignore_index=True)))
    print(f"{path.name}: {added} graded pairs are new; {len(rows) - added} had grades")
    return out


def score_run(run: Run, entries: Sequence[str] = (), name: str = "", given: Path | None = None) -> str:
    """The leaderboard of a run's grades, to which a user's table of grades (`given`) adds what they lack."""
    built = [build(split) for split in splits_of_run(run) if split.truth.grades]
    if given and not built:
        return score([build(next(splits_of_run(run, given)))], run, entries, name)
    if not built:
        raise BenchmarkError(
            f"run {run.name} has no grades, so no benchmark: GRADES=grades.csv names a file with the columns "
            f"{', '.join(grades.COLUMNS)}; `make grading-page` makes a page that writes one"
        )
    return score(built, run, entries, name, given)


# --- Pages on which memes are graded


def grading_page(run: Run) -> str:
    """Write a page to grade what a run sends, and memes to compare it with; the line that says where.

    Its table is what `make fit-placement GRADES=` and `make leaderboard GRADES=` take. At each turn it shows
    the memes that were placed, the first `POOLED` of the paper's score and as many at random, in an order
    drawn by seed: all that one turn has together, and first one turn of every dialogue.
    """
    split = build(replace(next(splits_of_run(run)), truth=grades.NONE))
    pools = [package_systems(split, run)[PAPER], random_system(split, run.profile.seed)]
    at: dict[str, set[str]] = {
        turn: {meme for pool in pools for meme in pool.ranking.get(turn, [])[:POOLED]}
        for turn in split.turns["id"]
    }
    ids = dict(zip(zip(split.turns["dialogue"], split.turns["turn"], strict=True), at, strict=True))
    for placed in run.load(Placement):
        if (turn := ids.get((placed.dialogue_id, placed.turn))) is not None:
            at[turn].add(placed.meme_id)
    rng = statistics.rng(run.profile.seed, "grading page")
    drawn = split.turns.sample(frac=1, random_state=rng)
    drawn = drawn.assign(place=drawn.groupby("dialogue").cumcount()).sort_values("place", kind="stable")
    pairs = [(turn, meme) for turn in drawn["id"] for meme in rng.permutation(sorted(at[turn])).tolist()]
    page = write_page(run, "grade", split, pairs)
    return f"{len(pairs):,} memes at {len(at):,} turns, to grade by key: {page}"


def write_page(run: Run, name: str, split: Benchmark, pairs: Sequence[tuple[str, str]]) -> Path:
    """Write a page to grade memes at turns; memes that the run has no picture of are shown in words."""
    try:
        library, folder = run.memes(), run.read("memes.parquet").parent
    except runs.StageMissing:
        library, folder = {}, run.folder
    kept = {meme: folder / library[meme].file for meme in {meme for _, meme in pairs} if meme in library}
    urls = {meme: pictures.thumbnail(path, 280) for meme, path in kept.items()}
    turns, memes = ({row["id"]: row for row in t.to_dict("records")} for t in (split.turns, split.memes))
    target = run.report / f"{name}.html"
    people.write_grading_page(target, [(turns[turn], memes[meme]) for turn, meme in pairs], urls)
    return target


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
        asked = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(asked, dict):
            asked = [
                {"dialogue": name, "name": f"{name}/{place + 1}", "answer": sent,
                 "history": [*messages[:place], {**sent, "img_id": None}]}
                for name, messages in asked.items() for place, sent in enumerate(messages) if place
            ]  # fmt: skip
        for number, entry in enumerate(asked, start=1):
            if meme := _number(entry["answer"].get("img_id")):
                name, history = entry.get("name", number), entry["history"]
                turns = Conversation(str(name), tuple(map(spoken, history))).spoken
                lines = tuple((turn.speaker, turn.text) for turn in turns[-HISTORY_TURNS:])
                context = Context(f"{path.stem}/{name}", len(turns) + 1, lines, _speaker(entry["answer"]))
                # Questions of a task file that begin with the same message come from one dialogue.
                dialogue = entry.get("dialogue") or json.dumps(history[0], sort_keys=True)
                questions.append((dialogue, context, meme))
        if not questions:
            raise ValueError("it asks for no memes")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BenchmarkError(f"{path} is not a file of MOD: {type(error).__name__}: {error}") from error
    return questions


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
        except ChatError as error:
            notes.append(f"{file.stem}: the paper's score is left out; {error}")
            summaries = [None] * len(questions)
        turns, judged = [], []
        for (dialogue, context, meme), summary in zip(questions, summaries, strict=True):
            turns.append(_turn(dialogue, context, summary))
            # A meme that the library lacks keeps its number: it is missed.
            judged.append((turns[-1]["id"], ids.get(meme, meme), SENT, "sent"))
        splits.append(Benchmark(file.stem, pd.DataFrame(turns), corpus, _judgements(judged)))
    if not splits:
        raise BenchmarkError("; ".join(notes) or f"{path} holds no .json file")
    write(asking.folder / "benchmark", splits)
    # What is measured is the run's library, under the run's embedder and weights.
    target = replace(run, name=asking.name, folder=asking.folder, report=asking.report)
    return "\n".join([score(splits, target, entries, name), *notes])
