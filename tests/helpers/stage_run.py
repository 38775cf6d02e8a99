"""Stages 02 to 04 at any size against a simulated endpoint, in a process of their own that may be killed.

As a script it is that process: `stage_run.py PROFILE RUN SETTINGS DIALOGUES MEMES`. It prints `ready`
when it has loaded everything. As a module it holds what the tests and benchmarks of this share.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up
from pydantic import SecretStr

from memecmd_utils import schemas
from memecmd_utils.files import paths
from memecmd_utils.llm.recordings import read_file

HERE = Path(__file__).resolve().parent
USD_IN, USD_OUT = 2.5, 10.0
"""US dollars per million tokens, as simulated."""
KEY = SecretStr("simulated")


def starts(count: int) -> list[schemas.ColdStart]:
    """Cold starts that all differ."""
    made = []
    for n in range(1, count + 1):
        name, seen = f"made-{n:05d}", f"第{n}号见闻"
        told = {"context": f"{seen}：楼下{n % 7 + 1}位邻居修好了{n % 13 + 2}把椅子。"}
        told |= {"brief": f"他们在聊{seen}：{n}号楼下有人修椅子", "persona": f"住在{n}号楼的人"}
        texts = {name: dict.fromkeys("AB", text) for name, text in told.items()}
        texts |= {"title": seen, "name_a": "阿橙", "name_b": "老柏"}
        made.append(schemas.ColdStart(source="simulated", dialogue_id=name, kind="news", ref=name, **texts))
    return made


def memes(count: int) -> list[schemas.Meme]:
    """Memes that all differ; there are no files of them."""
    made = []
    for n in range(1, count + 1):
        about = {"file": f"m{n:05d}.png", "sha256": f"{n:064x}", "text": f"第{n}张图上的字"}
        about |= {"picture_note": f"一只猫第{n}次伸懒腰"}
        made.append(made_up.meme(f"m{n:05d}").model_copy(update=about))
    return made


def environment(root: Path, **more: str) -> dict[str, str]:
    """Variables of a process that works in the project `root`, without anybody's key."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "MEMECMD_"))}
    # This checkout's package, also in the kernels, whatever else is installed.
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.root), os.environ.get("PYTHONPATH"))))
    return {**kept, "MEMECMD_ROOT": str(root), "OPENAI_API_KEY": KEY.get_secret_value(), **more}


def command(
    root: Path, *arguments: str, profile: str = "example", settings: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the package in the project `root`, as the Makefile does."""
    return subprocess.run(
        [sys.executable, "-m", "memecmd_utils", *arguments],
        env=environment(root, PROFILE=profile, SET=settings, **more), cwd=root, capture_output=True,
        text=True, errors="replace", timeout=600, check=False,
    )  # fmt: skip


# --- a project of its own ---------------------------------------------------------------------------


def project(root: Path, finished: Path | None = None) -> Path:
    """A project in `root` with data and reports of its own; notebooks and profiles are copies.

    It reads the example run of the checkout `finished`.
    """
    for name in ("notebooks", "data/profiles"):
        if not (root / name).exists():
            ignored = shutil.ignore_patterns(".ipynb_checkpoints")
            shutil.copytree(paths.root / name, root / name, ignore=ignored)
    linked = [f"data/{path.name}" for path in paths.data.glob("*.yaml")]
    linked += [f"data/{name}" for name in ("example", "paper", "live")] + ["reports/placements.csv"]
    (root / "reports").mkdir(exist_ok=True)
    for name in ["pyproject.toml", "requirements.lock", "CITATION.cff", *linked]:
        if not (root / name).exists():
            (root / name).symlink_to(paths.root / name)
    if finished:
        (root / "data" / "processed").mkdir()
        (root / "data" / "processed" / "example").symlink_to(finished / "data" / "processed" / "example")
    return root


# --- the process that is killed ---------------------------------------------------------------------


def work(profile: str, name: str, settings: str, n_dialogues: str, n_memes: str) -> None:
    """Annotate, talk, then choose among all memes; files go where the notebooks write theirs."""
    import openai  # noqa: F401  (before `ready`: loading it is not what is measured)

    from memecmd_utils import annotation, dialogue, files, reranking, runs
    from memecmd_utils.llm import chat as llm_chat

    run = runs.open_run(profile, settings, name)
    print("ready", flush=True)
    with run.chat("annotator", "annotation") as chat:
        made = llm_chat.run(annotation.annotate(memes(int(n_memes)), chat, run.profile))
    files.write_jsonl(run.write("annotations.jsonl"), made)
    with run.chat("generator", "dialogue_generation") as chat:
        talked, _ = llm_chat.run(dialogue.generate(starts(int(n_dialogues)), chat, run.profile, run.folder))
    library = {meme.meme_id: meme for meme in memes(int(n_memes))}
    ranked = [
        [
            (dialogue.Context.before(one.dialogue_id, one.lines, turn.turn), [*library])
            for turn in one.turns[1:]
        ]
        for one in talked
    ]
    with run.chat("chooser", "choice", at_once=1) as chat:
        chosen = reranking.ask_model(ranked, chat, library, run.profile)
    files.write_jsonl(run.write("choices.jsonl"), chosen)


# --- around it --------------------------------------------------------------------------------------


class Server:
    """A simulated endpoint in a process of its own, and its log."""

    def __init__(self, log: Path, port: str) -> None:
        self.log, self.url = log, f"http://127.0.0.1:{port}/v1"

    def lines(self, first: int = 0) -> list[dict[str, Any]]:
        """Requests so far, from number `first` on."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()[first:]]

    def count(self) -> int:
        """How many requests came so far."""
        return self.log.read_bytes().count(b"\n")

    def usd(self) -> float:
        """What all answers cost that the model gave, arrived or not."""
        return sum(map(usd, self.lines()))


def usd(line: dict[str, Any]) -> float:
    """US dollars of one request of the log."""
    tokens_in, tokens_out = line.get("tokens", (0, 0))
    return (tokens_in * USD_IN + tokens_out * USD_OUT) / 1e6


@contextlib.contextmanager
def simulated(folder: Path, quiet: bool = False, **options: Any) -> Iterator[Server]:
    """Start `fault_server.Simulated` with `options` in a process of its own; stop it at the end.

    `quiet`: it keeps no log of what came.
    """
    log = folder / f"server-{len(list(folder.glob('server-*')))}.jsonl"
    log.touch()
    words = [sys.executable, str(HERE / "fault_server.py"), "" if quiet else str(log), json.dumps(options)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(log, process.stdout.readline().strip())
        finally:
            process.kill()


def checkout(folder: Path, url: str, **values: Any) -> Path:
    """A project root with data folders of its own and a profile `made` for the endpoint at `url`."""
    root = project(folder / "checkout")
    generator = {"base_url": url, "model": "simulated", "timeout_s": 1.0}
    generator |= {"usd_per_million_in": USD_IN, "usd_per_million_out": USD_OUT}
    usual = {"llm": "openai", "mode": "auto", "concurrency": 16, "n_news": 2, "n_role_pairs": 0}
    usual |= {"endpoints": {"generator": generator}}
    made_up.write_profile(root / "data" / "profiles", "made", **(usual | values))
    return root


def start(
    root: Path, dialogues: int, memes: int = 0, run: str = "run", settings: str = ""
) -> subprocess.Popen:
    """Start the process and return once it has loaded everything."""
    words = [sys.executable, __file__, "made", run, settings, str(dialogues), str(memes)]
    process = subprocess.Popen(
        words, cwd=root, env=environment(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(process.communicate()[1])
    return process


def finish(process: subprocess.Popen) -> str:
    """Wait for its end; the line of its error, empty where there is none."""
    _, errors = process.communicate(timeout=120)
    lines = [line for line in errors.splitlines() if re.match(r"memecmd_utils\.[\w.]+: ", line)]
    return "" if not process.returncode else lines[-1] if lines else errors


def datasets(root: Path, run: str = "run") -> dict[str, str]:
    """What a run wrote, by file; what a kill left half written has a dot before its name."""
    folder = root / "data" / "processed" / run
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.glob("[!.]*.jsonl"))}


def recorded(root: Path) -> Counter[str]:
    """Fingerprints of all recorded requests, by how often they stand there; each line is checked."""
    from fault_replies import fingerprint_of_form

    files = sorted((root / "data" / "raw" / "recordings").rglob("*.jsonl"))
    return Counter(fingerprint_of_form(form) for path in files for _, form, _ in read_file(path))


if __name__ == "__main__":
    work(*sys.argv[1:])
