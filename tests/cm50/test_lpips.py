"""LPIPS on random AlexNet weights in torchvision's format: wiring tested, values not."""

import sys
from pathlib import Path

import made_matches
import numpy as np
import pytest
import tiny_metrics
from PIL import Image

from memecmd_utils.cm50 import lpips as cm50_lpips
from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.core.encoders.clip import ModelMissing
from memecmd_utils.core.images import ImageRejected


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("torch", "torchvision", "lpips"):
        pytest.importorskip(package)
    return tiny_metrics.alexnet_file(tmp_path_factory.mktemp("weights") / "alex.pth")


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"{name}.png" for name in made_matches.SHADES]
    for file, (name, shade) in zip(files, made_matches.SHADES.items(), strict=True):
        made_matches.draw(name, shade).save(file)
    return files


def direct(weights: Path, one: Path, other: Path, normalize: bool) -> float:
    """The package itself with its own AlexNet, preprocessing by torchvision as in the paper's code."""
    import lpips
    import torch
    import torchvision
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize, ToTensor

    net = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
    whole = torchvision.models.alexnet(weights=None)
    whole.load_state_dict(torch.load(weights))
    for name in ("slice1", "slice2", "slice3", "slice4", "slice5"):
        for number, part in getattr(net.net, name).named_children():
            part.load_state_dict(whole.features[int(number)].state_dict())
    read = Compose([Resize(64, interpolation=InterpolationMode.BICUBIC), CenterCrop(64), ToTensor()])
    pair = [read(Image.open(file).convert("RGB")).unsqueeze(0) for file in (one, other)]
    with torch.no_grad():
        return net(*pair, normalize=normalize).item()


@pytest.mark.parametrize("scale", ["code", "lpips"])
def test_it_is_the_package_on_torchvisions_crop(weights: Path, pictures: list[Path], scale: str) -> None:
    found = cm50_lpips.load(weights, scale)
    pairs = [(pictures[0], pictures[1]), (pictures[0], pictures[2]), (pictures[1], pictures[1])]
    values = found.distances(pairs)
    wanted = [direct(weights, *pair, normalize=scale == "lpips") for pair in pairs]
    assert values == pytest.approx(wanted, abs=1e-7) and values[2] == 0 and values[0] != values[1]
    assert found.name == f"lpips-alex@{encoders_weights.file_digest(weights)}-64px-{scale}"
    assert not found.published, "random weights are not those of torchvision"


def test_the_scale_and_the_weights_matter(weights: Path, pictures: list[Path], monkeypatch) -> None:
    pairs = [(pictures[0], pictures[1])] * 3
    code, own = (cm50_lpips.load(weights, scale).distances(pairs) for scale in ("code", "lpips"))
    assert abs(code[0] - own[0]) > 1e-6
    monkeypatch.setattr(cm50_lpips, "BATCH", 2)
    assert cm50_lpips.load(weights).distances(pairs) == pytest.approx(code, abs=1e-7)
    assert cm50_lpips.load(weights).distances([]).shape == (0,)


def test_the_crop_is_torchvisions(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize, ToTensor

    read = Compose([Resize(64, interpolation=InterpolationMode.BICUBIC), CenterCrop(64), ToTensor()])
    rng = np.random.default_rng(3)
    for size in [(64, 64), (97, 64), (64, 99), (131, 77), (200, 333), (30, 91), (50, 50)]:
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(tmp_path / "p.png")
        assert np.array_equal(
            cm50_lpips.crop(tmp_path / "p.png"), read(Image.open(tmp_path / "p.png")).numpy()
        ), size


def test_the_crop_needs_no_torch(pictures: list[Path], tmp_path: Path) -> None:
    part = cm50_lpips.crop(pictures[1])
    assert part.shape == (3, 64, 64) and part.dtype == np.float32 and part.max() == 1
    # 96 x 80 becomes 76 x 64, then 6 columns go at each side: the square's left edge at 28/96*76 - 6.
    row = part[1, 32]
    assert row[14] < 0.5 < row[19]
    with pytest.raises(ImageRejected, match=r"none\.png: cannot be read"):
        cm50_lpips.crop(tmp_path / "none.png")


def test_what_is_missing_is_said(pictures: list[Path], tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="scale 'both' is neither"):
        cm50_lpips.load(scale="both")
    with monkeypatch.context() as patch:
        patch.setattr(encoders_weights, "installed", lambda package: None)
        with pytest.raises(ModelMissing, match="LPIPS needs torch, torchvision, lpips: pip install"):
            cm50_lpips.load().distances([(pictures[0], pictures[1])])
    if encoders_weights.installed("lpips") is None:
        return
    with pytest.raises(ModelMissing, match=r"^there is no file none\.pth: give alexnet-owt-7be5be79\.pth"):
        cm50_lpips.load(tmp_path / "none.pth").distances([(pictures[0], pictures[1])])
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(ModelMissing, match=r"^bad\.pth is no file of weights"):
        cm50_lpips.load(tmp_path / "bad.pth").distances([(pictures[0], pictures[1])])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "lpips", None)
        with pytest.raises(ModelMissing, match="LPIPS cannot be loaded"):
            cm50_lpips.load().distances([(pictures[0], pictures[1])])


def test_weights_that_are_not_downloaded_or_of_another_net(tmp_path: Path, pictures, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("lpips")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    pair = [(pictures[0], pictures[1])]
    said = r"LPIPS needs alexnet-owt-7be5be79\.pth: give it as cm50\.matching\.lpips"
    with pytest.raises(ModelMissing, match=said):
        cm50_lpips.load(download=False).distances(pair)
    from torchvision.models import AlexNet_Weights

    def refuse(self: object, **options: object) -> None:
        raise OSError("no way to the server (simulated)")

    monkeypatch.setattr(AlexNet_Weights, "get_state_dict", refuse)
    with pytest.raises(ModelMissing, match=r"cannot be downloaded \(OSError: no way to the server"):
        cm50_lpips.load().distances(pair)
    torch.save({"features.0.weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ModelMissing, match=r"^other\.pth holds no AlexNet of torchvision"):
        cm50_lpips.load(tmp_path / "other.pth").distances(pair)
