import json
from types import SimpleNamespace

import made_chats
import made_up
import numpy as np
import pandas as pd
import pytest

from memecmd_utils import schemas
from memecmd_utils.chats import insertion
from memecmd_utils.core import storage
from memecmd_utils.core.llm.messages import EndpointError
from memecmd_utils.retrieval import large_library, placement
from memecmd_utils.retrieval.scoring import QUERY_FIELDS
from memecmd_utils.runs import StageMissing
from memecmd_utils.settings import ProfileError

SUMMARY = schemas.SummaryReply(**made_chats.summary(4))


@pytest.mark.parametrize("centring", ["none", "attribute"])
def test_it_finds_what_the_pipeline_found(monkeypatch, tmp_path, centring) -> None:
    """The run's own summaries, as texts: the same memes, scores and parts."""
    run = made_chats.finished_run(monkeypatch, tmp_path, centring=centring)
    library = insertion.open_library(run, run)
    dialogues = storage.read_jsonl(run.read("dialogues.jsonl"), schemas.Dialogue)
    scored = placement.score_dialogues(dialogues, library.index, library.encode, run.profile)
    flat = [schemas.SummaryReply(**{f: getattr(s, f) for f in QUERY_FIELDS})
            for d in dialogues for s in d.summaries]  # fmt: skip
    queries, ranking = library.rank([None, *flat])
    assert ranking.memes[0].tolist() == [-1] * 3 and not queries[0].any()
    for part in ("memes", "scores", "components"):
        expected = np.concatenate([getattr(s.ranking, part) for s in scored])
        assert np.allclose(getattr(ranking, part)[1:], expected, atol=1e-6)
    _, found = library.rank([SUMMARY])
    assert library.index.meme_ids[found.memes[0, 0]] == "m04"


def test_a_large_library_is_kept_in_the_run_and_ranks_as_the_small_one(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path)
    plain = insertion.open_library(run, run)
    assert not run.write("library_index").exists()
    monkeypatch.setattr(large_library, "FROM_MEMES", made_chats.N_MEMES)
    # Twelve memes are too few to train an index on.
    monkeypatch.setattr(large_library, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="faiss is not installed"):
        library = insertion.open_library(run, run)
    rows_file = run.write("library_index") / "rows.f16"
    assert library.index.rows.dtype == np.float16 and rows_file.is_file()
    summaries = [schemas.SummaryReply(**made_chats.summary(topic)) for topic in range(9)]
    ours, theirs = (lib.rank([None, *summaries])[1] for lib in (library, plain))
    assert np.array_equal(ours.memes[:, 0], theirs.memes[:, 0])
    assert np.allclose(ours.scores[1:], theirs.scores[1:], atol=2**-10)
    made = rows_file.stat().st_mtime_ns
    with pytest.warns(UserWarning, match="faiss is not installed"):
        insertion.open_library(run, run)
    assert rows_file.stat().st_mtime_ns == made, "opened again, not made again"


def test_the_gate_is_the_mean_of_the_two(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path)
    gates = {
        "a": {"theta0": 0.2, "penalty": 1.0, "decay": 2.0, "score_mean": 0.1, "score_std": 0.02},
        "b": {"theta0": 0.4, "penalty": 1.0, "decay": 2.0, "score_mean": 0.3, "score_std": 0.04},
    }
    run.write("gates.json").write_text(json.dumps(gates), encoding="utf-8")
    gate, scale = insertion.open_library(run, run).gate()
    assert (gate.theta0, gate.penalty, gate.decay) == pytest.approx((0.3, 1.0, 2.0))
    assert (scale.mean, scale.std) == pytest.approx((0.2, 0.03))


def test_vectors_of_new_texts_are_recorded_where_the_run_records(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path)
    insertion.open_library(run, run).queries([SUMMARY])
    assert not list((tmp_path / "raw").rglob("*.npz"))
    auto = made_chats.finished_run(monkeypatch, tmp_path / "b", mode="auto")
    insertion.unrecorded(auto, auto)(["新的"], "query")
    assert not list((tmp_path / "b" / "raw").rglob("*.npz")), "nor where the panel asks"
    insertion.open_library(auto, auto).queries([SUMMARY])
    assert list((tmp_path / "b" / "raw" / "recordings" / "made").rglob("*.npz"))
    assert not list(tmp_path.rglob("*.keys.json")), "no part of the run, and never tracked with it"


def test_a_remote_embedder_is_asked_only_where_the_mode_allows(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path, embedder="endpoint")
    with pytest.raises(EndpointError, match="SET=mode=auto"):
        insertion.open_library(run, run)
    paid = []
    asking = SimpleNamespace(profile=made_up.profile(mode="auto"), paying=lambda e: paid.append(e) or e)
    insertion.open_library(run, asking)
    assert [embedder.name for embedder in paid] == [run.embedder_name()], "who asks pays"


def test_a_run_that_is_not_there_or_cannot_be_read(monkeypatch, tmp_path) -> None:
    run = made_chats.finished_run(monkeypatch, tmp_path)
    assert insertion.library_of("", "made", "").profile == insertion.finished_run("made").profile
    with pytest.raises(StageMissing, match="no run 'made-"):
        insertion.library_of("", "made", "seed=99")
    asking = insertion.asking_run(run, "made", "seed=99", "chats")
    assert (asking.name, asking.profile.seed) == ("made-chats", 99)
    annotations = pd.read_parquet(run.write("annotations.parquet"))
    annotations.drop(columns="emotion").to_parquet(run.write("annotations.parquet"))
    with pytest.raises(StageMissing, match=r"of another version .*emotion"):
        insertion.open_library(run, run)
    run.write("profile.yaml").write_text("colour: red", encoding="utf-8")
    with pytest.raises(ProfileError, match="make the run anew"):
        insertion.finished_run("made")
