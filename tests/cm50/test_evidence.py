import made_templates as made
import numpy as np
import pandas as pd
import pytest

from memecmd_utils.cm50 import filter
from memecmd_utils.cm50 import records as cm50_records
from memecmd_utils.cm50.filter import candidate_rules, describe, rule_evidence
from memecmd_utils.core import paths
from memecmd_utils.settings import TemplateRule

CORPORA = paths.root.parent / "shared" / "corpora"
PLANTED = {
    "votes": TemplateRule(min_votes=6),
    "loose": TemplateRule(min_votes=2, title_differs="exact"),
    "letters": TemplateRule(min_votes=5, title_differs="letters"),
    "words": TemplateRule(min_votes=4, min_text_words=3),
    "views": TemplateRule(min_votes=0, min_views=500),
}


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    sizes = (2400, 2000, 1500, 1500, 1200, 1000)
    folder = made.write_source(tmp_path_factory.mktemp("made"), made.world(sizes=sizes))
    return cm50_records.read_records(folder).frame


def planted(frame, rule, share=0.3, last=False):
    """What a rule keeps, and a sample of it."""
    kept = frame[filter.passing(filter.measure(frame), rule)]
    if last:
        parts = filter.split(kept, rule.model_copy(update={"split": "source_order"}))
        return kept, kept[np.array(parts) == "validation"]
    return kept, kept.sample(frac=share, random_state=4)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_the_planted_rule_is_found(frame, name):
    kept, sample = planted(frame, PLANTED[name])
    table = rule_evidence(frame, sample, candidate_rules(PLANTED[name]), total=len(kept))
    assert table["rule"][0] == describe(PLANTED[name]) and table["allowed"][0]
    assert table["kept"][0] == len(kept) and table["expected"][0] == pytest.approx(len(kept))
    assert table.loc[table["allowed"], "score"].is_monotonic_increasing
    assert not table["allowed"].iloc[-1] and table["allowed"].is_monotonic_decreasing
    # With the planted rule, counts are off by the luck of the draw only: one a template.
    assert table["deviance"][0] < 20


def test_a_rule_that_refuses_a_meme_of_the_sample_is_ruled_out(frame):
    kept, sample = planted(frame, TemplateRule())
    odd = frame[(frame["votes"] == 5) & (frame["title"].str.contains("made up"))].head(1)
    table = rule_evidence(frame, pd.concat([sample, odd]), total=len(kept)).set_index("rule")
    row = table.loc[describe(TemplateRule())]
    assert row["left out"] == 1 and not row["allowed"]
    assert table["allowed"].iloc[0] and "votes >= 5" in table.index[0]


def test_a_published_meme_that_the_records_lack_is_left_out_by_every_rule(frame):
    kept, sample = planted(frame, TemplateRule())
    full = rule_evidence(frame, sample, total=len(kept))
    less = frame[~frame["meme_id"].isin(sample["meme_id"].head(3))]
    table = rule_evidence(less, sample, total=len(kept))
    assert table["left out"].min() == 3 and not table["allowed"].any()
    assert table["rule"][0] == full["rule"][0], "rules are told apart all the same"
    assert table["left out"].iloc[: int(full["allowed"].sum())].eq(3).all()
    # All are missing: the template has records, none of them published.
    none = frame[~frame["meme_id"].isin(sample["meme_id"])]
    assert rule_evidence(none, sample, [TemplateRule()])["left out"][0] == len(sample)
    assert filter.rule_edges(none, sample).empty
    assert filter.validation_places(none, sample, TemplateRule()).empty


def test_shares_tell_rules_apart_that_keep_equally_many(frame):
    # Names without their apostrophe: only one template is hit by the difference.
    kept, sample = planted(frame, TemplateRule(title_differs="letters"))
    table = rule_evidence(frame, sample, total=len(kept)).set_index("rule")
    letters, exact = (table.loc[f"votes >= 6, title differs ({way})"] for way in ("letters", "exact"))
    assert letters["allowed"] and exact["allowed"]
    assert letters["distance"] < exact["distance"] / 3 and letters["score"] < exact["score"] - 20
    assert letters["r"] > exact["r"]


def test_templates_without_records_play_no_part_but_count_in_the_size(frame):
    kept, sample = planted(frame, TemplateRule())
    absent = sample.head(300).assign(template="Big-Hat", meme_id=[f"bh{n}" for n in range(300)])
    scale = (len(sample) + 300) / len(sample)
    both = pd.concat([sample, absent], ignore_index=True)
    table = rule_evidence(frame, both, [TemplateRule()], total=round(len(kept) * scale))
    assert table["expected"][0] == pytest.approx(len(kept), rel=1e-3) and table["left out"][0] == 0
    with pytest.raises(ValueError, match="no template of the sample"):
        rule_evidence(frame, absent, [TemplateRule()])


def test_the_deviance_is_that_of_poisson_counts():
    from scipy import stats

    seen, mean = np.array([3.0, 0, 7]), np.array([4.0, 1, 6])
    best, here = (stats.poisson.logpmf(seen, mu).sum() for mu in (np.maximum(seen, 1e-12), mean))
    assert filter._deviance(seen, mean) == pytest.approx(2 * (best - here))
    assert filter._deviance(np.array([1.0]), np.array([0.0])) == np.inf


def test_a_sharp_edge_is_told_from_no_edge(frame):
    kept, sample = planted(frame, TemplateRule(min_votes=6))
    table = filter.rule_edges(frame, sample, total=len(kept)).set_index("quantity")
    assert table.loc["votes", "smallest"] == 6 and table.loc["votes", "chance"] < 1e-9
    assert table.loc["views", "chance"] > 0.05 and table.loc["views", "smallest"] < 70
    below = table.loc["votes", "below"]
    assert below == ((frame["votes"] < 6) & (frame["title"] != frame["template"].str.replace("-", " "))).sum()


@pytest.mark.parametrize("last", [True, False])
def test_a_sample_from_the_end_of_the_source_is_seen(frame, last):
    rule = TemplateRule()
    kept, sample = planted(frame, rule, share=0.04, last=last)
    table = filter.validation_places(frame, sample, rule)
    inside = table["in last 4 %"].sum() / table["sample"].sum()
    assert table["kept"].sum() == len(kept) and table["sample"].sum() == len(sample)
    assert inside == 1 if last else inside < 0.15
    assert (table["first place"].min() > 0.94) == last
    row = rule_evidence(frame, sample, [rule], total=len(kept)).iloc[0]
    assert row["in last 4 %"] == pytest.approx(inside)


def test_agreement_counts_fields(frame):
    sample = frame.sample(40, random_state=1).reset_index(drop=True)
    sample.loc[0, "title"] = "another"
    sample.at[1, "captions"] = ["another"]
    sample.loc[2, ["template", "meme_id"]] = ["Big-Hat", "bh"]
    sample.loc[3, "meme_id"] = "gone"
    rows = filter.sample_agreement(frame, sample).set_index("what")["memes"]
    assert rows["memes in the sample"] == 40 and rows["of templates that are here"] == 39
    assert (rows["found by their id"], rows["same title"], rows["same captions"]) == (38, 37, 37)
    assert rows["same views"] == 38


@pytest.mark.slow
@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="the real records are not on this machine")
def test_the_default_rule_is_what_the_published_memes_support():
    frame = cm50_records.read_records(CORPORA / "imgflip575k").frame
    sample = cm50_records.frame_of(cm50_records.read_cm50(CORPORA / "cm50").memes)
    near = [TemplateRule(), *(TemplateRule(min_votes=n) for n in (4, 5, 7)),
            *(TemplateRule(title_differs=way) for way in ("case", "letters", "start", "ignored")),
            TemplateRule(titles_unique_in="template"), TemplateRule(min_text_chars=2)]  # fmt: skip
    table = rule_evidence(frame, sample, near)
    best = table.iloc[0]
    assert best["rule"] == describe(TemplateRule()) and best["left out"] == 0
    assert table["score"][1] - best["score"] > 20 and abs(best["kept"] / best["expected"] - 1) < 0.05
    assert best["in last 4 %"] > 0.97
    agreement = filter.sample_agreement(frame, sample).set_index("what")["memes"]
    assert agreement["of templates that are here"] == 382 and set(agreement.iloc[1:]) == {382}
    edges = filter.rule_edges(frame, sample).set_index("quantity")
    assert edges.loc["votes", "smallest"] == 6 and edges.loc["votes", "chance"] < 1e-100
