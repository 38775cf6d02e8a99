from pathlib import Path

import made_release
import pytest
from made_release import NASTY, write
from made_up import annotation, dialogue, meme, placement

from memecmd_utils import files, schemas
from memecmd_utils.release import manifest
from memecmd_utils.release import tables as release_tables


def test_round_trip(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "release"
    counts = write(run_dir, target)
    tables = {"memes": 3, "annotations": 2, "dialogues": 2, "placements": 2}
    assert counts == {**tables, "turns": 12, "images": 2}
    assert manifest.check_release(target) == counts
    assert files.read_jsonl(target / "dialogues.jsonl", schemas.Dialogue)[0] == dialogue()
    memes = {m.meme_id: m for m in release_tables.read_parquet(target, "memes")}
    assert memes["m1"].text == "先吃饭" and memes["m3"].file == ""
    found = files.read_parquet(target / "annotations.parquet", schemas.Annotation)
    assert found == [annotation("m1"), annotation("m3", source="big-model@v2")]
    assert (target / memes["m1"].file).read_bytes() == (run_dir / "images" / "m1.png").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_ground_truth_is_a_part_where_there_is_any(run_dir: Path, tmp_path: Path) -> None:
    counts = write(run_dir, tmp_path / "with", **made_release.truth())
    assert (counts["marks"], counts["grades"]) == (2, 4)
    found = files.read_jsonl(tmp_path / "with" / "marks.jsonl", schemas.Mark)
    assert found == made_release.truth()["marks"]
    counts = write(run_dir, tmp_path / "without")
    assert "marks" not in counts and "grades" not in counts
    for path in (tmp_path / "without").iterdir():
        assert path.stem not in ("marks", "grades")
        if path.suffix in (".md", ".json"):
            text = path.read_text(encoding="utf-8")
            assert "grades" not in text and "Marks and grades" not in text, path.name


def test_images_without_licence_stay_out_unless_wanted(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "release"
    write(run_dir, target)
    assert sorted(p.name for p in (target / "images").iterdir()) == ["m1.png", "m2.png"]
    assert "Images left out of this release: 1." in (target / "README.md").read_text(encoding="utf-8")
    assert write(run_dir, target, include_user_images=True)["images"] == 3
    assert (target / "images" / "m3.png").is_file()
    assert "rights are yours to check" in (target / "LICENSE.md").read_text(encoding="utf-8")


def test_bytes_are_the_same_again_and_a_stale_image_goes(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "release"
    write(run_dir, target, include_user_images=True, **made_release.truth())
    write(run_dir, target, **made_release.truth())
    first = (target / manifest.SUMS).read_text(encoding="utf-8")
    elsewhere = made_release.run_dir(tmp_path / "another place" / "run")
    write(elsewhere, tmp_path / "again", **made_release.truth())
    assert (tmp_path / "again" / manifest.SUMS).read_text(encoding="utf-8") == first
    assert str(tmp_path) not in (target / manifest.FILE).read_text(encoding="utf-8")
    assert "m3.png" not in first and manifest.FILE in first


def test_texts_of_any_kind_survive_and_break_nothing(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "r"
    counts = write(run_dir, target, **made_release.nasty())
    assert (counts["images"], counts["marks"]) == (1, 1)
    found = files.read_jsonl(target / "dialogues.jsonl", schemas.Dialogue)
    assert found == made_release.nasty()["dialogues"] == release_tables.read_parquet(target, "dialogues")
    assert files.read_jsonl(target / "annotations.jsonl", schemas.Annotation)[0].unscored == NASTY
    for name in ("README.md", "LICENSE.md"):
        text = (target / name).read_text(encoding="utf-8")
        assert "<b>" not in text and "\u2028" not in text and "](z)" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placements": [placement(3, "m1", speaker="B")]}, "no such turn of B"),
        ({"placements": [placement(3, "missing")]}, "no meme missing"),
        ({"annotations": [annotation("m7")]}, "annotation of m7: no meme"),
        ({"annotations": [annotation("m1"), annotation("m1")]}, "annotation 'm1' stands twice"),
        ({"memes": [meme("../m1")], "annotations": [], "placements": []}, "cannot be a file name"),
        ({"marks": [made_release.truth()["marks"][0].model_copy(update={"turn": 9})]}, "mark at .*no such"),
        ({"grades": made_release.truth()["grades"][:1] * 2}, "grade .* stands twice"),
    ],
)
def test_a_wrong_release_is_never_put_in_place(
    run_dir: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    target = tmp_path / "release"
    write(run_dir, target)
    before = (target / manifest.SUMS).read_bytes()
    with pytest.raises(manifest.ReleaseError, match=message):
        write(run_dir, target, **changes)
    assert (target / manifest.SUMS).read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_is_no_release_is_not_deleted(run_dir: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(manifest.ReleaseError, match="left as it is"):
        write(run_dir, mine)
    assert (mine / "thesis.txt").is_file()
