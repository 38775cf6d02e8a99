"""What notebook 07 teaches with where no data set is: counts, records and a template, all without a meme."""

import io

import derived_cm50
import numpy as np
import pandas as pd
import pytest

from memecmd_utils.cm50 import lesson
from memecmd_utils.files import paths

CORPORA = paths.root.parent / "shared" / "corpora"


def test_the_counts_fit_together() -> None:
    templates, votes, edges = lesson.derived_counts()
    assert len(templates) == templates["template"].nunique() == 50 and templates["validation"].sum() == 675
    here = templates.dropna()
    assert len(here) == 39 and (here["kept"] >= 150).all() and (here["kept"] <= here["records"]).all()
    assert (here["in_last_4_percent"] <= here[["validation", "last_4_percent"]].min(axis=1)).all()
    assert here["first_place"].between(0, 1).all()
    assert votes["votes"].tolist() == list(range(derived_cm50.MOST_VOTES + 1))
    assert (
        votes["published"].sum() <= here["validation"].sum()
        and (votes["published"] <= votes["records"]).all()
    )
    by_name = edges.set_index("quantity")
    assert votes.loc[votes["votes"] < by_name["smallest"]["votes"], "published"].sum() == 0
    assert (
        votes.loc[votes["votes"] < by_name["smallest"]["votes"], "records"].sum() == by_name["below"]["votes"]
    )


@pytest.mark.slow
@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="the real records are not on this machine")
def test_the_counts_are_those_of_the_data_sets() -> None:
    made = derived_cm50.derive(CORPORA / "imgflip575k", CORPORA / "cm50")
    for name, table in zip(made, lesson.derived_counts(), strict=True):
        again = pd.read_csv(io.StringIO(made[name].to_csv(index=False)))
        pd.testing.assert_frame_equal(again, table)


def test_made_up_records_obey_the_hidden_rule() -> None:
    for seed in range(30):
        records, share, threshold = lesson.made_up_records(seed)
        assert len(records) == 200 and records.loc[records["published"], "votes"].min() >= threshold
        kept = records[records["votes"] >= threshold]
        error = 4 * np.sqrt(share * (1 - share) / len(kept))
        assert abs(kept["published"].mean() - share) < error
    pd.testing.assert_frame_equal(lesson.made_up_records(3).records, lesson.made_up_records(3).records)
    assert len({lesson.made_up_records(seed).threshold for seed in range(30)}) > 5


def test_memes_of_one_template_share_their_picture_and_differ_in_their_lines() -> None:
    pair = [("ONE LINE", "ANOTHER"), ("A MUCH LONGER UPPER LINE", "BELOW")]
    one, other = (np.asarray(lesson.draw_template([captions])) for captions in pair)
    height = one.shape[0]
    middle = slice(height // 4, 3 * height // 4)
    assert np.array_equal(one[middle], other[middle]) and len(np.unique(one[middle])) > 10
    assert not np.array_equal(one[: height // 4], other[: height // 4])
    both = np.asarray(lesson.draw_template(pair))
    assert np.array_equal(both[:, : one.shape[1]], one) and np.array_equal(both[:, -one.shape[1] :], other)
