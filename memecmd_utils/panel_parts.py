"""What the tabs of notebook 04's panel share: knobs, columns, and faults that the reader gets to see."""

import functools
from collections.abc import Callable
from typing import Any

import ipywidgets

from memecmd_utils import chat_html
from memecmd_utils.errors import MemecmdError

LABEL = {"description_width": "112px"}
WIDE = "98%"


def told(method: Callable) -> Callable:
    """Show a fault of a callback in the tab's `note`: what it raises ends in a log that nobody reads.

    A `MemecmdError` is the reader's to mend and goes no further; everything else is raised on.
    """

    @functools.wraps(method)
    def wrapped(self, *arguments: Any) -> None:
        try:
            self.note.value = ""
            method(self, *arguments)
        except MemecmdError as error:
            self.note.value = chat_html.note(str(error), error=True)
        except Exception as error:
            self.note.value = chat_html.note(f"{type(error).__name__}: {error}", error=True)
            raise

    return wrapped


class Knob:
    """A slider that tells every move, in steps of the last digit it shows; ends take in its own value.

    A browser rounds what it is given to whole steps and sends that back. So a position within half a step
    of the value that was put stands for that value, to its last digit.
    """

    def __init__(self, value: float, low: float, high: float, digits: int, text: str, sign: str = "") -> None:
        self.digits, self._exact = digits, value
        self.slider = ipywidgets.FloatSlider(
            value=value,
            min=min(low, value),
            max=max(high, value),
            step=10.0**-digits,
            description=text,
            readout_format=f"{sign}.{digits}f",
            continuous_update=True,
            style=LABEL,
            layout=ipywidgets.Layout(width=WIDE),
        )

    @property
    def value(self) -> float:
        """Where the knob stands."""
        shown = self.slider.value
        near = abs(shown - self._exact) <= 0.501 * self.slider.step
        return self._exact if near else round(shown, self.digits)

    def put(self, value: float) -> None:
        """Move it; the ends give way, for a slider would cut the value off in silence."""
        self._exact = value
        self.slider.min, self.slider.max = min(self.slider.min, value), max(self.slider.max, value)
        self.slider.value = value


def buttons(*which: Any) -> Any:
    """Buttons in a row, as wide as their words; on a narrow screen below each other."""
    for button in which:
        button.layout.width = "auto"
    return ipywidgets.HBox(which, layout=ipywidgets.Layout(flex_flow="row wrap"))


def columns(left: Any, right: list[Any], **frame: str) -> Any:
    """`left` in a frame that scrolls, knobs to its right; on a narrow screen below it.

    The frame scrolls, not what is in it: the reader stays where they are when the chat is redrawn.
    """
    scrolling = ipywidgets.Layout(overflow="hidden auto", flex="1 1 360px", min_width="0", **frame)
    box = ipywidgets.Box([left], layout=scrolling)
    box.layout.display = "block"
    box.add_class("mc-frame")
    aside = ipywidgets.VBox(right, layout=ipywidgets.Layout(flex="1 1 420px", min_width="0"))
    wrap = ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start", grid_gap="14px")
    return ipywidgets.HBox([box, aside], layout=wrap)
