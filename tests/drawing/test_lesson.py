"""Chats, cards and rows of memes as notebooks show them."""

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from PIL import Image

from memecmd_utils import drawing
from memecmd_utils.files import paths
from memecmd_utils.schemas import Annotation, Dialogue, Meme, Summary, Turn


def meme(name: str, folder: Path, text: str = "收到") -> Meme:
    Image.new("RGB", (40, 30), "red").save(folder / f"{name}.png")
    return Meme(
        meme_id=name, file=f"{name}.png", text=text, text_source="known", gloss="Got it", origin=name,
        sha256=name, phash="0" * 16, width=40, height=30, source="drawn",
    )  # fmt: skip


@pytest.fixture
def dialogue() -> Dialogue:
    texts = ("早", "<b>在吗</b>", "在", "走吧")
    turns = [
        Turn(turn=t, speaker="AB"[(t + 1) % 2], text=text, gloss=f"gloss {t}", source="authored")
        for t, text in enumerate(texts, start=1)
    ]
    return Dialogue(
        dialogue_id="news-1",
        kind="news",
        ref="n1",
        title="t",
        name_a="",
        name_b="",
        turns=turns,
        summaries=[],
        complete=True,
        source="authored",
    )


def test_a_chat_shows_its_turns_their_english_and_the_meme_before_its_text(
    dialogue: Dialogue, tmp_path: Path
) -> None:
    sent = meme("m1", tmp_path)
    page = drawing.show_chat(dialogue, {3: sent}, {"m1": tmp_path / "m1.png"}, notes={3: "grades 2, 2"}).data
    assert page.index("gloss 2") < page.index("data:image/") < page.index(">在<") < page.index("grades 2, 2")
    assert "&lt;b&gt;在吗" in page and "<b>在吗" not in page
    assert page.count("mc-turn mc-right") == 2, "A stands right"


def test_a_part_of_a_chat_can_be_shown_without_english(dialogue: Dialogue) -> None:
    page = drawing.show_chat(dialogue, {}, {}, turns=range(2, 4), english=False).data
    assert 'data-turn="2"' in page and 'data-turn="4"' not in page and 'data-turn="1"' not in page
    assert "gloss 2" not in page


def test_a_band_is_named_where_it_begins_and_colours_its_turns(dialogue: Dialogue) -> None:
    page = drawing.show_chat(dialogue, {}, {}, bands={1: "open", 2: "open", 3: "close", 4: "close"}).data
    assert page.count('class="ml-ribbon"') == 2
    assert page.count("border-left-color: #0072B2") == page.count("border-left-color: #009E73") == 2


def test_texts_of_a_meme_and_of_a_turn_have_english_only_where_they_are_authored(tmp_path: Path) -> None:
    authored = json.loads((paths.example / "annotation_glosses.jsonl").read_text("utf-8").splitlines()[0])
    known = meme(authored["meme_id"], tmp_path)
    files = {known.meme_id: tmp_path / known.file}
    chinese = {"s_plus": "开会前", "s_minus": "丧礼上", "emotion": "轻快", "motivation": "应一声"}
    for source in ("authored", "model x@y"):
        page = drawing.show_meme(
            known, files, Annotation(meme_id=known.meme_id, source=source, **chinese)
        ).data
        assert all(text in page for text in (*chinese.values(), "Got it"))
        assert (str(escape(authored["motivation"])) in page) == (source == "authored")
    row = json.loads((paths.example / "summary_glosses.jsonl").read_text("utf-8").splitlines()[0])
    summary = Summary(
        turn=row["turn"], speaker="B", scenario="场景", emotion="惊讶", motivation="接话", source="authored"
    )
    shown = drawing.show_summary(row["dialogue_id"], summary).data
    assert "场景" in shown and str(escape(row["scenario"])) in shown


def test_every_gloss_is_of_an_authored_text() -> None:
    """Additions in English: the frozen texts stay, and each gloss names one of them."""
    for name, of, fields in (
        ("annotation_glosses.jsonl", "annotations.jsonl", ("s_plus", "s_minus", "emotion", "motivation")),
        ("summary_glosses.jsonl", "summaries.jsonl", ("scenario", "emotion", "motivation")),
    ):
        rows, texts = (
            [json.loads(line) for line in (paths.example / file).read_text("utf-8").splitlines()]
            for file in (name, of)
        )
        known = {(row.get("meme_id"), row.get("dialogue_id"), row.get("turn")) for row in texts}
        keys = [(row.get("meme_id"), row.get("dialogue_id"), row.get("turn")) for row in rows]
        assert len(set(keys)) == len(keys) and set(keys) <= known
        for row in rows:
            assert row["source"] == "authored"
            assert all(row[f].strip() and not re.search("[\u3400-\u9fff]", row[f]) for f in fields)


def test_rows_stand_side_by_side_under_their_names(tmp_path: Path) -> None:
    files = {"m1": tmp_path / "m1.png", "m2": tmp_path / "m2.png"}
    one = drawing.show_memes([meme("m1", tmp_path), meme("m2", tmp_path, text="")], files, ["best"])
    page = drawing.show_beside(Greedy_sent=one, graders=one).data
    assert "Greedy sent" in page and page.count("best") == 2 and page.count("data:image/") == 4


def test_the_teaching_dialogues_are_those_of_the_declared_rule() -> None:
    """Computed from the tracked placements and the grades; `nearest` is to the mean of all Greedy memes."""
    grades = defaultdict(list)
    for line in (paths.example / "grades.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        for meme_id, grade in row["grades"].items():
            grades[row["dialogue_id"], row["turn"], meme_id].append(grade)
    placed = pd.read_csv(paths.reports / "placements.csv").query("strategy == 'greedy'")
    keys = zip(placed.dialogue_id, placed.turn, placed.meme_id, strict=True)
    placed["grade"] = [np.mean(grades[key]) for key in keys]
    means = placed.groupby("dialogue_id").grade.agg(["mean", "size"]).query("size >= 4")
    ranked = means.assign(minus=-means["size"], away=(means["mean"] - placed.grade.mean()).abs()).sort_index()
    best = ranked.assign(low=-ranked["mean"]).sort_values(["low", "minus"], kind="stable").index[0]
    typical = ranked.sort_values(["away", "minus"], kind="stable").index[0]
    worst = ranked.sort_values(["mean", "minus"], kind="stable").index[0]
    wanted = json.loads((paths.example / "teaching_dialogues.json").read_text("utf-8"))
    assert (wanted["lands"], wanted["typical"], wanted["fails"]) == (best, typical, worst)


def test_one_text_of_several_memes_is_shown_without_their_names() -> None:
    texts = {"s_plus": "<i>迟到</i>", "s_minus": "y", "emotion": "z", "motivation": "w"}
    records = [Annotation(meme_id=name, source="model x@y", **texts) for name in ("m001", "m002")]
    page = drawing.show_texts(records, "s_plus", "AB").data
    assert page.count("&lt;i&gt;迟到") == 2 and "<i>" not in page and "m001" not in page
    assert "<b>A</b>" in page and "<b>B</b>" in page
    authored = [record.model_copy(update={"source": "authored"}) for record in records]
    assert page.count('lang="en"') < drawing.show_texts(authored, "s_plus", "AB").data.count('lang="en"')
