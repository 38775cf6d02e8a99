"""A made-up run with four strategies, its rating form, and made-up answers. No person gave any of them."""

from pathlib import Path

import numpy as np
import pandas as pd
from made_up import dialogue, meme, placement

from memecmd_utils import files, people, schemas
from memecmd_utils.people import Form, HumanRating
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


def form(n_items: int = 24, seed: int = 5, of: dict | None = None) -> Form:
    of = of or dialogues()
    return people.choose(placements(of), of, n_items=n_items, seed=seed)


def answers(made: Form) -> pd.DataFrame:
    """Made-up answers of three raters who like strategies by `QUALITY`, each with noise of her own."""
    rng = np.random.default_rng(0)
    strategies = made.key.drop_duplicates("item").set_index("item").strategy
    base = {item: QUALITY[strategy] + rng.normal(0, 5) for item, strategy in strategies.items()}
    found = []
    for rater in ("r1", "r2", "r3"):
        for item, middle in base.items():
            given = {name: float(np.clip(round(middle + rng.normal(0, 8)), 0, 100)) for name in DIMENSIONS}
            about = {"form": made.form, "item": item, "rater": rater, "at": "2026-01-31T12:00:00Z"}
            found.append(HumanRating(**about, **given).model_dump())
    return pd.DataFrame(found)


def write_answers(path: Path, given: pd.DataFrame) -> Path:
    """Write answers in the form's own columns, as its page saves them."""
    rows = given.assign(at=[at.isoformat() for at in given["at"]], made_up=given.made_up.astype(int))
    return files.write_frame(path, rows[list(HumanRating.model_fields)])
