"""What learned placement needs: its parts, its features, its graded dialogues, and memes it never saw.

All figures are out of fold on the example, at the turns that have a fitting meme. Fitting them again takes
some minutes, so `make study-placement` writes them into a tracked file, which notebook 04b shows.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from memecmd_utils import files, statistics
from memecmd_utils.evaluation import benchmark, landing, learning, rankings
from memecmd_utils.evaluation.ground_truth import RELEVANT
from memecmd_utils.evaluation.landing import Graded
from memecmd_utils.evaluation.learning import Corpus
from memecmd_utils.evaluation.tables import frame_rows
from memecmd_utils.files import paths
from memecmd_utils.retrieval import learned, scoring
from memecmd_utils.retrieval.learned import (
    MEME_TEXTS,
    TURN_TEXTS,
    LearnedIndex,
    LearnedPlacement,
    PlacementModel,
    WantedGate,
)
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation, Dialogue, Meme

FILE = "placement_study.json"
SIZES = (5, 10, 20, 30)
"""Dialogues of the learning curve; the last point has all of the other folds."""
GROUPS = 5
"""Groups into which memes are dealt for the fold by meme."""
MEASURES = ("R@1", "nDCG@5", "judged@5")


def write_study(run: Run) -> dict[str, pd.DataFrame]:
    """Fit everything again on a run's graded turns and write the tracked file; the tables by name."""
    splits = benchmark.splits_of_run(run, run.load(Dialogue), run.load(Meme), run.load(Annotation))
    if not splits:
        raise files.StageOutputError(f"run {run.name} has no grades to study learned placement on")
    graded = landing.predict_run_split(splits[0], run)
    # Models learn from the grades of the first pool; all grades count in what is measured.
    pool = learning.mean_gains(splits[0].grades[benchmark.POOL])
    keys = [query.key for query in graded.corpus.asked]
    corpus = replace(graded.corpus, gains=rankings.gains_of(keys, graded.corpus.meme_ids, pool))
    model = learned.load_placement(paths.example / learned.FILE)
    found = study(graded, corpus, model, run.profile.seed)
    files.write_json(paths.example / FILE, {name: frame_rows(table) for name, table in found.items()})
    return found


def load_placement_study(path: Path | None = None) -> dict[str, pd.DataFrame]:
    """The tables of the tracked file by name: forms, ablation, curve, new memes."""
    rows = json.loads((path or paths.example / FILE).read_text(encoding="utf-8"))
    return {name: pd.DataFrame(table) for name, table in rows.items()}


def study(graded: Graded, corpus: Corpus, placement: LearnedPlacement, seed: int) -> dict[str, pd.DataFrame]:
    """Every variant, measured on `graded`; what is fitted again is fitted on `corpus`."""
    paper, shipped = {learning.PAPER: graded.paper}, graded.found.scores
    forms = dict(forms_of(corpus, placement))
    groups = statistics.rng(seed, "groups of memes").permutation(len(corpus.meme_ids)) % GROUPS
    new = learning.predict_new_memes(corpus, groups)
    curve = {f"{size} dialogues": scores for size, scores in learning_curve(corpus, seed)}
    return {
        "forms": measured(
            graded, {"linear": forms["linear"], "trees": forms["trees"], "both": shipped, **paper}
        ),
        "ablation": measured(graded, {"all 72": forms["linear"], **dict(ablations(corpus))}),
        "curve": measured(graded, {**paper, **curve, "all": shipped}),
        "new memes": measured(graded, {**paper, "known memes": shipped, "new memes": new}),
    }


def measured(graded: Graded, systems: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Measures with intervals, a row a system, and the difference in nDCG@5 to the first one."""
    corpus, rows = graded.corpus, []
    at = (np.nan_to_num(corpus.gains) >= RELEVANT).any(axis=1)
    names = np.array(corpus.dialogues)[at].tolist()
    columns = [rankings.COLUMNS.index(measure) for measure in MEASURES]
    base = None
    for system, scores in systems.items():
        order = scoring.order(scores[at], corpus.meme_ids)
        values = rankings.per_turn(order, corpus.gains[at])[:, columns]
        base = values if base is None else base
        gap = statistics.cluster_mean(values[:, 1] - base[:, 1], names)
        row = statistics.mean_columns(MEASURES, values, names, statistics.SHARE)
        rows.append({"system": system, **row, **gap.columns("difference"), "turns": len(names)})
    return pd.DataFrame(rows)


def forms_of(corpus: Corpus, placement: LearnedPlacement) -> Iterator[tuple[str, np.ndarray]]:
    """Scores of the linear form and of trees by themselves, each dialogue by models that did not see it."""
    fold = np.array([placement.fold_of[name] for name in corpus.dialogues])
    linear, trees = np.empty(corpus.gains.shape), np.empty(corpus.gains.shape)
    for number, model in enumerate(placement.folds):
        cosines = corpus.examples.cosines[fold == number]
        linear[fold == number] = learning.score(model.ranker, cosines)
        pairs = cosines.reshape(-1, model.ranker.weights.size)
        trees[fold == number] = model.trees.predict(pairs).reshape(len(cosines), -1)
    yield from {"linear": linear, "trees": trees}.items()


def ablations(corpus: Corpus) -> Iterator[tuple[str, np.ndarray]]:
    """Scores of the linear form without one text at a time, and with few: settings are those of all 72."""
    everything = np.ones(corpus.examples.cosines.shape[2:], dtype=bool)
    variants = {}
    for axis, texts, side in ((1, TURN_TEXTS, "turn"), (2, MEME_TEXTS, "meme")):
        for place, text in enumerate(texts):
            kept = everything.copy()
            np.moveaxis(kept, axis, 0)[place] = False
            variants[f"{side} without {text}"] = kept
    for place, embedder in enumerate(("first", "second")):
        kept = np.zeros_like(everything)
        kept[place] = True
        variants[f"{embedder} embedder alone"] = kept
    papers = np.zeros_like(everything)
    papers[0][[0, 0, 1, 2], [0, 1, 2, 3]] = True
    variants["the paper's four cosines, weights learned"] = papers
    fold = learning.deal(corpus.dialogues, corpus.kinds, learning.FOLDS)
    found = {name: np.empty(corpus.gains.shape) for name in variants}
    for number in tqdm(range(learning.FOLDS), desc="ablation", unit="fold"):
        rest, here = corpus.examples.rows(fold != number), corpus.examples.rows(fold == number)
        choice = learning.choose(rest)
        sums = learning.sum_up(rest, choice.ungraded)
        for name, kept in variants.items():
            mask = kept.ravel()
            cut = learning.Sums(sums.squares * mask * mask[:, None], sums.products * mask)
            ranker = learning.solve(cut, choice.penalty, choice.rank)
            found[name][fold == number] = learning.score(ranker, here.cosines)
    yield from found.items()


def learning_curve(corpus: Corpus, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Scores of models that learned from `SIZES` dialogues of the other folds, each set within the next."""
    fold, names = learning.deal(corpus.dialogues, corpus.kinds, learning.FOLDS), np.array(corpus.dialogues)
    for size in tqdm(SIZES, desc="learning curve", unit="size"):
        scores = np.empty(corpus.gains.shape)
        for number in range(learning.FOLDS):
            others = sorted(set(names[fold != number]))
            drawn = statistics.rng(seed, "learning curve", number).permutation(others)[:size]
            rest = corpus.examples.rows(np.isin(names, drawn))
            trees, ranker = learning.fit_trees(rest), learning.fit_ranker(rest)[0]
            model = PlacementModel((), ranker, trees, WantedGate(np.empty(0), 0.0), np.empty((2, 0)))
            index = LearnedIndex(model, corpus.meme_ids, corpus.memes)
            scores[fold == number] = index.scores([turns[fold == number] for turns in corpus.turns])
        yield size, scores
