"""The command line: an error that a user can mend is one line, any other shows where it broke."""

import os
import subprocess
import sys

import pytest

from memecmd_utils import __main__ as commands
from memecmd_utils import cost


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "n_turns=1", "reproduce"], "error: dialogue.n_turns: "),
        (["--profile", "openai", "doctor"], "error: no API key: "),
        (["insert-memes", "", ""], "error: name both files"),
        (["--profile", "nobody", "cost"], "error: no profile 'nobody'"),
        (["leaderboard", "--run", "nowhere"], "error: there is no run 'nowhere'"),
    ],
)
def test_what_a_user_can_mend_is_one_line(words: list[str], said: str, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        commands.main(words)
    shown = capsys.readouterr().err
    assert left.value.code == 2 and shown.startswith(said) and shown.count("\n") == 1


def test_a_fault_of_the_package_shows_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cost, "check", fail)
    with pytest.raises(ZeroDivisionError):
        commands.main(["doctor"])


def test_what_is_missing_is_told_before_heavy_packages_are_loaded(tmp_path) -> None:
    heavy = ("torch", "openai", "papermill", "nbformat", "matplotlib", "rapidocr", "jieba")
    code = "import sys, memecmd_utils\nassert not {'numpy', 'pydantic', 'click'} & {*sys.modules}\n"
    code += "from memecmd_utils import __main__ as command\n"
    code += "try: command.main(['--profile', 'local', 'reproduce'])\n"
    code += f"finally: print([name for name in {heavy} if name in sys.modules])"
    kept = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PROFILE": "", "SET": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept, check=False)
    assert done.returncode == 2 and done.stdout == "[]\n" and "make local-llm" in done.stderr
