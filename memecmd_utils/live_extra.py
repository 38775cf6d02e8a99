"""The extra `live`: packages that ask endpoints, feeds and hosts of pictures; replaying needs none."""

from importlib.util import find_spec

from memecmd_utils.errors import ExtraMissing

PACKAGES = ("openai", "aiohttp", "feedparser", "protego")


class LiveExtraMissing(ExtraMissing):
    """A package of the extra is not installed; the message says how to install it."""


def need(purpose: str) -> None:
    """Raise `LiveExtraMissing` where a package of the extra is missing. Looks for them, imports none."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise LiveExtraMissing(f"{purpose} needs {' and '.join(missing)}: pip install -e '.[live]'")
