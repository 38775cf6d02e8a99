"""Meme-text retrieval: ranks by hand and by brute force, Tables 2 to 4, and what is said where data lack.

Also what a tuning plans with: its learning rates, and the processes and mini-batches that follow the machine.
"""

from pathlib import Path
from types import SimpleNamespace

import appendix
import numpy as np
import pytest

from memecmd_utils.embedders import ModelMissing
from memecmd_utils.runs import Run
from memecmd_utils.settings import MtrclipSettings, Profile
from memecmd_utils.template_memes import recall, tuning
from memecmd_utils.template_memes.recall import RetrievalItem


def brute(texts: np.ndarray, images: np.ndarray, labels: list, k: int) -> np.ndarray:
    """Expected hits at k, from many random orders of equal candidates."""
    rng, hits = np.random.default_rng(0), []
    scores = (texts / np.linalg.norm(texts, axis=1)[:, None]) @ (
        images / np.linalg.norm(images, axis=1)[:, None]
    ).T
    for _ in range(4000):
        order = np.lexsort((rng.random(scores.shape), -np.round(scores, 5)))[:, :k]
        hits.append([any(labels[j] == labels[i] for j in row) for i, row in enumerate(order)])
    return np.mean(hits, axis=0)


def test_ranks_and_ties_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(1)
    templates = ["a", "a", "b", "b", "", "c"]
    texts, images = rng.integers(-1, 2, (6, 3)).astype(float), rng.integers(-1, 2, (6, 3)).astype(float)
    texts[:, 0] += 0.5
    images[:, 0] += 0.5
    found = recall.rank_all(texts, images, templates)
    labels = {"pair": list(range(6)), "template": ["a", "a", "b", "b", "4", "c"]}
    assert set(found) == {(name, way) for name in labels for way in ("T2M", "M2T")}
    for name, of in labels.items():
        for k in (1, 2, 5):
            assert found[name, "T2M"].hits(k) == pytest.approx(brute(texts, images, of, k), abs=0.03)
            assert found[name, "M2T"].hits(k) == pytest.approx(brute(images, texts, of, k), abs=0.03)


def test_a_model_that_knows_nothing_scores_by_chance() -> None:
    same = np.ones((40, 4))
    ranks = recall.rank_all(same, same, [""] * 40)["pair", "T2M"]
    assert ranks.hits(10) == pytest.approx(np.full(40, 0.25)) and ("template", "T2M") not in recall.rank_all(
        same, same, [""] * 40
    )
    with pytest.raises(ValueError, match="not finite"):
        recall.rank_all(same * np.nan, same, [""] * 40)


class Encoder:
    """Made-up rows: the closer to 1 `skill` is, the more a text resembles its picture."""

    def __init__(self, name: str, skill: float) -> None:
        self.name, self.skill = name, skill

    def encode_images(self, files: list[Path]) -> np.ndarray:
        return np.stack([np.random.default_rng(int(file.stem)).normal(size=16) for file in files])

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        pictures = np.stack([np.random.default_rng(int(text.split()[-1])).normal(size=16) for text in texts])
        noise = np.random.default_rng(len(texts)).normal(size=pictures.shape)
        return self.skill * pictures + (1 - self.skill) * noise


ITEMS = [
    RetrievalItem(
        str(n), Path(f"{n}.png"), f"T{n % 8}", {"meme_caption": [" ", f"meme {n}"], "title": [f"{n}"]}
    )
    for n in range(80)
]
L14 = "openai/clip-vit-large-patch14-336"


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Run:
    """A run whose models are made up, but for one that is not here."""
    run = Run("p", Profile(name="p"), tmp_path / "data", tmp_path / "reports")

    def clip(name: str) -> Encoder:
        if name == "kakaobrain/align-base":
            raise ModelMissing("ALIGN is not here")
        return Encoder(name, {L14: 0.3}.get(name, 0.6))

    monkeypatch.setattr(run, "clip", clip)
    return run


def test_tables_hold_each_model_beside_its_own_row(run: Run, tmp_path: Path) -> None:
    settings = MtrclipSettings(
        baselines=["kakaobrain/align-base", "own/clip", str(tmp_path / "tiny")], model=L14
    )
    models = recall.models_of(settings, tmp_path / "weights")
    assert list(models.values()) == ["ALIGN-base", "clip", "tiny", "CLIP-ViT-L/14@336px", "Fine-tuned CLIP"]
    measured = recall.measure(run, models, lambda _: ITEMS)
    two = recall.paper_table(2, measured).set_index(["model", "direction"])
    assert len(two) == 10 and two.loc[("CLIP-ViT-L/14@336px", "T2M"), "paper"] == 0.648
    row = two.loc[("CLIP-ViT-L/14@336px", "T2M")]
    encoder, templates = run.clip(L14), [item.template for item in ITEMS]
    texts = encoder.encode_texts([item.text("meme_caption") for item in ITEMS])
    images = encoder.encode_images([item.image for item in ITEMS])
    ranks = recall.rank_all(texts, images, templates)["pair", "T2M"]
    assert row["value"] == pytest.approx(ranks.hits(1).mean()) and row["low"] < row["value"] < row["high"]
    assert two.loc[("ALIGN-base", "T2M"), "note"] == "not computed here: ALIGN is not here"
    assert "mtrclip.baselines" in two.loc[("CLIP-ViT-B/32", "M2T"), "note"]
    three = recall.paper_table(3, measured).set_index(["model", "text", "measure"])
    assert len(three) == 32 and three.loc[("Fine-tuned CLIP", "title", "Mean"), "value"] > 0
    assert np.isnan(three.loc[("Fine-tuned CLIP", "image_caption", "R@1"), "value"])
    shown = recall.printed_table(three.reset_index(), "measure", ["R@1", "R@10"])
    assert len(shown) == 8 and shown["R@1 paper"][0] == 0.68 and shown["R@1 here"].str.contains("–|\\[").all()


def test_what_is_not_here_is_a_note(run: Run) -> None:
    def items(_: Run) -> list[RetrievalItem]:
        raise recall.DataSetError("no pictures")

    [note] = recall.measure(run, {"x": "x"}, items)["note"]
    assert note == "not computed here: no pictures"


def test_the_learning_rate_climbs_and_falls_as_in_the_paper() -> None:
    rates = appendix.load("08b_clip_with_data").learning_rates(20, 15, 1e-5)
    assert len(rates) == 300 and rates[0] == 1e-6 and rates[15] == 1e-5 and rates[-1] == pytest.approx(1e-6)
    assert rates[157] == pytest.approx((1e-5 + 1e-6) / 2, rel=0.01) and max(rates) == 1e-5


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (tuning.Machine(None, 1 << 60, 16), (0, 8)),  # a CPU
        (tuning.Machine(139 << 30, 64 << 30, 16), (8, 128)),  # H200
        (tuning.Machine(78 << 30, 64 << 30, 16), (8, 64)),  # H100
        (
            tuning.Machine(78 << 30, 64 << 20, 16),
            (0, 64),
        ),  # the same in a container with little shared memory
        (tuning.Machine(78 << 30, 12 << 30, 16), (3, 64)),
        (tuning.Machine(23 << 30, 64 << 30, 4), (3, 16)),
        (tuning.Machine(8 << 30, 64 << 30, 2), (1, 1)),
    ],
)
def test_what_is_read_and_computed_at_a_time_follows_the_machine(machine, expected) -> None:
    # ViT-L/14 at 336 pixels, 428 million parameters: the model that was measured.
    vision = SimpleNamespace(image_size=336, patch_size=14, hidden_size=1024, num_hidden_layers=24)
    config = SimpleNamespace(
        vision_config=vision, text_config=SimpleNamespace(hidden_size=768, num_hidden_layers=12)
    )
    whole = SimpleNamespace(numel=lambda: 427_944_193)

    class Model(list):
        max_seq_length, parameters = 77, staticmethod(lambda: [whole])

    model = Model([SimpleNamespace(auto_model=SimpleNamespace(config=config))])
    assert tuning.workload(model, MtrclipSettings(), 2048, machine) == expected
    by_hand = MtrclipSettings(workers=5, mini_batch_size=7)
    assert tuning.workload(model, by_hand, 2048, machine) == (5, 7)
