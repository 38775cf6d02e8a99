import csv
import json
from pathlib import Path

import made_matches
import made_surveys
import pytest
from fault_server import FaultServer, Simulated
from made_templates import TEMPLATES, memecap_row, record, run_of, write_cm50
from PIL import Image

from memecmd_utils import forms
from memecmd_utils.cm50 import annotation, matching, survey
from memecmd_utils.cm50 import data as cm50_data
from memecmd_utils.cm50 import prompts as cm50_prompts
from memecmd_utils.cm50 import references as cm50_references
from memecmd_utils.cm50.matching import RULES, Matches, TemplateMatch
from memecmd_utils.core.encoders import clip as encoders_clip
from memecmd_utils.pictures import LibraryError
from memecmd_utils.schemas import MemeReading
from memecmd_utils.settings import Profile

KETTLE, DAVE, GOAT = TEMPLATES[:3]
PICTURES = ("memes_a1.png", "memes_b2.png")


@pytest.fixture
def given(tmp_path: Path) -> dict[str, object]:
    """Keys of a profile: CM50's two templates with pictures, MemeCap of three memes, two of them drawn, and
    FigMemes of 16 test memes, of which `f0` to `f13` are drawn; the last of these is broken."""
    cm50 = write_cm50(tmp_path, [(KETTLE, record(KETTLE, 1)), (DAVE, record(DAVE, 1))])
    for number, path in enumerate(sorted(cm50.rglob("*.jpg"))):
        Image.new("RGB", (60, 40), (40 + 90 * number, 30, 60)).save(path)
    (tmp_path / "memecap").mkdir()
    rows = [memecap_row("a1"), memecap_row("b2", img_captions=[]), memecap_row("c3")]
    (tmp_path / "memecap" / "memes-test.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "pictures").mkdir()
    for number, name in enumerate(PICTURES):
        Image.new("RGB", (50, 50), (200, 40 * number, 90)).save(tmp_path / "pictures" / name)
    (tmp_path / "figmemes").mkdir()
    names = [f"f{number}.jpg" for number in range(17)]
    lines = [f"{name}\t{'train' if name == 'f16.jpg' else 'test'}" for name in names]
    split = "\n".join(["img_name\tsplit", *lines])
    (tmp_path / "figmemes" / "standard_split.tsv").write_text(split, encoding="utf-8")
    (tmp_path / "pictures" / "board").mkdir()
    for name in (*names[:14], "f16.jpg"):
        Image.new("RGB", (50, 50), (90, 10 * len(name), 200)).save(tmp_path / "pictures" / "board" / name)
    broken = tmp_path / "pictures" / "board" / "f13.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    return {
        "figmemes": str(tmp_path / "figmemes"),
        "cm50": str(cm50),
        "memecap": str(tmp_path / "memecap"),
        "meme_retrieval": {"images": str(tmp_path / "pictures")},
    }


def test_memes_with_a_picture_take_part(
    tmp_path: Path, given: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    # The first meme lies by Sad-Kettle by picture, text and LPIPS; the second by nothing.
    rows = {
        f"{KETTLE}.jpg": (0, 0), f"{DAVE}.jpg": (100, 0), f"What {KETTLE} means.": (1, 0.5),
        f"What {DAVE} means.": (0, 2), PICTURES[0]: (3, 0), "a drawn cat in a1": (1, 0.5),
        PICTURES[1]: (50, 80), "Title of a1": (0, -1), "Title of b2": (0, -1),
    }  # fmt: skip
    asked = []

    def load(name: str, **options: object) -> made_matches.Encoder:
        asked.append((name, options))
        return made_matches.Encoder(rows)

    monkeypatch.setattr(encoders_clip, "load", load)
    distances = made_matches.Distances({(PICTURES[0], f"{KETTLE}.jpg"): 0.1})
    monkeypatch.setattr(matching, "Lpips", lambda *names, download: distances)
    run = run_of(tmp_path, mode="auto", template_matching={"clip": "my/clip"}, **given)
    matches = matching.match_data_set(run, cm50_data.load_data(run), "memecap")
    assert capsys.readouterr().out == "2 memes with a picture, 1 without\n"
    kept = [(pair.instance, pair.template) for pair in matches.pairs if pair.kept]
    assert kept == [(PICTURES[0], KETTLE)] and matches.rules == RULES["code"]
    (name, options), *_ = asked
    assert name == "my/clip" and options["write_dir"] == run.write_dir and options["download"] is False
    run = run_of(tmp_path, mode="recorded", **given)
    matching.match_data_set(run, cm50_data.load_data(run), "memecap")
    assert asked[1][1]["write_dir"] is None, "a replay writes nothing"


def test_memes_of_figmemes_test_split_are_looked_for_by_name(
    tmp_path: Path, given: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    labels = tmp_path / "form" / "figmemes_annotations.tsv"
    labels.parent.mkdir()
    labels.write_text("img_name\n", encoding="utf-8")
    (labels.parent / "figmemes_ocrs.tsv").write_text('img_name\ttext\nf0.jpg\t"so said\n', encoding="utf-8")
    rows = {
        f"{KETTLE}.jpg": (0, 0), f"{DAVE}.jpg": (100, 0), "f0.jpg": (99, 0), '"so said': (1, 1),
        f"What {DAVE} means.": (1, 1),
    }  # fmt: skip
    monkeypatch.setattr(encoders_clip, "load", lambda name, **options: made_matches.Encoder(rows))
    monkeypatch.setattr(matching, "Lpips", lambda *names, download: made_matches.Distances())
    run = run_of(tmp_path, figmemes_labels=str(labels), **given)
    matches = matching.match_data_set(run, cm50_data.load_data(run), "figmemes")
    assert capsys.readouterr().out == "14 memes with a picture, 2 without\n"
    assert len(matches.instances) == 13 and [name for name, _ in matches.unreadable] == ["f13.jpg"]
    kept = {(p.instance, p.template): p.distance for p in matches.pairs if p.variant == "concatenated"}
    # Its text is the one of the file beside the labels, its quotation mark and all.
    assert kept["f0.jpg", DAVE] == pytest.approx(1)


@pytest.mark.parametrize("text", ["", "z,y,keep,\n"])
def test_a_confirmation_file_that_speaks_of_no_pair_is_never_ignored(tmp_path: Path, capsys, text) -> None:
    (tmp_path / "said.csv").write_text(f"instance,template,action,why\n{text}", encoding="utf-8")
    profile = Profile(name="x", template_matching={"confirmed": str(tmp_path / "said.csv")})
    nothing = Matches(RULES["code"], {}, {}, [], [pair("c", GOAT, False)])
    assert matching.confirmed_matches(profile, nothing, "memecap") == []
    assert "not read: said.csv" in (told := capsys.readouterr().out) and "no pair was kept" in told
    some = Matches(RULES["code"], {}, {}, [], [pair("a", KETTLE)])
    if "keep" in text:
        with pytest.raises(LibraryError, match="are no pair of this sheet"):
            matching.confirmed_matches(profile, some, "memecap")
    else:
        assert len(matching.confirmed_matches(profile, some, "memecap")) == 1
        assert "says nothing of any pair of MemeCap" in capsys.readouterr().out


def pair(instance: str, template: str, kept: bool = True) -> TemplateMatch:
    return TemplateMatch(instance=instance, template=template, variant="v", distance=1, lpips=0.1, kept=kept)


def test_what_a_person_said_counts_where_the_profile_names_it(tmp_path: Path) -> None:
    matches = Matches(RULES["code"], {}, {}, [], [pair("a", KETTLE), pair("b", DAVE), pair("c", GOAT, False)])

    def said(profile: Profile, dataset: str) -> list[bool | None]:
        return [p.confirmed for p in matching.confirmed_matches(profile, matches, dataset)]

    assert said(Profile(name="x"), "memecap") == [None, None]
    file = tmp_path / "said.csv"
    with file.open("w", newline="") as handle:
        csv.writer(handle).writerows([("instance", "template", "action", "why"), ("b", DAVE, "reject", "no")])
    for dataset, other in (("memecap", "figmemes"), ("figmemes", "memecap")):
        key = matching.CONFIRMED[dataset]
        profile = Profile(name="x", template_matching={key: str(file)})
        assert said(profile, dataset) == [None, False] and said(profile, other) == [None, None]
    file.unlink()
    with pytest.raises(LibraryError, match="save it from the confirmation sheet"):
        said(profile, "figmemes")


def asked(tmp_path: Path, given: dict, prompts: list[str], pairs: dict, vision: bool = True) -> tuple:
    """Readings by (prompt, id, template), and the tasks that the simulated endpoint was asked for."""
    with FaultServer(Simulated()).running() as server:
        endpoint = {"base_url": server.url, "model": "m", "vision": vision}
        keys = {"llm": "openai", "mode": "auto", "endpoints": {"annotator": endpoint}}
        settings = {"evaluate": prompts, "sample": 1}
        run = run_of(tmp_path, template_annotation=settings, **keys, **given)
        readings = annotation.evaluate_prompts(run, cm50_data.load_data(run), pairs)
        names = [line["task"] for line in server.script.lines]
    return [(r.prompt, r.meme_id, r.template) for r in readings], sorted(names), readings


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "simulated")


def test_every_prompt_of_the_tables_has_its_memes() -> None:
    found: dict[tuple[int, str, str], int] = {}
    for spec in cm50_prompts.PROMPTS.values():
        at = (spec.table, *annotation.asked_about(spec))
        found[at] = found.get(at, 0) + 1
    assert found == {
        (5, "memecap", "matched"): 2, (9, "figmemes", "all"): 1, (9, "figmemes", "drawn"): 10,
        (10, "memecap", "matched"): 6, (10, "memecap", "all"): 1, (11, "figmemes", "matched"): 4,
    }  # fmt: skip


def test_matched_memes_are_those_that_nobody_rejected(
    tmp_path: Path, given: dict, key: None, capsys: pytest.CaptureFixture
) -> None:
    memecap = [
        pair(PICTURES[0], KETTLE),
        pair(PICTURES[0], DAVE),  # of two templates the first counts
        pair(PICTURES[1], DAVE).model_copy(update={"confirmed": False}),
        pair("memes_c3.png", DAVE).model_copy(update={"confirmed": True}),  # no picture
    ]
    pairs = {"memecap": memecap, "figmemes": [pair("f2.jpg", DAVE)]}
    prompts = ["five_tasks_context", "three_step_context", "five_tasks_context"]
    found, tasks, readings = asked(tmp_path, given, prompts, pairs)
    # "sample" is for the memes of Imgflip; a prompt is asked once.
    assert found == [
        ("five_tasks_context", "memes_a1", KETTLE), ("three_step_context", "f2", DAVE)
    ]  # fmt: skip
    assert tasks == ["FiveTasksReply", "ThreeStepReply"] and all(r.context for r in readings)
    said = capsys.readouterr().out
    assert "MemeCap: 2 memes can be shown, 1 are without a picture\n" in said
    assert (
        "FigMemes: 13 memes can be shown, 2 are without a picture, 1 cannot be read (the first: f13.jpg: "
        in said
    )


def test_whole_sets_are_asked_about_and_memes_without_a_template_have_no_context(
    tmp_path: Path, given: dict, key: None
) -> None:
    pairs = {"memecap": [pair(PICTURES[1], DAVE)]}
    prompts = ["baseline_whole_set", "five_tasks_whole_set"]
    found, _, readings = asked(tmp_path, given, prompts, pairs)
    assert found[:2] == [
        ("five_tasks_whole_set", "memes_a1", "unknown"), ("five_tasks_whole_set", "memes_b2", DAVE)
    ]  # fmt: skip
    assert found[2:] == [("baseline_whole_set", f"f{n}", "unknown") for n in range(13)]
    assert not any(r.context for r in readings)
    labels = cm50_references.Labels({f"f{n}.jpg": ["irony"] for n in range(16)}, "made up")
    assert cm50_references.macro_f1({r.meme_id: r.literary_devices for r in readings[2:]}, labels).n == 13
    references = cm50_references.references(cm50_references.read(Path(given["memecap"])))
    assert all(r.meme_id in references for r in readings[:2])


def test_prompts_tried_on_eleven_memes_meet_eleven_and_the_same(
    tmp_path: Path, given: dict, key: None, capsys: pytest.CaptureFixture
) -> None:
    prompts = ["baseline", "three_step", "few_shot_ocr_pairs"]
    found, _, _ = asked(tmp_path, given, prompts, {})
    ids = {name: [i for said, i, _ in found if said == name] for name in prompts[:2]}
    assert ids["baseline"] == ids["three_step"] and len(set(ids["baseline"])) == 11
    said = capsys.readouterr().out
    assert "baseline: 11 memes of FigMemes, drawn" in said
    lack = "needs memes of FigMemes with a text (figmemes_ocrs.tsv, beside the labels)"
    assert f"not computed here: few_shot_ocr_pairs {lack}\n" in said
    texts = "\n".join(["img_name\ttext", *(f"f{n}.jpg\tword {n}" for n in range(12)), "f12.jpg\t "])
    (tmp_path / "figmemes" / "figmemes_ocrs.tsv").write_text(texts, encoding="utf-8")
    found, *_ = asked(tmp_path, given, prompts[2:], {}, vision=False)
    assert {said for said, _, _ in found} == {"few_shot_ocr_pairs (text only)"}
    assert len(set(ids["baseline"]) & {i for _, i, _ in found}) >= 10, "those with a text are the same"


def test_what_cannot_be_asked_is_said(
    tmp_path: Path, given: dict, key: None, capsys: pytest.CaptureFixture
) -> None:
    pairs = {"memecap": [pair(PICTURES[0], KETTLE)], "figmemes": []}
    found, tasks, _ = asked(tmp_path, given, ["five_tasks", "baseline"], pairs, vision=False)
    assert found == tasks == []
    assert capsys.readouterr().out.count("needs a model that sees") == 2
    assert asked(tmp_path, given, ["three_step_12"], pairs)[0] == []
    assert "and none was matched\n" in capsys.readouterr().out
    alone = {name: value for name, value in given.items() if name != "figmemes"}
    assert asked(tmp_path, alone, ["baseline"], pairs)[0] == []
    assert "FigMemes, which is missing (key figmemes)" in capsys.readouterr().out
    nothing = {**given, "meme_retrieval": {"images": str(tmp_path / "nothing")}}
    assert asked(tmp_path, nothing, ["five_tasks"], pairs)[0] == []
    assert "five_tasks needs memes of MemeCap with a readable picture" in capsys.readouterr().out


def test_nobody_is_asked_without_prompts_or_a_model(
    tmp_path: Path, given: dict, capsys: pytest.CaptureFixture
) -> None:
    pairs = {"memecap": [pair(PICTURES[0], KETTLE)]}
    run = run_of(tmp_path, **given)
    data = cm50_data.load_data(run)
    assert annotation.evaluate_prompts(run, data, pairs) == []
    assert capsys.readouterr().out == ""
    run = run_of(tmp_path, template_annotation={"evaluate": ["five_tasks", "baseline"]}, **given)
    assert annotation.evaluate_prompts(run, data, pairs) == []
    assert capsys.readouterr().out == annotation.NOBODY + "\n"


def readings_of(source: str, names: str, **more: object) -> list[MemeReading]:
    return [MemeReading(source=source, meme_id=name, **more) for name in names]


def test_systems_are_models_with_and_without_context() -> None:
    found = survey.readings_by_system(
        [*readings_of("m", "abc", context=True), *readings_of("m", "bcd", context=False)]
    )
    assert {name: "".join(r.meme_id for r in rows) for name, rows in found.items()} == {
        "m, with context": "abc", "m, without context": "bcd",
    }  # fmt: skip
    assert survey.readings_by_system(readings_of("m", "abc", context=True)) == {}
    assert survey.readings_by_system([*readings_of("m", "ab"), *readings_of("n", "cd")]) == {}
    assert survey.readings_by_system([]) == {}


def test_one_that_shares_no_meme_takes_no_other_with_it() -> None:
    # Memes of templates without an "about" text are read without context: they are other memes.
    published, own = readings_of("gpt", "abcdef"), readings_of("m", "abc", context=True)
    apart = readings_of("m", "z", context=False)
    assert list(survey.readings_by_system([*apart, *own, *published])) == ["gpt", "m, with context"]


def test_the_survey_appears_where_two_systems_read_memes_with_pictures(tmp_path: Path, capsys) -> None:
    pictures = made_surveys.pictures(tmp_path)
    for name, file in pictures.items():
        file.rename(tmp_path / f"{name}.png")
    readings = [r for s in made_surveys.SYSTEMS for r in made_surveys.readings(s, 4, source=s)]
    run = run_of(tmp_path)
    page = survey.write_survey(run, readings, tmp_path)
    assert page == run.report / "preference_survey.html" and page.is_file()
    said = capsys.readouterr().out
    assert said.startswith("ask people: preference_survey.html compares first-system, second-system, third")
    key = forms.read_key(run.read("survey_key.csv"), survey.KeyRow)
    assert {row.system for row in key} == set(made_surveys.SYSTEMS)
    assert {row.meme_id for row in key} == set(pictures)


@pytest.mark.parametrize(
    ("systems", "files", "said"),
    [
        (made_surveys.SYSTEMS[:1], range(4), "(4 memes with readings, 4 of them with a picture"),
        (made_surveys.SYSTEMS, (), "(4 memes with readings, 0 of them with a picture"),
        ((), range(4), "(0 memes with readings, 0 of them"),
        (("first-system", "first-system "), range(4), "say the same"),
    ],
)
def test_where_there_is_nothing_to_ask_people_it_is_said(tmp_path, capsys, systems, files, said) -> None:
    (tmp_path / "pictures").mkdir()
    for n in files:
        Image.new("RGB", (20, 20)).save(tmp_path / "pictures" / f"secret-{n}.png")
    (tmp_path / "pictures" / "secret-9.jpg").write_text("<html>not found</html>", encoding="utf-8")
    readings = [r for s in systems for r in made_surveys.readings(s.strip(), 4, source=f"by {s}.")]
    run = run_of(tmp_path)
    assert survey.write_survey(run, readings, tmp_path / "pictures") is None
    out = capsys.readouterr().out
    assert out.startswith("no preference survey: ") and said in out
    assert not (run.report / "preference_survey.html").exists()
