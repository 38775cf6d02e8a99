"""A made-up release in the form of the paper's own data."""

import json
from pathlib import Path

from memecmd_utils import authors
from memecmd_utils.authors import Set

ROLE, NEWS = Set("role", 6), Set("news", 12)
ABOUT = {
    "role": {
        "scenario_id": "roommates_2",
        "scenario_info": {"relationship": "室友", "characters": "甲一(20岁) & 乙二(21岁岁)"},
    },
    "news": {"document_id": "77", "document_info": {"topic": "体育", "title": "一条新闻", "url": ""}},
}  # fmt: skip
MEMES = {
    "greedy": {2: "a.jpg", 4: "b.png"},
    "sampling": {2: "b.png", 4: "a.jpg"},
    "random": {3: "01234567.jpeg"},
}


def write(folder: Path, part: Set, spoken_ids: list[str], ids: list[str]) -> None:
    """A set in the release's form: `spoken_ids` of texts and summaries, `ids` of dialogues with memes."""
    texts = [[f"{name}第{turn}句" for turn in range(1, part.n_turns + 1)] for name in range(len(ids))]
    spoken = [{"dialog_id": name, "content": said} for name, said in zip(spoken_ids, texts, strict=True)]
    summaries = [
        {"dialog_id": name, "turn": turn, "current_chat_scenario": f"S{number}.{turn}",
         "suitable_emotion_semantics": "E", "psychological_motivation": "P"}
        for number, name in enumerate(spoken_ids) for turn in range(1, part.n_turns)
    ]  # fmt: skip
    shuffled = sorted(summaries, key=lambda row: row["turn"] % 3)  # as in the release
    described = [{"figure": name, "1": "1", "2": "2", "3": "3", "4": "4"} for name in ("a.jpg", "b.png")]
    files = {part.file("spoken"): spoken, part.file("summarised"): shuffled, authors.MEMES: described}
    for strategy, memes in MEMES.items():
        rows, pairs = [], []
        for name, said in zip(ids, texts, strict=True):
            lines = []
            for turn, text in enumerate(said, start=1):
                who = "A" if turn % 2 else "B"
                lines += [f"{who}:{memes[turn]}"] if turn in memes else []
                lines.append(f"{who}: {text}")
            row = {"dialog_id": name, "content": said, "full_dialog": lines, "turns": part.n_turns}
            rows.append(row | ABOUT[part.kind])
            found = [{"image": m, "text": said[t - 1], "similarity": t / 10} for t, m in memes.items()]
            pairs.append({"dialog_id": name, "image_text_pairs": found, "average_similarity": 0.3})
        ending = "" if strategy == "greedy" else "_random"
        scores = [
            {"file": f"{name}{ending}.png", "原因": "好", "综合得分": 90.5 - n} for n, name in enumerate(ids)
        ]
        made = {"placed": rows, "judged": scores, "compared": pairs}
        files |= {part.file(what, strategy): values for what, values in made.items()}
    for name, values in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(values, ensure_ascii=False, indent=2), encoding="utf-8")


def release(folder: Path) -> Path:
    """A role set whose texts share an id, and a news set of another length."""
    spoken, ids = ("x_generated", "y_generated", "z_generated", "x_generated"), range(1, 5)
    write(folder, ROLE, list(spoken), [f"role_based_{n:04}" for n in ids])
    write(folder, NEWS, ["3_generated", "4_generated"], ["3_generated", "4_generated"])
    return folder
