"""What needs neither torch nor weights; `test_paper_models` has the real cn_clip."""

import sys
from pathlib import Path
from types import SimpleNamespace

import made_up
import numpy as np
import pytest

from memecmd_utils.core import paths
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.chinese_clip import ChineseClipScorer
from memecmd_utils.core.recordings import vectors
from memecmd_utils.core.recordings.store import RecordingMiss
from memecmd_utils.evaluation import consistency
from memecmd_utils.runs import Run


def scorer(folder: Path, mode: str = "recorded", checkpoint: Path | None = None) -> ChineseClipScorer:
    return ChineseClipScorer("ViT-B-16", lambda meme: folder, folder, checkpoint, [folder], folder, mode)


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torchvision", "cn_clip", "cn_clip.clip"):
        monkeypatch.setitem(sys.modules, name, None)


def record(folder: Path, digest: str, texts: list[str]) -> None:
    """Vectors as a scorer leaves them: it is given an encoder in place of the model."""
    (folder / "w.pt").write_bytes(digest.encode())
    made = scorer(folder, "auto", folder / "w.pt")
    made._parts = (None, None, (None, None), "cpu")
    made._in_batches = lambda part, encode: made_up.vectors(part, "text")
    made.texts(texts)


@pytest.mark.parametrize("missing", ["torch", "cn_clip"])
def test_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=r"Chinese-CLIP cannot be loaded .*pip install -e '\.\[paper\]'"):
        scorer(tmp_path)


def test_the_two_builds_of_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fault of a torch and a torchvision of two builds, as cn_clip's import raises it (simulated)."""

    class Mismatch:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "cn_clip":
                raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0+cpu"))
    monkeypatch.delitem(sys.modules, "cn_clip", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Mismatch(), *sys.meta_path])
    versions = {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    monkeypatch.setattr(weights, "installed", versions.get)
    monkeypatch.setattr(weights.metadata, "requires", lambda name: ["torch ==2.13.0"])
    with pytest.raises(
        RuntimeError, match=r"nms .*2\.13\.0\+cpu and torchvision 0\.28\.0.*0\.28\.\* \(build"
    ):
        scorer(tmp_path)


def test_an_old_torch_would_run_what_a_checkpoint_holds(monkeypatch, tmp_path: Path) -> None:
    clip = SimpleNamespace(utils=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.1+cu121"))
    monkeypatch.setitem(sys.modules, "cn_clip", SimpleNamespace(clip=clip))
    monkeypatch.setitem(sys.modules, "cn_clip.clip", clip)
    with pytest.raises(RuntimeError, match=r"torch 2\.5\.1\+cu121 runs code .* 2\.6 or later"):
        scorer(tmp_path)


def test_recorded_vectors_tell_the_checkpoint(without_packages, tmp_path: Path) -> None:
    record(tmp_path, "first", ["好", "不好"])
    name = f"cn_clip:ViT-B-16@{weights.file_digest(tmp_path / 'w.pt')}"
    assert (tmp_path / "embedding" / name).is_dir()
    replay = scorer(tmp_path)
    assert replay.name == name
    assert np.abs(replay.texts(["不好", "好"]) - made_up.vectors(["不好", "好"], "text")).max() < 1e-3
    assert len(replay._recorded.used_keys) == 2 and replay.truncated == 0
    with pytest.raises(RecordingMiss, match="1 of 1 pictures"):
        replay.memes([made_up.meme("m1")])
    record(tmp_path, "second", ["好"])
    with pytest.raises(ValueError, match=r"several checkpoints are recorded .*give clip_checkpoint"):
        scorer(tmp_path)
    assert scorer(tmp_path, checkpoint=tmp_path / "w.pt").name != name


def test_a_checkpoint_that_is_not_there(without_packages, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.pt; .*clip_checkpoint=null"):
        scorer(tmp_path, "auto", tmp_path / "none.pt")
    record(tmp_path, "first", ["好"])
    assert scorer(tmp_path, "recorded", tmp_path / "none.pt").texts(["好"]).shape == (1, 8), "not needed"


def test_a_changed_replay_needs_no_weights(without_packages, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    folder = tmp_path / "raw" / "recordings" / "p"
    folder.mkdir(parents=True)
    record(folder, "first", ["好"])
    profile = made_up.profile(
        name="p", mode="recorded", consistency="cn_clip", clip_checkpoint=str(tmp_path / "gone.pt")
    )
    run = Run("p-12345678", profile, tmp_path, tmp_path)
    run.folder.mkdir(exist_ok=True)
    run.write("memes.parquet").touch()
    assert not run.strict
    found = consistency.clip_scorer(run, {})
    assert found.texts(["好"]).shape == (1, 8)
    with pytest.raises(RecordingMiss):
        found.texts(["新"])


def test_pictures_and_texts_do_not_share_keys(without_packages, tmp_path: Path) -> None:
    record(tmp_path, "first", ["0" * 64])
    with pytest.raises(RecordingMiss):
        scorer(tmp_path).memes([made_up.meme("m1")])


def test_how_many_were_cut_is_not_claimed_without_the_tokenizer(without_packages, tmp_path: Path) -> None:
    texts = ["好" * 50, "好" * 51]
    record(tmp_path, "first", texts)
    replay = scorer(tmp_path)
    replay.texts(texts[:1])
    assert replay.truncated == 0, "fifty characters are fifty tokens at most"
    replay.texts(texts)
    assert replay.truncated is None
    assert "not known without cn_clip" in consistency.cut_texts(None)
    assert consistency.cut_texts(0) == "" and "3 texts were cut" in consistency.cut_texts(3)


def test_rows_are_unit_vectors(without_packages, tmp_path: Path) -> None:
    record(tmp_path, "first", ["一", "二"])
    assert np.linalg.norm(scorer(tmp_path).texts(["一", "二"]), axis=1) == pytest.approx(1, abs=1e-6)
    assert vectors.recorded_names([tmp_path], "cn_clip:ViT-B-16@") == [scorer(tmp_path).name]
