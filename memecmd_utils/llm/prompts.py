"""Prompts are Jinja files in `memecmd_utils/prompts`; their hash goes into every record made with them."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from memecmd_utils.files import paths
from memecmd_utils.llm.types import Image, Message

_HIDDEN = "[\x00-\x09\x0b-\x1f\x7f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"
OPENING, CLOSING = (re.compile(f"[{marks}](?:{_HIDDEN}[{marks}]){{2,}}") for marks in ("<＜﹤", ">＞﹥"))
"""Fence marks, also as wide signs and with what nobody sees between them."""
EXAMPLE_MARK = re.compile(r"\n@(user|assistant)\n")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # StrictUndefined: a misspelt variable is an error, not an empty hole in a prompt.
    # No autoescape: prompts are plain text; values are data and are never rendered as templates.
    loader = jinja2.FileSystemLoader(paths.prompts, encoding="utf-8")
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["fence"] = fence
    return environment


def render(name: str, **values: Any) -> str:
    """Render `prompts/<name>.j2`; a missing value raises `jinja2.UndefinedError`, which names it."""
    return _environment().get_template(f"{name}.j2").render(**values).strip()


def render_examples(name: str, **values: Any) -> list[tuple[str, str]]:
    """Render a prompt of worked examples into (role, text) messages; `@user` and `@assistant` part them."""
    parts = EXAMPLE_MARK.split("\n" + render(name, **values))
    return [(role, text.strip()) for role, text in zip(parts[1::2], parts[2::2], strict=True)]


def messages(
    text: str, system: str = "", examples: Sequence[tuple[str, str]] = (), images: Sequence[Image] = ()
) -> list[Message]:
    """The messages of a request: what is asked, with images, after a system prompt and worked examples."""
    before = [("system", system)] if system else []
    told = [Message(role=role, text=said) for role, said in (*before, *examples)]
    return [*told, Message(role="user", text=text, images=list(images))]


def prompt_sha256(*names: str, folder: Path | None = None) -> str:
    """SHA-256 of prompt files and the files they include: what `prompt_sha256` of a record means.

    `folder` has prompts of an earlier day.
    """
    digest, files = hashlib.sha256(), [f"{name}.j2" for name in names]
    while files:
        text = ((folder or paths.prompts) / files.pop(0)).read_bytes()
        digest.update(text)
        files = [*_included(text), *files]
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _included(text: bytes) -> list[str]:
    return [other for other in meta.find_referenced_templates(_environment().parse(text.decode())) if other]


NAME_CHARS = 20
"""Characters of a name that a model reads: names come from strangers as well."""


def one_line(text: str, most: int) -> str:
    """Text from outside as one line of at most so many characters, an ellipsis where it was cut.

    Names and captions come with line ends and at any length; neither may look like a new part of a prompt.
    """
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def fence(text: str) -> str:
    """Wrap text from outside (news, OCR, replies) so that a model can tell data from instructions.

    The fence's own marks are taken out of the text, so that it cannot close its fence.
    """
    return "<<<\n" + CLOSING.sub("›››", OPENING.sub("‹‹‹", text)) + "\n>>>"
