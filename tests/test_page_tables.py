"""The groups of tables; what they hold of a run is tested with the page in test_closing."""

from memecmd_utils import page_tables, profiles


def test_a_run_without_ground_truth_has_no_tables_of_it():
    assert page_tables.truth_tables({"retrieval": []}, profiles.load_profile("example")) == []
