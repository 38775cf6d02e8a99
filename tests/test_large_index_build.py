import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_vectors import WEIGHTS, blocks, rows, turns

from memecmd_utils import large_index_build, stored_library
from memecmd_utils.large_index import open_index, recall_at_k
from memecmd_utils.large_index_build import build, extend, fit_projection, index_type
from memecmd_utils.stored_library import LibraryError, flat_top_k, open_library

DIM, TYPE = 16, "IVF16,PQ32x4fs,Refine(SQ8)"


@pytest.fixture(autouse=True, scope="module")
def faiss():
    return pytest.importorskip("faiss", reason="needs faiss: pip install -e '.[scale]'")


def test_small_libraries_get_no_index(tmp_path) -> None:
    assert index_type(99_999, 384) is None
    assert index_type(100_000, 384) == "IVF512,PQ128x4fs,Refine(SQ8)"
    assert index_type(1_000_000, 384) == "IVF2048,PQ128x4fs,Refine(SQ8)"
    assert index_type(1_000_000, 4) == "IVF2048,PQ4x4fs,Refine(SQ8)"
    build(tmp_path, blocks(*rows(300)), DIM)
    assert open_index(tmp_path).faiss is None


def test_extended_is_as_good_as_built_at_once(tmp_path) -> None:
    ids, stacked = rows(6000)
    build(tmp_path / "once", blocks(ids, stacked), DIM, index=TYPE)
    build(tmp_path / "grown", blocks(ids[:4000], stacked[:4000]), DIM, index=TYPE)
    trained = np.load(tmp_path / "grown" / "projection.npy")
    extend(tmp_path / "grown", blocks(ids[4000:], stacked[4000:]))
    assert np.array_equal(trained, np.load(tmp_path / "grown" / "projection.npy")), "nothing is built anew"
    queries, recalls = turns(64), []
    for name in ("once", "grown"):
        index = replace(open_index(tmp_path / name), probes=12, candidates=256)
        assert index.meme_ids == tuple(ids) and index.faiss.ntotal == 6000
        true = flat_top_k(index.library, queries, WEIGHTS, 10)
        recalls.append(recall_at_k(index.top_k(queries, WEIGHTS, 10), true))
    assert min(recalls) >= 0.9 and abs(recalls[0] - recalls[1]) < 0.1
    assert len(list((tmp_path / "grown").glob("index-*.faiss"))) == 1, "the old index is gone"


def test_a_library_is_not_built_over_another(tmp_path) -> None:
    build(tmp_path, blocks(*rows(300)), DIM)
    with pytest.raises(LibraryError, match="already"):
        build(tmp_path, blocks(*rows(300)), DIM)


def test_an_extension_that_fails_leaves_the_old_library(tmp_path, monkeypatch) -> None:
    ids, stacked = rows(3000)
    build(tmp_path, blocks(ids[:2000], stacked[:2000]), DIM, index=TYPE)
    before = open_index(tmp_path).top_k(turns(5), WEIGHTS, 3)

    def fails(folder, state):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(large_index_build, "save_state", fails)
        with pytest.raises(OSError, match="no space"):
            extend(tmp_path, blocks(ids[2000:], stacked[2000:]))
    after = open_index(tmp_path).top_k(turns(5), WEIGHTS, 3)
    assert np.array_equal(before.memes, after.memes)
    extend(tmp_path, blocks(ids[2000:], stacked[2000:]))
    assert open_index(tmp_path).meme_ids == tuple(ids)


def test_a_killed_build_leaves_nothing_that_opens_and_is_repeated(tmp_path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from made_vectors import *\n"
        "from memecmd_utils.large_index_build import build\n"
        "def slow():\n"
        "    for part in blocks(*rows(6000)):\n"
        "        yield part\n"
        "        time.sleep(0.2)\n"
        f"build(Path(sys.argv[1]), slow(), {DIM}, index='{TYPE}')"
    )
    folder = tmp_path / "library"
    work = subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=Path(__file__).parent)
    rows_file, deadline = folder / stored_library.ROWS, time.monotonic() + 60
    while not (rows_file.exists() and rows_file.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(work.pid, signal.SIGKILL)
    assert work.wait() == -signal.SIGKILL and rows_file.stat().st_size
    with pytest.raises(LibraryError, match="no whole library"):
        open_index(folder)
    build(folder, blocks(*rows(6000)), DIM, index=TYPE)
    build(tmp_path / "fresh", blocks(*rows(6000)), DIM, index=TYPE)
    again, fresh = open_library(folder), open_library(tmp_path / "fresh")
    assert np.array_equal(again.index.rows, fresh.index.rows) and again.state == fresh.state


def test_a_damaged_index_is_said(tmp_path) -> None:
    build(tmp_path, blocks(*rows(3000)), DIM, index=TYPE)
    name = open_library(tmp_path).state["faiss"]
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LibraryError, match="damaged"):
        open_index(tmp_path)
    build(tmp_path / "other", blocks(*rows(2000)), DIM, index=TYPE)
    shutil.copy(tmp_path / "other" / "index-2000.faiss", tmp_path / name)
    with pytest.raises(LibraryError, match="2000 indexed of 3000"):
        open_index(tmp_path)


def test_without_faiss_nothing_is_indexed_and_that_is_said(tmp_path, monkeypatch) -> None:
    ids, stacked = rows(3000)
    build(tmp_path / "with", blocks(ids[:2000], stacked[:2000]), DIM, index=TYPE)
    monkeypatch.setattr(large_index_build, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="scale"):
        build(tmp_path / "without", blocks(ids, stacked), DIM, index=TYPE)
    assert open_index(tmp_path / "without").faiss is None
    with pytest.raises(LibraryError, match="faiss is not installed"):
        extend(tmp_path / "with", blocks(ids[2000:], stacked[2000:]))


def test_memory_does_not_grow_with_the_library(tmp_path) -> None:
    """Peak of a process that builds 20,000 and 80,000 memes of 4 x 256: rows of 41 and 164 MB on disk."""
    script = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from memecmd_utils import large_index_build as b\n"
        "b.SAMPLE_BYTES, n = 8 << 20, int(sys.argv[2])\n"
        "def made():\n"
        "    rng = np.random.default_rng(1)\n"
        "    for start in range(0, n, 1000):\n"
        "        rows = rng.standard_normal((1000, 1024), dtype=np.float32) / 24\n"
        "        yield [f'm{i}' for i in range(start, start + 1000)], rows\n"
        "b.build(Path(sys.argv[1]), made(), 256, dims=64, index='IVF16,PQ32x4fs,Refine(SQ8)')\n"
        "line = next(x for x in open('/proc/self/status') if x.startswith('VmHWM'))\n"
        "print(int(line.split()[1]) / 1024)"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("reads the peak from /proc")
    peaks = []
    for memes in (20_000, 80_000):
        command = [sys.executable, "-c", script, str(tmp_path / str(memes)), str(memes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 60, "what grows is ids and codes; the rows alone grow by 123 MB"


def test_the_projection_holds_the_main_directions_of_all_blocks_together() -> None:
    """Rows of six hidden numbers, seen through all blocks: six directions lose only the noise."""
    rng = np.random.default_rng(2)
    seen = rng.standard_normal((6, 4 * DIM)).astype(np.float32)
    sample = rng.standard_normal((500, 6)).astype(np.float32) @ seen
    sample += 0.01 * rng.standard_normal(sample.shape, dtype=np.float32)
    got = fit_projection(sample, 6, 13)
    assert got.shape == (4 * DIM, 6) and np.allclose(got.T @ got, np.eye(6), atol=1e-5)
    assert np.linalg.norm(sample - sample @ got @ got.T) < 0.02 * np.linalg.norm(sample)
    held = ((sample @ got) ** 2).mean(axis=0)
    raw = np.sort(np.linalg.eigvalsh(sample.T @ sample / 500))[::-1][:6]
    assert held.max() / held.min() < raw[0] / raw[-1], "rotated, the dimensions hold more alike"
    assert np.array_equal(got, fit_projection(sample, 6, 13))
    assert not np.array_equal(got, fit_projection(sample, 6, 14))


def test_as_many_dimensions_as_there_are_lose_nothing() -> None:
    sample = np.random.default_rng(3).standard_normal((200, 8)).astype(np.float32)
    got = fit_projection(sample, 8, 13)
    assert np.allclose(sample @ got @ got.T, sample, atol=1e-4)


@pytest.mark.parametrize("step", ["append", "project", "write_index", "save_state", "_tidy"])
def test_an_extension_killed_at_any_step_leaves_a_whole_library(tmp_path, step) -> None:
    """SIGKILL at the step; before the last one the library is the old one, and extending again works."""
    ids, stacked = rows(3000)
    build(tmp_path, blocks(ids[:2000], stacked[:2000]), DIM, index=TYPE)
    script = (
        "import os, signal, sys; from pathlib import Path; import faiss; from made_vectors import *\n"
        "from memecmd_utils import large_index_build as b\n"
        "owner, ids_and_rows = faiss if sys.argv[2] == 'write_index' else b, rows(3000)\n"
        "def dies(*args, was=getattr(owner, sys.argv[2])):\n"
        "    if sys.argv[2] in ('append', 'write_index'): was(*args)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "setattr(owner, sys.argv[2], dies)\n"
        "b.extend(Path(sys.argv[1]), blocks(*(x[2000:] for x in ids_and_rows)))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), step], cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL
    index = open_index(tmp_path)
    if step == "_tidy":
        assert index.meme_ids == tuple(ids) and index.faiss.ntotal == 3000
        extend(tmp_path, [])
    else:
        assert index.meme_ids == tuple(ids[:2000]) and index.faiss.ntotal == 2000
        extend(tmp_path, blocks(ids[2000:], stacked[2000:]))
    assert open_index(tmp_path).meme_ids == tuple(ids)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["ids.txt", "index-3000.faiss", "library.json", "projection.npy", "rows.f16"]


def test_what_cannot_be_indexed_is_said_before_rows_are_written(tmp_path) -> None:
    for name in ("Nonsense", "Flat", "IVF16,Flat"):
        with pytest.raises(LibraryError, match=name):
            build(tmp_path / "new", blocks(*rows(300)), DIM, index=name)
    for wrong in ({"dim": 0}, {"dim": DIM, "dims": 0}, {"dim": DIM, "dims": -3}):
        with pytest.raises(ValueError, match="dims >= 1"):
            build(tmp_path / "new", blocks(*rows(300)), **wrong)
    assert not (tmp_path / "new").exists()
    with pytest.raises(LibraryError, match="too few to train"):
        build(tmp_path / "new", blocks(*rows(12)), DIM, index=TYPE)


def test_growing_past_the_bound_without_an_index_is_said_and_the_hint_works(tmp_path, monkeypatch) -> None:
    ids, stacked = rows(3000)
    build(tmp_path / "old", blocks(ids[:2000], stacked[:2000]), DIM)
    monkeypatch.setattr(large_index_build, "FROM_MEMES", 2500)
    with pytest.warns(UserWarning, match="3000 memes without an index"):
        extend(tmp_path / "old", blocks(ids[2000:], stacked[2000:]))
    library = open_library(tmp_path / "old")
    build(tmp_path / "new", [(library.index.meme_ids, library.index.rows)], library.index.dim)
    new = open_index(tmp_path / "new")
    assert new.faiss.ntotal == 3000 and np.array_equal(new.library.index.rows, library.index.rows)


def test_an_index_that_is_gone_or_of_another_library_is_said_before_rows_are_written(tmp_path) -> None:
    ids, stacked = rows(3000)
    build(tmp_path, blocks(ids[:2000], stacked[:2000]), DIM, index=TYPE)
    size = (tmp_path / stored_library.ROWS).stat().st_size
    np.save(tmp_path / "projection.npy", np.zeros((4, DIM, 2), dtype=np.float32))
    for why in ("another library", "damaged"):
        with pytest.raises(LibraryError, match=why):
            extend(tmp_path, blocks(ids[2000:], stacked[2000:]))
        with pytest.raises(LibraryError, match=why):
            open_index(tmp_path)
        (tmp_path / "projection.npy").write_bytes(b"")
    assert (tmp_path / stored_library.ROWS).stat().st_size == size


def test_two_builds_with_a_seed_are_equal_to_the_byte(tmp_path) -> None:
    (tmp_path / "b").mkdir()
    for left in ("index-7.faiss", ".index-7.faiss.1.part.faiss"):  # by a killed build of another size
        (tmp_path / "b" / left).touch()
    for name in ("a", "b"):
        build(tmp_path / name, blocks(*rows(1000)), DIM, index=TYPE)
    assert len(list((tmp_path / "b").iterdir())) == 5
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
