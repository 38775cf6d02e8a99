"""A simulated run at the paper's size, from pictures to page and release: time and memory of each stage.

    make bench BENCH=paper_size               # 6,023 pictures and all dialogues, into reports/bench.md
    python .ci/paper_size.py 200 60   # so many pictures and dialogues, printed only

Every model answers from a server of its own on the loopback address: chat, judge with screenshots, vectors of
as many numbers as MiniCPM-Embedding's. The profile is `paper` without what needs torch, and with a threshold
that made-up vectors reach. All that is made lies in `data/interim/paper_size-*`; the same command goes on
there after a kill, and seconds of all attempts add up.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import yaml
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import stage_run
from fault_replies import SLOTS

from memecmd_utils import drawing, files, schemas
from memecmd_utils.files import paths

PICTURES = 6_023
EVERY_S, SIDE = 0.5, 240


def draw_pictures(folder: Path, count: int) -> None:
    """Pictures in which 7 x 7 squares differ, so that few are near duplicates, with a caption each."""
    folder.mkdir(parents=True, exist_ok=True)
    font = ImageFont.truetype(str(drawing.cjk_font_path()), 26)
    for number in range(count):
        target = folder / f"{number:05d}.png"
        if target.is_file():
            continue
        rng = np.random.default_rng(number)
        squares = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        image = Image.fromarray(squares).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        words = [SLOTS[rng.integers(len(SLOTS))][rng.integers(8)] for _ in range(3)]
        pen = ImageDraw.Draw(image)
        pen.rectangle((0, SIDE - 44, SIDE, SIDE), fill="white")
        pen.text((8, SIDE - 40), "".join(words), fill="black", font=font)
        with files.atomic_path(target) as part:
            image.save(part, format="PNG")


def news(count: int) -> Iterator[schemas.NewsItem]:
    """So many news items, of all topics in turn."""
    for number, start in enumerate(stage_run.starts(count)):
        topic = schemas.TOPICS[number % len(schemas.TOPICS)]
        told = {"news_id": start.dialogue_id, "title": start.title, "text": start.context}
        yield schemas.NewsItem(source="simulated", topic=topic, **told)


def write_profile(root: Path, dialogues: int | None) -> None:
    """Profile `paper_size` and its news. It does not name the server, so that the same run can go on."""
    profile = yaml.safe_load((paths.profiles / "paper.yaml").read_text(encoding="utf-8"))
    model = {"model": "simulated", "usd_per_million_in": 0, "usd_per_million_out": 0}
    profile["library"] |= {"sources": ["pictures"], "max_memes": None}
    profile["dialogue"] |= {"news": "news.jsonl"} | ({"n_dialogues": dialogues} if dialogues else {})
    profile["dialogue"].pop("feeds", None)
    profile["models"] = {
        "llm": "openai", "mode": "auto", "concurrency": profile["models"]["concurrency"],
        "embedder": "endpoint", "query_instruction": profile["models"]["query_instruction"],
        "endpoints": {"generator": {**model, "vision": True, "tokens_per_image": 255}, "embedder": model},
    }  # fmt: skip
    profile["retrieval"]["theta0"] = "auto"
    profile["evaluation"]["consistency"] = "text"
    for group in ("cm50", "mtrclip"):
        profile.pop(group, None)
    items = news(profile["dialogue"]["n_news"])
    texts = {
        "data/profiles/paper_size.yaml": yaml.safe_dump(profile, allow_unicode=True),
        "news.jsonl": "".join(f"{item.model_dump_json()}\n" for item in items),
    }
    for name, text in texts.items():
        if not (root / name).is_file():
            files.write_text(root / name, text)


class Watch(threading.Thread):
    """Seconds and peak memory by stage of a process and all its children, kept in a file as they grow."""

    def __init__(self, process: psutil.Process, kept: Path) -> None:
        super().__init__(daemon=True)
        self.process, self.kept, self.stage, self.ended = process, kept, "start", threading.Event()
        self.stages: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.is_file() else {}

    def run(self) -> None:
        """Look every half second until the process has ended."""
        last = time.monotonic()
        while not self.ended.wait(EVERY_S):
            now, row = time.monotonic(), self.stages.setdefault(self.stage, {"seconds": 0.0, "peak": 0.0})
            row["seconds"], last = row["seconds"] + now - last, now
            row["peak"] = max(row["peak"], memory(self.process))
            files.write_json(self.kept, self.stages)


def memory(process: psutil.Process) -> float:
    """GB that a process and its children take; what they share counts once (PSS), where Linux tells."""
    total = 0
    with suppress(psutil.Error):  # it has ended
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                taken = one.memory_full_info()
                total += getattr(taken, "pss", taken.rss)
    return total / 1e9


def measure(pictures: int = PICTURES, dialogues: int | None = None) -> Iterator[tuple[str, float, str, str]]:
    """Make the run, or go on with it: what was measured, its value, unit and a note, a row a stage.

    `dialogues`: None for all of the profile.
    """
    root = paths.interim / f"paper_size-{pictures}-{dialogues or 'all'}"
    stage_run.project(root)
    draw_pictures(root / "pictures", pictures)
    write_profile(root, dialogues)
    with stage_run.simulated(root, quiet=True) as server:
        environment = stage_run.environment(root, PROFILE="paper_size", OPENAI_BASE_URL=server.url)
        words = [sys.executable, "-m", "memecmd_utils", "reproduce"]
        with subprocess.Popen(words, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as process:
            watch = Watch(psutil.Process(process.pid), root / "stages.json")
            watch.start()
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.endswith(" ...\n"):
                    watch.stage = line.split()[0]
            watch.ended.set()
        watch.join()
    if process.returncode:
        raise SystemExit(f"the run ended with status {process.returncode}: the same command goes on with it")
    folder = root / "data" / "processed" / "paper_size"
    memes, talked = (len(pd.read_parquet(folder / "memes.parquet")), folder / "dialogues.jsonl")
    spoken = [len(json.loads(line)["turns"]) for line in talked.read_text(encoding="utf-8").splitlines()]
    size = f"{memes:,} memes of {pictures:,} pictures, {len(spoken):,} dialogues, {sum(spoken):,} turns"
    for stage, row in watch.stages.items():
        yield f"simulated run, {stage}", row["seconds"], "s", f"{row['peak']:.2f} GB at the most"
    total = sum(row["seconds"] for row in watch.stages.values())
    yield "simulated run, all stages", total / 60, "min", size
    yield "simulated run, peak memory", max(row["peak"] for row in watch.stages.values()), "GB", size


if __name__ == "__main__":
    for what, value, unit, note in measure(*map(int, sys.argv[1:])):
        print(f"{what}: {value:.1f} {unit} ({note})")
