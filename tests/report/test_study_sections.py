import json
from types import SimpleNamespace

import numpy as np
import pytest

from memecmd_utils.evaluation import judge_checks
from memecmd_utils.report import page


@pytest.fixture
def run(tmp_path):
    trust = dict.fromkeys(judge_checks.TRUST)
    trust |= {"judge": "j", "reading": "p(yes)", "verdict": "no", "AUC random": 0.5}
    trust |= {"AUC random low": 0.4, "AUC random high": 0.6}
    files = {
        "judge_checks.json": {"sentence": "It cannot tell.", "trust": [trust]},
        "studies.json": {
            "sentences": {"hubs": "Hubs do it."},
            "tables": {"hubs": [{"k": 1, "skewness": None}], "claims": []},
            "columns": {"hubs": ["skewness", "k"], "claims": []},
        },
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    return SimpleNamespace(read=lambda name: tmp_path / name)


def test_a_group_for_each_study_that_was_made(run) -> None:
    judges, hubs = page.study_groups(run)
    assert judges.words == "It cannot tell." and hubs.words == "Hubs do it."
    (_, table, _), *rest = judges.tables
    assert not rest and table["AUC random"].tolist() == ["0.500 [0.400, 0.600]"]
    (_, table, _), *rest = hubs.tables
    assert not rest and list(table) == ["skewness", "k"] and table["k"].tolist() == [1]
    assert np.isnan(table["skewness"]).all()


def test_every_table_of_a_group_is_made_by_the_notebook() -> None:
    from memecmd_utils.core import paths

    source = (paths.notebooks / "05b_studies.ipynb").read_text(encoding="utf-8")
    for study, group in page.STUDIES.items():
        assert f'\\"{study}\\"' in source, study
        for _, name, _ in group.tables:
            assert f"{name}=" in source or f'\\"{name}\\"' in source, name
