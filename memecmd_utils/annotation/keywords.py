"""Keywords of Chinese texts with jieba, and the word clouds of Figure 2."""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memecmd_utils.core import paths
from memecmd_utils.core.drawing import fonts
from memecmd_utils.core.plots import BLUE, GREEN, GREY, PURPLE, RED, canvas, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STOPWORDS = Path(__file__).resolve().parent / "stopwords.txt"
"""Words that never count."""
_KINDS = ("n", "v", "a", "i", "l")
"""First letters of jieba's word classes that are kept: nouns, verbs, adjectives, set phrases."""
_NAMES = ("nr", "ns", "nt")
"""Names of people and places say nothing about a meme; jieba also takes odd pairs for names."""
DIMENSIONS = {
    "s_plus": "$S^+$  fitting scenarios",
    "s_minus": "$S^-$  unfitting scenarios",
    "emotion": "$E$  emotion and internet meaning",
    "motivation": r"$\Psi$  motivation and intent",
}
_APART = "  "
"""Around each word of a cloud, so in its own size: Chinese has no blanks, and what touches is read as one."""
_CLOUD_COLOURS = {"s_plus": BLUE, "s_minus": RED, "emotion": GREEN, "motivation": PURPLE}


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


@cache
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
    lines = STOPWORDS.read_text(encoding="utf-8").splitlines()
    ignored = {line.strip() for line in lines if not line.startswith("#")}
    counts: Counter[str] = Counter()
    with _quiet():
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


def word_clouds(keywords: Mapping[str, Mapping[str, int]], seed: int = 13) -> "Figure":
    """Figure 2: a word cloud for each annotated dimension; keys as in `DIMENSIONS`."""
    from wordcloud import WordCloud

    with style():
        fig = canvas(9, 5.6)
        for axes, (key, title) in zip(fig.subplots(2, 2).flat, DIMENSIONS.items(), strict=True):
            axes.set_title(title)
            axes.set_axis_off()
            counts = dict(keywords.get(key, {}))
            if not counts:
                axes.text(0.5, 0.5, "no keywords", ha="center", va="center", color=GREY)
                continue
            cloud = WordCloud(
                font_path=str(fonts.cjk_font_path()),
                width=880,
                height=480,
                background_color="white",
                random_state=seed,
                prefer_horizontal=1.0,
                margin=6,
                min_font_size=22,  # half of it on a page: what is smaller cannot be read
                max_words=80,
                max_font_size=110,
                relative_scaling=0.5,
                color_func=_shades(_CLOUD_COLOURS[key], counts),
            ).generate_from_frequencies({f"{_APART}{word}{_APART}": n for word, n in counts.items()})
            axes.imshow(cloud.to_array(), interpolation="antialiased")
    return fig


def _shades(colour: str, counts: Mapping[str, int]) -> Any:
    import matplotlib.colors

    base = np.array(matplotlib.colors.to_rgb(colour))
    most = max(counts.values())

    def colour_of(word: str, **_: Any) -> str:
        # Rare words are paler, but never paler than the eye can read on white.
        strength = 0.62 + 0.38 * counts[word.strip()] / most
        return matplotlib.colors.to_hex(1 - strength * (1 - base))

    return colour_of
