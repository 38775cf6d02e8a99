"""Symmetric InfoNCE over batches far larger than the memory holds, with CLIP's learned temperature.

The towers see a mini-batch at a time (GradCache, Gao et al. 2021, arXiv 2101.06983); the loss sees all pairs
of the batch. sentence-transformers has the cache (`CachedLossMixin`), but its ranking losses take a fixed
scale and no masks: what is added here is the temperature as a parameter that is trained, and the masks.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.clip import ModelMissing

LOG_SCALE_RANGE = (0.0, 4.6052)
"""Bounds of `logit_scale`: a temperature between 1 and 0.01, as in the paper's code."""


class _PassInput(NamedTuple):
    """What one pass over a batch knows beside the vectors; a pass keeps its own, so none can mix them up."""

    log_scale: Any
    excluded: Any


def symmetric_loss(images: Any, texts: Any, log_scale: Any, excluded: Any = None) -> Any:
    """Mean of the image-to-text and text-to-image cross-entropies; row i of both sides is pair i.

    `images` and `texts`: tensors [n, d] of any length, normalised here in float32. `log_scale`: a scalar
    tensor, clamped to `LOG_SCALE_RANGE`. `excluded`: bool [n, n], pairs that are no negatives. Takes about
    24 n^2 bytes: 0.1 GB for 2,048 pairs.
    """
    import torch
    from torch.nn.functional import cross_entropy, normalize

    with torch.autocast(images.device.type, enabled=False):
        scale = log_scale.float().clamp(*LOG_SCALE_RANGE).exp()
        logits = scale * normalize(images.float(), dim=1) @ normalize(texts.float(), dim=1).T
        if excluded is not None:
            logits = logits.masked_fill(excluded, -torch.inf)
        truth = torch.arange(len(logits), device=logits.device)
        return (cross_entropy(logits, truth) + cross_entropy(logits.T, truth)) / 2


def excluded_pairs(labels: Any, columns: Sequence[int]) -> Any:
    """Bool [n, n], symmetric: two pairs that share a label in any of `columns`; none with itself.

    `labels`: integers [n, k], for example of template and text. None where no column is asked for.
    """
    import torch

    if not columns:
        return None
    same = torch.zeros(len(labels), len(labels), dtype=torch.bool, device=labels.device)
    for column in columns:
        same |= labels[:, column, None] == labels[None, :, column]
    return same.fill_diagonal_(False)


def cached_loss(model: Any, mini_batch_size: int, mask_columns: Sequence[int] = ()) -> Any:
    """Make the loss module that sentence-transformers' trainer takes.

    `model` maps features to `sentence_embedding` and has a parameter `logit_scale`. The module is called
    with [image features, text features] and labels: integers [n, k], of which `mask_columns` name columns
    whose equals are no negatives.
    """
    return _loss_class()(model, mini_batch_size, mask_columns)


def find_log_scale(model: Any) -> Any:
    """The parameter `logit_scale` of a CLIP; a model without one raises `ValueError`."""
    found = [parameter for name, parameter in model.named_parameters() if name.endswith("logit_scale")]
    if len(found) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(found)} parameters named logit_scale, not 1: give a CLIP or "
            "Chinese-CLIP that was saved by transformers"
        )
    return found[0]


@cache
def _loss_class() -> type:
    """Class of the loss; made when needed, because its bases come with torch."""
    with weights.importing("the cached loss (sentence-transformers 6.2 or later)", ModelMissing):
        import torch
        from sentence_transformers.base.losses.gradcache import CachedLossMixin

    class Replay:
        """The random state of a mini-batch's first pass and the autocast it ran under, for its second."""

        def __init__(self, random_state: Any, device: str) -> None:
            self._random_state = random_state
            # The second pass runs inside `backward`, where the caller's autocast has ended.
            self._device, self._enabled = device, torch.is_autocast_enabled(device)
            self._dtype = torch.get_autocast_dtype(device)

        def __enter__(self) -> None:
            # Without torch's cache of cast weights: in here they must be cast with gradients.
            self._cast = torch.autocast(self._device, self._dtype, self._enabled, cache_enabled=False)
            self._random_state.__enter__()
            self._cast.__enter__()

        def __exit__(self, *error: Any) -> None:
            self._cast.__exit__(*error)
            self._random_state.__exit__(*error)

    class CachedContrastiveLoss(CachedLossMixin, torch.nn.Module):
        def __init__(self, model: Any, mini_batch_size: int, columns: Sequence[int]) -> None:
            super().__init__()
            self.model, self.mini_batch_size, self.columns = model, mini_batch_size, columns

        def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Any = None) -> Any:
            """Loss of the batch; `backward` then fills the gradients of both towers and of the scale."""
            features = list(sentence_features)
            parameter = find_log_scale(self.model)
            excluded = excluded_pairs(labels, self.columns)
            # The loss itself is differentiated within `forward`, down to leaves. The scale gets a leaf of its
            # own, so that its gradient reaches the parameter in `backward`, times what comes from outside
            # (a gradient scaler, a division by accumulated steps), as those of the towers do.
            leaf = parameter.detach().requires_grad_(torch.is_grad_enabled())
            loss = self.forward_cached(features, _PassInput(leaf, excluded))
            if leaf.grad is None:
                return loss
            return loss + leaf.grad * (parameter - parameter.detach())

        def calculate_loss(self, reps: list[list[Any]], labels: Any, *, with_backward: bool = False) -> Any:
            """Loss over all pairs, from vectors by tower and mini-batch; called by the cache."""
            images, texts = (torch.cat(parts) for parts in reps)
            loss = symmetric_loss(images, texts, labels.log_scale, labels.excluded)
            if with_backward:
                loss.backward()
                loss = loss.detach()
            return loss

        def embed_minibatch(self, *args: Any, **keywords: Any) -> tuple[Any, Any]:
            vectors, random_state = super().embed_minibatch(*args, **keywords)
            if random_state is not None:
                random_state = Replay(random_state, vectors.device.type)
            return vectors, random_state

    return CachedContrastiveLoss
