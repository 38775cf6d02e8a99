from pathlib import Path

import pytest

from memecmd_utils.cm50.matching import (
    RULES,
    Decision,
    Matches,
    TemplateMatch,
    confirm,
    distinct_pairs,
    match_counts,
    read_decisions,
)
from memecmd_utils.core import storage
from memecmd_utils.core.images import LibraryError


def pair(
    instance: str, template: str, variant: str = "concatenated", kept: bool | None = True
) -> TemplateMatch:
    return TemplateMatch(
        instance=instance, template=template, variant=variant, distance=12.5, lpips=0.2, kept=kept
    )


PAIRS = [
    pair("a.png", "Round"), pair("b.png", "Square"), pair("c.png", "Round", kept=False),
    pair("a.png", "Round", "ocr_cosine"), pair("b.png", "Cross", "ocr_cosine"),
]  # fmt: skip


def csv_file(folder: Path, *lines: str) -> Path:
    path = folder / "said.csv"
    path.write_text("\n".join(["instance,template,action,why", *lines]) + "\n", encoding="utf-8-sig")
    return path


def test_decisions_come_back_and_confirm(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'a.png,Round,keep,"yes, it is"', "b.png,Cross,reject,", ",,,")
    decisions = read_decisions(path, PAIRS)
    assert decisions == [
        Decision("a.png", "Round", "keep", "yes, it is"), Decision("b.png", "Cross", "reject", ""),
    ]  # fmt: skip
    said = confirm(distinct_pairs(PAIRS), decisions)
    assert [p.confirmed for p in said] == [True, None, False] and said[0].why == "yes, it is"


@pytest.mark.parametrize("name", [" a.png ", "=1.png", "'=1.png", "-a.png", "a.png"])
def test_odd_names_are_read_as_the_sheet_saves_them_and_as_they_are(tmp_path: Path, name: str) -> None:
    pairs = [pair(name, "Round")]
    for cell in (storage.guarded(name), name, *([f" {name}"] if name == name.strip() else [])):
        assert read_decisions(csv_file(tmp_path, f'"{cell}",Round,keep,-'), pairs) == [
            Decision(name, "Round", "keep", "-")
        ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png,Round,drop,", "line 2: action 'drop' is neither keep nor reject"),
        ("z.png,Round,keep,", "line 2: 'z.png' and 'Round' are no pair of this sheet"),
        ("a.png,Round,keep,\na.png,Round,reject,", "line 3: 'a.png' and 'Round' are both kept and rejected"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(LibraryError, match=message):
        read_decisions(csv_file(tmp_path, line), PAIRS)


def test_counts_stand_beside_those_of_the_paper() -> None:
    done = Matches(RULES["code"], {"a.png": Path("a"), "b.png": Path("b")}, {"Round": Path("r")}, [])
    done.pairs, done.comparable = PAIRS, True
    done.pairs = [*PAIRS, pair("d.png", "Round", kept=False).model_copy(update={"lpips": None})]
    shown = match_counts(done, [], "memecap")
    assert shown["pairs"].tolist() == [2, 1, 3, 2, 2, 2, 3, "nobody looked yet"]
    assert shown.loc["confirmed by a person", "paper"] == 42
    said = confirm(
        distinct_pairs(PAIRS), [Decision("a.png", "Round", "keep"), Decision("b.png", "Cross", "reject")]
    )
    shown = match_counts(done, said, "figmemes")
    assert shown.loc["confirmed by a person"].tolist() == ["1 (2 of 3 looked at)", 46]
    done.comparable = False
    assert match_counts(done, said, "figmemes").loc["confirmed by a person", "paper"] == "other models: none"
