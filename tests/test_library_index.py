import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import made_up
import numpy as np
import pytest

from memecmd_utils import (
    explorer,
    large_index,
    large_index_build,
    library_index,
    retrieval,
    selection,
    stored_library,
)
from memecmd_utils.explorer import Explorer
from memecmd_utils.library_index import MADE_FROM, TUNING, LibrarySearch
from memecmd_utils.panels import explore

MEMES, DIM = 400, 16
STRATEGIES = ("greedy", "sampling", "random", "random_same_turns")


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


def annotations(count: int = MEMES, **of_the_seventh):
    made = [
        made_up.annotation(f"m{i:03d}", **{part: f"g{i % 12} {part} {i}" for part in retrieval.MEME_SIDE})
        for i in range(count)
    ]
    made[7] = made[7].model_copy(update=of_the_seventh)
    return made


def talk(name: str, kind: str = "news"):
    base = made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 19)))
    fields = ("scenario", "emotion", "motivation")
    told = [s.model_copy(update={f: f"g{s.turn % 12} {name} {f}" for f in fields}) for s in base.summaries]
    gone = dict.fromkeys(fields, "") | {"unscored": "unusable: not JSON"}
    told[3] = told[3].model_copy(update=gone)
    return base.model_copy(update={"kind": kind, "summaries": told})


DIALOGUES = [talk(f"news-{i}") for i in range(3)] + [talk(f"role-{i}", "role") for i in range(3)]


def profile(**changes):
    return made_up.profile(n_turns=18, **changes)


def kept_in(folder, made=None, encode=encode, embedder="e", **changes) -> retrieval.MemeIndex:
    return selection.index_library(made or annotations(), encode, profile(**changes), folder, embedder)


def flat(monkeypatch) -> None:
    """As on a machine without faiss."""
    for module in (library_index, large_index, large_index_build):
        monkeypatch.setattr(module, "find_spec", lambda name: None)


@pytest.fixture
def large(monkeypatch) -> None:
    """From 200 memes on a library is large, and it is encoded in several blocks."""
    monkeypatch.setattr(large_index_build, "FROM_MEMES", 200)
    monkeypatch.setattr(library_index, "MEMES_AT_ONCE", 150)


@pytest.fixture
def faiss(large):
    return pytest.importorskip("faiss", reason="needs faiss: pip install -e '.[scale]'")


def whole_path(index, **changes):
    """What notebook 04 makes of an index."""
    index = selection.tuned(index, DIALOGUES, encode, profile(**changes))
    scored = selection.score_dialogues(DIALOGUES, index, encode, profile(**changes))
    return index, scored, selection.place(scored, index, profile(**changes))


def rankings(scored) -> retrieval.Ranking:
    parts = [item.ranking for item in scored]
    return retrieval.Ranking(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("memes", "scores", "components"))
    )


def test_below_the_bound_nothing_is_kept_and_nothing_changes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(large_index_build, "FROM_MEMES", MEMES + 1)
    index, plain = kept_in(tmp_path / "library"), selection.index_library(annotations(), encode, profile())
    assert index.search is None and np.array_equal(index.rows, plain.rows) and index.rows.dtype == np.float32
    assert selection.tuned(index, DIALOGUES, encode, profile()) is index
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(large_index_build, "FROM_MEMES", MEMES)
    assert selection.index_library(annotations(), encode, profile()).search is None, "without a folder"


def test_a_run_without_a_large_library_imports_none_of_it() -> None:
    code = (
        "import sys; from memecmd_utils import selection\n"
        "print([m for m in sys.modules if m.endswith(('library_index', 'large_index', 'stored_library'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.filterwarnings("ignore:faiss is not installed")
@pytest.mark.parametrize("centring", ["none", "attribute"])
def test_every_meme_compared_on_disk_ranks_as_in_memory(tmp_path, monkeypatch, large, centring) -> None:
    """Scores within the rounding of float16; memes and placements the same where no two are that close."""
    flat(monkeypatch)
    index, scored, placed = whole_path(kept_in(tmp_path, centring=centring), centring=centring)
    assert index.rows.dtype == np.float16 and isinstance(index.rows, np.memmap)
    plain = selection.index_library(annotations(), encode, profile(centring=centring))
    _, in_memory, expected = whole_path(plain, centring=centring)
    assert np.abs(index.rows - plain.rows).max() < 2**-11
    got, true = rankings(scored), rankings(in_memory)
    usable = np.isfinite(true.scores)
    assert np.array_equal(usable, np.isfinite(got.scores)) and not usable.all()
    assert np.abs(got.scores[usable] - true.scores[usable]).max() < 2**-11 * 4 / 3
    assert np.mean(got.memes == true.memes) > 0.97
    assert np.mean([a.meme_id == b.meme_id for a, b in zip(placed, expected, strict=True)]) > 0.97
    assert "every one is compared" in str(index.search)


def test_tuned_finds_what_it_says_and_others_search_as_it_does(tmp_path, faiss) -> None:
    index, scored, placed = whole_path(kept_in(tmp_path))
    search = index.search
    kept = json.loads((tmp_path / TUNING).read_text(encoding="utf-8"))
    assert search.large.faiss is not None and search.large.probes == kept["probes"] < search.large.lists
    assert kept["recall"] >= 0.9 and f"{kept['recall']:.1%} of the true top 10" in str(search)
    assert "400 memes are kept on disk and searched through FAISS (IVF32,PQ" in str(search)
    queries = np.concatenate([item.queries for item in scored])
    true = stored_library.flat_top_k(search.large.library, queries, profile().weights, 3)
    usable = np.isfinite(rankings(scored).scores[:, 0])
    found = retrieval.Ranking(
        *(getattr(rankings(scored), n)[usable] for n in ("memes", "scores", "components"))
    )
    true = retrieval.Ranking(true.memes[usable], true.scores[usable], true.components[usable])
    assert large_index.recall_at_k(found, true) >= 0.9
    assert {p.strategy for p in placed} == set(STRATEGIES)
    again = kept_in(tmp_path)
    assert again.search.large.probes == kept["probes"] and str(again.search) == str(search)


def test_tuning_takes_more_candidates_and_at_last_every_meme(tmp_path, faiss, monkeypatch) -> None:
    index = kept_in(tmp_path)
    assert "the recall is not measured" in str(index.search)
    original = large_index.LargeIndex.tuned

    def hard(self, queries, weights, k, recall):
        return original(self, queries, weights, k, recall if self.candidates > 300 else 1.1)

    monkeypatch.setattr(large_index.LargeIndex, "tuned", hard)
    assert selection.tuned(index, DIALOGUES, encode, profile()).search.large.candidates == 384
    monkeypatch.setattr(library_index, "RECALL", 1.1)
    every = selection.tuned(index, DIALOGUES, encode, profile())
    assert every.search.large.faiss is None and "every one is compared with every turn: the" in str(
        every.search
    )
    assert kept_in(tmp_path).search.large.faiss is None
    assert selection.tuned(index, [], encode, profile()) is index


def test_the_sample_holds_the_queries_of_the_run(tmp_path, faiss, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(library_index, "TURNS", 5)
    monkeypatch.setattr(
        large_index.LargeIndex, "tuned", lambda self, queries, *_: (seen.append(queries), self)[1]
    )
    _, scored, _ = whole_path(kept_in(tmp_path))
    run = np.concatenate([item.queries for item in scored])
    assert seen[0].shape == (5, 4, DIM)
    assert all(np.abs(run - one).max(axis=(1, 2)).min() < 1e-6 for one in seen[0])


@pytest.mark.filterwarnings("ignore:faiss is not installed")
def test_a_second_run_reuses_and_a_changed_input_builds_anew(tmp_path, monkeypatch, large) -> None:
    flat(monkeypatch)
    asked = []

    def noting(texts, side):
        asked.extend(texts)
        return encode(texts, side)

    first = kept_in(tmp_path, encode=noting)
    assert len(set(asked)) == 4 * MEMES
    asked.clear()
    second = kept_in(tmp_path, encode=noting, weights=(1, 0, 0, 0))
    assert not asked and np.array_equal(first.rows, second.rows) and first.meme_ids == second.meme_ids
    for changes in (
        {"made": annotations(emotion="g1 another")},
        {"made": annotations(meme_id="other")},
        {"made": annotations(MEMES + 1)},
        {"made": annotations()[::-1]},
        {"embedder": "e-2"},
        {"centring": "none"},
        {"seed": 5},
    ):
        kept_in(tmp_path)
        asked.clear()
        index = kept_in(tmp_path, **{"encode": noting, **changes})
        assert asked, changes
        assert index.meme_ids == tuple(a.meme_id for a in changes.get("made", annotations()))
    rebuilt = kept_in(tmp_path, annotations(emotion="g1 another"))
    fresh = kept_in(tmp_path / "fresh", annotations(emotion="g1 another"))
    assert np.array_equal(fresh.rows, rebuilt.rows)


@pytest.mark.filterwarnings("ignore:faiss is not installed")
def test_an_old_tuning_does_not_outlive_its_library(tmp_path, monkeypatch, large) -> None:
    flat(monkeypatch)
    kept_in(tmp_path)
    (tmp_path / TUNING).write_text("{}", encoding="utf-8")
    kept_in(tmp_path, annotations(emotion="g1 another"))
    assert not (tmp_path / TUNING).exists()


@pytest.mark.filterwarnings("ignore:faiss is not installed")
def test_damage_is_said_and_mended(tmp_path, monkeypatch, large) -> None:
    flat(monkeypatch)
    before = np.array(kept_in(tmp_path).rows)
    with (tmp_path / stored_library.ROWS).open("rb+") as handle:
        handle.truncate(100)
    with pytest.warns(UserWarning, match="made again from the memes' texts: .*damaged"):
        assert np.array_equal(kept_in(tmp_path).rows, before)


@pytest.mark.filterwarnings("ignore:faiss is not installed")
def test_a_failed_build_leaves_no_library(tmp_path, monkeypatch, large) -> None:
    flat(monkeypatch)
    kept_in(tmp_path)

    def breaks(texts, side):
        if texts[0].endswith("emotion 300"):
            raise OSError("gone")
        return encode(texts, side)

    with pytest.raises(OSError, match="gone"):
        kept_in(tmp_path, encode=breaks, centring="none")
    assert not (tmp_path / MADE_FROM).exists()
    asked = []
    index = kept_in(tmp_path, encode=lambda texts, side: (asked.extend(texts), encode(texts, side))[1])
    assert asked and len(index.meme_ids) == MEMES


def test_a_killed_build_is_repeated_whole(tmp_path, large) -> None:
    pytest.importorskip("faiss", reason="needs faiss: pip install -e '.[scale]'")
    folder = tmp_path / "library"
    script = (
        "import sys, time; from pathlib import Path; import test_library_index as t\n"
        "from memecmd_utils import large_index_build as b, library_index as l\n"
        "b.FROM_MEMES, l.MEMES_AT_ONCE = 200, 50\n"
        "def slow(texts, side):\n"
        "    time.sleep(0.02)\n"
        "    return t.encode(texts, side)\n"
        "t.kept_in(Path(sys.argv[1]), encode=slow)"
    )

    def written() -> int:
        with suppress(FileNotFoundError):  # not yet made, or just removed
            return (folder / stored_library.ROWS).stat().st_size
        return 0

    for size in (1, MEMES * 4 * DIM * 2 - 1):  # within the rows, and when they are nearly all there
        command = [sys.executable, "-c", script, str(folder)]
        work = subprocess.Popen(command, cwd=Path(__file__).parent, start_new_session=True)
        deadline = time.monotonic() + 60
        while written() < size:
            assert work.poll() is None and time.monotonic() < deadline, (
                "it ended, or never wrote, before the kill"
            )
            time.sleep(0.002)
        os.kill(work.pid, signal.SIGKILL)
        work.wait(30)
        assert not (folder / MADE_FROM).exists()
    index = kept_in(folder)
    assert np.array_equal(index.rows, kept_in(tmp_path / "fresh").rows)


def test_without_faiss_one_sentence_says_so_each_time(tmp_path, monkeypatch, large) -> None:
    with monkeypatch.context() as patch:
        flat(patch)
        for _ in range(2):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                index = kept_in(tmp_path)
            assert ["faiss is not installed" in str(w.message) for w in said] == [True]
            assert (
                index.search.large.faiss is None
                and selection.tuned(index, DIALOGUES, encode, profile()) is index
            )
    pytest.importorskip("faiss", reason="needs faiss: pip install -e '.[scale]'")
    assert kept_in(tmp_path).search.large.faiss is not None, "faiss came later"
    flat(monkeypatch)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert kept_in(tmp_path).search.large.faiss is None
    assert ["faiss is not installed" in str(w.message) for w in said] == [True]
    assert "faiss" in stored_library.read_state(tmp_path), "the index is kept for a machine that has it"


def test_no_weights_take_the_first_memes_by_id(tmp_path, faiss, monkeypatch) -> None:
    made = [annotations()[i] for i in np.random.default_rng(3).permutation(MEMES)]
    index = kept_in(tmp_path, made)
    plain = selection.index_library(made, encode, profile())
    queries = selection.score_dialogues(DIALOGUES, index, encode, profile())[0].queries
    # Every meme ties, so all pairs would be scored.
    monkeypatch.setattr(large_index.LargeIndex, "top_k", lambda *_: pytest.fail("a search"))
    got, true = (retrieval.top_k(i, queries, (0, 0, 0, 0), 40) for i in (index, plain))
    assert np.array_equal(got.memes, true.memes) and np.array_equal(got.scores, true.scores)


@pytest.mark.filterwarnings("ignore:faiss is not installed")
def test_the_panel_and_the_samples_keep_no_matrix_of_all_memes(tmp_path, monkeypatch, large) -> None:
    """The panel on disk shows what the panel in memory shows, and nothing multiplies all rows at once."""
    flat(monkeypatch)
    index, scored, _ = whole_path(kept_in(tmp_path))
    # The same rounded rows in memory, so that both agree to the last digit.
    plain = retrieval.MemeIndex(index.meme_ids, index.rows.astype(np.float32))
    in_memory = selection.score_dialogues(DIALOGUES, plain, encode, profile())
    expected, expected_few = (
        selection.sample_scores(in_memory[:n], plain, profile(), limit=500) for n in (6, 1)
    )
    every = selection.sample_scores(in_memory[:1], plain, profile())

    def turned(scored, index):
        panel = Explorer(scored, index, profile())
        for changes in ({}, {"weights": (0.8, -0.3, 0.0, 0.45), "top_k": 7}, {"weights": (0.0,) * 4}):
            settings = replace(panel.own_settings(), **changes)
            yield panel.select(settings).picks, panel.select(settings).best
            if any(settings.weights):
                yield panel.fit(settings), panel.select(panel.fit(settings)).picks

    with monkeypatch.context() as patch:
        patch.setattr(explorer, "KEPT_NUMBERS", 0)  # as for any library of that size
        ours = list(turned(in_memory, plain))

    def refused(*_):
        raise AssertionError("a matrix of all memes")

    monkeypatch.setattr(selection, "component_matrices", refused)
    monkeypatch.setattr(explorer, "component_matrices", refused)
    assert np.array_equal(selection.sample_scores(scored, index, profile(), limit=500), expected)
    assert np.array_equal(selection.sample_scores(scored[:1], index, profile(), limit=500), expected_few)
    assert np.allclose(selection.sample_scores(scored[:1], index, profile()), every, atol=1e-6)
    assert list(turned(scored, index)) == ours and len(ours[0][0]) > 1


def test_the_notebooks_panel_shows_a_large_run(tmp_path, faiss, monkeypatch) -> None:
    monkeypatch.setattr("memecmd_utils.headless.is_headless", lambda: False)
    monkeypatch.setattr(
        "memecmd_utils.chat_html.Thumbnails.make_ahead", lambda self: pytest.fail("all pictures are made")
    )
    index, scored, _ = whole_path(kept_in(tmp_path))
    files = made_up.meme_files(tmp_path / "run" / "images")
    picture = next(iter(files.values())).name
    memes = {n: made_up.meme(n).model_copy(update={"file": f"images/{picture}"}) for n in index.meme_ids}

    class Run:
        def __init__(self):
            self.profile = profile()

        def read(self, name):
            return tmp_path / "run" / name

        def paying(self, embedder):
            return embedder

    assert explore(Run(), scored, index, memes).children


@pytest.mark.parametrize("block_bytes", [1, 4 * 64 * 30, 1 << 30])
def test_products_in_blocks_are_the_whole_product(tmp_path, monkeypatch, large, block_bytes) -> None:
    monkeypatch.setattr(library_index, "BLOCK_BYTES", block_bytes)
    rows = made_up.vectors([f"{i}" for i in range(100)], "x", 4 * DIM)
    asked = made_up.vectors(["a", "b", "c"], "x", 4 * DIM)
    on_disk = retrieval.MemeIndex(tuple("x" * 100), rows.astype(np.float16))
    got = library_index.products(on_disk, asked)
    assert got.dtype == np.float32
    assert np.allclose(got, asked @ rows.astype(np.float16).astype(np.float32).T, atol=1e-6)
    in_memory = retrieval.MemeIndex(tuple("x" * 100), rows)
    assert np.array_equal(library_index.products(in_memory, asked), asked @ rows.T)


def test_memory_does_not_grow_with_the_library(tmp_path) -> None:
    """A process that indexes and searches 5,000 and 25,000 memes of 4 x 512: 20 and 102 MB of rows."""
    if not Path("/proc/self/status").exists():
        pytest.skip("reads the peak from /proc")
    script = (
        "import sys, warnings; from pathlib import Path; import numpy as np; import test_library_index as t\n"
        "from memecmd_utils import large_index_build as b, library_index as l, selection\n"
        "warnings.simplefilter('ignore'); t.flat(type('M', (), {'setattr': staticmethod(setattr)}))\n"
        "b.FROM_MEMES, l.MEMES_AT_ONCE = 1000, 1000\n"
        "def encode(texts, side):\n"
        "    seed = sum(map(ord, texts[0]))\n"
        "    rows = np.random.default_rng(seed).standard_normal((len(texts), 512), dtype=np.float32)\n"
        "    return rows / np.linalg.norm(rows, axis=1, keepdims=True)\n"
        "made, n = t.annotations(100), int(sys.argv[2])\n"
        "made = [made[0].model_copy(update={'meme_id': f'm{i}'}) for i in range(n)]\n"
        "index = t.kept_in(Path(sys.argv[1]), made, encode=encode)\n"
        "scored = selection.score_dialogues(t.DIALOGUES, index, encode, t.profile())\n"
        "line = next(x for x in open('/proc/self/status') if x.startswith('RssAnon'))\n"
        "peak = next(x for x in open('/proc/self/status') if x.startswith('VmHWM'))\n"
        "print(int(line.split()[1]) / 1024, int(peak.split()[1]) / 1024)"
    )
    found = []
    for memes in (5_000, 25_000):
        command = [sys.executable, "-c", script, str(tmp_path / str(memes)), str(memes)]
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=240
        )
        found.append([float(part) for part in done.stdout.split()])
    assert found[1][0] - found[0][0] < 60, "own memory: annotations and ids grow, rows do not"


def test_search_is_a_plain_callable(tmp_path, faiss) -> None:
    search = kept_in(tmp_path).search
    assert isinstance(search, LibrarySearch)
    queries = np.zeros((0, 4, DIM), dtype=np.float32)
    assert search(queries, (1, 1, 1, 1), 3).memes.shape == (0, 3)
    with pytest.raises(ValueError, match="k >= 1"):
        search(queries, (1, 1, 1, 1), 0)
