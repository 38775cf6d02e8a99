"""The command line: an error that a user can mend is one line, any other shows where it broke."""

import os
import subprocess
import sys

import pytest

from memecmd_utils import __main__ as commands
from memecmd_utils import doctor
from memecmd_utils.files import paths


def status_of(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        commands.main(list(words))
    return left.value.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "n_turns=1", "reproduce"], "error: dialogue.n_turns: "),
        (["--profile", "openai", "reproduce"], "error: no API key: "),
        (["--set", "seed=77", "verify"], "error: "),
        (["insert-memes", "", ""], "error: name both files"),
        (["--profile", "nobody", "cost"], "error: no profile 'nobody'"),
        (["leaderboard", "--run", "nowhere"], "error: there is no run 'nowhere'"),
    ],
)
def test_what_a_user_can_mend_is_one_line(words: list[str], said: str, capsys) -> None:
    assert status_of(*words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1 and "Traceback" not in shown


def test_a_fault_of_the_package_shows_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "report", fail)
    with pytest.raises(ZeroDivisionError):
        commands.main(["doctor"])


def test_missing_weights_are_told_before_notebooks_are_loaded(tmp_path) -> None:
    code = "import sys; from memecmd_utils import __main__ as command\n"
    code += "try: command.main(['--profile', 'local', 'reproduce'])\n"
    code += "finally: print('nbformat' in sys.modules, 'memecmd_utils.run_notebook' in sys.modules)"
    kept = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PROFILE": "", "SET": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept, check=False)
    assert done.returncode == 2 and done.stdout == "False False\n" and "make local-llm" in done.stderr


def test_the_command_starts_without_heavy_packages() -> None:
    code = (
        "import sys, memecmd_utils.__main__, memecmd_utils.runs\n"
        "print([name for name in ('torch', 'openai', 'papermill', 'matplotlib', 'rapidocr', 'jieba') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=paths.root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
