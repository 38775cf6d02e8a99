"""Shows in the terminal what a notebook's kernel writes to its status file (see `progress`)."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

STATUS_VARIABLE = "MEMECMD_STATUS"
"""Names the file; `progress` writes it in the kernel."""
LOOK_EVERY_S = 0.5
LOG_EVERY_S = 30.0
"""Between two lines where the output is no terminal, as in a log of a batch job."""


class StatusLine:
    """Copies the newest text of `file` to `out`: in place in a terminal, else line by line."""

    def __init__(self, file: Path, out: TextIO, label: str) -> None:
        self.file, self.out, self.label = file, out, label
        self._in_place = out.isatty()
        self._shown = ""
        self._stop = threading.Event()

    def show(self) -> None:
        """Print the newest line if it is a new one."""
        try:
            text = self.file.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return
        if not text or text == self._shown:
            return
        self._shown = text
        # Erase to the end of the line: the next text may be shorter.
        line = f"\r{self.label}: {text}\x1b[K" if self._in_place else f"{self.label}: {text}\n"
        self.out.write(line)
        self.out.flush()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show new lines while the block runs, and the last one at its end."""
        every = LOOK_EVERY_S if self._in_place else LOG_EVERY_S

        def watch() -> None:
            while not self._stop.wait(every):
                self.show()

        thread = threading.Thread(target=watch, name="memecmd-status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self.show()
            if self._in_place and self._shown:
                self.out.write("\n")
