"""From ImgFlip575K to CM50: the paper's filter as named steps, and the split (2501.13851, Section 3.1).

The paper names the steps of its filter, not the thresholds. Those here are what CM50's published validation
memes support; appendix 07b holds the evidence.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from memecmd_utils import statistics
from memecmd_utils.template_memes.data_sets import COLUMNS

CM50_MEMES = 33_173  # memes of CM50 (Section 3.1; the introduction says 33,172)


@dataclass(frozen=True)
class TemplateRule:
    """Which records of ImgFlip575K enter CM50; a threshold of 0 asks nothing."""

    min_text_chars: int = 1
    """Characters of all captions together, without surrounding blanks."""
    min_text_words: int = 0
    min_votes: int = 6
    min_views: int = 0
    title_differs: Literal["exact", "ignored"] = "exact"
    """exact: the title is not the template's file name with blanks for hyphens, letter for letter."""
    titles_unique_in: Literal["nothing", "template", "all"] = "nothing"
    """Of memes with the same title, only the first in the source is kept."""
    min_memes: int = 150
    """Memes that a template must keep (Section 3.1)."""
    n_templates: int = 50
    """Templates with most memes that are kept (Section 3.1)."""
    validation_share: float = 1350 / CM50_MEMES
    """Memes that are drawn for validation, by seed within each template."""


class Filtered(NamedTuple):
    """What a rule keeps: records with their part of the `split`, in the order of the source; what each step
    left of records and templates; and every template by memes kept (see `template_table`)."""

    memes: pd.DataFrame
    steps: pd.DataFrame
    templates: pd.DataFrame


def with_lengths(records: pd.DataFrame) -> pd.DataFrame:
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
    frame = with_lengths(records)
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
