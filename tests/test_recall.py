"""Meme-text retrieval: ranks by brute force, Tables 2 to 4 of appendix 08b, and what is said where data lack.

Also what a tuning plans with: its learning rates, and the processes and mini-batches that follow the machine.
"""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import appendix
import numpy as np
import pytest

from memecmd_utils.embedders import ModelMissing
from memecmd_utils.llm.recordings import normalise
from memecmd_utils.runs import Run
from memecmd_utils.settings import MtrclipSettings, Profile
from memecmd_utils.template_memes import DataSetError, recall

TABLES = appendix.load("08b_clip_with_data")
L14 = "openai/clip-vit-large-patch14-336"


def brute(texts: np.ndarray, images: np.ndarray, labels: list, k: int) -> np.ndarray:
    """Expected hits at k, from many random orders of equal candidates."""
    rng, hits = np.random.default_rng(0), []
    scores = normalise(texts) @ normalise(images).T
    for _ in range(4000):
        order = np.lexsort((rng.random(scores.shape), -np.round(scores, 5)))[:, :k]
        hits.append([any(labels[j] == labels[i] for j in row) for i, row in enumerate(order)])
    return np.mean(hits, axis=0)


def test_ranks_and_ties_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(1)
    texts, images = rng.integers(-1, 2, (2, 6, 3)) + np.array([0.5, 0, 0])
    ranks = recall.rank_all(texts, images, ["a", "a", "b", "b", "", "c"])
    assert {name for name, _ in recall.rank_all(texts, images, [""] * 6)} == {"pair"}
    labels = {"pair": list(range(6)), "template": ["a", "a", "b", "b", "4", "c"]}
    assert set(ranks) == {(name, way) for name in labels for way in ("T2M", "M2T")}
    for name, right in labels.items():
        for k in (1, 5):
            assert ranks[name, "T2M"].hits(k) == pytest.approx(brute(texts, images, right, k), abs=0.03)
            assert ranks[name, "M2T"].hits(k) == pytest.approx(brute(images, texts, right, k), abs=0.03)
    with pytest.raises(ValueError, match="not finite"):
        recall.rank_all(np.full((4, 4), np.nan), np.ones((4, 4)), [""] * 4)


ITEMS = [
    TABLES.Item(str(n), Path(f"{n}.png"), f"T{n % 8}", {"meme_caption": f"meme {n}", "title": f"{n}"})
    for n in range(80)
]


def test_tables_hold_each_model_beside_its_own_row(tmp_path: Path, monkeypatch) -> None:
    run, rng = Run("p", Profile(name="p"), tmp_path / "data", tmp_path / "reports"), np.random.default_rng(1)
    images, noise = rng.normal(size=(2, 80, 16))
    texts = {L14: images + 2 * noise}

    def clip(name: str) -> SimpleNamespace:
        if name == "kakaobrain/align-base":
            raise ModelMissing("ALIGN is not here")
        rows = texts.get(name, images + noise)
        return SimpleNamespace(name=name, encode_images=lambda _: images, encode_texts=lambda _: rows)

    monkeypatch.setattr(run, "clip", clip)
    baselines = ["kakaobrain/align-base", "own/clip", str(tmp_path / "tiny")]
    models = TABLES.models_of(MtrclipSettings(baselines=baselines, model=L14), tmp_path / "weights")
    assert list(models.values()) == ["ALIGN-base", "clip", "tiny", "CLIP-ViT-L/14@336px", "Fine-tuned CLIP"]
    measured = TABLES.measure_models(run, models, lambda _: ITEMS)
    two = TABLES.paper_table(2, measured).set_index(["model", "direction"])
    row = two.loc[("CLIP-ViT-L/14@336px", "T2M")]
    assert len(two) == 10 and row["paper"] == 0.648
    ranks = recall.rank_all(texts[L14], images, [item.template for item in ITEMS])["pair", "T2M"]
    assert row["value"] == pytest.approx(ranks.hits(1).mean()) and row["low"] < row["value"] < row["high"]
    assert two.loc[("ALIGN-base", "T2M"), "note"] == "not computed here: ALIGN is not here"
    assert "mtrclip.baselines" in two.loc[("CLIP-ViT-B/32", "M2T"), "note"]
    shown = TABLES.printed_table(TABLES.paper_table(3, measured), "measure", ["R@1", "R@10"])
    assert len(shown) == 8 and shown["R@1 paper"][0] == 0.68 and shown["R@1 here"].str.contains("–|\\[").all()

    no_items = MagicMock(side_effect=DataSetError("no pictures"))
    (note,) = TABLES.measure_models(run, {"x": "x"}, no_items)["note"]
    assert note == "not computed here: no pictures"


def test_the_learning_rate_climbs_and_falls_as_in_the_paper() -> None:
    rates = TABLES.learning_rates(20, 15, 1e-5)
    assert len(rates) == 300 and rates[0] == 1e-6 and rates[15] == 1e-5 and rates[-1] == pytest.approx(1e-6)
    assert rates[157] == pytest.approx((1e-5 + 1e-6) / 2, rel=0.01) and max(rates) == 1e-5


def test_what_is_read_and_computed_at_a_time_follows_the_machine() -> None:
    # ViT-L/14 at 336 pixels, 428 million parameters: the model that was measured.
    vision = SimpleNamespace(image_size=336, patch_size=14, hidden_size=1024, num_hidden_layers=24)
    text = SimpleNamespace(hidden_size=768, num_hidden_layers=12)
    model = MagicMock(max_seq_length=77, parameters=lambda: [SimpleNamespace(numel=lambda: 427_944_193)])
    model[0].auto_model.config = SimpleNamespace(vision_config=vision, text_config=text)
    for card, shared, cores, expected in (
        (None, 1 << 60, 16, (0, 8)),  # a CPU
        (139 << 30, 64 << 30, 16, (8, 128)),  # H200
        (78 << 30, 64 << 20, 16, (0, 64)),  # H100 in a container with little shared memory
    ):
        machine = card, shared, cores
        assert TABLES.workload(model, MtrclipSettings(), 2048, machine) == expected
    by_hand = MtrclipSettings(workers=5, mini_batch_size=7)
    assert TABLES.workload(model, by_hand, 2048, machine) == (5, 7)
