import numpy as np
import pandas as pd
import pytest

from memecmd_utils.cm50 import references
from memecmd_utils.cm50.prompts import FIGMEMES_LABELS
from memecmd_utils.cm50.references import FigMemesError, Labels
from memecmd_utils.core import paths

REAL = paths.root.parent / "shared" / "corpora" / "figmemes"
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
@pytest.mark.skipif(not REAL.is_dir(), reason=f"no FigMemes tables at {REAL}")
def test_every_real_line_is_parsed() -> None:
    found = references.read_split(REAL)["split"].value_counts()
    assert found.to_dict() == {"train": 3084, "test": 1542, "validation": 515}
