"""Tables 2, 3 and 4 of 2501.13851 in its form: its numbers, and beside them those computed here.

A row is filled by a model of that row's architecture alone. What is not there is said in a note; a cell is
never filled with something like it, and numbers of a tiny model never get here.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from memecmd_utils import clip_architectures, paths, statistics
from memecmd_utils.clip_architectures import ARCHITECTURES, L14
from memecmd_utils.meme_text_retrieval import BOTH, MEASURES
from memecmd_utils.retrieval_items import KINDS
from memecmd_utils.retrieval_rows import FINE_TUNED, NOT_COMPUTED, ORDER, Measured, Row


def paper_table(number: int) -> pd.DataFrame:
    """Table 2, 3 or 4 as printed in 2501.13851."""
    return pd.read_csv(paths.data / "paper" / f"mtrclip_table{number}.csv")


def table_2(measured: Sequence[Measured]) -> pd.DataFrame:
    """Table 2: R@1 of meme captions in both directions, on MemeCap; a row a model and selection."""
    printed = paper_table(2).set_index("model")
    rows = []
    for label in ORDER:
        for one in _of_label(measured, label):
            row = {"model": label, "selection": one.row.selection}
            found, note = _allowed(one, label, "meme_caption")
            for direction in ("T2M", "M2T"):
                row[f"{direction} R@1 paper"] = printed.loc[label, direction.lower()]
                row |= _cell(found, direction, "R@1", f"{direction} R@1")
            rows.append(row | _tail(found, one, note))
    return pd.DataFrame(rows)


def table_3(measured: Sequence[Measured]) -> pd.DataFrame:
    """Table 3: R@K on MemeCap by kind of text, both directions together, before and after fine-tuning."""
    return _by_text(measured, 3)


def table_4(measured: Sequence[Measured]) -> pd.DataFrame:
    """Table 4: the same on CM50's validation set."""
    return _by_text(measured, 4)


def _by_text(measured: Sequence[Measured], number: int) -> pd.DataFrame:
    printed = paper_table(number).set_index(["fine_tuned", "text"])
    rows = []
    for label, fine_tuned in ((L14, "no"), ("Fine-tuned CLIP", "yes")):
        for one in _of_label(measured, label):
            for kind in KINDS:
                row = {"fine-tuned": fine_tuned, "selection": one.row.selection, "text": kind}
                found, note = _allowed(one, label, kind)
                for name in MEASURES:
                    row[f"{name} paper"] = printed.loc[(fine_tuned, kind), name]
                    row |= _cell(found, BOTH, name, name)
                rows.append(row | _tail(found, one, note))
    return pd.DataFrame(rows)


def _of_label(measured: Sequence[Measured], label: str) -> list[Measured]:
    return [one for one in measured if one.row.label == label] or [
        Measured(Row(label), note=f"{NOT_COMPUTED}: no model was given for this row")
    ]


def _allowed(one: Measured, label: str, kind: str) -> tuple[pd.DataFrame | None, str]:
    """The numbers that may stand in a row, in the paper's counting; else None and why there are none."""
    if one.note:
        return None, one.note
    wanted = FINE_TUNED.get(label, label)
    ranking = one.rankings.get(kind)
    if ranking is None:
        return None, f"{NOT_COMPUTED}: no meme has a text of this kind"
    if clip_architectures.architecture(one.row.model) != wanted:
        said = clip_architectures.misfit(one.row.model, wanted) or f"{one.weights} is no {wanted}"
        return None, f"{NOT_COMPUTED}: {said}"
    if ranking.dim != (dim := ARCHITECTURES[wanted].dim):
        return None, f"{NOT_COMPUTED}: vectors of {one.weights} have length {ranking.dim}, not {dim}"
    frame = Measured(one.row, one.weights, {kind: ranking}).recalls()
    return frame[frame["counting"] == "pair"].set_index(["direction", "measure"]), ""


def _cell(found: pd.DataFrame | None, direction: str, measure: str, name: str) -> dict[str, float]:
    ends = {"": "value", " low": "low", " high": "high"}
    return {
        f"{name}{end}": np.nan if found is None else float(found.loc[(direction, measure), column])
        for end, column in ends.items()
    }


def _tail(found: pd.DataFrame | None, one: Measured, note: str) -> dict[str, object]:
    n = 0 if found is None else int(found["n"].iloc[0])
    return {"n": n, "weights": one.weights if n else "", "note": note}


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """A table for reading: value and interval in one cell, beside it the paper's number.

    A row of which nothing was computed has dashes, and its note says what to give.
    """
    out = pd.DataFrame()
    for name in table.columns:
        if name.endswith((" low", " high")):
            continue
        if f"{name} low" not in table.columns:
            digits = name.endswith(" paper")
            out[name] = [f"{value:.3f}" for value in table[name]] if digits else list(table[name])
            continue
        out[f"{name} here"] = [statistics.format_interval(row, name, 3) for row in table.to_dict("records")]
    return out
