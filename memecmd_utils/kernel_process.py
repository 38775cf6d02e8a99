"""Starts a notebook's kernel so that what its process itself prints stays out of the terminal.

What cells print or raise comes back in the notebook. The process adds two things of its own: why it could
not start or had to die, and complaints of its threads while it is torn down, which end in any order.
"""

from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from traitlets import Unicode

LAST_LINES = 12


class KernelProcess(AsyncKernelManager):
    """A kernel whose standard output and error go to `printed`."""

    printed = Unicode(help="Path of the file that takes them.").tag(config=True)

    async def start_kernel(self, **kw: Any) -> None:
        """Start it as the parent class does; the process keeps the file open for itself."""
        with Path(self.printed).open("ab") as stream:
            await super().start_kernel(stdout=stream, stderr=stream, **kw)


def last_words(printed: Path) -> str:
    """The last lines that a kernel printed, indented below a message; empty if it printed none."""
    if not printed.exists():
        return ""
    lines = printed.read_text(encoding="utf-8", errors="replace").split("\n")
    shown = [line.rstrip() for line in lines if line.strip()][-LAST_LINES:]
    return "".join(f"\n  {line}" for line in shown)
