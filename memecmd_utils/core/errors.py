"""Faults that a user can mend: one base class, and what is said of them in one line."""

import errno
from importlib.util import find_spec

OF_THE_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE
}  # fmt: skip
"""What a disk or a folder refuses, also where the system does not say which file it was."""
LIVE_PACKAGES = ("openai", "aiohttp", "feedparser", "protego")
"""The extra `live`: what asks endpoints, feeds and hosts of pictures; replaying needs none."""


class MemecmdError(Exception):
    """A fault that a user can mend: the message says what to do, so nobody needs the traceback.

    Every class of errors of this kind derives from it, beside a built-in one where that fits.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows below a cell that raised it; after `%xmode Verbose` the traceback."""
        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None and shell.InteractiveTB.mode == "Verbose":
            return shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
        return [f"{type(self).__name__}: {self}"]


class ExtraMissing(MemecmdError, RuntimeError):
    """A package of an extra is not installed; the message says how to install it."""


def mendable_message(error: BaseException) -> str | None:
    """The message of a fault that a user can mend; None for any other, which needs its traceback.

    That is a `MemecmdError`, and what the system refuses a path for (no such file, no permission, disk full):
    the message then begins with the path. A group of such faults has that of its first.
    """
    if isinstance(error, BaseExceptionGroup):
        messages = [mendable_message(inner) for inner in error.exceptions]
        return None if None in messages else messages[0]
    if isinstance(error, MemecmdError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        if error.errno in OF_THE_MACHINE:
            return error.strerror
    return None


def need_live_extra(purpose: str) -> None:
    """Raise `ExtraMissing` where a package of the extra `live` is missing. Looks for them, imports none."""
    missing = [name for name in LIVE_PACKAGES if find_spec(name) is None]
    if missing:
        raise ExtraMissing(f"{purpose} needs {' and '.join(missing)}: pip install -e '.[live]'")
