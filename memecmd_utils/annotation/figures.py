"""Figure 2: the keywords of every annotated dimension as a word cloud."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from memecmd_utils.core.drawing import fonts
from memecmd_utils.core.plots import BLUE, GREEN, GREY, PURPLE, RED, canvas, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DIMENSIONS = {
    "s_plus": "$S^+$  fitting scenarios",
    "s_minus": "$S^-$  unfitting scenarios",
    "emotion": "$E$  emotion and internet meaning",
    "motivation": r"$\Psi$  motivation and intent",
}


_APART = "  "
"""Around each word of a cloud, so in its own size: Chinese has no blanks, and what touches is read as one."""


_CLOUD_COLOURS = {"s_plus": BLUE, "s_minus": RED, "emotion": GREEN, "motivation": PURPLE}


def word_clouds(keywords: Mapping[str, Mapping[str, int]], seed: int = 13) -> "Figure":
    """Figure 2: a word cloud for each annotated dimension; keys as in `DIMENSIONS`."""
    from wordcloud import WordCloud

    unknown = set(keywords) - set(DIMENSIONS)
    if unknown:
        raise ValueError(f"unknown dimensions {sorted(unknown)}; known: {list(DIMENSIONS)}")
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
