"""Dual encoders: tiny random models of the real classes, against plain calls of transformers."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_clips
from PIL import Image, ImageDraw

from memecmd_utils.core.encoders import clip, weights
from memecmd_utils.core.images import ImageRejected
from memecmd_utils.core.recordings import vectors
from memecmd_utils.core.recordings.store import RecordingMiss
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
    assert encoder.truncated == 1 and encoder.encode_texts([LONG]).shape == (1, 24)
    assert encoder.truncated == 1, "a text counts once"
    assert encoder.name == f"clip:{kind}@{weights.folder_digest(models[kind])}-float32"
    assert encoder.max_tokens == clip.TRAINED_TOKENS[kind]
    assert len(encoder._recorded.used_keys) == 6 + 5


def test_the_batch_does_not_matter_and_each_thing_is_encoded_once(models, pictures, monkeypatch) -> None:
    one, many = (clip.load(models["clip"], batch=n) for n in (1, 4))
    asked = []
    real = clip._decode
    monkeypatch.setattr(clip, "_decode", lambda file: asked.append(file.name) or real(file))
    assert near(one.encode_images(pictures), many.encode_images(pictures))
    assert len(asked) == 2 * 5, "the copy has the bytes of the first"
    one.encode_images(pictures)
    assert len(asked) == 10
    assert near(one.encode_texts(TEXTS), many.encode_texts(TEXTS))


def test_tokens_are_counted_before_they_are_cut(models) -> None:
    chinese = clip.load(models["chinese_clip"])
    chinese.encode_texts(["天" * 50, "天" * 51])
    assert chinese.truncated == 1


def test_precision_is_part_of_the_name(models, pictures) -> None:
    half = clip.load(models["clip"], dtype="float16")
    full = clip.load(models["clip"])
    assert half.name.endswith("-float16") and full.name.endswith("-float32")
    off = np.linalg.norm(half.encode_texts(TEXTS) - full.encode_texts(TEXTS), axis=1)
    assert 0 < off.max() < 0.1


def test_a_replay_needs_neither_torch_nor_weights(models, pictures, tmp_path, monkeypatch) -> None:
    made = clip.load(models["clip"], read_dirs=[tmp_path], write_dir=tmp_path)
    texts, seen = made.encode_texts(TEXTS), made.encode_images(pictures)
    for name in ("torch", "torchvision", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in (models["clip"], "elsewhere/clip"):  # the folder, and one that is not there
        replay = clip.load(name, read_dirs=[tmp_path], mode="recorded")
        assert np.array_equal(replay.encode_texts(TEXTS), texts) and replay.truncated is None
        assert np.array_equal(replay.encode_images(pictures), seen)
        assert replay.name == made.name
        with pytest.raises(RecordingMiss, match="1 of 1 texts have no recorded vector of clip:clip@"):
            replay.encode_texts(["another"])


def test_short_texts_are_known_to_be_whole_without_the_model(tmp_path: Path) -> None:
    record(tmp_path, "clip:tiny@0123456789ab-float32", ["a cat"])
    replay = clip.load("somewhere/tiny", read_dirs=[tmp_path], mode="recorded")
    assert np.abs(replay.encode_texts(["a cat"]) - [[3, 4]]).max() < 0.01 and replay.truncated == 0


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
    monkeypatch.setattr(clip.Towers, "revision", lambda self: "0123456789ab")
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
