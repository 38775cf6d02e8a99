"""Stage 06 over a run: reads everything back, writes numbers, page and release."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from memecmd_utils import (
    answers,
    chat_browser,
    dataset_card,
    evaluation_run,
    ground_truth_run,
    html_pages,
    library_sheet,
    page_tables,
    paths,
    release,
    report,
    results,
    schemas,
    storage,
    study_pages,
    tables,
)
from memecmd_utils.run_records import Records as Records
from memecmd_utils.run_records import load as load
from memecmd_utils.runs import Run


def case_pictures(run: Run, records: Records) -> tuple[list[Image.Image], list[str]]:
    """Screenshots of Figure 5 and their labels, in the order a to f, with all turns that Table 2 counts.

    None where no dialogue serves.
    """
    memes = {meme.meme_id: meme for meme in records.memes}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records.dialogues}
    images, labels = [], []
    for name in tables.case_dialogues(records.placements, records.dialogues, run.profile):
        for strategy in tables.case_strategies(run.profile):
            _, picture = evaluation_run.screenshot(
                run, by_id[name], records.placements, strategy, memes, run.profile.n_turns
            )
            images.append(picture)
            labels.append(f"{name}, {schemas.STRATEGIES[strategy].label}")
    return images, labels


def write_numbers(run: Run, records: Records) -> dict[str, Any]:
    """Compute and write `numbers.json` and `placements.csv`."""
    found = results.numbers(
        run.profile, records.memes, records.dialogues, records.placements, records.ratings,
        records.consistency, dict(records.gates), ground_truth_run.load_found(run), records.grades,
    )  # fmt: skip
    found |= answers.of_run(run, found["effects"])
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
    return {
        "retrieval embedder": [run.embedder_name()],
        "judges": sorted({rating.source for rating in records.ratings}),
        "consistency scorers": sorted({row.source for row in records.consistency}),
    }


def published() -> str:
    """Date of the package's release, from CITATION.cff: a clock would make two equal runs differ."""
    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    return str(citation["date-released"])


def write_page(run: Run, records: Records, numbers: Mapping[str, Any]) -> Path:
    """Write `index.html` of the report; `numbers` are those of `write_numbers`."""
    figures_dir = run.report / "figures"
    pictures = [
        (figures_dir / "fig2_keywords.png", "Figure 2. Keywords of the four annotated dimensions."),
        (
            figures_dir / "fig3_scores.png",
            "Figure 3. Retrieval scores of all memes at all turns, and the best of each turn: above in "
            "news-based dialogues, as in the paper's Figure 3, below in role-based ones.",
        ),
        (
            figures_dir / "fig4_consistency.png",
            f"Figure 4. Consistency ({page_tables.scorer(records)}) with 95 % intervals.",
        ),
        (
            figures_dir / "fig5_cases.png",
            f"Figure 5. Dialogues under {_cases(run)}; Table 2 has the scores of each.",
        ),
    ]
    chat_images = whole_chats(run, records)
    if chat_images:
        figures_dir.mkdir(parents=True, exist_ok=True)
        chat_images[0][0].save(figures_dir / "chat.png")
    chats, library = browser(run, records)
    return report.write_index(
        run.report,
        run.name,
        run.profile,
        page_tables.groups(run, records, numbers, study_pages.groups(run)),
        [(path, caption) for path, caption in pictures if path.is_file()],
        results.headline(numbers),
        chat_images,
        [(path.stem, path) for path in sorted(run.report.glob("0*.html"))],
        sources=dataset_card.provenance(
            records.dialogues,
            records.placements,
            records.memes,
            records.annotations,
            records.truth.marks,
            records.truth.grades,
        ),
        dataset_dir=run.folder / "release",
        sections=sections(run, records, numbers),
        answers=study_pages.answers(run, numbers),
        chats=chats,
        library=library,
    )


def browser(run: Run, records: Records) -> tuple[chat_browser.Chats | None, library_sheet.Sheet]:
    """The chats that the page can show, None where there is no dialogue, and the library with their memes."""
    files = evaluation_run.meme_files(run, {meme.meme_id: meme for meme in records.memes})
    picture = cache(lambda meme_id: html_pages.thumbnail(files[meme_id], library_sheet.SIDE))
    chats = None
    if records.dialogues:
        chats = chat_browser.build(records, run.profile, lambda meme_id: len(picture(meme_id)))
    return chats, library_sheet.sheet(
        records.memes, records.annotations, records.placements, picture, chats.memes if chats else ()
    )


def _cases(run: Run) -> str:
    """The strategies of Figure 5 in words."""
    *most, last = [schemas.STRATEGIES[name].label for name in tables.case_strategies(run.profile)] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def whole_chats(run: Run, records: Records) -> list[tuple[Image.Image, str]]:
    """The case dialogues at full length, with Greedy's memes where the run has them, else with the next's."""
    first = next(iter(tables.case_strategies(run.profile)), "")
    memes = {meme.meme_id: meme for meme in records.memes}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records.dialogues}
    return [
        (
            evaluation_run.screenshot(run, by_id[name], records.placements, first, memes)[1],
            f"{name}, {schemas.STRATEGIES[first].label}",
        )
        for name in tables.case_dialogues(records.placements, records.dialogues, run.profile)
    ]


def sections(run: Run, records: Records, numbers: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Plain words above the tables: what the judge is worth, what was left unscored."""
    counts = numbers["ratings"]
    unscored = f"{counts['unscored']} of {counts['total']} ratings are unscored"
    broken = numbers["dialogues"]["turns_with_violations"]
    not_by_hand = []
    if borrowed := run.borrowed:
        theirs = f"What {', '.join(borrowed)} write is that of the finished run {run.fallback.name}"
        not_by_hand = [("What was not made by hand", f"{theirs}, with its settings.")]
    return [
        *not_by_hand,
        ("What the judge is worth", results.judge_verdict(numbers)),
        (
            "What could not be scored",
            f"{unscored}; {numbers['dialogues']['summaries_unscored']} summaries and "
            f"{sum(bool(a.unscored) for a in records.annotations)} annotations are unscored; {broken} turns "
            f"still break a rule of the prompts. {run.not_recorded()}".strip(),
        ),
    ]
