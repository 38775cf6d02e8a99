import gzip
import json

import numpy as np
import pandas as pd
import pytest
from made_templates import memecap_row

from memecmd_utils.cm50 import references
from memecmd_utils.cm50.prompts import FIGMEMES_LABELS
from memecmd_utils.cm50.references import FigMemesError, Labels, MemeCapError
from memecmd_utils.core.fetch.datasets import SOURCES, missing_parts
from memecmd_utils.files import paths

REAL = paths.root.parent / "shared" / "corpora" / "memecap"


def written(folder, rows, name: str = "memes-test.json"):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(rows).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


@pytest.mark.parametrize("name", references.FILES)
def test_file_and_folder_are_read(tmp_path, name) -> None:
    file = written(tmp_path, [memecap_row("a1"), memecap_row("b2")], name)
    for source in (file, tmp_path):
        memes = references.read(source)
        assert [meme.post_id for meme in memes] == ["a1", "b2"]
    assert memes[0].image == "memes_a1.png"
    assert memes[0].meme_captions == ["a1 is tired.", "a1 wants the weekend."]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (memecap_row("b2", meme_captions=[]), "meme_captions"),
        (memecap_row("b2", meme_captions="text"), "meme_captions is no list of texts"),
        (memecap_row("b2", post_id=""), "post_id"),
        ("text", "it is no object"),
        (memecap_row(), "post a1 occurs twice"),
        (memecap_row("b2", meme_captions=[1]), "meme_captions is no list of texts"),
        (memecap_row("b2", title="\ud83d"), "title holds half a character"),
    ],
)
def test_a_bad_record_is_left_out_and_counted(tmp_path, bad, reason, capsys) -> None:
    file = written(tmp_path, [memecap_row(), bad, memecap_row("c3")])
    assert [meme.post_id for meme in references.read(file)] == ["a1", "c3"]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("MemeCap: 2 records read, 1 left out (record 2: ") and reason in line


def test_a_file_without_any_record_is_an_error(tmp_path) -> None:
    with pytest.raises(MemeCapError, match=r"record 1: .*no object, and no other"):
        references.read(written(tmp_path, ["text", memecap_row("b2", url=None)]))
    with pytest.raises(MemeCapError, match="no list of memes"):
        references.read(written(tmp_path, {"a": 1}))


@pytest.mark.parametrize("name", ["in/data/memes-test.json", "memes_test_x.json", "a/memes-test.json.gz"])
def test_what_the_list_of_sources_accepts_is_found(tmp_path, name) -> None:
    written(tmp_path, [memecap_row("b2")], "deep/er/still/memes-test.json")
    written(tmp_path, [memecap_row("a1")], name)
    assert not missing_parts(SOURCES["memecap"], tmp_path)
    assert [meme.post_id for meme in references.read(tmp_path)] == ["a1"]


def test_missing_and_broken_files_say_what_to_give(tmp_path) -> None:
    with pytest.raises(MemeCapError, match=r"set memecap to the file memes-test\.json"):
        references.read(tmp_path)
    (tmp_path / "memes-test.json").write_text("{", encoding="utf-8")
    with pytest.raises(MemeCapError, match="cannot be read as JSON"):
        references.read(tmp_path)
    (tmp_path / "x.json.gz").write_bytes(b"no gzip")
    with pytest.raises(MemeCapError, match="cannot be read as JSON"):
        references.read(tmp_path / "x.json.gz")


def test_references_are_found_by_post_and_by_picture(tmp_path) -> None:
    found = references.references(references.read(written(tmp_path, [memecap_row("a1")])))
    assert found["a1"] == found["memes_a1"] == ["a1 is tired.", "a1 wants the weekend."]


@pytest.mark.corpora
@pytest.mark.skipif(not REAL.is_dir(), reason=f"no MemeCap records at {REAL}")
def test_every_real_record_is_parsed() -> None:
    memes = references.read(REAL)
    raw = json.loads(gzip.decompress((REAL / "memes_test_dev.json.gz").read_bytes()))
    assert len(memes) == len(raw) == 279
    for meme, record in zip(memes, raw, strict=True):
        assert [t.strip() for t in record["meme_captions"]] == meme.meme_captions


FIGMEMES = paths.root.parent / "shared" / "corpora" / "figmemes"
TRUE = {"1.png": ["allusion", "irony"], "2.jpg": [], "3.png": ["contrast"], "4.png": ["irony", "metaphor"]}
"""Made up, as everything here but the corpora test."""


def table(labels=TRUE) -> pd.DataFrame:
    rows = [{"img_name": n, **{f: int(f in d) for f in FIGMEMES_LABELS}} for n, d in labels.items()]
    return pd.DataFrame(rows).assign(year=2017, arts=1, real=0, mixed=0, infograph=0)


def tsv(folder, frame=None):
    file = folder / "figmemes_annotations.tsv"
    (table() if frame is None else frame).to_csv(file, sep="\t", index=False)
    return file


def test_the_released_table_is_read(tmp_path) -> None:
    file = tsv(tmp_path)
    for source in (file, tmp_path):
        found = references.read_labels(source)
        assert found.devices == TRUE and found.source == file.name
    table().to_csv(tmp_path / "labels.csv", index=False)
    assert references.read_labels(tmp_path / "labels.csv").devices == TRUE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="irony"), "columns missing: irony"),
        (lambda f: f.assign(irony="perhaps"), "record 1: irony is 'perhaps', not 0 or 1"),
        (lambda f: pd.concat([f, f]), "record 5 names 1.png again"),
        (lambda f: f.assign(img_name=""), "record 1 has no img_name"),
        (lambda f: f.iloc[:0], "holds no labels"),
    ],
)
def test_bad_tables_are_named(tmp_path, change, message) -> None:
    with pytest.raises(FigMemesError, match=message):
        references.read_labels(tsv(tmp_path, change(table())))


def test_another_format_is_named(tmp_path) -> None:
    (tmp_path / "x.xlsx").write_text("", encoding="utf-8")
    with pytest.raises(FigMemesError, match=r"\.tsv or \.csv"):
        references.read_labels(tmp_path / "x.xlsx")


def test_macro_f1_by_hand() -> None:
    said = {
        "1": ["sarcasm"],
        "2.jpg": ["none"],
        "dir/3.png": ["pun"],
        "4.png": ["simile", "allusion"],
        "9": [],
    }
    found = references.macro_f1(said, Labels(TRUE, "made up"))
    # irony: 1 hit, 1 missed: 2/3; metaphor: 1; allusion: 1 missed, 1 wrong: 0; contrast missed: 0; others 0
    assert found.per_label == pytest.approx((2 / 3 + 1) / 6)
    # 24 cells: true 5, said 3, both 2; zeros: true 19, said 21, both 18
    assert found.flattened == pytest.approx((2 * 2 / 8 + 2 * 18 / 40) / 2)
    assert found.n == 4, "one has no labels"


def test_antithesis_counts_as_the_variant_says() -> None:
    said = {"3": ["antithesis"]}
    labels = Labels({"3.png": ["contrast"]}, "made up")
    assert references.macro_f1(said, labels, "paper").per_label == 0
    assert references.macro_f1(said, labels, "code").per_label == 1 / 6


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_scikit_learn(seed) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    true, said = rng.random((40, 6)) < 0.3, rng.random((40, 6)) < 0.3
    true[:, 1] = said[:, 1] = False  # a label that never occurs

    def words(row) -> list[str]:
        return [label for label, on in zip(FIGMEMES_LABELS, row, strict=True) if on]

    labels = Labels({f"{i}.png": words(row) for i, row in enumerate(true)}, "made up")
    found = references.macro_f1({str(i): words(row) for i, row in enumerate(said)}, labels)
    each = metrics.f1_score(true, said, average=None, zero_division=0)
    assert references.f1(true, said) == pytest.approx(each)
    assert found.per_label == pytest.approx(metrics.f1_score(true, said, average="macro", zero_division=0))
    assert found.flattened == pytest.approx(metrics.f1_score(true.ravel(), said.ravel(), average="macro"))
    one = np.zeros((1, 6), bool), np.zeros((1, 6), bool)
    assert references.f1(*one).sum() == metrics.f1_score(*one, average="macro", zero_division=0) == 0


def split(folder, **changes):
    frame = pd.DataFrame({"img_name": ["1.png", "2.png"], "split": ["train", "test"]})
    folder.mkdir(parents=True, exist_ok=True)
    frame.assign(**changes).to_csv(folder / references.SPLIT, sep="\t", index=False)
    return folder


def test_the_split_is_found_from_its_table_or_above(tmp_path) -> None:
    data = split(tmp_path / "checkout" / "data")
    for place in (tmp_path, data, data / references.SPLIT):
        assert references.read_split(place)["split"].tolist() == ["train", "test"]
    with pytest.raises(FigMemesError, match=r"no standard_split\.tsv in form:"):
        references.read_split(tmp_path / "form")


def test_texts_on_the_memes_are_beside_the_labels(tmp_path) -> None:
    (tmp_path / "form").mkdir()
    labels = tmp_path / "form" / "labels.tsv"
    labels.touch()
    assert references.read_texts(labels, None, tmp_path) == {}
    # As released, fields are not quoted: a quotation mark is part of the text.
    (tmp_path / "form" / "figmemes_ocrs.tsv").write_text('img_name\ttext\n1.png\t"WHO\n2.png\t\n')
    for place in (labels, labels.parent):
        assert references.read_texts(None, tmp_path, place) == {"1.png": '"WHO', "2.png": ""}
    (tmp_path / "form" / "figmemes_ocrs.tsv").write_text("img_name\tocr\n")
    with pytest.raises(FigMemesError, match="columns missing: text"):
        references.read_texts(labels)


def test_bad_split_tables_are_named(tmp_path) -> None:
    with pytest.raises(FigMemesError, match="set figmemes to the folder data"):
        references.read_split(tmp_path)
    with pytest.raises(FigMemesError, match="splits 'dev'"):
        references.read_split(split(tmp_path, split="dev"))
    with pytest.raises(FigMemesError, match="occurs twice"):
        references.read_split(split(tmp_path, img_name="1.png"))
    (tmp_path / references.SPLIT).write_text("img_name\tcluster\n", encoding="utf-8")
    with pytest.raises(FigMemesError, match="columns missing: split"):
        references.read_split(tmp_path)


@pytest.mark.corpora
@pytest.mark.skipif(not FIGMEMES.is_dir(), reason=f"no FigMemes tables at {FIGMEMES}")
def test_every_real_line_is_parsed() -> None:
    found = references.read_split(FIGMEMES)["split"].value_counts()
    assert found.to_dict() == {"train": 3084, "test": 1542, "validation": 515}
