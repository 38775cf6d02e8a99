"""Stage 06: what a run found as numbers, tables, figures and a release; the results kept in `reports/`."""

import csv
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from PIL import Image

from memecmd_utils import benchmark, drawing, files, release, schemas, statistics, tables
from memecmd_utils import grades as graded
from memecmd_utils.drawing import canvas, style
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.runs import Run, StageMissing
from memecmd_utils.splits import splits_of_run
from memecmd_utils.statistics import Estimate
from memecmd_utils.studies import landing

# --- numbers.json, placements.csv and the tables that the READMEs show


def records_of(run: Run) -> dict[str, list[Any]]:
    """The records that page and release hold, by table; of unsafe memes only what a release names."""
    memes, annotations = release.releasable(run.load(schemas.Meme), run.load(schemas.Annotation))
    dialogues = run.load(schemas.Dialogue)
    truth = graded.truth_of_run(run.profile, dialogues, memes)
    return {
        "memes": memes,
        "annotations": annotations,
        "dialogues": dialogues,
        "placements": run.load(schemas.Placement),
        "marks": truth.marks,
        "grades": truth.grades,
    }


def write_numbers(run: Run) -> dict[str, Any]:
    """Compute and write `numbers.json`, `placements.csv` and `tables/*_shown.*`; the numbers."""
    truth, measured = run.load_json("ground_truth.json"), run.load_json("judge_checks.json")
    made, records = run.load_json("studies.json"), records_of(run)
    # What page and READMEs quote of the ground truth and of the studies.
    quoted = ("claims", "ablation", "threshold", "threshold_minus")
    numbers = {
        **tables.counts(
            run.profile,
            records["memes"],
            records["dialogues"],
            records["placements"],
            run.load(schemas.Rating),
        ),
        "gates": run.load_json("gates.json"),
        **{name: rows for name, rows in measured.items() if name != "trust"},
        "ground_truth": {name: truth[name] for name in ("agreement", "retrieval") if name in truth},
        "studies": {"trust": measured["trust"], **{name: made.get(name, []) for name in quoted}},
        "teaching": _teaching_levels(run, records),
        "landing": landing.quoted(run),
    }
    files.write_json(run.report / "numbers.json", numbers, statistics.as_json)
    columns = ["dialogue_id", "turn", "speaker", "strategy", "meme_id", "rank", "score"]
    placed = pd.DataFrame([p.model_dump() for p in records["placements"]], columns=columns)
    files.write_text(run.report / "placements.csv", placed.to_csv(index=False, float_format="%.6f"))
    of_readme = shown_tables(numbers)
    if truth.get("retrieval"):
        of_readme["retrieval"] = graded.short_table(truth, run.profile)
    run.save_tables(**{f"{name}_shown": table for name, table in of_readme.items()})
    return numbers


def read_numbers(folder: Path) -> dict[str, Any]:
    """The numbers that `write_numbers` wrote into a folder."""
    text = (folder / "numbers.json").read_text(encoding="utf-8")
    return json.loads(text, object_hook=statistics.from_json)


def _teaching_levels(run: Run, records: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Of each dialogue that lessons walk through and the run has: its id, the levels of Greedy's memes."""
    names = json.loads((paths.example / "teaching_dialogues.json").read_text(encoding="utf-8"))
    truth = graded.truth_of_run(run.profile, records["dialogues"], records["memes"])
    levels = {}
    for case in ("lands", "typical", "fails"):
        mine = [p for p in records["placements"] if (p.strategy, p.dialogue_id) == ("greedy", names[case])]
        for row in statistics.rows(tables.levels(mine, truth)):
            levels[case] = {"dialogue": names[case], **row}
    return levels


LANDING = (
    "memes", "ungraded", "fits", "lands", "mean grade", "specificity", "different", "repeats",
    "right after another",
)  # fmt: skip
LANDING_FURTHER: dict[str, Sequence[str]] = {
    "sending": (), "sighted": ("what", "score", "AUC"),
    "places": ("split", "who", "choices", *landing.QUARTERS, "p"),
    "in_sequence": ("who", "memes", "fits alone", "fits in sequence", "lands alone", "lands in sequence"),
    "screenshots": ("source", "who", "memes", "overall", "minus random", "paper", "paper minus random"),
    "settings": ("setting", "memes", "rate", "ungraded", "fits", "lands", "specificity", "different"),
}  # fmt: skip
"""Further tables of notebook 04c, and the columns that are shown; all of them where none are named."""


def _table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = (), shares: Sequence[str] = ()
) -> pd.DataFrame:
    """Rows as a table of some columns (none: of all); plain numbers in `shares` are given as per cent."""
    cells = [row | {name: percent(row[name]) for name in shares if name in row} for row in map(dict, rows)]
    for row in cells:  # a p-value is kept to six digits
        row |= {name: "< 0.001" for name in ("p", "p_holm", "p Holm") if row.get(name) == 0}
    return pd.DataFrame(cells, columns=list(columns) or None, dtype=object)


def shown_tables(numbers: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables that stand in the READMEs, by name; those of studies that were not made are left out."""
    studies, landed = numbers["studies"], numbers["landing"]
    minus_random = {
        row["comparison"].split(" - ")[0]: row["difference"]
        for row in numbers["effects"]
        if (row["effect"], row["metric"]) == ("choice", "grade")
    }
    for row in landed.get("differences", ()):
        of_random = row["minus"] == landing.RANDOM and row["who"] == row["where"]
        if of_random and (row["split"], row["measure"]) == (numbers["profile"], "mean grade"):
            minus_random.setdefault(row["who"], row["difference"])
    strategies = [
        {
            "strategy": schemas.STRATEGIES[row["strategy"]].label,
            "memes": row["memes"],
            **{name: percent(row[name]) for name in ("fits", "lands", "nobody")},
            "mean grade": number(row["mean grade"]),
            "minus random": minus_random.get(row["strategy"]),
        }
        for row in numbers["levels"]
    ]
    told = ("sign if told", "sign", "clear", "clearly opposite")
    shown = {
        "strategies": _table(strategies),
        "effects": _table(
            [row for row in numbers["effects"] if row["effect"] in ("choice", "timing")],
            ("effect", "metric", "comparison", "difference", "n", "dialogues", "p_holm"),
        ),
        "landing": _table(_deciding(landed, "placed"), ("where", "who", *LANDING), ("ungraded",)),
        "landing_first": _table(
            _first_landing(_deciding(landed, "placed")),
            ("who", "where", "memes", "fits", "lands", "specificity", "different", "repeats"),
        ),
        "landing_minus": _table(
            _deciding(landed, "differences"),
            ("where", "who", "minus", "measure", "difference", "dialogues", "p"),
        ),
        "landing_ranking": _table(landed.get("ranking", ()), ("split", "what", "turns", *graded.MEASURES)),
        **{
            f"landing_{name}": _table(landed.get(name, ()), columns, ("rate", "ungraded"))
            for name, columns in LANDING_FURTHER.items()
        },
        "ablation": _table(
            [row for row in studies["ablation"] if row["measure"] == "nDCG@5"],
            ("embedder", "compares", "full", "rest", "difference"),
        ),
        "threshold": _table(studies["threshold_minus"], ("form", "minus", "measure", "difference", "clear")),
        "judges": _table(
            studies["trust"],
            ("judge", "reading", "dialogues", "AUC random", "AUC hard", "verdict"),
        ),
        "claims": _table(
            studies["claims"],
            ("claim", "dialogues", "worlds", *told),
            told,
        ),
        "table_1": tables.table_1_printed(pd.DataFrame(numbers["table_1"], columns=list(tables.TABLE_1))),
    }
    return {name: table for name, table in shown.items() if len(table)}


def _deciding(landed: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> list[Mapping[str, Any]]:
    """Of a table the rows of the last test, which decides; those of the other splits stand in its CSV."""
    rows = landed.get(name, ())
    return [row for row in rows if row["split"] == rows[0]["split"]]


def _first_landing(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each sender at its own turns, then all others at the turns of `reranked`."""
    own = [row for row in rows if row["who"] == row["where"]]
    first = own[0]["where"] if own else ""
    return own + [row for row in rows if row["where"] == first != row["who"]]


# --- Numbers in sentences: what a sentence names, and how it is printed


def facts(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of `numbers.json` by names: `levels.greedy.fits`, `effects.greedy.difference.low`.

    `effects` are those on the best measure that the run has: grades, else consistency. Memes of
    `greedy` and `sampling` are compared with random ones at the same turns, in `timing` random memes at the
    gate's turns with others.
    """
    truth, studies, landed = (numbers.get(name, {}) for name in ("ground_truth", "studies", "landing"))
    effects: dict[str, Any] = {}
    for row in sorted(numbers["effects"], key=lambda row: row["metric"] != "grade"):
        name = "timing" if row["effect"] == "timing" else row["comparison"].split(" - ")[0]
        known = row["metric"] in ("grade", "consistency") and row["effect"] in ("choice", "timing")
        if known and np.isfinite(row["difference"].value):
            effects.setdefault(name, row)
    ndcg = [row for row in studies.get("ablation", ()) if row["measure"] == "nDCG@5"]
    return {
        **numbers,
        "effects": effects,
        "levels": _by(numbers["levels"], "strategy"),
        "use": _by(numbers["meme_use"], "strategy"),
        "agreement": _by(truth.get("agreement", ()), "what"),
        "retrieval": truth.get("retrieval", []),
        "placed": _by(landed.get("placed", ()), "split", "where", "who"),
        "minus": _by(landed.get("differences", ()), "split", "where", "who", "minus", "measure"),
        "sending": _by(landed.get("sending", ()), "split", "who"),
        "gate": _by(landed.get("gate", ()), "split", "gate"),
        "ranking": _by(landed.get("ranking", ()), "split", "what"),
        "settings": _by(landed.get("settings", ()), "setting"),
        "places": _by(landed.get("places", ()), "split", "who"),
        "sequence": _by(landed.get("in_sequence", ()), "who"),
        "screens": _by(landed.get("screenshots", ()), "source", "who"),
        "sighted": _by(landed.get("sighted", ()), "what", "score"),
        "ablation": _by(ndcg, "embedder", "compares"),
        "forms": _by(studies.get("threshold", ()), "form"),
        "threshold": _by(studies.get("threshold_minus", ()), "form", "measure"),
        "trust": studies.get("trust", []),
        "claims": _by(studies.get("claims", ()), "claim"),
    }


def _by(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[str, Any]:
    """Rows by the values of some columns, one dict inside of another."""
    tree: dict[str, Any] = {}
    for row in rows:
        place = tree
        for column in columns[:-1]:
            place = place.setdefault(row[column], {})
        place[row[columns[-1]]] = row
    return tree


def percent(share: Estimate | float | None) -> str:
    """A share as whole per cent, without its interval; a dash where it is not known."""
    value = share.value if isinstance(share, Estimate) else share
    return "–" if value is None else f"{value:.0%}"


def interval(estimate: Estimate, digits: int | None = None) -> str:
    """An estimate with its interval, as its kind is printed or with so many digits."""
    kind = estimate.kind if digits is None else estimate.kind._replace(digits=digits)
    return str(replace(estimate, kind=kind))


def number(value: Estimate | float | None, digits: int = 2, sign: str = "") -> str:
    """A number with so many digits, without its interval; a dash where it is not known."""
    value = value.value if isinstance(value, Estimate) else value
    return "–" if value is None else f"{value:{sign}.{digits}f}"


FILTERS: dict[str, Callable[..., str]] = {
    "percent": percent,
    "number": number,
    "interval": interval,
}
"""How sentences print a number: `levels.greedy.fits | percent`, `effects.greedy.difference | interval`."""


def value_of(expression: str, numbers: Mapping[str, Any]) -> Any:
    """What an expression over `facts` gives, such as `effects.greedy.difference.low > 0`."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters.update(FILTERS)
    try:
        return environment.compile_expression(expression, undefined_to_none=False)(**facts(numbers))
    except (jinja2.TemplateError, TypeError) as error:
        raise MemecmdError(f"{expression}: {error}") from error


NUMBER = re.compile(r"<!--= (.*?) -->(.*?)<!-- -->")
"""A number in a sentence: `<!--= levels.greedy.fits | percent -->20%<!-- -->`."""
HOLDS = re.compile(r"<!-- holds: (.*?) -->")
"""What must be true of the numbers where the sentence below claims a direction."""
_TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
PAGES = ("README.md", "README.zh-CN.md", "reports/README.md", "reports/README.zh-CN.md")
"""Pages whose numbers are filled in."""


def filled(text: str, numbers: Mapping[str, Any], table_of: Callable[[str], str]) -> str:
    """A page with the numbers and the rows of tables as they are now.

    `table_of` gives a table as Markdown by name. The two lines above a table's rows are written by hand.
    """

    def rows(match: re.Match[str]) -> str:
        name, head, made = match[1], match[2].splitlines()[:2], table_of(match[1]).splitlines()
        if [line.count("|") for line in head] != [line.count("|") for line in made[:2]]:
            head = made[:2]
        lines = "\n".join([*head, *made[2:]]).replace("<u>", "<ins>").replace("</u>", "</ins>")
        return f"<!-- table: {name} -->\n{lines}\n<!-- end -->"

    text = NUMBER.sub(lambda match: f"<!--= {match[1]} -->{value_of(match[1], numbers)}<!-- -->", text)
    return _TABLE.sub(rows, text)


# --- Figure 5, with matplotlib's object API: no pyplot, no global state, the same bytes every time


def screenshot(
    run: Run,
    dialogue: schemas.Dialogue,
    placements: Sequence[schemas.Placement],
    strategy: str,
    memes: Mapping[str, schemas.Meme],
    n_turns: int | None = None,
) -> Image.Image:
    """Draw a dialogue, or its first turns, with the memes of one strategy."""
    name = dialogue.dialogue_id
    mine = {p.turn: p.meme_id for p in placements if (p.strategy, p.dialogue_id) == (strategy, name)}
    spec = drawing.chat_from_dialogue(dialogue, mine, n_turns)
    return drawing.draw_chat(spec, {meme: run.read(memes[meme].file) for meme in mine.values()})


def case_pictures(run: Run) -> tuple[list[Image.Image], list[str]]:
    """Screenshots of Figure 5 and their labels, in the order a to f, with all turns that Table 2 counts.

    None where no dialogue serves.
    """
    records = records_of(run)
    memes = {meme.meme_id: meme for meme in records["memes"]}
    by_id = {dialogue.dialogue_id: dialogue for dialogue in records["dialogues"]}
    pictures, labels = [], []
    for name in tables.case_dialogues(records["placements"], records["dialogues"], run.profile):
        for strategy in tables.case_strategies(run.profile):
            turns = run.profile.dialogue.n_turns
            pictures.append(screenshot(run, by_id[name], records["placements"], strategy, memes, turns))
            labels.append(f"{name}, {schemas.STRATEGIES[strategy].label}")
    return pictures, labels


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


# --- The release of a run


def write_release(run: Run) -> dict[str, int]:
    """Write `release/` below the run's data, with a benchmark where the run has grades.

    Pictures without a licence stay out.
    """
    records = records_of(run)
    splits = splits_of_run(run, None, records["memes"], records["annotations"])

    def write_benchmark(folder: Path) -> None:
        if splits:
            benchmark.write(folder / "benchmark", [benchmark.build(split) for split in splits])

    citation = yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))
    return release.write_release(
        run.read("memes.parquet").parent,
        run.folder / "release",
        records,
        run.profile,
        run=run.name,
        # Models that no record of the release names.
        models={
            "retrieval embedder": [run.embedder_name()],
            "judges": [rating.source for rating in run.load(schemas.Rating)],
            "consistency scorers": [row.source for row in run.load(schemas.Consistency)],
        },
        published=str(citation["date-released"]),  # a clock would make two equal runs differ
        further=write_benchmark,
    )


# --- Tracked results: a few small files of the example run, for the READMEs and compared by CI


TOLERANCE = 1e-6 + 0.5e-6
"""Numbers agree to 1e-6; files hold six decimals, and rounding may part nearly equal ones by one unit."""
PIXEL_TOLERANCE = 0.02
"""Largest mean difference of two pictures, as a share of the full range: fonts differ a little."""
TRACKED = ("numbers.json", "placements.csv", "chat.png", "fig3_scores.png", "fig4_consistency.png")


def refresh(run: str = "example") -> list[Path]:
    """Copy numbers, placements and pictures of a run into `reports/`, and fill in `PAGES`."""
    folder = paths.reports / run
    copied = [Path(shutil.copyfile(_find(folder, name), paths.reports / name)) for name in TRACKED]
    if (folder / benchmark.FILE).is_file():  # by `make leaderboard`, which no run does by itself
        copied.append(Path(shutil.copyfile(folder / benchmark.FILE, paths.reports / benchmark.FILE)))
    numbers = read_numbers(paths.reports)

    def table_of(name: str) -> str:
        if name == "leaderboard":
            return files.markdown(_leaders(benchmark.load(paths.reports)))
        return (folder / "tables" / f"{name}_shown.md").read_text(encoding="utf-8")

    for page in (paths.root / name for name in PAGES):
        before = page.read_text(encoding="utf-8")
        if (after := filled(before, numbers, table_of)) != before:
            files.write_text(page, after)
            copied.append(page)
    return copied


def _leaders(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The best of the package's own systems, with the paper's score and random, in every split."""
    own = [row for row in rows if row["kind"] == "package"]
    splits = list(dict.fromkeys(row["split"] for row in own))[::-1]
    best = [row for split in splits for row in benchmark.first([r for r in own if r["split"] == split], 3)]
    return _table(best, ("split", "system", "R@1", "nDCG@5", "judged@5", "difference", "p Holm"))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / "figures" / name):
        if path.is_file():
            return path
    raise StageMissing(f"{folder.name} has no {name}: run `make reproduce` first")


def compare(run: str = "example", tracked: Path = paths.reports, reports: Path | None = None) -> list[str]:
    """What differs between a run below `reports` and the tracked files; empty if nothing does."""
    found = []
    for name in TRACKED:
        kept, made = tracked / name, _find((reports or paths.reports) / run, name)
        if name.endswith(".png"):
            gap = picture_difference(kept, made)
            found += [f"{name}: pictures differ by {gap:.3f}"] if gap > PIXEL_TOLERANCE else []
        else:
            found += differences(_values(kept), _values(made), name.partition(".")[0])
    return found


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Paths at which two JSON values differ: texts and ids exactly, floats beyond 1e-6 and rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{where}.{key}: only in one" for key in sorted(a.keys() ^ b.keys())]
        for key in sorted(a.keys() & b.keys()):
            found += differences(a[key], b[key], f"{where}.{key}")
        return found
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return [f"{where}: {len(a)} and {len(b)} entries"]
        return differences(dict(enumerate(a)), dict(enumerate(b)), where)
    if float in (type(a), type(b)) and {type(a), type(b)} <= {int, float}:
        same = math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
        return [] if same else [f"{where}: {a} and {b}"]
    return [] if a == b and type(a) is type(b) else [f"{where}: {a!r} and {b!r}"]


def _values(path: Path) -> Any:
    """What a file holds. Of a CSV cells with a decimal point are numbers: an id such as 12e4567 is none."""
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with path.open(encoding="utf-8", newline="") as handle:
        return [
            [float(cell) if re.fullmatch(r"-?\d+\.\d+", cell) else cell for cell in row]
            for row in csv.reader(handle)
        ]


def picture_difference(a: Path, b: Path) -> float:
    """Mean absolute difference of two pictures, 0 to 1; pictures of different size differ wholly."""
    with Image.open(a) as first, Image.open(b) as second:
        if first.size != second.size:
            return 1.0
        x, y = (np.asarray(image.convert("RGB"), dtype=float) for image in (first, second))
    return float(np.abs(x - y).mean() / 255)
