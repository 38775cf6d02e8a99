"""Stage 06 over a run: its records read back, and the numbers, figures and release made of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from PIL import Image

from memecmd_utils import annotation, files, schemas
from memecmd_utils.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, canvas, style
from memecmd_utils.evaluation import benchmark, ground_truth, leaderboard, ratings, tables
from memecmd_utils.files import paths
from memecmd_utils.llm import authored
from memecmd_utils.release import write
from memecmd_utils.report import landing
from memecmd_utils.runs import Run
from memecmd_utils.studies import collected


@dataclass(frozen=True)
class Records:
    """The records of a run, of all stages before 06; of unsafe memes only what a release names."""

    memes: list[schemas.Meme]
    annotations: list[schemas.Annotation]
    dialogues: list[schemas.Dialogue]
    placements: list[schemas.Placement]
    ratings: list[schemas.Rating]
    consistency: list[schemas.Consistency]
    truth: ground_truth.GroundTruth = ground_truth.NONE
    candidates: Sequence[schemas.Candidate] = ()
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The calibrated gates of both halves, as `placement.calibrated_gates` describes them."""
    title_glosses: Mapping[str, str] = field(default_factory=dict)
    """Dialogue id to its title in English, where the records hold one."""

    @cached_property
    def grades(self) -> dict[str, tables.Values]:
        """Mean grades of placed memes by strategy, where the run has ground truth."""
        return ground_truth.grades_of_placed(self.placements, self.truth)


def load_records(run: Run) -> Records:
    """Read the records of a run, each checked against its schema."""
    memes = run.load(schemas.Meme)
    annotations = run.load(schemas.Annotation)
    memes, annotations = annotation.releasable(memes, annotations)
    dialogues = run.load(schemas.Dialogue)
    return Records(
        memes=memes,
        annotations=annotations,
        dialogues=dialogues,
        placements=run.load(schemas.Placement),
        ratings=run.load(schemas.Rating),
        consistency=run.load(schemas.Consistency),
        truth=ground_truth.truth_of_run(run.profile, dialogues, memes),
        candidates=run.load(schemas.Candidate),
        gates=load_json(run, "gates.json"),
        title_glosses=title_glosses(run, dialogues),
    )


def load_json(run: Run, name: str) -> Any:
    """What an earlier stage wrote that is no record."""
    return json.loads(run.read(name).read_text(encoding="utf-8"))


def title_glosses(run: Run, dialogues: Sequence[schemas.Dialogue]) -> dict[str, str]:
    """English titles by dialogue id. News that is not the example's is not fetched again for its gloss."""
    known: dict[tuple[str, str], str] = {}
    if run.profile.dialogue.news == "example":
        known = {("news", item.news_id): item.gloss for item in authored.load_news()}
    if any(dialogue.kind == "role" for dialogue in dialogues):
        scenarios = run.load(schemas.Scenario)
        known |= {("role", scenario.scenario_id): scenario.gloss for scenario in scenarios}
    found = {d.dialogue_id: known.get((d.kind, d.ref), "") for d in dialogues}
    return {name: gloss for name, gloss in found.items() if gloss}


# --- Numbers


QUOTED = ("claims", "ablation", "threshold", "threshold_minus", "hub_shares")
"""Tables of studies that the page's answers and the READMEs quote."""
CASES = ("lands", "typical", "fails")
"""Dialogues that lessons walk through, named by `data/example/teaching_dialogues.json`."""


def studies_of(run: Run) -> dict[str, Any]:
    """For `numbers.json`: what the page's answers and the READMEs quote of judges and studies."""
    made = collected.load(run)["tables"]
    return {
        "trust": load_json(run, "judge_checks.json")["trust"],
        **{name: made.get(name, []) for name in QUOTED},
        "matters": _hangs_most_on(made.get("claims_what_matters", [])),
    }


def _hangs_most_on(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of every claim the choice that moves it most: the first of its rows, where it moves anything."""
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row["claim"], row)
    return [row for row in first.values() if row["sign"] and row["sign"] > 0]


def write_numbers(run: Run, records: Records) -> dict[str, Any]:
    """Compute and write `numbers.json` and `placements.csv`."""
    found = tables.numbers(
        run.profile, records.memes, records.dialogues, records.placements, records.ratings,
        records.consistency, dict(records.gates), load_json(run, "ground_truth.json"), records.grades,
    )  # fmt: skip
    found |= {"studies": studies_of(run), "teaching": teaching_levels(records)}
    found |= {"landing": landing.digest(landing.load(run))}
    files.write_json(run.report / "numbers.json", found)
    columns = ["dialogue_id", "turn", "speaker", "strategy", "meme_id", "rank", "score"]
    placed = pd.DataFrame([p.model_dump() for p in records.placements], columns=columns)
    files.write_text(run.report / "placements.csv", placed.to_csv(index=False, float_format="%.6f"))
    return found


def teaching_levels(records: Records) -> dict[str, dict[str, Any]]:
    """Of each dialogue that lessons walk through and the run has: its id, the levels of Greedy's memes."""
    names = json.loads((paths.example / "teaching_dialogues.json").read_text(encoding="utf-8"))
    greedy, found = records.grades.get("greedy", {}), {}
    for case in CASES:
        mine = {key: grade for key, grade in greedy.items() if key[0] == names[case]}
        if mine:
            (row,) = tables.frame_rows(tables.levels({"greedy": mine}))
            found[case] = {"dialogue": names[case], **row}
    return found


def write_release(run: Run, records: Records) -> dict[str, int]:
    """Write `release/` below the run's data, with a benchmark where the run has grades.

    Pictures without a licence stay out.
    """
    splits = benchmark.splits_of_run(run, records.dialogues, records.memes, records.annotations)

    def write_benchmark(folder: Path) -> None:
        built = [benchmark.build(split) for split in splits]
        if built:
            benchmark.write(folder / "benchmark", built)
            leaderboard.write_runs(folder / "benchmark" / "runs", built, run, splits)

    return write.write_release(
        run.read("memes.parquet").parent, run.folder / "release", records.dialogues, records.placements,
        records.memes, records.annotations, run.profile, published=published(), run=run.name,
        models=other_models(run, records), marks=records.truth.marks, grades=records.truth.grades,
        further=write_benchmark, further_inputs=benchmark.files_of(splits),
    )  # fmt: skip


def other_models(run: Run, records: Records) -> dict[str, list[str]]:
    """Models that chose and judged memes: no record of the release names them."""
    return {
        "retrieval embedder": [run.embedder_name()],
        "judges": sorted({rating.source for rating in records.ratings}),
        "consistency scorers": sorted({row.source for row in records.consistency}),
    }


def published() -> str:
    """Date of the package's release, from CITATION.cff: a clock would make two equal runs differ."""
    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    return str(citation["date-released"])


# --- Figures 4 and 5, with matplotlib's object API: no pyplot, no global state, the same bytes every time


STRATEGIES = {
    "greedy": (BLUE, "o"),
    "sampling": (GREEN, "s"),
    "random": (ORANGE, "^"),
    "random_same_turns": (PURPLE, "D"),
    "learned": (RED, "P"),
}
"""Colour and marker of each strategy."""


def consistency_bars(frame: pd.DataFrame) -> Figure:
    """Figure 4: mean consistency of each strategy with its 95% interval, and the shuffled-pair baseline.

    Columns as of `tables.consistency_frame`. Points, not bars: the differences are far smaller than the
    distance to zero, and bars that start elsewhere would show false proportions.
    """
    datasets = list(dict.fromkeys(frame["dataset"]))
    present = [name for name in dict.fromkeys(frame["strategy"]) if name != "shuffled"]
    with style():
        fig = canvas(max(5.0, 1.9 * len(datasets) + 2.4), 3.6)
        axes = fig.subplots()
        for place, strategy in enumerate(present):
            label, (colour, marker) = schemas.STRATEGIES[strategy].label, STRATEGIES[strategy]
            rows = frame[frame["strategy"] == strategy].set_index("dataset").reindex(datasets)
            x = np.arange(len(datasets)) + 0.16 * (place - (len(present) - 1) / 2)
            low, high = rows["mean"] - rows["low"], rows["high"] - rows["mean"]
            axes.errorbar(x, rows["mean"], [low, high], fmt=marker, color=colour, capsize=3, label=label)
        label = "Shuffled pairs"
        for row in frame[frame["strategy"] == "shuffled"].itertuples():
            x = datasets.index(row.dataset)
            axes.fill_between([x - 0.4, x + 0.4], row.low, row.high, color=GREY, alpha=0.18, lw=0)
            axes.hlines(row.mean, x - 0.4, x + 0.4, color=GREY, lw=1.2, ls="--", label=label)
            label = "_"  # one entry in the legend
        scored = frame[frame["strategy"] != "shuffled"]
        counts = scored.groupby("dataset")[["n", "dialogues"]].agg(["min", "max"])
        axes.set_xticks(range(len(datasets)), [_dataset_label(name, counts) for name in datasets])
        axes.set_xlim(-0.6, len(datasets) - 0.4)
        axes.set_ylabel("consistency (0-100), mean and 95% interval")
        if datasets:
            fig.legend(loc="outside right upper", fontsize=9)
        else:
            axes.text(0.5, 0.5, "no meme was scored", ha="center", color=GREY, transform=axes.transAxes)
    return fig


def _dataset_label(name: str, counts: pd.DataFrame) -> str:
    if name not in counts.index:
        return name
    n, dialogues = (
        f"{low:,}" if low == high else f"{low:,}-{high:,}"
        for low, high in (counts.loc[name, column] for column in ("n", "dialogues"))
    )
    return f"{name}\nn = {n}\nin {dialogues} dialogues"  # in one line it runs into the next one


def case_pictures(run: Run, records: Records) -> tuple[list[Image.Image], list[str]]:
    """Screenshots of Figure 5 and their labels, in the order a to f, with all turns that Table 2 counts.

    None where no dialogue serves.
    """
    drawn = draw_cases(run, records, tables.case_strategies(run.profile), run.profile.dialogue.n_turns)
    return [picture for picture, _ in drawn], [label for _, label in drawn]


def draw_cases(
    run: Run, records: Records, strategies: Sequence[str], n_turns: int | None = None
) -> list[tuple[Image.Image, str]]:
    """Screenshots of the case dialogues under each of some strategies, with their labels."""
    memes = {meme.meme_id: meme for meme in records.memes}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records.dialogues}
    return [
        (
            ratings.screenshot(run, by_id[name], records.placements, strategy, memes, n_turns)[1],
            f"{name}, {schemas.STRATEGIES[strategy].label}",
        )
        for name in tables.case_dialogues(records.placements, records.dialogues, run.profile)
        for strategy in strategies
    ]


def case_studies(images: Sequence[Image.Image], labels: Sequence[str]) -> Figure:
    """Figure 5: chat screenshots in two rows of three, each with its label below the letter."""
    columns = min(3, len(images))
    rows = -(-len(images) // columns)
    tallest = max(image.height / image.width for image in images)
    with style():
        # So wide that the smallest signs of a screenshot, 12 of its 390 pixels, are 9 pixels on a page.
        fig = canvas(3.4 * columns, rows * (3.3 * tallest + 0.45))
        grid = fig.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for letter, axes, image, label in zip("abcdef", grid.flat, images, labels, strict=False):
            axes.imshow(np.asarray(image.convert("RGB")), interpolation="antialiased")
            axes.set_anchor("N")
            axes.set_title(f"({letter}) {label}", fontsize=9)
    return fig
