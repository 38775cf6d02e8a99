"""An event loop for tests in which waiting takes no time: the clock jumps to whoever is due next."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class FastLoop(asyncio.SelectorEventLoop):
    """Its time stands still while there is something to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        due = [] if self._ready else [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if due:
            self.now = max(self.now, min(due))
        super()._run_once()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Like `asyncio.run`, in no time."""
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(work)


def now() -> float:
    """Seconds since the loop began; a clock for whatever runs in it."""
    return asyncio.get_running_loop().time()
