"""Dual encoders: tiny random models of the real classes, against plain calls of transformers.

Of Chinese-CLIP what needs neither torch nor weights; `test_paper_models` has the real cn_clip.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import made_retrieval
import made_up
import numpy as np
import pytest
import tiny_clips
from PIL import Image, ImageDraw

from memecmd_utils import recordings as vectors
from memecmd_utils.core.encoders import clip, weights
from memecmd_utils.core.encoders.clip import ALIGN, ARCHITECTURES, B32, L14, ChineseClipScorer
from memecmd_utils.evaluation import consistency
from memecmd_utils.files import paths
from memecmd_utils.pictures import ImageRejected
from memecmd_utils.recordings import RecordingMiss
from memecmd_utils.runs import Run
from memecmd_utils.settings import Profile

KINDS = ("clip", "align", "chinese_clip")
LONG = "when you see it " * 20
TEXTS = ["a cat", "", "one does not simply walk", LONG, "周末去爬山吗？天气真好", "a cat", "yes"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, files = tmp_path_factory.mktemp("pictures"), []
    for n, size in enumerate([(40, 60), (64, 64), (90, 30), (33, 47), (64, 64)]):
        shade = (40 * n, 250 - 50 * n, 90)
        image = Image.new("RGB", size, shade) if n != 3 else Image.new("RGBA", size, (*shade, 60))
        ImageDraw.Draw(image).ellipse((n, 5, 25 + n, 28), fill=(255, 255 - 60 * n, 10 * n))
        files.append(folder / f"{n}.png")
        image.save(files[-1])
    files.append(folder / "copy.png")
    files[-1].write_bytes(files[0].read_bytes())
    return files


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models")
    return {kind: tiny_clips.folder_of(kind, folder / kind) for kind in KINDS}


def plain(folder: Path, texts: list[str], files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Features of the library itself: one text and one picture at a time, by its own processor."""
    import torch
    from transformers import AutoModel, AutoProcessor

    model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    limit = {"clip": 77, "align": 64, "chinese_clip": 52}[model.config.model_type]
    rows, pixels = [], []
    with torch.inference_mode():
        for text in texts:
            tokens = processor(text=[text], return_tensors="pt", truncation=True, max_length=limit)
            given = model.get_text_features(**tokens)
            rows.append(getattr(given, "pooler_output", given)[0].numpy())
        for file in files:
            image = Image.open(file)
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image).convert("RGB") if image.mode == "RGBA" else image
            given = model.get_image_features(**processor(images=image, return_tensors="pt"))
            pixels.append(getattr(given, "pooler_output", given)[0].numpy())
    return np.array(rows), np.array(pixels)


def near(rows: np.ndarray, others: np.ndarray) -> bool:
    """Equal but for the float16 of recorded vectors: two thousandths of a row's length."""
    off = np.linalg.norm(rows - others, axis=1) / np.linalg.norm(others, axis=1)
    return bool((off < 2e-3).all())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_transformers(kind: str, models, pictures, tmp_path: Path) -> None:
    encoder = clip.load(models[kind], read_dirs=[tmp_path], write_dir=tmp_path)
    texts, files = plain(models[kind], TEXTS, pictures)
    rows, seen = encoder.encode_texts(TEXTS), encoder.encode_images(pictures)
    assert rows.dtype == seen.dtype == np.float32 and rows.shape == (7, 24) and seen.shape == (6, 24)
    assert near(rows, texts) and near(seen, files)
    assert np.ptp(np.linalg.norm(rows, axis=1)) > 0.01, "lengths are kept, not made one"
    assert np.abs(np.linalg.norm(seen, axis=1) - 1).min() > 0.01
    assert np.array_equal(rows[0], rows[5]) and np.array_equal(seen[0], seen[5])
    assert np.linalg.norm(seen[0] - seen[1]) > 0.01, "two pictures, two rows"
    assert encoder.name == f"clip:{kind}@{weights.folder_digest(models[kind])}-float32"
    assert len(encoder._recorded.used_keys) == 6 + 5


def test_the_batch_does_not_matter_and_each_thing_is_encoded_once(models, pictures, monkeypatch) -> None:
    one, many = clip.load(models["clip"]), clip.load(models["clip"])
    asked = []
    real = clip._decode
    monkeypatch.setattr(clip, "_decode", lambda file: asked.append(file.name) or real(file))
    rows = many.encode_images(pictures)
    monkeypatch.setattr(clip, "BATCH", {"cpu": 1})
    assert near(one.encode_images(pictures), rows)
    assert len(asked) == 2 * 5, "the copy has the bytes of the first"
    one.encode_images(pictures)
    assert len(asked) == 10
    assert near(one.encode_texts(TEXTS), many.encode_texts(TEXTS))


def test_a_replay_needs_neither_torch_nor_weights(models, pictures, tmp_path, monkeypatch) -> None:
    made = clip.load(models["clip"], read_dirs=[tmp_path], write_dir=tmp_path)
    texts, seen = made.encode_texts(TEXTS), made.encode_images(pictures)
    for name in ("torch", "torchvision", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in (models["clip"], "elsewhere/clip"):  # the folder, and one that is not there
        replay = clip.load(name, read_dirs=[tmp_path], mode="recorded")
        assert np.array_equal(replay.encode_texts(TEXTS), texts)
        assert np.array_equal(replay.encode_images(pictures), seen)
        assert replay.name == made.name
        with pytest.raises(RecordingMiss, match="1 of 1 texts have no recorded vector of clip:clip@"):
            replay.encode_texts(["another"])


def record(folder: Path, name: str, texts: list[str]) -> None:
    """Rows (3, 4) as an encoder leaves them."""
    store = vectors.RecordedVectors(name, [], folder)
    keys = [clip._key("text", text) for text in texts]
    store.rows(keys, texts, lambda part: np.array([[3.0, 4.0, 1.0]] * len(part)))


def test_other_weights_than_recorded_are_refused(models, tmp_path: Path, monkeypatch) -> None:
    record(tmp_path, "clip:some/model@0123456789ab-float32", ["a cat"])
    monkeypatch.setattr(weights, "hub_commit", lambda model: None)
    encoder = clip.load("some/model", read_dirs=[tmp_path])
    assert encoder.name.startswith("clip:some/model@0123")
    monkeypatch.setattr(clip.Towers, "load", lambda self: "ba9876543210")
    with pytest.raises(RuntimeError, match=r"0123456789ab-float32 are recorded, but .*@ba9876543210"):
        encoder.encode_texts(["a dog"])
    record(tmp_path, "clip:some/model@aaaaaaaaaaaa-float32", ["a cat"])
    with pytest.raises(ValueError, match="several versions of some/model"):
        clip.load("some/model", read_dirs=[tmp_path]).encode_texts(["a cat"])


def test_what_is_missing_is_said_in_a_sentence(tmp_path: Path, monkeypatch, pictures) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(clip.ModelMissing, match=r"no vectors of some/model are recorded"):
        clip.load("some/model", mode="recorded").encode_images(pictures)
    with pytest.raises(clip.ModelMissing, match=r"there is no folder .*nowhere"):
        clip.load(tmp_path / "nowhere").encode_texts(["a"])
    monkeypatch.setattr(weights, "installed", lambda package: None)
    with pytest.raises(clip.ModelMissing, match=r"needs torch and transformers: pip install"):
        clip.load("some/model").encode_texts(["a"])


def test_a_model_that_is_not_on_this_machine(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(clip.ModelMissing, match=r"some/model cannot be loaded .*give a folder"):
        clip.load("some/model", download=False).encode_texts(["a"])


def test_what_is_no_dual_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match="of the kind 'bert', which is none of clip, align"):
        clip.load(tmp_path / "bert").encode_texts(["a"])


def test_a_broken_picture_is_named(models, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    encoder = clip.load(models["clip"])
    with pytest.raises(ImageRejected, match=r"bad\.png: broken image data"):
        encoder.encode_images([tmp_path / "bad.png"])
    with pytest.raises(ImageRejected, match=r"none\.png: cannot be read"):
        encoder.encode_images([tmp_path / "none.png"])


def test_lengths_that_float16_would_lose_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(clip.Towers, "load", lambda self: "0123456789ab")
    monkeypatch.setattr(weights.ModelReference, "revision", lambda self: "0123456789ab")
    for length in (1e-4, 1e4):
        monkeypatch.setattr(clip.Towers, "texts", lambda self, part, n=length: np.array([[n, 0.0]]))
        with pytest.raises(
            ValueError, match=r"texts of length .* float16 keeps the length of rows from 0\.001"
        ):
            clip.load("some/model").encode_texts(["a"])
    for length in (1e-3, 12.3, 1e3):
        monkeypatch.setattr(clip.Towers, "texts", lambda self, part, n=length: np.array([[n, 0.0]]))
        kept = clip.load("some/model").encode_texts(["a"])[0, 0]
        assert kept == pytest.approx(length, rel=2e-3)


@pytest.mark.parametrize("mode", ["auto", "recorded"])
def test_encoders_have_the_recordings_of_the_run(tmp_path: Path, monkeypatch, mode: str) -> None:
    asked = {}
    monkeypatch.setenv("MEMECMD_OFFLINE", "1")
    monkeypatch.setattr(clip, "load", lambda name, **given: asked.update(given, name=name))
    run = Run("p-1", Profile(name="p", mode=mode), tmp_path / "data", tmp_path / "reports")
    run.clip("a model")
    assert asked == {
        "name": "a model", "read_dirs": run.read_dirs, "mode": mode, "download": False,
        "write_dir": run.write_dir if mode == "auto" else None,
    }  # fmt: skip


def scorer(folder: Path, mode: str = "recorded", checkpoint: Path | None = None) -> ChineseClipScorer:
    return ChineseClipScorer("ViT-B-16", lambda meme: folder, folder, checkpoint, [folder], folder, mode)


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torchvision", "cn_clip", "cn_clip.clip"):
        monkeypatch.setitem(sys.modules, name, None)


def record_scorer(folder: Path, digest: str, texts: list[str]) -> None:
    """Vectors as a scorer leaves them: it is given an encoder in place of the model."""
    (folder / "w.pt").write_bytes(digest.encode())
    made = scorer(folder, "auto", folder / "w.pt")
    made._parts = (None, None, (None, None), "cpu")
    with mock.patch.object(clip, "_in_batches", lambda part, *_: made_up.vectors(part, "text")):
        made.texts(texts)


@pytest.mark.parametrize("missing", ["torch", "cn_clip"])
def test_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=r"Chinese-CLIP cannot be loaded .*pip install -e '\.\[paper\]'"):
        scorer(tmp_path)


def test_an_old_torch_would_run_what_a_checkpoint_holds(monkeypatch, tmp_path: Path) -> None:
    package = SimpleNamespace(utils=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.1+cu121"))
    monkeypatch.setitem(sys.modules, "cn_clip", SimpleNamespace(clip=package))
    monkeypatch.setitem(sys.modules, "cn_clip.clip", package)
    with pytest.raises(RuntimeError, match=r"torch 2\.5\.1\+cu121 runs code .* 2\.6 or later"):
        scorer(tmp_path)


def test_recorded_vectors_tell_the_checkpoint(without_packages, tmp_path: Path) -> None:
    record_scorer(tmp_path, "first", ["好", "不好"])
    name = f"cn_clip:ViT-B-16@{weights.file_digest(tmp_path / 'w.pt')}"
    assert (tmp_path / "embedding" / name).is_dir()
    replay = scorer(tmp_path)
    assert replay.name == name
    assert np.abs(replay.texts(["不好", "好"]) - made_up.vectors(["不好", "好"], "text")).max() < 1e-3
    assert len(replay._recorded.used_keys) == 2 and replay.truncated == 0
    with pytest.raises(RecordingMiss, match="1 of 1 pictures"):
        replay.memes([made_up.meme("m1")])
    record_scorer(tmp_path, "second", ["好"])
    with pytest.raises(ValueError, match=r"several checkpoints are recorded .*give clip_checkpoint"):
        scorer(tmp_path)
    assert scorer(tmp_path, checkpoint=tmp_path / "w.pt").name != name


def test_a_checkpoint_that_is_not_there(without_packages, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.pt; .*clip_checkpoint=null"):
        scorer(tmp_path, "auto", tmp_path / "none.pt")
    record_scorer(tmp_path, "first", ["好"])
    assert scorer(tmp_path, "recorded", tmp_path / "none.pt").texts(["好"]).shape == (1, 8), "not needed"


def test_a_changed_replay_needs_no_weights(without_packages, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    folder = tmp_path / "raw" / "recordings" / "p"
    folder.mkdir(parents=True)
    record_scorer(folder, "first", ["好"])
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
    record_scorer(tmp_path, "first", ["0" * 64])
    with pytest.raises(RecordingMiss):
        scorer(tmp_path).memes([made_up.meme("m1")])


def test_how_many_were_cut_is_not_claimed_without_the_tokenizer(without_packages, tmp_path: Path) -> None:
    texts = ["好" * 50, "好" * 51]
    record_scorer(tmp_path, "first", texts)
    replay = scorer(tmp_path)
    replay.texts(texts[:1])
    assert replay.truncated == 0, "fifty characters are fifty tokens at most"
    replay.texts(texts)
    assert replay.truncated is None
    assert "not known without cn_clip" in consistency.cut_texts(None)
    assert consistency.cut_texts(0) == "" and "3 texts were cut" in consistency.cut_texts(3)


@pytest.mark.parametrize("label", ARCHITECTURES)
def test_a_folder_is_known_by_its_configuration(tmp_path: Path, label: str) -> None:
    at = made_retrieval.clip_folder(tmp_path / "any-name", label)
    assert clip.architecture(at) == label and clip.misfit(at, label) == ""
    for key in ARCHITECTURES[label].sizes:
        other = made_retrieval.clip_folder(tmp_path / key, label, **{key: 3})
        assert clip.architecture(other) is None, key
        assert f"{key} 3, not" in clip.misfit(other, label)


def test_the_name_of_a_folder_says_nothing(tmp_path: Path) -> None:
    at = made_retrieval.clip_folder(tmp_path / "openai" / "clip-vit-large-patch14-336", B32)
    assert clip.architecture(at) == B32
    said = clip.misfit(at, L14)
    assert said.startswith(
        "clip-vit-large-patch14-336 is no CLIP-ViT-L/14@336px (projection_dim 512, not 768"
    )
    assert "model_type clip, not align" in clip.misfit(at, ALIGN)
    (at / "config.json").unlink()
    assert clip.architecture(at) is None
    assert clip.misfit(at, B32).endswith("has no config.json")


def test_what_a_configuration_leaves_out_is_the_smallest_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "clip"}', encoding="utf-8")
    assert clip.architecture(tmp_path) == B32


def test_hub_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hub = ARCHITECTURES[L14].hub
    assert clip.architecture(hub) == L14 == clip.architecture(f"{hub}@{'0' * 40}")
    assert clip.architecture("somebody/else") is None
    assert clip.misfit("somebody/else", L14) == ""
    # A cache that holds something else under this name.
    model = tmp_path / f"models--{hub.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("c0ffee", encoding="utf-8")
    made_retrieval.clip_folder(model / "snapshots" / "c0ffee", L14, **{"vision_config.hidden_size": 32})
    assert clip.architecture(hub) is None
    assert "vision_config.hidden_size 32, not 1024" in clip.misfit(hub, L14)


def test_published_sizes_are_those_of_transformers() -> None:
    """B/32 and ALIGN-base are the models whose sizes transformers assumes."""
    transformers = pytest.importorskip("transformers")
    for label, config in ((B32, transformers.CLIPConfig()), (ALIGN, transformers.AlignConfig())):
        given = json.loads(config.to_json_string())
        for key, value in ARCHITECTURES[label].sizes.items():
            part, _, name = key.rpartition(".")
            assert (given[part] if part else given)[name] == value, key
