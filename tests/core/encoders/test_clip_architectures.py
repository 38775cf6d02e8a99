import json
from pathlib import Path

import made_retrieval
import pytest

from memecmd_utils.core.encoders import clip
from memecmd_utils.core.encoders.clip import ALIGN, ARCHITECTURES, B32, L14


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
