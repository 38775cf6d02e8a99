"""Chat screenshots a second on one core: 18 turns, 1x, JPEG encoding included. Target: 40.

Every round draws other texts, so the caches hold only what recurs in a real run: glyphs, avatars,
thumbnails and widths. Beside it the same chats by a headless Chromium that stays open; its figure holds
building the HTML, layout, drawing, JPEG and the way through chromedriver, as every user of Selenium pays
it; not its start and not the loading of style and font. The medians are wall-clock time. Chromium works in
several processes at once, so the CPU time of all processes for one screenshot stands beside each median.
"""

import io
import itertools
from collections.abc import Callable
from pathlib import Path

import browser
import chromium_chat
import made_up
import numpy as np
import psutil
import pytest
from figures_to_reach import told
from PIL import Image

from memecmd_utils.core.drawing import screenshots

TARGET = 40
WARM, ROUNDS = 40, 60
MEME_TURNS = (3, 7, 12, 16)
LETTERS = list("".join(made_up.TEXTS) + "今天真的有点累但是看到大家都在就又想笑了好吧那就这样明早见")


@pytest.fixture
def chats(tmp_path: Path) -> tuple[list[screenshots.ChatSpec], dict[str, Path]]:
    """Forty made-up chats of 18 turns and 4 memes, and the pictures."""
    generator = np.random.default_rng(13)
    specs = []
    for number in range(40):
        texts = tuple("".join(generator.choice(LETTERS, generator.integers(8, 26))) for _ in range(18))
        memes = {turn: f"m{1 + turn % 3}" for turn in MEME_TURNS}
        chat = made_up.dialogue(texts=texts).model_copy(update={"name_b": f"老柏{number}"})
        specs.append(screenshots.chat_from_dialogue(chat, memes))
    return specs, made_up.meme_files(tmp_path)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time so far of a process and of all that it started and that still run."""
    times = [part.cpu_times() for part in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def measure(benchmark, how: str, process: psutil.Process, shoot: Callable[[], bytes]) -> float:
    """Benchmark `shoot` and keep beside the times what was drawn; returns CPU seconds for one screenshot."""
    for _ in range(WARM):
        shoot()
    before = cpu_seconds(process)
    jpeg = benchmark.pedantic(shoot, rounds=ROUNDS)
    cpu = (cpu_seconds(process) - before) / ROUNDS
    benchmark.extra_info |= {
        "how": how,
        "size": Image.open(io.BytesIO(jpeg)).size,
        "bytes": len(jpeg),
        "per second": round(1 / benchmark.stats["median"], 1),
        "CPU milliseconds": round(1000 * cpu, 1),
    }
    return cpu


@pytest.mark.benchmark(group="chat screenshot, 18 turns, 1x JPEG")
def test_screenshots_per_second(benchmark, chats) -> None:
    specs, files = chats
    turn = itertools.cycle(specs)
    cpu = measure(
        benchmark,
        "Pillow, one core",
        psutil.Process(),
        lambda: screenshots.encode(screenshots.draw(next(turn), files), "jpeg"),
    )
    # A core's time, so that what else runs on the machine does not count.
    told(benchmark, "screenshots/core", 1 / cpu, note=f"CPU time, {ROUNDS} screenshots of {len(specs)} chats")
    assert 1 / cpu >= TARGET


def share(image: Image.Image, colour: tuple[int, int, int]) -> float:
    """Share of pixels within 24 of a colour: JPEG blurs it around text."""
    return float((np.abs(np.asarray(image.convert("RGB")).astype(int) - colour) <= 24).all(axis=2).mean())


@pytest.mark.benchmark(group="chat screenshot, 18 turns, 1x JPEG")
def test_the_same_chats_by_chromium(benchmark, chats, tmp_path: Path) -> None:
    specs, files = chats
    turn = itertools.cycle(specs)
    (tmp_path / "chat.html").write_text(chromium_chat.page(), encoding="utf-8")
    with browser.open_browser(specs[0].width, 844) as driver:
        driver.get((tmp_path / "chat.html").as_uri())
        how = "headless Chromium kept open, through chromedriver"
        process = psutil.Process(driver.service.process.pid)
        cpu = measure(benchmark, how, process, lambda: chromium_chat.shoot(driver, next(turn), files))
        what = "the same screenshots by headless Chromium, a second of one core"
        told(benchmark, "screenshots/chromium", 1 / cpu, what=what, unit="1/s", note=how)
        last = chromium_chat.shoot(driver, specs[0], files)
    theirs = Image.open(io.BytesIO(last))
    theirs.save(tmp_path / "chromium.png")
    # It is the same chat: as wide and about as high as ours, with as much of bubbles and pictures.
    ours = screenshots.draw(specs[0], files)
    assert theirs.width == ours.width and abs(theirs.height - ours.height) < 0.05 * ours.height
    fills = [fill for fill, _ in screenshots.BUBBLES.values()]
    for colour in (*fills, *made_up.COLOURS.values()):
        assert abs(share(theirs, colour) - share(ours, colour)) < 0.03, colour
