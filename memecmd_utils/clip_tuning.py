"""Fine-tuning CLIP on pairs of meme and text, with a batch far larger than the memory holds (2501.13851, 4).

`tune` can be killed at any time: called again with the same pairs and settings it goes on from the last
checkpoint and ends, on a CPU, with the same weights to the bit (a GPU's kernels may add in another order).
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils import model_files, paths, storage, tuning_trainer
from memecmd_utils.errors import MemecmdError
from memecmd_utils.template_settings import MemeRetrieval
from memecmd_utils.tuning_data import Pair
from memecmd_utils.tuning_model import TunedModel, quiet

__all__ = ["Pair", "Tuned", "load_tuned", "tune"]

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
    """Weights by selection, as transformers saves them: `clip_models.load` takes these."""
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
    settings: MemeRetrieval,
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
    trainer = tuning_trainer.make(
        tuned, pairs, settings, states, seed, lambda: _measured(tuned, sets), keep_the_best
    )
    last = tuning_trainer.last_checkpoint(states)
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
    settings: MemeRetrieval,
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
    name: str, pairs: Sequence[Pair], sets: dict[str, list[Pair]], settings: MemeRetrieval, seed: int
) -> dict[str, Any]:
    """What decides the weights that come out. Images count by name and size, weights by version."""
    kept = settings.model_dump(mode="json", include=DECIDING)
    digests = {of: _digest(some) for of, some in {"pairs": pairs, **sets}.items()}
    return {"model": _version(name), "seed": seed, **digests, **kept}


def _version(name: str) -> str:
    folder = paths.root / name
    if folder.is_dir():
        return f"{folder.name}@{model_files.folder_digest(folder)}"
    return name if "@" in name else f"{name}@{model_files.hub_commit(name) or 'main'}"


def _digest(pairs: Sequence[Pair]) -> str:
    digest = hashlib.sha256()
    for image, text, template in pairs:
        line = [Path(image).name, Path(image).stat().st_size, text, template]
        digest.update(storage.dumps(line).encode())
    return digest.hexdigest()[: model_files.DIGITS]


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


def _out_of_memory(error: RuntimeError, settings: MemeRetrieval) -> RuntimeError | None:
    """The error to raise in its place where the memory was too small; None for any other."""
    said = str(error).lower()
    if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in said:
        return None
    if settings.mini_batch_size == 1:
        return RuntimeError(
            "one pair does not fit the memory beside the model: set meme_retrieval.model to a smaller one"
        )
    return RuntimeError(
        f"a mini-batch of {settings.mini_batch_size} pairs does not fit the memory: set "
        f"meme_retrieval.mini_batch_size={settings.mini_batch_size // 2}. The batch of the loss stays "
        f"{settings.batch_size}, and the tuning goes on from its last checkpoint"
    )
