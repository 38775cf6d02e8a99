"""Stage 06 over a run: reads everything back, writes numbers, page and release."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import pandas as pd
import yaml
from markupsafe import Markup
from PIL import Image

from memecmd_utils import schemas, settings
from memecmd_utils.core import html, paths, statistics, storage
from memecmd_utils.core import html as core_html
from memecmd_utils.core import tables as core_tables
from memecmd_utils.evaluation import ground_truth, judge_checks, stage, tables
from memecmd_utils.evaluation import tables as evaluation_tables
from memecmd_utils.release import card, write
from memecmd_utils.report import chats as report_chats
from memecmd_utils.report.records import Records
from memecmd_utils.runs import Run
from memecmd_utils.schemas import describe_source
from memecmd_utils.settings import Profile
from memecmd_utils.studies import gates

# --- The page of a run: one HTML file that holds its tables, numbers and pictures and links to the rest


TALL = 1000
"""CSS pixels from which on a figure folds: higher ones are chats side by side."""
Table = tuple[str, pd.DataFrame | Markup | str, str]
"""Title, content and note. A data frame is rendered and escaped, `Markup` is HTML to be trusted, and a
string is shown as it stands (Markdown, for example), escaped."""
Picture = tuple[Path | Image.Image, str]
"""An image or the path of a PNG, and its caption."""


class Group(NamedTuple):
    """Tables under one heading, which folds; `words` stand above them."""

    title: str
    tables: Sequence[Table]
    words: str = ""


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return core_html.environment(page_json=report_chats.page_json, digest=_digest, questions=_questions)


def _questions(text: str) -> list[tuple[bool, str]]:
    """A text cut into its questions (True) and what stands between them: the eye finds its way by them."""
    parts = re.split(r"((?:^|(?<=\. ))[A-Z][^.?]*\?)", text)
    return [(bool(i % 2), part) for i, part in enumerate(parts) if part]


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
    answers: Sequence[tuple[str, str]] = (),
    chats: report_chats.Chats | None = None,
    library: report_chats.Sheet | None = None,
) -> Path:
    """Write `report_dir/index.html` and return its path.

    `numbers`: label to a number, a text, or {value, low, high, n, dialogues, note}; None is unscored.
    `sources`: rows of `card.provenance`. `notebooks`: title and executed HTML.
    `answers`, `sections`: heading and plain text, above and below the headline numbers; an empty line
    parts paragraphs of an answer. `chats` need the `library` that holds their memes; `chat_images` are what
    a reader without JavaScript sees of them. Pictures are embedded, the rest is linked.
    """
    shown = {
        "answers": (answers, "Answers"),
        "numbers": (numbers, "Numbers"),
        "chats": (chats or chat_images, "Chats"),
        "tables": (groups, "Tables"),
        "figures": (figures, "Figures"),
        "library": (library, "Library"),
        "notebooks": (notebooks or dataset_dir, "Notebooks and dataset"),
        "sources": (True, "Sources"),
    }
    page = _environment().get_template("index.html.j2")
    text = page.render(
        run=run,
        profile=profile,
        contents=[(name, words) for name, (there, words) in shown.items() if there],
        provenance=provenance_lines(profile),
        sources=sources,
        numbers=[_number(label, value) for label, value in numbers.items()],
        answers=answers,
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
        paper_url=card.PAPER_URL,
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
        ("Consistency", f"{scorer}, which took no part in retrieval"),
    ]


def _model(endpoint: settings.Endpoint) -> str:
    return f"{endpoint.model or 'an unnamed model'}@{endpoint.model_label}"


def _number(label: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        value = {"value": value}
    if "value" not in value:
        raise ValueError(f"number {label!r} has no value, only {sorted(value)}")
    low, high = value.get("low"), value.get("high")
    parts = [f"95% interval {_shown(low)} to {_shown(high)}"] if low is not None and high is not None else []
    if value.get("n") is not None:
        among = f" in {_shown(value['dialogues'])} dialogues" if value.get("dialogues") else ""
        parts.append(f"n = {_shown(value['n'])}{among}")
    if value.get("note"):
        parts.append(str(value["note"]))
    return {"label": label, "value": _shown(value["value"]), "detail": ", ".join(parts)}


def _shown(value: Any) -> str:
    # NaN is a result that does not exist; "nan" on a page reads like a fault.
    if value is None or (isinstance(value, float) and value != value):
        return "unscored"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if float(value).is_integer() and not isinstance(value, float):
        return f"{int(value):,}"
    return f"{float(value):,.3f}" if abs(float(value)) < 10 else f"{float(value):,.2f}"


def _table(content: pd.DataFrame | Markup | str) -> Markup:
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return Markup("<pre>{}</pre>").format(content)
    plain = isinstance(content.index, pd.RangeIndex)
    html = content.to_html(border=0, index=not plain, na_rep="–", float_format=_shown, escape=True)
    return Markup(html)


def _data_url(picture: Path | Image.Image) -> str:
    if isinstance(picture, Image.Image):
        return core_html.picture_url(picture, "PNG")
    if picture.suffix.lower() not in {".png", ".jpg", ".jpeg", ".svg"}:
        raise ValueError(f"{picture}: a page shows PNG, JPEG or SVG")
    return core_html.data_url(picture.read_bytes())


def _figure(picture: Path | Image.Image, caption: str, report_dir: Path) -> dict[str, Any]:
    """A figure for the page: embedded, `width` in CSS pixels, a link to its file, and whether it folds."""
    shown = {"url": _data_url(picture), "caption": caption, "width": None, "link": "", "tall": False}
    if isinstance(picture, Image.Image):
        return {**shown, "tall": picture.height > TALL}
    shown["link"] = _link(report_dir, picture)
    if picture.suffix.lower() != ".svg":
        # Figures are saved at 150 dots an inch for sharp print; a page counts 96 pixels an inch.
        with Image.open(picture) as opened:
            share = min(1.0, 96 / opened.info.get("dpi", (96, 96))[0])
            shown |= {"width": round(opened.width * share), "tall": opened.height * share > TALL}
    return shown


def _link(report_dir: Path, target: Path) -> str:
    # Relative, so that reports/ and data/ can be moved or served together; quoted for Chinese names.
    return quote(Path(os.path.relpath(target, report_dir)).as_posix())


# --- The tables of a run's page, in groups that fold


def table_groups(
    run: Run, records: Records, numbers: Mapping[str, Any], studies: Sequence[Group] = ()
) -> list[Group]:
    """All groups of the page; `studies` stand between the paper's tables and what was used and asked."""
    found = truth_tables(numbers["ground_truth"], run.profile)
    return [
        *([Group("Retrieval against ground truth", found)] if found else []),
        Group("The paper's tables", paper_tables(records, numbers)),
        *studies,
        Group("Use and bookkeeping", bookkeeping(run, numbers)),
    ]


def paper_tables(records: Records, numbers: Mapping[str, Any]) -> list[Table]:
    """Tables 1 and 2 of this run beside the paper's cells, and the effects apart."""
    judged = ", ".join(numbers["ratings"]["sources"]) or "none"
    measured, effects, table_2 = (
        frame(numbers[name], columns)
        for name, columns in (
            ("table_1", evaluation_tables.TABLE_1),
            ("effects", evaluation_tables.EFFECTS),
            ("table_2", evaluation_tables.TABLE_2),
        )
    )
    printed = evaluation_tables.table_1_printed(measured).set_index("Dataset")
    return [
        (
            "Table 1: this run",
            core_tables.html(printed.T.reset_index(names="")),
            f"Judge: {judged}. Consistency: {scorer(records)}. Mean [95 % interval] (n=memes in dialogues), "
            "arrows: difference to Random. Best bold, second underlined.",
        ),
        (
            "Choice and timing effects",
            core_tables.html(effects),
            evaluation_tables.judge_verdict(numbers),
        ),
        (
            "Table 1: the paper's own cells",
            core_tables.html(evaluation_tables.paper_table_1()),
            "Printed differences, and the same recomputed.",
        ),
        (
            "Table 2: case studies",
            core_tables.html(evaluation_tables.beside_paper(table_2)),
            "The chats of Figure 5, all turns that stand there, chosen without a look at the scores. Beside "
            "them the paper's own: other dialogues and memes, scored by another judge.",
        ),
    ]


def bookkeeping(run: Run, numbers: Mapping[str, Any]) -> list[Table]:
    """How often memes were sent, and what was asked of models."""
    return [
        (
            "Meme use",
            core_tables.html(frame(numbers["meme_use"], evaluation_tables.MEME_USE)),
            "Rates over turns 2 to T.",
        ),
        (
            "What was asked, and what became of it",
            pd.DataFrame(run.outcomes()),
            "This time; a question that an earlier run paid for is replayed. Outcomes other than accepted "
            "and, of utterances, violations are no answers: they are counted here and never scored as zero.",
        ),
    ]


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
            stage.short_table(found, profile),
            "Turns with a relevant meme (mean grade 1 or more of two graders). R@K: a relevant meme among "
            "the top K. judged@5: share of the top 5 that was graded. Differences with 95 % intervals over "
            f"{found['retrieval'][0]['dialogues']} dialogues, against the random ranking that was graded. "
            "Where judged@5 is below 1 the system did not feed the pool: its figures are lower bounds, save "
            "bpref, which is too kind to it. Markers and graders are sessions of a large language model, not "
            "people.",
        ),
        (
            "Grades of the placed memes",
            pd.DataFrame(found.get("placed", []), columns=list(stage.PLACED)),
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


# --- The studies on a run's page: the paragraph of answers, and a folding group of tables for each question


class Shown(NamedTuple):
    """A group: its heading, the study whose sentence stands above it, and its tables with their notes."""

    title: str
    study: str
    tables: Mapping[str, tuple[str, str]]


GROUPS = (
    Shown(
        "In how many readings of the paper does each claim hold?",
        "claims",
        {
            "claims": (
                "Claims",
                "A reading is one combination of the paper's open choices. sign: the estimate has the "
                "claim's sign; clear: its interval leaves out zero; cannot tell: no meme was sent. "
                "Shares of readings.",
            ),
            "claims_by_measure": ("Claims by what they are measured with", ""),
            "claims_what_matters": ("Which choice decides", "How far shares lie apart between its values."),
        },
    ),
    Shown(
        "Does each term help?",
        "ablation",
        {
            "ablation": ("One term left out", "Full score minus the rest; above zero: the term helps."),
            "weights": ("Weights fitted on the other half", ""),
            "weights_halves": ("The fitted weights", ""),
        },
    ),
    Shown(
        "Which form of the threshold?",
        "threshold",
        {
            "threshold": ("Three forms at the same meme rate", "Follow-ups: memes right after another one."),
            "threshold_minus": ("Differences to the exponential form", ""),
        },
    ),
    Shown(
        "What causes repeats?",
        "hubs",
        {
            "hubs": ("k-occurrence", "N_k: turns that have a meme among their top k."),
            "hub_cures": ("Cures, before and after", ""),
            "hub_shares": ("Share of repeats that hubs take", ""),
        },
    ),
    Shown("What does K cost?", "k", {"choice_of_k": ("K = 1 to 10", "Expected values, not draws.")}),
    Shown(
        "Where should the summary come from?",
        "sources",
        {
            "sources": ("Sources of the summary", "Where judged@5 is low, figures are lower bounds."),
            "sources_minus": ("Differences to the run's own summaries", ""),
        },
    ),
    Shown(
        "Is Figure 3 a normal distribution?",
        "normality",
        {
            "score_shape": ("Shape of the scores", ""),
            "score_shape_tests": ("Tests, for what they are worth", ""),
        },
    ),
)
"""In the order of the page; a study that the run has not made is left out."""


def answers(run: Run, numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Heading and text at the very top of the page."""
    people = json.loads(run.read("human_ratings.json").read_text(encoding="utf-8"))
    return [("In short", numbers["answers"]), ("Human ratings", people["verdict"])]


def study_groups(run: Run) -> list[Group]:
    """The judges, then every study; empty tables are left out."""
    checks = json.loads(run.read("judge_checks.json").read_text(encoding="utf-8"))
    made = gates.load(run)
    found = [_judges(checks)]
    for shown in GROUPS:
        tables = [
            (title, frame(made["tables"][name], made["columns"][name]), note)
            for name, (title, note) in shown.tables.items()
            if made["tables"].get(name)
        ]
        found.append(Group(shown.title, tables, made["sentences"].get(shown.study, "")))
    return [group for group in found if group.tables]


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


# --- The summary of a run: one paragraph that answers what the paper's claims leave open


QUESTIONS = {
    "ablation": "Does each dimension help?",
    "threshold": "Which form of the threshold differs?",
    "hubs": "What causes repeats?",
    "judges": "Which judge can be trusted?",
    "claims": "In how many specifications does each claim of the paper survive?",
}
"""Studies whose sentences follow the first two, with what each answers, in this order."""
METRICS = {"grade": "mean grade, 0 to 2", "consistency": "text consistency"}
"""Measures of placed memes, the best first: where a run has no grades the next one speaks."""


def beats_random(effects: Sequence[Mapping[str, Any]]) -> str:
    """Does retrieval beat random, and by choice or by timing? From rows of `tables.effects`."""
    for metric in METRICS:
        mine = {row["comparison"]: row for row in effects if row["metric"] == metric}
        choice = mine.get("greedy - random_same_turns")
        timing = mine.get("random_same_turns - random")
        if choice and choice["mean"] is not None:
            break
    else:
        return "No measure of this run can say whether retrieval beats random."
    text = (
        f"Does retrieval beat random? By choice: Greedy's memes against random ones at the same turns "
        f"differ by {statistics.format_interval(choice, sign='+')} ({METRICS[metric]}; "
        f"{choice['dialogues']} dialogues), so {_verdict(choice)}."
    )
    if timing and timing["mean"] is not None:
        text += (
            f" By timing: random memes at the gate's turns against random ones anywhere differ by "
            f"{statistics.format_interval(timing, sign='+')} ({timing['dialogues']} dialogues), "
            f"so {_verdict(timing)}."
        )
    return text


def _verdict(row: Mapping[str, Any]) -> str:
    if row["low"] is None and statistics.too_few(row["dialogues"]):
        return "too few dialogues to say"
    if row["low"] is None:
        return "it cannot be told"
    if row["low"] > 0:
        return "yes"
    return "no, it is worse" if row["high"] < 0 else "it cannot be told"


def paragraph(effects: Sequence[Mapping[str, Any]], sentences: Mapping[str, str]) -> str:
    """All answers in one paragraph; a study that the run has not made is left out."""
    rest = [f"{asked} {sentences[name]}" for name, asked in QUESTIONS.items() if sentences.get(name)]
    return " ".join([beats_random(effects), *rest])


def of_run(run: Run, effects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For `numbers.json`: the paragraph, every study's sentence, and the tables that the READMEs quote."""
    checks = json.loads(run.read("judge_checks.json").read_text(encoding="utf-8"))
    made = gates.load(run)
    sentences = {**made["sentences"], "judges": checks["sentence"]}
    return {
        "answers": paragraph(effects, sentences),
        "studies": {
            "sentences": sentences,
            "trust": checks["trust"],
            "claims": made["tables"].get("claims", []),
        },
    }


def case_pictures(run: Run, records: Records) -> tuple[list[Image.Image], list[str]]:
    """Screenshots of Figure 5 and their labels, in the order a to f, with all turns that Table 2 counts.

    None where no dialogue serves.
    """
    memes = {meme.meme_id: meme for meme in records.memes}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records.dialogues}
    images, labels = [], []
    for name in tables.case_dialogues(records.placements, records.dialogues, run.profile):
        for strategy in tables.case_strategies(run.profile):
            _, picture = stage.screenshot(
                run, by_id[name], records.placements, strategy, memes, run.profile.dialogue.n_turns
            )
            images.append(picture)
            labels.append(f"{name}, {schemas.STRATEGIES[strategy].label}")
    return images, labels


def write_numbers(run: Run, records: Records) -> dict[str, Any]:
    """Compute and write `numbers.json` and `placements.csv`."""
    found = tables.numbers(
        run.profile, records.memes, records.dialogues, records.placements, records.ratings,
        records.consistency, dict(records.gates), stage.load_found(run), records.grades,
    )  # fmt: skip
    found |= of_run(run, found["effects"])
    storage.write_json(run.report / "numbers.json", found)
    columns = ["dialogue_id", "turn", "speaker", "strategy", "meme_id", "rank", "score"]
    placed = pd.DataFrame([p.model_dump() for p in records.placements], columns=columns)
    storage.write_text(run.report / "placements.csv", placed.to_csv(index=False, float_format="%.6f"))
    return found


def write_release(run: Run, records: Records) -> dict[str, int]:
    """Write `release/` below the run's data; pictures without a licence stay out."""
    return write.write_release(
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
            f"Figure 4. Consistency ({scorer(records)}) with 95 % intervals.",
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
        answers=answers(run, numbers),
        chats=chats,
        library=library,
    )


def browser(run: Run, records: Records) -> tuple[report_chats.Chats | None, report_chats.Sheet]:
    """The chats that the page can show, None where there is no dialogue, and the library with their memes."""
    files = stage.meme_files(run, {meme.meme_id: meme for meme in records.memes})
    picture = cache(lambda meme_id: html.thumbnail(files[meme_id], report_chats.SIDE))
    chats = None
    if records.dialogues:
        chats = report_chats.build(records, run.profile, lambda meme_id: len(picture(meme_id)))
    return chats, report_chats.sheet(
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
            stage.screenshot(run, by_id[name], records.placements, first, memes)[1],
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
        ("What the judge is worth", tables.judge_verdict(numbers)),
        (
            "What could not be scored",
            f"{unscored}; {numbers['dialogues']['summaries_unscored']} summaries and "
            f"{sum(bool(a.unscored) for a in records.annotations)} annotations are unscored; {broken} turns "
            f"still break a rule of the prompts. {run.not_recorded()}".strip(),
        ),
    ]
