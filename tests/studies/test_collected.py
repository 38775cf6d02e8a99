import made_up
import pandas as pd
import pytest

from memecmd_utils import runs
from memecmd_utils.studies import collected


def test_studies_are_kept_saved_and_read_back(tmp_path) -> None:
    run = runs.Run("made", made_up.profile(), tmp_path, tmp_path / "report")
    found = collected.Collected()
    assert found.add("hubs", "Hubs do it.", hubs=pd.DataFrame({"k": [1], "skew": [2.5]})) == "Hubs do it."
    found.add("k", "More is less.", k_relevance=pd.DataFrame(), k_use=pd.DataFrame({"K": [3]}))
    found.save(run)
    read = collected.load(run)
    assert read["sentences"] == {"hubs": "Hubs do it.", "k": "More is less."}
    assert read["columns"]["hubs"] == ["k", "skew"]
    assert read["tables"]["hubs"] == [{"k": 1, "skew": 2.5}] and read["tables"]["k_relevance"] == []
    assert (tmp_path / "report/tables/hubs.csv").read_text() == "k,skew\n1,2.500000\n"


@pytest.mark.parametrize(("study", "table"), [("hubs", "other"), ("other", "hubs")])
def test_nothing_is_overwritten_in_silence(study, table) -> None:
    found = collected.Collected()
    found.add("hubs", "", hubs=pd.DataFrame())
    with pytest.raises(ValueError, match="already"):
        found.add(study, "", **{table: pd.DataFrame()})
