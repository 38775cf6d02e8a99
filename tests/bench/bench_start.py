"""What a user waits for and needs: importing, `make reproduce`, the installation.

`make reproduce` runs in a copy of the project, strict replay of the example profile. Memory is the sum of the
resident memory of all its processes, sampled ten times a second; pages that they share count once for each,
so the figure is an upper bound. The installation is made as the Makefile makes it, into a folder of its own;
where no packages can be fetched it is skipped. MEMECMD_BENCH_ROUNDS says how often `make reproduce` runs (1).
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from figures_to_reach import record

from memecmd_utils.files import paths

MAKE = shutil.which("gmake") or shutil.which("make") or "make"
IMPORT_ROUNDS = 15
GIB = 1 << 30
SAMPLES_A_SECOND = 10
COMMANDS = {
    "bare": ["-c", "pass"],
    "import": ["-c", "import memecmd_utils"],
    "resolve": ["-m", "memecmd_utils", "resolve"],
}
STAGE = re.compile(r"-m memecmd_utils run (\w+)")
UNREACHABLE = re.compile(
    r"No matching distribution|Could not find a version|[Cc]onnect|name resolution|unreachable"
)


def copy(target: Path) -> Path:
    """What the example run needs, recordings included; no run, no environment."""
    left_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in ("memecmd_utils", "notebooks", "data/example", "data/paper", "data/profiles"):
        shutil.copytree(paths.root / name, target / name, ignore=left_out)
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE", "CITATION.cff"):
        shutil.copy2(paths.root / name, target / name)
    return target


def environment(project: Path) -> dict[str, str]:
    """Of this process, without what would change the run."""
    out = ("OPENAI_", "MEMECMD_", "MAKE", "MFLAGS", "PROFILE", "SET", "VENV", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(out)}
    return kept | {"PYTHONPATH": str(project), "HF_HUB_OFFLINE": "1"}


@dataclass
class Watched:
    """Seconds, CPU seconds and peak bytes of a command, all processes together; time and memory by stage.

    Stages that run side by side share the time; each one's memory is that of its own processes.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    output: str = ""


def sample(root: psutil.Process, found: Watched, now: float) -> None:
    """Add up the memory of all processes under `root`, and of every stage's."""
    total, parents, sizes = 0, {}, {}
    for one in [root, *root.children(recursive=True)]:
        try:
            sizes[one.pid], parents[one.pid] = one.memory_info().rss, one.ppid()
            words = STAGE.search(" ".join(one.cmdline()))
        except (psutil.NoSuchProcess, psutil.ZombieProcess):  # ended since it was listed
            continue
        total += sizes[one.pid]
        if words:
            parents[one.pid] = words.group(1)  # a stage, not the shell or make above it
    by_stage: dict[str, int] = {}
    for pid, size in sizes.items():
        while isinstance(above := parents.get(pid), int):
            pid = above
        if above:
            by_stage[above] = by_stage.get(above, 0) + size
    found.peak = max(found.peak, total)
    for name, size in by_stage.items():
        stage = found.stages.setdefault(name, {"begun s": now, "seconds": 0.0, "peak GB": 0.0})
        stage["seconds"] = now - stage["begun s"]
        stage["peak GB"] = max(stage["peak GB"], size / GIB)


def watch(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Watched:
    """Run a command in `folder` and watch it; CalledProcessError with its output where it fails."""
    found, lines, begun = Watched(), [], time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stdout))
        reader.start()
        root = psutil.Process(process.pid)
        while process.poll() is None:
            sample(root, found, time.monotonic() - begun)
            time.sleep(1 / SAMPLES_A_SECOND)
        found.seconds = time.monotonic() - begun
        reader.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found.output = "".join(lines)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, found.output)
    return found


def watch_install(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Watched:
    """As `watch`; skips the test where no packages can be fetched."""
    try:
        return watch(command, folder, environment)
    except subprocess.CalledProcessError as error:
        if UNREACHABLE.search(error.output):
            pytest.skip(f"packages cannot be fetched: {error.output.strip().splitlines()[-1][:200]}")
        raise


def by_stage(found: Watched) -> str:
    """`01_library_build 20 s 0.9 GB, ...`, in the order in which they began."""
    rows = sorted(found.stages.items(), key=lambda item: item[1]["begun s"])
    return ", ".join(f"{name} {row['seconds']:.0f} s {row['peak GB']:.2f} GB" for name, row in rows)


def test_import(benchmark) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}

    def each_once() -> None:
        for name, words in COMMANDS.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=paths.root, check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - begun)

    benchmark.pedantic(each_once, rounds=IMPORT_ROUNDS, warmup_rounds=1)
    bare, imported, resolved = (times[1:] for times in seconds.values())
    note = f"Python alone {sorted(bare)[len(bare) // 2]:.3f} s"
    reached = record(benchmark, "import/seconds", imported, note=note)
    record(
        benchmark, "resolve/seconds", resolved, what="`python -m memecmd_utils resolve`", unit="s", note=note
    )
    assert reached


def test_make_reproduce(benchmark, tmp_path: Path) -> None:
    rounds: list[Watched] = []

    def once() -> None:
        project = copy(tmp_path / str(len(rounds)))
        # -o: this environment is used as it is and never made anew.
        ready = f"{sys.prefix}/.ready"
        words = [MAKE, "--no-print-directory", "-o", ready, "reproduce", f"VENV={sys.prefix}"]
        rounds.append(watch(words, project, environment(project)))
        assert (project / "reports/example/index.html").is_file(), rounds[-1].output[-2000:]

    benchmark.pedantic(once, rounds=int(os.environ.get("MEMECMD_BENCH_ROUNDS", "1")))
    benchmark.extra_info["stages"] = [run.stages for run in rounds]
    note = f"CPU {rounds[-1].cpu:.0f} s; {by_stage(rounds[-1])}"
    fast = record(benchmark, "reproduce/seconds", [run.seconds for run in rounds], note=note)
    small = record(benchmark, "reproduce/memory", [run.peak / GIB for run in rounds])
    assert fast and small


def size(folder: Path) -> int:
    """Bytes of all files below, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def test_install_and_reproduce(benchmark, tmp_path: Path) -> None:
    """The two commands of the README from a bare checkout: the installation, then the run."""
    project = copy(tmp_path / "bare")
    clean = environment(project)
    found: dict[str, Watched] = {}

    def both() -> None:
        found["install"] = watch_install([MAKE, "--no-print-directory", ".venv/.ready"], project, clean)
        found["reproduce"] = watch([MAKE, "--no-print-directory", "reproduce"], project, clean)

    benchmark.pedantic(both, rounds=1)
    install, run = found["install"], found["reproduce"]
    what = "what `make` installs (the lock: development tools and the extras live, scale, templates too)"
    record(benchmark, "install/lock/seconds", install.seconds, what=f"{what}: time", unit="s", note="by pip")
    record(benchmark, "install/lock/size", size(project / ".venv") / GIB, what=f"{what}: size", unit="GB")
    note = f"installation {install.seconds:.0f} s, run {run.seconds:.0f} s"
    assert record(benchmark, "reproduce/bare", install.seconds + run.seconds, note=note)


def test_core_install(benchmark, tmp_path: Path) -> None:
    """`pip install .` with the lock's versions: no extra, no development tool."""
    project = copy(tmp_path / "core")
    names = re.findall(r"^(\S+==[^\\\n]+)", (project / "requirements.lock").read_text(encoding="utf-8"), re.M)
    constraints = tmp_path / "constraints.txt"  # no hashes: pip would want them of the project, too
    constraints.write_text("\n".join(names), encoding="utf-8")
    python, found = tmp_path / "env" / "bin" / "python", []

    def install() -> None:
        watch([sys.executable, "-m", "venv", str(tmp_path / "env")], project, environment(project))
        words = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), "."]
        found.append(watch_install(words, project, environment(project)))

    benchmark.pedantic(install, rounds=1)
    sizes = {
        path.name: size(path) for path in next((tmp_path / "env").glob("lib/python*/site-packages")).iterdir()
    }
    largest = sorted(sizes, key=sizes.get, reverse=True)[:8]
    note = "largest: " + ", ".join(f"{name} {sizes[name] / 1e6:.0f} MB" for name in largest)
    record(benchmark, "install/seconds", found[0].seconds, note="pip, wheels from its cache if there")
    assert record(benchmark, "install/size", size(tmp_path / "env") / GIB, note=note)
