"""A made-up run with four strategies, its rating form, and made-up answers. No person gave any of them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from made_up import dialogue, meme, placement

from memecmd_utils import files, people, schemas
from memecmd_utils.people import Form, HumanRating, KeyRow
from memecmd_utils.schemas import DIMENSIONS

QUALITY = {"greedy": 85.0, "sampling": 60.0, "random": 30.0, "random_same_turns": 35.0}
NASTY = "</script><img src=x onerror=alert(1)><!-- \u2028 {{ 7*7 }} & \"q\" 'a'"
MEMES = {name: meme(name).model_copy(update={"file": f"{name}.png"}) for name in ("m1", "m2", "m3")}


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


def form(n_items: int = 24, seed: int = 5, of: dict | None = None) -> tuple[Form, list[KeyRow]]:
    of = of or dialogues()
    return people.choose(placements(of), of, n_items=n_items, seed=seed)


def answers(key: Sequence[KeyRow], raters: Sequence[str] = ("r1", "r2", "r3"), **changes: Any) -> list:
    """Made-up answers of raters who like strategies by `QUALITY`, each with noise of her own."""
    rng = np.random.default_rng(0)
    strategies = {row.item: row.strategy for row in reversed(key)}
    base = {item: QUALITY[strategy] + rng.normal(0, 5) for item, strategy in strategies.items()}
    found = []
    for rater in raters:
        for number, (item, middle) in enumerate(base.items()):
            given = {name: float(np.clip(round(middle + rng.normal(0, 8)), 0, 100)) for name in DIMENSIONS}
            time = datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(seconds=20 * number)
            values = {"form": key[0].form, "item": item, "rater": rater, "at": time, "made_up": True}
            found.append(HumanRating(**{**values, "seconds": 20, **given, **changes}))
    return found


def write_answers(path: Path, given: Sequence[Any]) -> Path:
    """Write answers in the form's own columns, as its page saves them."""
    rows = ({**answer.model_dump(mode="json"), "made_up": int(answer.made_up)} for answer in given)
    return files.write_csv(path, people.COLUMNS, rows)
