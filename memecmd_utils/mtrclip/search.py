"""Search for the hyperparameters of a tuning, on the validation set; needs the `search` extra (optuna).

The paper's code searches with Ray Tune (BayesOpt, 15 trials) and scores a trial by the TEST set's R@1.
Here it is optuna's TPE; a trial counts by the validation set, unless `selection: paper` asks for the other.
"""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils.core import storage
from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.core.errors import ExtraMissing
from memecmd_utils.mtrclip import tuning
from memecmd_utils.mtrclip.training_data import Pair
from memecmd_utils.settings import MtrclipSettings

PAPER_TRIALS = 15
LEARNING_RATES = (1e-6, 4e-5)
WARMUP_EPOCHS = (1, 5)
EPOCHS = (10, 26)
BATCH_SHARE = 4
"""The smallest batch is this part of the largest: 32 to 128 accumulated batches of 16 in the paper's code."""
RANDOM_TRIALS = 5
"""Before the model of the objective is asked."""
STORAGE = "search.db"


def search(
    pairs: Sequence[Pair],
    validation: Sequence[Pair],
    settings: MtrclipSettings,
    folder: Path,
    *,
    test: Sequence[Pair] | None = None,
    seed: int = 0,
    model: str | None = None,
    device: str | None = None,
) -> tuple[pd.DataFrame, MtrclipSettings, Path]:
    """Tune `settings.trials` times (0: 15, as the paper); give trials, best settings and their folder.

    With these settings and this folder `tuning.tune` reads what the best trial made. Resumable: trials
    that are done are kept in `folder/search.db`, one that was killed goes on from its last checkpoint. Of the
    weights only the best trial's stay.
    """

    def score(tried: MtrclipSettings, place: Path) -> tuple[float, int]:
        tuned = tuning.tune(pairs, validation, tried, place, test=test, seed=seed, model=model, device=device)
        row = tuned.history.loc[tuned.history.epoch == tuned.epoch].iloc[0]
        return float(row[f"{tuning.SETS[settings.selection]}_R@1"]), tuned.epoch

    return run(score, settings, folder, len(pairs), seed)


def run(
    score: Callable[[MtrclipSettings, Path], tuple[float, int]],
    settings: MtrclipSettings,
    folder: Path,
    n_pairs: int,
    seed: int = 0,
) -> tuple[pd.DataFrame, MtrclipSettings, Path]:
    """Search with any `score(settings, folder of the trial) -> (R@1, epoch)`; see `search`."""
    optuna = _optuna()
    name = _plan(settings, n_pairs, seed)
    places = folder / name
    places.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{folder / STORAGE}",
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
    wanted = settings.trials or PAPER_TRIALS
    while (done := len(study.get_trials(deepcopy=False, states=(states.COMPLETE,)))) < wanted:
        # By the number of trials, so that a resumed search goes on as an unbroken one would.
        study.sampler = optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=RANDOM_TRIALS)
        trial = study.ask()
        tried = _suggested(trial, settings, n_pairs)
        value, epoch = score(tried, places / _folder_name(trial.params))
        trial.set_user_attr("epoch", epoch)
        study.tell(trial, value)
        _drop_others(study, places)
    best = settings.model_copy(update=study.best_trial.params)
    return _table(study), best, places / _folder_name(study.best_trial.params)


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


def _table(study: Any) -> pd.DataFrame:
    """One row a finished trial, best first."""
    from optuna.trial import TrialState

    rows = [
        {"trial": n, **trial.params, "R@1": trial.value, "best_epoch": trial.user_attrs["epoch"]}
        for n, trial in enumerate(study.get_trials(states=(TrialState.COMPLETE,)), 1)
    ]
    return pd.DataFrame(rows).sort_values("R@1", ascending=False, kind="stable", ignore_index=True)


def _drop_others(study: Any, folder: Path) -> None:
    best = _folder_name(study.best_trial.params)
    for weights in folder.glob("trial-*/weights"):
        if weights.parent.name != best:
            shutil.rmtree(weights)


def _folder_name(params: dict[str, Any]) -> str:
    digest = hashlib.sha256(storage.dumps(sorted(params.items())).encode()).hexdigest()
    return f"trial-{digest[: encoders_weights.DIGITS]}"


def _plan(settings: MtrclipSettings, n_pairs: int, seed: int) -> str:
    """Name of the study: what every trial shares, so that trials of other settings do not count."""
    searched = {"learning_rate", "warmup_epochs", "epochs"}
    shared = tuning.DECIDING - searched | {"selection", "model", "text"}
    kept = settings.model_dump(mode="json", include=shared)
    text = storage.dumps([sorted(kept.items()), n_pairs, seed])
    return f"tuning-{hashlib.sha256(text.encode()).hexdigest()[: encoders_weights.DIGITS]}"


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ExtraMissing(
            "a search needs optuna: pip install -e '.[search]', or set mtrclip.trials=0 and tune=true "
            "to tune with the settings as they are"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
