"""The groups of tables; what they hold of a run is tested with the page in test_closing."""

from memecmd_utils import settings
from memecmd_utils.report import page


def test_a_run_without_ground_truth_has_no_tables_of_it():
    assert page.truth_tables({"retrieval": []}, settings.load_profile("example")) == []
