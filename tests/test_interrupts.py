"""The stop button, Ctrl-C, SIGTERM, SIGKILL: nobody goes on asking, nothing is lost, the next run goes on."""

import os
import queue
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
from memecmd_utils import runs
from memecmd_utils import dialogue
from memecmd_utils.llm import chat as llm
run = runs.open_run("made", "", "run")
with run.chat("generator", "dialogue_generation") as chat:
    work = dialogue.generate(stage_run.starts({DIALOGUES}), chat, run.profile, run.folder)
    made = llm.run(work)
print("dialogues:", made.dialogues)
"""


def wait_for_requests(server: Server, count: int, alive=lambda: True) -> None:
    end = time.monotonic() + 60
    while server.count() < count:
        assert time.monotonic() < end and alive(), "the run ended before it asked"
        time.sleep(0.02)


def requests_after(server: Server, seconds: float) -> int:
    """How many requests come within so many seconds from now."""
    before = server.count()
    time.sleep(seconds)
    return server.count() - before


def asked_again(server: Server, first: int, done: set[str]) -> list[str]:
    return [line["hash"] for line in server.lines(first) if line["hash"] in done]


# --- JupyterLab -------------------------------------------------------------------------------------


@pytest.fixture
def endpoint(tmp_path: Path):
    with simulated(tmp_path, latency=0.3) as server:
        yield server, checkout(tmp_path, server.url, n_turns=TURNS)


def run_cell(client, between=lambda: None) -> tuple[dict, str]:
    """Run the cell, `between` while it runs; its reply and what it printed."""
    sent = client.execute(CELL)
    between()
    reply = client.get_shell_msg(timeout=60)["content"]
    printed = ""
    while True:
        try:
            message = client.get_iopub_msg(timeout=5)
        except queue.Empty:
            return reply, printed
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["msg_type"] == "stream":
            printed += message["content"]["text"]
        if message["content"].get("execution_state") == "idle":
            return reply, printed


def test_the_stop_button_stops_a_cell_and_the_cell_can_go_on(endpoint) -> None:
    from jupyter_client import KernelManager

    server, root = endpoint
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment(root), cwd=str(root), stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        pressed = 0.0

        def press() -> None:
            nonlocal pressed
            wait_for_requests(server, 6)
            manager.interrupt_kernel()
            pressed = time.monotonic()

        reply, _ = run_cell(client, press)
        assert time.monotonic() - pressed < 3
        assert reply["status"] == "error" and reply["ename"] == "KeyboardInterrupt"
        assert requests_after(server, 1.5) == 0
        done, first = recorded(root), server.count()
        assert done and set(done.values()) == {1}
        assert "dialogues.jsonl" not in datasets(root), "half a file is no file"
        reply, printed = run_cell(client)
        assert reply["status"] == "ok" and f"dialogues: {DIALOGUES}" in printed
        assert asked_again(server, first, set(done)) == []
        assert len(recorded(root)) == DIALOGUES * (2 * TURNS - 1)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


# --- the terminal -----------------------------------------------------------------------------------


def start_stage(root: Path) -> subprocess.Popen:
    """`make` runs this command; it leads a process group of its own, as a job of a terminal does."""
    # What a shell starts in the background ignores Ctrl-C, and so would all that these tests start.
    return subprocess.Popen(
        [sys.executable, "-m", "memecmd_utils", "run", STAGE, "run"],
        cwd=root, env=environment(root, PROFILE="made"), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def stop(process: subprocess.Popen, how: str) -> tuple[int, str]:
    """Stop a run as `how` says; its exit status and what it wrote to stderr."""
    try:
        if how.startswith("Ctrl-C"):
            os.killpg(process.pid, signal.SIGINT)
            if how.endswith("twice"):
                time.sleep(0.3)
                os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.Signals[how])
        errors = process.communicate(timeout=15)[1]
    finally:
        process.kill()
    return process.returncode, errors


@pytest.mark.parametrize("how", ["Ctrl-C", "Ctrl-C twice", "SIGTERM", "SIGKILL"])
def test_a_stopped_run_stops_asking_and_the_next_one_goes_on(how: str, endpoint) -> None:
    server, root = endpoint
    process = start_stage(root)
    wait_for_requests(server, 6, lambda: process.poll() is None)
    status, errors = stop(process, how)
    assert status != 0
    if how != "SIGKILL":
        lines = [line for line in errors.splitlines() if line.strip()]
        assert "Traceback" not in errors and len(lines) <= 5, errors
    if how.startswith("Ctrl-C"):
        assert "run again to go on" in lines[-1]
    time.sleep(3)  # the kernel looks for its parent every second
    assert requests_after(server, 1.5) == 0, "a kernel lives on and asks"
    done, first = recorded(root), server.count()
    assert done and set(done.values()) == {1}
    assert not list((root / "reports").rglob(f"{STAGE}.ipynb"))
    if how in ("Ctrl-C", "SIGKILL"):
        again = start_stage(root)
        errors = again.communicate(timeout=60)[1]
        assert again.returncode == 0, errors
        assert asked_again(server, first, set(done)) == []
        assert len(datasets(root)["dialogues.jsonl"].splitlines()) == DIALOGUES
        assert (root / "reports" / "run" / f"{STAGE}.html").exists()
