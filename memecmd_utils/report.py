"""Stage 06: a run's numbers, tables and its page: one HTML file that opens on a chat.

All words of the page stand in `html/index.html.j2` and its parts.
"""

import base64
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pandas as pd
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from PIL import Image

from memecmd_utils import drawing, files, grades, pictures, release, retrieval, schemas, statistics, tables
from memecmd_utils.annotation import releasable
from memecmd_utils.dialogue import english_titles
from memecmd_utils.files import paths
from memecmd_utils.llm import authored, spending
from memecmd_utils.release import Records
from memecmd_utils.reranking import rank_of
from memecmd_utils.runs import STAGES, Run
from memecmd_utils.splits import UNTOUCHED
from memecmd_utils.statistics import Estimate
from memecmd_utils.studies import landing, live

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- numbers.json, placements.csv and the tables that the READMEs show


def records_of(run: Run) -> dict[str, list[Any]]:
    """The records that page and release hold, by table; of unsafe memes only what a release names."""
    memes, annotations = releasable(run.load(schemas.Meme), run.load(schemas.Annotation))
    dialogues = run.load(schemas.Dialogue)
    truth = grades.truth_of_run(run.profile, dialogues, memes)
    return {
        "memes": memes,
        "annotations": annotations,
        "dialogues": dialogues,
        "placements": run.load(schemas.Placement),
        "marks": truth.marks,
        "grades": truth.grades,
    }


def write_numbers(run: Run, records: Records) -> dict[str, Any]:
    """Compute and write `numbers.json`, `placements.csv` and `tables/*_shown.*`; the numbers."""
    truth, measured = run.load_json("ground_truth.json"), run.load_json("judge_checks.json")
    made = run.load_json("studies.json")
    # What page and READMEs quote of the ground truth and of the studies.
    quoted = ("claims", "ablation")
    numbers = {
        **tables.counts(run.profile, records, run.load(schemas.Rating)),
        **{name: rows for name, rows in measured.items() if name != "trust"},
        "ground_truth": {name: truth[name] for name in ("agreement", "retrieval") if name in truth},
        "studies": {"trust": measured["trust"], **{name: made.get(name, []) for name in quoted}},
        "landing": landing.quoted(run),
        "paper_data": run.load_json("paper_data.json"),
        "live": live.tables() if run.strict else {},
    }
    files.write_json(run.report / "numbers.json", numbers, statistics.as_json)
    columns = ["dialogue_id", "turn", "speaker", "strategy", "meme_id", "rank", "score"]
    placed = pd.DataFrame([p.model_dump() for p in records["placements"]], columns=columns)
    files.write_text(run.report / "placements.csv", placed.to_csv(index=False, float_format="%.6f"))
    run.save_tables(**{f"{name}_shown": table for name, table in shown_tables(numbers).items()})
    return numbers


STRATEGIES = ("strategy", "memes", "fits", "lands", "nobody", "mean grade", "minus random")
LANDING = ("who", "memes", "lands", "fits", "specificity", "different", "repeats")
LANDING_SETTINGS = ("setting", "memes", "rate", "ungraded", "fits", "lands", "specificity", "different")

LOOK = ("who", "memes", "described", "fits", "lands", "specificity", "repeats")
LIVE = ("who", "memes", "memes a dialogue", "fits", "lands", "mean grade")
PHASES = ("phases", "chats", "repeated openings", "new names", "questions", "distance", "echo")
CONFOUNDS = ("set", "strategy", "dialogues", "density", "repeats", "most frequent", "without a meme")


def percent(share: Estimate | float | None) -> str:
    """A share as whole per cent, without its interval; a dash where it is not known."""
    value = share.value if isinstance(share, Estimate) else share
    # A half goes up, as on the page; the format of Python makes 32 of 32.5 and 18 of 17.5.
    return "–" if value is None or np.isnan(value) else f"{int(round(100 * value, 6) + 0.5)}%"


def printed(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], shares: Sequence[str] = ()
) -> pd.DataFrame:
    """Rows as a table of some columns; plain numbers in `shares` are given as per cent."""
    cells = [row | {name: percent(row[name]) for name in shares if name in row} for row in map(dict, rows)]
    return pd.DataFrame(cells, columns=list(columns), dtype=object)


def shown_tables(numbers: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables that stand in the READMEs, by name; those of studies that were not made are left out."""
    studies, landed, published = numbers["studies"], numbers["landing"], numbers["paper_data"]
    asked, placed = numbers["live"], placed_at(numbers)
    own = [row for (where, who), row in placed.items() if where == who]
    same = [row for (where, _), row in placed.items() if where in [row["where"] for row in own[:1]]]
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
        row | {"strategy": schemas.STRATEGIES[name].label, "minus random": minus_random.get(name)}
        for row in numbers["levels"]
        for name in [row["strategy"]]
    ]
    ndcg = [row for row in studies["ablation"] if row["measure"] == "nDCG@5"]
    told = ("sign if told", "sign", "clear", "clearly opposite")
    shown = {
        "strategies": printed(strategies, STRATEGIES),
        "landing_own": printed(own, LANDING),
        "landing_same": printed(same, LANDING),
        "landing_settings": printed(landed.get("settings", ()), LANDING_SETTINGS, ("rate", "ungraded")),
        "landing_places": pd.DataFrame(landed.get("places", ())),
        "ablation": printed(ndcg, ("embedder", "compares", "full", "rest", "difference")),
        "judges": printed(
            studies["trust"], ("judge", "reading", "dialogues", "AUC random", "AUC hard", "verdict")
        ),
        "claims": printed(studies["claims"], ("claim", "dialogues", "worlds", *told), told),
        "look": printed((row for row in published["look"] if row["set"] == "all"), LOOK),
        "confounds": printed(published["confounds"], CONFOUNDS),
        "live": printed(asked.get("senders", ()), LIVE),
        "phases": printed(asked.get("phases", ()), PHASES),
        "preferences": printed(
            asked.get("preferences", ()), ("first", "second", "pairs", "preferred", "same vote")
        ),
    }
    return {name: table for name, table in shown.items() if len(table)}


def placed_at(numbers: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """How often memes land on the last test, which decides, by whose turns and who sends."""
    rows = numbers["landing"].get("placed", ())
    return {(row["where"], row["who"]): row for row in rows if row["split"] == rows[0]["split"]}


# --- The page

DIALOGUES, LIBRARY = 60, 400
"""Most dialogues and memes on the page; the release has all."""
SIDE = 128
"""Longest side of a meme's picture, in pixels: as large as a chat shows it."""
QUESTIONS = 12
"""How often the page asks which meme comes next."""
FIGURES = ("fig2_keywords", "fig3_scores", "fig4_consistency", "fig5_cases")
TABS = (retrieval.RERANKED, "greedy")
"""Strategies above the chat, the others in a menu; in a run of the authors' release, theirs stand above."""
RANDOM_THERE = "random_reranked_turns"
"""Random memes at the turns of `reranked`: what `random` is in the live corpus and in the held-out test."""


def write_page(run: Run, records: Records, numbers: Mapping[str, Any]) -> Path:
    """Write `index.html` of the report; `numbers` are those of `write_numbers`."""
    consistency = run.load(schemas.Consistency)
    beside = live.corpus() if run.strict else None
    chats = chat_payload(run, records, numbers, beside)
    drawn = live.drawings() if beside else {}  # the system's own library: those of the held-out tests, too
    library = cards(run, records, chats, beside, drawn)
    chats["memes"] = [[card["meme"].meme_id, card["meme"].words, card["meme"].gloss] for card in library]
    _draw_teaching_chat(run, records)
    if numbers["live"]:
        drawing.save(draw_lands(numbers), run.report / "figures", "lands")
    values = {
        "run": run,
        "profile": run.profile,
        "numbers": numbers,
        "placed": placed_at(numbers),
        "closed_gate": retrieval.closed_gate(run.profile, records["placements"]),
        "people": run.load_json("human_ratings.json")["verdict"],
        "scorer": consistency[0].scorer if consistency else "none",
        "unannotated": sum(bool(annotation.unscored) for annotation in records["annotations"]),
        "table_of": lambda name: table_of(run, name),
        "outcomes": files.html_table(pd.DataFrame(spending.outcome_rows(run.folder))),
        "chats": chats,
        "english": chats["english"] or any(card["meme"].gloss for card in library),
        "n_dialogues": len(records["dialogues"]),
        "library": library,
        "n_memes": len(records["memes"]),
        "n_drawn": len(drawn) or len(records["memes"]),
        "licences": Counter(card["meme"].licence for card in library).items(),
        "figures": [name for name in FIGURES if (run.report / "figures" / f"{name}.png").is_file()],
        "notebooks": [name for name, stage in STAGES.items() if not stage.templates],
        "dataset": quote(Path(os.path.relpath(run.folder / "release", run.report)).as_posix()),
        "sources": release.provenance(records),
        "stamp": release.stamp(run),
    }
    environment = files.templates(
        page_json=page_json, digest=_digest, describe=schemas.describe_source, percent=percent
    )
    target = run.report / "index.html"
    files.write_text(target, environment.get_template("index.html.j2").render(values))
    return target


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


def _draw_teaching_chat(run: Run, records: Records) -> None:
    """Write `chat.png`: the dialogue that lessons follow, with the first tab's memes."""
    known = run.profile.retrieval.strategies
    memes = {meme.meme_id: meme for meme in records["memes"]}
    dialogue = drawing.teaching_dialogue(records["dialogues"])
    strategy = next((name for name in (*TABS, *known) if name in known), "")
    target = run.report / "figures" / "chat.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    screenshot(run, dialogue, records["placements"], strategy, memes).save(target)


SENDERS = {
    "Reranked": ((retrieval.RERANKED, retrieval.RERANKED), "reranked", "reranked"),
    "Learned": (("learned", "learned"), "", ""),
    "Greedy": (("greedy", "greedy"), "greedy", "greedy"),
    "Greedy, at\nReranked's\nturns": ((retrieval.RERANKED, "greedy"), "greedy, same turns", ""),
    "Popular": ((retrieval.RERANKED, landing.POPULAR), "popular", ""),
    "Random": ((retrieval.RERANKED, landing.RANDOM), "random", "random"),
}
"""Rows of `lands.png`: whose turns and who sends on the held-out test, who in the other two panels."""


def draw_lands(numbers: Mapping[str, Any]) -> "Figure":
    """How often a sender's memes land in three places: a dot and its interval; behind it, pale, fit."""
    look = [row for row in numbers["paper_data"]["look"] if row["set"] == "all"]
    places = {
        "held-out\ntest": placed_at(numbers),
        "the system's\nown chats": {row["who"]: row for row in numbers["live"]["senders"]},
        "the paper's\nown chats": {row["who"]: row for row in look},
    }
    with drawing.style():
        fig = drawing.canvas(4.8, 4.2)  # a phone shows it whole
        panels = fig.subplots(1, 3, sharex=True, sharey=True)
        for place, (axes, (title, rows)) in enumerate(zip(panels, places.items(), strict=True)):
            for height, names in enumerate(reversed(SENDERS.values())):
                if (row := rows.get(names[place])) is None:
                    axes.text(50, height, "not\nmeasured", color="0.45", ha="center", va="center")
                    continue
                for share, colour, width in ((row["fits"], "#c9dcea", 7), (row["lands"], drawing.BLUE, 2)):
                    axes.hlines(height, 100 * share.low, 100 * share.high, color=colour, lw=width)
                    axes.plot(100 * share.value, height, "o", color=colour, ms=width + 3)
                axes.text(113, height, f"{row['memes']}", color="0.35", va="center")
            axes.set(title=title, xlim=(-3, 152), xticks=(0, 50, 100), ylim=(-0.6, len(SENDERS) - 0.4))
            axes.spines["bottom"].set_bounds(0, 100)
        panels[0].set_yticks(range(len(SENDERS)), list(reversed(SENDERS)))
        told = "% of the memes that land (pale: that fit),\n95% intervals; right: number of memes sent"
        fig.supxlabel(told, fontsize=11)
    return fig


def _digest(script: str) -> str:
    """Hash by which a page allows this script and no other (Content Security Policy)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(str(script).encode('utf-8')).digest()).decode()}"


def page_json(value: Any) -> Markup:
    """JSON for a script element: no sign in it ends the element or opens a comment. NaN is an error."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


PAGE_NAMES = {
    "untouched_2": "the held-out test", "untouched": "the first held-out test", "nobody": "0 from both",
    "best single meme": "One meme", "context to caption": "Caption alone", "Diversity-aware": "Sampling",
    "without none": "must send at every turn", "greedy_difference": "Greedy minus Random",
    "sampling_difference": "Sampling minus Random", "Random, same turns": "Random, at Greedy’s turns",
    "random_same_turns": "Random, at Greedy’s turns", "strategy": "sender", "split": "test",
    "S-": "S−", "Psi": "Ψ",
}  # fmt: skip
"""What the tables of the page say for names that files have, also as a part of a cell."""
CHAT_CELL = re.compile(r"<td>((?:news|role)-[^<]+)</td>")
_NAMED = re.compile("|".join(map(re.escape, PAGE_NAMES)))  # untouched_2 stands before untouched
_SENDER = re.compile(rf"(?:^|(?<= minus )|(?<= - ))(?:{'|'.join((*schemas.STRATEGIES, landing.POPULAR))})\b")


def _said(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """A table of files in the words of the page, senders with a capital."""
    both = name in ("strategies_shown", "meme_use", "table_1_shown")  # which have both kinds of Random

    def word(cell: str) -> str:
        if both and cell in ("random", "Random"):
            return "Random, at random turns"
        said = _NAMED.sub(lambda found: PAGE_NAMES[found[0]], cell)
        return _SENDER.sub(lambda found: found[0].capitalize(), said)

    # A p of files that were rounded to six digits may be 0.
    small = {"p": table["p"].replace("0.000", "< 0.001")} if "p" in table else {}
    return table.assign(**small).map(word).rename(columns=word)


def table_of(run: Run, name: str) -> Markup:
    """A table that a stage wrote into `tables/`, as the page shows it; empty where there is none."""
    folders = [run.report, *([paths.reports / run.read_also.name] if run.read_also else [])]
    for path in (folder / "tables" / f"{name}.md" for folder in folders):
        if path.is_file():
            frame = _said(files.read_markdown(path), name)
            shown = files.html_table(frame) if len(frame) else Markup()
            if name == "table_2":  # its dialogues are chats of the page
                shown = Markup(CHAT_CELL.sub(r'<td><a href="#chat=\1">\1</a></td>', str(shown)))
            return shown
    return Markup()


# --- The chats: what the page's script reads, compact rows instead of records


def chat_payload(
    run: Run, records: Records, numbers: Mapping[str, Any], beside: live.Corpus | None
) -> dict[str, Any]:
    """The first dialogues of a run, of each kind in turn, under every strategy, as plain JSON.

    Those of the live corpus stand before them, under the strategies that it has. A typical one comes first.
    """
    profile, dialogues, placements = run.profile, records["dialogues"], records["placements"]
    choices, candidates = run.load(schemas.Choice), run.load(schemas.Candidate)
    truth = grades.truth_of_run(profile, dialogues, records["memes"])
    words = {name: told for name, told in schemas.STRATEGIES.items() if name in profile.retrieval.strategies}
    kinds = {kind: [d for d in dialogues if d.kind == kind] for kind in schemas.DIALOGUE_KINDS}
    mixed = [d for pair in zip_longest(*kinds.values()) for d in pair if d is not None]
    chosen = {dialogue.dialogue_id for dialogue in mixed[:DIALOGUES]}
    shown = [dialogue for dialogue in dialogues if dialogue.dialogue_id in chosen]
    halves, glosses = retrieval.halves(dialogues), english_titles(run, dialogues)
    gates, means = run.load_json("gates.json"), truth.means
    typical = drawing.teaching_dialogue(shown, "typical").dialogue_id
    if beside:
        typical, shown = live.TYPICAL, [*beside.dialogues, *shown]
        glosses |= {dialogue.dialogue_id: dialogue.gloss for dialogue in beside.dialogues}
        halves, gates, means = halves | beside.halves, gates | beside.gates, means | live.means()
        candidates, placements = [*beside.candidates, *candidates], [*beside.placements, *placements]
    shown.sort(key=lambda dialogue: dialogue.dialogue_id != typical)
    every = (candidates, placements, truth.marks, [*(beside.choices if beside else ()), *choices])
    tops, placed, marks, chosen_at = map(_by_dialogue, every)

    english = authored.reason_glosses() if run.strict else {}

    def grade(dialogue_id: str, turn: int, meme_id: str) -> float | None:
        return means.get((dialogue_id, turn), {}).get(meme_id)

    def told(reason: str) -> list[str]:
        """A reason and its English; neither where a sender gives none."""
        return [reason, *filter(None, [english.get(reason)])] if reason else []

    def chat(dialogue: schemas.Dialogue) -> dict[str, Any]:
        name = dialogue.dialogue_id
        top: dict[int, list[list[Any]]] = {}
        for c in sorted(tops.get(name, ()), key=lambda c: c.rank):
            parts = (round(float(x), 4) for x in (c.alpha, c.delta, c.beta, c.gamma))
            top.setdefault(c.turn, []).append([c.meme_id, *parts, grade(name, c.turn, c.meme_id)])
        sent: dict[str, dict[int, list[Any]]] = {strategy: {} for strategy in words}
        for p in (p for p in placed.get(name, ()) if p.strategy in sent):
            sent[p.strategy][p.turn] = [p.meme_id, grade(name, p.turn, p.meme_id), *told(p.reason)]
        if name.startswith(live.PREFIX):  # who sends nothing there was not run: these records are final
            sent = {RANDOM_THERE if by == landing.RANDOM else by: rows for by, rows in sent.items() if rows}
        picked = [c for c in chosen_at.get(name, ()) if c.meme_id and c.options]
        marked: dict[int, list[int]] = {}
        for mark in marks.get(name, ()):
            send, total = marked.get(mark.turn, (0, 0))
            marked[mark.turn] = [send + mark.send, total + 1]
        return {
            "id": name,
            "kind": dialogue.kind,
            "title": dialogue.title,
            "gloss": glosses[name],
            "names": {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"},
            "source": schemas.describe_source(dialogue.source),
            "corpus": "live" if name.startswith(live.PREFIX) else "run",
            "turns": [[t.turn, t.speaker, t.text, t.gloss, t.violations] for t in dialogue.turns],
            "seen": {summary.turn: _seen(name, summary) for summary in dialogue.summaries},
            "half": halves[name],
            "top": top,
            "placed": sent,
            "none": {c.turn: told(c.unscored or c.reason) for c in chosen_at.get(name, ()) if not c.meme_id},
            "ranks": {c.turn: [rank_of(c, name.removeprefix(live.PREFIX)), len(c.options)] for c in picked},
            "marks": marked,
        }

    tabs = [name for name in words if name.startswith(schemas.RELEASED)] if profile.paper_data else TABS
    asked_in = {name: place for place, name in enumerate(dialogue.dialogue_id for dialogue in shown)}
    return {
        "run": run.name,
        "ratings": f"data/raw/ratings/{profile.name}/",
        "questions": [
            [asked_in[c.dialogue_id], c.turn, [[m, grade(c.dialogue_id, c.turn, m)] for m in c.options]]
            for c in questions([d.dialogue_id for d in mixed[:DIALOGUES]], choices, means, profile.seed)
        ],
        "strategies": [[name, *words[name]] for name in dict.fromkeys((*tabs, *words)) if name in words],
        "tabs": [name for name in tabs if name in words],
        "rates": landing_rates(numbers),
        "weights": list(profile.retrieval.weights),
        "gates": gates,
        "top_k": profile.retrieval.top_k,
        "english": any(turn.gloss for one in shown for turn in one.turns),
        "dialogues": [chat(dialogue) for dialogue in shown],
    }


def questions(
    dialogues: Sequence[str], choices: Iterable[schemas.Choice], means: Mapping[grades.Key, Any], seed: int
) -> list[schemas.Choice]:
    """At which turns a visitor is asked what comes next: one in each of the first `QUESTIONS` dialogues.

    It is drawn by seed whether *reranked* sent a meme there or none. Of these turns the first one counts at
    which most of the candidates are graded, so that most answers of a visitor have a grade.
    The live corpus is not asked about: of its candidates only those that were sent are graded.
    """
    offered = _by_dialogue(c for c in choices if c.options)
    asked = []
    for name in [name for name in dialogues if name in offered][:QUESTIONS]:
        sends = statistics.rng(seed, "question", name).random() < 0.5
        rows = [c for c in offered[name] if bool(c.meme_id) == sends] or offered[name]
        asked.append(max(rows, key=lambda c: len(means.get((name, c.turn), {}).keys() & set(c.options))))
    return asked


def landing_rates(numbers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Shares of a strategy's memes that land, on the test that decides, in the run and in the live corpus."""
    rows = {at: row["lands"].value for at, row in placed_at(numbers).items() if row["split"] in UNTOUCHED}
    held_out = {who: rate for (where, who), rate in rows.items() if where == who}
    at_turns_of = {"random_same_turns": "greedy", RANDOM_THERE: retrieval.RERANKED}
    held_out |= {n: rows[at, landing.RANDOM] for n, at in at_turns_of.items() if (at, landing.RANDOM) in rows}
    senders = {row["who"]: row["lands"].value for row in numbers["live"].get("senders", ())}
    own = {RANDOM_THERE if who == landing.RANDOM else who: rate for who, rate in senders.items()}
    run = {row["strategy"]: rate for row in numbers["levels"] if np.isfinite(rate := row["lands"].value)}
    return {"held out": held_out, "run": run, "live": own}


def _seen(dialogue_id: str, summary: schemas.Summary) -> list[Any]:
    """The three texts of a summary, why there is none, and their English where the data hold it."""
    fields = ("scenario", "emotion", "motivation")
    english = drawing.english_of(summary, f"{dialogue_id}/{summary.turn}")
    glosses = [english[name] for name in fields] if english else None
    return [*(getattr(summary, name) for name in fields), summary.unscored, glosses]


def _by_dialogue(rows: Iterable[Any]) -> dict[str, list[Any]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row.dialogue_id].append(row)
    return groups


# --- The library: small pictures, each embedded once, with captions and annotations


def cards(
    run: Run,
    records: Records,
    chats: Mapping[str, Any],
    beside: live.Corpus | None,
    drawings: Mapping[str, schemas.Meme],
) -> list[dict[str, Any]]:
    """The memes that the page shows: all that the chats need, then others in order, up to `LIBRARY`.

    `beside` are the system's own chats, if the page has them, and `drawings` the memes of their library.
    """
    memes, folder, needed = run.memes(), run.read("memes.parquet").parent, set()
    for chat in chats["dialogues"]:
        rows = [*chat["top"].values(), *(turns.values() for turns in chat["placed"].values())]
        needed |= {row[0] for memes in rows for row in memes}
    needed |= {meme for *_, offered in chats["questions"] for meme, _ in offered}
    others = [meme.meme_id for meme in records["memes"] if meme.meme_id not in needed]
    shown = needed | set(others[: max(0, LIBRARY - len(needed))])
    annotation_of = {annotation.meme_id: annotation for annotation in records["annotations"]}
    files_of = {meme.meme_id: folder / meme.file for meme in records["memes"]}
    if beside:
        drawn = {name: meme for name, meme in drawings.items() if name in needed - memes.keys()}
        memes = memes | drawn
        files_of |= {name: Path(meme.file) for name, meme in drawn.items()}
        annotation_of = {a.meme_id: a for a in beside.annotations if a.meme_id in drawn} | annotation_of
    return [
        {
            "meme": memes[name],
            "annotation": (annotation := annotation_of.get(name)),
            "english": drawing.english_of(annotation, name) if annotation else {},
            "picture": pictures.thumbnail(path, SIDE, quality=45),
        }
        for name, path in files_of.items()
        if name in shown
    ]
