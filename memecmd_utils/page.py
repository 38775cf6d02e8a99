"""The page of a run: one HTML file that holds its answers, chats, tables, figures and library.

It reads what the stages wrote; all words stand in `html/index.html.j2` and its parts.
"""

import base64
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from PIL import Image

from memecmd_utils import benchmark, drawing, evaluation, files, pictures, release, report, retrieval, schemas
from memecmd_utils.files import paths
from memecmd_utils.report import Records
from memecmd_utils.runs import Run
from memecmd_utils.settings import Profile

DIALOGUES, LIBRARY, LEADING = 60, 400, 10
"""Most dialogues, memes and systems of a leaderboard on the page; the release and `tables/` have all."""
SIDE = 240
"""Longest side of a meme's picture, in pixels."""
TALL = 1000
"""CSS pixels from which on a figure folds."""
FIGURES = ("fig2_keywords", "fig3_scores", "fig4_consistency", "fig5_cases")
UNGATED = ("random", retrieval.LEARNED, retrieval.RERANKED)
"""Strategies that do not ask the paper's gate."""


def write_page(run: Run, records: Records, numbers: Mapping[str, Any]) -> Path:
    """Write `index.html` of the report; `numbers` are those of `report.write_numbers`."""
    chats = chat_payload(records, run.profile) if records.dialogues else None
    folder = run.read("memes.parquet").parent
    library = cards(records, lambda meme: pictures.thumbnail(folder / meme.file, SIDE), chats)
    if chats:
        chats["memes"] = [[card["meme"].meme_id, card["meme"].text, card["meme"].gloss] for card in library]
        _draw_teaching_chat(run, records)
    values = {
        "run": run,
        "profile": run.profile,
        "numbers": numbers,
        "facts": report.facts(numbers),
        "closed_gate": retrieval.closed_gate(
            run.profile, records.placements, records.candidates, records.gates
        ),
        "people": run.load_json("human_ratings.json")["verdict"],
        "scorer": records.consistency[0].scorer if records.consistency else "none",
        "unannotated": sum(bool(annotation.unscored) for annotation in records.annotations),
        "table_of": lambda name: table_of(run, name),
        "leaderboards": _leaderboards(run),
        "outcomes": files.html_table(pd.DataFrame(run.outcomes())),
        "chats": chats,
        "n_dialogues": len(records.dialogues),
        "library": library,
        "n_memes": len(records.memes),
        "licences": Counter(card["meme"].licence for card in library).items(),
        "figures": {name: _figure(run.report / "figures" / f"{name}.png") for name in FIGURES},
        "notebooks": [path.stem for path in sorted(run.report.glob("0*.html"))],
        "dataset": quote(Path(os.path.relpath(run.folder / "release", run.report)).as_posix()),
        "sources": release.provenance(records.of_release()),
    }
    environment = files.templates(
        page_json=page_json, digest=_digest, describe=schemas.describe_source, **report.FILTERS
    )
    target = run.report / "index.html"
    files.write_text(target, environment.get_template("index.html.j2").render(values))
    return target


def rewrite_page(run: Run) -> None:
    """Write the page of a run anew where it has one."""
    if (run.report / "index.html").is_file():
        numbers = json.loads((run.report / "numbers.json").read_text(encoding="utf-8"))
        write_page(run, report.load_records(run), numbers)


def _draw_teaching_chat(run: Run, records: Records) -> None:
    """Write `chat.png`: the dialogue that lessons follow, with the memes of the first strategy."""
    strategy = (evaluation.case_strategies(run.profile) or [""])[0]
    memes = {meme.meme_id: meme for meme in records.memes}
    dialogue = drawing.teaching_dialogue(records.dialogues)
    target = run.report / "figures" / "chat.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    evaluation.screenshot(run, dialogue, records.placements, strategy, memes).save(target)


def _digest(script: str) -> str:
    """Hash by which a page allows this script and no other (Content Security Policy)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(str(script).encode('utf-8')).digest()).decode()}"


def page_json(value: Any) -> Markup:
    """JSON for a script element: no sign in it ends the element or opens a comment. NaN is an error."""
    return htmlsafe_json_dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _figure(picture: Path) -> dict[str, Any] | None:
    """A figure for the page: embedded, `width` in CSS pixels, and whether it folds."""
    if not picture.is_file():
        return None
    # Figures are saved at 150 dots an inch for sharp print; a page counts 96 pixels an inch.
    with Image.open(picture) as opened:
        share = min(1.0, 96 / opened.info.get("dpi", (96, 96))[0])
        size = {"width": round(opened.width * share), "tall": opened.height * share > TALL}
    return {**size, "url": files.data_url(drawing.fewer_colours(picture.read_bytes()))}


def table_of(run: Run, name: str) -> Markup:
    """A table that a stage wrote into `tables/`, as the page shows it; empty where there is none."""
    folders = [run.report, *([paths.reports / run.fallback.name] if run.fallback else [])]
    for path in (folder / "tables" / f"{name}.csv" for folder in folders):
        if path.is_file():
            frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
            texts = frame.select_dtypes(exclude="number").columns
            frame[texts] = frame[texts].map(
                lambda cell: files.unguarded(cell) if isinstance(cell, str) else cell
            )
            return files.html_table(report.printed(frame.to_dict("records"))) if len(frame) else Markup()
    return Markup()


def _leaderboards(run: Run) -> dict[str, Markup]:
    """The best systems of each split of the benchmark; none before `make leaderboard`, or of other grades."""
    rows = benchmark.load(run.report)
    columns = ("system", "kind", "R@1", "R@5", "nDCG@5", "judged@5", "difference", "p Holm", "dialogues")
    return {
        split: files.html_table(
            report.printed(benchmark.first([r for r in rows if r["split"] == split], LEADING), columns)
        )
        for split in dict.fromkeys(row["split"] for row in rows)
    }


# --- The chats: what the page's script reads, compact rows instead of records


def chat_payload(records: Records, profile: Profile) -> dict[str, Any]:
    """The first dialogues of a run, of each kind in turn, under every strategy, as plain JSON."""
    strategies = list(profile.retrieval.strategies)
    scores, graders = placed_scores(records), len(records.truth.graders)
    kinds = {kind: [d for d in records.dialogues if d.kind == kind] for kind in schemas.KINDS}
    mixed = [d for pair in zip_longest(*kinds.values()) for d in pair if d is not None]
    chosen = {dialogue.dialogue_id for dialogue in mixed[:DIALOGUES]}
    halves = retrieval.halves(records.dialogues)
    tops, placed, marks = (
        _by_dialogue(rows) for rows in (records.candidates, records.placements, records.truth.marks)
    )

    def grade(dialogue_id: str, turn: int, meme_id: str) -> float | None:
        return records.truth.means.get((dialogue_id, turn), {}).get(meme_id)

    def said_of(p: schemas.Placement) -> list[float | None]:
        place = p.strategy, p.dialogue_id, p.turn
        graded = [grade(p.dialogue_id, p.turn, p.meme_id)] if graders else []
        return [*graded, *(of.get(place) for of in scores.values())]

    def chat(dialogue: schemas.Dialogue) -> dict[str, Any]:
        name = dialogue.dialogue_id
        top: dict[int, list[schemas.Candidate]] = {}
        for candidate in sorted(tops.get(name, ()), key=lambda c: c.rank):
            top.setdefault(candidate.turn, []).append(candidate)
        mine = placed.get(name, ())
        sent = {p.turn for p in mine if p.strategy not in UNGATED}
        turns = [summary.turn for summary in dialogue.summaries]
        best = {turn: top[turn][0].score if turn in top else -math.inf for turn in turns}
        marked: dict[int, list[int]] = {}
        for mark in marks.get(name, ()):
            send, total = marked.get(mark.turn, (0, 0))
            marked[mark.turn] = [send + mark.send, total + 1]
        return {
            "id": name,
            "kind": dialogue.kind,
            "title": dialogue.title,
            "gloss": records.title_glosses.get(name, ""),
            "names": {"A": dialogue.name_a or "A", "B": dialogue.name_b or "B"},
            "source": schemas.describe_source(dialogue.source),
            "turns": [[t.turn, t.speaker, t.text, t.gloss, t.violations] for t in dialogue.turns],
            "seen": {summary.turn: _seen(name, summary) for summary in dialogue.summaries},
            "gate": gate_path(best, records.gates[halves[name]], sent),
            "top": {
                turn: [
                    [c.meme_id, *(round(x, 4) for x in (c.alpha, c.delta, c.beta, c.gamma, c.score)),
                     grade(name, turn, c.meme_id)]
                    for c in found
                ]
                for turn, found in top.items()
            },
            "placed": {
                strategy: {
                    p.turn: [p.meme_id, _rounded(p.score), said_of(p), p.reason]
                    for p in mine if p.strategy == strategy
                }
                for strategy in strategies
            },
            "marks": marked,
        }  # fmt: skip

    return {
        "strategies": [
            [name, schemas.STRATEGIES[name].label, schemas.STRATEGIES[name].does, name not in UNGATED]
            for name in strategies
        ],
        "measures": [
            *([f"Mean grade of {graders} graders (0-2; a model's, not people's)"] if graders else []),
            *scores,
        ],
        "weights": list(profile.retrieval.weights),
        "top_k": profile.retrieval.top_k,
        "scale": profile.retrieval.score_scale,
        "meme_position": profile.retrieval.meme_position,
        "dialogues": [chat(d) for d in records.dialogues if d.dialogue_id in chosen],
    }


def placed_scores(records: Records) -> dict[str, dict[tuple[str, str, int], float | None]]:
    """What judges and consistency say of placed memes: measure to scores by strategy, dialogue and turn."""
    longest: dict[str, int] = {}
    for rating in records.ratings:  # a judge may have rated prefixes too
        longest[rating.judge] = max(rating.n_turns, longest.get(rating.judge, 0))
    rows = [(f"Judge {r.judge}", r, r.overall) for r in records.ratings if r.n_turns == longest[r.judge]]
    rows += [
        (f"Consistency with u_t, {c.scorer}", c, c.score) for c in records.consistency if c.text == "u_t"
    ]
    found: dict[str, dict[tuple[str, str, int], float | None]] = {}
    for name, at, score in rows:
        found.setdefault(f"{name} (0-100)", {})[at.strategy, at.dialogue_id, at.turn] = _rounded(score)
    return found


def gate_path(
    scores: Mapping[int, float], calibration: Mapping[str, Any], sent: set[int]
) -> dict[int, tuple[float | None, float, bool]]:
    """Gate score, threshold and decision by turn (Eq. 23); a turn without a summary has no score.

    `scores`: raw top-1 T by turn, -inf where there is none. `sent`: the turns at which the gate opened.
    They are taken from the records: the calibration is written with six digits, and a score may come that
    near to its threshold.
    """
    gate = retrieval.Gate(calibration["theta0"], calibration["penalty"], calibration["decay"])
    path, since = {}, math.inf
    for turn, raw in scores.items():
        since += 1
        score = (raw - calibration["score_mean"]) / calibration["score_std"]
        known = round(score, 4) if math.isfinite(score) else None
        path[turn] = known, round(gate.theta0 + gate.rise(since), 4), turn in sent
        since = 0 if turn in sent else since
    return path


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _seen(dialogue_id: str, summary: schemas.Summary) -> list[Any]:
    """The three texts of a summary, why there is none, and their English where the data hold it."""
    fields = ("scenario", "emotion", "motivation")
    english = drawing.english_of(summary, f"{dialogue_id}/{summary.turn}")
    glosses = [english[name] for name in fields] if english else None
    return [*(getattr(summary, name) for name in fields), summary.unscored, glosses]


def _by_dialogue(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.dialogue_id, []).append(row)
    return found


# --- The library: small pictures, each embedded once, with captions and annotations


def cards(
    records: Records, picture: Callable[[schemas.Meme], str], chats: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """The memes that the page shows: all that the chats need, then others in order, up to `LIBRARY`.

    `picture` gives the data URL of a meme's small picture.
    """
    needed = set()
    for chat in chats["dialogues"] if chats else ():
        rows = [*chat["top"].values(), *(turns.values() for turns in chat["placed"].values())]
        needed |= {row[0] for found in rows for row in found}
    others = [meme.meme_id for meme in records.memes if meme.meme_id not in needed]
    shown = needed | set(others[: max(0, LIBRARY - len(needed))])
    annotated = {said.meme_id: said for said in records.annotations}
    times: dict[str, Counter[str]] = {}
    for placed in records.placements:
        times.setdefault(placed.meme_id, Counter())[placed.strategy] += 1
    return [
        {
            "meme": meme,
            "annotation": (said := annotated.get(meme.meme_id)),
            "english": drawing.english_of(said, meme.meme_id) if said else {},
            "picture": picture(meme),
            "placed": times.get(meme.meme_id, {}),
        }
        for meme in records.memes
        if meme.meme_id in shown
    ]
