"""From ImgFlip575K to CM50: the paper's filter as named steps, the split, and the evidence for the rule.

The paper (2501.13851, Section 3.1) names the steps of its filter, not the thresholds. Memes of the published
validation set must pass the rule; the sizes of their templates, and how many there are in all, say how much a
rule may keep.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import files, statistics
from memecmd_utils.schemas import TemplateMeme
from memecmd_utils.settings import TemplateRule
from memecmd_utils.template_memes.data_sets import COLUMNS, IMGFLIP

CM50_MEMES = 33_173  # memes of CM50 (Section 3.1; the introduction says 33,172)
FREE = ("each meme once", "text of at least 1 characters")
"""Conditions that no rule is charged for: Section 3.1 asks for text, and no threshold is fitted."""
EDGES = {
    "votes": "min_votes", "views": "min_views", "chars": "min_text_chars", "words": "min_text_words",
    "shortest": "", "boxes": "",
}  # fmt: skip
"""Quantities that may have an edge in the sample, and the threshold of a rule on them."""


class Filtered(NamedTuple):
    """What a rule keeps: records with their part of the `split`, in the order of the source; what each step
    left of records and templates; and every template by memes kept (see `template_table`)."""

    memes: pd.DataFrame
    steps: pd.DataFrame
    templates: pd.DataFrame


def measure(records: pd.DataFrame) -> pd.DataFrame:
    """Add what rules ask for: lengths of the text, whether the title differs, whether the meme is a repeat.

    `chars`, `words`: of all captions; `shortest`: characters of the shortest caption that is not blank (0
    where all are); `boxes`: captions; `differs`: the title is not the template's name letter for letter;
    `first`: no record before it, by template and position, has the same id.
    """
    frame = records.sort_values(["template", "position"], kind="stable", ignore_index=True)
    lengths = [[len(text.strip()) for text in captions] for captions in frame["captions"]]
    return frame.assign(
        chars=[sum(row) for row in lengths],
        words=[sum(len(text.split()) for text in captions) for captions in frame["captions"]],
        shortest=[min(filter(None, row), default=0) for row in lengths],
        boxes=[len(row) for row in lengths],
        differs=frame["title"] != frame["template"].str.replace("-", " "),
        first=~frame.duplicated("meme_id"),
    )


def conditions(measured: pd.DataFrame, rule: TemplateRule) -> dict[str, np.ndarray]:
    """What a rule asks of each record, name -> passes, in the order of the steps; 0 asks nothing."""
    asked = {"each meme once": measured["first"].to_numpy(bool)}
    for n, column, words in (
        (rule.min_text_chars, "chars", "text of at least {} characters"),
        (rule.min_text_words, "words", "text of at least {} words"),
        (rule.min_votes, "votes", "at least {} votes"),
        (rule.min_views, "views", "at least {} views"),
    ):
        if n:
            asked[words.format(n)] = (measured[column] >= n).to_numpy()
    if rule.title_differs != "ignored":
        asked["title is not the template's name"] = measured["differs"].to_numpy(bool)
    if rule.titles_unique_in != "nothing":
        by = ["title"] if rule.titles_unique_in == "all" else ["template", "title"]
        first = np.logical_and.reduce(list(asked.values()))
        first[first] = ~measured.loc[first].duplicated(by)
        asked[f"titles unique in {rule.titles_unique_in}"] = first
    return asked


def passing(measured: pd.DataFrame, rule: TemplateRule) -> np.ndarray:
    """Which records pass everything that a rule asks of memes; templates are not chosen yet."""
    return np.logical_and.reduce(list(conditions(measured, rule).values()))


def filter_records(
    records: pd.DataFrame,
    rule: TemplateRule,
    seed: int = 13,
    sample: pd.DataFrame | None = None,
    training: Collection[str] = (),
) -> Filtered:
    """Apply the paper's filter: text, votes and views, title, at least 150 memes, the top 50 templates.

    `sample`: CM50's published validation memes; they give the estimated sizes, their memes stand in the
    validation part of the split, and a template of theirs that has no records here keeps its place among the
    top 50, so that no other moves up. `training`: ids of CM50's published training memes, which stay in that
    part. The order of the input plays no part.
    """
    sample = pd.DataFrame(columns=COLUMNS) if sample is None else sample
    frame = measure(records)
    left, names = np.ones(len(frame), dtype=bool), frame["template"]
    rows = [("records that can be read", len(frame), names.nunique())]

    def step(name: str, passes: np.ndarray | pd.Series) -> None:
        left[~np.asarray(passes)] = False
        rows.append((name, int(left.sum()), names[left].nunique()))

    for name, passes in conditions(frame, rule).items():
        step(name, passes)
    counts = names[left].value_counts()
    enough = counts.index[counts >= rule.min_memes]
    step(f"templates with at least {rule.min_memes} memes", names.isin(enough))
    table = template_table(names, counts, rule, sample)
    absent = int((table["note"] != "").sum())
    held = f" ({absent} places held for templates of CM50 that are absent here)" if absent else ""
    step(f"top {rule.n_templates} templates{held}", names.isin(table.loc[table["chosen"], "template"]))
    steps = pd.DataFrame(rows, columns=["step", "records", "templates"])
    steps["left out"] = -steps["records"].diff().fillna(0).astype(int)
    kept = frame.loc[left, COLUMNS].reset_index(drop=True)
    parts = split(kept, rule, seed, set(sample["meme_id"]), set(training))
    return Filtered(kept.assign(split=parts), steps, table)


def template_table(
    templates: pd.Series, counts: pd.Series, rule: TemplateRule, sample: pd.DataFrame
) -> pd.DataFrame:
    """Every template: records, memes kept, rank, whether chosen, and its size estimated from the sample.

    `templates`: of each record; `counts`: memes kept, by template. Templates of the sample without a record
    here have no number kept and a `note`, never zeros. `estimate`: share of the sample x 33,173, `low` and
    `high` its exact binomial interval of 95 % (Clopper-Pearson); the published validation set is stratified
    by template, so the true spread is smaller.
    """
    from scipy.stats import binomtest

    present, in_sample = templates.value_counts(), sample["template"].value_counts()
    table = pd.DataFrame({"template": sorted({*present.index, *in_sample.index})})
    table["records"] = table["template"].map(present).astype("Int64")
    kept = table["template"].map(counts.astype("int64")).fillna(0).astype("Int64")
    table["kept"] = kept.where(table["records"].notna())
    table["sample"] = table["template"].map(in_sample).fillna(0).astype(int)
    table[["estimate", "low", "high"]] = np.nan
    if len(sample):
        tests = [binomtest(n, len(sample)) for n in table["sample"].tolist()]
        shares = [(test.statistic, *test.proportion_ci(method="exact")) for test in tests]
        table[["estimate", "low", "high"]] = np.array(shares) * CM50_MEMES
    table["note"] = np.where(table["records"].isna(), "in CM50, but no records here", "")
    table = table.sort_values(["kept", "template"], ascending=[False, True], ignore_index=True)
    table.insert(0, "rank", table["kept"].rank(method="first", ascending=False).astype("Int64"))
    places = max(0, rule.n_templates - int((table["note"] != "").sum()))
    chosen = (table["rank"] <= places) & (table["kept"] >= rule.min_memes)
    return table.assign(chosen=chosen.fillna(False).astype(bool))


def draw(templates: Mapping[str, str], n: int | None, seed: int) -> set[str]:
    """Draw `n` of the memes in `templates` (id -> template), each template in proportion; None takes all."""
    memes, places = pd.Series(templates, dtype=object).sort_index(), {}
    for name, mine in memes.groupby(memes):
        order = statistics.rng(seed, "template sample", name).permutation(mine.index).tolist()
        places |= {meme_id: (place + 0.5) / len(mine) for place, meme_id in enumerate(order)}
    return set(sorted(places, key=lambda meme_id: (places[meme_id], meme_id))[:n])


def split(
    kept: pd.DataFrame, rule: TemplateRule, seed: int, published: set[str], training: set[str]
) -> np.ndarray:
    """`train` or `validation` for each row, stratified by template; the order of rows plays no part.

    In all `validation_share` of the memes are for validation (1,350 of 33,173): those in `published`, and
    others drawn by seed, none of which is in `training`.
    """
    free = kept[~kept["meme_id"].isin(published | training)]
    n = round(len(kept) * rule.validation_share) - int(kept["meme_id"].isin(published).sum())
    drawn = draw(dict(zip(free["meme_id"], free["template"], strict=True)), max(0, n), seed)
    return np.where(kept["meme_id"].isin(published | drawn), "validation", "train")


def write_templates(filtered: Filtered, folder: Path, seed: int) -> list[TemplateMeme]:
    """Write the kept memes to `templates.parquet` below `folder`, checked, and give them."""
    rows = filtered.memes.drop(columns="position").to_dict("records")
    memes = [TemplateMeme(source=IMGFLIP, seed=seed, **row) for row in rows]
    files.write_parquet(folder / "templates.parquet", memes, TemplateMeme)
    return memes


def candidate_rules() -> list[TemplateRule]:
    """About thirty rules around the default: votes x title, then each other threshold by itself."""
    titles = itertools.product((0, 2, 4, 5, 6, 7, 8, 10), ("exact", "ignored"))
    changes: list[dict[str, object]] = [{"min_votes": n, "title_differs": title} for n, title in titles]
    grid = {
        "min_views": (100, 150, 200, 300, 500),
        "min_text_chars": (2, 5, 8, 10, 15, 20, 30),
        "min_text_words": (2, 3, 4, 5, 8),
        "titles_unique_in": ("template", "all"),
    }
    changes += [{name: value} for name, values in grid.items() for value in values]
    return [TemplateRule().model_copy(update=change) for change in changes]


def rule_evidence(
    records: pd.DataFrame, sample: pd.DataFrame, rules: Sequence[TemplateRule] = ()
) -> pd.DataFrame:
    """Rank rules by how well they explain a sample of CM50; the first row is the best.

    `records`: all records; `sample`: published memes; a template of the sample without records plays no part.
    `rules`: none is `candidate_rules()`.

    Columns: `rule`; `left out`: memes of the sample that the rule refuses, and those that the records of
    their template lack, so that no rule keeps them; `kept` beside `expected`, the memes of these templates in
    all of CM50 by their share of the sample; `deviance`: of Poisson counts with mean kept x sample size /
    33,173 for each template, which weighs shares and total size together; `conditions`: how many things a
    rule asks; `score`: deviance + 2 for each, lower is better. Rules that leave out fewest come first, then
    all others, each by score.
    """
    measured, observed = measure(records), sample["template"].value_counts()
    present = observed[observed.index.isin(measured["template"].unique())]
    ids = set(sample.loc[sample["template"].isin(present.index), "meme_id"])
    weight, in_sample = len(sample) / CM50_MEMES, measured["meme_id"].isin(ids).to_numpy()
    # Comparing and counting 100 names in 400,000 rows is much faster on codes than on texts.
    measured["template"] = measured["template"].astype("category")
    rows = []
    for rule in rules or candidate_rules():
        asked = conditions(measured, rule)
        passes = np.logical_and.reduce(list(asked.values()))
        fitted = [name for name in asked if name not in FREE]
        counts = measured.loc[passes, "template"].value_counts()
        kept = counts.reindex(present.index).fillna(0)
        with np.errstate(divide="ignore"):  # infinite where something was seen that a rule does not keep
            surprise = present * np.log(present / (kept * weight)) - (present - kept * weight)
        deviance = float(2 * surprise.sum())
        rows.append(
            {
                "rule": ", ".join(fitted) or "every record",
                "left out": len(ids) - measured.loc[passes & in_sample, "meme_id"].nunique(),
                "kept": int(kept.sum()),
                "expected": present.sum() / weight,
                "deviance": deviance,
                "conditions": len(fitted),
                "score": deviance + 2 * len(fitted),
            }
        )
    table = pd.DataFrame(rows)
    # What is missing from the records is missing for every rule; the others can be compared all the same.
    table["more"] = table["left out"] > table["left out"].min()
    return table.sort_values(["more", "score"], kind="stable", ignore_index=True).drop(columns="more")


def rule_edges(records: pd.DataFrame, sample: pd.DataFrame, rule: TemplateRule) -> pd.DataFrame:
    """The largest threshold that the sample still allows, for each quantity, and whether it is an edge.

    `smallest`: in the sample, so a larger threshold is ruled out; `below`: memes of the same templates below
    it that pass all else that `rule` asks; `expected`: how many of those the sample would hold if there was
    no threshold; `chance`: that it holds none all the same, exp(-expected). Near 0: a threshold was there;
    near 1: nothing tells.
    """
    measured = measure(records)
    found = measured[measured["meme_id"].isin(sample["meme_id"]) & measured["first"]]
    same, rows = measured["template"].isin(found["template"]), []
    for name, threshold in EDGES.items():
        without = rule.model_copy(update={threshold: 0}) if threshold else rule
        smallest = int(found[name].min())
        below = int((passing(measured, without) & same & (measured[name] < smallest)).sum())
        expected = below * len(sample) / CM50_MEMES
        rows.append((name, smallest, below, expected, float(np.exp(-expected))))
    return pd.DataFrame(rows, columns=["quantity", "smallest", "below", "expected", "chance"])
