import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tunable_clip

from memecmd_utils import drawing, pictures
from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.files import paths
from memecmd_utils.mtrclip import loss, tables, tuning
from memecmd_utils.mtrclip.training_data import Batches, Pair, TunedModel, label_columns, recall_at_1
from memecmd_utils.settings import MtrclipSettings

SCORES = {"validation_R@1": [0.2, 0.5, 0.4], "test_R@1": [0.1, 0.3, 0.6]}
HISTORY = pd.DataFrame({"epoch": [0, 1, 2], "loss": [float("nan"), 2.0, 1.0], **SCORES})
SHORT = {"batch_size": 5, "mini_batch_size": 2, "epochs": 3, "checkpoint_steps": 3}
RATES = {"learning_rate": 1.5e-3, "edge_learning_rate": 1e-4}
CHILD = """
import json, os, signal, sys
from pathlib import Path

sys.path[:0] = [{tests!r}]
import torch

torch.set_num_threads(1)
from memecmd_utils.mtrclip import tuning as clip_tuning
from memecmd_utils.mtrclip import loss as contrastive_loss
from memecmd_utils.settings import MtrclipSettings

real, calls = contrastive_loss.symmetric_loss, []


def killed(*given):
    calls.append(1)
    if len(calls) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given)


contrastive_loss.symmetric_loss = killed
told = json.loads(Path(sys.argv[1]).read_text())
pairs = [clip_tuning.Pair(Path(image), text, template) for image, text, template in told["pairs"]]
settings = MtrclipSettings(**told["settings"])
clip_tuning.tune(pairs, pairs[:9], pairs[9:], settings, Path(sys.argv[2]), device="cpu")
"""


@pytest.fixture(scope="module")
def torch():
    tunable_clip.need_tuning()
    import torch

    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Pair]:
    return tunable_clip.pairs(tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="module")
def model(torch, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tunable_clip.clip_folder(tmp_path_factory.mktemp("clip") / "tiny", dropout=0.1))


def settings(model: str = "none", **changes: object) -> MtrclipSettings:
    return MtrclipSettings(**{"model": model, **SHORT, **RATES, **changes})


def tune(pairs: list[Pair], chosen: MtrclipSettings, folder: Path, **more: object) -> tuning.Tuned:
    return tuning.tune(pairs, pairs[:9], pairs[9:], chosen, folder, device="cpu", **more)


def weights(folder: Path) -> dict:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(torch, a: Path, b: Path) -> bool:
    one, other = weights(a), weights(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def unbroken(torch, pairs, model: str, tmp_path_factory: pytest.TempPathFactory):
    """A tuning that ran through, and the trainer's last checkpoint of it."""
    folder, kept = tmp_path_factory.mktemp("unbroken"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning.shutil, "rmtree", lambda path, **_: kept.append(path))
        tuned = tune(pairs, settings(model), folder)
    return tuned, folder / "checkpoints"


def test_a_model_that_is_downloaded_by_the_tuning_is_no_other_model(pairs, tmp_path, monkeypatch) -> None:
    commits: dict[str, str] = {}

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(encoders_weights, "hub_commit", commits.get)
    monkeypatch.setattr(tuning, "TunedModel", lambda name, device: commits.setdefault(name, "c" * 40))
    monkeypatch.setattr(tuning, "_measured", killed)
    for _ in range(2):  # the second time the model is there from the start
        with pytest.raises(Killed):
            tune(pairs, settings("maker/clip"), tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["model"] == f"maker/clip@{'c' * 40}"


def test_a_tiny_clip_learns_the_templates(torch, pairs, tmp_path: Path) -> None:
    base = tunable_clip.clip_folder(tmp_path / "tiny", width=64)
    easy = [pair for pair in pairs if "white" in pair.text]
    chosen = settings(str(base), batch_size=12, mini_batch_size=5, epochs=70, warmup_epochs=5,
                      checkpoint_steps=1000, mask_same_text=True, augment=False)  # fmt: skip
    tuned = tuning.tune(easy, easy, [], chosen, tmp_path / "run", device="cpu")
    first, best = tuned.history.iloc[0], tuned.history.iloc[tuned.epoch]
    assert first["validation_R@1"] < 0.3 and best["validation_R@1"] > 0.9
    assert tuned.steps.loss.iloc[-5:].mean() < 0.3 * tuned.steps.loss.iloc[:5].mean()
    assert tuned.history.log_scale.nunique() > 50, "the temperature is learned"

    from transformers import AutoProcessor, CLIPModel

    from memecmd_utils import recordings as vectors
    from memecmd_utils.core.encoders import clip

    loaded, processor = CLIPModel.from_pretrained(tuned.folder), AutoProcessor.from_pretrained(tuned.folder)
    assert loaded.logit_scale.item() == pytest.approx(best.log_scale, abs=1e-6)
    assert processor.tokenizer("red disc white")["input_ids"] == [
        len(processor.tokenizer) - 2, *processor.tokenizer.convert_tokens_to_ids(
            ["red</w>", "disc</w>", "white</w>"]), len(processor.tokenizer) - 1]  # fmt: skip
    encoder = clip.load(tuned.folder)
    images = vectors.normalise(encoder.encode_images([pair.image for pair in easy]))
    texts = vectors.normalise(encoder.encode_texts([pair.text for pair in easy]))
    assert recall_at_1(texts @ images.T) == pytest.approx(best["validation_R@1_text_to_meme"])


def test_the_best_epochs_weights_are_the_ones_kept(
    torch, pairs, model: str, tmp_path: Path, monkeypatch
) -> None:
    # Made-up scores: the second epoch is best by validation, the first by test; the third equals the second.
    made = iter([(0.1, 0.1), (0.2, 0.9), (0.6, 0.5), (0.6, 0.5)])
    seen = {}

    def measured(tuned, sets):
        a, b = next(made)
        seen[len(seen)] = {name: p.detach().clone() for name, p in tuned.clip.state_dict().items()}
        names = ("R@1", "R@1_text_to_meme", "R@1_meme_to_text")
        rates = {f"{s}_{n}": v for s, v in (("validation", a), ("test", b)) for n in names}
        return {"log_scale": tuned.log_scale(), **rates}

    monkeypatch.setattr(tuning, "_measured", measured)
    tuned = tune(pairs, settings(model), tmp_path / "run")
    assert tuned.epochs == {"validation": 2, "paper": 1}
    for selection, epoch in tuned.epochs.items():
        kept = weights(tuned.folders[selection])
        assert all(torch.equal(kept[name], seen[epoch][name]) for name in kept)


def test_killed_in_mid_epoch_it_ends_with_the_same_weights(
    torch, unbroken, pairs, model: str, tmp_path: Path
) -> None:
    whole, checkpoints = unbroken
    chosen = settings(model)
    told = {"settings": chosen.model_dump(mode="json"), "pairs": [[str(p.image), *p[1:]] for p in pairs]}
    (tmp_path / "told.json").write_text(json.dumps(told), encoding="utf-8")
    script = CHILD.format(tests=str(paths.root / "tests" / "helpers"), at=8)
    command = [sys.executable, "-c", script, str(tmp_path / "told.json"), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(paths.root), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    states = tmp_path / "run" / "checkpoints"
    assert tuning.last_checkpoint(states).name == "checkpoint-6", "epoch 2 has the steps 5 to 8"
    half = states / "checkpoint-7"  # as a kill within the writing leaves it
    shutil.copytree(states / "checkpoint-6", half)
    (half / "trainer_state.json").write_text('{"global_st', encoding="utf-8")
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning.shutil, "rmtree", lambda path, **_: kept.append(path))
        resumed = tune(pairs, chosen, tmp_path / "run")
    assert states in kept
    assert same(torch, states / "checkpoint-12", checkpoints / "checkpoint-12"), "bit for bit"
    for name in ("optimizer.pt", "scheduler.pt"):
        a, b = (torch.load(of / "checkpoint-12" / name, weights_only=True) for of in (states, checkpoints))
        assert json.dumps(a, default=lambda t: t.tolist()) == json.dumps(b, default=lambda t: t.tolist())
    for selection in resumed.folders:
        assert same(torch, resumed.folders[selection], whole.folders[selection])
    pd.testing.assert_frame_equal(resumed.history, whole.history)
    pd.testing.assert_frame_equal(resumed.steps, whole.steps)


def test_other_seeds_orders_and_cuts_give_other_weights(torch, pairs, model: str, tmp_path: Path) -> None:
    once = settings(model, epochs=1, checkpoint_steps=100)
    runs = {
        "again": (once, {}),
        "seed": (once, {"seed": 1}),
        "plain": (once.model_copy(update={"augment": False}), {}),
        "workers": (once.model_copy(update={"workers": 1}), {}),
    }
    losses = {
        name: tune(pairs, chosen, tmp_path / name, **more).steps.loss.tolist()
        for name, (chosen, more) in runs.items()
    }
    assert losses["again"] == losses["workers"], "whoever decodes, the cuts are the same"
    assert losses["again"] != losses["seed"] and losses["again"] != losses["plain"]


def test_a_finished_tuning_is_read_and_another_refused(
    unbroken, pairs, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, _ = unbroken
    folder = tuned.folder.parents[1]
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    free = settings(model, mini_batch_size=1, selection="paper", workers=2)
    assert tune(pairs, free, folder).epoch == tuned.epochs["paper"]
    with pytest.raises(ValueError, match="with other epochs, mask_same_text: give another folder"):
        tune(pairs, settings(model, epochs=4, mask_same_text=True), folder)
    with pytest.raises(ValueError, match="with other pairs"):
        tuning.tune(pairs[:-1], pairs[:9], pairs[9:], settings(model), folder)


def test_a_chinese_clip_is_tuned_too(torch, tmp_path: Path) -> None:
    base = tunable_clip.chinese_folder(tmp_path / "tiny")
    pairs = tunable_clip.pairs(tmp_path / "drawn", chinese=True)
    chosen = settings(str(base), batch_size=12, mini_batch_size=5, epochs=4)
    tuned = tuning.tune(pairs, pairs, [], chosen, tmp_path / "run", device="cpu")
    assert tuned.steps.loss.iloc[-2:].mean() < tuned.steps.loss.iloc[:2].mean()
    from transformers import ChineseCLIPModel

    loaded = ChineseCLIPModel.from_pretrained(tuned.folder)
    assert loaded.logit_scale.item() == pytest.approx(tuned.history.log_scale[tuned.epoch], abs=1e-6)


def test_pixels_are_those_of_the_processor(torch, pairs, model: str) -> None:
    tuned = TunedModel(model, "cpu")
    files = [pair.image for pair in pairs[:4]]
    decoded = [pictures.decode(file) for file in files]
    wanted = tuned.pictures.processor(decoded, return_tensors="pt")["pixel_values"]
    eight = tuned.pictures.plain(files)
    (got,) = tuned.pictures.normaliser()(None, ({"pixel_values": eight},))
    assert eight.dtype == torch.uint8 and torch.allclose(got["pixel_values"], wanted, atol=1e-5)
    assert tuned.pictures.normaliser()(None, (got,))[0] is got, "what is normalised stays"
    before = torch.get_rng_state()
    cut = tuned.pictures.cut(files[0], 7)
    assert cut.shape == (3, 32, 32) and torch.equal(cut, tuned.pictures.cut(files[0], 7))
    assert not torch.equal(cut, tuned.pictures.cut(files[0], 8))
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_that_decay(torch, pairs, model: str, tmp_path: Path) -> None:
    tuned = TunedModel(model, "cpu")
    trainer = tuning.make_trainer(tuned, pairs, settings(model), tmp_path, 0, dict, print)
    trainer.create_optimizer()
    groups = {group["weight_decay"]: group["params"] for group in trainer.optimizer.param_groups}
    assert set(groups) == {0.1, 0.0} and sum(map(len, groups.values())) == 78
    free = {id(p) for p in groups[0.0]}
    names = {name for name, p in tuned.clip.named_parameters() if id(p) in free}
    assert {name for name, _ in tuned.clip.named_parameters() if "bias" in name or "norm" in name} < names
    assert names >= {"logit_scale", "vision_model.embeddings.class_embedding"}
    assert not any(name.endswith(("proj.weight", "projection.weight", "fc1.weight")) for name in names)
    assert trainer.optimizer.defaults["betas"] == (0.9, 0.98) and trainer.optimizer.defaults["eps"] == 1e-8


def test_the_schedule_is_the_papers() -> None:
    chosen = MtrclipSettings()
    rates = [tuning.learning_rate(step, 320, 16, chosen) for step in range(320)]
    assert rates[0] == 1e-6 and rates[16] == 1e-5 and rates[-1] == pytest.approx(1e-6)
    assert rates[8] == pytest.approx(5.5e-6) and max(rates) == rates[16]
    assert np.all(np.diff(rates[:17]) > 0) and np.all(np.diff(rates[16:]) < 0)
    middle = 16 + (319 - 16) / 2
    assert tuning.learning_rate(middle, 320, 16, chosen) == pytest.approx(5.5e-6)
    assert tuning.learning_rate(0, 1, 1, chosen) == 1e-6
    assert tuning.learning_rate(0, 1, 0, chosen) == 1e-5


def test_rates_of_a_run_are_those_of_the_schedule(unbroken) -> None:
    tuned, _ = unbroken
    wanted = [tuning.learning_rate(step, 12, 4, settings()) for step in range(12)]
    assert tuned.steps.learning_rate.tolist() == pytest.approx(wanted)


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    batches = Batches(24, 5, seed=3)
    first = list(batches)
    assert len(first) == len(batches) == 4 and {len(batch) for batch in first} == {5}
    assert first == list(batches) and {epoch for batch in first for epoch, _ in batch} == {0}
    batches.set_epoch(1)
    assert [r for b in batches for _, r in b] != [r for b in first for _, r in b]
    assert len({row for batch in batches for _, row in batch}) == 20
    assert [len(batch) for batch in Batches(7, 2048, 0)] == [7]


def test_labels_of_templates_and_texts() -> None:
    made = [Pair(Path(), "a", "x"), Pair(Path(), "b", "x"), Pair(Path(), "a", ""), Pair(Path(), "c", "")]
    template, text = label_columns(made).T
    assert template[0] == template[1] and len(set(template)) == 3 and text[0] == text[2]
    assert len(set(text)) == 3


def test_recall_at_1_by_hand() -> None:
    assert recall_at_1(np.array([[0.9, 0.1, 0.2], [0.3, 0.2, 0.1], [0.0, 0.5, 0.5]])) == pytest.approx(1 / 3)
    assert recall_at_1(np.ones((4, 4))) == 0, "all alike is nothing found"


def test_too_little_memory_names_the_key(torch, pairs, model: str, tmp_path: Path, monkeypatch) -> None:
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(loss, "symmetric_loss", full)
    with pytest.raises(RuntimeError, match=r"mtrclip\.mini_batch_size=4.* stays 5"):
        tune(pairs, settings(model, mini_batch_size=8), tmp_path / "run")
    with pytest.raises(RuntimeError, match="one pair does not fit"):
        tune(pairs, settings(model, mini_batch_size=1), tmp_path / "run")
    monkeypatch.undo()
    assert len(tune(pairs, settings(model, mini_batch_size=4), tmp_path / "run").steps) == 12


def test_a_loss_that_is_no_number_stops(torch, pairs, model: str, tmp_path: Path, monkeypatch) -> None:
    real = loss.symmetric_loss
    monkeypatch.setattr(loss, "symmetric_loss", lambda *given: real(*given) * float("nan"))
    with pytest.raises(FloatingPointError, match=r"at step 1: set mtrclip\.learning_rate lower"):
        tune(pairs, settings(model), tmp_path / "run")


def test_what_is_wanting_is_said_before_anything_is_loaded(pairs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 pairs to tune on and 9"):
        tuning.tune(pairs[:1], pairs[:9], [], settings(), tmp_path / "run")
    with pytest.raises(ValueError, match="give the test pairs"):
        tuning.tune(pairs, pairs[:9], [], settings(selection="paper"), tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"1 of 33 images are not there .*none.png"):
        tuning.tune([*pairs[1:], Pair(tmp_path / "none.png", "x")], pairs[:9], [], settings(), tmp_path)
    with pytest.raises(ValueError, match="1 of 33 pairs have a blank text"):
        tuning.tune([*pairs[1:], pairs[0]._replace(text=" ")], pairs[:9], [], settings(), tmp_path)
    with pytest.raises(FileNotFoundError, match="is none"):
        tuning.load_tuned(tmp_path)
    assert not (tmp_path / "run").exists()


def test_other_models_and_broken_images_are_refused(torch, pairs, model: str, tmp_path: Path) -> None:
    import tiny_models

    other = tiny_models.sentence_folder(tmp_path / "text")
    with pytest.raises(ValueError, match="'bert'; can be tuned: clip, chinese_clip"):
        tune(pairs, settings(str(other)), tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"clip-of-nobody cannot be loaded .*mtrclip\.model"):
        tune(pairs, settings("nobody/clip-of-nobody"), tmp_path / "run")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 99)
    broken = [*pairs[1:], Pair(tmp_path / "broken.png", "x")]
    with pytest.raises(ValueError, match=r"image broken.png: .*leave its pair out"):
        tune(broken, settings(model), tmp_path / "run")


SEARCH = MtrclipSettings(batch_size=2048, trials=6)


def made_up_scores(asked: list, dies_at: int | None = None):
    """A made-up objective: best at a learning rate of 1e-5."""

    def score(settings: MtrclipSettings, folder: Path) -> float:
        asked.append(settings)
        (folder / "weights").mkdir(parents=True, exist_ok=True)
        if len(asked) == dies_at:
            raise KeyboardInterrupt
        return made_up_score(settings)

    return score


def made_up_score(settings: MtrclipSettings) -> float:
    return 1 / (1 + abs(settings.learning_rate / 1e-5 - 1))


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna", reason="needs the `search` extra")


def test_the_space_is_the_papers(optuna, tmp_path: Path) -> None:
    asked = []
    best, place = tuning.run_trials(made_up_scores(asked), SEARCH, tmp_path, 31823)
    assert len(asked) == 6
    assert all(1e-6 <= s.learning_rate <= 4e-5 and 512 <= s.batch_size <= 2048 for s in asked)
    assert all(s.warmup_epochs in range(1, 6) and s.epochs in range(10, 27) for s in asked)
    assert len({s.learning_rate for s in asked}) == 6
    wanted = max(asked, key=made_up_score)
    assert (best.learning_rate, best.batch_size) == (wanted.learning_rate, wanted.batch_size)
    assert best.betas == SEARCH.betas
    MtrclipSettings.model_validate(best.model_dump())
    kept = list(tmp_path.glob("*/trial-*/weights"))
    assert kept == [place / "weights"]
    assert len(kept) == 1 and len(list(tmp_path.glob("*/trial-*"))) == 6


def test_a_killed_search_goes_on_as_an_unbroken_one(optuna, tmp_path: Path) -> None:
    whole, asked = [], []
    best, place = tuning.run_trials(made_up_scores(whole), SEARCH, tmp_path / "whole", 5000)
    with pytest.raises(KeyboardInterrupt):
        tuning.run_trials(made_up_scores(asked, dies_at=4), SEARCH, tmp_path / "killed", 5000)
    assert len(asked) == 4
    found, folder = tuning.run_trials(made_up_scores(asked), SEARCH, tmp_path / "killed", 5000)
    assert len(asked) == 4 + 3, "three were done, the fourth is tried again"
    assert asked[4] == asked[3], "with its own values, so that its folder is found again"
    assert [*asked[:3], *asked[4:]] == whole and (found, folder.name) == (best, place.name)
    assert tuning.run_trials(made_up_scores(asked), SEARCH, tmp_path / "killed", 5000) == (found, folder)
    assert len(asked) == 7, "nothing is left to try"


def test_trials_of_other_settings_do_not_count(optuna, tmp_path: Path) -> None:
    asked = []
    tuning.run_trials(made_up_scores(asked), SEARCH, tmp_path, 5000)
    changes = {"weight_decay": 0.2}, {"selection": "paper"}, {"model": "other"}, {"mask_same_template": True}
    for change in changes:
        tuning.run_trials(made_up_scores(asked), SEARCH.model_copy(update=change), tmp_path, 5000)
    assert len(asked) == 5 * 6
    tuning.run_trials(made_up_scores(asked), SEARCH.model_copy(update={"mini_batch_size": 1}), tmp_path, 5000)
    assert len(asked) == 5 * 6


def test_a_search_on_a_tiny_clip(
    torch, optuna, pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "EPOCHS", (1, 2))
    monkeypatch.setattr(tuning, "LEARNING_RATES", (1e-4, 1e-3))
    model = tunable_clip.clip_folder(tmp_path / "tiny")
    chosen = MtrclipSettings(model=str(model), batch_size=12, mini_batch_size=5, trials=2)
    best, place = tuning.search(pairs, pairs[:6], [], chosen, tmp_path / "search", device="cpu")
    (weights,) = (tmp_path / "search").glob("*/trial-*/weights/validation/model.safetensors")
    made = weights.stat().st_mtime_ns
    tuned = tuning.tune(pairs, pairs[:6], [], best, place, device="cpu")
    assert tuned.folder / "model.safetensors" == weights and weights.stat().st_mtime_ns == made, (
        "read, not tuned"
    )


def test_the_schedule_is_drawn_over_epochs() -> None:
    (axes,) = tables.schedule_figure(MtrclipSettings(epochs=3), 5).axes
    x, y = axes.lines[0].get_data()
    assert (len(x), x[-1]) == (15, 14 / 5) and max(y) == pytest.approx(1e-5)


def test_both_selections_stand_in_the_history() -> None:
    figure = tables.history_figure(HISTORY, {"validation": 1, "paper": 2})
    loss, recall = figure.axes
    assert list(loss.lines[0].get_ydata()) == [2.0, 1.0], "the untuned model has no loss"
    labels = [line.get_label() for line in recall.lines]
    assert labels == ["CM50, validation", "epoch by validation set", "MemeCap", "epoch by test set"]
    assert [recall.lines[i].get_xdata()[0] for i in (1, 3)] == [1, 2]
    assert drawing.figure_png(figure).startswith(b"\x89PNG")
