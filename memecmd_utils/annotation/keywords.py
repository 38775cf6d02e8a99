"""Keywords of Chinese texts with jieba, for the word clouds of Figure 2."""

import logging
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from memecmd_utils.core import paths

STOPWORDS = Path(__file__).resolve().parent / "stopwords.txt"
_KINDS = ("n", "v", "a", "i", "l")
"""First letters of jieba's word classes that are kept: nouns, verbs, adjectives, set phrases."""
_NAMES = ("nr", "ns", "nt")
"""Names of people and places say nothing about a meme; jieba also takes odd pairs for names."""
_segmenting = threading.Lock()


def stopwords() -> frozenset[str]:
    """Return the words that never count, from the package's own list."""
    lines = STOPWORDS.read_text(encoding="utf-8").split("\n")
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


@contextmanager
def _quiet() -> Iterator[None]:
    # jieba sets its logger to DEBUG on import and prints four lines to stderr when it starts.
    logger = logging.getLogger("jieba")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba  # noqa: F401  (its import sets the level, so it comes before ours)

    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@lru_cache(maxsize=1)
def _tagger() -> Any:
    with _quiet():
        import jieba
        from jieba import posseg

        # A tokenizer of our own: the shared one keeps its cache in the system's temporary folder,
        # where another user's file of the same name stops it, and other code may add words to it.
        tokenizer = jieba.Tokenizer()
        folder = paths.interim / "jieba"
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.tmp_dir = str(folder)
        tokenizer.cache_file = "dictionary.cache"
        tokenizer.initialize()
        return posseg.POSTokenizer(tokenizer)


def count_keywords(texts: Sequence[str], top: int = 80) -> dict[str, int]:
    """Count nouns, verbs, adjectives and set phrases of two characters or more; the `top` most frequent.

    Equal counts are ordered by the word, so that the result does not depend on the order of texts.
    """
    ignored = stopwords()
    counts: Counter[str] = Counter()
    with _segmenting, _quiet():
        tagger = _tagger()
        for text in texts:
            counts.update(
                pair.word
                for pair in tagger.lcut(text)
                if len(pair.word) >= 2
                and pair.flag.startswith(_KINDS)
                and not pair.flag.startswith(_NAMES)
                and pair.word not in ignored
            )
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[:top])
