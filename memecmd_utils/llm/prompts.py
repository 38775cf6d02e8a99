"""Prompts are Jinja files in `memecmd_utils/prompts`; their hash goes into every record made with them."""

import hashlib
import re
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta

from memecmd_utils.files import MemecmdError, paths

_HIDDEN = "[\x00-\x09\x0b-\x1f\x7f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"
OPENING, CLOSING = (re.compile(f"[{marks}](?:{_HIDDEN}[{marks}]){{2,}}") for marks in ("<＜﹤", ">＞﹥"))
"""Fence marks, also as wide signs and with what nobody sees between them."""
EXAMPLE_MARK = re.compile(r"\n@(user|assistant)\n")


class PromptError(MemecmdError, ValueError):
    """A prompt lacks a value or does not exist."""


class _Environment(jinja2.Environment):
    def make_globals(self, d: Any) -> Any:
        # Jinja's own chain of mappings is copied, slowly, at every rendering.
        return {**self.globals, **(d or {})}


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # StrictUndefined: a misspelt variable is an error, not an empty hole in a prompt.
    # No autoescape: prompts are plain text; values are data and are never rendered as templates.
    return _Environment(
        loader=jinja2.FileSystemLoader(paths.prompts, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )


def render(name: str, **values: Any) -> str:
    """Render `prompts/<name>.j2`; a missing value raises `PromptError`."""
    try:
        return _environment().get_template(f"{name}.j2").render(**values).strip()
    except jinja2.TemplateNotFound as error:
        raise PromptError(f"no prompt file {name}.j2 in {paths.prompts}") from error
    except jinja2.UndefinedError as error:
        raise PromptError(f"prompt {name}: {error}") from error


def render_examples(name: str) -> list[tuple[str, str]]:
    """Render a prompt of worked examples into (role, text) messages; `@user` and `@assistant` part them."""
    return list(_examples(name, _stamp(f"{name}.j2")))


def prompt_sha256(*names: str) -> str:
    """SHA-256 of prompt files and the files they include: what `prompt_sha256` of a record means."""
    return _sha256(tuple(_stamp(f"{name}.j2") for name in names))


# A hash is wanted with every turn, and files may be edited while a notebook is open: what was worked out
# holds as long as no file's time or size has changed.
Stamp = tuple[tuple[str, int, int], ...]


def _stamp(name: str) -> Stamp:
    """Name, time and size of a prompt file and of those that it includes."""
    try:
        stat = (paths.prompts / name).stat()
    except FileNotFoundError as error:
        raise PromptError(f"no prompt file {name} in {paths.prompts}") from error
    inner = [stamp for other in _includes(name, stat.st_mtime_ns) for stamp in _stamp(other)]
    return ((name, stat.st_mtime_ns, stat.st_size), *inner)


@lru_cache(maxsize=256)
def _includes(name: str, _time: int) -> tuple[str, ...]:
    tree = _environment().parse((paths.prompts / name).read_text(encoding="utf-8"))
    return tuple(other for other in meta.find_referenced_templates(tree) if other)


@lru_cache(maxsize=256)
def _sha256(stamps: tuple[Stamp, ...]) -> str:
    digest = hashlib.sha256()
    for stamp in stamps:
        for name, _, _ in stamp:
            digest.update((paths.prompts / name).read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _examples(name: str, _stamp: Stamp) -> tuple[tuple[str, str], ...]:
    parts = EXAMPLE_MARK.split("\n" + render(name))
    return tuple((role, text.strip()) for role, text in zip(parts[1::2], parts[2::2], strict=True))


def fence(text: str) -> str:
    """Wrap text from outside (news, OCR, replies) so that a model can tell data from instructions.

    The fence's own marks are taken out of the text, so that it cannot close its fence.
    """
    return "<<<\n" + CLOSING.sub("›››", OPENING.sub("‹‹‹", text)) + "\n>>>"
