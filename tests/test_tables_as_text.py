import pandas as pd

from memecmd_utils import files

TABLE = pd.DataFrame(
    {
        "Dataset": ["News-based 6 Turns", "a|b\nc"],
        "mean": [1.23456, float("nan")],
        "n": [3, 4],
        "cell_1": ["**68.74** [68.10, 69.20] (n=3) ↑0.10", "<u>60.00</u> 5 % ↓1.00"],
        "none": [None, "–"],
    }
)


def test_markdown_table() -> None:
    lines = files.markdown(TABLE).split("\n")
    assert lines[0] == "| Dataset | mean | n | cell_1 | none |" and lines[1] == "|---|---|---|---|---|"
    assert lines[2] == "| News-based 6 Turns | 1.235 | 3 | **68.74** [68.10, 69.20] (n=3) ↑0.10 | – |"
    assert lines[3] == "| a\\|b c | – | 4 | <u>60.00</u> 5 % ↓1.00 | – |"
    assert lines[4:] == [""]


def test_latex_marks_are_latex() -> None:
    text = files.latex(TABLE)
    assert r"\textbf{68.74} [68.10, 69.20] (n=3) $\uparrow$0.10" in text
    assert r"\underline{60.00} 5 \% $\downarrow$1.00" in text
    assert r"cell\_1" in text and "1.235" in text
    assert not any(mark in text for mark in ("**", "<u>", "↑", "↓", "–", "NaN", "None"))


def test_tables_are_written_in_three_forms(tmp_path) -> None:
    folder = tmp_path / "tables"
    files.save_tables(folder, one=TABLE, empty=TABLE[:0])
    assert {p.name for p in folder.iterdir()} == {
        f"{n}.{e}" for n in ("one", "empty") for e in ("csv", "md", "tex")
    }
    back = pd.read_csv(folder / "one.csv")
    assert list(back.columns) == list(TABLE.columns) and back["mean"][0] == 1.23456
    assert (folder / "one.md").read_text(encoding="utf-8") == files.markdown(TABLE)
    assert (folder / "one.tex").read_text(encoding="utf-8").startswith("\\begin{tabular}")


def test_html_escapes_everything_but_our_own_marks() -> None:
    attack = "<script>alert('x')</script>"
    frame = pd.DataFrame({"a": [attack, "**1.50** and <u>2.00</u>", 0.12345], "b": [1, 2, float("nan")]})
    html = str(files.html_table(frame))
    assert "<script>" not in html and "<b>1.50</b>" in html and "<u>2.00</u>" in html
    assert "0.123" in html and "–" in html
