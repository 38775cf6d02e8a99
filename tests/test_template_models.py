"""Tuning and BERTScore on tiny random weights of the real classes: wiring, not values.

The loss and its gradient are CLIP's whatever the mini-batch and the number of processes, a killed tuning goes
on, and its best epoch is kept.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import appendix
import numpy as np
import pytest
import template_world
import tiny_models
from PIL import Image

from memecmd_utils import embedders
from memecmd_utils.settings import Cm50Settings, MtrclipSettings
from memecmd_utils.template_memes import recall

TUNING, METRICS = (appendix.load(name) for name in ("08b_clip_with_data", "07b_templates_with_data"))
Pairs = list[tuple[Path, str]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Two dozen drawn memes with captions."""
    made, folder = [], tmp_path_factory.mktemp("drawn")
    for number, n in product(range(6), range(4)):
        made.append((folder / f"{number}-{n}.png", template_world.meaning(number, n)))
        template_world.meme(number, n, "").save(made[-1][0])
    return made


@pytest.fixture(scope="module")
def base(torch, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.clip_folder("clip", tmp_path_factory.mktemp("clip") / "tiny"))


def settings(base: str, **changes: object) -> MtrclipSettings:
    usual = {"model": base, "batch_size": 12, "mini_batch_size": 5, "learning_rate": 1.5e-3}
    return MtrclipSettings(**(usual | changes))


def test_the_cached_loss_is_clips_and_its_gradient_reaches_the_temperature(torch, pairs, base: str) -> None:
    from torch.nn.functional import cross_entropy, normalize

    model = TUNING.load_model(base)
    pictures = model.preprocess([Image.open(file) for file, _ in pairs])
    texts = model.preprocess([text for _, text in pairs])
    named = dict(model.named_parameters())

    def gradients() -> dict:
        found = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        model.zero_grad()
        return found

    loss = TUNING.contrastive_loss(model, 5)([dict(pictures), dict(texts)], None)
    loss.backward()
    cached = gradients()
    rows = [normalize(model(dict(side))["sentence_embedding"], dim=1) for side in (pictures, texts)]
    logits = TUNING.log_scale(model).exp() * rows[0] @ rows[1].T
    truth = torch.arange(len(pairs))
    whole = (cross_entropy(logits, truth) + cross_entropy(logits.T, truth)) / 2
    whole.backward()
    assert loss.item() == pytest.approx(whole.item(), rel=1e-5)
    direct = gradients()
    assert cached.keys() == direct.keys() and any(name.endswith("logit_scale") for name in cached)
    for name, gradient in direct.items():
        assert torch.allclose(cached[name], gradient, atol=1e-6, rtol=1e-3), name


@pytest.mark.parametrize("kind", ["clip", "chinese_clip"])
def test_what_the_processes_make_is_what_the_model_would(torch, pairs, tmp_path, monkeypatch, kind) -> None:
    model = TUNING.load_model(str(tiny_models.clip_folder(kind, tmp_path / kind)))
    made = recall.Preprocess(model, 3)
    texts = ["a cat", "周末去爬山吗 " * 40]
    ours, theirs = made(texts, prompt=None, task=None), model.preprocess(texts)
    assert ours.keys() == theirs.keys() and torch.equal(ours["input_ids"], theirs["input_ids"])
    files = [file for file, _ in pairs]
    first = made(files)["pixel_values"]
    copy = pickle.loads(pickle.dumps(made))
    assert torch.equal(copy(files)["pixel_values"], first), "cuts follow from the batch and the seed"
    assert not torch.equal(recall.Preprocess(model, 4)(files)["pixel_values"], first)
    monkeypatch.setattr("torchvision.transforms.RandomResizedCrop", lambda *_, **__: lambda image: image)
    ours, theirs = made(files), model.preprocess([Image.open(file) for file in files])
    assert ours.keys() == theirs.keys() and torch.equal(ours["pixel_values"], theirs["pixel_values"])


CHILD = """
import json, sys
from pathlib import Path
import appendix
from memecmd_utils.settings import MtrclipSettings

told = json.loads(Path(sys.argv[1]).read_text())
pairs = [(Path(image), text) for image, text in told["pairs"]]
tune = appendix.load("08b_clip_with_data").tune
tune(pairs, {"validation": pairs}, MtrclipSettings(**told["settings"]), Path(sys.argv[2]), 0)
"""


def test_kills_processes_and_mini_batches_change_nothing_that_is_learned(
    torch, pairs, base, tmp_path
) -> None:
    chosen, told, folder = settings(base, epochs=4), tmp_path / "told.json", tmp_path / "killed"
    others = chosen.model_dump() | {"workers": 2, "mini_batch_size": 3}
    told.write_text(json.dumps({"pairs": [[str(f), text] for f, text in pairs], "settings": others}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(told), str(folder)], env=environment)
    while not list(folder.glob("checkpoints/checkpoint-*/trainer_state.json")):
        assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (folder / "history.csv").exists()
    sets = {"validation": pairs}
    resumed, _ = TUNING.tune(pairs, sets, chosen, folder, 0)
    whole, best = TUNING.tune(pairs, sets, chosen, tmp_path / "whole", 0)
    measured = whole.pop("validation_R@1")
    assert len(whole) == 5 and whole["loss"].nunique() == 4
    assert whole["log_scale"].nunique() == 5, "the temperature is learned"
    assert np.allclose(resumed[whole.columns][1:], whole[1:], rtol=1e-4)
    assert TUNING.tune([], {}, chosen, tmp_path / "whole", 0)[1] == best, "a finished tuning is read"
    assert not (tmp_path / "whole" / "checkpoints").exists() and measured[best] == measured[1:].max()
    encoder = embedders.DualEncoder(tmp_path / "whole" / "weights")
    rows = (
        encoder.encode_texts([text for _, text in pairs]),
        encoder.encode_images([file for file, _ in pairs]),
    )
    ranks = recall.rank_all(*rows, [""] * len(pairs))
    both = np.mean([ranks["pair", way].hits(1).mean() for way in ("T2M", "M2T")])
    assert both == pytest.approx(measured[best]), "the best epoch's weights are kept"


def test_bertscore_matches_tokens_and_keeps_the_order(torch, tmp_path: Path) -> None:
    texts = ["the dog sleeps", "a cat runs away"]
    bert = str(tiny_models.bert_folder(tmp_path / "bert", " ".join(texts).split()))
    chosen = Cm50Settings(bertscore=bert, bertscore_layer=2)
    other, same = METRICS.bertscore([texts[0], texts[0]], [[texts[1]], [texts[1], texts[0]]], chosen)
    assert same == pytest.approx(1, abs=1e-5), "of several references the best counts"
    one, two = (METRICS.token_vectors(bert, 2)(text) for text in texts)
    cosines = one @ two.T
    precision, recalled = cosines.max(axis=1)[1:-1].mean(), cosines.max(axis=0)[1:-1].mean()
    assert other == pytest.approx(2 / (1 / precision + 1 / recalled), abs=1e-6) and other < 0.99
