import made_templates as made
import numpy as np
import pandas as pd
import pytest

from memecmd_utils.cm50 import filter
from memecmd_utils.cm50 import records as cm50_records
from memecmd_utils.cm50.filter import (
    candidate_rules,
    describe,
    filter_records,
    measure,
    passing,
    rule_evidence,
    split,
)
from memecmd_utils.cm50.records import Records, broken_table, memes_of
from memecmd_utils.files import paths
from memecmd_utils.schemas import TemplateInfo
from memecmd_utils.settings import TemplateRule

RULE = TemplateRule(min_memes=20, n_templates=4, validation_share=0.1)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return cm50_records.read_records(made.write_source(tmp_path_factory.mktemp("made"), made.world()))


def frame(rows):
    """Records of one template from (title, votes, views, captions)."""
    names = ["title", "votes", "views", "captions"]
    values = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    ids = [f"m{n}" for n in range(len(rows))]
    fixed = {"template": "Dont-Feed-Dave", "position": range(len(rows)), "post": "", "url": "u"}
    return values.assign(meme_id=ids, **fixed)


TITLES = [
    "Dont Feed Dave", "dont feed dave", "Don't Feed Dave", "Dave the Unfed", "Dont feed dave, now", "?!"
]  # fmt: skip


@pytest.mark.parametrize(
    ("way", "left"),
    [("exact", [1, 2, 3, 4, 5]), ("case", [2, 3, 4, 5]), ("letters", [3, 4, 5]), ("names", [4, 5]),
     ("start", [3, 5]), ("ignored", [0, 1, 2, 3, 4, 5])],
)  # fmt: skip
def test_each_way_to_compare_titles(way, left):
    info = TemplateInfo(source="x", template="Dont-Feed-Dave", names=["dave the un-fed", "!"])
    measured = measure(frame([(title, 9, 9, ["text"]) for title in TITLES]), [info])
    assert np.flatnonzero(passing(measured, TemplateRule(title_differs=way))).tolist() == left


@pytest.mark.parametrize(
    ("change", "left"),
    [({"min_votes": 6}, [0, 2, 3]), ({"min_votes": 7}, [2, 3]), ({"min_views": 100}, [2, 3]),
     ({"min_text_chars": 3}, [0, 2]), ({"min_text_chars": 2}, [0, 2, 3]), ({"min_text_words": 2}, [0, 2, 3])],
)  # fmt: skip
def test_each_threshold_includes_its_own_value(change, left):
    rows = [("t", 6, 99, ["a b"]), ("t", 5, 100, ["long enough"]), ("t", 7, 100, [" a ", "bc d"]),
            ("t", 7, 100, ["a", " b"]), ("t", 9, 900, ["", " \n"])]  # fmt: skip
    rule = TemplateRule(**{"min_votes": 6, **change})
    assert np.flatnonzero(passing(measure(frame(rows)), rule)).tolist() == left


def test_titles_unique_in_template_and_in_all():
    rows = [("same", 3, 9, ["a"]), ("same", 9, 9, ["a"]), ("same", 9, 9, ["a"]), ("same", 9, 9, ["a"])]
    table = frame(rows)
    table.loc[3, ["template", "position"]] = ["Tall-Goat", 0]
    for unique, left in (("nothing", [1, 2, 3]), ("template", [1, 3]), ("all", [1])):
        rule = TemplateRule(titles_unique_in=unique)
        for shuffled in (table, table.iloc[::-1].reset_index(drop=True)):
            found = shuffled[passing(measure(shuffled), rule)]["meme_id"]
            assert sorted(found) == [f"m{n}" for n in left]


def test_steps_and_templates_add_up(records):
    found = filter_records(records, RULE)
    steps = found.steps.set_index("step")
    assert steps["records"].iloc[0] == 3400 and steps["records"].iloc[-1] == len(found.memes)
    assert steps["left out"].sum() == 3400 - len(found.memes)
    assert [name for name in steps.index if "views" in name] == []  # a threshold of 0 is no step
    assert steps["templates"].iloc[-1] == found.memes["template"].nunique() == 4
    table = found.templates
    assert table["kept"].is_monotonic_decreasing and table["chosen"].tolist() == [True] * 4 + [False] * 2
    assert table["estimate"].isna().all()
    chosen = table[table["chosen"]].set_index("template")["kept"]
    assert found.memes["template"].value_counts().to_dict() == chosen.to_dict()
    assert (found.memes["votes"] >= 6).all()
    # The name that the file spells without its apostrophe is a title like any other.
    assert (found.memes["title"] == "Don't Feed Dave").any()


def test_broken_records_and_repeats_are_counted(records):
    again = pd.concat([records.frame, records.frame.head(7)], ignore_index=True)
    again.loc[len(records.frame) :, "template"] = "Sad-Kettle"
    again.loc[len(records.frame) :, "position"] = range(9000, 9007)
    found = filter_records(Records(again, broken_table([("f", 1, "no url")] * 3)), RULE)
    left_out = found.steps.set_index("step")["left out"]
    assert left_out["can be read"] == 3 and left_out["each meme once"] == 7
    assert found.memes["meme_id"].tolist() == filter_records(records, RULE).memes["meme_id"].tolist()


def test_an_absent_template_holds_its_place_and_is_not_invented(records):
    memes = memes_of(records.frame.groupby("template").head(3))
    absent = [
        meme.model_copy(update={"template": "Big-Hat", "meme_id": f"bh{n}"})
        for n, meme in enumerate(memes[:5])
    ]
    sample = cm50_records.frame_of([*memes, *absent])
    found = filter_records(
        records, RULE, sample=sample, upstream={"Big-Hat": 99, "Old-Sofa": 5, "Tall-Goat": 600}
    )
    rows = found.templates.set_index("template")
    assert found.templates["chosen"].sum() == 3 and "1 places held" in found.steps["step"].iloc[-1]
    assert pd.isna(rows.loc["Big-Hat", "kept"]) and rows.loc["Big-Hat", "upstream"] == 99
    assert rows.loc["Big-Hat", "note"] == "in CM50, but no records here"
    assert rows.loc["Old-Sofa", "note"] == "no records here" and pd.isna(rows.loc["Old-Sofa", "rank"])
    assert rows.loc["Big-Hat", "estimate"] == pytest.approx(33_173 * 5 / 23)


def test_estimates_are_exact_binomial_intervals():
    found = filter.estimates(pd.Series([0, 10, 90]), total=1000)
    assert found["estimate"].tolist() == pytest.approx([0, 100, 900])
    # Clopper and Pearson, 10 of 100: 0.0490 to 0.1762; none of 100: at most 1 - 0.025^(1/100).
    assert found.loc[1, ["low", "high"]].tolist() == pytest.approx([49.005, 176.223], abs=0.01)
    assert found.loc[0, ["low", "high"]].tolist() == pytest.approx([0, 1000 * (1 - 0.025**0.01)], abs=0.01)
    assert filter.estimates(pd.Series([], dtype=int)).empty


def full_size():
    sizes = [2801, 1900, *range(166, 166 + 47 * 15, 15)]
    sizes.append(33_173 - sum(sizes))
    rows = [(f"T{t:02d}", n, f"{t:02d}x{n}") for t, size in enumerate(sizes) for n in range(size)]
    return pd.DataFrame(rows, columns=["template", "position", "meme_id"])


def test_the_split_has_the_paper_s_sizes_and_every_template():
    table = full_size()
    parts = pd.Series(split(table, TemplateRule()))
    assert parts.value_counts().to_dict() == {"train": 31_823, "validation": 1_350}
    counts = table[parts == "validation"]["template"].value_counts()
    sizes = table["template"].value_counts()
    assert (abs(counts - sizes * 1350 / 33_173) < 1).all() and len(counts) == 50


def test_the_split_is_seeded_and_does_not_depend_on_the_order():
    table = full_size()
    rule = TemplateRule()
    first = dict(zip(table["meme_id"], split(table, rule, seed=5), strict=True))
    shuffled = table.sample(frac=1, random_state=1)
    assert dict(zip(shuffled["meme_id"], split(shuffled, rule, seed=5), strict=True)) == first
    other = dict(zip(table["meme_id"], split(table, rule, seed=6), strict=True))
    both = sum(first[m] == other[m] == "validation" for m in first)
    assert 10 < both < 120  # two draws of 4 % share about 4 % of their memes


def test_published_validation_memes_never_train():
    table = full_size()
    published = table["meme_id"].iloc[[0, 5, *range(2700, 2801)]].tolist()
    published += table[table["template"] == "T05"]["meme_id"].tolist()[:40]  # more than its share
    parts = dict(
        zip(table["meme_id"], split(table, TemplateRule(), published=[*published, "gone"]), strict=True)
    )
    assert {parts[meme] for meme in published} == {"validation"}
    assert list(parts.values()).count("validation") == 1350, "the others have fewer"


def published_of(table, seed):
    """A validation set of 1,350 memes with shares of its own, as other rounding would give."""
    chance = np.random.default_rng(seed)
    return table.loc[chance.choice(len(table), 1350, replace=False), "meme_id"].tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.slow
def test_with_the_whole_published_set_the_split_is_the_published_one(seed):
    table = full_size()
    published = published_of(table, seed)
    parts = pd.Series(split(table, TemplateRule(), published=published))
    assert parts.value_counts().to_dict() == {"train": 31_823, "validation": 1_350}
    assert set(table[parts == "validation"]["meme_id"]) == set(published)
    half = published[:675]
    parts = pd.Series(split(table, TemplateRule(), published=half))
    assert parts.value_counts().to_dict() == {"train": 31_823, "validation": 1_350}
    assert set(half) <= set(table[parts == "validation"]["meme_id"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["drawn", "source_order"])
def test_published_training_memes_are_never_drawn_for_validation(way):
    table = full_size()
    published = published_of(table, 4)
    training = table.loc[~table["meme_id"].isin(published), "meme_id"].tolist()
    rule = TemplateRule(split=way)
    parts = pd.Series(split(table, rule, published=published, training=training))
    assert set(table[parts == "validation"]["meme_id"]) == set(published)
    some = set(table["meme_id"].iloc[::2])  # of every template
    parts = pd.Series(split(table, rule, training=some))
    assert not some & set(table[parts == "validation"]["meme_id"])
    if way == "drawn":
        assert (parts == "validation").sum() == 1350
    both = pd.Series(split(table, rule, published=published, training=table["meme_id"]))
    assert set(table[both == "validation"]["meme_id"]) == set(published), "validation comes first"


def test_source_order_takes_the_last_of_each_template():
    table = full_size().sample(frac=1, random_state=2)
    parts = np.array(split(table, TemplateRule(split="source_order")))
    last = table[parts == "validation"].groupby("template")["position"]
    sizes = table["template"].value_counts().sort_index()
    assert ((last.max() == sizes - 1) & (last.min() == (sizes * 0.96).astype(int))).all()
    assert [filter.last_places(n) for n in (166, 25, 1, 2801)] == [7, 1, 1, 113]
    first = table.sort_values("position")["meme_id"].iloc[0]
    again = np.array(split(table, TemplateRule(split="source_order"), published=[first, "elsewhere"]))
    assert set(table[again != parts]["meme_id"]) == {first}, "published for validation, so never trained on"


CORPORA = paths.root.parent / "shared" / "corpora"
PLANTED = {
    "votes": TemplateRule(min_votes=6),
    "loose": TemplateRule(min_votes=2, title_differs="exact"),
    "letters": TemplateRule(min_votes=5, title_differs="letters"),
    "words": TemplateRule(min_votes=4, min_text_words=3),
    "views": TemplateRule(min_votes=0, min_views=500),
}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    sizes = (2400, 2000, 1500, 1500, 1200, 1000)
    folder = made.write_source(tmp_path_factory.mktemp("made"), made.world(sizes=sizes))
    return cm50_records.read_records(folder).frame


def planted(evidence, rule, share=0.3, last=False):
    """What a rule keeps, and a sample of it."""
    kept = evidence[filter.passing(filter.measure(evidence), rule)]
    if last:
        parts = filter.split(kept, rule.model_copy(update={"split": "source_order"}))
        return kept, kept[np.array(parts) == "validation"]
    return kept, kept.sample(frac=share, random_state=4)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_the_planted_rule_is_found(evidence, name):
    kept, sample = planted(evidence, PLANTED[name])
    table = rule_evidence(evidence, sample, candidate_rules(PLANTED[name]), total=len(kept))
    assert table["rule"][0] == describe(PLANTED[name]) and table["allowed"][0]
    assert table["kept"][0] == len(kept) and table["expected"][0] == pytest.approx(len(kept))
    assert table.loc[table["allowed"], "score"].is_monotonic_increasing
    assert not table["allowed"].iloc[-1] and table["allowed"].is_monotonic_decreasing
    # With the planted rule, counts are off by the luck of the draw only: one a template.
    assert table["deviance"][0] < 20


def test_a_rule_that_refuses_a_meme_of_the_sample_is_ruled_out(evidence):
    kept, sample = planted(evidence, TemplateRule())
    odd = evidence[(evidence["votes"] == 5) & (evidence["title"].str.contains("made up"))].head(1)
    table = rule_evidence(evidence, pd.concat([sample, odd]), total=len(kept)).set_index("rule")
    row = table.loc[describe(TemplateRule())]
    assert row["left out"] == 1 and not row["allowed"]
    assert table["allowed"].iloc[0] and "votes >= 5" in table.index[0]


def test_a_published_meme_that_the_records_lack_is_left_out_by_every_rule(evidence):
    kept, sample = planted(evidence, TemplateRule())
    full = rule_evidence(evidence, sample, total=len(kept))
    less = evidence[~evidence["meme_id"].isin(sample["meme_id"].head(3))]
    table = rule_evidence(less, sample, total=len(kept))
    assert table["left out"].min() == 3 and not table["allowed"].any()
    assert table["rule"][0] == full["rule"][0], "rules are told apart all the same"
    assert table["left out"].iloc[: int(full["allowed"].sum())].eq(3).all()
    # All are missing: the template has records, none of them published.
    none = evidence[~evidence["meme_id"].isin(sample["meme_id"])]
    assert rule_evidence(none, sample, [TemplateRule()])["left out"][0] == len(sample)
    assert filter.rule_edges(none, sample).empty
    assert filter.validation_places(none, sample, TemplateRule()).empty


def test_shares_tell_rules_apart_that_keep_equally_many(evidence):
    # Names without their apostrophe: only one template is hit by the difference.
    kept, sample = planted(evidence, TemplateRule(title_differs="letters"))
    table = rule_evidence(evidence, sample, total=len(kept)).set_index("rule")
    letters, exact = (table.loc[f"votes >= 6, title differs ({way})"] for way in ("letters", "exact"))
    assert letters["allowed"] and exact["allowed"]
    assert letters["distance"] < exact["distance"] / 3 and letters["score"] < exact["score"] - 20
    assert letters["r"] > exact["r"]


def test_templates_without_records_play_no_part_but_count_in_the_size(evidence):
    kept, sample = planted(evidence, TemplateRule())
    absent = sample.head(300).assign(template="Big-Hat", meme_id=[f"bh{n}" for n in range(300)])
    scale = (len(sample) + 300) / len(sample)
    both = pd.concat([sample, absent], ignore_index=True)
    table = rule_evidence(evidence, both, [TemplateRule()], total=round(len(kept) * scale))
    assert table["expected"][0] == pytest.approx(len(kept), rel=1e-3) and table["left out"][0] == 0
    with pytest.raises(ValueError, match="no template of the sample"):
        rule_evidence(evidence, absent, [TemplateRule()])


def test_the_deviance_is_that_of_poisson_counts():
    from scipy import stats

    seen, mean = np.array([3.0, 0, 7]), np.array([4.0, 1, 6])
    best, here = (stats.poisson.logpmf(seen, mu).sum() for mu in (np.maximum(seen, 1e-12), mean))
    assert filter._deviance(seen, mean) == pytest.approx(2 * (best - here))
    assert filter._deviance(np.array([1.0]), np.array([0.0])) == np.inf


def test_a_sharp_edge_is_told_from_no_edge(evidence):
    kept, sample = planted(evidence, TemplateRule(min_votes=6))
    table = filter.rule_edges(evidence, sample, total=len(kept)).set_index("quantity")
    assert table.loc["votes", "smallest"] == 6 and table.loc["votes", "chance"] < 1e-9
    assert table.loc["views", "chance"] > 0.05 and table.loc["views", "smallest"] < 70
    below = table.loc["votes", "below"]
    assert (
        below
        == ((evidence["votes"] < 6) & (evidence["title"] != evidence["template"].str.replace("-", " "))).sum()
    )


@pytest.mark.parametrize("last", [True, False])
def test_a_sample_from_the_end_of_the_source_is_seen(evidence, last):
    rule = TemplateRule()
    kept, sample = planted(evidence, rule, share=0.04, last=last)
    table = filter.validation_places(evidence, sample, rule)
    inside = table["in last 4 %"].sum() / table["sample"].sum()
    assert table["kept"].sum() == len(kept) and table["sample"].sum() == len(sample)
    assert inside == 1 if last else inside < 0.15
    assert (table["first place"].min() > 0.94) == last
    row = rule_evidence(evidence, sample, [rule], total=len(kept)).iloc[0]
    assert row["in last 4 %"] == pytest.approx(inside)


def test_agreement_counts_fields(evidence):
    sample = evidence.sample(40, random_state=1).reset_index(drop=True)
    sample.loc[0, "title"] = "another"
    sample.at[1, "captions"] = ["another"]
    sample.loc[2, ["template", "meme_id"]] = ["Big-Hat", "bh"]
    sample.loc[3, "meme_id"] = "gone"
    rows = filter.sample_agreement(evidence, sample).set_index("what")["memes"]
    assert rows["memes in the sample"] == 40 and rows["of templates that are here"] == 39
    assert (rows["found by their id"], rows["same title"], rows["same captions"]) == (38, 37, 37)
    assert rows["same views"] == 38


@pytest.mark.slow
@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="the real records are not on this machine")
def test_the_default_rule_is_what_the_published_memes_support():
    evidence = cm50_records.read_records(CORPORA / "imgflip575k").frame
    sample = cm50_records.frame_of(cm50_records.read_cm50(CORPORA / "cm50").memes)
    near = [TemplateRule(), *(TemplateRule(min_votes=n) for n in (4, 5, 7)),
            *(TemplateRule(title_differs=way) for way in ("case", "letters", "start", "ignored")),
            TemplateRule(titles_unique_in="template"), TemplateRule(min_text_chars=2)]  # fmt: skip
    table = rule_evidence(evidence, sample, near)
    best = table.iloc[0]
    assert best["rule"] == describe(TemplateRule()) and best["left out"] == 0
    assert table["score"][1] - best["score"] > 20 and abs(best["kept"] / best["expected"] - 1) < 0.05
    assert best["in last 4 %"] > 0.97
    agreement = filter.sample_agreement(evidence, sample).set_index("what")["memes"]
    assert agreement["of templates that are here"] == 382 and set(agreement.iloc[1:]) == {382}
    edges = filter.rule_edges(evidence, sample).set_index("quantity")
    assert edges.loc["votes", "smallest"] == 6 and edges.loc["votes", "chance"] < 1e-100
