"""Tuning, BERTScore and LPIPS on tiny random weights of the real classes: wiring, not values."""

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tiny_clips
import tiny_metrics
import tiny_models
from PIL import Image, ImageDraw

from memecmd_utils import embedders
from memecmd_utils.settings import AnnotationMetrics, MtrclipSettings
from memecmd_utils.template_memes import matching, metrics, tuning

pytestmark = pytest.mark.paper


COLOURS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 220), "yellow": (240, 220, 40)}


@pytest.fixture(scope="module")
def torch():
    tiny_models.need_paper_extra()
    import torch

    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuning.Pair]:
    """Two dozen drawn memes with captions."""
    made, folder = [], tmp_path_factory.mktemp("drawn")
    for colour, ground, shape in product(COLOURS, ("white", "black"), ("disc", "square", "bar")):
        picture = Image.new("RGB", (48, 40), ground)
        draw = ImageDraw.Draw(picture)
        place = (0, 16, 48, 24) if shape == "bar" else (12, 8, 36, 32)
        (draw.ellipse if shape == "disc" else draw.rectangle)(place, fill=COLOURS[colour])
        made.append(tuning.Pair(folder / f"{colour}-{ground}-{shape}.png", f"{colour} {shape} {ground}"))
        picture.save(made[-1].image)
    return made


@pytest.fixture(scope="module")
def base(torch, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_clips.folder_of("clip", tmp_path_factory.mktemp("clip") / "tiny"))


def settings(base: str, **changes: object) -> MtrclipSettings:
    rates = {"learning_rate": 1.5e-3, "edge_learning_rate": 1e-4, "augment": False}
    return MtrclipSettings(**{"model": base, "batch_size": 12, "mini_batch_size": 5, **rates, **changes})


def test_the_cached_loss_is_clips_and_its_gradient_reaches_the_temperature(torch, pairs, base: str) -> None:
    from torch.nn.functional import cross_entropy, normalize

    model = tuning.load_model(base)
    pictures = model.preprocess([Image.open(pair.image) for pair in pairs])
    texts = model.preprocess([pair.text for pair in pairs])
    named = dict(model.named_parameters())

    def gradients() -> dict:
        found = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        model.zero_grad()
        return found

    loss = tuning.contrastive_loss(model, 5)([dict(pictures), dict(texts)], None)
    loss.backward()
    cached = gradients()
    rows = [normalize(model(dict(side))["sentence_embedding"], dim=1) for side in (pictures, texts)]
    logits = tuning.log_scale(model).exp() * rows[0] @ rows[1].T
    truth = torch.arange(len(pairs))
    whole = (cross_entropy(logits, truth) + cross_entropy(logits.T, truth)) / 2
    whole.backward()
    assert loss.item() == pytest.approx(whole.item(), rel=1e-5)
    direct = gradients()
    assert cached.keys() == direct.keys() and any(name.endswith("logit_scale") for name in cached)
    for name, gradient in direct.items():
        assert torch.allclose(cached[name], gradient, atol=1e-6, rtol=1e-3), name


def test_a_tiny_clip_learns_and_its_best_epoch_is_kept(torch, pairs, base: str, tmp_path: Path) -> None:
    easy = [pair for pair in pairs if "white" in pair.text]
    chosen = settings(base, epochs=60, warmup_epochs=5, augment=True)
    tuned = tuning.tune(easy, {"validation": easy}, chosen, tmp_path / "run", 0)
    history = tuned.history
    assert history["validation_R@1"][0] < 0.3 and history["validation_R@1"][tuned.epoch] > 0.8
    assert len(history) == 61 and history["loss"].iloc[-5:].mean() < 0.4 * history["loss"][1:6].mean()
    assert history["validation_R@1"][tuned.epoch] == history["validation_R@1"][1:].max()
    assert history["log_scale"].nunique() > 40, "the temperature is learned"
    again = tuning.tune([], {}, chosen, tmp_path / "run", 0)
    assert again.epoch == tuned.epoch and not (tmp_path / "run" / "checkpoints").exists()
    encoder = embedders.DualEncoder(tuned.folder)
    rows = [encoder.encode_texts([p.text for p in easy]), encoder.encode_images([p.image for p in easy])]
    texts, images = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in rows)
    both = (tuning.recall_at_1(texts @ images.T) + tuning.recall_at_1(images @ texts.T)) / 2
    assert both == pytest.approx(history["validation_R@1"][tuned.epoch])


CHILD = """
import json, sys
from pathlib import Path
from memecmd_utils.settings import MtrclipSettings
from memecmd_utils.template_memes import tuning

told = json.loads(Path(sys.argv[1]).read_text())
pairs = [tuning.Pair(Path(image), text) for image, text in told["pairs"]]
sets = {"validation": pairs[:9], "test": pairs[9:]}
tuning.tune(pairs, sets, MtrclipSettings(**told["settings"]), Path(sys.argv[2]), 0)
"""


def test_a_tuning_that_was_killed_goes_on_from_its_last_epoch(
    torch, pairs, base: str, tmp_path: Path
) -> None:
    chosen, told, folder = (
        settings(base, epochs=40, selection="paper"),
        tmp_path / "told.json",
        tmp_path / "run",
    )
    told.write_text(
        json.dumps({"pairs": [[str(p.image), p.text] for p in pairs], "settings": chosen.model_dump()})
    )
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(told), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    while not list(folder.glob("checkpoints/checkpoint-*/trainer_state.json")):
        assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (folder / "history.csv").exists()
    tuned = tuning.tune(pairs, {"validation": pairs[:9], "test": pairs[9:]}, chosen, folder, 0)
    assert len(tuned.history) == 41 and tuned.history["epoch"].tolist() == list(range(41))
    assert tuned.history["test_R@1"][tuned.epoch] == tuned.history["test_R@1"][1:].max()


def test_bertscore_matches_tokens_and_keeps_the_order(torch, tmp_path: Path) -> None:
    texts = ["the dog sleeps", "a cat runs away"]
    bert = str(tiny_metrics.bert_folder(tmp_path / "bert", texts))
    scored = metrics.all_metrics(AnnotationMetrics(bertscore=bert, bertscore_layer=2))["BERTScore"]
    other, same = scored([texts[0], texts[0]], [[texts[1]], [texts[1], texts[0]]])
    assert same == pytest.approx(1, abs=1e-5), "of several references the best counts"
    one, two = (metrics._token_vectors(bert, 2)(text) for text in texts)
    cosines = one @ two.T
    precision, recall = cosines.max(1).values[1:-1].mean(), cosines.max(0).values[1:-1].mean()
    assert other == pytest.approx(2 / (1 / precision + 1 / recall).item(), abs=1e-6) and other < 0.99


def test_lpips_is_0_for_equal_pictures_and_the_librarys_for_others(
    torch, tmp_path: Path, monkeypatch
) -> None:
    lpips = pytest.importorskip("lpips")
    monkeypatch.setenv("TORCH_HOME", str(tiny_metrics.alexnet(tmp_path / "torch")))
    rng, files = np.random.default_rng(0), [tmp_path / f"{n}.png" for n in range(2)]
    for file in files:
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(file)
    same, other = matching.lpips_distances([(files[0], files[0]), (files[0], files[1])])
    net = lpips.LPIPS(net="alex", verbose=False)
    rows = [
        torch.tensor(np.asarray(Image.open(file)) / 255.0).permute(2, 0, 1)[None].float() for file in files
    ]
    assert same == 0 and other == pytest.approx(net(*rows).item(), rel=1e-4) and other > 0
