"""The stop button, Ctrl-C, SIGKILL: nobody goes on asking, nothing is lost, the next run goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stage_run
from stage_run import Server, checkout, datasets, environment, recorded, simulated

pytestmark = pytest.mark.slow

DIALOGUES, TURNS = 2, 8
STAGE = "03_dialogue_generation"
CELL = f"""
import sys
sys.path.insert(0, {str(stage_run.HERE)!r})
import stage_run
from memecmd_utils import dialogue, llm, runs
run = runs.open_run("made", "", "run")
with run.chat("generator", "dialogue_generation") as chat:
    dialogues, _ = llm.run(dialogue.generate(stage_run.starts({DIALOGUES}), chat, run.profile, run.folder))
print("dialogues:", dialogues)
"""


@pytest.fixture
def endpoint(tmp_path: Path):
    with simulated(tmp_path, latency=0.3) as server:
        yield server, checkout(tmp_path, server.url, n_turns=TURNS)


def wait_for_requests(server: Server, count: int, alive=lambda: True) -> None:
    end = time.monotonic() + 90
    while server.count() < count:
        assert time.monotonic() < end and alive(), "the run ended before it asked"
        time.sleep(0.02)


def nobody_asks(server: Server) -> bool:
    before = server.count()
    time.sleep(1.5)
    return server.count() == before


def reply_to(client, sent: str) -> dict:
    """The kernel's reply to an execution; it also sends others."""
    while True:
        message = client.get_shell_msg(timeout=60)
        if message["parent_header"].get("msg_id") == sent:
            return message["content"]


def test_the_stop_button_stops_a_cell_and_the_cell_can_go_on(endpoint) -> None:
    from jupyter_client import KernelManager

    server, root = endpoint
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment(root), cwd=str(root), stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=90)
        sent = client.execute(CELL)
        wait_for_requests(server, 6)
        manager.interrupt_kernel()
        pressed = time.monotonic()
        reply = reply_to(client, sent)
        assert reply["ename"] == "KeyboardInterrupt" and time.monotonic() - pressed < 5
        assert nobody_asks(server)
        done, first = set(recorded(root)), server.count()
        assert done and "dialogues.jsonl" not in datasets(root), "half a file is no file"
        assert reply_to(client, client.execute(CELL))["status"] == "ok"
        assert not done & {line["hash"] for line in server.lines(first)}, "asked again"
        assert len(recorded(root)) == DIALOGUES * (2 * TURNS - 1)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def start_stage(root: Path) -> subprocess.Popen:
    """`make` runs this command; it leads a process group of its own, as a job of a terminal does."""
    # What a shell starts in the background ignores Ctrl-C, and so would all that these tests start.
    return subprocess.Popen(
        [sys.executable, "-m", "memecmd_utils", "run", STAGE, "run"],
        cwd=root, env=environment(root, PROFILE="made"), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGKILL"])
def test_a_stopped_run_stops_asking_and_the_next_one_goes_on(how: str, endpoint) -> None:
    server, root = endpoint
    process = start_stage(root)
    wait_for_requests(server, 6, lambda: process.poll() is None)
    pressed = time.monotonic()
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    errors = process.communicate(timeout=30)[1]
    assert process.returncode != 0 and "Traceback" not in errors
    if how == "Ctrl-C":
        assert time.monotonic() - pressed < 6 and len(errors.strip().splitlines()) <= 5, errors
    time.sleep(3)  # the kernel looks for its parent every second
    assert nobody_asks(server), "a kernel lives on and asks"
    done, first = set(recorded(root)), server.count()
    assert done and not list((root / "reports").rglob(f"{STAGE}.ipynb"))
    again = start_stage(root)
    assert again.communicate(timeout=120)[1] is not None and again.returncode == 0
    assert not done & {line["hash"] for line in server.lines(first)}, "asked again"
    assert len(datasets(root)["dialogues.jsonl"].splitlines()) == DIALOGUES
