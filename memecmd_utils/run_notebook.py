"""Runs the notebooks of a run headlessly: which of them are out of date, each one strictly, and its page.

papermill only warns of an unknown parameter, saves a notebook that timed out as `completed`, and takes
`sys.exit(0)` for success. Here each of these fails, and the executed notebook appears only after a full run.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest.mock import patch
from urllib.parse import quote, unquote

import filelock
import nbformat
from markupsafe import Markup

from memecmd_utils import fetch, files
from memecmd_utils.files import HEADLESS_VARIABLE, TERMINAL_VARIABLE, MemecmdError, paths
from memecmd_utils.runs import STAGES, Run, StageMissing
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import RESOLVED, Profile

CELL_TIMEOUT_S = 7 * 24 * 3600  # a live stage of 34,758 turns is one cell
REPLAY_TIMEOUT_S = 900  # no cell that only replays recordings takes longer
START_TIMEOUT_S = 50  # of a kernel, which is started twice at most: a user is told within two minutes
WATCH_S = 40  # between two looks at the kernels; one that is dead in both was forgotten
INPUTS = "inputs.json"
"""In a run's folder: what its stages read from outside. It is written anew only where that changed."""


class NotebookFailed(MemecmdError, RuntimeError):
    """A notebook did not run from its first to its last cell; the message says where and why."""


# --- Which notebooks are out of date


def newest_file() -> int:
    """When the package or its data last changed: the time of their newest file in ns, without git.

    Left out are what runs and users write (`raw`, `interim`, `processed`), profiles, of which a run has a
    copy of its own, and what Python, editors and file managers put beside the files.
    """
    left_out = {paths.raw, paths.interim, paths.processed, paths.profiles}
    newest = 0
    for top in (Path(__file__).parent, *(set(paths.data.iterdir()) - left_out)):
        for path in (top, *top.rglob("*")):
            names = path.relative_to(top.parent).parts
            if path.is_file() and not any(fnmatch(name, other) for name in names for other in NO_SOURCES):
                newest = max(newest, path.stat().st_mtime_ns)
    return newest


NO_SOURCES = (".*", "__pycache__", "*.pyc", "*~", "#*#", "Thumbs.db", "desktop.ini")


def outside_inputs(profile: Profile) -> dict[str, list[int]]:
    """What a run reads beside the package and the corpus: of each name the files, bytes and newest time."""
    library, models = profile.library, profile.models
    named = [source for source in library.sources if source != "example"]
    named += [library.curation, profile.dialogue.dialogues, models.clip_model, models.embedder]
    named += [profile.dialogue.news, *profile.dialogue.feeds, profile.paper_data]
    named += [profile.mtrclip.images]
    for source in fetch.source_list("template_sources"):
        named.append(getattr(profile.cm50, source.key) or str(paths.raw / "templates" / source.name))
    named += [str(paths.raw / "ratings" / profile.name), str(paths.raw / "news" / profile.name)]
    if models.mode == "recorded":
        named += [str(paths.raw / "recordings" / profile.name)]
    found = {}
    for name in dict.fromkeys(filter(None, named)):
        place = paths.user_path(name)
        states = [path.stat() for path in [place, *place.rglob("*")] if path.is_file()]
        if states:
            found[name] = [len(states), sum(s.st_size for s in states), max(s.st_mtime_ns for s in states)]
    return found


def note_inputs(run: Run) -> None:
    """Write what the run would read now, where that differs from what was noted before."""
    text = json.dumps(outside_inputs(run.profile), ensure_ascii=False, indent=1) + "\n"
    target = run.folder / INPUTS
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        files.write_text(target, text)


def out_of_date(run: Run, templates: bool = False) -> list[str]:
    """The stages that have to run, in order.

    One rule: an executed notebook is out of date where it is older than the newest file of the package and
    its data, than its source, than the run's profile and inputs, or than an executed notebook before it; and
    where a file of the run that the stage writes is gone.
    """
    always = max(newest_file(), *(time_of(run.folder / name) for name in (RESOLVED, INPUTS)))
    stale: list[str] = []
    for name, stage in STAGES.items():
        if stage.templates != templates:
            continue
        before = [time_of(run.report / f"{other}.ipynb") for other in stage.after]
        read = max(always, time_of(paths.notebooks / f"{name}.ipynb"), *before)
        gone = not all((run.folder / file).is_file() for file in stage.writes)
        if gone or time_of(run.report / f"{name}.ipynb") < read or not set(stage.after).isdisjoint(stale):
            stale.append(name)
    return stale


def time_of(path: Path) -> int:
    """When a file was written, in ns; 0 where there is none."""
    return path.stat().st_mtime_ns if path.is_file() else 0


# --- All of them


def held(run_folder: Path) -> AbstractContextManager[None]:
    """Hold a run's folder until the block ends; first wait for another process that has it."""
    waiting = f"run {run_folder.name} is being made by another process: waiting (Ctrl-C ends only that)"
    return files.held(filelock.FileLock(run_folder / ".lock"), waiting)


def run_stages(run: Run, names: Iterable[str], parameters: Mapping[str, str]) -> None:
    """Run these notebooks, each as soon as those before it have ended, two at a time in a replay.

    The one with the longest chain of others behind it starts first, of equal ones the one that waited for
    most, then the longest notebook. A run that asks a model has one stage at a time, for the endpoint's rate.
    A notebook's page is made while the next one runs. Raises `NotebookFailed` with the first fault.
    """

    def urgency(name: str) -> tuple[int, int, int]:
        size = (paths.notebooks / f"{name}.ipynb").stat().st_size
        return chain_behind(name), len(STAGES[name].after), size

    waiting = sorted(names, key=urgency, reverse=True)
    slots = 2 if run.profile.models.mode == "recorded" else 1
    running: dict[Future[float], str] = {}
    dead: set[int] = set()
    with ExitStack() as stack:
        log = stack.enter_context(NamedTemporaryFile("r", prefix="memecmd-", encoding="utf-8"))
        stack.enter_context(patch.dict(os.environ, kernel_environment(slots, log.name)))
        kernels, printer = (stack.enter_context(ThreadPoolExecutor(n)) for n in (slots, 1))
        pages = []
        try:
            while waiting or running:
                unfinished = [*waiting, *running.values()]
                ready = [name for name in waiting if set(STAGES[name].after).isdisjoint(unfinished)]
                for name in ready[: slots - len(running)]:
                    waiting.remove(name)
                    print(f"{name} ...", flush=True)
                    running[kernels.submit(run_notebook, run, name, parameters)] = name
                for _ in range(8):  # kernels say in between how far they are
                    ended = wait(running, WATCH_S / 8, return_when=FIRST_COMPLETED).done
                    print(log.read(), end="", file=sys.stderr, flush=True)
                    if ended:
                        break
                dead, was_dead = zombies(), set() if ended else dead
                if dead & was_dead:  # nobody looks after a kernel that ended: its notebook would never end
                    left = ", ".join(sorted(running.values()))
                    log.close()
                    print(f"error: a kernel died ({left}): run again", file=sys.stderr, flush=True)
                    os._exit(1)  # the thread that waits for it cannot be stopped
                for future in ended:
                    name = running.pop(future)
                    print(f"{name} done in {future.result():.0f} s", flush=True)
                    pages.append(printer.submit(write_page, run.report / f"{name}.ipynb"))
            for page in pages:
                page.result()
        except KeyboardInterrupt:
            log.close()
            print("stopped; accepted answers are recorded: run again to go on", file=sys.stderr, flush=True)
            os._exit(130)  # no thread is waited for; a kernel ends when its parent is gone


def zombies() -> set[int]:
    """Children of this process that have ended without anyone's notice."""
    import psutil

    children = psutil.Process().children()
    return {child.pid for child in children if child.is_running() and child.status() == psutil.STATUS_ZOMBIE}


def chain_behind(name: str) -> int:
    """How many notebooks have to run one after another once this one has ended."""
    return max((1 + chain_behind(other) for other, stage in STAGES.items() if name in stage.after), default=0)


def kernel_environment(slots: int, log: str) -> dict[str, str]:
    """Variables that kernels inherit: no screen, this environment's kernel, where progress is shown."""
    wanted = {
        "MPLBACKEND": os.environ.get("MPLBACKEND", "Agg"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        HEADLESS_VARIABLE: "1",  # nobody turns a knob: panels stay away
        # The kernel's debugger warns about frozen modules on every start; nobody attaches to it here.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        TERMINAL_VARIABLE: os.ttyname(sys.stderr.fileno()) if sys.stderr.isatty() else log,
    }
    if slots > 1:  # kernels whose threads wait for one another's cores take twice as long
        wanted["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    return wanted


# --- One of them


def without_exercises(notebook: Any) -> Any:
    """The notebook with its exercises, cells whose `assert` fails until a reader solves them, as text."""
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", []):
            cell.cell_type = "markdown"
            cell.source = f"*Your turn:*\n\n```python\n{cell.source}\n```"
            cell.metadata = {}
            del cell["outputs"], cell["execution_count"]
    return notebook


def with_a_second_kernel(name: str, execute: Callable[[], None]) -> None:
    """Execute a notebook, once more where its kernel dies or does not start; then `NotebookFailed`."""
    from nbclient.exceptions import DeadKernelError

    for tries_left in (1, 0):
        try:
            return execute()
        except (DeadKernelError, RuntimeError) as error:
            # Its ports are drawn first and bound later: another program may take them in between.
            why = "the kernel died" if "died" in str(error).lower() else "no kernel started"
            if not tries_left:
                raise NotebookFailed(f"{name}: {why} twice, perhaps because memory ran out") from None
            print(f"{name}: {why}; it is started again", flush=True)


def run_notebook(run: Run, name: str, parameters: Mapping[str, str]) -> float:
    """Run one notebook with `parameters` and write the executed copy into the run's report.

    Returns the seconds it took. On any failure `NotebookFailed` is raised, the copy is not written, and what
    ran is kept as `<name>.failed.ipynb`.
    """
    import nbclient.exceptions
    import papermill
    from nbconvert.filters.ansi import strip_ansi
    from nbconvert.preprocessors.coalescestreams import CoalesceStreamsPreprocessor

    notebook, output = paths.notebooks / f"{name}.ipynb", run.report / f"{name}.ipynb"
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_name(f"{name}.failed.ipynb")  # what is on the way to `output`
    failed.unlink(missing_ok=True)
    if unknown := parameters.keys() - papermill.inspect_notebook(str(notebook)).keys():
        raise NotebookFailed(f"{name} has no parameter {min(unknown)!r} in a cell tagged `parameters`")
    replays, started = run.strict and not STAGES[name].templates, time.monotonic()

    def execute() -> None:
        papermill.execute_notebook(
            without_exercises(nbformat.read(notebook, as_version=4)),
            str(failed),
            parameters=dict(parameters),
            kernel_name="python3",
            language="python",
            cwd=str(paths.root),
            execution_timeout=REPLAY_TIMEOUT_S if replays else CELL_TIMEOUT_S,
            start_timeout=START_TIMEOUT_S,
            extra_arguments=["--log-level=50"],
            progress_bar=False,
            # Written at its end or with its fault; one that asks models for hours also before each cell.
            request_save_on_cell_execute=run.profile.models.mode != "recorded",
        )

    try:
        with_a_second_kernel(name, execute)
        executed = nbformat.read(failed, as_version=4)
        for number, cell in enumerate(executed.cells):
            if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
                ended = "did an earlier one end the kernel (quit)?"
                raise NotebookFailed(f"{name}: cell {number} never ran; {ended}")
    except papermill.PapermillExecutionError as error:
        said = f"{name}: cell {error.cell_index} raised {error.ename}: {error.evalue}\n(see {failed})"
        # Anything but a fault that a user can mend by its message.
        if len(error.traceback) > 1 and not files.DISK.match(error.evalue):
            said += "\n" + strip_ansi("\n".join(error.traceback))
        raise NotebookFailed(said) from None
    except nbclient.exceptions.CellTimeoutError:
        raise NotebookFailed(f"{name}: a cell took too long") from None
    failed.unlink()
    # Without papermill's times and paths, and what chance names or cuts, two equal runs give equal files.
    executed, _ = CoalesceStreamsPreprocessor().preprocess(executed, {})
    for part in (executed, *executed.cells):
        if "injected-parameters" in part.metadata.get("tags", []):
            part.id = "injected-parameters"
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
    files.write_text(output, nbformat.writes(executed) + "\n")
    return time.monotonic() - started


# --- Its page, which needs no network, the list of all lessons beside it, and the site of them all


@cache
def lessons() -> tuple[tuple[str, list[str]], ...]:
    """All notebooks in order: the name, and the lines of the head cell."""
    found = sorted(paths.notebooks.glob("*.ipynb"))
    return tuple((path.stem, nbformat.read(path, as_version=4).cells[0].source.split("\n")) for path in found)


@cache
def markdown() -> Callable[[str], str]:
    """Markdown to HTML: formulas are MathML, headings have GitHub's anchors."""
    from latex2mathml.converter import convert
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    def heading(text: str, level: int, **_: Any) -> str:
        anchor = re.sub(r"[^\w -]", "", Markup(text).striptags().lower()).replace(" ", "-")
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    renderer = IPythonRenderer(escape=False)

    def table(rows: str) -> str:
        """A wide table scrolls in a box of its own, also by key; lines break before intervals."""
        rows = re.sub(r"\[[-\u2212+\d., %]+\]", r'<span class="interval">\g<0></span>', rows)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table>{rows}</table></div>'
        )

    renderer.heading, renderer.table = heading, table
    renderer.block_math = lambda body: convert(body.strip(), display="block")
    renderer.inline_math = lambda body: convert(body.strip())
    return MarkdownWithMath(renderer=renderer).render


@cache
def exporter() -> Any:
    """What makes pages of notebooks; one for all, since each compiles its templates anew."""
    from nbconvert import HTMLExporter

    made = HTMLExporter(template_name="lesson_page", extra_template_basedirs=[str(files.HTML)])
    made.register_filter("markdown2html", markdown())
    return made


def is_plain(path: Path) -> bool:
    """Whether a file is short plain text, such as a licence, which a site shows as a page."""
    return path.suffix in ("", ".cff", ".csv", ".json", ".toml") and path.stat().st_size < 20_000


def page_of(source: Path) -> str:
    """A notebook, a Markdown file or a short plain one, as a page that needs no network."""
    text = re.sub(r"\A---\n.*?\n---\n", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    if is_plain(source):
        text = f"# {source.name}\n\n```\n{text}\n```"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    if source.suffix == ".ipynb":
        notebook = without_exercises(nbformat.reads(text, as_version=4))
    title = re.search(r"^# (.+)|$", notebook.cells[0].source.replace("`", ""), re.MULTILINE)[1] or source.stem
    stage = STAGES.get(source.stem)
    others = [lesson for lesson in lessons() if stage and STAGES[lesson[0]].templates == stage.templates]
    resources = {"metadata": {"name": title}, "name": source.stem, "lessons": others}
    return exporter().from_notebook_node(notebook, resources=resources)[0]


def write_page(executed: Path) -> None:
    """Write an executed notebook as HTML, and the list of lessons, beside it."""
    page = page_of(executed)
    if not STAGES[executed.stem].templates:  # appendices run later or never: the list knows
        page = re.sub(r'href="(\w+_with_data)\.html"', r'href="lessons.html#\1"', page)
    files.write_text(executed.with_suffix(".html"), page)
    pages = files.templates(markdown=lambda text: Markup(markdown()(text)))
    page = pages.get_template("lessons.html.j2").render(lessons=lessons(), folder=executed.parent)
    files.write_text(executed.with_name("lessons.html"), page)


LINK = re.compile(r'(<(?:a|img|source)\b[^>]*?)( href| src| srcset)="([^":#]+)((?:#[^"]*)?")')
CELL, ROW = re.compile(r"</t[dh]>\s*(?=<t[dh]\b)"), re.compile(r"</?(?:li|tr)\b[^>]*>")
BLOCK = re.compile(r"</?(?:br|d[dt]|div|fig|h[1-6]|label|li|option|p|pre|span lang|summary|t[dhr])\b")
HEADING = re.compile(r'<h[1-4]\b[^>]*?\bid="([^"]*)"[^>]*>(.*?)</h[1-4]>', re.DOTALL)


MEME_PICTURE = re.compile(r"data:image/(?:jpeg|webp);base64,[\w+/=]+")
"""A meme in a page; charts are PNG. Two files show memes, too."""
WITH_MEMES = ("chat", "fig5_cases")


def build_site(folder: Path, pictures: bool = False) -> Path:
    """Write `site/` into `reports/<run>/`: its pages and lessons, and every file that a link leads to.

    Where memes have no licence, no page shows a meme and one line says so, except with `pictures`.

    Sphinx Book Theme with MyST-NB adds 20 packages and takes formulas and widgets from a CDN; MyST needs node
    and a template from the network. So a bar and a search join the pages that there are anyway.
    """
    from memecmd_utils import benchmark

    todo, site, data = [folder / "index.html"], folder / "site", paths.processed / folder.name
    if not todo[0].is_file():
        raise StageMissing(f"{folder.name} has no index.html: run `make reproduce` first")
    licences = [meme.licence for meme in files.read_parquet(data / "memes.parquet", Meme)]
    if is_bare := "" in licences and not pictures:
        print(
            f"{licences.count(''):,} of {len(licences):,} memes have no licence, so the site shows no "
            "picture of a meme; PICTURES=1 shows all, where the rights are yours"
        )
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(folder / "tables", site / "tables")
    shutil.make_archive(str(data / "release"), "zip", data / "release")
    sections, pages, homes = [], files.templates(), (folder, data, files.HTML / "site", paths.root)
    bar_of, origin = pages.get_template("site_bar.html.j2"), files.git("remote", "get-url", "origin")
    repository = re.sub(r"(?<=//)[^/@]*@", "", origin) if origin.startswith("https://") else ""

    def name_of(path: Path) -> str:
        name = path.relative_to(next(filter(path.is_relative_to, homes))).as_posix().replace("/", "-")
        name = f"{name.lstrip('.')}.html" if is_plain(path) else name
        return re.sub(r"\.html\.j2$|\.md$|\.ipynb$", ".html", name)

    def led(base: Path, match: re.Match[str]) -> str:
        """A link as it leads within the site; without such a file only its words, or an empty picture."""
        path = Path(os.path.normpath(base / unquote(match[3])))
        if path.is_relative_to(folder / "tables"):
            return match[0]  # they are there already
        path = path / "README.md" if path.is_dir() else path
        if (notebook := paths.notebooks / f"{path.stem}.ipynb").is_file():
            path = page if (page := folder / f"{path.stem}.html").is_file() else notebook
        is_hidden = is_bare and (path.stem in WITH_MEMES or path.is_relative_to(data / "memes"))
        if is_hidden or not path.is_file() or not any(map(path.is_relative_to, homes)):
            return f'{match[1]} src="data:,"' if match[2] == " src" else match[1]
        todo.extend({path}.difference(todo))
        raw = ' target="_blank"' * (match[2] == " href" and not name_of(path).endswith(".html"))
        return f'{match[1]}{raw}{match[2]}="{quote(name_of(path))}{match[4]}'

    for source in todo:  # which grows
        target, base = site / name_of(source), folder if source.suffix == ".ipynb" else source.parent
        if source.suffix not in (".html", ".j2", ".md", ".ipynb") and not is_plain(source):
            shutil.copyfile(source, target)
            continue
        if source.suffix == ".j2":
            html = pages.get_template(f"site/{source.name}").render(
                rows=benchmark.load(folder), judged=benchmark.JUDGED, folder=folder, paths=paths
            )
        else:
            html = source.read_text(encoding="utf-8") if source.suffix == ".html" else page_of(source)
        bar = bar_of.render(here=source, own=homes[2], folder=folder, paths=paths, repository=repository)
        start, title = html.index(">", html.index("<body")) + 1, re.search("<title>(.*?)</title>", html)[1]
        unread = "nav|script|style|thead"
        unread += "|table|pre" * (source.suffix != ".md")  # results and code say nothing
        text = re.sub(rf"(?s)<({unread})\b.*?</\1>", " ", html[start:])
        text = BLOCK.sub(r" \g<0>", ROW.sub(" ⏎ ", CELL.sub(" · ", text)))
        parts = (Markup(part).striptags() for part in ("", title, *HEADING.split(text)))
        sections += ([target.name, *row] for row in zip(parts, parts, parts, strict=True))
        html = LINK.sub(partial(led, base), html[:start] + bar + html[start:])
        files.write_text(target, MEME_PICTURE.sub("data:,", html) if is_bare else html)
    files.write_text(site / "search.js", f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n")
    return site
