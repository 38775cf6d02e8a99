"""The authors' release as our records, from made-up files of its form: right, broken, or counted."""

from collections import Counter
from pathlib import Path

import made_paper_data
import pytest
from made_paper_data import MEMES, NEWS, ROLE

from memecmd_utils import authors
from memecmd_utils.authors import ReleaseUnreadable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_paper_data.release(tmp_path)


def test_dialogues_memes_scores_and_summaries_stand_where_they_belong(folder: Path) -> None:
    release = authors.read_release(folder)
    assert [d.dialogue_id for d in release.dialogues][:2] == ["news12-3_generated", "news12-4_generated"]
    by_id = {d.dialogue_id: d for d in release.dialogues}
    last = by_id["role6-role_based_0004"]
    assert (last.name_a, last.name_b, last.ref, len(last.turns)) == ("甲一", "乙二", "roommates_2", 6)
    # The second dialogue of the repeated id has the second of its summaries, at our turns 2 to 6.
    assert [(s.turn, s.speaker, s.scenario) for s in last.summaries] == [
        (2, "B", "S3.1"), (3, "A", "S3.2"), (4, "B", "S3.3"), (5, "A", "S3.4"), (6, "B", "S3.5"),
    ]  # fmt: skip
    placed = [p for p in release.placements if p.dialogue_id == last.dialogue_id]
    given = {(name, turn): meme for name, memes in MEMES.items() for turn, meme in memes.items()}
    assert {(p.strategy, p.turn): p.meme_id for p in placed} == given
    for strategy, memes in MEMES.items():
        chat = last.dialogue_id, strategy
        assert release.scores[chat] == 87.5
        assert release.cosines[chat] == [(meme, turn / 10) for turn, meme in memes.items()]
    odd = Counter(what.split("/")[0] for what in release.notes)
    assert odd == {"placed memes without an annotation": 1, "Dialogs_with_meme": 4 * 3}


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (ROLE.file("placed", "greedy"), '"full_dialog"', '"dialog"', "json: object 1 has no 'full_dialog'"),
        (ROLE.file("placed", "random"), "0第1句", "0第9句", "differ from those of the other"),
        (NEWS.file("judged", "sampling"), "]", "", "no whole JSON file"),
        (ROLE.file("placed", "greedy"), "B:a.jpg", "A: a.jpg", "are not those of content"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_one_sentence(
    folder: Path, name: str, old: str, new: str, said: str
) -> None:
    change(folder / name, old, new)
    with pytest.raises(ReleaseUnreadable, match=said):
        authors.read_release(folder)


def test_what_does_not_fit_is_counted(folder: Path) -> None:
    assert authors.read_release(folder).can_be_ranked
    (folder / ROLE.file("summarised")).unlink()
    change(folder / ROLE.file("judged", "greedy"), "role_based_0002.png", "role_based_0001.png")
    change(folder / ROLE.file("judged", "random"), "role_based_0003_random", "role_based_0009_random")
    change(folder / NEWS.file("compared", "greedy"), '"a.jpg"', '"c.jpg"')
    notes = authors.read_release(folder).notes
    assert notes[f"{ROLE.file('summarised')} is not here"] == 1
    assert notes["turns without a summary"] == 20
    assert notes["scores of no dialogue, and such as are no number"] == 2
    assert notes["cosines that belong to no placed meme"] == 1
    (folder / authors.MEMES).unlink()
    release = authors.read_release(folder)
    assert not release.can_be_ranked and {a.unscored for a in release.annotations} != {""}
    assert f"{authors.MEMES} is not here" in release.summary()
    with pytest.raises(ReleaseUnreadable, match="make paper-data"):
        authors.read_release(folder / "elsewhere")
