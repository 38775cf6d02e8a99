"""Small made-up records, pictures and vectors for the tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from memecmd_utils import files, schemas, settings, statistics

TEXTS = (
    "周末去爬山吗？",
    "天气预报说有雨",
    "那就在家煮火锅",
    "我带毛肚和虾滑",
    "锅底要辣的",
    "说好了，六点见",
)
NAME = "news-made-1"
COLOURS = {"m1": (200, 30, 40), "m2": (20, 60, 210), "m3": (120, 40, 160)}


def dialogue(dialogue_id: str = NAME, texts: tuple[str, ...] = TEXTS) -> schemas.Dialogue:
    turns, summaries = [], []
    of_chat = {"scenario": "两人商量周末安排", "emotion": "轻松", "motivation": "想定下来"}
    for turn, text in enumerate(texts, start=1):
        at = {"turn": turn, "speaker": "AB"[(turn - 1) % 2]}
        turns.append(schemas.Turn(source="authored", text=text, **at))
        if turn > 1:
            summaries.append(schemas.Summary(source="tiny-model@q4", **at, **of_chat))
    about = {"kind": "news", "ref": "sports-1", "title": "周末计划", "name_a": "阿橙", "name_b": "老柏"}
    parts = {"turns": turns, "summaries": summaries, "complete": True}
    return schemas.Dialogue(source="authored", dialogue_id=dialogue_id, **about, **parts)


def placement(turn: int, meme_id: str, **changes: object) -> schemas.Placement:
    values = {"source": "computed", "dialogue_id": NAME, "turn": turn, "speaker": "AB"[(turn - 1) % 2]}
    values |= {"strategy": "greedy", "meme_id": meme_id, "rank": 1, "fold": "first"}
    values |= {"score": 0.25, "gate_score": 1.5, "threshold": 0.5}
    return schemas.Placement(**{**values, **changes})


def meme_files(folder: Path, size: tuple[int, int] = (300, 300)) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for meme_id, colour in COLOURS.items():
        files[meme_id] = folder / f"{meme_id}.png"
        Image.new("RGB", size, colour).save(files[meme_id])
    return files


def meme(meme_id: str, licence: str = "CC BY-SA 4.0 (OpenMoji)") -> schemas.Meme:
    about = {"source": "drawn" if licence else "user image", "origin": meme_id, "licence": licence}
    about |= {"file": f"images/{meme_id}.png", "text": "先吃饭", "text_source": "known"}
    size = {"sha256": "0" * 64, "phash": "0" * 16, "width": 300, "height": 300}
    return schemas.Meme(meme_id=meme_id, **about, **size)


def annotation(meme_id: str, **changes: object) -> schemas.Annotation:
    values = {"source": "authored", "meme_id": meme_id, "s_plus": "朋友约饭的时候", "s_minus": "追悼会上"}
    values |= {"emotion": "开心", "motivation": "想快点开饭"}
    return schemas.Annotation(**{**values, **changes})


def profile(**changes: object) -> settings.Profile:
    return settings.Profile(name="made-up").replace(**{"n_turns": 6, **changes})


def write_profile(folder: Path, name: str, **changes: object) -> None:
    """A profile's file in `folder`, of settings named as `SET=` takes them."""
    made = settings.Profile(name=name).replace(**changes)
    values = made.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    files.write_text(folder / f"{name}.yaml", yaml.safe_dump(values, allow_unicode=True))


def rating(turn: int = 2, overall: float | None = 60.0, **changes: object) -> schemas.Rating:
    values = {"source": "scripted", "dialogue_id": NAME, "turn": turn, "strategy": "greedy", "meme_id": "m1"}
    values |= {"judge": "judge one", "judge_unit": "meme", "n_turns": 6, "overall": overall}
    values |= {"unscored": "" if overall is not None else "unusable: no number"}
    return schemas.Rating(**{**values, **changes})


def consistency(turn: int = 2, score: float = 70.0, **changes: object) -> schemas.Consistency:
    values = {"source": "model x", "dialogue_id": NAME, "turn": turn, "strategy": "greedy", "meme_id": "m1"}
    values |= {"scorer": "text:x", "text": "u_t", "score": score}
    return schemas.Consistency(**{**values, **changes})


def dialogue_of_summaries(name: str, kind: str, unscored: Sequence[int] = (), n_turns: int = 18):
    """A dialogue whose summaries all differ; those at the turns `unscored` are missing."""
    base = dialogue(name, tuple(f"{name} says {t}" for t in range(1, n_turns + 1)))
    summaries = []
    for s in base.summaries:
        texts = {part: f"{name} {part} {s.turn}" for part in ("scenario", "emotion", "motivation")}
        if s.turn in unscored:
            texts = dict.fromkeys(texts, "") | {"unscored": "unusable: not JSON"}
        summaries.append(s.model_copy(update=texts))
    return base.model_copy(update={"kind": kind, "summaries": summaries})


def vectors(texts: Sequence[str], side: str, dim: int = 8) -> np.ndarray:
    """An encoder for tests: a random unit vector a text and side, the same on every call."""
    rows = [statistics.rng(0, "made-up vector", text, side).standard_normal(dim) for text in texts]
    stacked = np.array(rows, dtype=np.float32).reshape(len(texts), dim)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)


def mark(
    turn: int, marker: str, send: bool, best: Sequence[str] = ("m1",), name: str = NAME, source="authored"
) -> schemas.Mark:
    return schemas.Mark(dialogue_id=name, turn=turn, marker=marker, send=send, best=list(best), source=source)


def grade(
    turn: int, meme_id: str, grader: str, value: int, name: str = NAME, source: str = "authored"
) -> schemas.Grade:
    return schemas.Grade(
        dialogue_id=name, turn=turn, meme_id=meme_id, grader=grader, grade=value, source=source
    )


def choice(name: str, turn: int, meme_id: str) -> schemas.Choice:
    """A choice among 20 candidates, of which the first was taken, or none."""
    place = int(bool(meme_id))
    return schemas.Choice(
        dialogue_id=name, turn=turn, meme_id=meme_id, reason="合适", place=place, shown=20, source="authored"
    )
