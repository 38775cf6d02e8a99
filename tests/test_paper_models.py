"""The models of the `paper` profile through the real packages, on tiny random weights."""

import json
import os
from pathlib import Path

import made_up
import numpy as np
import pytest
import tiny_models
from PIL import Image

from memecmd_utils import pictures
from memecmd_utils import recordings as vectors
from memecmd_utils.core.encoders import clip as encoders_clip
from memecmd_utils.core.encoders import weights
from memecmd_utils.core.encoders.text import SentenceTransformerEmbedder
from memecmd_utils.evaluation import consistency
from memecmd_utils.files import paths
from memecmd_utils.runs import Run

TEXTS = ["天气真好", "周末去爬山吗？", "火锅", "一" * 40, "天气预报说有雨，那就在家煮火锅", "二" * 90, "好"]


@pytest.fixture(scope="module", autouse=True)
def paper_extra() -> None:
    tiny_models.need_paper_extra()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.sentence_folder(
        tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "查询："}
    )


def run_with(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Run:
    monkeypatch.setattr(paths, "raw", folder / "raw")
    monkeypatch.setattr(paths, "example", folder / "example")
    monkeypatch.setattr(paths, "interim", folder / "interim")
    profile = made_up.profile(**{"mode": "auto", **changes})
    return Run("made-up", profile, folder / "processed", folder / "reports")


def plain(model: Path, texts: list[str], prompt: str = "") -> np.ndarray:
    """Vectors of the library itself, one text at a time."""
    from sentence_transformers import SentenceTransformer

    direct = SentenceTransformer(str(model), device="cpu")
    rows = [direct.encode([text], prompt=prompt or None)[0] for text in texts]
    return vectors.normalise(np.array(rows))


def test_a_folder_through_a_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = run_with(tmp_path, monkeypatch, embedder=str(model)).embedder()
    assert embedder.name == f"tiny@{weights.folder_digest(model)}-float32"
    documents = embedder.encode(TEXTS, "document")
    assert documents.shape == (7, 32) and np.abs(documents - plain(model, TEXTS)).max() < 2e-3
    queries = embedder.encode(TEXTS, "query")
    assert np.abs(queries - plain(model, TEXTS, "查询：")).max() < 2e-3, "the model's own prompt"
    assert np.abs(queries - documents).max() > 0.01
    turned = run_with(tmp_path, monkeypatch, embedder=str(model), query_instruction="天气：").embedder()
    other = turned.encode(TEXTS, "query")
    assert np.abs(other - plain(model, TEXTS, "天气：")).max() < 2e-3, "not the vectors of another prompt"
    assert np.array_equal(turned.encode(TEXTS, "document"), documents)
    none = run_with(tmp_path, monkeypatch, embedder=str(model), query_instruction="").embedder()
    assert np.abs(none.encode(TEXTS, "query") - documents).max() < 2e-3


def test_code_that_comes_with_weights_needs_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tiny_models.with_remote_code(tiny_models.sentence_folder(tmp_path / "own"))
    careful = run_with(tmp_path, monkeypatch, embedder=str(folder)).embedder()
    with pytest.raises(RuntimeError, match="set trust_remote_code=true"):
        careful.encode(TEXTS, "document")
    assert not (folder / "it-ran").exists()
    trusting = run_with(tmp_path, monkeypatch, embedder=str(folder), trust_remote_code=True).embedder()
    assert trusting.encode(TEXTS, "document").shape == (7, 32)
    assert (folder / "it-ran").exists()


def test_a_batch_that_does_not_fit_is_halved(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running out of memory is simulated; the error is torch's own."""
    import torch

    embedder = SentenceTransformerEmbedder(str(model))
    expected = embedder.encode(sorted(TEXTS, key=len, reverse=True), "document")
    sizes, real = [], embedder._model.encode_document

    def encode(texts: list[str], **options: object) -> np.ndarray:
        sizes.append(len(texts))
        if len(texts) * min(max(map(len, texts)) + 2, 64) > 130:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        return real(texts, **options)

    monkeypatch.setattr(embedder._model, "encode_document", encode)
    rows = embedder.encode(sorted(TEXTS, key=len, reverse=True), "document")
    assert np.abs(rows - expected).max() < 1e-5
    assert sizes[:3] == [7, 3, 1] and sum(sizes[2:]) == 7, "what is done is not done again"
    assert sizes[-1] > 1, "shorter texts go on in larger batches"

    def never(texts: list[str], **options: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")

    monkeypatch.setattr(embedder._model, "encode_document", never)
    with pytest.raises(RuntimeError, match=r"a text of 64 tokens does not fit .*embedder_dtype=float16"):
        embedder.encode(["二" * 90], "document")


DIALOGUES = {
    name: made_up.dialogue(name, tuple(f"{text}{n}" for text in made_up.TEXTS))
    for n, name in enumerate(("d1", "d2", "d3"))
}
PLACED = [
    made_up.placement(turn, f"m{1 + (turn + n) % 3}", dialogue_id=name)
    for n, name in enumerate(DIALOGUES)
    for turn in (2, 4, 6)
]


@pytest.fixture
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny checkpoint, and cn_clip made to expect its structure."""
    structure = tiny_models.shrink_clip(tmp_path / "structure", monkeypatch)
    return tiny_models.clip_checkpoint(tmp_path / "weights" / "tiny.pt", structure)


def library(run: Run) -> dict:
    made_up.meme_files(run.folder / "images")
    picture = Image.new("RGBA", (90, 40), (0, 0, 0, 0))
    picture.paste((250, 0, 0, 255), (0, 0, 45, 40))
    picture.save(run.folder / "images" / "m3.png")  # as a library never has it: half of it is alpha
    (run.folder / "memes.parquet").touch()
    names = sorted(made_up.COLOURS)
    return {n: made_up.meme(n).model_copy(update={"sha256": str(i) * 64}) for i, n in enumerate(names)}


def clip_run(folder: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: Path | None, **more: object) -> Run:
    settings = {"consistency": "cn_clip", "clip_checkpoint": str(checkpoint) if checkpoint else None}
    return run_with(folder, monkeypatch, **settings, **more)


def test_scores_of_a_run_are_those_of_the_model(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from cn_clip.clip import load_from_name, tokenize

    run = clip_run(tmp_path, monkeypatch, clip)
    memes = library(run)
    rows, scorer = consistency.measure_consistency(run, PLACED, DIALOGUES, memes)
    assert scorer == f"cn_clip:ViT-B-16@{weights.file_digest(clip)}" == rows[0].scorer
    assert len(rows) == 9 + 6 + 9  # u_t, u_t+1 but for the last turn, shuffled

    text = "RoBERTa-wwm-ext-base-chinese"
    model, preprocess = load_from_name(str(clip), "cpu", None, "ViT-B-16", text, 224)
    model.eval()
    for row in [r for r in rows if r.text == "u_t"]:
        said = DIALOGUES[row.dialogue_id].turns[row.turn - 1].text
        picture = pictures.decode(run.folder / memes[row.meme_id].file)
        with torch.no_grad():
            a = model.encode_image(preprocess(picture)[None]).numpy()
            b = model.encode_text(tokenize([said])).numpy()
        cosine = float((vectors.normalise(a) @ vectors.normalise(b).T)[0, 0])
        assert row.score == pytest.approx(50 * (cosine + 1), abs=0.05)
    assert len({round(row.score, 3) for row in rows}) > 9
    used = json.loads(next((run.folder / "usage").glob("embedding:cn_clip*")).read_text(encoding="utf-8"))
    assert len(used) == 3 + len({t.text for d in DIALOGUES.values() for t in d.turns if t.turn > 1})


def test_a_killed_stage_goes_on_and_encodes_each_once(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "BATCH", 4)
    run = clip_run(tmp_path, monkeypatch, clip)
    memes, asked = library(run), []
    real = encoders_clip._in_batches

    def dies(items, device, project):
        if len(asked) > 6:
            raise KeyboardInterrupt
        asked.extend(items)
        return real(items, device, project)

    monkeypatch.setattr(encoders_clip, "_in_batches", dies)
    with pytest.raises(KeyboardInterrupt):
        consistency.measure_consistency(run, PLACED, DIALOGUES, memes)
    before = len(asked)

    def counts(items, device, project):
        asked.extend(items)
        return real(items, device, project)

    monkeypatch.setattr(encoders_clip, "_in_batches", counts)
    consistency.measure_consistency(run, PLACED, DIALOGUES, memes)
    consistency.measure_consistency(run, PLACED, DIALOGUES, memes)
    said = {t.text for d in DIALOGUES.values() for t in d.turns if t.turn > 1}
    assert before == 7 and len(asked) == 3 + len(said), "nothing twice"
    assert sum(isinstance(item, str) for item in asked) == len(said)


def test_order_batches_and_alpha(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = clip_run(tmp_path, monkeypatch, clip)
    memes = library(run)
    scorer = consistency.clip_scorer(run, memes)
    texts = [f"{'很' * (n % 7)}好{n}" for n in range(40)]
    rows = scorer.texts(texts)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-6)
    other = clip_run(tmp_path / "alone", monkeypatch, clip)
    alone = consistency.clip_scorer(other, library(other))
    for n in (0, 13, 39):
        assert np.abs(alone.texts([texts[n]])[0] - rows[n]).max() < 2e-3
    shown = scorer.memes([memes["m3"]])
    Image.open(run.folder / "images" / "m3.png").convert("RGB").save(run.folder / "images" / "m2.png")
    black = scorer.memes([memes["m2"]])
    white = Image.new("RGB", (90, 40), "white")
    white.paste((250, 0, 0), (0, 0, 45, 40))
    white.save(run.folder / "images" / "m1.png")
    assert np.abs(scorer.memes([memes["m1"]]) - shown).max() < 1e-3 < np.abs(shown - black).max()


def test_long_texts_are_cut_and_counted(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = clip_run(tmp_path, monkeypatch, clip)
    scorer = consistency.clip_scorer(run, library(run))
    fits, long, words = "好" * 50, "好" * 50 + "坏", "international " * 20
    rows = scorer.texts([fits, long, words])
    assert scorer.truncated == 1, "twenty words of 14 letters are twenty tokens"
    assert np.array_equal(rows[0], rows[1]), "what is beyond is not read"
    scorer.texts([long, "坏" * 99])
    assert scorer.truncated == 2
    placed = [made_up.placement(2, "m1", dialogue_id="long")]
    talk = {"long": made_up.dialogue("long", ("好", "坏" * 60, "好"))}
    _, said = consistency.measure_consistency(run, placed, talk, library(run))
    assert said.endswith("; 1 texts were cut at 52 tokens")


def test_a_checkpoint_that_would_run_code_is_refused(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it-ran"),)

    torch.save({"epoch": Evil(), "state_dict": {}}, clip)
    run = clip_run(tmp_path, monkeypatch, clip)
    with pytest.raises(RuntimeError, match="no Chinese-CLIP checkpoint of plain tensors"):
        consistency.measure_consistency(run, PLACED, DIALOGUES, library(run))
    assert not (tmp_path / "it-ran").exists()


def test_checkpoints_that_do_not_fit_say_so(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    run = clip_run(tmp_path, monkeypatch, clip, clip_model="ViT-L-14")
    with pytest.raises(RuntimeError, match=r"ViT-L-14 cannot be loaded .*must be its structure"):
        consistency.clip_scorer(run, library(run)).texts(["好"])
    torch.save({"weights": {}}, clip)
    run = clip_run(tmp_path, monkeypatch, clip)
    with pytest.raises(RuntimeError, match="`state_dict`"):
        consistency.clip_scorer(run, library(run)).texts(["好"])
    with pytest.raises(ValueError, match=r"'ViT-X' is none of ViT-B-16"):
        consistency.clip_scorer(clip_run(tmp_path, monkeypatch, clip, clip_model="ViT-X"), {}).texts(["好"])
