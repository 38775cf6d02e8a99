"""Runs a notebook headlessly, strict where papermill is not.

papermill only warns on an unknown parameter, saves a notebook that timed out as `completed`, and takes
`sys.exit(0)` for success. Here each of these fails, and the target appears only after a full run.
"""

import builtins
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from jupyter_client.manager import AsyncKernelManager
from traitlets import Unicode

from memecmd_utils.core import machine, paths, storage
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.core.machine import STATUS_VARIABLE, StatusLine

LAST_LINES = 12


class KernelProcess(AsyncKernelManager):
    """A kernel whose standard output and error go to `printed`, not to the terminal.

    What cells print or raise comes back in the notebook. The process itself prints why it could not start or
    had to die, and complaints of its threads while it is torn down.
    """

    printed = Unicode(help="Path of the file that takes them.").tag(config=True)

    async def start_kernel(self, **kw: Any) -> None:
        """Start it as the parent class does; the process keeps the file open for itself."""
        with Path(self.printed).open("ab") as stream:
            await super().start_kernel(stdout=stream, stderr=stream, **kw)


def last_words(printed: Path) -> str:
    """The last lines that a kernel printed, indented below a message; empty if it printed none."""
    if not printed.exists():
        return ""
    lines = printed.read_text(encoding="utf-8", errors="replace").split("\n")
    last = [line.rstrip() for line in lines if line.strip()][-LAST_LINES:]
    return "".join(f"\n  {line}" for line in last)


CELL_TIMEOUT_S = 7 * 24 * 3600  # a live stage of 34,758 turns is one cell
REPLAY_TIMEOUT_S = 900  # nothing that only replays recordings takes longer
NOT_REPLAYED = ("07_template_memes", "08_meme_text_retrieval")  # they fetch and tune, whatever the mode
START_TIMEOUT_S = 120
LONGEST_SOCKET = 100  # bytes of a socket's path: Linux allows 107, macOS 103
SOCKET_NAME = len("/kernel-99")
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""For sockets, where the folder for temporary files has a long path."""


class NotebookFailed(MemecmdError, RuntimeError):
    """A notebook did not run from its first to its last cell; the message says where and why."""


def _papermill() -> ModuleType:
    """papermill, imported without two packages that it does without where they are not there.

    `rfc3987_syntax` builds a grammar on import, more than a second a stage; `pyarrow` is for Hadoop.
    """
    hidden = {"rfc3987_syntax", "pyarrow"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import papermill
    finally:
        for name in hidden:
            del sys.modules[name]
    return papermill


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Raise for a parameter that is not in the cell tagged `parameters`."""
    known = list(_papermill().inspect_notebook(str(notebook)))
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise NotebookFailed(
            f"unknown parameter {unknown[0]!r}; {notebook.stem} takes: {', '.join(known) or 'none'}"
        )


EXERCISE = "exercise"
"""Tag of a cell whose `assert` fails until a reader has solved it."""


def without_exercises(notebook: Any) -> Any:
    """The notebook with its exercise cells as text: nobody solves them in a headless run."""
    for cell in notebook.cells:
        if EXERCISE in cell.metadata.get("tags", []):
            cell.cell_type = "markdown"
            cell.source = f"*Your turn:*\n\n```python\n{cell.source}\n```"
            cell.metadata = {}
            del cell["outputs"], cell["execution_count"]
    return notebook


def check_complete(notebook: Any, name: str) -> None:
    """Raise if a code cell of an executed notebook has not run, or ended in an error."""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if cell.execution_count is None:
            raise NotebookFailed(
                f"{name}: cell {number} never ran; an earlier cell ended the kernel (sys.exit or quit?)"
            )
        for output in cell.outputs:
            if output.output_type == "error":
                raise NotebookFailed(f"{name}: cell {number} raised {output.ename}: {output.evalue}")


def run_notebook(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any] | None = None,
    cell_timeout: int = CELL_TIMEOUT_S,
    status: TextIO | None = None,
) -> float:
    """Run `notebook` with `parameters` and write the executed copy and its HTML page beside it.

    The live line of its long loops goes to `status`. Returns the seconds it took. On any failure
    `NotebookFailed` is raised, `output` is not written, and what ran is kept as `<name>.failed.ipynb`.
    """
    papermill = _papermill()
    import nbclient.exceptions
    import nbformat
    from traitlets.config import Config

    from memecmd_utils.ops import lesson_page

    parameters = dict(parameters or {})
    check_parameters(notebook, parameters)
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_name(f"{output.stem}.failed.ipynb")
    working = output.with_name(f".{output.stem}.{os.getpid()}.running.ipynb")
    printed = output.with_name(f".{output.stem}.{os.getpid()}.kernel.log")
    started = time.monotonic()
    try:
        with (
            _sockets() as (folder, sockets_of_its_own),
            _kernel_environment(folder / "status"),
            StatusLine(folder / "status", status, notebook.stem).running()
            if status is not None
            else contextlib.nullcontext(),
        ):
            papermill.execute_notebook(
                without_exercises(nbformat.read(notebook, as_version=4)),
                str(working),
                parameters=parameters,
                kernel_name="python3",
                language="python",
                cwd=str(paths.root),
                execution_timeout=cell_timeout,
                start_timeout=START_TIMEOUT_S,
                kernel_manager_class=KernelProcess,
                config=Config({"KernelProcess": {**sockets_of_its_own, "printed": str(printed)}}),
                # The kernel logs the interrupt of its own orderly shutdown as an error; errors of cells
                # come back in the notebook.
                extra_arguments=["--log-level=50"],
                progress_bar=False,
            )
        executed = nbformat.read(working, as_version=4)
        check_complete(executed, notebook.stem)
    except NotebookFailed:
        working.replace(failed)
        raise
    except papermill.PapermillExecutionError as error:
        working.replace(failed)
        raise NotebookFailed(
            f"{notebook.stem}: cell {error.cell_index} raised {error.ename}: {error.evalue}\n"
            f"(all of it: {_relative(failed)}){_where_it_broke(error)}"
        ) from None
    except (nbclient.exceptions.CellTimeoutError, nbclient.exceptions.DeadKernelError) as error:
        if working.exists():
            working.replace(failed)
        timed_out = isinstance(error, nbclient.exceptions.CellTimeoutError)
        fault = f"a cell ran longer than {cell_timeout} s" if timed_out else "the kernel died"
        raise NotebookFailed(
            f"{notebook.stem}: {fault} (see {_relative(failed)}){last_words(printed)}"
        ) from None
    except RuntimeError as error:
        # jupyter_client's message is all that tells a kernel that did not start.
        if not str(error).startswith("Kernel "):
            raise
        raise NotebookFailed(f"{notebook.stem}: {error}{last_words(printed)}") from None
    finally:
        working.unlink(missing_ok=True)
        printed.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    _strip_timing(executed)
    storage.write_text(output.with_suffix(".html"), lesson_page.to_html(executed, notebook.stem))
    storage.write_text(output, nbformat.writes(executed) + "\n")
    lesson_page.write_contents(output.parent)
    return time.monotonic() - started


def _where_it_broke(error: Any) -> str:
    """The traceback of a cell's error, for a fault that no user can mend; else empty.

    A `MemecmdError` has none, and what the system refuses has a path in its message.
    """
    kind = getattr(builtins, error.ename, None)
    if len(error.traceback) < 2 or (isinstance(kind, type) and issubclass(kind, OSError)):
        return ""
    from nbconvert.filters.ansi import strip_ansi

    return "\n" + strip_ansi("\n".join(error.traceback))


@contextlib.contextmanager
def _sockets() -> Iterator[tuple[Path, dict[str, str]]]:
    """A private folder for a notebook's run, and how its kernel is reached: by sockets in it.

    No other user can read or write them, and notebooks at the same time share none. The system allows such a
    path about a hundred bytes: a shorter folder serves, and at last ports on the loopback address.
    """
    with contextlib.ExitStack() as stack:
        for parent in (None, *SHORT_FOLDERS):
            try:
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix="memecmd-", dir=parent))
            except OSError:
                if parent is None:
                    raise
                continue
            if len(os.fsencode(made)) + SOCKET_NAME <= LONGEST_SOCKET:
                yield Path(made), {"transport": "ipc", "ip": f"{made}/kernel"}
                return
        yield Path(made), {"transport": "tcp", "ip": "127.0.0.1"}


@contextlib.contextmanager
def _kernel_environment(status: Path):
    """Variables that the kernel inherits: a plot backend without a screen, this environment's kernel."""
    wanted = {
        "MPLBACKEND": os.environ.get("MPLBACKEND", "Agg"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        STATUS_VARIABLE: str(status),
        machine.HEADLESS_VARIABLE: "1",  # nobody turns a knob: panels show a picture
        # The kernel's debugger warns about frozen modules on every start; nobody attaches to it here.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _strip_timing(notebook: Any) -> None:
    """Take out papermill's times and paths: two equal runs give equal files."""
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(paths.root))
    except ValueError:
        return str(path)
