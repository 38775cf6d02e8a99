"""Prompts are Jinja files in `memecmd_utils/prompts`; their hash goes into every record made with them."""

import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from memecmd_utils import paths

EXAMPLE_MARK = re.compile(r"\n@(user|assistant)\n")


class PromptError(ValueError):
    """A prompt lacks a value or does not exist."""


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # StrictUndefined: a misspelt variable is an error, not an empty hole in a prompt.
    # No autoescape: prompts are plain text; values are data and are never rendered as templates.
    return jinja2.Environment(
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
    parts = EXAMPLE_MARK.split("\n" + render(name))
    return [(role, text.strip()) for role, text in zip(parts[1::2], parts[2::2], strict=True)]


def prompt_sha256(*names: str) -> str:
    """SHA-256 of prompt files and the files they include: what `prompt_sha256` of a record means."""
    digest = hashlib.sha256()
    for name in names:
        try:
            for path in _with_includes(f"{name}.j2"):
                digest.update(path.read_bytes())
        except FileNotFoundError as error:
            raise PromptError(f"no prompt file {name}.j2 in {paths.prompts}") from error
    return digest.hexdigest()


def _with_includes(name: str) -> list[Path]:
    path = paths.prompts / name
    tree = _environment().parse(path.read_text(encoding="utf-8"))
    inner = [p for other in meta.find_referenced_templates(tree) if other for p in _with_includes(other)]
    return [path, *inner]


def fence(text: str) -> str:
    """Wrap text from outside (news, OCR, replies) so that a model can tell data from instructions.

    The fence's own marks are taken out of the text, so that it cannot close its fence.
    """
    return "<<<\n" + text.replace("<<<", "‹‹‹").replace(">>>", "›››") + "\n>>>"
