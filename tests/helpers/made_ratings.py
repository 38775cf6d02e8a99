"""A made-up run with four strategies, its forms, and made-up answers. No person gave any of them."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from made_up import dialogue, meme, meme_files, placement

from memecmd_utils import files as storage
from memecmd_utils import people, schemas
from memecmd_utils.forms import Form
from memecmd_utils.people import HumanRating, KeyRow
from memecmd_utils.schemas import DIMENSIONS

QUALITY = {"greedy": 85.0, "sampling": 60.0, "random": 30.0, "random_same_turns": 35.0}
NASTY = "</script><img src=x onerror=alert(1)><!-- \u2028 {{ 7*7 }} & \"q\" 'a'"
MEMES = {name: meme(name) for name in ("m1", "m2", "m3")}


def dialogues(number: int = 12, turns: int = 12, text: str = "") -> dict[str, schemas.Dialogue]:
    return {
        f"made-{d}": dialogue(f"made-{d}", tuple(f"第{d}段第{t}句{text}" for t in range(1, turns + 1)))
        for d in range(number)
    }


def placements(of: dict[str, schemas.Dialogue], seed: int = 1) -> list[schemas.Placement]:
    """Three strategies share their turns, as behind one gate; Random has turns of its own."""
    rng = np.random.default_rng(seed)
    found = []
    for name, one in of.items():
        gate = sorted(rng.choice(range(2, len(one.turns) + 1), size=4, replace=False).tolist())
        own = sorted(rng.choice(range(2, len(one.turns) + 1), size=5, replace=False).tolist())
        for strategy in QUALITY:
            for turn in own if strategy == "random" else gate:
                chosen = f"m{rng.integers(1, 4)}"
                found.append(placement(turn, chosen, dialogue_id=name, strategy=strategy))
    return found


def form(kind: str, n_items: int = 24, seed: int = 5, **changes: object) -> tuple[Form, list[KeyRow]]:
    of = changes.pop("of", None) or dialogues()
    return people.choose(placements(of), of, MEMES, kind=kind, n_items=n_items, seed=seed, **changes)


def files(folder: Path) -> dict[str, Path]:
    return meme_files(folder / "memes")


def answers(
    key: Sequence[KeyRow], raters: Sequence[str] = ("r1", "r2", "r3"), *, noise: float = 8.0, seed: int = 0,
    source: str = "made up", quality: Callable[[str], float] = QUALITY.get,
) -> list[HumanRating]:  # fmt: skip
    """Made-up answers of raters who like strategies by `quality`, each with noise of her own."""
    rng = np.random.default_rng(seed)
    sides: dict[str, dict[str, str]] = {}
    for row in key:
        sides.setdefault(row.item, {}).setdefault(row.side, row.strategy)
    kinds = {row.item: (row.form, row.kind, row.dialogue_id) for row in key}
    mood = {name: rng.normal(0, 5) for _, _, name in kinds.values()}
    base = {item: rng.normal(0, 5) for item in sides}
    found = []
    for rater in raters:
        for number, (item, strategies) in enumerate(sides.items()):
            name, kind, at = kinds[item]
            given: dict[str, object] = {}
            if kind == "rating":
                middle = quality(strategies[""]) + mood[at] + base[item]
                for dimension in DIMENSIONS:
                    given[dimension] = float(np.clip(round(middle + rng.normal(0, noise)), 0, 100))
            else:
                ahead = quality(strategies["A"]) - quality(strategies["B"]) + rng.normal(0, 2 * noise)
                given["choice"] = "no difference" if abs(ahead) < 4 else "A" if ahead > 0 else "B"
            time = datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(seconds=20 * number)
            found.append(
                HumanRating(
                    source=source, form=name, item=item, rater=rater, kind=kind, seconds=20, at=time, **given
                )
            )
    return found


def write_answers(path: Path, model: type, given: Sequence) -> Path:
    """Write answers in the form's own columns, as its page saves them."""
    rows = (
        {**a.model_dump(mode="json", exclude={"source"}), "made_up": int(a.source == "made up")}
        for a in given
    )
    return storage.write_csv(path, model.columns, rows)
