"""How long something takes is shown: a bar whose clock moves, and in a log a plain line a minute."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from memecmd_utils.files import TERMINAL_VARIABLE

LOG_S = 60.0
"""Seconds between two lines of a log."""
LOG_LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed} gone, {remaining} to go, {rate_fmt}{postfix}"


@contextmanager
def bar(
    total: int, label: str, unit: str, words: Callable[[Any], str] = lambda _: "", **options: Any
) -> Iterator[Any]:
    """A tqdm bar of terminal or notebook that moves every second, also before the first unit is done.

    `words` makes of the bar what stands beside it. What ends within `LOG_S` leaves nothing in a log. The
    kernel of a headless run has no terminal: `TERMINAL_VARIABLE` names that of the run, or a file for lines.
    """
    import tqdm
    import tqdm.auto  # looks for widgets, which takes a while

    ended, kind, log = threading.Event(), tqdm.auto.tqdm, None
    options = {"total": total, "desc": label, "unit": unit, "smoothing": 0, **options}

    def show() -> None:
        shown.set_postfix_str(words(shown))
        if log is not None and (not ended.is_set() or shown.format_dict["elapsed"] > LOG_S):
            print(shown, file=log, flush=True)

    def tick() -> None:
        while not ended.wait(1.0 if log is None else LOG_S):
            show()

    with ExitStack() as closing:
        if place := os.environ.get(TERMINAL_VARIABLE):
            kind, options["file"] = tqdm.tqdm, closing.enter_context(Path(place).open("a", encoding="utf-8"))
            log = None if options["file"].isatty() else options["file"]
        elif os.environ.get("TQDM_DISABLE"):
            log = sys.stderr
        if log is not None:
            kind, options["file"] = tqdm.tqdm, closing.enter_context(Path(os.devnull).open("w"))
            options |= {"disable": False, "bar_format": LOG_LINE}
        shown = closing.enter_context(kind(**options))
        ticking = threading.Thread(target=tick, daemon=True)
        ticking.start()
        closing.callback(show)
        closing.callback(ticking.join)
        closing.callback(ended.set)
        yield shown
