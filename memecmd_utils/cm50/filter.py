"""From ImgFlip575K to CM50: the paper's filter as named steps, the split, and the evidence for the rule.

The paper (2501.13851, Section 3.1) names the steps of its filter, not the thresholds. Memes of the published
validation set must pass the rule; the sizes of their templates, and how many there are in all, say how much a
rule may keep.
"""

import hashlib
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from memecmd_utils import files
from memecmd_utils.cm50.records import Records, letters, memes_of
from memecmd_utils.drawing import BLUE, GREY, ORANGE, canvas, style
from memecmd_utils.schemas import TemplateInfo, TemplateMeme
from memecmd_utils.settings import TemplateRule

CM50_MEMES, CM50_VALIDATION = 33_173, 1_350
"""Memes of CM50 and of its validation set (Section 3.1; the introduction says 33,172)."""
SOURCE_ORDER_SHARE = 0.04
"""Share of each template that the published validation set holds; the part of a meme is rounded up."""
TITLE_WAYS = ("exact", "case", "letters", "names", "start")
"""Ways to compare a title with the names of its template, see `TemplateRule.title_differs`."""
DEFAULT = TemplateRule()
_EDGES = {
    "votes": "min_votes", "views": "min_views", "chars": "min_text_chars", "words": "min_text_words",
    "shortest": "", "boxes": "",
}  # fmt: skip
"""Quantities with an edge in the sample, and the threshold of a rule on them."""


class Filtered(NamedTuple):
    """What a rule keeps, and how it came to that."""

    memes: pd.DataFrame
    """Kept records by template and place in the source, columns of `Records.frame` and `split`."""
    steps: pd.DataFrame
    """`step`, `records` and `templates` that are left after it, `left out` by it."""
    templates: pd.DataFrame
    """Every template by memes kept: see `template_table`."""


def measure(
    frame: pd.DataFrame, infos: Iterable[TemplateInfo] = (), titles: Collection[str] = TITLE_WAYS
) -> pd.DataFrame:
    """Add what rules ask for: lengths of the text, whether the title differs, whether the meme is a repeat.

    `chars`, `words`: of all captions; `shortest`: characters of the shortest caption that is not blank (0
    where all are); `boxes`: captions; `differs_<way>`: see `TemplateRule.title_differs`; `first`: no record
    before it, by template and position, has the same id. `infos` give the other names of templates;
    `titles` are the ways to compare titles that will be asked for.
    """
    lengths = [[len(text.strip()) for text in captions] for captions in frame["captions"]]
    words = [sum(len(text.split()) for text in captions) for captions in frame["captions"]]
    added = {
        "chars": np.array([sum(row) for row in lengths], dtype=np.int64),
        "words": np.array(words, dtype=np.int64),
        "shortest": np.array([min(filter(None, row), default=0) for row in lengths], dtype=np.int64),
        "boxes": np.array([len(row) for row in lengths], dtype=np.int64),
        **_title_differs(frame, infos, titles),
    }
    ordered = frame[["template", "position", "meme_id"]].sort_values(["template", "position"], kind="stable")
    added["first"] = (~ordered.duplicated("meme_id")).reindex(frame.index).to_numpy()
    return frame.assign(**added)


def _title_differs(
    frame: pd.DataFrame, infos: Iterable[TemplateInfo], ways: Collection[str]
) -> dict[str, np.ndarray]:
    plain = {template: template.replace("-", " ") for template in frame["template"].unique()}
    folded = {template: name.casefold() for template, name in plain.items()}
    bare = {template: letters(name) for template, name in plain.items()}
    known = {template: {name} for template, name in bare.items()}
    for info in infos:
        names = {letters(name) for name in (info.title, *info.names)} - {""}  # a title may be all signs
        known.setdefault(info.template, set()).update(names)
    is_name = {
        "exact": lambda title, template: title == plain[template],
        "case": lambda title, template: title.strip().casefold() == folded[template],
        "letters": lambda title, template: letters(title) == bare[template],
        "names": lambda title, template: letters(title) in known[template],
        "start": lambda title, template: letters(title).startswith(bare[template]),
    }
    rows = list(zip(frame["title"], frame["template"], strict=True))
    return {
        f"differs_{way}": np.array([not is_name[way](*row) for row in rows], dtype=bool)
        for way in is_name.keys() & set(ways)
    }


def conditions(measured: pd.DataFrame, rule: TemplateRule) -> dict[str, np.ndarray]:
    """What a rule asks of each record by itself, as name -> passes, in the order of the steps.

    A threshold of 0 asks nothing and is no step.
    """
    least = (
        (rule.min_text_chars, "chars", "text of at least {} characters"),
        (rule.min_text_words, "words", "text of at least {} words"),
        (rule.min_votes, "votes", "at least {} votes"),
        (rule.min_views, "views", "at least {} views"),
    )
    asked = {"each meme once": measured["first"]}
    asked |= {words.replace("{}", str(n)): measured[column] >= n for n, column, words in least if n}
    if rule.title_differs != "ignored":
        name = f"title is not the template's name ({rule.title_differs})"
        asked[name] = measured[f"differs_{rule.title_differs}"]
    return {name: passes.to_numpy(dtype=bool) for name, passes in asked.items()}


def passing(measured: pd.DataFrame, rule: TemplateRule) -> np.ndarray:
    """Which records pass everything that a rule asks of memes; templates are not chosen yet."""
    passes = np.logical_and.reduce(list(conditions(measured, rule).values()))
    return passes & _first_of_title(measured, passes, rule)


def _first_of_title(measured: pd.DataFrame, passes: np.ndarray, rule: TemplateRule) -> np.ndarray:
    if rule.titles_unique_in == "nothing":
        return np.ones(len(measured), dtype=bool)
    by = ["title"] if rule.titles_unique_in == "all" else ["template", "title"]
    ordered = measured.loc[passes, ["template", "position", "title"]].sort_values(["template", "position"])
    first = np.zeros(len(measured), dtype=bool)
    first[measured.index.get_indexer(ordered.index[~ordered.duplicated(by)])] = True
    return first


def filter_records(
    records: Records,
    rule: TemplateRule,
    seed: int = 13,
    *,
    infos: Iterable[TemplateInfo] = (),
    sample: pd.DataFrame | None = None,
    upstream: Mapping[str, int] | None = None,
    training: Collection[str] = (),
) -> Filtered:
    """Apply the paper's filter: text, votes and views, title, at least 150 memes, the top 50 templates.

    `sample`: CM50's published validation memes (`records.frame_of`); they give the estimated sizes,
    their memes stand in the validation part of the split, and a template of theirs that has no records here
    keeps its place among the top 50, so that no other moves up. `upstream`: records of each template as the
    source counts them, which names templates that are absent here. `training`: ids of CM50's published
    training memes, which stay in that part of the split. The order of the input plays no part.
    """
    frame = records.frame.reset_index(drop=True)
    measured = measure(frame, infos, [rule.title_differs])
    rows, left = [], np.ones(len(frame), dtype=bool)
    rows.append(("records in the files", len(frame) + len(records.broken), frame["template"].nunique()))
    rows.append(("can be read", len(frame), frame["template"].nunique()))

    def step(name: str, passes: np.ndarray) -> None:
        left[~passes] = False
        rows.append((name, int(left.sum()), frame.loc[left, "template"].nunique()))

    for name, passes in conditions(measured, rule).items():
        step(name, passes)
    if rule.titles_unique_in != "nothing":
        step(f"titles unique in {rule.titles_unique_in}", _first_of_title(measured, left.copy(), rule))
    counts = frame.loc[left, "template"].value_counts()
    enough = counts.index[counts >= rule.min_memes]
    step(f"templates with at least {rule.min_memes} memes", frame["template"].isin(enough).to_numpy())
    table = template_table(frame, counts, rule, sample, upstream)
    chosen = table.loc[table["chosen"], "template"]
    absent = int(table["note"].str.startswith("in CM50").sum())
    held = f" ({absent} places held for templates of CM50 that are absent here)" if absent else ""
    step(f"top {rule.n_templates} templates{held}", frame["template"].isin(chosen).to_numpy())
    steps = pd.DataFrame(rows, columns=["step", "records", "templates"])
    steps["left out"] = -steps["records"].diff().fillna(0).astype(int)
    kept = frame[left].sort_values(["template", "position", "meme_id"], ignore_index=True)
    published = [] if sample is None else sample["meme_id"]
    return Filtered(kept.assign(split=split(kept, rule, seed, published, training)), steps, table)


def template_table(
    frame: pd.DataFrame,
    counts: Mapping[str, int] | pd.Series,
    rule: TemplateRule,
    sample: pd.DataFrame | None = None,
    upstream: Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Every template: records, memes kept, rank, whether chosen, and its size estimated from the sample.

    `estimate`, `low` and `high` as in `estimates`; empty without a sample. Templates without a record here,
    known from the sample or from `upstream`, are rows with no number kept and a `note`, never zeros.
    """
    present = frame["template"].value_counts()
    in_sample = pd.Series(dtype=int) if sample is None else sample["template"].value_counts()
    known = sorted({*present.index, *in_sample.index, *(upstream or {})})
    table = pd.DataFrame({"template": known})
    table["upstream"] = table["template"].map(dict(upstream or {})).astype("Int64")
    table["records"] = table["template"].map(present).astype("Int64")
    kept = table["template"].map(pd.Series(counts, dtype="int64")).fillna(0).astype("Int64")
    table["kept"] = kept.where(table["records"].notna())
    table["sample"] = table["template"].map(in_sample).fillna(0).astype(int)
    table = table.join(estimates(table["sample"]))
    absent = table["records"].isna()
    table["note"] = np.where(absent, "no records here", "")
    table.loc[absent & (table["sample"] > 0), "note"] = "in CM50, but no records here"
    table = table.sort_values(["kept", "template"], ascending=[False, True], ignore_index=True)
    table.insert(0, "rank", table["kept"].rank(method="first", ascending=False).astype("Int64"))
    places = max(0, rule.n_templates - int(table["note"].str.startswith("in CM50").sum()))
    chosen = (table["rank"] <= places) & (table["kept"] >= rule.min_memes)
    table["chosen"] = chosen.fillna(False).astype(bool)
    return table


def estimates(counts: pd.Series, total: int = CM50_MEMES) -> pd.DataFrame:
    """Sizes of templates from a sample of CM50: share x total, with an exact binomial interval of 95 %.

    The interval is that of each share by itself (Clopper-Pearson). The published validation set is
    stratified by template, so the true spread is smaller. Empty (NaN) where the sample is.
    """
    from scipy import stats

    n, hits = int(counts.sum()), counts.to_numpy(dtype=float)
    if not n:
        return pd.DataFrame(np.nan, index=counts.index, columns=["estimate", "low", "high"])
    tail = (1 - 0.95) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, stats.beta.ppf(tail, hits, n - hits + 1), 0.0)
        high = np.where(hits < n, stats.beta.ppf(1 - tail, hits + 1, n - hits), 1.0)
    values = {"estimate": hits / n * total, "low": low * total, "high": high * total}
    return pd.DataFrame(values, index=counts.index)


def split(
    kept: pd.DataFrame,
    rule: TemplateRule,
    seed: int = 13,
    published: Collection[str] = (),
    training: Collection[str] = (),
) -> list[str]:
    """`train` or `validation` for each row, stratified by template; the order of rows plays no part.

    drawn: the validation memes, in all `validation_share` of them (1,350 of 33,173), are shared out to the
    templates by largest remainder, no template less than it has ids in `published`, and drawn within each by
    a hash of seed and id. source_order: the last 4 % of each template by `position`. Ids in `published` are
    never in train, others that are in `training` never in validation; only where they leave no choice is the
    share missed.
    """
    validation = set(published)
    fixed = validation | set(training)
    by = kept.groupby("template")["meme_id"]
    least = by.agg(lambda ids: int(ids.isin(validation).sum()))
    most = by.agg(lambda ids: int((ids.isin(validation) | ~ids.isin(fixed)).sum()))
    quotas = _shared_out(by.size(), rule.validation_share, least, most)
    for template, rows in kept.groupby("template"):
        if rule.split == "source_order":
            last = last_places(len(rows))
            ids = rows.sort_values("position")["meme_id"].tolist()[len(rows) - last :]
            validation.update(meme for meme in ids if meme not in fixed)
        else:
            ids = sorted(
                (meme for meme in rows["meme_id"] if meme not in fixed),
                key=lambda meme: hashlib.sha256(f"{seed}:{meme}".encode()).digest(),
            )
            validation.update(ids[: quotas[template] - least[template]])
    return ["validation" if meme in validation else "train" for meme in kept["meme_id"]]


def last_places(n: int) -> int:
    """Validation memes of a template of `n`: what is left when the first 96 % are taken for training."""
    return n - math.floor(n * (1 - SOURCE_ORDER_SHARE) + 1e-9)


def _shared_out(sizes: pd.Series, share: float, least: pd.Series, most: pd.Series) -> dict[str, int]:
    """`share` of all as whole numbers by size, within bounds; largest remainder.

    Of equal remainders the larger template, then the earlier name comes first. Where a template's part lies
    outside its bounds it takes the bound, and the others share the rest.
    """
    if sizes.empty:
        return {}
    wanted = min(max(round(float(sizes.sum()) * share), int(least.sum())), int(most.sum()))
    quotas: dict[str, int] = {}
    while True:
        free = sizes.drop(list(quotas))
        rest = wanted - sum(quotas.values())
        exact = {name: rest * size / free.sum() for name, size in free.items()}
        low = {name: int(least[name]) for name, value in exact.items() if value < least[name]}
        high = {name: int(most[name]) for name, value in exact.items() if value > most[name]}
        if not low and not high:
            break
        # What the bounds take from the others and give to them: the larger side settles first.
        taken = sum(bound - exact[name] for name, bound in low.items())
        given = sum(exact[name] - bound for name, bound in high.items())
        quotas |= low if taken >= given else {}
        quotas |= high if given >= taken else {}
    floors = {name: math.floor(value) for name, value in exact.items()}
    order = sorted(exact, key=lambda name: (floors[name] - exact[name], -sizes[name], name))
    for name in order[: rest - sum(floors.values())]:
        floors[name] += 1
    return quotas | floors


def write_templates(filtered: Filtered, folder: Path, seed: int) -> list[TemplateMeme]:
    """Write the kept memes to `templates.parquet` below `folder`, checked, and give them."""
    memes = memes_of(filtered.memes, seed)
    files.write_parquet(folder / "templates.parquet", memes, TemplateMeme)
    return memes


def describe(rule: TemplateRule) -> str:
    """The conditions of a rule on memes in one line."""
    return ", ".join(_asked(rule)) or "every record"


def _asked(rule: TemplateRule) -> list[str]:
    asked = {
        f"votes >= {rule.min_votes}": rule.min_votes,
        f"views >= {rule.min_views}": rule.min_views,
        # One character of text means "not blank": Section 3.1 asks for text, and no threshold is fitted.
        f"characters >= {rule.min_text_chars}": rule.min_text_chars > 1,
        f"words >= {rule.min_text_words}": rule.min_text_words,
        f"title differs ({rule.title_differs})": rule.title_differs != "ignored",
        f"titles unique in {rule.titles_unique_in}": rule.titles_unique_in != "nothing",
    }
    return [words for words, asks in asked.items() if asks]


def candidate_rules(base: TemplateRule = DEFAULT) -> list[TemplateRule]:
    """About 70 rules around `base`: votes x title, then each other threshold by itself; no rule twice."""
    titles = (*TITLE_WAYS, "ignored")
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
    return list({describe(rule): rule for rule in rules}.values())


def rule_evidence(
    records: pd.DataFrame,
    sample: pd.DataFrame,
    rules: Sequence[TemplateRule] | None = None,
    infos: Iterable[TemplateInfo] = (),
    total: int = CM50_MEMES,
) -> pd.DataFrame:
    """Rank rules by how well they explain a sample of CM50; the first row is the best.

    `records`: all records (`Records.frame`); `sample`: published memes (`records.frame_of`); a
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
        n_asked = len(_asked(rule))
        places = _places(measured[passes], found["meme_id"])
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
                "in last 4 %": float(places["in last 4 %"].sum() / max(1, places["sample"].sum())),
                "conditions": n_asked,
                "score": deviance + 2 * n_asked,
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


def rule_edges(
    records: pd.DataFrame,
    sample: pd.DataFrame,
    rule: TemplateRule = DEFAULT,
    infos: Iterable[TemplateInfo] = (),
    total: int = CM50_MEMES,
) -> pd.DataFrame:
    """The largest threshold that the sample still allows, for each quantity, and whether it is an edge.

    `smallest`: in the sample, so a larger threshold is ruled out; `below`: memes of the same templates below
    it that pass all else that `rule` asks; `expected`: how many of those the sample would hold if there was
    no threshold; `chance`: that it holds none all the same, exp(-expected). Near 0: a threshold was there;
    near 1: nothing tells. No row where none of the sample is among the records.
    """
    measured, found = _measured(records, sample, infos, [rule.title_differs])
    same = measured["template"].isin(found["template"]).to_numpy()
    rows = []
    for name, threshold in _EDGES.items() if len(found) else ():
        without = rule.model_copy(update={threshold: 0}) if threshold else rule
        smallest = int(found[name].min())
        below = int((passing(measured, without) & same & (measured[name] < smallest).to_numpy()).sum())
        expected = below * len(sample) / total
        rows.append((name, smallest, below, expected, float(np.exp(-expected))))
    return pd.DataFrame(rows, columns=["quantity", "smallest", "below", "expected", "chance"])


def sample_agreement(records: pd.DataFrame, sample: pd.DataFrame) -> pd.DataFrame:
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
    with style():
        fig = canvas(9, 0.19 * len(rows) + 1.2)
        axes = fig.subplots()
        y = np.arange(len(rows))
        spread = [rows["estimate"] - rows["low"], rows["high"] - rows["estimate"]]
        axes.errorbar(
            rows["estimate"], y, xerr=spread, fmt="|", color=GREY, ms=7, lw=1.2,
            label="estimate, 95% interval",
        )  # fmt: skip
        here, kept = rows["kept"].notna(), rows["kept"].astype(float)
        inside = kept.between(rows["low"], rows["high"])
        for mask, colour, marker, label in (
            (inside, BLUE, "o", "kept"),
            (here & ~inside, ORANGE, "D", "kept, outside the interval"),
        ):
            if mask.any():
                axes.plot(kept[mask], y[mask], marker, color=colour, ms=4, label=label)
        names = rows["template"].where(here, rows["template"] + " (no records)")
        axes.set_yticks(y, names, fontsize=7)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.set_xlabel("memes")
        axes.set_title(f"{inside.sum()} of {here.sum()} templates inside their interval")
        axes.legend(loc="lower right")
    return fig
