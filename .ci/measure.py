"""Measure the figures of speed that the design asks for, into `reports/bench.md`: `make bench [BENCH=part]`.

Ratios are within one run, rounds interleaved, so that what else runs on the machine slows all alike; seconds
are those of the machine that the page names. Endpoints are simulated, on the loopback address.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from memecmd_utils import files, retrieval
from memecmd_utils.files import paths

KEPT = paths.reports / "bench.json"
"""All measurements: a part that is measured again takes the place of its earlier ones."""
WEIGHTS = (1 / 3, 1 / 3, 1 / 3, 1 / 3)
PAPER_MEMES, PAPER_DIM = 6_023, 2_304
ROUNDS = 15


class Figure(NamedTuple):
    """One measured figure, beside the one to reach."""

    what: str
    limit: str
    """For example `<= 1.0`; empty where none is asked for."""
    value: float
    unit: str
    note: str

    @property
    def reached(self) -> str:
        """Whether the limit is kept, in words."""
        if not self.limit:
            return "-"
        sign, bound = self.limit.split()
        return "yes" if (self.value <= float(bound)) == (sign == "<=") else "**no**"


def seconds(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def rounds(*work: Callable[[], object], count: int = ROUNDS) -> np.ndarray:
    """Seconds of each function in interleaved rounds, [functions, rounds]; a first round does not count."""
    times = np.array([[seconds(function) for function in work] for _ in range(count + 1)]).T
    return times[:, 1:]


def unit(rng: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Random unit vectors, float32 [rows, dim]."""
    vectors = rng.standard_normal((rows, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# --- scoring at the paper's size


def scoring() -> Iterator[Figure]:
    """64 turns against 6,023 memes: ours, the bare product of four blocks, four cosines with a sort."""
    from sklearn.metrics.pairwise import cosine_similarity

    rng = np.random.default_rng(13)
    blocks = [unit(rng, PAPER_MEMES, PAPER_DIM) for _ in range(4)]
    index = retrieval.build_index([f"m{i:05d}" for i in range(PAPER_MEMES)], blocks)
    queries = retrieval.build_queries(unit(rng, 64, PAPER_DIM) for _ in range(3))
    weighted = retrieval.weigh(queries, WEIGHTS)
    asked = [sign * queries[:, part] for part, sign in zip(retrieval.ASKED, retrieval.SIGNS, strict=True)]

    def cosines() -> np.ndarray:
        parts = [cosine_similarity(one, block) for one, block in zip(asked, blocks, strict=True)]
        return np.argsort(-sum(w * part for w, part in zip(WEIGHTS, parts, strict=True)), axis=1)[:, :3]

    ours, product, naive = rounds(
        lambda: retrieval.top_k(index, queries, WEIGHTS, 3), lambda: weighted @ index.rows.T, cosines
    )
    note = ", ".join(
        f"{name} {1e3 * np.median(one):.1f} ms"
        for name, one in (("ours", ours), ("product", product), ("cosines and sort", naive))
    )
    what = "scoring + top 3, 6,023 memes x 4 x 2,304, 64 turns"
    yield Figure(
        f"{what}: ours / bare product of four blocks", "<= 1.0", float(np.median(ours / product)), "x", note
    )
    yield Figure(f"{what}: four cosines and a sort / ours", ">= 4", float(np.median(naive / ours)), "x", note)


# --- a million memes


def million() -> Iterator[Figure]:
    """FAISS proposes, stored float16 rows rank: vectors of clusters with noise, 4 x 384 dimensions."""
    import resource

    rng, n, dim = np.random.default_rng(13), 1_000_000, 384
    centres = unit(rng, 20_000, 4 * dim)

    def rows(count: int) -> np.ndarray:
        made = centres[rng.integers(len(centres), size=count)] + 0.6 * unit(rng, count, 4 * dim)
        return np.hstack([p / np.linalg.norm(p, axis=1, keepdims=True) for p in np.split(made, 4, axis=1)])

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        ids = [str(i) for i in range(n // 8192 * 8192)]
        retrieval.write_rows(folder, (rows(8192) for _ in range(n // 8192)), False)
        retrieval.write_faiss(folder, len(ids))
        built = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6

        def turns() -> np.ndarray:
            parts = np.split(rows(64), 4, axis=1)
            return retrieval.build_queries([parts[0], parts[2], parts[3]])

        index = retrieval.tuned(retrieval.open_on_disk(folder, ids), turns(), WEIGHTS)
        queries = turns()
        flat = retrieval.MemeIndex(index.meme_ids, np.asarray(index.rows, dtype=np.float32))
        exact = retrieval.top_k(flat, queries, WEIGHTS, 10).memes
        found = retrieval.top_k(index, queries, WEIGHTS, 10).memes
        recall = float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, found, strict=True)]))
        ours, brute = rounds(
            lambda: retrieval.top_k(index, queries, WEIGHTS, 10),
            lambda: retrieval.weigh(queries, WEIGHTS) @ flat.rows.T,
            count=3,
        )
    times = f"ours {np.median(ours):.2f} s, flat product {np.median(brute):.2f} s"
    note = f"{len(ids):,} rows of 4 x {dim}; 64 turns: {times}"
    yield Figure("a million memes: recall@10", ">= 0.95", recall, "", note)
    yield Figure(
        "a million memes: flat search / ours, time", ">= 20", float(np.median(brute / ours)), "x", note
    )
    yield Figure("a million memes: peak memory of the build", "<= 4", peak, "GB", f"built in {built:.0f} s")


# --- a slider


def slider() -> Iterator[Figure]:
    """From a moved slider to the redrawn chat, one dialogue, 6,023 memes."""
    import made_up
    from PIL import Image

    from memecmd_utils import panel

    rng, dim = np.random.default_rng(13), PAPER_DIM
    ids = [f"m{number:04d}" for number in range(PAPER_MEMES)]
    index = retrieval.build_index(ids, [unit(rng, PAPER_MEMES, dim) for _ in range(4)])
    profile, scored = made_up.profile(n_turns=18), []
    for number in range(8):
        texts = tuple(f"第{number}段对话的第{turn}句，说得不长也不短" for turn in range(1, 19))
        queries = retrieval.build_queries(unit(rng, 17, dim) for _ in range(3))
        ranking = retrieval.top_k(index, queries, profile.retrieval.weights, profile.retrieval.top_k)
        dialogue = made_up.dialogue(f"news-{number}", texts)
        scored.append(retrieval.ScoredDialogue(dialogue, queries, ranking))
    with tempfile.TemporaryDirectory() as name:
        picture = Path(name) / "m.png"
        Image.new("RGB", (360, 360), (200, 90, 40)).save(picture)
        memes = {one: made_up.meme(one) for one in ids}
        tab = panel.Panel(scored, index, profile, memes, dict.fromkeys(ids, picture), {})
        taken = []
        for knob in (*tab.sliders, tab.top_k):
            for place in np.linspace(knob.min, knob.max, 11)[1:]:
                value = type(knob.value)(place)
                taken.append(seconds(lambda knob=knob, value=value: setattr(knob, "value", value)))
    slowest = float(1e3 * np.quantile(taken, 0.95))
    note = f"median {1e3 * np.median(taken):.1f} ms; without the browser's own drawing"
    yield Figure(
        "slider to redrawn chat, one dialogue, 6,023 memes (95% of moves)", "<= 100", slowest, "ms", note
    )


# --- a chat that goes on


def bot() -> Iterator[Figure]:
    """Chat in, memes out, without a model: from the finished example run, which `make reproduce` makes."""
    import memecmd_utils

    words = "import memecmd_utils; memecmd_utils.open('example').rank(['今天就是周五'])"
    first = seconds(lambda: subprocess.run([sys.executable, "-c", words], cwd=paths.root, check=True))
    yield Figure("`open` and the first `rank`, a new process", "<= 12", first, "s", "200 memes")
    library = memecmd_utils.open("example")
    chats = [
        [("小周", f"我一个字没动，这都第{n}天了"), ("阿岚", f"今天就是周五，还有{n}页")] for n in range(60)
    ]
    taken = [seconds(lambda chat=chat: library.rank(chat)) for chat in chats]
    slowest, note = float(1e3 * np.quantile(taken, 0.95)), f"median {1e3 * np.median(taken):.1f} ms"
    yield Figure("a turn of `rank` after the first (95% of turns)", "<= 60", slowest, "ms", note)


# --- dialogues side by side


def orchestration() -> Iterator[Figure]:
    """64 dialogues of 18 turns, cap 128, latency 1 s, beside the same calls on the bare SDK."""
    import openai
    import stage_run

    from memecmd_utils import dialogue, llm
    from memecmd_utils.llm.chat import Chat
    from memecmd_utils.llm.endpoint import OpenAIBackend
    from memecmd_utils.llm.recordings import Recordings
    from memecmd_utils.settings import Endpoint, Profile

    profile = Profile.model_validate({"name": "made", "models": {"llm": "openai", "mode": "auto"}})
    bodies: dict[tuple[str, str], dict[str, Any]] = {}

    class Noting(OpenAIBackend):
        def body(self, request: Any, form: str) -> dict[str, Any]:
            made = bodies[request.task, request.subject] = super().body(request, form)
            return made

    async def bare(url: str) -> None:
        http, slots = openai.DefaultAsyncHttpxClient(trust_env=False), asyncio.Semaphore(128)
        async with openai.AsyncOpenAI(base_url=url, api_key="simulated", http_client=http) as client:

            async def ask(task: str, subject: str) -> None:
                async with slots:
                    await client.chat.completions.create(**bodies[task, subject])

            async def talk(name: str) -> None:
                summaries = []
                for turn in range(1, 19):
                    if turn > 1:
                        summaries.append(asyncio.ensure_future(ask("summary", f"{name}/{turn}")))
                    await ask("utterance", f"{name}/{turn}")
                await asyncio.gather(*summaries)

            await asyncio.gather(*map(talk, sorted({subject.partition("/")[0] for _, subject in bodies})))

    with tempfile.TemporaryDirectory() as name, stage_run.simulated(Path(name), latency=1.0) as server:
        folder = Path(name) / "run"
        backend = Noting(Endpoint(base_url=server.url, model="simulated"), key=stage_run.KEY)
        chat = Chat(backend, Recordings("made", [folder], folder), "auto", 128)
        starts = stage_run.starts(64)
        ours = seconds(lambda: llm.run(dialogue.generate(starts, chat, profile, folder)))
        theirs = seconds(lambda: asyncio.run(bare(server.url)))
    note = f"ours {ours:.1f} s, bare SDK {theirs:.1f} s, bound 18 s"
    yield Figure(
        "64 dialogues x 18 turns, cap 128, latency 1 s: ours / 18 s", "<= 1.15", ours / 18, "x", note
    )
    yield Figure("the same: ours / the same calls on the bare SDK", "<= 1.1", ours / theirs, "x", note)


# --- the main job


def reproduce() -> Iterator[Figure]:
    """`make reproduce` in a clone of this checkout, with the environment that runs this."""
    venv = Path(sys.executable).parents[1]
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "-q", str(paths.root), str(clone)], check=True)
        environment = {**os.environ, "PYTHONPATH": str(clone)}
        words = [str(venv / "bin" / "python"), "-m", "memecmd_utils", "--profile", "example", "reproduce"]

        def run() -> None:
            subprocess.run(words, cwd=clone, env=environment, check=True, stdout=subprocess.DEVNULL)

        first, second = seconds(run), seconds(run)
    yield Figure("`make reproduce`, example profile, environment ready", "", first, "s", "all stages")
    yield Figure("`make reproduce` again", "<= 3", second, "s", "nothing to do")


# --- all of it at the paper's size


def paper_size() -> Iterator[Figure]:
    """A simulated run with 6,023 pictures and all dialogues of profile `paper`, from pictures to release."""
    import paper_size

    for what, value, unit, note in paper_size.measure():
        yield Figure(what, "<= 5" if unit == "GB" else "", value, unit, note)


PARTS = {p.__name__: p for p in (scoring, slider, bot, orchestration, reproduce, million, paper_size)}
LONG = ("paper_size",)
"""Parts that take an hour or more: measured where they are named."""


def main(names: list[str]) -> None:
    """Measure the parts of these names, by default all, and write the page anew."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    commit = files.git("rev-parse", "--short=10", "HEAD")
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    machine = f"{os.cpu_count()} cores, {system}"
    for name in names or [part for part in PARTS if part not in LONG]:
        print(f"{name} ...", flush=True)
        figures = [figure._asdict() for figure in PARTS[name]()]
        made = f"{machine}, {time.strftime('%Y-%m-%d')}, commit {commit}"
        kept[name] = {
            "machine": made,
            "figures": figures,
        }
    files.write_json(KEPT, kept)
    lines = [
        "# Speed and memory",
        "",
        "Made by `make bench`, the last part by `make bench BENCH=paper_size`. Ratios are within one run; "
        "seconds are those of the machine. A target has the unit of what was measured. Ratios and "
        "times are medians over rounds, so a ratio need not be that of the times beside it.",
        "",
    ]
    lines += [f"- {part}: {kept[part]['machine']}" for part in PARTS if part in kept]
    lines += ["", "| what | target | measured | reached | notes |", "|---|---|---:|---|---|"]
    for part in PARTS:
        for row in kept.get(part, {}).get("figures", []):
            figure = Figure(**row)
            number = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
            measured = f"{number} {figure.unit}".strip()
            lines.append(
                f"| {figure.what} | {figure.limit or '-'} | {measured} | {figure.reached} | {figure.note} |"
            )
    files.write_text(paths.reports / "bench.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
