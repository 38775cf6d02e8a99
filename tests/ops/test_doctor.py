import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import yaml

from memecmd_utils import __main__ as commands
from memecmd_utils.core import paths
from memecmd_utils.core.drawing import fonts
from memecmd_utils.core.llm import local
from memecmd_utils.llm import authored
from memecmd_utils.ops import doctor

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Enough room, no keys, no weights; the tests change one thing at a time."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, 10**11))
    monkeypatch.setattr(local, "weights_path", lambda name: tmp_path / f"{name}.gguf")
    for name in ("OPENAI_API_KEY", "MEMECMD_GGUF", "MY_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a profile of our own; returns its name."""
    monkeypatch.setattr(paths, "profiles", tmp_path)

    def write(**values: object) -> str:
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        return "mine"

    return write


def state_of(words: str, profile: str = "example", settings: str = "") -> doctor.Check:
    found = [check for check in doctor.checks(profile, settings) if words in check.text]
    assert len(found) == 1, words
    return found[0]


def test_the_example_profile_is_fine_here() -> None:
    text, good = doctor.report("example", "")
    assert good and "[FAIL]" not in text
    assert (
        "[OK]   Python " in text
        and "[OK]   Chinese font: " in text
        and "[OK]   example texts as frozen" in text
    )
    assert "[OK]   profile example: llm=authored, mode=recorded" in text


def test_a_missing_package_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    there = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "papermill" and there(name))
    check = state_of("papermill")
    assert check.state == "fail" and "run make again" in check.text


def test_a_missing_font_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise fonts.FontMissing("run: pip install noto-cjk-sans-otc")

    monkeypatch.setattr(fonts, "cjk_font_path", none)
    check = state_of("no Chinese font")
    assert check.state == "fail" and "pip install" in check.text


def test_changed_texts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authored, "changed_texts", lambda: ["summaries.jsonl"])
    check = state_of("frozen hashes")
    assert check.state == "fail" and "summaries.jsonl" in check.text


@pytest.mark.parametrize(("free", "state"), [(2.9e9, "fail"), (3.1e9, "ok")])
def test_room_on_the_disk(monkeypatch: pytest.MonkeyPatch, free: float, state: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, free))
    assert state_of("GB free").state == state


def test_the_local_model_is_ready_with_engine_and_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    assert state_of("weights of qwen2.5-coder-1.5b", "local").state == "fail"
    weights = tmp_path / "qwen2.5-coder-1.5b.gguf"
    weights.write_bytes(b"x")
    assert state_of("weights of qwen2.5-coder-1.5b", "local").state == "fail", "cut off"
    os.truncate(weights, local.find("qwen2.5-coder-1.5b").size)
    assert state_of("local model", "local").state == "ok"
    monkeypatch.setattr(local.util, "find_spec", lambda name: None)
    assert state_of("the engine xllamacpp", "local").state == "fail"
    assert state_of("local model", "local", "mode=recorded").state == "info", "a replay does without"


def test_a_key_is_looked_for_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of("set the environment variable OPENAI_API_KEY", "openai").state == "fail"
    assert state_of("key in $OPENAI_API_KEY", "openai", "mode=recorded").state == "info"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
    text, good = doctor.report("openai", "")
    assert good and "key in $OPENAI_API_KEY: set" in text and "secret" not in text
    monkeypatch.setenv("OPENAI_API_KEY", "odd key")
    text, good = doctor.report("openai", "")
    assert not good and "what stands in OPENAI_API_KEY is not an API key" in text and "odd key" not in text


def test_the_command_ends_with_a_status(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("PROFILE", "example")
    monkeypatch.delenv("SET", raising=False)
    assert commands.main(["doctor"]) == 0
    monkeypatch.setenv("PROFILE", "openai")
    assert commands.main(["doctor"]) == 1
    assert "[FAIL] no API key: set the environment variable OPENAI_API_KEY" in capsys.readouterr().out
