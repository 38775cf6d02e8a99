"""Looks at a finished library: is the text right, and which pictures come close to each other?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memecmd_utils import images, near_duplicates, seeds, text_similarity
from memecmd_utils.ocr import Ocr
from memecmd_utils.schemas import Meme

if TYPE_CHECKING:
    import pandas as pd


def check_ocr_on_sample(
    memes: Sequence[Meme], run_dir: Path, ocr: Ocr, n: int = 6, seed: int = 13
) -> "pd.DataFrame":
    """Read `n` memes of known text by OCR and compare (similarity 0-1 of the normalised texts)."""
    import pandas as pd

    known = sorted((m for m in memes if m.text_source == "known"), key=lambda m: m.meme_id)
    chosen = seeds.rng(seed, "ocr check").permutation(len(known))[:n]
    rows = []
    for meme in (known[i] for i in sorted(chosen)):
        read = ocr.read_text(images.decode(run_dir / meme.file))
        same = text_similarity.similarity(*map(text_similarity.normalise_text, (meme.text, read)))
        rows.append((meme.meme_id, meme.text, read, same))
    return pd.DataFrame(rows, columns=["meme_id", "known", "read", "similarity"])


def closest_pictures(memes: Sequence[Meme], n: int = 3) -> "pd.DataFrame":
    """The `n` pairs of memes whose perceptual hashes differ least, the closest first; fewer if there are.

    Columns meme_id, text, other, other_text, bits (of 64 that differ), similarity (0-1, normalised texts).
    """
    import pandas as pd

    hashes = [int(meme.phash, 16) for meme in memes]
    found: list[tuple[int, int, int]] = []
    for distance in range(6, 64, 3):
        pairs = near_duplicates.close_pairs(hashes, distance).tolist()
        found = sorted(((hashes[i] ^ hashes[j]).bit_count(), i, j) for i, j in pairs)
        if len(found) >= n:
            break
    rows = []
    for bits, i, j in found[:n]:
        a, b = memes[i], memes[j]
        same = text_similarity.similarity(*map(text_similarity.normalise_text, (a.text, b.text)))
        rows.append((a.meme_id, a.text, b.meme_id, b.text, bits, same))
    return pd.DataFrame(rows, columns=["meme_id", "text", "other", "other_text", "bits", "similarity"])
