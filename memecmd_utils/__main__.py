"""`python -m memecmd_utils COMMAND`: what the Makefile calls."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memecmd_utils import settings as settings_
from memecmd_utils.core import errors, paths
from memecmd_utils.ops import lock


def _resolve(options: argparse.Namespace) -> int:
    from memecmd_utils import runs
    from memecmd_utils.ops import doctor, inputs

    name, settings = settings_.from_environment()
    profile = settings_.load_profile(name, settings_.parse_settings(settings))
    doctor.check(profile, options.templates)
    # A run that goes on keeps the settings that it began with.
    with lock.taken(paths.processed / settings_.run_name(profile)):
        run = runs.open_run(name, settings, settings_.resolve(name, settings)[0])
        inputs.note(run, inputs.stages(options.templates))
    print(run.name)
    return 0


def _hold(options: argparse.Namespace) -> int:
    lock.hold(paths.processed / options.run, options.words)


def _run(options: argparse.Namespace) -> int:
    from memecmd_utils import runs
    from memecmd_utils.ops import inputs, runner

    profile, settings = settings_.from_environment()
    run = runs.open_run(profile, settings, options.run)
    replays = run.strict and options.notebook not in runner.NOT_REPLAYED
    output = paths.reports / options.run / f"{options.notebook}.ipynb"
    print(f"{options.notebook} ...", flush=True)
    with lock.taken(paths.processed / options.run):
        seconds = runner.run_notebook(
            paths.notebooks / f"{options.notebook}.ipynb",
            output,
            {"profile": profile, "settings": settings, "run_name": options.run},
            cell_timeout=runner.REPLAY_TIMEOUT_S if replays else runner.CELL_TIMEOUT_S,
            status=sys.stderr,
        )
        inputs.done(run, options.notebook)
    print(f"{options.notebook} done in {seconds:.0f} s")
    return 0


def _collect_news(_: argparse.Namespace) -> int:
    from memecmd_utils.dialogue import news

    name, settings = settings_.from_environment()
    print(news.collect_for(settings_.load_profile(name, settings_.parse_settings(settings))))
    return 0


def _library_sources(options: argparse.Namespace) -> int:
    from memecmd_utils.core.fetch import datasets

    datasets.fetch_library(archive=Path(options.zip) if options.zip else None)
    return 0


def _template_sources(options: argparse.Namespace) -> int:
    from memecmd_utils import runs
    from memecmd_utils.cm50 import data

    run = runs.open_run(*settings_.from_environment(), options.run)
    print(data.shown(data.settle(run.profile, run.folder)))
    return 0


def _insert_memes(options: argparse.Namespace) -> int:
    from memecmd_utils.chats import insertion

    if not options.source or not options.target:
        print("error: name both files: make insert-memes IN=chat.csv OUT=with_memes.csv", file=sys.stderr)
        return 2
    source, target = (Path(name).expanduser() for name in (options.source, options.target))
    name, settings = settings_.from_environment()
    done = insertion.insert_file(
        source, target, name, settings, options.run, options.strategy, options.fields
    )
    print(done.text())
    return 0


def _evaluate_mod(options: argparse.Namespace) -> int:
    from memecmd_utils.studies import mod as studies_mod

    if not options.source:
        print("error: name a file or folder of MOD: make evaluate-mod MOD=c_val_task2.json", file=sys.stderr)
        return 2
    name, settings = settings_.from_environment()
    path = Path(options.source).expanduser()
    print(studies_mod.evaluate_file(path, name, settings, options.run, options.dialogues).text())
    return 0


def _summary(options: argparse.Namespace) -> int:
    from memecmd_utils.ops import cost

    print(cost.summary_text(options.run))
    return 0


def _doctor(_: argparse.Namespace) -> int:
    from memecmd_utils.ops import doctor

    text, good = doctor.report(*settings_.from_environment())
    print(text)
    return 0 if good else 1


def _cost(_: argparse.Namespace) -> int:
    from memecmd_utils.ops import cost, doctor

    name, settings = settings_.from_environment()
    profile = settings_.load_profile(name, settings_.parse_settings(settings))
    print(cost.cost_text(profile))
    for row in cost.real_usage(settings_.run_name(profile)):
        print(row)
    if lacks := doctor.lacks(profile):
        print("Before it can run, this is missing:")
        for lack in lacks:
            print(f"- {lack.text}")
    return 0


def _local_llm(options: argparse.Namespace) -> int:
    from memecmd_utils.core.llm import local

    path = local.install(options.model)
    weights = local.find(options.model)
    print(f"{weights.name} {weights.label} ({weights.licence}) is ready: {path}, SHA-256 checked")
    return 0


def _refresh(_: argparse.Namespace) -> int:
    from memecmd_utils.report import tracked

    for path in tracked.refresh():
        print(path.relative_to(paths.root))
    return 0


def _compare(_: argparse.Namespace) -> int:
    from memecmd_utils.report import tracked

    found = tracked.compare()
    for line in found:
        print(line)
    print("the run equals the tracked results" if not found else f"{len(found)} differences")
    return 1 if found else 0


def _verify(options: argparse.Namespace) -> int:
    from memecmd_utils.release import manifest

    name, settings = settings_.from_environment()
    if options.folder:
        folder = Path(options.folder).expanduser()
    else:
        run = settings_.run_name(settings_.load_profile(name, settings_.parse_settings(settings)))
        folder = paths.processed / run / "release"
        if not folder.is_dir():
            print(f"error: run {run} has no release yet: `make reproduce` makes one", file=sys.stderr)
            return 2
    try:
        print(manifest.report(folder))
    except manifest.ReleaseError as error:
        print(error)
        return 1
    return 0


def _site(_: argparse.Namespace) -> int:
    from memecmd_utils.report import tracked

    name, settings = settings_.from_environment()
    run = settings_.run_name(settings_.load_profile(name, settings_.parse_settings(settings)))
    print(tracked.build(paths.reports / run).relative_to(paths.root))
    return 0


def _promote(options: argparse.Namespace) -> int:
    from memecmd_utils.core.recordings import care

    for line in care.promote_run(options.run):
        print(line)
    return 0


def _check_recordings(_: argparse.Namespace) -> int:
    from memecmd_utils.core.recordings import care

    report = care.check(care.folders_of(_profile_name()))
    print(report.text())
    return 1 if report.problems else 0


def _explain(options: argparse.Namespace) -> int:
    from memecmd_utils.core.recordings import care

    folders = care.folders_of(_profile_name())
    print("\n".join(care.explain(options.a, options.b, folders)))
    return 0


def _profile_name() -> str:
    return settings_.load_profile(settings_.from_environment()[0]).name


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
