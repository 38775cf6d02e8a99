"""LPIPS between pictures (Zhang et al., 2018), as the second stage of template matching has it."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from memecmd_utils.core import images, paths
from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.core.encoders.clip import ModelMissing

SIDE = 64
BATCH = 64
PUBLISHED = "7be5be79"
"""SHA-256 of torchvision's AlexNet begins so: `alexnet-owt-7be5be79.pth`, which LPIPS was calibrated on."""
KEY = "cm50.matching.lpips"
"""Key of the profile that names the file of weights."""
Scale = Literal["code", "lpips"]


def load(weights: str | Path | None = None, scale: Scale = "code", download: bool = True) -> "Lpips":
    """Give LPIPS with AlexNet, version 0.1, at 64 pixels; nothing is loaded before it is needed.

    `weights` is a file of AlexNet's weights as torchvision publishes it; None takes torchvision's, which it
    downloads (233 MB) unless `download` is off. The linear weights come with the `lpips` package. `scale`:
    "code" gives the network values from 0 to 1, as the code of 2501.13851 does and its limit 0.29 asks for;
    "lpips" gives it -1 to 1, which it was trained on.
    """
    if scale not in ("code", "lpips"):
        raise ValueError(f"scale {scale!r} is neither code nor lpips")
    return Lpips(paths.root / Path(weights).expanduser() if weights else None, scale, download)


class Lpips:
    """Perceptual distance of pairs of pictures; `load` makes it."""

    def __init__(self, weights: Path | None, scale: Scale, download: bool) -> None:
        """See `load`."""
        self._weights, self.scale, self._download = weights, scale, download
        self._net: Any = None
        self._digest: str | None = None

    @property
    def name(self) -> str:
        """`lpips-alex@WEIGHTS-64px-SCALE`; loads the weights."""
        self._loaded()
        return f"lpips-alex@{self._digest}-{SIDE}px-{self.scale}"

    @property
    def published(self) -> bool:
        """Whether the weights are those that torchvision publishes; with others a value says nothing."""
        self._loaded()
        return self._digest.startswith(PUBLISHED)

    def distances(self, pairs: Sequence[tuple[Path, Path]]) -> np.ndarray:
        """LPIPS of pairs of image files, float64 [n]; 0 for two equal pictures.

        Raises `ModelMissing` for what is not here and `ImageRejected` for a file that cannot be read.
        """
        if not pairs:
            return np.zeros(0)
        net = self._loaded()
        import torch

        crops: dict[Path, np.ndarray] = {}
        for file in (file for pair in pairs for file in pair):
            if file not in crops:
                crops[file] = crop(file)
        found = []
        with torch.inference_mode():
            for start in range(0, len(pairs), BATCH):
                part = pairs[start : start + BATCH]
                one, other = (torch.from_numpy(np.stack([crops[p[n]] for p in part])) for n in (0, 1))
                found.append(net(one, other, normalize=self.scale == "lpips").reshape(-1).double().numpy())
        return np.concatenate(found)

    def _loaded(self) -> Any:
        if self._net is None:
            missing = [
                name for name in ("torch", "torchvision", "lpips") if not encoders_weights.installed(name)
            ]
            if missing:
                raise ModelMissing(f"LPIPS needs {', '.join(missing)}: pip install -e '.[paper]'")
            try:
                import lpips
                import torchvision  # noqa: F401 - it must fit torch
            except (ImportError, RuntimeError) as error:
                raise ModelMissing(encoders_weights.install_hint("LPIPS", error)) from error
            state, self._digest = self._state()
            with warnings.catch_warnings():
                # Its way to AlexNet's weights is an argument that torchvision gives up; they follow below.
                warnings.simplefilter("ignore", UserWarning)
                net = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False)
            wanted = {name: name.split(".", 1)[1] for name in net.net.state_dict()}  # slice2.3.weight
            try:
                net.net.load_state_dict({name: state[f"features.{key}"] for name, key in wanted.items()})
            except (KeyError, RuntimeError, TypeError) as error:
                raise ModelMissing(
                    f"{self._weights.name} holds no AlexNet of torchvision: give alexnet-owt-{PUBLISHED}.pth"
                ) from error
            self._net = net.eval()
        return self._net

    def _state(self) -> tuple[dict[str, Any], str]:
        import torch
        from torchvision.models import AlexNet_Weights

        if self._weights is not None:
            if not self._weights.is_file():
                raise ModelMissing(
                    f"there is no file {self._weights.name}: give alexnet-owt-{PUBLISHED}.pth as {KEY}"
                )
            try:
                state = torch.load(self._weights, map_location="cpu", weights_only=True)
            except Exception as error:  # a broken or foreign file fails in many ways
                name = self._weights.name
                said = str(error).replace(str(self._weights), name)  # tables hold no folders of a machine
                raise ModelMissing(f"{name} is no file of weights ({said})"[:300]) from error
            return state, encoders_weights.file_digest(self._weights)
        weights = AlexNet_Weights.IMAGENET1K_V1
        kept = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
        if not kept.is_file() and not self._download:
            raise ModelMissing(f"LPIPS needs {kept.name}: give it as {KEY}, or let torchvision download it")
        try:
            state = weights.get_state_dict(progress=False, check_hash=True)
        except (OSError, RuntimeError) as error:
            said = " ".join(str(error).split())[:150]
            raise ModelMissing(
                f"{kept.name} cannot be downloaded ({type(error).__name__}: {said}): give the file as {KEY}"
            ) from error
        return state, encoders_weights.file_digest(kept)


def crop(file: Path) -> np.ndarray:
    """Values 0 to 1, float32 [3, 64, 64]: shorter side to 64 (bicubic), then the centre, as torchvision does.

    Pictures become RGB before they are scaled; the code of 2501.13851 scales first, which differs for
    pictures with a palette only.
    """
    try:
        image = images.decode(file)
    except images.ImageRejected as error:
        raise images.ImageRejected(f"{file.name}: {error}") from error
    width, height = image.size
    short = min(width, height)
    size = (SIDE * width // short, SIDE * height // short)
    image = image.resize(size, Image.Resampling.BICUBIC) if size != image.size else image
    left, top = (round((side - SIDE) / 2) for side in size)
    part = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), dtype=np.float32)
    return np.ascontiguousarray(part.transpose(2, 0, 1)) / 255
