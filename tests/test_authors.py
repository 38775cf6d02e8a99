"""The authors' release as our records, from made-up files of its form: right, broken, or counted."""

import json
from pathlib import Path

import pytest

from memecmd_utils import authors
from memecmd_utils.authors import ReleaseUnreadable, Set

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
    texts = [
        [f"{name}第{turn}句" for turn in range(1, part.n_turns + 1)] for name in map(str, range(len(ids)))
    ]

    def put(name: str, rows: list) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(rows, ensure_ascii=False, indent=2), encoding="utf-8")

    put(
        part.spoken,
        [{"dialog_id": name, "content": said} for name, said in zip(spoken_ids, texts, strict=True)],
    )
    summaries = [
        {"dialog_id": name, "turn": turn, "current_chat_scenario": f"S{number}.{turn}",
         "suitable_emotion_semantics": "E", "psychological_motivation": "P"}
        for number, name in enumerate(spoken_ids) for turn in range(1, part.n_turns)
    ]  # fmt: skip
    put(part.summarised, sorted(summaries, key=lambda row: row["turn"] % 3))  # shuffled as in the release
    for strategy, memes in MEMES.items():
        rows, pairs = [], []
        for name, said in zip(ids, texts, strict=True):
            lines = []
            for turn, text in enumerate(said, start=1):
                who = "A" if turn % 2 else "B"
                lines += [f"{who}:{memes[turn]}"] if turn in memes else []
                lines.append(f"{who}: {text}")
            rows.append({"dialog_id": name, "content": said, "full_dialog": lines, "turns": part.n_turns})
            rows[-1] |= ABOUT[part.kind]
            found = [
                {"image": meme, "text": said[turn - 1], "similarity": turn / 10}
                for turn, meme in memes.items()
            ]
            pairs.append({"dialog_id": name, "image_text_pairs": found, "average_similarity": 0.3})
        put(part.placed(strategy), rows)
        ending = "" if strategy == "greedy" else "_random"
        scores = [
            {"file": f"{name}{ending}.png", "原因": "好", "综合得分": 90.5 - n} for n, name in enumerate(ids)
        ]
        put(part.judged(strategy), scores)
        put(part.compared(strategy), pairs)
    put(
        authors.MEMES,
        [{"figure": name, "1": "1", "2": "2", "3": "3", "4": "4"} for name in ("a.jpg", "b.png")],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A role set whose texts share an id, and a news set."""
    write(
        tmp_path,
        ROLE,
        ["x_generated", "y_generated", "z_generated", "x_generated"],
        [f"role_based_{n:04}" for n in range(1, 5)],
    )
    write(tmp_path, NEWS, ["3_generated", "4_generated"], ["3_generated", "4_generated"])
    return tmp_path


def test_dialogues_memes_scores_and_summaries_stand_where_they_belong(folder: Path) -> None:
    release = authors.read_release(folder)
    assert [d.dialogue_id for d in release.dialogues][:2] == ["news12-3_generated", "news12-4_generated"]
    by_id = {d.dialogue_id: d for d in release.dialogues}
    last = by_id["role6-role_based_0004"]
    assert (last.name_a, last.name_b, last.ref, len(last.turns)) == ("甲一", "乙二", "roommates_2", 6)
    # The second dialogue of the repeated id has the second of its summaries, at our turns 2 to 6.
    assert [(s.turn, s.speaker, s.scenario) for s in last.summaries] == [
        (2, "B", "S3.1"), (3, "A", "S3.2"), (4, "B", "S3.3"), (5, "A", "S3.4"), (6, "B", "S3.5"),
    ]  # fmt: skip
    placed = {
        (p.strategy, p.turn): p.meme_id for p in release.placements if p.dialogue_id == last.dialogue_id
    }
    assert placed == {(name, turn): meme for name, memes in MEMES.items() for turn, meme in memes.items()}
    assert {s.score for s in release.scores if s.dialogue_id == last.dialogue_id} == {87.5}
    cosines = {(c.strategy, c.turn): c.cosine for c in release.cosines if c.dialogue_id == last.dialogue_id}
    assert cosines == {(name, turn): turn / 10 for name, memes in MEMES.items() for turn in memes}
    assert release.notes == {"placed memes without an annotation": 1}
    assert sorted({name.split("/")[0] for name in release.missing}) == ["Dialogs_with_meme"]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (ROLE.placed("greedy"), '"full_dialog"', '"dialog"', "Selection.json: object 1 has no 'full_dialog'"),
        (ROLE.placed("random"), "0第1句", "0第9句", "differ from those of the other strategies|is not turn"),
        (NEWS.judged("sampling"), "]", "", "no whole JSON file"),
        (ROLE.placed("greedy"), "B:a.jpg", "A: a.jpg", "is not turn 2"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_one_sentence(
    folder: Path, name: str, old: str, new: str, said: str
) -> None:
    change(folder / name, old, new)
    with pytest.raises(ReleaseUnreadable, match=said):
        authors.read_release(folder)


def test_what_does_not_fit_is_counted(folder: Path) -> None:
    (folder / ROLE.summarised).unlink()
    change(folder / ROLE.judged("greedy"), "role_based_0002.png", "role_based_0001.png")
    change(folder / ROLE.judged("random"), "role_based_0003_random", "role_based_0009_random")
    change(folder / NEWS.compared("greedy"), '"a.jpg"', '"c.jpg"')
    notes, missing = (lambda r: (r.notes, r.missing))(authors.read_release(folder))
    assert ROLE.summarised in missing
    assert notes["turns without a summary"] == 20 and notes["second scores of a dialogue"] == 1
    assert notes["scores of dialogues that are not there"] == 1
    assert notes["dialogues without a score, by strategy"] == 2
    assert notes["cosines that belong to no placed meme"] == 1
    with pytest.raises(ReleaseUnreadable, match="make paper-data"):
        authors.read_release(folder / "elsewhere")
