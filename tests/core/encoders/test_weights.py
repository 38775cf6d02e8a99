import hashlib
from pathlib import Path

from memecmd_utils.core.encoders import weights as encoders_weights
from memecmd_utils.files import paths


def folder(path: Path, weights: bytes = b"weights", settings: str = "{}") -> Path:
    path.mkdir()
    (path / "model.safetensors").write_bytes(weights)
    (path / "config.json").write_text(settings, encoding="utf-8")
    return path


def test_a_folder_counts_by_what_makes_its_vectors(tmp_path) -> None:
    digest = encoders_weights.folder_digest(folder(tmp_path / "a"))
    assert len(digest) == 12 and digest == encoders_weights.folder_digest(folder(tmp_path / "elsewhere"))
    assert digest != encoders_weights.folder_digest(folder(tmp_path / "b", b"weightz"))
    assert digest != encoders_weights.folder_digest(folder(tmp_path / "c", settings='{"pooling": "cls"}'))
    (tmp_path / "a" / "README.md").write_text("words", encoding="utf-8")
    (tmp_path / "a" / ".cache").mkdir()
    (tmp_path / "a" / ".cache" / "x.json").write_text("1", encoding="utf-8")
    assert digest == encoders_weights.folder_digest(tmp_path / "a"), "neither makes a vector"
    (tmp_path / "a" / "modeling.py").write_text("pass", encoding="utf-8")
    assert digest != encoders_weights.folder_digest(tmp_path / "a"), "code does"


def test_large_files_count_by_samples_from_end_to_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(encoders_weights, "WHOLE_UP_TO", 1000)
    monkeypatch.setattr(encoders_weights, "SAMPLE", 10)
    monkeypatch.setattr(encoders_weights, "SAMPLES", 5)
    data = bytearray(5000)
    digests = {encoders_weights.folder_digest(folder(tmp_path / "zeros", bytes(data)))}
    for place in (0, 4999, 2495, 2504):
        changed = data.copy()
        changed[place] = 1
        digests.add(encoders_weights.folder_digest(folder(tmp_path / str(place), bytes(changed))))
    assert len(digests) == 5
    digests.add(encoders_weights.folder_digest(folder(tmp_path / "longer", bytes(5001))))
    assert len(digests) == 6


def test_a_file_counts_by_all_of_it(tmp_path) -> None:
    (tmp_path / "x.pt").write_bytes(b"abc" * 100_000)
    expected = hashlib.sha256(b"abc" * 100_000).hexdigest()[:12]
    assert encoders_weights.file_digest(tmp_path / "x.pt") == expected


def test_the_commit_of_a_download(tmp_path, monkeypatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    places = {
        "HF_HUB_CACHE": (tmp_path / "one", ""),
        "HF_HOME": (tmp_path / "two", "hub"),
        "XDG_CACHE_HOME": (tmp_path / "three", "huggingface/hub"),
        None: (tmp_path / "home", ".cache/huggingface/hub"),
    }
    for variable, (base, inside) in places.items():
        refs = base / inside / "models--org--name" / "refs"
        refs.mkdir(parents=True)
        (refs / "main").write_text(f"{'0' * 30}{base.name}\n", encoding="utf-8")
        with monkeypatch.context() as patch:
            if variable:
                patch.setenv(variable, str(base))
            assert encoders_weights.hub_commit("org/name") == "0" * 30 + base.name
            assert encoders_weights.hub_commit("org/other") is None


def test_a_relative_folder_counts_from_the_project(tmp_path, monkeypatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = [encoders_weights.folder_of(name) for name in ("weights", "~/weights", tmp_path / "weights")]
    assert found == [tmp_path / "weights"] * 3 and encoders_weights.folder_of("maker/model") is None


def test_what_cannot_be_imported_is_told_with_what_is_installed_and_what_to_install(monkeypatch) -> None:
    versions = {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}
    monkeypatch.setattr(encoders_weights, "installed", versions.get)
    fault = RuntimeError("operator torchvision::nms does not exist\nmore")
    hint = encoders_weights.install_hint("X", fault)
    assert "X cannot be loaded (RuntimeError: operator torchvision::nms does not exist)" in hint
    assert "torch 2.13.0+cpu, torchvision 0.28.0, sentence-transformers not, cn-clip not" in hint
    assert "one release and one build" in hint and hint.endswith("pip install -e '.[paper]'")
    assert "(ImportError: no message)" in encoders_weights.install_hint("X", ImportError(""))
