import made_templates as made
import numpy as np
import pandas as pd
import pytest

from memecmd_utils.cm50 import filter
from memecmd_utils.cm50 import records as cm50_records
from memecmd_utils.cm50.filter import filter_records, measure, passing, split
from memecmd_utils.cm50.records import Records, broken_table, memes_of
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
