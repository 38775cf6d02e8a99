import math

import numpy as np
import pytest
import tunable_clip

from memecmd_utils.mtrclip import loss as mtrclip_loss

N = 11  # a prime number: no mini-batch divides it


@pytest.fixture(scope="module", autouse=True)
def tuning() -> None:
    tunable_clip.need_tuning()
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    from sentence_transformers import SentenceTransformer

    folder = tunable_clip.clip_folder(tmp_path_factory.mktemp("clip") / "tiny", dropout=0.3)
    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def batch():
    """Features of 11 pairs: noise for pictures, texts of unlike lengths; and labels of template and text."""
    import torch

    torch.manual_seed(5)
    pictures = {"pixel_values": torch.randn(N, 3, 32, 32), "modality": "image"}
    ids = torch.full((N, 20), 53)
    mask = torch.zeros(N, 20, dtype=torch.long)
    ids[:, 0] = 52
    for row in range(N):
        length = 3 + row
        ids[row, 1:length] = torch.randint(0, 26, (length - 1,))
        mask[row, : length + 1] = 1
    texts = {"input_ids": ids, "attention_mask": mask, "modality": "text"}
    labels = torch.tensor([[row % 4, row if row < 9 else 0] for row in range(N)])
    return [pictures, texts], labels


def direct(model, features, excluded=None):
    """The loss as CLIP's paper writes it, over the whole batch at once, in its own words."""
    import torch

    a, b = (model(dict(part))["sentence_embedding"].float() for part in features)
    a, b = (rows / rows.pow(2).sum(1, keepdim=True).sqrt() for rows in (a, b))
    logits = a @ b.T * model[0].model.logit_scale.clamp(0, 4.6052).exp()
    if excluded is not None:
        logits = logits + torch.where(excluded, -1e9, 0.0)
    rows = -(logits.diagonal() - logits.logsumexp(1)).mean()
    columns = -(logits.diagonal() - logits.logsumexp(0)).mean()
    return (rows + columns) / 2


def in_one_graph(model, features, mini: int):
    """The loss of the whole batch without a cache, its mini-batches in the order the cache takes them."""
    import torch

    rows = []
    for side in features:
        for at in range(0, N, mini):
            part = {k: v[at : at + mini] if hasattr(v, "shape") else v for k, v in side.items()}
            if "attention_mask" in part:  # the cache drops padding, on which the drawn masks depend
                longest = part["attention_mask"].sum(dim=1).max()
                part |= {k: part[k][:, :longest] for k in ("input_ids", "attention_mask")}
            rows.append(model(part)["sentence_embedding"])
    half = len(rows) // 2
    images, texts = torch.cat(rows[:half]), torch.cat(rows[half:])
    return mtrclip_loss.symmetric_loss(images, texts, model[0].model.logit_scale)


def backward(model, loss, factor: float = 1.0):
    model.zero_grad()
    (factor * loss()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("columns", [(), (0,), (1,), (0, 1)], ids=["none", "template", "text", "both"])
@pytest.mark.parametrize("mini", [1, 3, 4, N, 64])
def test_cached_is_full_with_all_gradients(model, batch, mini: int, columns: tuple) -> None:
    import torch

    model.eval()
    features, labels = batch
    excluded = mtrclip_loss.excluded_pairs(labels, columns)
    whole = direct(model, features, excluded)
    wanted = backward(model, lambda: direct(model, features, excluded))
    cached = mtrclip_loss.cached_loss(model, mini, columns)
    assert cached(features, labels).item() == pytest.approx(whole.item(), abs=1e-5)
    got = backward(model, lambda: cached(features, labels))
    assert set(got) == set(wanted) == {name for name, _ in model.named_parameters()}
    for name, gradient in wanted.items():
        assert torch.allclose(got[name], gradient, atol=1e-5), name
    assert abs(wanted["0.model.logit_scale"].item()) > 1e-3
    assert sum(p.abs().sum().item() > 1e-6 for p in wanted.values()) > 60, "gradients that say something"


def test_what_comes_from_outside_reaches_all_gradients_alike(model, batch) -> None:
    import torch

    model.eval()
    features, labels = batch
    cached = mtrclip_loss.cached_loss(model, 4)
    once = backward(model, lambda: cached(features, labels))
    scaled = backward(model, lambda: cached(features, labels), 1024.0)
    for name, gradient in once.items():
        assert torch.allclose(scaled[name], 1024 * gradient, rtol=1e-4, atol=1e-4), name


@pytest.mark.parametrize("mini", [3, N])
def test_dropout_is_drawn_anew_for_a_step_and_alike_in_both_passes(model, batch, mini: int) -> None:
    import torch

    model.train()
    features, labels = batch
    cached = mtrclip_loss.cached_loss(model, mini)

    torch.manual_seed(1)
    wanted = backward(model, lambda: in_one_graph(model, features, mini))
    torch.manual_seed(1)
    got = backward(model, lambda: cached(features, labels))
    for name, gradient in wanted.items():
        assert torch.allclose(got[name], gradient, atol=1e-5), name
    values = {round(cached(features, labels).item(), 6) for _ in range(3)}
    assert len(values) == 3, "dropout is on"
    torch.manual_seed(2)
    loss = cached(features, labels)
    after = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after), "the second pass takes nothing from the stream"


def test_autocast_holds_in_the_second_pass(model, batch) -> None:
    import torch

    model.eval()
    features, labels = batch
    cached, seen = mtrclip_loss.cached_loss(model, 4), []
    hook = model[0].model.visual_projection.register_forward_hook(
        lambda module, given, out: seen.append((out.dtype, torch.is_grad_enabled()))
    )

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return cached(features, labels)

    got = backward(model, loss)
    hook.remove()
    assert {kind for kind, _ in seen} == {torch.bfloat16}
    assert [grad for _, grad in seen] == [False] * 3 + [True] * 3

    def plain():
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return in_one_graph(model, features, 4)

    wanted = backward(model, plain)
    assert {gradient.dtype for gradient in got.values()} == {torch.float32}
    flat, other = (torch.cat([made[name].flatten() for name in wanted]) for made in (got, wanted))
    # bfloat16 has three digits, and the loss is steep in texts that an untrained tower finds nearly alike:
    # kernels with and without gradients, which round in other places, are 5 % apart.
    assert (flat - other).norm() < 0.15 * other.norm()


def test_the_scale_is_clamped(batch) -> None:
    import torch

    a, b = torch.eye(4, 6), torch.eye(4, 6) + 0.1
    at = {value: mtrclip_loss.symmetric_loss(a, b, torch.tensor(value)) for value in (-3.0, 0.0, 4.6052, 9.0)}
    assert at[-3.0] == at[0.0] and at[4.6052] == at[9.0] and at[0.0] != at[9.0]
    assert math.exp(mtrclip_loss.LOG_SCALE_RANGE[1]) == pytest.approx(100, abs=0.01)


def test_masks_by_hand() -> None:
    import torch

    labels = torch.tensor([[1, 7], [1, 8], [2, 8]])
    by_template = mtrclip_loss.excluded_pairs(labels, (0,))
    assert by_template.tolist() == [[False, True, False], [True, False, False], [False, False, False]]
    both = mtrclip_loss.excluded_pairs(labels, (0, 1))
    assert both.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    assert mtrclip_loss.excluded_pairs(labels, ()) is None
    # Three pairs, orthogonal images, scale 1: with the mask pair 0 has pair 2 alone as a negative.
    images = torch.eye(3)
    texts = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0]])
    got = mtrclip_loss.symmetric_loss(images, texts, torch.tensor(0.0), by_template).item()
    cross = np.log(np.exp([[1, -np.inf, 0], [-np.inf, 1, 1], [0, 0, 0]]).sum(axis=1)) - [1, 1, 0]
    other = np.log(np.exp([[1, -np.inf, 0], [-np.inf, 1, 0], [0, 1, 0]]).sum(axis=1)) - [1, 1, 0]
    assert got == pytest.approx((cross.mean() + other.mean()) / 2, abs=1e-6)


def test_two_passes_before_a_backward_do_not_mix(model, batch) -> None:
    import torch

    model.eval()
    (pictures, texts), labels = batch
    other = [pictures | {"pixel_values": pictures["pixel_values"].flip(0)}, texts]
    cached = mtrclip_loss.cached_loss(model, 4)
    wanted = backward(model, lambda: cached([pictures, texts], labels))

    def first_of_two():
        loss = cached([pictures, texts], labels)
        cached(other, labels)
        return loss

    got = backward(model, first_of_two)
    assert all(torch.equal(got[name], gradient) for name, gradient in wanted.items())
