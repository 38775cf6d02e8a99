"""Chat screenshots a second on one core: 18 turns, 1x, JPEG encoding included. Target: 40.

Every round draws other texts, so the caches hold only what recurs in a real run: glyphs, avatars,
thumbnails and widths. The figure is CPU time, so that what else runs on the machine does not count.
"""

import itertools
import time
from pathlib import Path

import made_up
import numpy as np
import pytest
from figures_to_reach import record

from memecmd_utils import drawing

WARM, ROUNDS = 40, 60
MEME_TURNS = (3, 7, 12, 16)
LETTERS = list("".join(made_up.TEXTS) + "今天真的有点累但是看到大家都在就又想笑了好吧那就这样明早见")


@pytest.fixture
def chats(tmp_path: Path) -> tuple[list[drawing.ChatSpec], dict[str, Path]]:
    """Forty made-up chats of 18 turns and 4 memes, and the pictures."""
    generator = np.random.default_rng(13)
    specs = []
    for number in range(40):
        texts = tuple("".join(generator.choice(LETTERS, generator.integers(8, 26))) for _ in range(18))
        memes = {turn: f"m{1 + turn % 3}" for turn in MEME_TURNS}
        chat = made_up.dialogue(texts=texts).model_copy(update={"name_b": f"老柏{number}"})
        specs.append(drawing.chat_from_dialogue(chat, memes))
    return specs, made_up.meme_files(tmp_path)


def test_screenshots_per_second(benchmark, chats) -> None:
    specs, files = chats
    turn = itertools.cycle(specs)

    def shoot() -> bytes:
        return drawing.encode(drawing.draw_chat(next(turn), files), "jpeg")

    for _ in range(WARM):
        shoot()
    before = time.process_time()
    benchmark.pedantic(shoot, rounds=ROUNDS)
    per_second = ROUNDS / (time.process_time() - before)
    note = f"CPU time, {ROUNDS} screenshots of {len(specs)} chats"
    assert record(benchmark, "screenshots/core", per_second, note=note)
