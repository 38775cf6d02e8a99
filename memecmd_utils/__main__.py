"""`python -m memecmd_utils COMMAND`: what the Makefile calls."""

import argparse
import json
import sys
from collections.abc import Sequence

from memecmd_utils import paths, profiles


def _resolve(_: argparse.Namespace) -> int:
    from memecmd_utils import runs

    name, settings = profiles.from_environment()
    runs.preflight(profiles.load_profile(name, profiles.parse_settings(settings)))
    print(profiles.resolve(name, settings)[0])
    return 0


def _run(options: argparse.Namespace) -> int:
    from memecmd_utils import runner

    profile, settings = profiles.from_environment()
    recorded = profiles.load_profile(profile, profiles.parse_settings(settings)).mode == "recorded"
    output = paths.reports / options.run / f"{options.notebook}.ipynb"
    print(f"{options.notebook} ...", flush=True)
    seconds = runner.run_notebook(
        paths.notebooks / f"{options.notebook}.ipynb",
        output,
        {"profile": profile, "settings": settings, "run_name": options.run},
        cell_timeout=runner.REPLAY_TIMEOUT_S if recorded else runner.CELL_TIMEOUT_S,
        progress=sys.stderr.isatty(),
    )
    print(f"{options.notebook} done in {seconds:.0f} s")
    return 0


def _summary(options: argparse.Namespace) -> int:
    from memecmd_utils import run_summary

    print(run_summary.text(options.run))
    return 0


def _doctor(_: argparse.Namespace) -> int:
    from memecmd_utils import doctor

    text, good = doctor.report(*profiles.from_environment())
    print(text)
    return 0 if good else 1


def _cost(_: argparse.Namespace) -> int:
    from memecmd_utils import cost, run_summary

    name, settings = profiles.from_environment()
    profile = profiles.load_profile(name, profiles.parse_settings(settings))
    table = cost.estimate(profile, run_summary.expected_memes(profile))
    print(table.to_string(index=False, float_format=lambda x: f"{x:,.2f}"))
    print("\nEstimate: prompts of typical length, nothing recorded yet. No call was made.")
    for row in run_summary.real_usage(profiles.run_name(profile)):
        print(row)
    return 0


def _local_llm(options: argparse.Namespace) -> int:
    from memecmd_utils import local_llm

    path = local_llm.install(options.model)
    weights = local_llm.find(options.model)
    print(f"{weights.name} {weights.label} ({weights.licence}) is ready: {path}, SHA-256 checked")
    return 0


def _refresh(_: argparse.Namespace) -> int:
    from memecmd_utils import tracked

    for path in tracked.refresh():
        print(path.relative_to(paths.root))
    return 0


def _compare(_: argparse.Namespace) -> int:
    from memecmd_utils import tracked

    found = tracked.compare()
    for line in found:
        print(line)
    print("the run equals the tracked results" if not found else f"{len(found)} differences")
    return 1 if found else 0


def _promote(options: argparse.Namespace) -> int:
    from memecmd_utils import promotion

    for line in promotion.promote_run(options.run):
        print(line)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from memecmd_utils.recordings import differing_fields

    a, b = (json.loads(text) for text in (options.a, options.b))
    print("\n".join(sorted(differing_fields(a, b))) or "no difference")
    return 0


def parser() -> argparse.ArgumentParser:
    """Build the parser; every command has its help text."""
    top = argparse.ArgumentParser(prog="python -m memecmd_utils", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def add(name: str, function, text: str, *arguments: str) -> None:
        command = commands.add_parser(name, help=text)
        for argument in arguments:
            command.add_argument(argument)
        command.set_defaults(function=function)

    add("resolve", _resolve, "write the resolved profile of PROFILE and SET, print the run's name")
    add("run", _run, "run one notebook headlessly into a run's report folder", "notebook", "run")
    add("summary", _summary, "say what a run wrote and where", "run")
    add("doctor", _doctor, "check this machine")
    add("cost", _cost, "estimate calls, tokens, money and hours")
    add("local-llm", _local_llm, "install the local engine and one model's weights", "model")
    add("refresh-tracked", _refresh, "copy the example run's results into reports/")
    add("compare-tracked", _compare, "compare the example run with the tracked results")
    add("recordings-promote", _promote, "turn the recordings a run used into tracked ones", "run")
    add("explain-miss", _explain, "name the fields in which two normal forms differ", "a", "b")
    return top


# What a user can mend is told in one line without a traceback; anything else shows where it broke.
EXPECTED = {
    "ProfileError",
    "NotebookFailed",
    "LocalModelError",
    "EndpointError",
    "RecordingError",
    "RecordingMiss",
    "BudgetReached",
    "NewsError",
    "StageMissing",
    "LibraryError",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        return options.function(options)
    except Exception as error:
        if type(error).__name__ in EXPECTED:
            print(f"error: {error}", file=sys.stderr)
            return 2
        raise


if __name__ == "__main__":
    sys.exit(main())
