"""A small release of made-up records, plain or with everything in it that is hard to store."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from made_up import annotation, dialogue, grade, mark, meme, meme_files, placement, rating

from memecmd_utils import release, runs, schemas, settings

NASTY = 'a|b`c`<b>"\n---\n# x😀\u2028[y](z) {{ 7*7 }} \\ 名字'
"""Breaks what is pasted together: YAML, a table's row, a line, code marks, HTML, a link, a template."""
# Loading a folder asks nobody: a process that tries ends at once, whatever would have caught an exception.
OFFLINE = """
import os, socket
def refused(*_, **__): os._exit(97)
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
"""


def write(parent: Path, **changes: object) -> dict[str, int]:
    """Release two dialogues, three memes, one of them without a licence, and their grades, below `parent`."""
    graded = (("m1", "alpha", 0), ("m2", "alpha", 2), ("m1", "beta", 1), ("m2", "beta", 2))
    values = {
        "dialogues": [dialogue(), dialogue("news-made-2")],
        "placements": [placement(2, "m1"), placement(5, "m3", strategy="random", rank=None)],
        "memes": [meme("m1"), meme("m2"), meme("m3", licence="")],
        "annotations": [annotation("m1"), annotation("m3", source="big-model@v2")],
        "marks": [mark(3, "one", True, ["m2", "m1"]), mark(3, "two", False, [])],
        "grades": [grade(3, *one) for one in graded],
        "judge": "model j@1",
        "profile": settings.Profile(name="example"),
        **changes,
    }
    meme_files(parent / "images")
    run = runs.Run("some-run", values["profile"], parent, parent)
    run.save([rating(source=values["judge"])] * 2, schemas.Rating)
    run.save([], schemas.Consistency)
    with mock.patch.object(release, "splits_of_run", return_value=[]):
        return release.write_release(run, {name: values[name] for name in release.TABLES})


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
        "grades": [],
    }


def outside(code: str, tmp_path: Path, *arguments: str) -> str:
    """Run Python without a network and with caches below `tmp_path`; what it prints."""
    folders = {"HF_HOME": tmp_path / "hf", "HF_DATASETS_CACHE": tmp_path / "cache", "HOME": tmp_path}
    environment = {**os.environ, **{name: str(path) for name, path in folders.items()}}
    quiet = "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS"
    options = {"cwd": tmp_path, "env": environment | dict.fromkeys(quiet, "1"), "timeout": 180}
    asked = [sys.executable, "-c", OFFLINE + code, *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, **options)
    assert done.returncode != 97, "the network was asked"
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
