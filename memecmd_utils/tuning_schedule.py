"""Learning rate and memory of a tuning, step by step; neither needs torch."""

import math
from typing import Any

from memecmd_utils.template_settings import MemeRetrieval

ADAM_BYTES = 16
"""Of a weight in float32: itself, its gradient and Adam's two moments."""
LAYER_BYTES = {"float32": 84, "half": 54}
"""Of a token's width in one layer of CLIP, kept for the backward pass; counted on torch 2.15, where fused
attention keeps no matrix and half precision keeps the residual sums and layer norms in float32."""


def learning_rate(step: int, steps: int, warmup: float, settings: MemeRetrieval) -> float:
    """Learning rate of update `step` of `steps`, from 0: linear from the edge to the peak, a cosine back.

    `warmup` counts steps. Source: Section 4 and the code of 2501.13851: 1e-6, 1e-5, 1e-6.
    """
    edge, peak = settings.edge_learning_rate, settings.learning_rate
    if step < warmup:
        return edge + (peak - edge) * step / warmup
    rest = max(steps - 1 - warmup, 1e-9)
    way = min(1.0, (step - warmup) / rest)
    return edge + (peak - edge) * (1 + math.cos(math.pi * way)) / 2


def memory(config: Any, parameters: int, settings: MemeRetrieval, half: bool = True) -> dict[str, int]:
    """Estimated bytes on the device while `config` is tuned: what is always there, what a mini-batch adds.

    `config`: the model's, with `vision_config` and `text_config`; `parameters`: its weights. An estimate
    within about a third, for kernels that do not keep the attention's matrix; leave a gigabyte of room.
    """
    vision, text = config.vision_config, config.text_config
    tokens = (vision.image_size // vision.patch_size) ** 2 + 1
    # The towers take turns, so the larger one counts.
    pair = max(
        _kept(vision, tokens, half),
        _kept(text, min(text.max_position_embeddings, 77), half),
    )
    batch = settings.batch_size
    return {
        "weights": ADAM_BYTES * parameters,
        "pixels": 3 * vision.image_size**2 * batch,
        "loss": 24 * batch**2,
        "of a pair": pair,
        "mini-batch": pair * settings.mini_batch_size,
        "together": ADAM_BYTES * parameters
        + 3 * vision.image_size**2 * batch
        + max(24 * batch**2, pair * settings.mini_batch_size),
    }


def _kept(tower: Any, tokens: int, half: bool) -> int:
    width, inner = tower.hidden_size, tower.intermediate_size
    kept = LAYER_BYTES["half" if half else "float32"] * width * tokens
    # The bytes above hold an inner layer of four widths, kept before and after its activation.
    wider = (inner - 4 * width) * (4 if half else 8) * tokens
    return (kept + wider) * tower.num_hidden_layers
