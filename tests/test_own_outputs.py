import json

import pytest

from memecmd_utils.chat_columns import ChatFileError
from memecmd_utils.own_outputs import NAME, Outputs


@pytest.fixture
def outputs(tmp_path):
    return Outputs(tmp_path / "o.csv", tmp_path / "o_memes")


def test_what_was_written_may_be_written_again(outputs, tmp_path) -> None:
    page, picture = tmp_path / "o.html", tmp_path / "o_memes" / "a.png"
    outputs.write({picture: b"1", page: b"2"})
    outputs.write({picture: b"1", page: b"3"})
    assert (picture.read_bytes(), page.read_bytes()) == (b"1", b"3")
    page.write_bytes(b"edited")
    for check in (outputs.check, outputs.write):
        with pytest.raises(ChatFileError, match=r"o\.html was not written by this command for o\.csv"):
            check({page: b"4"})
    outputs.check({page: b"edited", picture: b"5"})


def test_a_killed_run_may_have_written_some(outputs, tmp_path, monkeypatch) -> None:
    """Each file is what it was or what it was to become; both are ours."""
    page, picture = tmp_path / "o.html", tmp_path / "o_memes" / "a.png"
    outputs.write({picture: b"1", page: b"2"})
    outputs.write({picture: b"3", page: b"4"})
    for one in (b"1", b"3"):
        for two in (b"2", b"4"):
            picture.write_bytes(one)
            page.write_bytes(two)
            outputs.check([picture, page])


@pytest.mark.parametrize("found", ["", "[]", "{", '{"written_by": "x", "output": "o.csv", "files": {}}'])
def test_a_list_of_somebody_else_is_none(outputs, found) -> None:
    outputs.folder.mkdir()
    (outputs.folder / NAME).write_text(found, encoding="utf-8")
    with pytest.raises(ChatFileError, match="o_memes was not written"):
        outputs.check([])


def test_an_empty_folder_is_nobodys(outputs) -> None:
    outputs.folder.mkdir()
    outputs.write({outputs.target: b"x"})
    assert json.loads((outputs.folder / NAME).read_text(encoding="utf-8"))["output"] == "o.csv"


def test_a_folder_in_the_place_of_a_file(outputs) -> None:
    outputs.target.mkdir()
    with pytest.raises(ChatFileError, match=r"o\.csv was not written"):
        outputs.check([outputs.target])
