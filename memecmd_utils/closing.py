"""Stage 06 over a run: reads everything back, writes numbers, page and release."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from markupsafe import Markup, escape
from PIL import Image

from memecmd_utils import (
    dataset_card,
    embedding,
    evaluation_run,
    ground_truth,
    ground_truth_run,
    paths,
    release,
    report,
    results,
    run_summary,
    schemas,
    storage,
    tables,
)
from memecmd_utils.profiles import Profile
from memecmd_utils.runs import Run

CASE_TURNS = 10
"""Turns that Figure 5 shows of each case; Table 2 counts all of them."""
PAPER_STRATEGIES = ("greedy", "sampling", "random")
STRATEGY_WORDS = {"greedy": "Greedy", "sampling": "Sampling", "random": "Random"}


@dataclass(frozen=True)
class Records:
    """Everything that a run wrote before stage 06."""

    memes: list[schemas.Meme]
    annotations: list[schemas.Annotation]
    dialogues: list[schemas.Dialogue]
    placements: list[schemas.Placement]
    ratings: list[schemas.Rating]
    consistency: list[schemas.Consistency]
    truth: ground_truth.GroundTruth = ground_truth.NONE

    @cached_property
    def grades(self) -> dict[str, tables.Values]:
        """Mean grades of placed memes by strategy, where the run has ground truth."""
        return ground_truth_run.grades_of_placed(self.placements, self.truth)


def load(run: Run) -> Records:
    """Read the records of a run, each checked against its schema."""
    memes = storage.read_parquet(run.read("memes.parquet"), schemas.Meme)
    dialogues = storage.read_jsonl(run.read("dialogues.jsonl"), schemas.Dialogue)
    return Records(
        memes=memes,
        annotations=storage.read_parquet(run.read("annotations.parquet"), schemas.Annotation),
        dialogues=dialogues,
        placements=storage.read_parquet(run.read("placements.parquet"), schemas.Placement),
        ratings=storage.read_parquet(run.read("ratings.parquet"), schemas.Rating),
        consistency=storage.read_parquet(run.read("consistency.parquet"), schemas.Consistency),
        truth=ground_truth.of_run(run.profile, dialogues, memes),
    )


def case_pictures(run: Run, records: Records) -> tuple[list[Image.Image], list[str]]:
    """Screenshots of Figure 5 and their labels, in the order a to f."""
    memes = {meme.meme_id: meme for meme in records.memes}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records.dialogues}
    images, labels = [], []
    for name in tables.case_dialogues(records.placements, records.dialogues):
        for strategy in PAPER_STRATEGIES:
            _, picture = evaluation_run.screenshot(
                run, by_id[name], records.placements, strategy, memes, CASE_TURNS
            )
            images.append(picture)
            labels.append(f"{name}, {STRATEGY_WORDS[strategy]}")
    return images, labels


def write_numbers(run: Run, records: Records) -> dict[str, Any]:
    """Compute and write `numbers.json` and `placements.csv`."""
    gates = json.loads(run.read("gates.json").read_text(encoding="utf-8"))
    found = results.numbers(
        run.profile, records.memes, records.dialogues, records.placements, records.ratings,
        records.consistency, gates, ground_truth_run.load_found(run), records.grades,
    )  # fmt: skip
    storage.write_json(run.report / "numbers.json", found)
    columns = ["dialogue_id", "turn", "speaker", "strategy", "meme_id", "rank", "score"]
    placed = pd.DataFrame([p.model_dump() for p in records.placements], columns=columns)
    storage.write_text(run.report / "placements.csv", placed.to_csv(index=False, float_format="%.6f"))
    return found


def write_release(run: Run, records: Records) -> dict[str, int]:
    """Write `release/` below the run's data; pictures without a licence stay out."""
    return release.write_release(
        run.read("memes.parquet").parent, run.folder / "release", records.dialogues, records.placements,
        records.memes, records.annotations, run.profile, published=published(), run=run.name,
        models=other_models(run, records), marks=records.truth.marks, grades=records.truth.grades,
    )  # fmt: skip


def other_models(run: Run, records: Records) -> dict[str, list[str]]:
    """Models that chose and judged memes: no record of the release names them."""
    profile = run.profile
    return {
        "retrieval embedder": [embedding.make_embedder(profile.embedder, profile.endpoints.embedder).name],
        "judges": sorted({rating.source for rating in records.ratings}),
        "consistency scorers": sorted({row.source for row in records.consistency}),
    }


def published() -> str:
    """Date of the package's release, from CITATION.cff: a clock would make two equal runs differ."""
    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    return str(citation["date-released"])


def rich(frame: pd.DataFrame) -> Markup:
    """A table for the page: everything escaped, then **bold** and <u>underline</u> of ours put back."""

    def cell(value: object) -> str:
        if isinstance(value, float):
            return "–" if pd.isna(value) else f"{value:.3f}"
        text = str(escape(value))
        text = re.sub(r"\*\*([\d.]+)\*\*", r"<b>\1</b>", text)
        return re.sub(r"&lt;u&gt;([\d.]+)&lt;/u&gt;", r"<u>\1</u>", text)

    head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{cell(v)}</td>" for v in row) + "</tr>"
        for row in frame.itertuples(index=False)
    )
    return Markup(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")


def write_page(run: Run, records: Records, numbers: dict[str, Any]) -> Path:
    """Write `index.html` of the report."""
    profile = run.profile
    table_1 = tables.table_1(records.ratings, records.consistency, records.dialogues, profile)
    table_2 = tables.table_2(
        tables.case_dialogues(records.placements, records.dialogues),
        records.ratings,
        records.consistency,
        profile,
    )
    scorer = records.consistency[0].scorer if records.consistency else "none"
    judged = ", ".join(numbers["ratings"]["sources"]) or "none"
    shown = [
        *truth_tables(numbers["ground_truth"], profile),
        (
            "Table 1: this run",
            rich(tables.table_1_printed(table_1).set_index("Dataset").T.reset_index(names="")),
            f"Judge: {judged}. Consistency: {scorer}. Mean [95 % interval, dialogues resampled] (n); arrows: "
            "difference to Random. Best bold, second underlined.",
        ),
        (
            "Choice and timing effects",
            rich(
                tables.effects(
                    records.ratings, records.consistency, records.dialogues, profile, records.grades
                )
            ),
            results.judge_verdict(numbers),
        ),
        (
            "Table 1: the paper's own cells",
            rich(tables.paper_table_1()),
            "Printed differences, and the same recomputed.",
        ),
        (
            "Table 2: case studies",
            rich(table_2),
            "The six chats of Figure 5, chosen without a look at the scores.",
        ),
        (
            "Meme use",
            rich(tables.meme_use(records.placements, records.dialogues)),
            "Rates over turns 2 to T.",
        ),
        (
            "What was asked, and what became of it",
            pd.DataFrame(run_summary.outcomes(run.folder)),
            "This time; a question that an earlier run paid for is replayed. Outcomes other than accepted "
            "and violations are no answers: they are counted here and never scored as zero.",
        ),
    ]
    figures_dir = run.report / "figures"
    pictures = [
        (figures_dir / "fig2_keywords.png", "Figure 2. Keywords of the four annotated dimensions."),
        (
            figures_dir / "fig3_scores.png",
            "Figure 3. Retrieval scores of all memes at all turns; best of each turn.",
        ),
        (figures_dir / "fig4_consistency.png", f"Figure 4. Consistency ({scorer}) with 95 % intervals."),
        (
            figures_dir / "fig5_cases.png",
            f"Figure 5. First {CASE_TURNS} turns of two dialogues under Greedy, Sampling and Random.",
        ),
    ]
    chats = whole_chats(run, records)
    if chats:
        figures_dir.mkdir(parents=True, exist_ok=True)
        chats[0][0].save(figures_dir / "chat.png")
    notebooks = [(path.stem, path) for path in sorted(run.report.glob("0*.html"))]
    return report.write_index(
        run.report,
        run.name,
        profile,
        shown,
        [(path, caption) for path, caption in pictures if path.is_file()],
        results.headline(numbers),
        chats,
        notebooks,
        sources=dataset_card.provenance(
            records.dialogues,
            records.placements,
            records.memes,
            records.annotations,
            records.truth.marks,
            records.truth.grades,
        ),
        dataset_dir=run.folder / "release",
        sections=sections(records, numbers),
    )


def truth_tables(
    found: dict[str, list[dict[str, Any]]], profile: Profile
) -> list[tuple[str, pd.DataFrame, str]]:
    """The tables of the ground truth; none where the run has no ground truth."""
    if not found.get("retrieval"):
        return []
    timing = pd.DataFrame(found["timing"])
    kappas = sorted(column for column in timing.columns if column.startswith("kappa"))
    return [
        (
            "Which system finds the memes that fit?",
            ground_truth_run.short_table(found, profile),
            "Turns with a relevant meme (mean grade 1 or more of two graders). R@K: a relevant meme among "
            "the top K. judged@5: share of the top 5 that was graded. Differences with 95 % intervals, "
            "dialogues resampled, against the random ranking that was graded. Where judged@5 is below 1 "
            "the system did not feed the pool: its figures are lower bounds, save bpref, which is too kind "
            "to it. Markers and graders are sessions of a large language model, not people.",
        ),
        (
            "Grades of the placed memes",
            pd.DataFrame(found.get("placed", []), columns=["strategy", "memes", "mean grade"]),
            "0 does not fit, 1 one could send it, 2 it lands; mean of two graders. Empty unless all are.",
        ),
        (
            "Model-model agreement",
            pd.DataFrame(found["agreement"], columns=list(ground_truth.AGREEMENT)),
            "Kappa with 95 % interval, dialogues resampled; quadratic weights for grades; share of the same.",
        ),
        (
            "When one would send",
            timing.reindex(columns=[*ground_truth.TIMING, *kappas]),
            "A marked rate is what two sessions of a model would do; it is no rate of people.",
        ),
    ]


def whole_chats(run: Run, records: Records) -> list[tuple[Image.Image, str]]:
    """The case dialogues at full length with Greedy's memes."""
    memes = {meme.meme_id: meme for meme in records.memes}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records.dialogues}
    return [
        (
            evaluation_run.screenshot(run, by_id[name], records.placements, "greedy", memes)[1],
            f"{name}, Greedy",
        )
        for name in tables.case_dialogues(records.placements, records.dialogues)
    ]


def sections(records: Records, numbers: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Plain words above the tables: what the judge is worth, what was left unscored."""
    counts = numbers["ratings"]
    unscored = f"{counts['unscored']} of {counts['total']} ratings are unscored"
    broken = numbers["dialogues"]["turns_with_violations"]
    return [
        ("What the judge is worth", results.judge_verdict(numbers)),
        (
            "What could not be scored",
            f"{unscored}; {numbers['dialogues']['summaries_unscored']} summaries and "
            f"{sum(bool(a.unscored) for a in records.annotations)} annotations are unscored; {broken} turns "
            "still break a rule of the prompts.",
        ),
    ]
