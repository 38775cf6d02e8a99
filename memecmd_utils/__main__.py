"""`python -m memecmd_utils COMMAND`: what the Makefile calls."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memecmd_utils import errors, paths, profiles, run_lock


def _resolve(options: argparse.Namespace) -> int:
    from memecmd_utils import outside_inputs, readiness, runs

    name, settings = profiles.from_environment()
    profile = profiles.load_profile(name, profiles.parse_settings(settings))
    readiness.check(profile, options.templates)
    # A run that goes on keeps the settings that it began with.
    with run_lock.taken(paths.processed / profiles.run_name(profile)):
        run = runs.open_run(name, settings, profiles.resolve(name, settings)[0])
        outside_inputs.note(run, outside_inputs.stages(options.templates))
    print(run.name)
    return 0


def _hold(options: argparse.Namespace) -> int:
    run_lock.hold(paths.processed / options.run, options.words)


def _run(options: argparse.Namespace) -> int:
    from memecmd_utils import outside_inputs, runner, runs

    profile, settings = profiles.from_environment()
    run = runs.open_run(profile, settings, options.run)
    replays = run.strict and options.notebook not in runner.NOT_REPLAYED
    output = paths.reports / options.run / f"{options.notebook}.ipynb"
    print(f"{options.notebook} ...", flush=True)
    with run_lock.taken(paths.processed / options.run):
        seconds = runner.run_notebook(
            paths.notebooks / f"{options.notebook}.ipynb",
            output,
            {"profile": profile, "settings": settings, "run_name": options.run},
            cell_timeout=runner.REPLAY_TIMEOUT_S if replays else runner.CELL_TIMEOUT_S,
            status=sys.stderr,
        )
        outside_inputs.done(run, options.notebook)
    print(f"{options.notebook} done in {seconds:.0f} s")
    return 0


def _collect_news(_: argparse.Namespace) -> int:
    from memecmd_utils import news

    name, settings = profiles.from_environment()
    print(news.collect_for(profiles.load_profile(name, profiles.parse_settings(settings))))
    return 0


def _library_sources(options: argparse.Namespace) -> int:
    from memecmd_utils import datasets

    datasets.fetch_library(archive=Path(options.zip) if options.zip else None)
    return 0


def _template_sources(options: argparse.Namespace) -> int:
    from memecmd_utils import runs, template_memes

    run = runs.open_run(*profiles.from_environment(), options.run)
    print(template_memes.shown(template_memes.settle(run.profile, run.folder)))
    return 0


def _insert_memes(options: argparse.Namespace) -> int:
    from memecmd_utils import meme_insertion

    if not options.source or not options.target:
        print("error: name both files: make insert-memes IN=chat.csv OUT=with_memes.csv", file=sys.stderr)
        return 2
    source, target = (Path(name).expanduser() for name in (options.source, options.target))
    name, settings = profiles.from_environment()
    done = meme_insertion.insert_file(
        source, target, name, settings, options.run, options.strategy, options.fields
    )
    print(done.text())
    return 0


def _evaluate_mod(options: argparse.Namespace) -> int:
    from memecmd_utils import mod

    if not options.source:
        print("error: name a file or folder of MOD: make evaluate-mod MOD=c_val_task2.json", file=sys.stderr)
        return 2
    name, settings = profiles.from_environment()
    path = Path(options.source).expanduser()
    print(mod.evaluate_file(path, name, settings, options.run, options.dialogues).text())
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
    from memecmd_utils import readiness, run_summary

    name, settings = profiles.from_environment()
    profile = profiles.load_profile(name, profiles.parse_settings(settings))
    print(run_summary.cost_text(profile))
    for row in run_summary.real_usage(profiles.run_name(profile)):
        print(row)
    if lacks := readiness.lacks(profile):
        print("Before it can run, this is missing:")
        for lack in lacks:
            print(f"- {lack.text}")
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


def _verify(options: argparse.Namespace) -> int:
    from memecmd_utils import release_check

    name, settings = profiles.from_environment()
    if options.folder:
        folder = Path(options.folder).expanduser()
    else:
        run = profiles.run_name(profiles.load_profile(name, profiles.parse_settings(settings)))
        folder = paths.processed / run / "release"
        if not folder.is_dir():
            print(f"error: run {run} has no release yet: `make reproduce` makes one", file=sys.stderr)
            return 2
    try:
        print(release_check.report(folder))
    except release_check.ReleaseError as error:
        print(error)
        return 1
    return 0


def _site(_: argparse.Namespace) -> int:
    from memecmd_utils import site

    name, settings = profiles.from_environment()
    run = profiles.run_name(profiles.load_profile(name, profiles.parse_settings(settings)))
    print(site.build(paths.reports / run).relative_to(paths.root))
    return 0


def _promote(options: argparse.Namespace) -> int:
    from memecmd_utils import recording_care

    for line in recording_care.promote_run(options.run):
        print(line)
    return 0


def _check_recordings(_: argparse.Namespace) -> int:
    from memecmd_utils import recording_care

    report = recording_care.check(recording_care.folders_of(_profile_name()))
    print(report.text())
    return 1 if report.problems else 0


def _explain(options: argparse.Namespace) -> int:
    from memecmd_utils import recording_care

    folders = recording_care.folders_of(_profile_name())
    print("\n".join(recording_care.explain(options.a, options.b, folders)))
    return 0


def _profile_name() -> str:
    return profiles.load_profile(profiles.from_environment()[0]).name


OPTIONAL: dict[str, dict[str, Any]] = {
    "b": {"nargs": "?"},
    "folder": {"nargs": "?"},
    "zip": {"nargs": "?", "default": ""},
    "words": {"nargs": argparse.REMAINDER},
    "--templates": {"action": "store_true"},
    "--run": {"default": ""},
    "--strategy": {"default": "greedy"},
    "--fields": {"default": ""},
    "--dialogues": {"type": int},
}


def parser() -> argparse.ArgumentParser:
    """Build the parser; every command has its help text."""
    top = argparse.ArgumentParser(prog="python -m memecmd_utils", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def add(name: str, function, text: str, *arguments: str) -> None:
        command = commands.add_parser(name, help=text)
        for argument in arguments:
            command.add_argument(argument, **OPTIONAL.get(argument, {}))
        command.set_defaults(function=function)

    about = "write the profile that PROFILE and SET make, print the run's name"
    add("resolve", _resolve, about, "--templates")
    add("run", _run, "run one notebook headlessly into a run's report folder", "notebook", "run")
    add("hold", _hold, "run a command with a run's folder held for it, alone", "run", "words")
    add("summary", _summary, "say what a run wrote and where", "run")
    add("doctor", _doctor, "check this machine")
    add("cost", _cost, "estimate calls, tokens, money and hours")
    add("local-llm", _local_llm, "install the local engine and one model's weights", "model")
    add("refresh-tracked", _refresh, "copy the example run's results into reports/")
    add("compare-tracked", _compare, "compare the example run with the tracked results")
    add(
        "verify",
        _verify,
        "check a release against its manifest, by default that of PROFILE and SET",
        "folder",
    )
    add("collect-news", _collect_news, "collect news for PROFILE from its feeds")
    add("library-sources", _library_sources, "fetch the paper's repositories of images", "zip")
    add("template-sources", _template_sources, "find or fetch the data sets of template memes", "run")
    chats = ("source", "target", "--run", "--strategy", "--fields")
    add("insert-memes", _insert_memes, "put memes of a finished run into one's own chats", *chats)
    mod = ("source", "--run", "--dialogues")
    add("evaluate-mod", _evaluate_mod, "measure retrieval on files of MOD", *mod)
    add("site", _site, "put the page of PROFILE's run with its notebooks into one folder")
    add("recordings-promote", _promote, "turn the recordings a run used into tracked ones", "run")
    add("recordings-check", _check_recordings, "verify the recordings of PROFILE and the tracked ones")
    about = "say how two forms or keys of PROFILE differ, or a miss and the nearest recording"
    add("explain-miss", _explain, about, "a", "b")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        status = options.function(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        # Whatever still waited for the kernel complains while it is torn down.
        logging.getLogger("asyncio").disabled = True
        print("stopped; what was accepted is recorded, run again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # As with `| head`. Nothing more may be written there, also not when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("stopped: nobody reads the output any more", file=sys.stderr)
        return 1
    except Exception as error:
        # What a user can mend is told without a traceback; anything else shows where it broke.
        message = errors.told(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
