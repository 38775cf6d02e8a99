"""Which of the paper's models a checkpoint is, told by its configuration and never by its folder's name.

Only what has the size of a published model may stand in a table of the paper's form: the numbers of a tiny
model that shows the wiring would else be read as results.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memecmd_utils import model_files, paths

ALIGN, B32, L14 = "ALIGN-base", "CLIP-ViT-B/32", "CLIP-ViT-L/14@336px"
"""Names of Table 2 (2501.13851)."""


class Architecture(NamedTuple):
    """A published dual encoder."""

    hub: str
    kind: str
    """`model_type` of its configuration."""
    dim: int
    """Length of its vectors."""
    sizes: Mapping[str, Any]
    """Values of its configuration that make it what it is."""


ARCHITECTURES = {
    ALIGN: Architecture(
        "kakaobrain/align-base",
        "align",
        640,
        {
            "projection_dim": 640,
            "text_config.hidden_size": 768,
            "text_config.num_hidden_layers": 12,
            "text_config.vocab_size": 30522,
            "vision_config.width_coefficient": 2.0,
            "vision_config.depth_coefficient": 3.1,
        },
    ),
    B32: Architecture(
        "openai/clip-vit-base-patch32",
        "clip",
        512,
        {
            "projection_dim": 512,
            "text_config.hidden_size": 512,
            "text_config.num_hidden_layers": 12,
            "text_config.vocab_size": 49408,
            "vision_config.hidden_size": 768,
            "vision_config.num_hidden_layers": 12,
            "vision_config.patch_size": 32,
            "vision_config.image_size": 224,
        },
    ),
    L14: Architecture(
        "openai/clip-vit-large-patch14-336",
        "clip",
        768,
        {
            "projection_dim": 768,
            "text_config.hidden_size": 768,
            "text_config.num_hidden_layers": 12,
            "text_config.vocab_size": 49408,
            "vision_config.hidden_size": 1024,
            "vision_config.num_hidden_layers": 24,
            "vision_config.patch_size": 14,
            "vision_config.image_size": 336,
        },
    ),
}
_DEFAULTS = {"align": ARCHITECTURES[ALIGN].sizes, "clip": ARCHITECTURES[B32].sizes}
"""What transformers assumes where a configuration is silent, which is the smallest model of each kind."""


def architecture(model: str | Path) -> str | None:
    """Name in Table 2 of what a hub name, `name@COMMIT` or folder holds; None where it is none of them.

    Read from `config.json`. Of a hub model that was never downloaded here the hub's name speaks.
    """
    folder = paths.root / model  # a relative path counts from the project's root
    label = str(model).partition("@")[0]
    named = next((name for name, known in ARCHITECTURES.items() if known.hub == label), None)
    config = _config(folder) if folder.is_dir() else _downloaded(str(model))
    if config is None:
        return None if folder.is_dir() else named
    fitting = [name for name, known in ARCHITECTURES.items() if not _differences(config, known)]
    return fitting[0] if fitting and (folder.is_dir() or named in (None, fitting[0])) else None


def misfit(model: str | Path, wanted: str) -> str:
    """Say in words why a model is not the one wanted; "" where it is, or where it is not here at all."""
    folder = paths.root / model
    config = _config(folder) if folder.is_dir() else _downloaded(str(model))
    if config is None:
        return "" if not folder.is_dir() else f"{folder.name} has no config.json"
    gaps = _differences(config, ARCHITECTURES[wanted])
    return f"{Path(model).name} is no {wanted} ({', '.join(gaps[:3])})" if gaps else ""


def _differences(config: Mapping[str, Any], known: Architecture) -> list[str]:
    kind = config.get("model_type")
    if kind != known.kind:
        return [f"model_type {kind}, not {known.kind}"]
    out = []
    for key, wanted in known.sizes.items():
        part, _, name = key.rpartition(".")
        values = (config.get(part) or {}) if part else config
        got = values.get(name, _DEFAULTS[known.kind][key])
        if got != wanted:
            out.append(f"{key} {got}, not {wanted}")
    return out


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _downloaded(model: str) -> dict[str, Any] | None:
    """Configuration of a hub model in the hub's cache."""
    label, _, commit = model.partition("@")
    commit = commit or model_files.hub_commit(label) or ""
    return _config(model_files.hub_folder(label) / "snapshots" / commit) if commit else None
