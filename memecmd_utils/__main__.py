"""The command `memecmd`: what the Makefile calls, and what a user types where make is not at hand.

Profile and settings come from `--profile` and `--set`, or from PROFILE and SET as make exports them.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from memecmd_utils import settings
from memecmd_utils.core import errors, paths
from memecmd_utils.settings import Profile


@dataclass(frozen=True)
class Choice:
    """What `--profile` and `--set` say."""

    profile: str
    settings: str

    def load(self) -> Profile:
        """The profile with its settings; `ProfileError` names what is wrong."""
        return settings.load_profile(self.profile, settings.parse_settings(self.settings))

    def run_name(self) -> str:
        """The name of the run that they make."""
        return settings.run_name(self.load())


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--profile", envvar="PROFILE", default="example", help="A name in data/profiles (example).")
@click.option("--set", "changed", envvar="SET", default="", help='Settings, as in "n_dialogues=2 seed=3".')
@click.pass_context
def cli(context: click.Context, profile: str, changed: str) -> None:
    """Chinese dialogues with memes: make them, measure them, pass them on."""
    context.obj = Choice(profile or "example", changed)


def command(group: click.Group, name: str, *parameters: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A command of `group` whose function gets the `Choice` first; its docstring is the help."""

    def decorate(function: Callable[..., int | None]) -> Any:
        decorated: Any = click.pass_obj(function)
        for parameter in reversed(parameters):
            decorated = parameter(decorated)
        return group.command(name)(decorated)

    return decorate


run_option = click.option("--run", default="", help="A finished run; by default that of the profile.")

# --- a run ------------------------------------------------------------------------------------------


@command(cli, "resolve", click.option("--templates", is_flag=True, help="For notebooks 07 and 08."))
def resolve(choice: Choice, templates: bool) -> None:
    """Write the profile that --profile and --set make; print the run's name."""
    from memecmd_utils import runs
    from memecmd_utils.ops import doctor, make

    profile = choice.load()
    doctor.check(profile, templates)
    # A run that goes on keeps the settings that it began with.
    with make.locked(paths.processed / settings.run_name(profile)):
        name = settings.settle(profile)
        run = runs.open_run(choice.profile, choice.settings, name)
        make.note_inputs(run, make.stages(templates))
    click.echo(run.name)


@command(cli, "run", click.argument("notebook"), click.argument("run"))
def run_notebook(choice: Choice, notebook: str, run: str) -> None:
    """Run one notebook headlessly into a run's report folder."""
    from memecmd_utils import runs
    from memecmd_utils.ops import make, runner

    opened = runs.open_run(choice.profile, choice.settings, run)
    replays = opened.strict and notebook not in runner.NOT_REPLAYED
    click.echo(f"{notebook} ...")
    with make.locked(paths.processed / run):
        seconds = runner.run_notebook(
            paths.notebooks / f"{notebook}.ipynb",
            paths.reports / run / f"{notebook}.ipynb",
            {"profile": choice.profile, "settings": choice.settings, "run_name": run},
            cell_timeout=runner.REPLAY_TIMEOUT_S if replays else runner.CELL_TIMEOUT_S,
            status=sys.stderr,
        )
        make.note_outputs(opened, notebook)
    click.echo(f"{notebook} done in {seconds:.0f} s")


words = click.argument("words", nargs=-1, type=click.UNPROCESSED)


@cli.command("hold", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("run")
@words
def hold(run: str, words: tuple[str, ...]) -> None:
    """Run a command with a run's folder held for it, alone."""
    from memecmd_utils.ops import make

    make.hold(paths.processed / run, list(words))


@command(cli, "summary", click.argument("run"))
def summary(_: Choice, run: str) -> None:
    """Say what a run wrote and where."""
    from memecmd_utils import cost

    click.echo(cost.summary_text(run))


@command(cli, "cost")
def cost(choice: Choice) -> None:
    """Estimate calls, tokens, money and hours before anything is asked."""
    from memecmd_utils import cost
    from memecmd_utils.ops import doctor

    profile = choice.load()
    click.echo(cost.cost_text(profile))
    for row in cost.real_usage(settings.run_name(profile)):
        click.echo(row)
    if lacks := doctor.lacks(profile):
        click.echo("Before it can run, this is missing:")
        for lack in lacks:
            click.echo(f"- {lack}")


@command(cli, "doctor")
def doctor(choice: Choice) -> int:
    """Check Python, packages, fonts, models and keys of this machine."""
    from memecmd_utils.ops import doctor

    text, good = doctor.report(choice.profile, choice.settings)
    click.echo(text)
    return 0 if good else 1


@command(cli, "verify", click.argument("folder", required=False))
def verify(choice: Choice, folder: str | None) -> int:
    """Check a release against its manifest: that in FOLDER, or the run's own."""
    from memecmd_utils.release import manifest

    if folder:
        where = Path(folder).expanduser()
    else:
        where = paths.processed / choice.run_name() / "release"
        if not where.is_dir():
            raise errors.MemecmdError(
                f"run {choice.run_name()} has no release yet: `make reproduce` makes one"
            )
    try:
        click.echo(manifest.report(where))
    except manifest.ReleaseError as error:
        click.echo(str(error))
        return 1
    return 0


@command(cli, "site")
def site(choice: Choice) -> None:
    """Put the page of a run with its notebooks into one folder for any static host."""
    from memecmd_utils.report import tracked

    click.echo(tracked.build(paths.reports / choice.run_name()).relative_to(paths.root))


# --- uses of a finished run -------------------------------------------------------------------------


@command(
    cli,
    "insert-memes",
    click.argument("source"),
    click.argument("target"),
    run_option,
    click.option("--strategy", default="greedy"),
    click.option("--fields", default="", help="Columns by name, as in text=content."),
)
def insert_memes(choice: Choice, source: str, target: str, run: str, strategy: str, fields: str) -> None:
    """Put memes of a finished run into chats of your own: SOURCE (CSV, JSON, text) becomes TARGET."""
    from memecmd_utils.chats import insertion

    if not source or not target:
        raise errors.MemecmdError("name both files: make insert-memes IN=chat.csv OUT=with_memes.csv")
    files = (Path(name).expanduser() for name in (source, target))
    click.echo(insertion.insert_file(*files, choice.profile, choice.settings, run, strategy, fields).text())


@command(cli, "fit-placement", click.argument("grades", required=False), run_option)
def fit_placement(choice: Choice, grades: str | None, run: str) -> None:
    """Fit learned placement on a run's graded memes; GRADES: a CSV of dialogue_id, turn, meme_id, grade."""
    from memecmd_utils.chats import insertion
    from memecmd_utils.evaluation import landing
    from memecmd_utils.retrieval import learned

    chosen = insertion.library_of(run, choice.profile, choice.settings)
    click.echo(landing.fit_run(chosen, Path(grades) if grades else None).text())
    click.echo(f"written: {chosen.write(learned.FILE)}; insert-memes with STRATEGY=learned takes it")


@command(cli, "study-placement", run_option)
def study_placement(choice: Choice, run: str) -> None:
    """Fit learned placement again without its parts, on fewer dialogues and for new memes; takes minutes."""
    from memecmd_utils.chats import insertion
    from memecmd_utils.core import tables
    from memecmd_utils.evaluation import placement_study

    for name, table in placement_study.write_study(
        insertion.library_of(run, choice.profile, choice.settings)
    ).items():
        click.echo(f"{name}\n{tables.markdown(table)}")


@command(cli, "evaluate-mod", click.argument("source"), run_option, click.option("--dialogues", type=int))
def evaluate_mod(choice: Choice, source: str, run: str, dialogues: int | None) -> None:
    """Measure retrieval on your copy of MOD: a file or a folder."""
    from memecmd_utils.studies import mod

    if not source:
        raise errors.MemecmdError("name a file or folder of MOD: make evaluate-mod MOD=c_val_task2.json")
    path = Path(source).expanduser()
    click.echo(mod.evaluate_file(path, choice.profile, choice.settings, run, dialogues).text())


@command(
    cli,
    "leaderboard",
    click.argument("entries", nargs=-1),
    click.option("--name", default="", help="What the entry is called; by default as its file."),
    run_option,
    click.option("--grades", default="", help="A CSV of dialogue_id, turn, meme_id, grade."),
    click.option("--release", default="", help="A release with a benchmark, in place of the run's."),
    click.option("--mod", default="", help="A file or folder of MOD, in place of the run's benchmark."),
)
def leaderboard(
    choice: Choice, entries: Sequence[str], name: str, run: str, grades: str, release: str, mod: str
) -> None:
    """Score ENTRIES beside the package's systems: TREC runs, Python files, names of embedders."""
    from memecmd_utils import report
    from memecmd_utils.chats import insertion
    from memecmd_utils.studies import mod as mod_data

    if mod:
        path = Path(mod).expanduser()
        benchmarks, target, notes = mod_data.benchmarks(path, choice.profile, choice.settings, run)
        text = report.score_benchmarks(benchmarks, target, entries, name)
        click.echo("\n".join([text, *notes]))
    elif release:
        folder = Path(release).expanduser()
        click.echo(report.score_release(folder, choice.profile, choice.settings, entries, name))
    else:
        chosen = insertion.library_of(run, choice.profile, choice.settings)
        given = Path(grades).expanduser() if grades else None
        click.echo(report.score_run(chosen, entries, name, given))


# --- what is fetched --------------------------------------------------------------------------------


@cli.group()
def fetch() -> None:
    """Fetch images, news, data sets or a local model."""


@command(fetch, "library", click.argument("archive", required=False))
def fetch_library(_: Choice, archive: str | None) -> None:
    """Fetch the paper's repositories of images (ARCHIVE: the images of emo-visual-data as a zip)."""
    from memecmd_utils.core.fetch import datasets

    datasets.fetch_library(archive=Path(archive) if archive else None)


@command(fetch, "news")
def fetch_news(choice: Choice) -> None:
    """Collect news for the profile from its feeds; run it on several days to gather more."""
    from memecmd_utils.dialogue import news

    click.echo(news.collect_for(choice.load()))


@command(fetch, "templates", click.argument("run"))
def fetch_templates(choice: Choice, run: str) -> None:
    """Find or fetch the data sets of template memes, and write down what is there."""
    from memecmd_utils import runs
    from memecmd_utils.cm50 import data

    opened = runs.open_run(choice.profile, choice.settings, run)
    found = data.settle(opened.profile, opened.folder)
    for source in found.values():
        click.echo(source.text())
    if all(found[name].path is None for name in data.NEEDED):
        click.echo("no template memes: notebooks 07 and 08 teach on made-up ones, and leave out the rest")


@command(fetch, "local-llm", click.argument("model"))
def fetch_local_llm(_: Choice, model: str) -> None:
    """Install the local engine and the weights of one model."""
    from memecmd_utils.core.llm import local

    path = local.install(model)
    weights = local.find(model)
    click.echo(f"{weights.name} {weights.label} ({weights.licence}) is ready: {path}, SHA-256 checked")


# --- recordings and tracked results -----------------------------------------------------------------


@cli.group()
def recordings() -> None:
    """Look after what models answered."""


@command(recordings, "check")
def check_recordings(choice: Choice) -> int:
    """Verify the tracked recordings and those of the profile."""
    from memecmd_utils import recordings as care

    done, problems = care.check(settings.load_profile(choice.profile).name)
    click.echo("\n".join([*done, *(f"PROBLEM: {problem}" for problem in problems)]))
    return 1 if problems else 0


@command(recordings, "promote", click.argument("run"))
def promote_recordings(_: Choice, run: str) -> None:
    """Turn the recordings that a run used into tracked ones."""
    from memecmd_utils import recordings as care

    for line in care.promote(run):
        click.echo(line)


@cli.group()
def tracked() -> None:
    """Look after the tracked results of the example run."""


@command(tracked, "refresh")
def refresh_tracked(_: Choice) -> None:
    """Copy the example run's numbers and pictures into reports/."""
    from memecmd_utils.report import tracked

    for path in tracked.refresh():
        click.echo(path.relative_to(paths.root))


@command(tracked, "compare")
def compare_tracked(_: Choice) -> int:
    """Compare the example run with the tracked numbers, placements and pictures."""
    from memecmd_utils.report import tracked

    differences = tracked.compare()
    for line in differences:
        click.echo(line)
    click.echo(f"{len(differences)} differences" if differences else "the run equals the tracked results")
    return 1 if differences else 0


# --- one line for what a user can mend --------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with cli.make_context("memecmd", words) as context:
            status = cli.invoke(context)
        sys.stdout.flush()
        return status or 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # Whatever still waited for the kernel complains while it is torn down.
        logging.getLogger("asyncio").disabled = True
        print("stopped; accepted answers are recorded: run again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # As with `| head`. Nothing more may be written there, also not when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("stopped: nobody reads the output any more", file=sys.stderr)
        return 1
    except Exception as error:
        # What a user can mend is told without a traceback; anything else shows where it broke.
        message = errors.mendable_message(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
