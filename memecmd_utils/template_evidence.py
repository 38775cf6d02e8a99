"""Which rule made CM50: rules held against its published validation set (2501.13851, Section 3.1).

The paper names the steps of its filter, not the thresholds. Memes of the published validation set must pass
the rule; the sizes of their templates, and how many there are in all, say how much a rule may keep.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from memecmd_utils.plots import BLUE, GREY, ORANGE, canvas, style
from memecmd_utils.template_filter import CM50_MEMES, TITLE_WAYS, last_places, measure, passing
from memecmd_utils.template_schemas import TemplateInfo
from memecmd_utils.template_settings import TemplateRule

NOTHING = TemplateRule(min_text_chars=0, min_votes=0, title_differs="ignored")
"""The rule that keeps every record; what others ask beyond it counts as a condition."""
_FIELDS = {
    "min_votes": "votes >= {}",
    "min_views": "views >= {}",
    "min_text_chars": "characters >= {}",
    "min_text_words": "words >= {}",
    "title_differs": "title differs ({})",
    "titles_unique_in": "titles unique in {}",
}
_EDGES = ("votes", "views", "chars", "words", "shortest", "boxes")


def describe(rule: TemplateRule) -> str:
    """The conditions of a rule on memes in one line."""
    asked = [
        words.replace("{}", str(getattr(rule, name))) for name, words in _FIELDS.items() if _asks(rule, name)
    ]
    return ", ".join(asked) or "every record"


def _asks(rule: TemplateRule, name: str) -> bool:
    # One character of text means "not blank": Section 3.1 asks for text, and no threshold is fitted.
    value = getattr(rule, name)
    return value != getattr(NOTHING, name) and not (name == "min_text_chars" and value == 1)


def candidate_rules(rule: TemplateRule | None = None) -> list[TemplateRule]:
    """About 70 rules around `rule`: votes x title, then each other threshold by itself; no rule twice."""
    base = rule or TemplateRule()
    titles = ("exact", "case", "letters", "names", "start", "ignored")
    changes: list[dict] = [
        {"min_votes": votes, "title_differs": title}
        for votes, title in itertools.product((0, 2, 4, 5, 6, 7, 8, 10), titles)
    ]
    grid = {
        "min_views": (0, 100, 150, 200, 300, 500),
        "min_text_chars": (1, 2, 5, 8, 10, 15, 20, 30),
        "min_text_words": (0, 2, 3, 4, 5, 8),
        "titles_unique_in": ("template", "all"),
    }
    changes += [{name: value} for name, values in grid.items() for value in values]
    rules = [base, *(base.model_copy(update=change) for change in changes)]
    return list({describe(found): found for found in rules}.values())


def evidence(
    records: pd.DataFrame,
    sample: pd.DataFrame,
    rules: Sequence[TemplateRule] | None = None,
    infos: Iterable[TemplateInfo] = (),
    total: int = CM50_MEMES,
) -> pd.DataFrame:
    """Rank rules by how well they explain a sample of CM50; the first row is the best.

    `records`: all records (`Records.frame`); `sample`: published memes (`template_records.frame_of`); a
    template of the sample without records plays no part. `rules`: None is `candidate_rules()`.

    Columns: `rule`; `left out`: memes of the sample that the rule refuses, and those that the records of
    their template lack, so that no rule keeps them; one rules it out (`allowed`); `kept` beside `expected`,
    the memes of these templates in all of CM50 by their share of the sample; `deviance`: of Poisson counts
    with mean kept x sample size / `total` for each template, which weighs shares and total size together;
    `distance`: total variation between the shares; `r`: correlation of kept and sampled; `first missing`:
    memes of the best template that is not in the sample; `in last 4 %`: share of the sample in the last part
    of its template, see `validation_places`; `conditions`: how many things a rule asks; `score`: deviance + 2
    for each condition, lower is better. Rules that leave out fewest come first, then all others, each by
    score. Raises `ValueError` where no template of the sample has records.
    """
    measured, found = _measured(records, sample, infos)
    observed = sample["template"].value_counts()
    present = observed[observed.index.isin(measured["template"].unique())]
    if present.empty:
        raise ValueError("no template of the sample has records: the rule cannot be looked for")
    weight = len(sample) / total
    here = sample.loc[sample["template"].isin(present.index), "meme_id"]
    missing = len(set(here) - set(measured["meme_id"]))
    rows = []
    for rule in rules or candidate_rules():
        passes = passing(measured, rule)
        counts = measured.loc[passes, "template"].value_counts()
        kept = counts.reindex(present.index).fillna(0)
        others = counts[~counts.index.isin(observed.index)]
        left_out = missing + len(found) - int(passes[measured.index.get_indexer(found.index)].sum())
        asked = sum(_asks(rule, name) for name in _FIELDS)
        deviance = _deviance(present.to_numpy(float), kept.to_numpy(float) * weight)
        shares = kept / kept.sum() if kept.sum() else kept
        rows.append(
            {
                "rule": describe(rule),
                "left out": left_out,
                "allowed": left_out == 0,
                "kept": int(kept.sum()),
                "expected": present.sum() / weight,
                "deviance": deviance,
                "distance": 0.5 * float((shares - present / present.sum()).abs().sum()),
                "r": float(kept.corr(present)) if len(present) > 2 and kept.std() else np.nan,
                "first missing": int(others.max()) if len(others) else 0,
                "in last 4 %": _in_last(measured, found, passes),
                "conditions": asked,
                "score": deviance + 2 * asked,
            }
        )
    table = pd.DataFrame(rows)
    # What is missing from the records is missing for every rule: the others are told apart all the same.
    more = (table["left out"] > table["left out"].min()).rename("more")
    order = pd.concat([more, table["score"]], axis=1).sort_values(["more", "score"], kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _measured(
    records: pd.DataFrame,
    sample: pd.DataFrame,
    infos: Iterable[TemplateInfo],
    titles: Collection[str] = TITLE_WAYS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All records with their measures, and those of them that are in the sample; `titles`: see `measure`."""
    measured = measure(records.reset_index(drop=True), infos, titles)
    # Comparing and counting 100 names in 400,000 rows is much faster on codes than on texts.
    measured["template"] = measured["template"].astype("category")
    found = measured[measured["meme_id"].isin(sample["meme_id"]) & measured["first"]]
    return measured, found.assign(template=found["template"].astype(str))


def _deviance(observed: np.ndarray, expected: np.ndarray) -> float:
    """Of Poisson counts; infinite where something was seen that is not expected at all."""
    if np.any((expected == 0) & (observed > 0)):
        return np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(observed > 0, observed * np.log(observed / expected), 0.0)
    return float(2 * np.sum(logs - (observed - expected)))


def _in_last(measured: pd.DataFrame, found: pd.DataFrame, passes: np.ndarray) -> float:
    places = _places(measured[passes], found["meme_id"])
    return float(places["in last 4 %"].sum() / max(1, places["sample"].sum()))


def _places(kept: pd.DataFrame, sampled: Iterable[str]) -> pd.DataFrame:
    ordered = kept[["template", "position", "meme_id"]].sort_values(["template", "position"])
    by = ordered.groupby("template", observed=True)
    table = pd.DataFrame({"kept": by.size()})
    table["last 4 %"] = table["kept"].map(last_places)
    # From here on the sample's rows alone, a few hundred: this runs once for every rule.
    here = pd.DataFrame({"template": ordered["template"], "place": by.cumcount()})
    here = here[ordered["meme_id"].isin(set(sampled))]
    edge = (table["kept"] - table["last 4 %"]).loc[here["template"]].to_numpy()
    at = here.assign(last=here["place"] >= edge).groupby("template", observed=True)
    table = table.loc[at.size().index]
    table["sample"], table["in last 4 %"] = at.size(), at["last"].sum().astype(int)
    table["first place"] = at["place"].min() / table["kept"]
    return table.rename_axis("template").reset_index()


def validation_places(
    records: pd.DataFrame, sample: pd.DataFrame, rule: TemplateRule, infos: Iterable[TemplateInfo] = ()
) -> pd.DataFrame:
    """Where the published validation memes stand among the memes that a rule keeps, in the source's order.

    A row a template: `kept`, `last 4 %` (memes in it), `sample`, those of them in the last 4 %, and the
    `first place` of one as a share of the template. Were they drawn at random, 4 % would be in the last 4 %.
    """
    measured, found = _measured(records, sample, infos, [rule.title_differs])
    return _places(measured[passing(measured, rule)], found["meme_id"])


def edges(
    records: pd.DataFrame,
    sample: pd.DataFrame,
    rule: TemplateRule | None = None,
    infos: Iterable[TemplateInfo] = (),
    total: int = CM50_MEMES,
) -> pd.DataFrame:
    """The largest threshold that the sample still allows, for each quantity, and whether it is an edge.

    `smallest`: in the sample, so a larger threshold is ruled out; `below`: memes of the same templates below
    it that pass all else that `rule` asks; `expected`: how many of those the sample would hold if there was
    no threshold; `chance`: that it holds none all the same, exp(-expected). Near 0: a threshold was there;
    near 1: nothing tells. No row where none of the sample is among the records.
    """
    rule = rule or TemplateRule()
    measured, found = _measured(records, sample, infos, [rule.title_differs])
    same = measured["template"].isin(found["template"]).to_numpy()
    column_of = {"votes": "min_votes", "views": "min_views", "chars": "min_text_chars"}
    column_of |= {"words": "min_text_words"}
    rows = []
    for name in _EDGES if len(found) else ():
        without = rule.model_copy(update={column_of[name]: 0}) if name in column_of else rule
        smallest = int(found[name].min())
        below = int((passing(measured, without) & same & (measured[name] < smallest).to_numpy()).sum())
        expected = below * len(sample) / total
        rows.append((name, smallest, below, expected, float(np.exp(-expected))))
    return pd.DataFrame(rows, columns=["quantity", "smallest", "below", "expected", "chance"])


def agreement(records: pd.DataFrame, sample: pd.DataFrame) -> pd.DataFrame:
    """How many memes of the sample are among the records, and how many have the same fields there."""
    fields = ["template", "url", "title", "views", "votes", "captions"]
    here = sample[sample["template"].isin(records["template"].unique())]
    both = here.merge(records, on="meme_id", suffixes=("", " of the record")).drop_duplicates("meme_id")
    rows = [("memes in the sample", len(sample)), ("of templates that are here", len(here))]
    rows.append(("found by their id", len(both)))
    for field in fields:
        pairs = zip(both[field], both[f"{field} of the record"], strict=True)
        rows.append((f"same {field}", sum(left == right for left, right in pairs)))
    return pd.DataFrame(rows, columns=["what", "memes"])


def sizes_figure(table: pd.DataFrame) -> Figure:
    """Memes kept of each template beside the size estimated from the sample with its 95 % interval.

    `table` is `Filtered.templates`; templates of the sample without records show the estimate only.
    """
    rows = table[table["sample"] > 0].sort_values("estimate", ascending=False, ignore_index=True)
    if rows.empty:
        raise ValueError("no template has an estimate: give CM50's validation set as the sample")
    with style():
        fig = canvas(9, 0.19 * len(rows) + 1.2)
        axes = fig.subplots()
        y = np.arange(len(rows))
        spread = [rows["estimate"] - rows["low"], rows["high"] - rows["estimate"]]
        axes.errorbar(
            rows["estimate"],
            y,
            xerr=spread,
            fmt="|",
            color=GREY,
            ms=7,
            lw=1.2,
            label="estimate, 95% interval",
        )
        here = rows["kept"].notna()
        inside = (rows["kept"] >= rows["low"]) & (rows["kept"] <= rows["high"])
        kept = rows["kept"].astype(float)
        for mask, colour, marker, label in (
            (here & inside.fillna(False), BLUE, "o", "kept"),
            (here & ~inside.fillna(False), ORANGE, "D", "kept, outside the interval"),
        ):
            if mask.any():
                axes.plot(kept[mask], y[mask], marker, color=colour, ms=4, label=label)
        names = rows["template"].where(here, rows["template"] + " (no records)")
        axes.set_yticks(y, names, fontsize=7)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.set_xlabel("memes")
        n = int((here & inside.fillna(False)).sum())
        axes.set_title(f"{n} of {int(here.sum())} templates inside their interval")
        axes.legend(loc="lower right")
    return fig
