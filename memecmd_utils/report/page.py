"""The page of a run: one HTML file that holds its tables, numbers and pictures and links to the rest."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup
from PIL import Image

from memecmd_utils import schemas, settings
from memecmd_utils.core import drawing, html, plots, storage
from memecmd_utils.core import tables as core_tables
from memecmd_utils.evaluation import (
    ground_truth,
    judge_checks,
    judges,
    leaderboard,
    rankings,
    ratings,
    tables,
)
from memecmd_utils.release import card
from memecmd_utils.release.tables import DATASETS
from memecmd_utils.report import chats as report_chats
from memecmd_utils.report import landing
from memecmd_utils.report.answers import LEGEND, Answer, answers
from memecmd_utils.report.results import Records, draw_cases, load_json, load_records
from memecmd_utils.retrieval import LEARNED
from memecmd_utils.runs import Run
from memecmd_utils.schemas import describe_source
from memecmd_utils.settings import Profile
from memecmd_utils.studies import collected

TALL = 1000
"""CSS pixels from which on a figure folds: higher ones are chats side by side."""
Table = tuple[str, pd.DataFrame | Markup, str]
"""Title, content and note. A data frame is rendered and escaped, `Markup` is HTML to be trusted."""
Picture = tuple[Path | Image.Image, str]
"""An image or the path of a PNG, and its caption."""


class Group(NamedTuple):
    """Tables under one heading, which folds; `words` stand above them."""

    title: str
    tables: Sequence[Table]
    words: str = ""


def write_page(run: Run, records: Records, numbers: Mapping[str, Any]) -> Path:
    """Write `index.html` of the report; `numbers` are those of `write_numbers`."""
    figures_dir, warning = run.report / "figures", consistency_of_learned(run.profile)
    pictures = [
        (figures_dir / "fig2_keywords.png", "Figure 2. Keywords of the four annotated dimensions."),
        (
            figures_dir / "fig3_scores.png",
            "Figure 3. Retrieval scores of all memes at all turns, and the best of each turn: above in "
            "news-based dialogues, as in the paper's Figure 3, below in role-based ones.",
        ),
        (
            figures_dir / "fig4_consistency.png",
            f"Figure 4. Consistency ({scorer(records)}) with 95 % intervals.{warning}",
        ),
        (
            figures_dir / "fig5_cases.png",
            f"Figure 5. Dialogues under {_cases(run)}; Table 2 has the scores of each.",
        ),
    ]
    # At full length, with Greedy's memes where the run has them, else with the next strategy's.
    chat_images = draw_cases(run, records, tables.case_strategies(run.profile)[:1])
    if records.dialogues:
        figures_dir.mkdir(parents=True, exist_ok=True)
        teaching_chat(run, records).save(figures_dir / "chat.png")
    chats, library = browser(run, records)
    return write_index(
        run.report,
        run.name,
        run.profile,
        table_groups(run, records, numbers, study_groups(run)),
        [(path, caption) for path, caption in pictures if path.is_file()],
        tables.headline(numbers),
        chat_images,
        [(path.stem, path) for path in sorted(run.report.glob("0*.html"))],
        sources=card.provenance(
            records.dialogues,
            records.placements,
            records.memes,
            records.annotations,
            records.truth.marks,
            records.truth.grades,
        ),
        dataset_dir=run.folder / "release",
        sections=sections(run, records, numbers),
        answers=[*answers(numbers, run.profile), people(load_json(run, "human_ratings.json")["verdict"])],
        legend=LEGEND if numbers["levels"] else "",
        chats=chats,
        library=library,
    )


def rewrite_page(run: Run) -> None:
    """Write the page of a run anew where it has one."""
    if (run.report / "index.html").is_file():
        numbers = json.loads((run.report / "numbers.json").read_text(encoding="utf-8"))
        write_page(run, load_records(run), numbers)


def people(verdict: str) -> Answer:
    """The answer of the human ratings, which no number of the run holds: its first sentence, and the rest."""
    first, _, rest = verdict.partition(". ")
    return Answer("people", "What do people say?", None, f"{first.rstrip('.')}.", rest)


def browser(run: Run, records: Records) -> tuple[report_chats.Chats | None, report_chats.Sheet]:
    """The chats that the page can show, None where there is no dialogue, and the library with their memes."""
    files = judges.meme_files(run, {meme.meme_id: meme for meme in records.memes})
    picture = cache(lambda meme_id: html.thumbnail(files[meme_id], report_chats.SIDE))
    chats = None
    if records.dialogues:
        chats = report_chats.build(records, run.profile, lambda meme_id: len(picture(meme_id)))
    return chats, report_chats.sheet(
        records.memes, records.annotations, records.placements, picture, chats.memes if chats else ()
    )


def teaching_chat(run: Run, records: Records) -> Image.Image:
    """The dialogue whose memes land, by the rule that lessons follow too, with Greedy's memes."""
    strategy = (tables.case_strategies(run.profile) or [""])[0]
    memes = {meme.meme_id: meme for meme in records.memes}
    dialogue = drawing.teaching_dialogue(records.dialogues)
    return ratings.screenshot(run, dialogue, records.placements, strategy, memes)[1]


def _cases(run: Run) -> str:
    """The strategies of Figure 5 in words."""
    *most, last = [schemas.STRATEGIES[name].label for name in tables.case_strategies(run.profile)] or [""]
    return f"{', '.join(most)} and {last}" if most else last


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
        ("What the judge is worth", tables.judge_verdict(numbers)),
        (
            "What could not be scored",
            f"{unscored}; {numbers['dialogues']['summaries_unscored']} summaries and "
            f"{sum(bool(a.unscored) for a in records.annotations)} annotations are unscored; {broken} turns "
            f"still break a rule of the prompts. {run.not_recorded()}".strip(),
        ),
    ]


# --- Its layout


def _digest(script: str) -> str:
    """Hash by which a page allows this script and no other (Content Security Policy)."""
    digest = hashlib.sha256(str(script).encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def write_index(
    report_dir: Path,
    run: str,
    profile: settings.Profile,
    groups: Sequence[Group],
    figures: Sequence[Picture],
    numbers: Mapping[str, Any],
    chat_images: Sequence[Picture] = (),
    notebooks: Sequence[tuple[str, Path]] = (),
    *,
    sources: Sequence[Mapping[str, Any]] = (),
    dataset_dir: Path | None = None,
    sections: Sequence[tuple[str, str]] = (),
    answers: Sequence[Answer] = (),
    legend: str = "",
    chats: report_chats.Chats | None = None,
    library: report_chats.Sheet | None = None,
) -> Path:
    """Write `report_dir/index.html` and return its path.

    `numbers`: label to a number, a text, or {value, low, high, n, dialogues, note}; None is unscored.
    `sources`: rows of `card.provenance`. `notebooks`: title and executed HTML.
    `answers` are cards, each with a link to the table of that title where the page has it; `legend` says how
    to read them. `sections`: heading and plain text below the headline numbers. `chats` need the `library`
    that holds their memes; `chat_images` are what a reader without JavaScript sees of them. Pictures are
    embedded, the rest is linked.
    """
    parts = {
        "answers": (answers, "Answers"),
        "numbers": (numbers, "Numbers"),
        "chats": (chats or chat_images, "Chats"),
        "tables": (groups, "Tables"),
        "figures": (figures, "Figures"),
        "library": (library, "Library"),
        "notebooks": (notebooks or dataset_dir, "Notebooks and dataset"),
        "sources": (True, "Sources"),
    }
    anchors = {
        title: f"table-{place}-{number}"
        for place, group in enumerate(groups, start=1)
        for number, (title, _, _) in enumerate(group.tables, start=1)
    }
    environment = html.environment(page_json=report_chats.page_json, digest=_digest)
    page = environment.get_template("index.html.j2")
    text = page.render(
        run=run,
        profile=profile,
        contents=[(name, words) for name, (there, words) in parts.items() if there],
        provenance=provenance_lines(profile),
        sources=sources,
        numbers=[_number(label, value) for label, value in numbers.items()],
        answers=[(answer, anchors.get(answer.table)) for answer in answers],
        legend=legend,
        sections=sections,
        chats=chats,
        payload=_payload(chats, library),
        library=library,
        groups=[
            Group(g.title, [(t, _table(content), n) for t, content, n in g.tables], g.words) for g in groups
        ],
        figures=[_figure(picture, caption, report_dir) for picture, caption in figures],
        chat_images=[(_data_url(picture), caption) for picture, caption in chat_images],
        notebooks=[(title, _link(report_dir, path)) for title, path in notebooks],
        dataset=_link(report_dir, dataset_dir) if dataset_dir else "",
        paper_url=DATASETS["dialogues"].paper_url,
    )
    target = report_dir / "index.html"
    storage.write_text(target, text)
    return target


def _payload(chats: report_chats.Chats | None, library: report_chats.Sheet | None) -> dict[str, Any] | None:
    """What the chats' script reads: the chats, and which card of the library holds which meme."""
    if chats is None:
        return None
    cards = report_chats.captions(library) if library is not None else []
    if absent := chats.memes - {name for name, _, _ in cards}:
        raise ValueError(f"the library on the page lacks memes of the chats: {sorted(absent)[:3]}")
    return {**chats.payload, "memes": cards}


def provenance_lines(profile: settings.Profile) -> list[tuple[str, str]]:
    """Say in plain words where each part of a run comes from."""
    ends = profile.models.endpoints
    texts = {
        "authored": f"The example corpus: {describe_source('authored')}.",
        "openai": f"Generated by {_model(ends.generator)} through an OpenAI-compatible endpoint.",
        "local": f"Generated by {profile.models.local_model} on this machine, by a small model.",
    }
    modes = {
        "recorded": "All replies of models come from recordings, and nobody is asked. Where a user changed "
        "the settings, what is not on record is unscored and counted.",
        "auto": "Replies of models come from recordings where there are any, else from live calls.",
        "live": "All replies of models are live calls; another run gives other texts.",
    }
    judges = []
    for number, judge in enumerate(profile.evaluation.judges):
        remote = ends.judges[number] if number < len(ends.judges) else ends.generator
        model = _model(remote) if judge.llm == "openai" else judge.local_model or profile.models.local_model
        judges.append(f"{model} ({'yes/no questions' if judge.kind == 'yes_no' else 'ratings 0-100'})")
    scorer = (
        profile.models.consistency_embedder
        if profile.evaluation.consistency == "text"
        else f"Chinese-CLIP {profile.models.clip_model}"
    )
    retrieval = "the paper's retrieval" if consistency_of_learned(profile) else "retrieval"
    lines = [("Texts", texts[profile.models.llm])]
    if profile.models.llm == "openai" and ends.annotator:
        lines.append(("Annotations", f"Generated by {_model(ends.annotator)}."))
    return [
        *lines,
        ("Model calls", modes[profile.models.mode]),
        ("Judges", "; ".join(judges) or "none"),
        (
            "Retrieval",
            f"{profile.models.embedder}, score scale {profile.retrieval.score_scale}, "
            f"centring {profile.retrieval.centring}",
        ),
        ("Consistency", f"{scorer}, which took no part in {retrieval}"),
    ]


def _model(endpoint: settings.Endpoint) -> str:
    return f"{endpoint.model or 'an unnamed model'}@{endpoint.model_label}"


def _number(label: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        value = {"value": value}
    low, high = value.get("low"), value.get("high")
    parts = (
        [f"95% interval {_format(low)} to {_format(high)}"] if low is not None and high is not None else []
    )
    if value.get("n") is not None:
        among = f" in {_format(value['dialogues'])} dialogues" if value.get("dialogues") else ""
        parts.append(f"n = {_format(value['n'])}{among}")
    if value.get("note"):
        parts.append(str(value["note"]))
    return {"label": label, "value": _format(value["value"]), "detail": ", ".join(parts)}


def _format(value: Any) -> str:
    # NaN is a result that does not exist; "nan" on a page reads like a fault.
    if value is None or (isinstance(value, float) and value != value):
        return "unscored"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if float(value).is_integer() and not isinstance(value, float):
        return f"{int(value):,}"
    return f"{float(value):,.3f}" if abs(float(value)) < 10 else f"{float(value):,.2f}"


def _table(content: pd.DataFrame | Markup) -> Markup:
    if isinstance(content, Markup):
        return content
    return Markup(content.to_html(border=0, index=False, na_rep="–", float_format=_format, escape=True))


def _data_url(picture: Path | Image.Image) -> str:
    if isinstance(picture, Image.Image):
        return html.picture_url(picture, "PNG")
    return html.data_url(plots.fewer_colours(picture.read_bytes()))


def _figure(picture: Path | Image.Image, caption: str, report_dir: Path) -> dict[str, Any]:
    """A figure for the page: embedded, `width` in CSS pixels, a link to its file, and whether it folds."""
    figure = {"url": _data_url(picture), "caption": caption, "width": None, "link": "", "tall": False}
    if isinstance(picture, Image.Image):
        return {**figure, "tall": picture.height > TALL}
    # Figures are saved at 150 dots an inch for sharp print; a page counts 96 pixels an inch.
    with Image.open(picture) as opened:
        share = min(1.0, 96 / opened.info.get("dpi", (96, 96))[0])
        size = {"width": round(opened.width * share), "tall": opened.height * share > TALL}
    return {**figure, **size, "link": _link(report_dir, picture)}


def _link(report_dir: Path, target: Path) -> str:
    # Relative, so that reports/ and data/ can be moved or served together; quoted for Chinese names.
    return quote(Path(os.path.relpath(target, report_dir)).as_posix())


# --- Its tables, in groups that fold


def table_groups(
    run: Run, records: Records, numbers: Mapping[str, Any], studies: Sequence[Group] = ()
) -> list[Group]:
    """All groups of the page; `studies` stand between the paper's tables and what was used and asked."""
    found = truth_tables(numbers["ground_truth"], run.profile)
    return [
        *([Group("Retrieval against ground truth", found)] if found else []),
        *leaderboards(run),
        *learned_placement(run, records),
        Group("The paper's tables", paper_tables(records, numbers, run.profile)),
        *studies,
        Group("Use and bookkeeping", bookkeeping(run, numbers)),
    ]


def paper_tables(records: Records, numbers: Mapping[str, Any], profile: Profile) -> list[Table]:
    """Tables 1 and 2 of this run beside the paper's cells, and the effects apart."""
    judged = ", ".join(numbers["ratings"]["sources"]) or "none"
    measured, effects, table_2 = (
        frame(numbers[name], columns)
        for name, columns in (
            ("table_1", tables.TABLE_1),
            ("effects", tables.EFFECTS),
            ("table_2", tables.TABLE_2),
        )
    )
    printed = tables.table_1_printed(measured).set_index("Dataset")
    return [
        (
            "Table 1: this run",
            core_tables.html(printed.T.reset_index(names="")),
            f"Judge: {judged}. Consistency: {scorer(records)}. Mean [95 % interval] (n=memes in dialogues), "
            f"arrows: difference to Random. Best bold, second underlined.{consistency_of_learned(profile)}",
        ),
        (
            "Choice and timing effects",
            core_tables.html(effects),
            tables.judge_verdict(numbers),
        ),
        (
            "Table 1: the paper's own cells",
            core_tables.html(tables.paper_table_1()),
            "Printed differences, and the same recomputed.",
        ),
        (
            "Table 2: case studies",
            core_tables.html(tables.beside_paper(table_2)),
            "The chats of Figure 5, all turns that stand there, chosen without a look at the scores. Beside "
            "them the paper's own: other dialogues and memes, scored by another judge.",
        ),
    ]


def bookkeeping(run: Run, numbers: Mapping[str, Any]) -> list[Table]:
    """How often memes were sent, and what was asked of models."""
    return [
        (
            "Meme use",
            core_tables.html(frame(numbers["meme_use"], tables.MEME_USE)),
            "Rates over turns 2 to T.",
        ),
        (
            "What was asked, and what became of it",
            pd.DataFrame(run.outcomes()),
            "This time; a question that an earlier run paid for is replayed. Outcomes other than accepted "
            "and, of utterances, violations are no answers: they are counted here and never scored as zero.",
        ),
    ]


def consistency_of_learned(profile: Profile) -> str:
    """A word of warning where learned placement chooses by vectors of the model that scores consistency."""
    named = profile.models.consistency_embedder
    if LEARNED not in profile.retrieval.strategies or profile.evaluation.consistency != "text":
        return ""
    return (
        f" Learned placement compares vectors of {named}, too: its consistency under {named} is no "
        "independent evidence."
    )


def scorer(records: Records) -> str:
    """Name of the model that measured consistency."""
    return records.consistency[0].scorer if records.consistency else "none"


def truth_tables(found: Mapping[str, Sequence[Mapping[str, Any]]], profile: Profile) -> list[Table]:
    """The tables of the ground truth; none where the run has no ground truth."""
    if not found.get("retrieval"):
        return []
    timing = pd.DataFrame(found["timing"])
    kappas = sorted(column for column in timing.columns if column.startswith("kappa"))
    return [
        (
            "Which system finds the memes that fit?",
            rankings.short_table(found, profile),
            "Turns with a relevant meme (mean grade 1 or more of two graders). R@K: a relevant meme among "
            "the top K. judged@5: share of the top 5 that was graded. Differences with 95 % intervals over "
            f"{found['retrieval'][0]['dialogues']} dialogues, against the random ranking that was graded. "
            "Where judged@5 is below 1 the system did not feed the pool: its figures are lower bounds, save "
            "bpref, which is too kind to it. Markers and graders are sessions of a large language model, not "
            "people.",
        ),
        (
            "Grades of the placed memes",
            pd.DataFrame(found.get("placed", []), columns=list(ground_truth.PLACED)),
            "0 does not fit, 1 one could send it, 2 it lands; mean of two graders. ungraded: share of the "
            "memes that nobody graded, because no system of the pool had found them; the last column counts "
            "them as 0.",
        ),
        (
            "Model-model agreement",
            pd.DataFrame(found["agreement"], columns=list(ground_truth.AGREEMENT)),
            "Kappa with 95 % interval over dialogues; quadratic weights for grades; share of the same.",
        ),
        (
            "When one would send",
            timing.reindex(columns=[*ground_truth.TIMING, *kappas]),
            "A marked rate is what two sessions of a model would do; it is no rate of people.",
        ),
    ]


LEADING = 10
"""Systems of a leaderboard on the page."""


def leaderboards(run: Run) -> list[Group]:
    """The best systems of each split of the benchmark; none before `make leaderboard`, or of other grades."""
    rows = leaderboard.load(run.report, run.folder / "release")
    note = (
        "Means over turns at which some judged meme fits; of each system the first 20 memes count. 95 % "
        "intervals over dialogues. Where judged@5 is below 1, some of a system's memes were never graded and "
        "count as not fitting. p is of the difference in nDCG@5, corrected by Holm over the systems of the "
        "split. All systems: tables/leaderboard.csv."
    )
    splits = dict.fromkeys(row["split"] for row in rows)
    found = [(f"Leaderboard: {split}", leaderboard.top(rows, split, LEADING), note) for split in splits]
    return [Group("Who ranks memes best?", found)] if found else []


def learned_placement(run: Run, records: Records) -> list[Group]:
    """What learned placement sends, beside Greedy and random memes; none where it was not measured."""
    found = landing.load(run)
    if not found:
        return []
    words = Markup(
        "The split <i>untouched</i> decides: no model was fitted on it. On the example each dialogue is "
        "placed by a model that did not see it (out of fold), but the form of the model was chosen in sight "
        "of these dialogues. Grades and marks are authored. "
    )
    if (run.report / "04b_learned_placement.html").is_file():
        words += Markup('<a href="04b_learned_placement.html">Notebook 04b</a> teaches it. ')
    return [
        Group(
            "Learned placement",
            landing.tables(found, records.memes),
            words + "All rows: tables/learned_*.csv.",
        )
    ]


STUDIES = {
    "claims": Group(
        "In how many readings of the paper does each claim hold?",
        [
            (
                "Claims",
                "claims",
                "A reading is one combination of the paper's open choices. sign: the estimate has the "
                "claim's sign; clear: its interval leaves out zero; cannot tell: no meme was sent. "
                "Shares of readings.",
            ),
            ("Claims by what they are measured with", "claims_by_measure", ""),
            ("Which choice decides", "claims_what_matters", "How far shares lie apart between its values."),
        ],
    ),
    "ablation": Group(
        "Does each term help?",
        [
            ("One term left out", "ablation", "Full score minus the rest; above zero: the term helps."),
            ("Weights fitted on the other half", "weights", ""),
            ("The fitted weights", "weights_halves", ""),
        ],
    ),
    "threshold": Group(
        "Which form of the threshold?",
        [
            ("Three forms at the same meme rate", "threshold", "Follow-ups: memes right after another one."),
            ("Differences to the exponential form", "threshold_minus", ""),
        ],
    ),
    "hubs": Group(
        "What causes repeats?",
        [
            ("k-occurrence", "hubs", "N_k: turns that have a meme among their top k."),
            ("Cures, before and after", "hub_cures", ""),
            ("Share of repeats that hubs take", "hub_shares", ""),
        ],
    ),
    "k": Group("What does K cost?", [("K = 1 to 10", "choice_of_k", "Expected values, not draws.")]),
    "sources": Group(
        "Where should the summary come from?",
        [
            ("Sources of the summary", "sources", "Where judged@5 is low, figures are lower bounds."),
            ("Differences to the run's own summaries", "sources_minus", ""),
        ],
    ),
    "normality": Group(
        "Is Figure 3 a normal distribution?",
        [
            ("Shape of the scores", "score_shape", ""),
            ("Tests, for what they are worth", "score_shape_tests", ""),
        ],
    ),
}
"""The group of each study in the order of the page, with the names of its tables in place of the tables."""


def study_groups(run: Run) -> list[Group]:
    """The judges, then every study with its sentence; empty tables and groups are left out."""
    made = collected.load(run)
    groups = [_judges(load_json(run, "judge_checks.json"))]
    for study, group in STUDIES.items():
        there = [
            (title, frame(made["tables"][name], made["columns"][name]), note)
            for title, name, note in group.tables
            if made["tables"].get(name)
        ]
        groups.append(Group(group.title, there, made["sentences"].get(study, "")))
    return [group for group in groups if group.tables]


def _judges(checks: Mapping[str, Any]) -> Group:
    tables: Sequence[Table] = ()
    if checks["trust"]:
        trust = frame(checks["trust"], judge_checks.TRUST)
        note = (
            "AUC: share of pairs in which a fitting meme scores above a random one, or above one that "
            "fits another turn of the same dialogue (hard negative); 0.5 is chance. Hard negatives were "
            "graded, so some system had found them: that tells against retrieval and what resembles it. "
            "Random memes may be ungraded. order shift: change of p(yes) when the answers are named the "
            "other way round. alpha wordings: agreement over three wordings. The rule of the verdict was "
            "fixed before."
        )
        tables = [("Judges against the ground truth", judge_checks.trust_table(trust), note)]
    return Group("Which judge deserves which trust?", tables, checks["sentence"])


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table of `numbers.json`, its columns in order: what was not a number comes back as nan."""
    out = pd.DataFrame(rows, columns=list(columns))
    for column in out:
        if out[column].map(lambda value: value is None or isinstance(value, float)).all():
            out[column] = out[column].astype(float)
    return out
