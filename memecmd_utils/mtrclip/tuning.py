"""Fine-tuning CLIP on pairs of meme and text, with a batch far larger than the memory holds (2501.13851, 4).

`tune` can be killed at any time: called again with the same pairs and settings it goes on from the last
checkpoint and ends, on a CPU, with the same weights to the bit (a GPU's kernels may add in another order).
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils.core import paths, storage
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.clip import ModelMissing
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.core.status_line import STATUS_VARIABLE
from memecmd_utils.mtrclip import loss
from memecmd_utils.mtrclip.training_data import Batches, Pair, TrainingPairs, TunedModel, quiet
from memecmd_utils.settings import MtrclipSettings

# --- Learning rate and memory of a tuning, step by step; neither needs torch


ADAM_BYTES = 16
"""Of a weight in float32: itself, its gradient and Adam's two moments."""
LAYER_BYTES = {"float32": 84, "half": 54}
"""Of a token's width in one layer of CLIP, kept for the backward pass; counted on torch 2.15, where fused
attention keeps no matrix and half precision keeps the residual sums and layer norms in float32."""


def learning_rate(step: int, steps: int, warmup: float, settings: MtrclipSettings) -> float:
    """Learning rate of update `step` of `steps`, from 0: linear from the edge to the peak, a cosine back.

    `warmup` counts steps. Source: Section 4 and the code of 2501.13851: 1e-6, 1e-5, 1e-6.
    """
    edge, peak = settings.edge_learning_rate, settings.learning_rate
    if step < warmup:
        return edge + (peak - edge) * step / warmup
    rest = max(steps - 1 - warmup, 1e-9)
    way = min(1.0, (step - warmup) / rest)
    return edge + (peak - edge) * (1 + math.cos(math.pi * way)) / 2


def memory(config: Any, parameters: int, settings: MtrclipSettings, half: bool = True) -> dict[str, int]:
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


# --- sentence-transformers' trainer, with what a resumable tuning of CLIP needs besides
# Overridden, and why: the data loader, so that order and cuts depend on seed and epoch alone (the
# trainer's own sampler and any augmentation draw from streams that stand elsewhere after a resumption in
# mid-epoch); the weights that decay; the schedule; the model card, which would quote the training pairs.


KEPT_CHECKPOINTS = 2
Measures = Callable[[], dict[str, float]]


def make(
    model: TunedModel,
    pairs: Sequence[Pair],
    settings: MtrclipSettings,
    folder: Path,
    seed: int,
    measure: Measures,
    on_measured: Callable[[list[dict[str, Any]]], None],
) -> Any:
    """Give the trainer of `pairs`; its checkpoints go to `folder`.

    `measure` is called after every epoch; `on_measured` then gets the log up to and with its numbers, before
    the checkpoint is written.
    """
    try:
        import datasets
        import torch
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.base.evaluation import BaseEvaluator
        from torch.optim.lr_scheduler import LambdaLR
        from torch.utils.data import DataLoader
        from transformers import PrinterCallback, TrainerCallback
    except (ImportError, RuntimeError) as error:
        raise ModelMissing(
            weights.install_hint("the trainer (sentence-transformers[train] 6.2 or later)", error)
        ) from error
    batches = Batches(len(pairs), settings.batch_size, seed)
    steps = len(batches) * settings.epochs
    columns = [n for n, on in enumerate((settings.mask_same_template, settings.mask_same_text)) if on]

    class Evaluator(BaseEvaluator):
        def __call__(self, *_: Any, **__: Any) -> dict[str, float]:
            return measure()

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # The loss clamps as well, but there the gradient ends: a scale beyond would never come back.
            loss.find_log_scale(model.model).data.clamp_(*loss.LOG_SCALE_RANGE)
            # Measured within the last step, not after the epoch, so that its checkpoint holds the numbers.
            if state.global_step % len(batches) == 0:
                control.should_evaluate = control.should_save = True

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            on_measured(state.log_history)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if not math.isfinite(logs.get("loss", 0.0)):
                raise FloatingPointError(
                    f"the loss is {logs['loss']} at step {state.global_step}: set mtrclip.learning_rate lower"
                )
            status = os.environ.get(STATUS_VARIABLE)
            if status and "loss" in logs:
                line = f"tuning step {state.global_step:,}/{steps:,} · loss {logs['loss']:.3f}"
                Path(status).write_text(line, encoding="utf-8")

    class Trainer(SentenceTransformerTrainer):
        def get_train_dataloader(self) -> Any:
            self.accelerator.even_batches = False
            loader = DataLoader(
                TrainingPairs(pairs, model.pictures, seed, settings.augment),
                batch_sampler=batches,
                collate_fn=model.collator,
                num_workers=settings.workers,
                pin_memory=model.device == "cuda",
            )
            return self.accelerator.prepare(loader)

        def get_decay_parameter_names(self, model: Any) -> list[str]:
            # Biases, layer norms, the class embedding and the temperature have one dimension or none.
            return [name for name, parameter in model.named_parameters() if parameter.ndim > 1]

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            warmup = settings.warmup_epochs * len(batches)

            def factor(step: int) -> float:
                at = min(step, num_training_steps - 1)
                return learning_rate(at, num_training_steps, warmup, settings) / settings.learning_rate

            if self.lr_scheduler is None:
                self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
                self._created_lr_scheduler = True
            return self.lr_scheduler

        def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
            """None: a card would quote pairs and name files of this machine."""

    cuda = model.device == "cuda"
    bf16 = cuda and torch.cuda.is_bf16_supported()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batches.batch_size,
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_epsilon=settings.epsilon,
        optim="adamw_torch",
        max_grad_norm=0.0,
        seed=seed,
        use_cpu=not cuda,
        bf16=bf16,
        fp16=cuda and not bf16,
        save_strategy="steps",
        save_steps=settings.checkpoint_steps,
        save_total_limit=KEPT_CHECKPOINTS,
        eval_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
    )
    # The trainer asks for a dataset of its own kind; what is read comes from the loader above.
    named = datasets.Dataset.from_dict(
        {"image": [p.image.name for p in pairs], "text": [p.text for p in pairs]}
    )
    trainer = Trainer(
        model=model.model,
        args=arguments,
        train_dataset=named,
        loss=loss.cached_loss(model.model, settings.mini_batch_size, columns),
        evaluator=Evaluator(),
        callbacks=[Steps()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def last_checkpoint(folder: Path) -> Path | None:
    """Newest checkpoint in `folder` that was written to its end; halves, left by a kill, are passed over."""
    found = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*")}
    for step in sorted(found, reverse=True):
        try:
            state = json.loads((found[step] / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            continue
        if state["global_step"] == step:
            return found[step]
    return None


SETS = {"validation": "validation", "paper": "test"}
"""What a selection measures: the paper's code picks the epoch by the test set."""
DECIDING = {
    "batch_size", "mask_same_template", "mask_same_text", "augment", "epochs", "warmup_epochs",
    "learning_rate", "edge_learning_rate", "weight_decay", "betas", "epsilon",
}  # fmt: skip
"""Settings that decide what comes out; under other values of the rest a tuning may be resumed."""


class TuningError(MemecmdError, ValueError):
    """Pairs, settings or a folder that no tuning can go on with; the message says what to do."""


@dataclass(frozen=True)
class Tuned:
    """A finished tuning. Epoch 0 in `history` is the model before it, which no selection may pick."""

    history: pd.DataFrame
    """One row an epoch: step, mean loss, log of the scale, R@1 of both sets (0 to 1), who took it."""
    steps: pd.DataFrame
    """One row a step: loss and learning rate."""
    epochs: dict[str, int]
    """Best epoch by selection, the first of equals; `paper` only where test pairs were given."""
    folders: dict[str, Path]
    """Weights by selection, as transformers saves them: `clip.load` takes these."""
    selection: str

    @property
    def epoch(self) -> int:
        """Best epoch by the selection of the settings."""
        return self.epochs[self.selection]

    @property
    def folder(self) -> Path:
        """Weights of that epoch."""
        return self.folders[self.selection]


def tune(
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    settings: MtrclipSettings,
    folder: Path,
    *,
    test: Sequence[Pair] | None = None,
    seed: int = 0,
    model: str | None = None,
    device: str | None = None,
) -> Tuned:
    """Fine-tune `model` (default: `settings.model`) on `pairs`; everything goes to `folder`.

    Both selections are kept where `test` is given. A tuning that is finished is read, one that was broken
    off is resumed, one with other pairs or settings in the same folder is refused (`TuningError`). Raises
    `RuntimeError` where packages, weights or memory are wanting.
    """
    _check(pairs, validation, settings, test)
    name = model or settings.model
    sets = {"validation": list(validation)} | ({"test": list(test)} if test else {})
    plan = _plan(name, pairs, sets, settings, seed)
    if (before := _read(folder / "plan.json")) not in (None, plan):
        other = sorted(key for key in plan | before if plan.get(key) != before.get(key))
        raise TuningError(
            f"{folder} holds a tuning with other {', '.join(other)}: give another folder, or remove it"
        )
    if (folder / "tuned.json").is_file():
        return load_tuned(folder, settings.selection)
    tuned = TunedModel(name, device)
    # The model's version anew: that of the hub is known only now where the model was just downloaded.
    storage.write_json(folder / "plan.json", plan | {"model": _version(name)})
    if (first := _read(folder / "before.json")) is None:
        first = _measured(tuned, sets)
        storage.write_json(folder / "before.json", first)
    selections = [selection for selection, of in SETS.items() if of in sets]

    def keep_the_best(log: list[dict[str, Any]]) -> None:
        for selection in selections:
            scores = [entry[_key(selection)] for entry in log if _key(selection) in entry]
            if scores[-1] > max(scores[:-1], default=-1.0):
                tuned.save(folder / "weights" / selection)

    states = folder / "checkpoints"
    trainer = make(tuned, pairs, settings, states, seed, lambda: _measured(tuned, sets), keep_the_best)
    last = last_checkpoint(states)
    try:
        with quiet():
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    except RuntimeError as error:
        raise _out_of_memory(error, settings) or error from error
    log = trainer.state.log_history
    history, steps = _tables(log, first, selections)
    storage.write_text(folder / "history.csv", history.to_csv(index=False))
    storage.write_text(folder / "steps.csv", steps.to_csv(index=False))
    storage.write_json(folder / "tuned.json", {"epochs": _best(history, selections)})
    shutil.rmtree(states)
    return load_tuned(folder, settings.selection)


def load_tuned(folder: Path, selection: str = "validation") -> Tuned:
    """Read a finished tuning, without torch; `FileNotFoundError` says what there is instead."""
    if (done := _read(folder / "tuned.json")) is None:
        state = "was broken off: run it again" if (folder / "plan.json").is_file() else "is none"
        raise FileNotFoundError(f"a finished tuning in {folder} {state}")
    if selection not in done["epochs"]:
        raise TuningError(f"selection {selection}: {folder} was tuned without test pairs")
    history, steps = (pd.read_csv(folder / f"{name}.csv") for name in ("history", "steps"))
    folders = {name: folder / "weights" / name for name in done["epochs"]}
    return Tuned(history, steps, done["epochs"], folders, selection)


def _key(selection: str) -> str:
    return f"eval_{SETS[selection]}_R@1"


def _measured(tuned: TunedModel, sets: dict[str, list[Pair]]) -> dict[str, float]:
    made = {"log_scale": tuned.log_scale()}
    for name, pairs in sets.items():
        made |= tuned.measure(pairs, name)
    return made


def _check(
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    settings: MtrclipSettings,
    test: Sequence[Pair] | None,
) -> None:
    if len(pairs) < 2 or not validation:
        raise TuningError(
            f"{len(pairs)} pairs to tune on and {len(validation)} to validate on: at least 2 and 1 are needed"
        )
    if settings.selection == "paper" and not test:
        raise TuningError("selection: paper picks the epoch by the test set: give the test pairs")
    every = [*pairs, *validation, *(test or ())]
    missing = [pair.image for pair in every if not Path(pair.image).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(every)} images are not there (the first: {missing[0]}): fetch them, or "
            "leave their pairs out"
        )
    if blank := sum(not pair.text.strip() for pair in every):
        raise TuningError(f"{blank} of {len(every)} pairs have a blank text: leave them out")


def _plan(
    name: str, pairs: Sequence[Pair], sets: dict[str, list[Pair]], settings: MtrclipSettings, seed: int
) -> dict[str, Any]:
    """What decides the weights that come out. Images count by name and size, weights by version."""
    kept = settings.model_dump(mode="json", include=DECIDING)
    digests = {of: _digest(some) for of, some in {"pairs": pairs, **sets}.items()}
    return {"model": _version(name), "seed": seed, **digests, **kept}


def _version(name: str) -> str:
    folder = paths.root / name
    if folder.is_dir():
        return f"{folder.name}@{weights.folder_digest(folder)}"
    return name if "@" in name else f"{name}@{weights.hub_commit(name) or 'main'}"


def _digest(pairs: Sequence[Pair]) -> str:
    digest = hashlib.sha256()
    for image, text, template in pairs:
        line = [Path(image).name, Path(image).stat().st_size, text, template]
        digest.update(storage.dumps(line).encode())
    return digest.hexdigest()[: weights.DIGITS]


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _tables(
    log: list[dict[str, Any]], first: dict[str, float], selections: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    names = [name for of in ("log_scale", *SETS.values()) for name in sorted(first) if name.startswith(of)]
    made = [{k: entry[k] for k in ("step", "loss", "learning_rate")} for entry in log if "loss" in entry]
    steps = pd.DataFrame(made)
    rows, done = [{"epoch": 0, "step": 0, "loss": float("nan")} | {n: first[n] for n in names}], 0
    for entry in log:
        if "eval_log_scale" in entry:
            numbers = {name: entry[f"eval_{name}"] for name in names}
            losses = steps.loss[(steps.step > done) & (steps.step <= entry["step"])]
            done = entry["step"]
            rows.append({"epoch": len(rows), "step": done, "loss": losses.mean(), **numbers})
    history = pd.DataFrame(rows)
    best = _best(history, selections)
    history["best_by"] = [" ".join(s for s, epoch in best.items() if epoch == n) for n in history.epoch]
    return history, steps


def _best(history: pd.DataFrame, selections: list[str]) -> dict[str, int]:
    tuned = history[history.epoch > 0]
    return {s: int(tuned.epoch[tuned[f"{SETS[s]}_R@1"].idxmax()]) for s in selections}


def _out_of_memory(error: RuntimeError, settings: MtrclipSettings) -> RuntimeError | None:
    """The error to raise in its place where the memory was too small; None for any other."""
    said = str(error).lower()
    if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in said:
        return None
    if settings.mini_batch_size == 1:
        return RuntimeError(
            "one pair does not fit the memory beside the model: set mtrclip.model to a smaller one"
        )
    return RuntimeError(
        f"a mini-batch of {settings.mini_batch_size} pairs does not fit the memory: set "
        f"mtrclip.mini_batch_size={settings.mini_batch_size // 2}. The batch of the loss stays "
        f"{settings.batch_size}, and the tuning goes on from its last checkpoint"
    )
