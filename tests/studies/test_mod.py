import json

import made_chats
import numpy as np
import pandas as pd
import pytest

from memecmd_utils.chats import library as insertion
from memecmd_utils.chats.messages import Message, Summarised
from memecmd_utils.grades import CAPTION, FULL, RANDOM, System
from memecmd_utils.schemas import SummaryReply
from memecmd_utils.studies import mod
from memecmd_utils.studies.mod import OFFERED, WHOLE, ModError, Question

# --- reading ------------------------------------------------------------------------------------------

DIALOGUES = {
    "dialogue 1": [
        {"speaker_id": "[speaker1]", "emotion_id": 0, "img_id": "195", "txt": "早"},
        {"speaker_id": "[speaker2]", "txt": "早啊"},
        {"speaker_id": "[speaker1]", "img_id": "007"},
        {"speaker_id": "[speaker2]", "emotion_id": 1, "img_id": "030", "txt": "哈哈"},
        {"speaker_id": "[speaker3]", "txt": "笑什么"},
    ],
    "dialogue 2": [{"speaker_id": "[speaker1]", "txt": "喂"}],
}
TASK = [
    {
        "history": [
            {"speaker_id": "[speaker1]", "img_id": "030", "txt": "冒雨上班"},
            {"speaker_id": "[speaker2]", "txt": "哈"},
        ],
        "candidate": {"speaker_id": "[speaker2]", "set": ["013", "007", "196"]},
        "answer": {"speaker_id": "[speaker2]", "img_id": "196"},
    }
]


def file(tmp_path, value, name="c_val.json"):
    path = tmp_path / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_each_meme_from_the_second_message_on_is_a_question(tmp_path) -> None:
    split = mod.read(file(tmp_path, DIALOGUES))
    assert split.name == "c_val" and split.openers == 1
    first = (Message("甲", "早", meme="195"), Message("乙", "早啊"))
    # The words that come with the meme are known, the meme itself is not.
    assert split.questions == (
        Question("dialogue 1/3", "dialogue 1", (*first, Message("甲", "")), "甲", "7"),
        Question(
            "dialogue 1/4",
            "dialogue 1",
            (*first, Message("甲", "", meme="7"), Message("乙", "哈哈")),
            "乙",
            "30",
        ),
    )


def test_a_task_file(tmp_path) -> None:
    """Questions that begin with one message are of one dialogue."""
    other = {**TASK[0], "history": [{"speaker_id": "[speaker1]", "txt": "别的"}]}
    first, second, third = mod.read(file(tmp_path, [*TASK, *TASK, other])).questions
    assert first.candidates == ("13", "7", "196") and (first.meme, first.sender) == ("196", "乙")
    assert first.history == (Message("甲", "冒雨上班", meme="30"), Message("乙", "哈"))
    assert first.dialogue == second.dialogue != third.dialogue and first.key != second.key


def test_a_folder_is_read_file_by_file(tmp_path) -> None:
    file(tmp_path, DIALOGUES, "c_test_easy.json")
    file(tmp_path, TASK, "c_val_task2.json")
    file(tmp_path, [{"history": TASK[0]["history"], "answer": {"emotion_id": 3}}], "c_val_task3.json")
    file(tmp_path, {"喜": 0}, "emotion_dict.json")
    splits, notes = mod.read_all(tmp_path)
    assert [split.name for split in splits] == ["c_test_easy", "c_val_task2"]
    assert len(notes) == 2 and "c_val_task3.json, item 1 asks for emotion_id, not for a meme" in notes[0]


def changed(**changes):
    return [{**TASK[0], **changes}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, r"c_val\.json: expected .*dialogue 1"),
        ({"a": [{"txt": "x"}]}, "a, message 1: expected .*speaker_id"),
        ({"a": [{"speaker_id": "x", "img_id": ["1"]}]}, "message 1: `img_id` is expected as a text"),
        ({"a": [{"speaker_id": "x", "txt": "y"}]}, "no meme is sent after the first message"),
        ([3], "item 1: expected .*history"),
        (changed(history=[]), "item 1: a history with at least one text"),
        (changed(candidate={"set": ["1", "196", "01"]}), "a candidate stands twice"),
        (changed(candidate={"set": ["1", "2"]}), "the meme sent, 196, is not among the candidates"),
    ],
)
def test_what_cannot_be_read_says_where_and_why_in_a_line(tmp_path, value, message) -> None:
    with pytest.raises(ModError, match=rf"\A[^\n]*{message}[^\n]*\Z"):
        mod.read(file(tmp_path, value))


# --- measuring ----------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    origins = {topic: f"set/{topic:03d}.jpg" for topic in range(made_chats.N_MEMES)}
    return made_chats.finished_run(monkeypatch, tmp_path, origins=origins)


def talk(topic: int, sent: int | str) -> list[dict]:
    """A dialogue about a topic in which a meme is sent."""
    return [
        {"speaker_id": "[speaker1]", "img_id": "011", "txt": "早"},
        {"speaker_id": "[speaker2]", "txt": f"说说 k{topic}"},
        {"speaker_id": "[speaker1]", "emotion_id": 3, "img_id": f"{sent:03d}"},
    ]


def question(topic: int, sent: int, candidates: list[int]) -> dict:
    return {
        "history": talk(topic, sent)[:2],
        "candidate": {"speaker_id": "[speaker1]", "set": [f"{c:03d}" for c in candidates]},
        "answer": {"speaker_id": "[speaker1]", "img_id": f"{sent:03d}"},
    }


def evaluated(tmp_path, value, **keywords):
    path = file(tmp_path, value)
    with made_chats.agent().running() as server:
        profile = made_chats.live_profile(tmp_path, server.url)
        done = mod.evaluate_file(path, profile, run_name="made", **keywords)
    return done, server.bodies


def value(done, measure: str, system: str = FULL, among: str = WHOLE) -> float:
    table = done.table
    return table[(table.system == system) & (table.among == among)][measure].item()


def test_dialogues_go_in_and_measures_come_out(run, tmp_path) -> None:
    """Eight of ten memes are the right ones for what the agent says; two are others."""
    done, bodies = evaluated(tmp_path, {f"dialogue {t}": talk(t, t if t < 8 else 0) for t in range(10)})
    assert len(bodies) == 10
    assert value(done, "R@1") == pytest.approx(0.8) and value(done, "R@1", CAPTION) == 0
    assert value(done, "R@1", RANDOM) == pytest.approx(1 / 12, abs=0.1)
    assert value(done, "R@1 low") < 0.8 < value(done, "R@1 high")
    assert set(done.table.questions) == set(done.table.dialogues) == {10}
    read = pd.read_csv(done.folder / "measures.csv")
    pd.testing.assert_frame_equal(read, done.table, check_dtype=False)
    minus = pd.read_csv(done.folder / "differences.csv")
    apart = minus[(minus.system == CAPTION) & (minus.minus == "the full score") & (minus.measure == "R@1")]
    assert apart["mean"].item() == pytest.approx(-0.8) and apart["high"].item() < -0.3
    assert "10 memes open a dialogue: no questions" in done.text()
    asked = bodies[0]["messages"][-1]["content"]
    assert "甲：早［表情包：字幕 k4］\n乙：说说 k" in asked and "轮到甲" in asked


def test_candidates_of_the_file(run, tmp_path) -> None:
    """The third question offers five memes, the others three; the fourth keeps its answer back."""
    asked = [question(t, t, [t, (t + 1) % 12, (t + 2) % 12]) for t in range(2)]
    hidden = question(4, 4, [3, 4])
    hidden["answer"]["img_id"] = ""
    done, bodies = evaluated(tmp_path, [*asked, question(5, 9, [9, 5, 7, 1, 2]), hidden])
    assert value(done, "R@1", among=OFFERED) == pytest.approx(2 / 3) and len(bodies) == 3
    assert value(done, "R@5", among=OFFERED) == value(done, "R@5", RANDOM, OFFERED) == 1
    assert "1 of 4 questions keep their answer back" in done.text()


def test_a_meme_outside_the_library_counts_as_missed(run, tmp_path) -> None:
    done, _ = evaluated(tmp_path, {"a": talk(1, 1), "b": talk(2, 300)})
    assert value(done, "R@1") == value(done, "MRR") == 0.5
    assert "1 of 2 questions ask for a meme that the library lacks" in done.text()


def test_splits_of_a_folder_stand_side_by_side(run, tmp_path) -> None:
    folder = tmp_path / "mod"
    folder.mkdir()
    for name, sent in (("c_test_easy", 1), ("c_test_hard", 2)):
        file(folder, {"d": talk(1, sent)}, f"{name}.json")
    file(folder, {}, "img2id.json")
    with made_chats.agent().running() as server:
        profile = made_chats.live_profile(tmp_path, server.url)
        done, again = (mod.evaluate_file(folder, profile, run_name="made") for _ in range(2))
        assert len(server.bodies) == 2, "recorded: nothing is asked twice"
    first = done.table[done.table.system == FULL]
    assert dict(zip(first.split, first["R@1"], strict=True)) == {"c_test_easy": 1.0, "c_test_hard": 0.0}
    assert any("img2id.json" in note for note in done.notes)
    pd.testing.assert_frame_equal(done.table, again.table)


def test_measures_by_hand(run) -> None:
    """The meme stands at rank 1, 4 and 12 of 12, and at rank 1, 2 and 3 of the three candidates."""
    library = insertion.open_library(run, run)
    asked = [Question(str(r), "d", (), "甲", "0", ("0", "3", "5")) for r in (1, 4, 12)]
    system = System("s", "none", FULL)
    scores = {system: np.array([[12.5 - rank, *range(11, 0, -1)] for rank in (1, 4, 12)])}
    ranks = {WHOLE: (1, 4, 12), OFFERED: (1, 2, 3)}
    for among, found in ranks.items():
        expected = [(r == 1, r <= 5, 1 / r, (r <= 5) / np.log2(1 + r)) for r in found]
        assert np.allclose(mod.measure(asked, scores, library, among).systems[system][:, :4], expected)


def test_a_question_without_a_summary_counts_as_missed(run) -> None:
    library = insertion.open_library(run, run)
    asked = [Question(str(i), "d", (Message("甲", "k1"),), "甲", "1") for i in range(2)]
    told = [Summarised(SummaryReply(**made_chats.summary(1)), "m"), Summarised(None, "m", "unusable: x")]
    scores = mod.score_matrices(asked, told, library)
    measured = mod.measure(asked, scores, library, WHOLE).systems
    (full,) = [values for system, values in measured.items() if system.uses == FULL]
    assert full[0, 0] == 1 and full[1, :4].tolist() == [0] * 4
