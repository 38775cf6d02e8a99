"""The groups of tables; what they hold of a run is tested with the page in test_closing."""

import pandas as pd

from memecmd_utils import page_tables, profiles

ATTACK = "<script>alert('x')</script>"


def test_rich_tables_escape_everything_but_our_own_marks():
    frame = pd.DataFrame({"a": [ATTACK, "**1.50** and <u>2.00</u>", 0.12345], "b": [1, 2, float("nan")]})
    html = str(page_tables.rich(frame))
    assert "<script>" not in html and "<b>1.50</b>" in html and "<u>2.00</u>" in html
    assert "0.123" in html and "–" in html


def test_a_run_without_ground_truth_has_no_tables_of_it():
    assert page_tables.truth_tables({"retrieval": []}, profiles.load_profile("example")) == []
