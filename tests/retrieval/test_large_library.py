import json
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import made_up
import numpy as np
import pytest
from made_vectors import WEIGHTS, blocks, rows, turns

from memecmd_utils.panel import explorer
from memecmd_utils.retrieval import large_library, placement, scoring
from memecmd_utils.retrieval.large_library import LargeLibrary, LibraryError, open_library, recall_at_k

DIM, MEMES = 16, 6000
NEEDS = "needs faiss: pip install -e '.[scale]'"


def same(a: scoring.Ranking, b: scoring.Ranking) -> bool:
    return all(map(np.array_equal, a, b))


def joined(rankings: list[scoring.Ranking]) -> scoring.Ranking:
    return scoring.Ranking(*map(np.concatenate, zip(*rankings, strict=True)))


def build(folder: Path, ids: list[str], stacked: np.ndarray, **settings) -> LargeLibrary:
    return large_library.build(folder, blocks(ids, stacked), stacked.shape[1] // 4, **settings)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Where other processes have the cores, FAISS's threads wait for each other most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        if find_spec("faiss") is None:
            yield
            return
        import faiss

        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        yield
        faiss.omp_set_num_threads(before)


@pytest.fixture
def large(monkeypatch) -> None:
    """From 200 memes on a library is large, and it is encoded in several blocks."""
    monkeypatch.setattr(large_library, "FROM_MEMES", 200)
    monkeypatch.setattr(large_library, "MEMES_AT_ONCE", 150)


@pytest.fixture
def faiss(large):
    return pytest.importorskip("faiss", reason=NEEDS)


@pytest.fixture
def flat(large, monkeypatch) -> None:
    """As on a machine without faiss."""
    monkeypatch.setattr(large_library, "find_spec", lambda name: None)
    warnings.filterwarnings("ignore", "faiss is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("faiss", reason=NEEDS)
    made = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_library, "FROM_MEMES", 200)
        build(made, *rows(MEMES))
    return made


@pytest.fixture(scope="module")
def library(folder: Path) -> LargeLibrary:
    return replace(open_library(folder), probes=64, candidates=256)


@pytest.mark.parametrize("weights", [WEIGHTS, (1, 0, 0, 0), (0, 1, 0, 0), (0.1, 0.6, 0.2, 0.1), (0, 0, 1, 0)])
def test_recall_under_any_weights_without_a_new_index(library, weights) -> None:
    queries = turns(64)
    true = scoring.top_k(library.index, queries, weights, 10)
    assert recall_at_k(library.top_k(queries, weights, 10), true) >= 0.95
    few = replace(library, probes=1).top_k(queries, weights, 10)
    assert recall_at_k(few, true) < 0.95, "the test could not fail"
    # What is found has exact scores, in exact order.
    assert np.array_equal(few.components, scoring.pair_components(library.index, queries, few.memes))
    assert np.allclose(few.scores, few.components @ np.array(weights), atol=1e-9)
    assert (np.diff(few.scores) <= 0).all()


def test_equal_scores_are_ordered_by_id(tmp_path, faiss) -> None:
    ids, stacked = rows(4000)
    stacked[1000:1040] = stacked[1000]
    asked = stacked[1000].reshape(1, 4, DIM).copy()
    library = build(tmp_path, ids, stacked)
    for weights, tied in (((1, 1, 1, 1), ids[1000:1040]), ((0, 0, 0, 0), ids)):
        found = library.top_k(asked, weights, 5)
        assert [ids[i] for i in found.memes[0]] == sorted(tied)[:5]


def test_turns_with_too_few_candidates_change_no_other_turn(library) -> None:
    """One list holds some 50 memes, so for K = 50 some turns are searched exactly, and only those."""
    queries, one = turns(60), replace(library, probes=1, candidates=10)
    whole = one.top_k(queries, WEIGHTS, 50)
    exact = (whole.memes == scoring.top_k(library.index, queries, WEIGHTS, 50).memes).all(axis=1)
    assert 0 < exact.sum() < len(queries)
    alone = [one.top_k(queries[i : i + 1], WEIGHTS, 50) for i in range(60)]
    assert same(joined([one.top_k(queries[:0], WEIGHTS, 50), *alone]), whole)


def test_tuned_takes_the_fewest_lists_that_reach_the_recall(library) -> None:
    queries = turns(64)
    true = scoring.top_k(library.index, queries, WEIGHTS, 10)
    tuned = library.tuned(queries, WEIGHTS, 10, recall=0.9)
    assert recall_at_k(tuned.top_k(queries, WEIGHTS, 10), true) >= 0.9
    fewer = replace(tuned, probes=tuned.probes * 2 // 3)
    assert tuned.probes > 1 and recall_at_k(fewer.top_k(queries, WEIGHTS, 10), true) < 0.9


def test_settings_and_queries_that_do_not_fit_are_refused(library) -> None:
    for wrong in ({"probes": 0}, {"candidates": -1}):
        with pytest.raises(ValueError, match="probes and candidates >= 1"):
            replace(library, **wrong)
    queries, broken = turns(3), turns(3)
    broken[1, 2, 3] = np.nan
    for one in (library, replace(library, faiss=None)):
        for asked, weights, k, why in (
            *((queries, weights, 3, "four finite weights") for weights in ((1,), (np.nan, 0, 0, 0), None)),
            *((wrong, WEIGHTS, 3, "finite queries") for wrong in (queries[0], turns(3, 8), broken)),
            (queries, WEIGHTS, 0, "k >= 1"),
        ):
            with pytest.raises(ValueError, match=why):
                one.top_k(asked, weights, k)
    with pytest.raises(ValueError, match="there are none"):
        library.tuned(turns(0), WEIGHTS)
    assert len(repr(library)) < 500, "a notebook shows it"


def test_a_library_that_has_grown_takes_lists_and_codes_of_the_old_one(tmp_path, faiss, monkeypatch) -> None:
    ids, stacked = rows(MEMES)
    old = build(tmp_path / "old", ids[:4000], stacked[:4000])
    monkeypatch.setattr(large_library, "fit_projection", lambda *_: pytest.fail("trained anew"))
    more = [(old.meme_ids, old.index.rows), *blocks(ids[4000:], stacked[4000:])]
    grown = replace(large_library.build(tmp_path / "new", more, DIM, like=old), probes=64, candidates=256)
    assert grown.meme_ids == tuple(ids) and np.array_equal(grown.index.rows, stacked)
    assert grown.faiss.ntotal == MEMES and grown.kind == old.kind and old.faiss.ntotal == 4000
    true = scoring.top_k(grown.index, turns(64), WEIGHTS, 10)
    assert recall_at_k(grown.top_k(turns(64), WEIGHTS, 10), true) >= 0.9
    with pytest.raises(LibraryError, match="dimension 8"):
        build(tmp_path / "other", *rows(300, dim=8), like=old)


def test_who_builds_in_a_folder_waits_for_who_does_so_already(tmp_path) -> None:
    with large_library._locked(tmp_path):
        other = threading.Thread(target=build, args=(tmp_path, *rows(300)))
        other.start()
        other.join(0.3)
        assert not (tmp_path / "rows.f16").exists()
    other.join(30)
    assert len(open_library(tmp_path).meme_ids) == 300


@pytest.mark.parametrize(
    ("ids", "factor", "why"),
    [(["x", "x"], 1, "unique"), (["m000001", "x"], 1, "unique"), (["x"], 1, "shape"), ([1, 2], 1, "texts"),
     (["x", "y"], 50, "row 51 .* length 50"), (["x", "y"], 1e30, "inf"), (["x", "y"], np.inf, "not finite")],
)  # fmt: skip
def test_blocks_that_do_not_fit_are_refused_and_leave_no_library(tmp_path, ids, factor, why) -> None:
    """Float16 ends at 65,504, and the bound of the rounding counts on lengths of 1."""
    names, stacked = rows(52)
    last = stacked[50:].astype(np.float64)  # the first of it lacks all texts
    last[0], last[1] = 0, last[1] * factor
    with pytest.raises(LibraryError, match=why):
        large_library.build(tmp_path, [(names[:50], stacked[:50]), (ids, last)], DIM)
    with pytest.raises(LibraryError, match="at least one"):
        large_library.build(tmp_path, [], DIM)
    with pytest.raises(LibraryError, match="no whole library"):
        open_library(tmp_path)


def test_damage_is_said(tmp_path, faiss) -> None:
    build(tmp_path / "other", *rows(300))
    build(tmp_path / "whole", *rows(1000))
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    index, other = whole["index.faiss"], (tmp_path / "other" / "index.faiss").read_bytes()
    folder = tmp_path / "whole"
    for name, damaged in (
        ("rows.f16", b"x" * 100), ("index.faiss", index[: len(index) // 2]), ("index.faiss", other),
        ("tuning.json", b"{}"), *(("library.json", text) for text in (b"", b"[]", b'{"ids": 3}')),
    ):  # fmt: skip
        (folder / name).write_bytes(damaged)
        with pytest.raises(LibraryError, match="no whole library"):
            open_library(folder)
        (folder / "tuning.json").unlink(missing_ok=True)
        for kept, content in whole.items():
            (folder / kept).write_bytes(content)
    assert open_library(folder).faiss.ntotal == 1000


@cache
def vector(text: str, side: str) -> np.ndarray:
    """A vector around one of as many centres as texts have first words."""
    near = made_up.vectors([text.partition(" ")[0]], "centre", DIM)[0]
    return near + 0.8 * made_up.vectors([text], side, DIM)[0]


def encode(texts, side):
    """Unit vectors, rounded to float16 as recorded ones are."""
    vectors = np.stack([vector(text, side) for text in texts])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def annotations(count: int = 400, **of_the_seventh):
    made = [
        made_up.annotation(f"m{i:03d}", **{part: f"g{i % 12} {part} {i}" for part in scoring.MEME_SIDE})
        for i in range(count)
    ]
    made[7] = made[7].model_copy(update=of_the_seventh)
    return made


def talk(name: str):
    base = made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 19)))
    fields = scoring.QUERY_FIELDS
    made = [s.model_copy(update={f: f"g{s.turn % 12} {name} {f}" for f in fields}) for s in base.summaries]
    made[3] = made[3].model_copy(update=dict.fromkeys(fields, "") | {"unscored": "unusable: not JSON"})
    return base.model_copy(update={"kind": name.partition("-")[0], "summaries": made})


DIALOGUES = [talk(f"{kind}-{i}") for kind in ("news", "role") for i in range(3)]


def profile(**changes):
    return made_up.profile(n_turns=18, **changes)


def kept_in(folder, made=None, encode=encode, embedder="e", **changes) -> scoring.MemeIndex:
    return placement.index_library(made or annotations(), encode, profile(**changes), folder, embedder)


def placed(index, **changes):
    """What notebook 04 makes of an index."""
    index = placement.tuned(index, DIALOGUES, encode, profile(**changes))
    scored = placement.score_dialogues(DIALOGUES, index, encode, profile(**changes))
    ranking = joined([item.ranking for item in scored])
    return index, scored, ranking, placement.place(scored, index, profile(**changes))


def test_below_the_bound_nothing_is_kept_and_nothing_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(large_library, "FROM_MEMES", 401)
    index, plain = kept_in(tmp_path / "library"), placement.index_library(annotations(), encode, profile())
    assert index.search is None and np.array_equal(index.rows, plain.rows) and index.rows.dtype == np.float32
    assert placement.tuned(index, DIALOGUES, encode, profile()) is index
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(large_library, "FROM_MEMES", 400)
    assert placement.index_library(annotations(), encode, profile()).search is None, "without a folder"


@pytest.mark.parametrize("centring", ["none", "attribute"])
def test_every_meme_compared_on_disk_ranks_as_in_memory(tmp_path, flat, centring) -> None:
    """Scores within the rounding of float16; memes and placements the same where no two are that close."""
    index, _, got, on_disk = placed(kept_in(tmp_path, centring=centring), centring=centring)
    plain = placement.index_library(annotations(), encode, profile(centring=centring))
    _, _, true, in_memory = placed(plain, centring=centring)
    assert isinstance(index.rows, np.memmap) and np.abs(index.rows - plain.rows).max() < 2**-11
    usable = np.isfinite(true.scores)
    assert np.array_equal(usable, np.isfinite(got.scores)) and not usable.all()
    assert np.abs(got.scores[usable] - true.scores[usable]).max() < 2**-11 * 4 / 3
    assert np.mean(got.memes == true.memes) > 0.97
    assert np.mean([a.meme_id == b.meme_id for a, b in zip(on_disk, in_memory, strict=True)]) > 0.97
    assert "every one is compared" in str(index.search)


def test_a_run_searches_as_it_says_and_others_search_as_it_does(tmp_path, faiss, monkeypatch) -> None:
    assert "the recall is not measured" in str(kept_in(tmp_path).search)
    index, scored, found, _ = placed(kept_in(tmp_path))
    kept = json.loads((tmp_path / "tuning.json").read_text(encoding="utf-8"))
    assert index.search.faiss is not None and index.search.probes == kept["probes"] < index.search.lists
    assert kept["recall"] >= 0.9 and f"{kept['recall']:.1%} of the true top 10" in str(index.search)
    assert "400 memes are kept on disk and searched through FAISS (IVF32,PQ" in str(index.search)
    usable = np.isfinite(found.scores[:, 0])
    queries = np.concatenate([item.queries for item in scored])[usable]
    true = scoring.top_k(index.search.index, queries, profile().retrieval.weights, 3)
    assert recall_at_k(found._replace(memes=found.memes[usable]), true) >= 0.9
    again = kept_in(tmp_path).search
    assert again.probes == kept["probes"] and str(again) == str(index.search)
    monkeypatch.setattr(LargeLibrary, "tuned", lambda self, *_: replace(self, faiss=None))
    for every in (placement.tuned(index, DIALOGUES, encode, profile()), kept_in(tmp_path)):
        assert every.search.faiss is None and "compared with every turn: the index" in str(every.search)
    assert placement.tuned(index, [], encode, profile()) is index


def test_a_second_run_reuses_and_a_changed_input_builds_anew(tmp_path, flat) -> None:
    asked = []

    def noting(texts, side):
        asked.extend(texts)
        return encode(texts, side)

    first = kept_in(tmp_path, encode=noting)
    assert len(set(asked)) == 4 * 400
    asked.clear()
    second = kept_in(tmp_path, encode=noting, weights=(1, 0, 0, 0))
    assert not asked and np.array_equal(first.rows, second.rows) and first.meme_ids == second.meme_ids
    for changes in (
        {"made": annotations(emotion="g1 another")}, {"made": annotations(meme_id="other")},
        {"made": annotations(401)}, {"made": annotations()[::-1]},
        {"embedder": "e-2"}, {"centring": "none"}, {"seed": 5},
    ):  # fmt: skip
        kept_in(tmp_path)
        (tmp_path / "tuning.json").write_text("{}", encoding="utf-8")
        asked.clear()
        index = kept_in(tmp_path, **{"encode": noting, **changes})
        assert asked and not (tmp_path / "tuning.json").exists(), changes
        assert index.meme_ids == tuple(a.meme_id for a in changes.get("made", annotations()))
    rebuilt, fresh = (kept_in(f, annotations(emotion="g1 another")) for f in (tmp_path, tmp_path / "fresh"))
    assert np.array_equal(fresh.rows, rebuilt.rows)
    with (tmp_path / "rows.f16").open("rb+") as handle:
        handle.truncate(100)
    with pytest.warns(UserWarning, match="made again from the memes' texts: .*no whole library"):
        assert np.array_equal(kept_in(tmp_path, annotations(emotion="g1 another")).rows, fresh.rows)


@pytest.mark.parametrize("step", ["encode", "_float16", "fit_projection", "write_index", "write_text"])
def test_a_build_killed_at_any_step_leaves_no_library_and_is_repeated(tmp_path, faiss, step) -> None:
    """SIGKILL while an older library is replaced: its state must not be taken for that of the new rows."""
    kept_in(tmp_path / "run", annotations(emotion="g1 another"))
    script = (
        "import os, signal, sys; from pathlib import Path; import faiss, test_large_library as t\n"
        "from memecmd_utils.retrieval import large_library as b; from memecmd_utils.core import storage\n"
        "b.FROM_MEMES, b.MEMES_AT_ONCE, calls = 200, 150, []\n"
        "owner = {'encode': t, 'write_index': faiss, 'write_text': storage}.get(sys.argv[2], b)\n"
        "last = {'encode': 22, '_float16': 2}.get(sys.argv[2], 1)\n"  # the 22nd: in the second pass
        "def dies(*args, was=getattr(owner, sys.argv[2])):\n"
        "    calls.append(was(*args) if sys.argv[2] != 'write_text' else None)\n"
        "    if len(calls) == last: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return calls[-1]\n"
        "setattr(owner, sys.argv[2], dies)\n"
        "t.kept_in(Path(sys.argv[1]), encode=t.encode)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run"), step]
    assert subprocess.run(command, cwd=Path(__file__).parent, timeout=120).returncode == -signal.SIGKILL
    with pytest.raises(LibraryError, match="no whole library"):
        open_library(tmp_path / "run")
    kept_in(tmp_path / "run")
    kept_in(tmp_path / "fresh")
    for path in (tmp_path / "fresh").iterdir():
        assert path.read_bytes() == (tmp_path / "run" / path.name).read_bytes(), path.name


def test_without_faiss_one_sentence_says_so_each_time(tmp_path, large, monkeypatch) -> None:
    def opened() -> LargeLibrary:
        with pytest.warns(UserWarning) as said:
            library = kept_in(tmp_path).search
        assert ["faiss is not installed" in str(w.message) for w in said] == [True]
        assert library.faiss is None and library.tuned(turns(2), WEIGHTS) is library
        return library

    with monkeypatch.context() as patch:
        patch.setattr(large_library, "find_spec", lambda name: None)
        assert [opened().kind, opened().kind] == [None, None]
    pytest.importorskip("faiss", reason=NEEDS)
    kind = kept_in(tmp_path).search.kind
    assert kind, "faiss came later"
    monkeypatch.setattr(large_library, "find_spec", lambda name: None)
    assert opened().kind == kind, "the index is kept for a machine that has it"


def test_the_panel_and_the_samples_keep_no_matrix_of_all_memes(tmp_path, monkeypatch, flat) -> None:
    """The panel on disk shows what the panel in memory shows, and nothing multiplies all rows at once."""
    index, scored, _, _ = placed(kept_in(tmp_path))
    # The same rounded rows in memory, so that both agree to the last digit.
    plain = scoring.MemeIndex(index.meme_ids, index.rows.astype(np.float32))
    in_memory = placement.score_dialogues(DIALOGUES, plain, encode, profile())
    expected, expected_few = (
        placement.sample_scores(in_memory[:n], plain, profile(), limit=500) for n in (6, 1)
    )
    every = placement.sample_scores(in_memory[:1], plain, profile())

    def turned(scored, index):
        panel = explorer.Explorer(scored, index, profile())
        for changes in ({}, {"weights": (0.8, -0.3, 0.0, 0.45), "top_k": 7}, {"weights": (0.0,) * 4}):
            settings = replace(panel.own_settings(), **changes)
            yield panel.select(settings).picks
            if any(settings.weights):
                yield panel.fit(settings), panel.select(panel.fit(settings)).picks

    with monkeypatch.context() as patch:
        patch.setattr(explorer, "KEPT_NUMBERS", 0)  # as for any library of that size
        ours = list(turned(in_memory, plain))
    for module in (placement, explorer):
        monkeypatch.setattr(module, "component_matrices", lambda *_: pytest.fail("a matrix of all memes"))
    assert np.array_equal(placement.sample_scores(scored, index, profile(), limit=500), expected)
    assert np.array_equal(placement.sample_scores(scored[:1], index, profile(), limit=500), expected_few)
    assert np.allclose(placement.sample_scores(scored[:1], index, profile()), every, atol=1e-6)
    assert list(turned(scored, index)) == ours and len(ours[0]) > 1
