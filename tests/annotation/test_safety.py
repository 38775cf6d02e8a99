import typing

import made_release
import made_up
import numpy as np
import pytest

from memecmd_utils.annotation import annotator
from memecmd_utils.annotation.annotator import CheckedAnnotationReply
from memecmd_utils.core import storage
from memecmd_utils.core.llm import prompts
from memecmd_utils.core.llm.replies import strict_schema
from memecmd_utils import release
from memecmd_utils.release import ReleaseMeme
from memecmd_utils.retrieval import placement
from memecmd_utils.schemas import Annotation
from memecmd_utils.settings import Profile


def test_the_list_of_categories_is_the_one_that_is_asked() -> None:
    asked = typing.get_args(CheckedAnnotationReply.model_fields["unsafe"].annotation)
    text = prompts.render("annotation_checked")
    assert all(f'"{category}"' in text for category in asked)
    schema = strict_schema(CheckedAnnotationReply)
    assert schema["properties"]["unsafe"]["enum"] == list(asked) and "unsafe" in schema["required"]


def test_a_flagged_meme_is_no_candidate_of_retrieval() -> None:
    def encode(texts: list[str], side: str) -> np.ndarray:
        return np.eye(8, dtype=np.float32)[: len(texts)]

    said = [made_up.annotation(f"m{n}", unsafe=("", "", "hate", "")[n]) for n in range(4)]
    index = placement.index_library(said, encode, Profile(name="p"))
    assert list(index.meme_ids) == ["m0", "m1", "m3"]
    with pytest.raises(ValueError, match="no meme has a usable annotation"):
        placement.index_library(said[2:3], encode, Profile(name="p"))


def test_a_release_names_a_flagged_meme_and_shows_nothing_of_it(tmp_path) -> None:
    said = [
        made_up.annotation("m1", s_plus="说不得的场景", unsafe="abuse"),
        made_up.annotation("m2"),
        made_up.annotation("m3", unsafe=annotator.UNCHECKED, unscored="refused: says too much"),
    ]
    memes = [made_up.meme(name).model_copy(update={"text": f"图上的字{name}"}) for name in ("m1", "m2", "m3")]
    target = tmp_path / "release"
    changes = {"memes": memes, "annotations": said, "placements": [made_up.placement(2, "m2")]}
    made_release.write(made_release.run_dir(tmp_path / "run"), target, **changes)
    assert [path.name for path in (target / "images").iterdir()] == ["m2.png"]
    assert [meme.meme_id for meme in storage.read_jsonl(target / "memes.jsonl", ReleaseMeme)] == ["m2"]
    written = storage.read_jsonl(target / "annotations.jsonl", Annotation)
    assert [(a.meme_id, a.unsafe, bool(a.s_plus)) for a in written] == [
        ("m1", "abuse", False), ("m2", "", True), ("m3", "unchecked", False)
    ]  # fmt: skip
    texts = b"".join(path.read_bytes() for path in target.rglob("*") if path.is_file())
    for secret in ("说不得的场景", "图上的字m1", "图上的字m3", "says too much"):
        assert secret.encode() not in texts
    assert b"Memes named by their id only: 2." in (target / "README.md").read_bytes()
    release.check_release(target)


def test_a_release_that_sends_or_shows_a_flagged_meme_is_refused(tmp_path) -> None:
    run = made_release.run_dir(tmp_path / "run")
    said = [made_up.annotation("m1", unsafe="abuse"), made_up.annotation("m2")]
    with pytest.raises(release.ReleaseError, match="no meme m1"):
        made_release.write(run, tmp_path / "a", annotations=said, placements=[made_up.placement(2, "m1")])
    assert not (tmp_path / "a").exists()
    made_release.write(run, tmp_path / "b", annotations=said[1:], placements=[])
    shown = [a.model_dump_json() for a in said]
    (tmp_path / "b" / "annotations.jsonl").write_text("\n".join(shown) + "\n", encoding="utf-8")
    with pytest.raises(release.ReleaseError, match="m1 is flagged as abuse: more than its id is there"):
        release.check_release(tmp_path / "b")
