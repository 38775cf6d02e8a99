"""Images a second of stage 01: one process beside several at 1,000 images, several at 10,000, too.

Real memes with noise where they are (`../shared/corpora/emojipackage`), else pictures with captions: each
image is a variant, scaled and with noise of its own, so none is a copy. At the smaller size the two ways are
measured in turn; one process at the larger would take hours and say the same. The growth is that of all
processes. MEMECMD_BENCH_SHARE takes a share of the sizes (0.05: some minutes).
"""

import hashlib
import io
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from figures_to_reach import exponent, record
from PIL import Image, ImageDraw

from memecmd_utils import pictures
from memecmd_utils.drawing import pil_font
from memecmd_utils.files import cores, paths
from memecmd_utils.library import build as library_build
from memecmd_utils.library.ocr import MAX_SIDE, MemoryCache, RapidOcr, cache_key
from memecmd_utils.settings import Profile

CORPUS = paths.root.parent / "shared" / "corpora" / "emojipackage"
SIZES = (1_000, 10_000)
SHARE = float(os.environ.get("MEMECMD_BENCH_SHARE", "1"))


def originals() -> list[Image.Image]:
    """Pictures to make variants of, at most 300 pixels wide so that all fit into memory."""
    if not CORPUS.is_dir():
        found = []
        for number in range(40):
            values = np.random.default_rng(number).integers(0, 256, (5, 5, 3), dtype=np.uint8)
            picture = Image.fromarray(values).resize((300, 260), Image.Resampling.BICUBIC)
            pen = ImageDraw.Draw(picture)
            pen.text((20, 200), f"第{number}次加班", font=pil_font(40), fill="black")
            found.append(picture)
        return found
    found = []
    for path in pictures.look_through(CORPUS).images:
        try:
            found.append(pictures.decode(path))
        except pictures.ImageRejected:
            continue
        found[-1].thumbnail((300, 300))
    return found


def plant(folder: Path, n: int) -> None:
    """Write `n` noisy variants as JPEG, in sub-folders of 500."""
    pictures = originals()
    for number in range(n):
        rng = np.random.default_rng(number)
        pixels = np.asarray(pictures[number % len(pictures)], dtype=np.int16)
        noisy = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
        path = folder / f"{number // 500:03d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(path, quality=88)


def recorded(folder: Path) -> MemoryCache:
    """Texts of all pictures, as if they had been read by an earlier run."""
    cache, engine = MemoryCache(), RapidOcr()
    for number, path in enumerate(pictures.look_through(folder).images):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        cache.put(cache_key(digest, engine.ocr_id), f"字{number}")
    return cache


def build(folder: Path, workers: int, with_texts: bool) -> float:
    """Seconds of a build into a folder of its own."""
    profile = Profile(name="bench", sources=[str(folder)])
    cache = recorded(folder) if with_texts else MemoryCache()
    with tempfile.TemporaryDirectory() as run:
        started = time.perf_counter()
        report = library_build.build_library(profile, Path(run), None, cache, workers)
        seconds = time.perf_counter() - started
    assert report.kept + report.near_duplicates == report.found
    return seconds


@dataclass
class Measured:
    """Seconds by number of images: one process at the smallest number alone, all processes at each."""

    one: dict[int, list[float]] = field(default_factory=dict)
    all: dict[int, list[float]] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """One process / all processes, within each round."""
        (n,) = self.one
        return [one / many for one, many in zip(self.one[n], self.all[n], strict=True)]

    @property
    def growth(self) -> float:
        """Exponent of the time of all processes."""
        return exponent(list(self.all), [statistics.median(times) for times in self.all.values()])


def measure(sizes: list[int], with_texts: bool) -> Measured:
    """Build libraries of each size, the two ways in turn at the smallest."""
    found = Measured()
    for n in sorted(sizes):
        first = n == min(sizes)
        with tempfile.TemporaryDirectory() as name:
            plant(Path(name), n)
            ways = [(cores(), found.all)]
            for workers, times in [(1, found.one), *ways] if first else ways:
                times.setdefault(n, []).append(build(Path(name), workers, with_texts))
    return found


def rates(found: Measured) -> str:
    """Images a second and a core, and the seconds, in words; medians of the rounds."""
    count, parts = cores(), []
    for n, many in ((n, statistics.median(times)) for n, times in found.all.items()):
        text = f"{n:,} images: "
        if n in found.one:
            one = statistics.median(found.one[n])
            text += f"one process {n / one:.3g}/s ({one:.3g} s), "
        parts.append(
            f"{text}{count} processes {n / many:.3g}/s ({many:.3g} s, {n / many / count:.3g}/s a core)"
        )
    return "; ".join(parts)


def sizes() -> list[int]:
    return [max(20, round(SHARE * n)) for n in SIZES]


def test_images_are_read_in_several_processes(benchmark) -> None:
    found = benchmark.pedantic(measure, args=(sizes(), False), rounds=1)
    record(benchmark, "growth/library", found.growth, note=rates(found))
    count = cores()
    what = f"{min(found.one):,} images read by OCR: one process / {count} processes"
    limit = 1.0 if count > 1 else None
    assert record(
        benchmark, "library/processes", found.ratios, what=what, unit="x", at_least=limit, note=rates(found)
    )


def test_images_whose_texts_are_recorded(benchmark) -> None:
    found = benchmark.pedantic(measure, args=(sizes(), True), rounds=1)
    what = f"{min(found.one):,} images whose texts are recorded: one process / all cores"
    record(benchmark, "library/recorded", found.ratios, what=what, unit="x", note=rates(found))


def test_a_large_jpeg_is_decoded_in_part(benchmark) -> None:
    picture = originals()[0].resize((4000, 3000), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    data, whole, reduced = buffer.getvalue(), [], []

    def both() -> None:
        for _ in range(5):
            for times, decode in ((whole, pictures.decode_bytes), (reduced, reduced_to_ocr)):
                started = time.perf_counter()
                decode(data)
                times.append(time.perf_counter() - started)

    benchmark.pedantic(both, rounds=1)
    ratios = [a / b for a, b in zip(whole, reduced, strict=True)]
    what = "JPEG of 12 megapixels: decoded whole / reduced to what OCR can use"
    note = f"whole {1e3 * statistics.median(whole):.0f} ms, reduced {1e3 * statistics.median(reduced):.0f} ms"
    assert record(benchmark, "library/draft", ratios, what=what, unit="x", at_least=1.0, note=note)


def reduced_to_ocr(data: bytes) -> Image.Image:
    return pictures.decode_reduced(data, MAX_SIDE)[0]
