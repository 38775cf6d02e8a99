from pathlib import Path

import pytest
import tunable_clip

from memecmd_utils.mtrclip import search, tuning
from memecmd_utils.settings import MtrclipSettings

SETTINGS = MtrclipSettings(batch_size=2048, trials=6)


def made_up(asked: list | None = None, dies_at: int | None = None):
    """A made-up objective: best at a learning rate of 1e-5."""
    asked = [] if asked is None else asked

    def score(settings: MtrclipSettings, folder: Path) -> tuple[float, int]:
        asked.append(settings)
        (folder / "weights").mkdir(parents=True, exist_ok=True)
        if len(asked) == dies_at:
            raise KeyboardInterrupt
        return 1 / (1 + abs(settings.learning_rate / 1e-5 - 1)), settings.epochs - 1

    return score


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna", reason="needs the `search` extra")


def test_the_space_is_the_papers(optuna, tmp_path: Path) -> None:
    asked = []
    table, best, place = search.run(made_up(asked), SETTINGS, tmp_path, 31823)
    assert len(table) == len(asked) == 6
    assert all(1e-6 <= s.learning_rate <= 4e-5 and 512 <= s.batch_size <= 2048 for s in asked)
    assert all(s.warmup_epochs in range(1, 6) and s.epochs in range(10, 27) for s in asked)
    assert len({s.learning_rate for s in asked}) == 6
    assert list(table["R@1"]) == sorted(table["R@1"], reverse=True)
    assert best.learning_rate == table.learning_rate[0] and best.batch_size == table.batch_size[0]
    assert best.betas == SETTINGS.betas and table.best_epoch[0] == best.epochs - 1
    MtrclipSettings.model_validate(best.model_dump())
    kept = list(tmp_path.glob("*/trial-*/weights"))
    assert kept == [place / "weights"]
    assert len(kept) == 1 and len(list(tmp_path.glob("*/trial-*"))) == 6


def test_a_killed_search_goes_on_as_an_unbroken_one(optuna, tmp_path: Path) -> None:
    whole, *_ = search.run(made_up(), SETTINGS, tmp_path / "whole", 5000)
    asked = []
    with pytest.raises(KeyboardInterrupt):
        search.run(made_up(asked, dies_at=4), SETTINGS, tmp_path / "killed", 5000)
    assert len(asked) == 4
    table, *_ = search.run(made_up(asked), SETTINGS, tmp_path / "killed", 5000)
    assert len(asked) == 4 + 3, "three were done, the fourth is tried again"
    assert asked[4] == asked[3], "with its own values, so that its folder is found again"
    columns = ["learning_rate", "batch_size", "warmup_epochs", "epochs", "R@1"]
    assert table[columns].equals(whole[columns])
    again, *_ = search.run(made_up(asked), SETTINGS, tmp_path / "killed", 5000)
    assert len(asked) == 7 and again.equals(table), "nothing is left to try"


def test_trials_of_other_settings_do_not_count(optuna, tmp_path: Path) -> None:
    asked = []
    search.run(made_up(asked), SETTINGS, tmp_path, 5000)
    changes = {"weight_decay": 0.2}, {"selection": "paper"}, {"model": "other"}, {"mask_same_template": True}
    for change in changes:
        search.run(made_up(asked), SETTINGS.model_copy(update=change), tmp_path, 5000)
    assert len(asked) == 5 * 6
    search.run(made_up(asked), SETTINGS.model_copy(update={"mini_batch_size": 1}), tmp_path, 5000)
    assert len(asked) == 5 * 6


def test_the_papers_number_of_trials(optuna, tmp_path: Path) -> None:
    table, *_ = search.run(made_up(), MtrclipSettings(), tmp_path, 40)
    assert len(table) == search.PAPER_TRIALS == 15
    assert table.batch_size.between(10, 40).all(), "no more than there are pairs"


def test_a_search_on_a_tiny_clip(optuna, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tunable_clip.need_tuning()
    import torch

    torch.set_num_threads(1)
    monkeypatch.setattr(search, "EPOCHS", (1, 2))
    monkeypatch.setattr(search, "LEARNING_RATES", (1e-4, 1e-3))
    model = tunable_clip.clip_folder(tmp_path / "tiny")
    pairs = tunable_clip.pairs(tmp_path / "drawn")
    settings = MtrclipSettings(model=str(model), batch_size=12, mini_batch_size=5, trials=2)
    table, best, place = search.search(pairs, pairs[:6], settings, tmp_path / "search", device="cpu")
    assert len(table) == 2 and table["R@1"].between(0, 1).all()
    assert (best.learning_rate, best.epochs) == (table.learning_rate[0], table.epochs[0])
    assert len(list((tmp_path / "search").glob("*/trial-*/weights/validation/model.safetensors"))) == 1
    (weights,) = (tmp_path / "search").glob("*/trial-*/weights/validation/model.safetensors")
    made = weights.stat().st_mtime_ns
    tuned = tuning.tune(pairs, pairs[:6], best, place, device="cpu")
    assert tuned.folder / "model.safetensors" == weights and weights.stat().st_mtime_ns == made, (
        "read, not tuned"
    )
