"""A small release of made-up records, plain or with everything in it that is hard to store."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from made_up import annotation, dialogue, grade, mark, meme, meme_files, placement, rating

from memecmd_utils import release, runs, schemas, settings

PROFILE = settings.Profile(name="example")
NASTY = 'a|b`c`<b>"\n---\n# x😀\u2028[y](z) {{ 7*7 }} \\ 名字'
"""Breaks what is pasted together: YAML, a table's row, a line, code marks, HTML, a link, a template."""
# Loading a folder asks nobody: a process that tries ends at once, whatever would have caught an exception.
OFFLINE = """
import os, socket
def refused(*_, **__): os._exit(97)
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
"""


def run_dir(folder: Path) -> Path:
    """A run's folder with three pictures."""
    meme_files(folder / "images")
    return folder


def write(folder: Path, parent: Path, **changes: object) -> dict[str, int]:
    """Release two dialogues and three memes, one of them without a licence, below `parent`."""
    values = {
        "dialogues": [dialogue(), dialogue("news-made-2")],
        "placements": [placement(2, "m1"), placement(5, "m3", strategy="random", rank=None)],
        "memes": [meme("m1"), meme("m2"), meme("m3", licence="")],
        "annotations": [annotation("m1"), annotation("m3", source="big-model@v2")],
        "marks": [],
        "grades": [],
        "judge": "model j@1",
        "profile": PROFILE,
        **changes,
    }
    run = runs.Run("some-run", values["profile"], parent, parent, read_also=folder)
    run.save([rating(source=values["judge"])] * 2, schemas.Rating)
    run.save([], schemas.Consistency)
    with mock.patch.object(release, "splits_of_run", return_value=[]):
        return release.write_release(run, {name: values[name] for name in release.TABLES})


def truth() -> dict[str, list[schemas.Record]]:
    """Marks of two markers and grades of two graders at turn 3."""
    grades = (("m1", "alpha", 0), ("m2", "alpha", 2), ("m1", "beta", 1), ("m2", "beta", 2))
    return {
        "marks": [mark(3, "one", True, ["m2", "m1"]), mark(3, "two", False, [])],
        "grades": [grade(3, *values) for values in grades],
    }


def nasty() -> dict[str, object]:
    """Records that hold `NASTY` wherever a text may stand, an unscored annotation and a Chinese meme id."""
    spoken = dialogue(NASTY, texts=(NASTY, "😀\n第二行", "好"))
    named = meme("图.一").model_copy(update={"file": "images/m1.png", "text": NASTY, "gloss": NASTY})
    unscored = {"s_plus": "", "s_minus": "", "emotion": "", "motivation": "", "unscored": NASTY}
    return {
        "dialogues": [spoken.model_copy(update={"source": NASTY, "title": NASTY})],
        "placements": [placement(2, "图.一", dialogue_id=NASTY, strategy=NASTY, source=NASTY)],
        "memes": [named, meme("m3", licence="")],
        "annotations": [annotation("图.一", source=NASTY, **unscored)],
        "profile": settings.Profile(name="a: b #c"),
        "judge": NASTY,
        "marks": [mark(2, NASTY, True, ["图.一"], NASTY, NASTY)],
    }


def outside(code: str, tmp_path: Path, *arguments: str) -> str:
    """Run Python without a network and with caches below `tmp_path`; what it prints."""
    folders = {"HF_HOME": tmp_path / "hf", "HF_DATASETS_CACHE": tmp_path / "cache", "HOME": tmp_path}
    environment = {**os.environ, **{name: str(path) for name, path in folders.items()}}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE + code, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode != 97, "the network was asked"
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
