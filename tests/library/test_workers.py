import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from PIL import Image

from memecmd_utils.files import paths
from memecmd_utils.library import reading as library_reading
from memecmd_utils.library.ocr import OcrError
from memecmd_utils.library.reading import Job, Workers, WorkersLost, one_after_another
from memecmd_utils.settings import Filters


class CornerOcr:
    """Reads the colour of the corner; some colours kill the process, raise, or take long."""

    ocr_id = "corner 1"

    def __init__(self, folder=None):
        self.folder = folder

    def read_text(self, image):
        red, green, _ = image.getpixel((0, 0))
        if red == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if red == 2:
            raise OcrError("no model")
        if red == 3:
            time.sleep(0.5)
        if red == 5:
            if self.folder:
                (self.folder / "hangs").write_text(str(os.getpid()))
            time.sleep(100)
        if red == 4 and not (self.folder / str(green)).exists():
            (self.folder / str(green)).touch()
            os._exit(3)
        return f"{red} {green} {os.getpid()}"


def job(red, green=0, size=(32, 32), text=None):
    buffer = io.BytesIO()
    Image.new("RGB", size, (red, green, 9)).save(buffer, "PNG")
    return Job(buffer.getvalue(), Filters(), text)


def texts(found):
    return [(item, reading.text and reading.text.split()[:2]) for item, reading in found]


def waited_for(file):
    """The number that a worker writes into a file."""
    end = time.monotonic() + 30
    while not (file.is_file() and file.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return int(file.read_text())


@pytest.fixture(scope="module")
def pair():
    with Workers(2, CornerOcr()) as workers:
        yield workers


def test_results_come_in_the_order_asked_for_whoever_reads_them(pair):
    # The first takes longest; what is known or broken stays in its place.
    jobs = [
        ("slow", job(3)),
        *((n, job(10 + n)) for n in range(9)),
        ("known", job(5, 0, text="a b")),
        ("no picture", Job(b"GIF89a, says this text", Filters())),
    ]
    found, here = list(pair.run(iter(jobs))), list(one_after_another(iter(jobs), CornerOcr()))
    assert texts(found) == texts(here)
    assert str(os.getpid()) not in {reading.text.split()[2] for _, reading in found[1:-2]}
    same = [reading._replace(text=None) for _, reading in found]
    assert same == [reading._replace(text=None) for _, reading in here]


def test_few_images_are_in_memory_at_once(pair):
    taken = handed_out = most = 0

    def jobs():
        nonlocal taken
        for number in range(60):
            taken += 1
            yield number, job(3 if number == 0 else 20)

    for number, _ in pair.run(jobs()):
        most = max(most, taken - handed_out)
        assert number == handed_out
        handed_out += 1
    assert handed_out == 60 and most <= library_reading.AHEAD * 2
    assert most > 2, "others go on while the first is slow"


def test_a_worker_that_dies_costs_only_its_image(pair):
    jobs = [(n, job(1 if n in (2, 3) else 30 + n)) for n in range(8)]
    found = dict(pair.run(jobs))
    assert [n for n, reading in found.items() if reading.exit] == [2, 3]
    assert found[2].exit.step == "undecodable" and found[2].exit.why == library_reading.DIED
    assert found[2].exit.reason == "the process that read it died twice"
    assert [found[n].text.split()[0] for n in (0, 1, 4, 5, 6, 7)] == ["30", "31", "34", "35", "36", "37"]
    # And what comes after is read as before.
    assert next(pair.run([("after", job(50))]))[1].text.startswith("50 ")


@pytest.mark.slow
def test_an_image_whose_worker_was_killed_by_chance_is_read_again(tmp_path):
    with Workers(1, CornerOcr(tmp_path)) as workers:
        found = dict(workers.run((n, job(4, n)) for n in range(3)))
    assert [reading.text.split()[:2] for reading in found.values()] == [["4", "0"], ["4", "1"], ["4", "2"]]


@pytest.mark.slow
def test_a_worker_killed_while_idle_costs_nothing(pair):
    ((_, reading),) = pair.run([("who", job(60))])
    os.kill(int(reading.text.split()[2]), signal.SIGKILL)
    time.sleep(0.3)
    found = list(pair.run((n, job(61)) for n in range(6)))
    assert [r.exit for _, r in found] == [None] * 6


class DyingOcr(CornerOcr):
    def read_text(self, image):
        os._exit(4)


@pytest.mark.slow
def test_workers_that_die_of_a_blank_picture_too_end_the_run(monkeypatch):
    monkeypatch.setattr(library_reading, "MOST_LOST", 1)
    with Workers(1, DyingOcr()) as workers, pytest.raises(WorkersLost, match="a blank picture"):
        list(workers.run((n, job(30)) for n in range(9)))


@pytest.mark.slow
def test_many_images_in_a_row_may_be_at_fault(pair, monkeypatch):
    monkeypatch.setattr(library_reading, "MOST_LOST", 2)
    found = dict(pair.run((n, job(1 if n < 3 else 30)) for n in range(5)))
    assert [reading.exit is not None for reading in found.values()] == [True, True, True, False, False]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.slow
def test_a_worker_that_cannot_be_started_again_is_not_the_images_fault(monkeypatch):
    with Workers(1, CornerOcr()) as workers:
        list(workers.run([(0, job(30))]))
        monkeypatch.setattr(library_reading, "_begin", os._exit)  # as where memory is out
        with pytest.raises(WorkersLost, match="no other can be started"):
            list(workers.run([(1, job(1)), (2, job(31))]))


@pytest.mark.slow
def test_an_image_that_does_not_come_to_an_end_is_left_out(pair, monkeypatch):
    monkeypatch.setattr(library_reading, "LIMIT", 4.0)  # the first picture of a new worker takes a second
    begun = time.monotonic()
    found = dict(pair.run((n, job(5 if n == 1 else 30)) for n in range(3)))
    assert [reading.exit is not None for reading in found.values()] == [False, True, False]
    assert "did not come to an end" in found[1].exit.why and time.monotonic() - begun < 40


def test_an_interrupted_run_does_not_wait_for_what_hangs_and_leaves_no_process(tmp_path):
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers(2, CornerOcr(tmp_path)) as workers:
        for number, reading in workers.run((n, job(5 if n == 1 else 30)) for n in range(3)):
            assert number == 0
            pids = [int(reading.text.split()[2]), waited_for(tmp_path / "hangs")]
            raise KeyboardInterrupt
    assert time.monotonic() - begun < 60 and not any(map(alive, pids))


def test_an_error_that_is_no_fault_of_the_image_ends_the_run(pair):
    with pytest.raises(OcrError, match="no model"):
        list(pair.run((n, job(2 if n == 3 else 70)) for n in range(9)))
    assert next(pair.run([("after", job(71))]))[1].text.startswith("71 "), "the workers are still there"


def run(path, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(paths.root)}
    return subprocess.Popen(
        [sys.executable, str(path), *arguments], env=environment, text=True, cwd=path.parent,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc")
def test_workers_end_with_a_killed_parent(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent("""
            import multiprocessing
            import time
            from memecmd_utils.library.reading import Workers
            from memecmd_utils.library.ocr import RapidOcr
            if __name__ == "__main__":
                with Workers(2, RapidOcr()) as workers:
                    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
                    time.sleep(300)
        """),
        encoding="utf-8",
    )
    parent = run(path)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(alive, pids))


@pytest.mark.slow
def test_a_notebooks_kernel_can_start_them(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    papermill = pytest.importorskip("papermill")
    code = textwrap.dedent("""
        import numpy as np
        from PIL import Image
        from pathlib import Path
        from memecmd_utils import schemas
        from memecmd_utils.library import build as library_build
        from memecmd_utils.core import paths
        from memecmd_utils.core import storage
        from memecmd_utils.settings import Profile
        paths.root = Path(".").resolve()
        Path("memes").mkdir()
        for n in range(4):
            values = np.random.default_rng(n).integers(0, 256, (6, 6), dtype=np.uint8)
            Image.fromarray(values).resize((64, 64), Image.Resampling.NEAREST).save(f"memes/{n}.png")
        profile = Profile(name="test", sources=["memes"])
        report = library_build.build_library(profile, Path("run"), workers=2)
        assert report.kept == 4, report
    """)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbformat.write(book, tmp_path / "in.ipynb")
    papermill.execute_notebook(
        tmp_path / "in.ipynb", None, cwd=tmp_path, kernel_name="python3", progress_bar=False
    )
    assert len(list((tmp_path / "run" / "memes").glob("*.png"))) == 4
