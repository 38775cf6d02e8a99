"""Fine-tuning CLIP on pairs of meme and text, with a batch far larger than the memory holds (2501.13851, 4).

`tune` can be killed at any time: called again with the same pairs and settings it goes on from the last
checkpoint and ends, on a CPU, with the same weights to the bit (a GPU's kernels may add in another order).
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils import files
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.clip import ModelMissing
from memecmd_utils.core.machine import STATUS_VARIABLE
from memecmd_utils.files import ExtraMissing, MemecmdError, paths
from memecmd_utils.mtrclip import loss
from memecmd_utils.mtrclip.training_data import Batches, Pair, TrainingPairs, TunedModel, quiet
from memecmd_utils.settings import MtrclipSettings

KEPT_CHECKPOINTS = 2
SETS = {"validation": "validation", "paper": "test"}
"""What a selection measures: the paper's code picks the epoch by the test set."""
DECIDING = {
    "batch_size", "mask_same_template", "mask_same_text", "augment", "epochs", "warmup_epochs",
    "learning_rate", "edge_learning_rate", "weight_decay", "betas", "epsilon",
}  # fmt: skip
"""Settings that decide what comes out; under other values of the rest a tuning may be resumed."""

LEARNING_RATES = (1e-6, 4e-5)
WARMUP_EPOCHS = (1, 5)
EPOCHS = (10, 26)
BATCH_SHARE = 4
"""The smallest batch is this part of the largest: 32 to 128 accumulated batches of 16 in the paper's code."""
RANDOM_TRIALS = 5
"""Before the model of the objective is asked."""


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


def make_trainer(
    model: TunedModel,
    pairs: Sequence[Pair],
    settings: MtrclipSettings,
    folder: Path,
    seed: int,
    measure: Callable[[], dict[str, float]],
    on_measured: Callable[[list[dict[str, Any]]], None],
) -> Any:
    """sentence-transformers' trainer of `pairs`, resumable; its checkpoints go to `folder`.

    `measure` is called after every epoch; `on_measured` then gets the log up to and with its numbers, before
    the checkpoint is written. Overridden are the data loader, so that order and cuts depend on seed and epoch
    alone (the trainer's own sampler and any augmentation draw from streams that stand elsewhere after a
    resumption in mid-epoch), the weights that decay, the schedule, and the model card, which would quote the
    training pairs.
    """
    with weights.importing("the trainer (sentence-transformers[train] 6.2 or later)", ModelMissing):
        import datasets
        import torch
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.base.evaluation import BaseEvaluator
        from torch.optim.lr_scheduler import LambdaLR
        from torch.utils.data import DataLoader
        from transformers import PrinterCallback, TrainerCallback
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


def tune(
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    test: Sequence[Pair],
    settings: MtrclipSettings,
    folder: Path,
    seed: int = 0,
    device: str | None = None,
) -> Tuned:
    """Fine-tune `settings.model` on `pairs`; everything goes to `folder`.

    Both selections are kept where `test` is not empty. A tuning that is finished is read, one that was broken
    off is resumed, one with other pairs or settings in the same folder is refused (`TuningError`). Raises
    `RuntimeError` where packages, weights or memory are wanting.
    """
    _check(pairs, validation, test, settings)
    sets = {"validation": validation} | ({"test": test} if test else {})
    plan = _plan(pairs, sets, settings, seed)
    if (before := _read_json(folder / "plan.json")) not in (None, plan):
        other = sorted(key for key in plan | before if plan.get(key) != before.get(key))
        raise TuningError(
            f"{folder} holds a tuning with other {', '.join(other)}: give another folder, or remove it"
        )
    if (folder / "tuned.json").is_file():
        return load_tuned(folder, settings.selection)
    model = TunedModel(settings.model, device)
    # The model's version anew: that of the hub is known only now where the model was just downloaded.
    files.write_json(folder / "plan.json", plan | {"model": _model_version(settings.model)})
    if (first := _read_json(folder / "before.json")) is None:
        first = _measured(model, sets)
        files.write_json(folder / "before.json", first)
    selections = [selection for selection, name in SETS.items() if name in sets]

    def keep_the_best(log: list[dict[str, Any]]) -> None:
        for selection in selections:
            key = f"eval_{SETS[selection]}_R@1"
            scores = [entry[key] for entry in log if key in entry]
            if scores[-1] > max(scores[:-1], default=-1.0):
                model.save(folder / "weights" / selection)

    states = folder / "checkpoints"
    trainer = make_trainer(
        model, pairs, settings, states, seed, lambda: _measured(model, sets), keep_the_best
    )
    last = last_checkpoint(states)
    try:
        with quiet():
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    except RuntimeError as error:
        raise _out_of_memory(error, settings) or error from error
    history, steps = _tables(trainer.state.log_history, first, selections)
    files.write_text(folder / "history.csv", history.to_csv(index=False))
    files.write_text(folder / "steps.csv", steps.to_csv(index=False))
    files.write_json(folder / "tuned.json", {"epochs": _best(history, selections)})
    shutil.rmtree(states)
    return load_tuned(folder, settings.selection)


def load_tuned(folder: Path, selection: str = "validation") -> Tuned:
    """Read a finished tuning, without torch; `FileNotFoundError` says what there is instead."""
    if (done := _read_json(folder / "tuned.json")) is None:
        state = "was broken off: run it again" if (folder / "plan.json").is_file() else "is none"
        raise FileNotFoundError(f"a finished tuning in {folder} {state}")
    if selection not in done["epochs"]:
        raise TuningError(f"selection {selection}: {folder} was tuned without test pairs")
    history, steps = (pd.read_csv(folder / f"{name}.csv") for name in ("history", "steps"))
    folders = {name: folder / "weights" / name for name in done["epochs"]}
    return Tuned(history, steps, done["epochs"], folders, selection)


def _measured(model: TunedModel, sets: Mapping[str, Sequence[Pair]]) -> dict[str, float]:
    measured = {"log_scale": model.log_scale()}
    for name, pairs in sets.items():
        measured |= model.measure(pairs, name)
    return measured


def _check(
    pairs: Sequence[Pair], validation: Sequence[Pair], test: Sequence[Pair], settings: MtrclipSettings
) -> None:
    if len(pairs) < 2 or not validation:
        raise TuningError(
            f"{len(pairs)} pairs to tune on and {len(validation)} to validate on: at least 2 and 1 are needed"
        )
    if settings.selection == "paper" and not test:
        raise TuningError("selection: paper picks the epoch by the test set: give the test pairs")
    every = [*pairs, *validation, *test]
    if missing := [pair.image for pair in every if not pair.image.is_file()]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(every)} images are not there (the first: {missing[0]}): fetch them, or "
            "leave their pairs out"
        )
    if blank := sum(not pair.text.strip() for pair in every):
        raise TuningError(f"{blank} of {len(every)} pairs have a blank text: leave them out")


def _plan(
    pairs: Sequence[Pair], sets: Mapping[str, Sequence[Pair]], settings: MtrclipSettings, seed: int
) -> dict[str, Any]:
    """What decides the weights that come out. Images count by name and size, weights by version."""
    deciding = settings.model_dump(mode="json", include=DECIDING)
    digests = {name: _digest(some) for name, some in {"pairs": pairs, **sets}.items()}
    return {"model": _model_version(settings.model), "seed": seed, **digests, **deciding}


def _model_version(name: str) -> str:
    folder = paths.root / name
    if folder.is_dir():
        return f"{folder.name}@{weights.folder_digest(folder)}"
    return name if "@" in name else f"{name}@{weights.hub_commit(name) or 'main'}"


def _digest(pairs: Sequence[Pair]) -> str:
    digest = hashlib.sha256()
    for image, text, template in pairs:
        digest.update(files.dumps([image.name, image.stat().st_size, text, template]).encode())
    return digest.hexdigest()[: weights.DIGITS]


def _read_json(path: Path) -> dict[str, Any] | None:
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


def search(
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    test: Sequence[Pair],
    settings: MtrclipSettings,
    folder: Path,
    seed: int = 0,
    device: str | None = None,
) -> tuple[MtrclipSettings, Path]:
    """Tune `settings.trials` times; give the best settings and their folder, whose weights alone stay.

    With both `tune` reads what the best trial made. The paper's code searches with Ray Tune (BayesOpt, 15
    trials) and scores a trial by the test set's R@1; here it is optuna's TPE, and a trial counts by the
    settings' selection. Trials that are done are kept in `folder/search.db`, one that was killed goes on from
    its last checkpoint.
    """

    def score(tried: MtrclipSettings, place: Path) -> float:
        tuned = tune(pairs, validation, test, tried, place, seed, device)
        row = tuned.history.loc[tuned.history.epoch == tuned.epoch].iloc[0]
        return float(row[f"{SETS[settings.selection]}_R@1"])

    return run_trials(score, settings, folder, len(pairs), seed)


def run_trials(
    score: Callable[[MtrclipSettings, Path], float],
    settings: MtrclipSettings,
    folder: Path,
    n_pairs: int,
    seed: int = 0,
) -> tuple[MtrclipSettings, Path]:
    """Search with any `score(settings, folder) -> R@1`; gives what `search` gives."""
    try:
        import optuna
    except ImportError as error:
        raise ExtraMissing(
            "a search needs optuna: pip install -e '.[search]', or set mtrclip.trials=0 and tune=true "
            "to tune with the settings as they are"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = _study_name(settings, n_pairs, seed)
    places = folder / name
    places.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{folder / 'search.db'}",
        study_name=name,
        direction="maximize",
        load_if_exists=True,
    )
    states = optuna.trial.TrialState
    # A trial that was killed is still called running: its values are tried first, in its own folder, where
    # the tuning takes up its last checkpoint.
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)
        study.enqueue_trial(trial.params)
    while (done := len(study.get_trials(deepcopy=False, states=(states.COMPLETE,)))) < settings.trials:
        # By the number of trials, so that a resumed search goes on as an unbroken one would.
        study.sampler = optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=RANDOM_TRIALS)
        trial = study.ask()
        tried = _suggested(trial, settings, n_pairs)
        study.tell(trial, score(tried, places / _trial_name(trial.params)))
        best = places / _trial_name(study.best_trial.params)
        for others in set(places.glob("trial-*")) - {best}:
            shutil.rmtree(others / "weights", ignore_errors=True)
    params = study.best_trial.params
    return settings.model_copy(update=params), places / _trial_name(params)


def _suggested(trial: Any, settings: MtrclipSettings, n_pairs: int) -> MtrclipSettings:
    largest = min(settings.batch_size, n_pairs)
    smallest = max(2, largest // BATCH_SHARE)
    return settings.model_copy(
        update={
            "learning_rate": trial.suggest_float("learning_rate", *LEARNING_RATES, log=True),
            "batch_size": trial.suggest_int("batch_size", smallest, largest, log=True),
            "warmup_epochs": float(trial.suggest_int("warmup_epochs", *WARMUP_EPOCHS)),
            "epochs": trial.suggest_int("epochs", *EPOCHS),
        }
    )


def _trial_name(params: dict[str, Any]) -> str:
    digest = hashlib.sha256(files.dumps(sorted(params.items())).encode()).hexdigest()
    return f"trial-{digest[: weights.DIGITS]}"


def _study_name(settings: MtrclipSettings, n_pairs: int, seed: int) -> str:
    """Made of what every trial shares, so that trials of other settings do not count."""
    searched = {"learning_rate", "warmup_epochs", "epochs"}
    shared = settings.model_dump(mode="json", include=DECIDING - searched | {"selection", "model", "text"})
    text = files.dumps([sorted(shared.items()), n_pairs, seed])
    return f"tuning-{hashlib.sha256(text.encode()).hexdigest()[: weights.DIGITS]}"
