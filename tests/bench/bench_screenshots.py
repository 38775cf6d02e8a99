"""Chat screenshots a second on one core: 18 turns, 1x, JPEG encoding included. Target: 40.

Every round draws other texts, so the caches hold only what recurs in a real run: avatars, thumbnails
and widths of characters.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import made_up

from memecmd_utils import screenshots

TARGET = 40


def test_screenshots_per_second(benchmark, tmp_path: Path) -> None:
    files = made_up.meme_files(tmp_path)
    generator = np.random.default_rng(13)
    letters = list("".join(made_up.TEXTS) + "今天真的有点累但是看到大家都在就又想笑了好吧那就这样明早见")
    specs = []
    for number in range(40):
        texts = tuple("".join(generator.choice(letters, generator.integers(8, 26))) for _ in range(18))
        memes = [made_up.placement(t, f"m{1 + t % 3}") for t in (3, 7, 12, 16)]
        chat = made_up.dialogue(texts=texts).model_copy(update={"name_b": f"老柏{number}"})
        specs.append(screenshots.chat_from_dialogue(chat, memes))
    turn = itertools.cycle(specs)
    benchmark(lambda: screenshots.encode(screenshots.draw(next(turn), files), "jpeg"))
    assert 1 / benchmark.stats["median"] >= TARGET
