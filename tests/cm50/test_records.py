import gzip
import json
import zipfile

import made_templates as made
import pytest

from memecmd_utils import files
from memecmd_utils.cm50 import records
from memecmd_utils.cm50.records import RecordsMissing, read_cm50, read_records, read_templates
from memecmd_utils.files import paths
from memecmd_utils.schemas import MemeReading, TemplateMeme


@pytest.mark.parametrize(
    ("value", "found"),
    [("plain", False), ("caf\u00e9 \U0001f63a", False), ("\ud83d", True), ("a \udc00 b", True),
     ({"a": ["b", {"c": "\ud83d"}]}, True), ({"\ud83d": 1}, True), ([1, None, "x"], False)],
)  # fmt: skip
def test_half_a_character_is_found_wherever_it_stands(value, found):
    assert records.halves(value) == found
    text = json.dumps(value, ensure_ascii=False)
    if found:
        with pytest.raises(UnicodeEncodeError):
            text.encode()
    else:
        text.encode()


@pytest.mark.parametrize(
    ("url", "meme_id"),
    [("https://i.imgflip.com/3vmgm2.jpg", "3vmgm2"), ("//x.org/a/b.jpg?c=/d.png#e", "b"), ("a.jpg", "a"),
     ("https://i.imgflip.com/a.b.jpg", "a.b")],
)  # fmt: skip
def test_the_id_is_the_base_name_of_the_address(url, meme_id):
    raw = {"url": url, "views": 1, "img-votes": "1,000", "boxes": []}
    assert records.template_row(raw, "T", 3) == (meme_id, "T", 2, url, "", "", 1, 1000, [])


def test_documents_come_from_files_and_zips_with_errors_as_values(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b"[2]")[:-3])
    (tmp_path / "c.json").write_text("[" * 200_000)
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "d.zip", "w") as archive:
        archive.writestr("e/f.json", "[3]")
        archive.writestr("g.txt", "no")
    (tmp_path / "h.csv").touch()
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    found = dict(records.json_documents(files, tmp_path))
    assert list(found) == ["a.json", "b.json.gz", "c.json", "in/d.zip/e/f.json"]
    assert (found["a.json"], found["in/d.zip/e/f.json"]) == ([1], [3])
    assert isinstance(found["b.json.gz"], ValueError) and isinstance(found["c.json"], ValueError)


def test_names_of_files_can_be_shown():
    table = records.broken_table([("a\udcff.json", 1, "why")])
    assert table["file"][0] == "a\\udcff.json" and table.to_csv().encode()


CORPORA = paths.root.parent / "shared" / "corpora"


@pytest.fixture
def small():
    return {name: [made.record(name, n) for n in range(4)] for name in made.TEMPLATES[:2]}


def test_both_layouts_give_the_same_frame_without_authors(tmp_path, small):
    checkout = made.write_source(tmp_path, small)
    nested = read_records(checkout)
    for folder in (checkout / "dataset", made.write_flat(tmp_path, small)):
        other = read_records(folder)
        assert other.frame.equals(nested.frame) and other.broken.empty
    frame = nested.frame
    assert list(frame.columns) == list(records.COLUMNS) and len(frame) == 8
    row = frame.iloc[0].to_dict()
    assert (row["meme_id"], row["template"], row["position"]) == ("do00000", "Dont-Feed-Dave", 0)
    assert row["captions"] == ["when the", "kettle sings"] and row["title"] == "made-up do00000"
    assert "nobody-in-particular" not in frame.to_json()


def test_numbers_and_texts_as_the_source_has_them(tmp_path):
    strange = "line\u2028separator\nand \u0085 break"
    rows = [
        made.record("Tall-Goat", 1, votes=1234, views=1_234_567, title=strange),
        made.record("Tall-Goat", 2, votes=0),
    ]
    rows[0]["metadata"]["img-votes"] = "1,234"
    rows[1]["metadata"]["author"] = None
    for folder in (made.write_source(tmp_path, {"Tall-Goat": rows}),
                   made.write_flat(tmp_path, {"Tall-Goat": rows})):  # fmt: skip
        frame = read_records(folder).frame
        assert frame["views"].tolist() == [1_234_567, 400] and frame["votes"].tolist() == [1234, 0]
        assert frame["title"][0] == strange


def break_lines(lines):
    bad = {
        "not JSON": '{"url": ',
        "must be an object": "[1]",
        "views is no number: '2K'": json.dumps({**json.loads(lines[0]), "views": "2K"}),
        "img-votes is no number: 'None'": json.dumps({**json.loads(lines[0]), "img-votes": None}),
        "views is no number: '-1'": json.dumps({**json.loads(lines[0]), "views": -1}),
        "captions are no list": json.dumps({**json.loads(lines[0]), "boxes": ["a", None]}),
        "no url": json.dumps({**json.loads(lines[0]), "url": ""}),
        "title is no text": json.dumps({**json.loads(lines[0]), "title": 5}),
    }
    return bad


def test_broken_entries_are_shown_with_place_and_reason(tmp_path):
    lines = [json.dumps(made.flat("Tall-Goat", made.record("Tall-Goat", n))) for n in range(3)]
    bad = break_lines(lines)
    (tmp_path / "memes").mkdir()
    text = "\n".join([lines[0], *bad.values(), "", *lines[1:]])
    (tmp_path / "memes" / "Tall-Goat.jsonl").write_text(text, encoding="utf-8")
    found = read_records(tmp_path)
    assert len(found.frame) == 3 and found.frame["position"].tolist() == [0, 10, 11]
    assert found.broken["place"].tolist() == list(range(2, 2 + len(bad)))
    for reason, want in zip(found.broken["reason"], bad, strict=True):
        assert want in reason


def test_a_file_that_is_cut_off_keeps_what_came_before(tmp_path, small):
    folder = made.write_flat(tmp_path, {"Late-Bus": [made.record("Late-Bus", n) for n in range(5000)]})
    path = folder / "memes" / "Late-Bus.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    (folder / "memes" / "Other.json").write_text("[{", encoding="utf-8")
    (folder / "memes" / "Object.json").write_text("{}", encoding="utf-8")
    found = read_records(folder)
    assert 0 < len(found.frame) < 5000
    assert sorted(found.broken["file"]) == ["Late-Bus.jsonl.gz", "Object.json", "Other.json"]
    assert found.broken["reason"].str.contains("cannot be read|not JSON").all()


def test_templates_have_all_their_names(tmp_path, small):
    checkout = made.write_source(tmp_path, small)
    table = 'ID,Name,Alternate Names\n"1","Don\x92t Feed Dave","caf\xe9 dave, dave"\n'.encode("latin-1")
    (checkout / "dataset" / "popular_100_memes.csv").write_bytes(table)
    infos = {info.template: info for info in read_templates(checkout, [])}
    assert sorted(infos) == ["Dont-Feed-Dave", "Sad-Kettle"]
    dave = infos["Dont-Feed-Dave"]
    assert dave.title == "Don't Feed Dave"
    # Byte 0x92 is a quote in Windows-1252 and nothing in Latin-1.
    assert dave.names == ["one more name", "another", "Don\u2019t Feed Dave", "café dave", "dave"]
    assert records.read_upstream(checkout, []) == {"Dont-Feed-Dave": 4, "Sad-Kettle": 4}
    entries = {path.stem: json.loads(path.read_text()) for path in checkout.rglob("templates/*.json")}
    (checkout / "dataset" / "templates.json").write_text(json.dumps(entries))
    assert {info.template: info for info in read_templates(checkout, [])} == infos


@pytest.mark.parametrize("form", ["zip", "gz"])
def test_cm50_gives_memes_readings_and_templates(tmp_path, small, form):
    pairs = [(name, raw) for name, rows in small.items() for raw in rows]
    folder = made.write_cm50(tmp_path, pairs, form)
    found = read_cm50(folder)
    assert (len(found.memes), len(found.readings), len(found.infos)) == (8, 8, 2) and found.broken.empty
    meme, reading, info = found.memes[0], found.readings[0], found.infos[0]
    assert (meme.split, meme.views, meme.source) == ("validation", 400, "CM50")
    assert reading.meme_id == meme.meme_id and reading.source == "gpt-4o@cm50"
    assert reading.meme_caption.startswith("The kettle") and reading.literary_devices == ["irony", "allusion"]
    assert (reading.prompt, reading.context) == ("", None)
    assert info.about == f"What {info.template} means." and (folder / info.picture).is_file()
    frame = records.frame_of(found.memes)
    assert frame["position"].tolist() == [0, 1, 2, 3] * 2
    assert [m.meme_id for m in records.memes_of(frame)] == [m.meme_id for m in found.memes]


def test_a_broken_record_of_cm50_is_shown_and_a_repeat_counts_once(tmp_path, small):
    pairs = [("Sad-Kettle", raw) for raw in small["Sad-Kettle"]]
    folder = made.write_cm50(tmp_path, pairs)
    rows = [made.annotated(*pair) for pair in pairs]
    del rows[1]["emotion word"]
    rows[2]["literary device"] = "irony"
    (folder / "again_validation.json").write_text(json.dumps(rows))
    (folder / "cut.json").write_text("[")
    (folder / "other.json").write_text(json.dumps([{"img_captions": []}]))
    (folder / "bad.zip").write_bytes(b"PK")
    found = read_cm50(folder)
    assert len(found.memes) == len(found.readings) == 4
    places = sorted(zip(found.broken["file"], found.broken["place"], strict=True))
    assert places == [("again_validation.json", 2), ("again_validation.json", 3),
                      ("bad.zip", 1), ("cut.json", 1)]  # fmt: skip


def write_validation(folder, rows, name="validation.json"):
    path = folder / "cm50" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows))
    return folder / "cm50"


def test_one_odd_entry_at_the_start_hides_no_file(tmp_path, small):
    rows = [made.annotated("Sad-Kettle", raw) for raw in small["Sad-Kettle"]]
    for first in ("text", {}, {"url": "x"}, {k: v for k, v in rows[0].items() if k != "type"}):
        found = read_cm50(write_validation(tmp_path, [first, *rows[1:]]))
        assert len(found.memes) == 3 and found.broken["place"].tolist() == [1]
    other = [{"url": "x", "views": "1"}, {"img_captions": []}]
    write_validation(tmp_path, other)
    with pytest.raises(RecordsMissing):
        read_cm50(tmp_path / "cm50")


HALF = "a cat \ud83d"


@pytest.mark.parametrize(
    "change",
    [{"title": HALF, "metadata": {"views": "1", "img-votes": "1", "title": HALF}}, {"url": f"https://x/{HALF}.jpg"},
     {"ocr": ["fine", HALF]}, {"post": HALF}, {"type": HALF}, {"visual elaboration": HALF},
     {"literary device": [HALF]}, {"emotion word": HALF}],
)  # fmt: skip
def test_half_a_character_makes_a_broken_row(tmp_path, small, change):
    rows = [made.annotated("Sad-Kettle", raw) for raw in small["Sad-Kettle"]]
    rows[1] |= change
    found = read_cm50(write_validation(tmp_path, rows))
    assert len(found.memes) == 3 and found.broken["place"].tolist() == [2]
    assert found.broken["reason"][0].endswith("holds half a character")
    files.write_parquet(tmp_path / "memes.parquet", found.memes, TemplateMeme)
    files.write_parquet(tmp_path / "readings.parquet", found.readings, MemeReading)
    found.broken.to_csv(tmp_path / "broken.csv")


def test_half_a_character_in_the_large_source_makes_a_broken_row(tmp_path, small):
    rows = small["Sad-Kettle"]
    rows[0]["metadata"]["title"], rows[1]["boxes"], rows[2]["url"] = HALF, [HALF], f"https://x/{HALF}.jpg"
    rows[3]["metadata"]["author"] = HALF  # not read
    found = read_records(made.write_source(tmp_path, small))
    assert found.broken["place"].tolist() == [1, 2, 3]
    assert found.broken["reason"].str.endswith("holds half a character").all()
    files.write_parquet(tmp_path / "memes.parquet", records.memes_of(found.frame), TemplateMeme)


@pytest.mark.parametrize(
    "url", ["https://i.imgflip.com/ .jpg", "https://i.imgflip.com/", "https://x.org/a/", " "]
)
def test_a_url_without_an_id_makes_a_broken_row(tmp_path, small, url):
    small["Sad-Kettle"][1]["url"] = url
    found = read_records(made.write_source(tmp_path, small))
    assert found.broken[["file", "place"]].values.tolist() == [["Sad-Kettle.json", 2]]
    assert len(records.memes_of(found.frame)) == 7
    rows = [made.annotated("Sad-Kettle", raw) for raw in small["Sad-Kettle"]]
    rows[2]["type"], rows[3]["type"] = None, " "
    published = read_cm50(write_validation(tmp_path, rows))
    assert len(published.memes) == 1 and published.broken["place"].tolist() == [2, 3, 4]


def test_a_number_that_no_column_can_hold_makes_a_broken_row(tmp_path, small):
    small["Sad-Kettle"][1]["metadata"]["views"] = 2**63
    small["Sad-Kettle"][2]["metadata"]["views"] = "9" * 5000
    found = read_records(made.write_source(tmp_path, small))
    assert found.broken["place"].tolist() == [2, 3] and found.frame["views"].dtype == "int64"


@pytest.mark.parametrize(
    ("files", "part"),
    [(("training_set.json", "validation_set.json"), "validation"), (("a.json", "training.json"), "train"),
     (("a_train/x.json", "b_valid/x.json"), "validation"), (("valid and train/train.json",), "train"),
     (("training.json",), "train"), (("a.json",), None)],
)  # fmt: skip
def test_a_meme_in_several_parts_counts_for_validation(tmp_path, small, files, part):
    row = made.annotated("Sad-Kettle", small["Sad-Kettle"][0])
    for name in files:
        folder = write_validation(tmp_path, [row], name)
    found = read_cm50(folder)
    assert [meme.split for meme in found.memes] == [part] and len(found.readings) == 1


def test_a_reading_that_is_broken_does_not_free_its_meme_for_training(tmp_path, small):
    row = made.annotated("Sad-Kettle", small["Sad-Kettle"][0])
    write_validation(tmp_path, [row], "training.json")
    found = read_cm50(write_validation(tmp_path, [{**row, "emotion word": None}]))
    assert [meme.split for meme in found.memes] == ["validation"] and len(found.broken) == 1


@pytest.mark.parametrize(
    ("about", "n_broken", "left"),
    [
        ({"Sad-Kettle": {"about": None}, "Goat": {"about": "x"}}, 1, {"Sad-Kettle": "", "Goat": "x"}),
        ({"Sad-Kettle": "text", "Goat": {"about": "x"}}, 1, {"Sad-Kettle": "", "Goat": "x"}),
        ({"Sad-Kettle": {"about": HALF}, " ": {}, HALF: {}, "/": {"about": ""}}, 3,
         {"Sad-Kettle": "", "/": ""}),
        ([1], 1, {}),
        ("{", 1, {}),
    ],
)  # fmt: skip
def test_odd_texts_of_templates_are_broken_rows(tmp_path, small, about, n_broken, left):
    folder = made.write_cm50(tmp_path, [("Sad-Kettle", raw) for raw in small["Sad-Kettle"]])
    text = about if isinstance(about, str) else json.dumps(about)
    (folder / "data" / "50_template_info.json").write_text(text)
    found = read_cm50(folder)
    assert {info.template: info.about for info in found.infos} == left and len(found.memes) == 4
    assert found.broken["file"].tolist() == ["50_template_info.json"] * n_broken


@pytest.mark.parametrize("entry", ['{"title": null}', '{"title": 5}', "[]", "{", '{"template_url": null}'])
def test_odd_entries_of_templates_are_broken_rows_or_named(tmp_path, small, entry):
    folder = made.write_cm50(tmp_path, [("Sad-Kettle", raw) for raw in small["Sad-Kettle"]])
    next(folder.rglob("templates/Sad-Kettle.json")).write_text(entry)
    found = read_cm50(folder)
    assert found.broken["file"].tolist() == ["Sad-Kettle.json"] and len(found.memes) == 4
    assert [(info.about, info.title) for info in found.infos] == [("What Sad-Kettle means.", "")]
    checkout = made.write_source(tmp_path, small)
    (checkout / "dataset" / "templates" / "Sad-Kettle.json").write_text(entry)
    broken = []
    assert [info.template for info in read_templates(checkout, broken)] == ["Dont-Feed-Dave"]
    assert [name for name, _, _ in broken] == ["Sad-Kettle.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("statistics.json", "[1]"), ("statistics.json", '{"memes": ["A.json"]}'), ("statistics.json", "{"),
     ("statistics.json", '{"memes": {"A.json": "many"}}'), ("statistics.json", "{}"),
     ("templates.json", "[]"), ("templates.json", "{"), ("templates.json", '{"A": null}'),
     ("popular_100_memes.csv", "ID,Other\n1,2\n")],
)  # fmt: skip
def test_odd_files_of_the_large_source_are_named(tmp_path, small, name, text):
    checkout = made.write_source(tmp_path, small)
    (checkout / "dataset" / name).write_text(text)
    read = records.read_upstream if name == "statistics.json" else read_templates
    broken = []
    read(checkout, broken)
    assert [file for file, _, _ in broken] == [name]


@pytest.mark.corpora
@pytest.mark.skipif(not CORPORA.is_dir(), reason="the real records are not on this machine")
def test_every_real_record_parses():
    found = read_records(CORPORA / "imgflip575k")
    assert len(found.frame) == 377_120 and found.broken.empty
    counts = found.frame["template"].value_counts()
    upstream = records.read_upstream(CORPORA / "imgflip575k", [])
    assert len(counts) == 88 and all(upstream[name] == n for name, n in counts.items())
    assert found.frame["meme_id"].is_unique
    assert (found.frame["title"].str.contains("\n")).sum() >= 1000
    assert len(read_templates(CORPORA / "imgflip575k", [])) == 100
    published = read_cm50(CORPORA / "cm50")
    assert (len(published.memes), len(published.readings), len(published.infos)) == (675, 675, 50)
    assert published.broken.empty and all(info.picture for info in published.infos)
    assert sum(bool(info.about) for info in published.infos) == 49
