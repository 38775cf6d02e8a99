"""The command `memecmd`: what the Makefile calls, and what a user types where make is not at hand.

Profile and settings come from `--profile` and `--set`, or from PROFILE and SET as make exports them.
"""

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from memecmd_utils import (
    authors,
    batches,
    benchmark,
    chats,
    cost,
    fetch,
    files,
    news,
    release,
    runs,
    settings,
)
from memecmd_utils.chats import ranking
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import local_model
from memecmd_utils.settings import Profile
from memecmd_utils.studies import landing


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

    def run(self, name: str = "") -> runs.Run:
        """A finished run: the one that is named, else that of the profile."""
        return runs.open_finished(name or self.run_name())


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--profile", envvar="PROFILE", default="example", help="A name in data/profiles.")
@click.option("--set", "changed", envvar="SET", default="", help='Settings, as in "n_dialogues=2 seed=3".')
@click.pass_context
def cli(context: click.Context, profile: str, changed: str) -> None:
    """Make, measure and share Chinese dialogues with memes."""
    context.obj = Choice(profile or "example", changed)


run_option = click.option("--run", default="", help="A finished run; by default the profile's.")

# --- a run ------------------------------------------------------------------------------------------


@cli.command()
@click.option("--templates", is_flag=True, help="Run only the appendices on the second paper: 07b, 08b.")
@click.option("--release", default="", help="With profile authors: the folder of the authors' release.")
@click.pass_obj
def reproduce(choice: Choice, templates: bool, release: str) -> None:
    """Run those notebooks of the profile that are out of date."""
    if release:
        choice = replace(choice, settings=f"{choice.settings} paper_data={shlex.quote(release)}".strip())
    profile = choice.load()
    cost.check(profile, templates)
    from memecmd_utils import run_notebook  # seconds: what is missing is told before

    name = settings.run_name(profile)
    with run_notebook.held(paths.processed / name):
        settings.settle(profile)
        run = runs.open_run(choice.profile, choice.settings, name)
        if templates:
            for one in fetch.locate(profile).values():
                state = one.state if one.path else f"not here ({one.state}). {one.source.how_to_provide()}"
                click.echo(f"{one.source.title}: {state}")
        run_notebook.note_inputs(run)
        names = run_notebook.out_of_date(run, templates)
        published = None if templates else authors.of_profile(profile)
        is_whole = published is None or published.can_be_ranked
        if not is_whole:
            click.echo(
                "the release has no annotations or no summaries, so no meme can be ranked: only lesson 09 "
                f"runs, with its page reports/{name}/09_the_papers_data.html and tables/authors_*.csv"
            )
            names = [name for name in names if name == "09_the_papers_data"]
        if not names:
            click.echo(f"nothing to do: run {name} is up to date")
        parameters = {"profile": choice.profile, "settings": choice.settings, "run_name": name}
        run_notebook.run_stages(run, names, parameters)
    if is_whole and not templates:
        click.echo(cost.summary_text(name))


@cli.command("run")
@click.argument("notebook")
@click.argument("run")
@click.pass_obj
def run_one(choice: Choice, notebook: str, run: str) -> None:
    """Run one NOTEBOOK without a browser and write its page into the report folder of RUN."""
    from memecmd_utils import run_notebook

    opened = runs.open_run(choice.profile, choice.settings, run)
    parameters = {"profile": choice.profile, "settings": choice.settings, "run_name": run}
    with run_notebook.held(opened.folder):
        run_notebook.run_stages(opened, [notebook], parameters)


@cli.command()
@click.argument("action", type=click.Choice(["send", "fetch"]))
@click.argument("stage", type=click.Choice(["annotation", "evaluation"]))
@click.pass_obj
def batch(choice: Choice, action: str, stage: str) -> None:
    """Send a stage's questions to a provider in batches, or fetch the answers for the next run."""
    run = runs.open_run(choice.profile, choice.settings, choice.run_name())
    click.echo((batches.send if action == "send" else batches.fetch)(run, stage))


@cli.command("cost")
@click.pass_obj
def show_cost(choice: Choice) -> None:
    """Estimate calls, tokens, money and hours; no call is made."""
    profile = choice.load()
    click.echo(cost.cost_text(profile))
    for lack in cost.lacks(profile):
        click.echo(f"missing before it can run: {lack}")


@cli.command("doctor")
@click.pass_obj
def show_doctor(choice: Choice) -> None:
    """Say what this machine lacks for the profile: keys, models, addresses, prices, weights."""
    profile = choice.load()
    cost.check(profile)
    click.echo(f"nothing is missing for profile {profile.name}")


@cli.command()
@click.argument("folder", required=False)
@click.pass_obj
def verify(choice: Choice, folder: str | None) -> None:
    """Check the release in FOLDER, or the run's own, against its checksums."""
    where = Path(folder).expanduser() if folder else paths.processed / choice.run_name() / "release"
    click.echo(release.verdict(where))


@cli.command()
@click.option("--pictures", is_flag=True, help="Show memes without a licence, too.")
@click.pass_obj
def site(choice: Choice, pictures: bool) -> None:
    """Put a run's page, lessons, data card and leaderboard into one folder for any static host."""
    from memecmd_utils import run_notebook

    run = choice.run()
    newest = max(map(run_notebook.time_of, run.report.glob("*.ipynb")), default=0)
    if run_notebook.time_of(run.report / benchmark.FILE) < newest:
        try:
            benchmark.score_run(run)
        except benchmark.BenchmarkError as error:  # nobody graded this run
            click.echo(f"the site has no leaderboard: {error}")
    click.echo(run_notebook.build_site(run.report, pictures).relative_to(paths.root))


# --- uses of a finished run -------------------------------------------------------------------------


@cli.command("insert-memes")
@click.argument("source")
@click.argument("target")
@run_option
@click.option("--strategy", default="greedy")
@click.option("--fields", default="", help="Names of columns, as in text=content.")
@click.pass_obj
def insert_memes(choice: Choice, source: str, target: str, run: str, strategy: str, fields: str) -> None:
    """Put a finished run's memes into your own chats: read SOURCE (CSV, JSON, text), write TARGET."""
    if not source or not target:
        raise MemecmdError("name both files, as in make insert-memes IN=chat.csv OUT=with_memes.csv")
    named = (Path(name).expanduser() for name in (source, target))
    click.echo(chats.insert_file(*named, choice.profile, choice.settings, run, strategy, fields))


@cli.command()
@run_option
@click.option(
    "--host", default="127.0.0.1", help="Address to listen on; by default only this machine can connect."
)
@click.option("--port", default=8765, type=click.IntRange(0, 65535), help="Port; 0 picks a free one.")
@click.pass_obj
def serve(choice: Choice, run: str, host: str, port: int) -> None:
    """Serve a library to bots: POST /rank takes a chat as JSON and returns memes (RUN: also a folder)."""
    live = ranking.open_live(run or choice.run_name(), choice.profile, choice.settings)
    with suppress(KeyboardInterrupt):
        asyncio.run(ranking.serve(live, host, port, lambda at: click.echo(f"POST {at}; Ctrl-C ends it")))


@cli.command("fit-placement")
@click.argument("grades", required=False)
@run_option
@click.pass_obj
def fit_placement(choice: Choice, grades: str | None, run: str) -> None:
    """Fit learned placement on a run's graded memes; GRADES: a CSV of dialogue_id, turn, meme_id, grade."""
    click.echo(landing.fit_run(choice.run(run), Path(grades).expanduser() if grades else None))


@cli.command("grading-page")
@run_option
@click.pass_obj
def grading_page(choice: Choice, run: str) -> None:
    """Make a page to grade memes in a run's chats by key; it gives the table of fit-placement."""
    click.echo(benchmark.grading_page(choice.run(run)))


@cli.command()
@click.argument("entries", nargs=-1)
@click.option("--name", default="", help="The entry's name; by default its file's name.")
@run_option
@click.option("--grades", default="", help="A CSV of dialogue_id, turn, meme_id, grade, for what has none.")
@click.option("--release", default="", help="A release whose benchmark to use instead of the run's.")
@click.option("--mod", default="", help="A file or folder of MOD to use instead of the run's benchmark.")
@click.pass_obj
def leaderboard(
    choice: Choice, entries: Sequence[str], name: str, run: str, grades: str, release: str, mod: str
) -> None:
    """Score ENTRIES (TREC runs or Python files) next to the package's systems.

    The split example is for training, both untouched ones are for testing.
    """
    entries = entries or shlex.split(os.environ.get("ENTRY", ""))  # as make exports it
    named, given = (choice.profile, choice.settings), Path(grades).expanduser() if grades else None
    if mod:
        click.echo(benchmark.score_mod(Path(mod).expanduser(), *named, run, entries, name))
    elif release:
        splits, scored_as = benchmark.read(Path(release).expanduser()), runs.open_run(*named, "leaderboard")
        click.echo(benchmark.score(splits, scored_as, entries, name, given))
    else:
        click.echo(benchmark.score_run(choice.run(run), entries, name, given))


# --- what is fetched --------------------------------------------------------------------------------


@cli.group("fetch")
def fetch_group() -> None:
    """Fetch images, news or a local model."""


@fetch_group.command("library")
def fetch_library() -> None:
    """Fetch the paper's image repositories."""
    fetch.fetch_library()


@fetch_group.command("paper-data")
@click.argument("release", required=False)
@click.option("--pictures", is_flag=True, help="Fetch the memes' pictures, too.")
def fetch_paper_data(release: str | None, pictures: bool) -> None:
    """Fetch the authors' release of MemeCMD, or look at one in RELEASE, and say what it holds."""
    folder = Path(release).expanduser() if release else fetch.fetch_release(pictures)
    click.echo(authors.read_release(folder).summary())


@fetch_group.command("news")
@click.pass_obj
def fetch_news(choice: Choice) -> None:
    """Collect news for the profile from its feeds; run it on several days to gather more."""
    click.echo(news.collect_for(choice.load()))


@fetch_group.command("local-llm")
@click.argument("model")
def fetch_local_llm(model: str) -> None:
    """Install the local engine and the weights of one model."""
    weights = local_model.install(model)
    click.echo(
        f"{weights.name} {weights.label} ({weights.licence}) is ready: {weights.path}, SHA-256 checked"
    )


# --- one line for what a user can mend --------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status.

    What a user can mend is told in one line without a traceback; anything else shows where it broke.
    """
    if not sys.stderr.isatty() and files.TERMINAL_VARIABLE not in os.environ:
        os.environ.setdefault("TQDM_DISABLE", "1")  # a bar would be one endless line of a log
    try:
        cli.main(arguments, prog_name="memecmd", standalone_mode=True)
    except BrokenPipeError:  # as with `| head`: nothing more may be written, also not when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        message = files.mendable_message(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
