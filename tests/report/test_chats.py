import dataclasses
import json
import math
from functools import cache

import made_page
import made_up
import numpy as np
import pytest
from made_page import GATE, HOSTILE, NAMES, SCORES, SENT

from memecmd_utils import schemas
from memecmd_utils.core import html
from memecmd_utils.evaluation import ground_truth
from memecmd_utils.report import chats
from memecmd_utils.report import chats as report_chats
from memecmd_utils.retrieval import Gate, simulate


def build(**changes: object) -> report_chats.Chats:
    return report_chats.build(made_page.records(), made_page.profile(), lambda _: 0, **changes)


def entry(chats: report_chats.Chats, name: str = NAMES[0]) -> dict:
    return next(one for one in chats.payload["dialogues"] if one["id"] == name)


def test_turns_memes_and_measures_are_those_of_the_records() -> None:
    chats = build()
    found = entry(chats)
    assert found["turns"][2] == [3, "A", HOSTILE, "The third thing", []]
    assert found["names"] == {"A": "阿橙", "B": HOSTILE} and found["gloss"] == "A title"
    assert found["seen"][2][:3] == ["两人商量周末安排", "轻松", "想定下来"]
    assert {strategy: sorted(turns) for strategy, turns in found["placed"].items()} == {
        "greedy": list(SENT), "sampling": list(SENT), "random": [3, 4], "random_same_turns": list(SENT),
    }  # fmt: skip
    assert chats.payload["measures"] == [
        "Mean grade of 2 graders (0-2; a model's, not people's)", "Judge judge one (0-100)",
        "Consistency with u_t, text:x (0-100)",
    ]  # fmt: skip
    assert found["placed"]["greedy"][2] == ["m1", 1, 0.25, [1.5, 61.0, 70.5]]
    assert found["placed"]["greedy"][5][3] == [None, None, None]  # unscored is no zero
    assert found["placed"]["random"][3][:2] == ["m3", None]
    assert found["marks"] == {2: [1, 2]} and entry(chats, "role-b")["marks"] == {}


def test_the_gate_s_path_is_that_of_the_simulation() -> None:
    trace = simulate(np.array([*SCORES.values()]) / 0.1, Gate(0.5, 1.0, 1.0))
    assert [turn for turn, sent in zip(SCORES, trace.sent, strict=True) if sent] == list(SENT)
    for sent in (set(SENT), None):
        path = report_chats.gate_path(SCORES, GATE, sent)
        assert [p[0] for p in path.values()] == pytest.approx([10 * s for s in SCORES.values()])
        assert [p[1] for p in path.values()] == pytest.approx([*trace.thresholds])
        assert [turn for turn, p in path.items() if p[2]] == list(SENT)
    assert entry(build())["gate"][2] == [1.0, 0.5, True]
    # Decisions are those of the records, even where a rounded score says otherwise.
    path = report_chats.gate_path({2: 0.05, 3: 0.05}, GATE, {2})
    assert path[2][2] and path[3][1] == pytest.approx(0.5 + math.exp(-1)) and not path[3][2]


def test_learned_placement_asks_its_own_gate_and_later_grades_count() -> None:
    made, name = made_page.records(), NAMES[0]
    sent = [
        made_up.placement(t, "m3", dialogue_id=name, strategy="learned", speaker="B", rank=1) for t in (2, 4)
    ]
    later = [made_up.grade(4, "m3", grader, 2, name, "made up") for grader in ("g1", "g2")]
    truth = ground_truth.GroundTruth(made.truth.marks, made.truth.grades, later)
    records = dataclasses.replace(made, placements=[*made.placements, *sent], truth=truth)
    profile = made_up.profile(strategies=[*made_page.STRATEGIES, "learned"], top_k=2)
    found = report_chats.build(records, profile, lambda _: 0)
    assert entry(found)["gate"] == entry(build())["gate"], "the paper's gate is that of Greedy alone"
    how = {row[0]: row[3] for row in found.payload["strategies"]}
    assert how["greedy"] == "" and how["random"] == "by lot" and how["learned"] == "by its own gate"
    assert entry(found)["placed"]["learned"][4][3][0] == 2.0


def test_a_turn_without_a_usable_summary_has_no_score_and_stays_shut() -> None:
    records = made_page.records()
    name = NAMES[0]
    kept = [c for c in records.candidates if (c.dialogue_id, c.turn) != (name, 3)]
    without = made_page.Records(**{**vars(records), "candidates": kept})
    without.dialogues[0].summaries[1] = schemas.Summary(
        source="made up", turn=3, speaker="A", scenario="", emotion="", motivation="", unscored="refused"
    )
    found = entry(report_chats.build(without, made_page.profile(), lambda _: 0))
    assert found["gate"][3][0] is None and not found["gate"][3][2] and 3 not in found["top"]
    assert found["seen"][3] == ["", "", "", "refused", None]


def test_authored_summaries_and_annotations_have_english_where_the_data_hold_it() -> None:
    made = made_up.dialogue("role-R13-1")
    told, other = made.summaries[0].model_copy(update={"source": "authored"}), made.summaries[1]
    records = made_page.Records(
        **{**vars(made_page.records()), "placements": [], "candidates": []}
        | {"dialogues": [made.model_copy(update={"summaries": [told, other]})]}
    )
    seen = entry(report_chats.build(records, made_page.profile(), lambda _: 0), "role-R13-1")["seen"]
    assert len(seen[2][4]) == 3 and seen[2][4][0].startswith("Fan A has just heard the midnight album")
    assert seen[3][4] is None, "a model of the run wrote it"
    said = [made_up.annotation(name) for name in ("m001", "m1")]
    sheet = chats.sheet([made_up.meme("m1"), made_up.meme("m001")], said, [], lambda _: "x")
    english = {card.meme.meme_id: card.english for card in sheet.cards}
    assert english["m001"]["emotion"].startswith("Dazed with") and english["m1"] == {}


def test_a_large_run_is_cut_to_the_budget_in_turn_from_each_kind() -> None:
    each = report_chats.size(entry(build(), "role-b"))
    chats = build(budget=int(each * 2.8))
    assert [one["id"] for one in chats.payload["dialogues"]] == ["news-a", "role-b"]
    assert (chats.n_included, chats.total) == (2, 3)
    assert build(budget=1).n_included == 1  # one is always there
    assert report_chats.build(
        made_page.records(), made_page.profile(), lambda _: each, budget=int(each * 2.8)
    ).n_included == 1  # fmt: skip


def test_json_of_a_page_ends_no_script_and_opens_no_comment() -> None:
    text = str(report_chats.page_json({HOSTILE: [HOSTILE, "</ScRiPt\t>", "]]>"]}))
    assert "<" not in text and ">" not in text and "&" not in text and "'" not in text
    assert json.loads(text) == {HOSTILE: [HOSTILE, "</ScRiPt\t>", "]]>"]}
    assert "字" in str(report_chats.page_json("字"))  # not as six signs
    with pytest.raises(ValueError, match="JSON"):
        report_chats.page_json(math.nan)


MEMES = [made_up.meme("m1"), made_up.meme("m2", licence=""), made_up.meme("m3")]


@pytest.fixture
def picture(tmp_path):
    files = made_up.meme_files(tmp_path)
    return cache(lambda name: html.thumbnail(files[name], chats.SIDE))


def test_cards_hold_annotation_uses_and_licences(picture) -> None:
    said = [made_up.annotation("m1"), made_up.annotation("m2", unscored="refused")]
    placed = [
        made_up.placement(2, "m1"),
        made_up.placement(4, "m1"),
        made_up.placement(4, "m1", strategy="random", rank=None),
    ]
    sheet = chats.sheet(MEMES, said, placed, picture)
    assert [card.meme.meme_id for card in sheet.cards] == ["m1", "m2", "m3"] and sheet.total == 3
    first, second, third = sheet.cards
    assert first.annotation.emotion == "开心" and first.placed == {"greedy": 2, "random": 1}
    assert (second.annotation, second.unscored) == (None, "refused")
    assert (third.annotation, third.unscored, third.placed) == (None, "no annotation", {})
    assert sheet.unlicensed == 1 and sheet.licences[0] == ("", 1)
    assert "not by people" in sheet.annotators[0]
    assert chats.captions(sheet)[0] == ["m1", "先吃饭", ""]


def test_a_large_library_is_cut_but_never_below_what_the_chats_need(picture) -> None:
    sizes = {name: len(picture(name)) for name in ("m1", "m2", "m3")}
    for budget, needed, shown in (
        (sum(sizes.values()) + 1, (), ["m1", "m2", "m3"]),
        (sizes["m1"] + 1, (), ["m1"]),
        (1, ("m3",), ["m3"]),
        (sizes["m3"] + sizes["m1"] + 1, ("m3",), ["m1", "m3"]),
    ):
        sheet = chats.sheet(MEMES, [], [], picture, needed, budget)
        assert [card.meme.meme_id for card in sheet.cards] == shown
