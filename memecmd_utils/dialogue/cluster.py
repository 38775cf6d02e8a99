"""`engine: dask`: workers hold the dialogues of a run, on this machine or wherever a scheduler has them.

What a worker is told by a model it records; the run itself then finds every reply recorded. A worker that is
lost costs the calls it had open: its dialogues go to another worker.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memecmd_utils import schemas
from memecmd_utils.dialogue import cold_start, generation, news
from memecmd_utils.dialogue.cold_start import Plan
from memecmd_utils.dialogue.generation import Generated
from memecmd_utils.files import ExtraMissing
from memecmd_utils.llm import authored
from memecmd_utils.llm import chat as llm_chat
from memecmd_utils.runs import Run
from memecmd_utils.settings import Profile, ProfileError


def is_needed(profile: Profile) -> bool:
    """Whether a profile wants Dask and its dialogues are not recorded or authored already."""
    return (
        profile.models.engine == "dask"
        and profile.models.mode != "recorded"
        and profile.models.llm != "authored"
    )


def refusal(profile: Profile) -> str:
    """Why Dask cannot make the dialogues that a profile wants it to make; empty where it can, or need not."""
    if is_needed(profile) and profile.models.mode == "live":
        return "engine: dask needs mode: auto, for the run is put together from recordings"
    if is_needed(profile) and profile.models.llm == "local":
        return "engine: dask needs an endpoint: every worker would load the local model anew"
    return ""


def prepare(run: Run) -> int:
    """Have Dask's workers hold the dialogues of a run; returns how many parts, 0 where there is no need.

    Workers need this project at the same path, the key's variable and the same folders.
    """
    if not is_needed(run.profile):
        return 0
    if why := refusal(run.profile):
        raise ProfileError(why)
    with _client(run.profile) as client:
        return launch(run, client)


def launch(run: Run, client: Any) -> int:
    """Give each worker of a Dask client its part and wait for all; the first fault ends the others.

    Returns the number of parts.
    """
    from distributed import as_completed
    from tqdm.auto import tqdm

    parts = cold_start.split(planned(run.profile), max(1, len(client.nthreads())))
    # The profile's cap on requests in flight holds for all workers together.
    each = max(1, run.profile.models.concurrency // len(parts))
    futures = [
        client.submit(make_part, run, part, each, key=f"{run.name}-{number}", pure=False)
        for number, part in enumerate(parts, 1)
    ]
    try:
        for done in tqdm(as_completed(futures), total=len(parts), desc="parts", unit="part"):
            done.result()
    finally:
        client.cancel(futures)
    return len(parts)


def make_part(run: Run, part: Plan, concurrency: int) -> int:
    """Make some of a run's dialogues on a worker; returns how many.

    It records into the run's folder of recordings and spends from its ledger; what else it writes is deleted.
    """
    from distributed import get_worker

    profile = run.profile.replace(concurrency=concurrency)
    with tempfile.TemporaryDirectory(dir=get_worker().local_directory) as scratch:
        folder = Path(scratch)
        return make(Run(run.name, profile, folder, folder, spends_in=run.folder), part).dialogues


def planned(profile: Profile) -> Plan:
    """The cold starts of all of a profile's dialogues."""
    pairs = authored.load_role_pairs()[: profile.dialogue.n_role_pairs]
    return cold_start.plan(news.load_news(profile), pairs, profile)


def make(run: Run, plan: Plan) -> Generated:
    """Stage 03 from the plan to the dialogues, as notebook 03 goes through it step by step."""
    profile = run.profile
    glosses = authored.glosses() if profile.models.llm == "authored" else {}
    embedder = run.embedder()
    with run.chat("generator", "scenario") as chat:
        work = cold_start.role_cold_starts(
            plan.pairs, chat, profile, lambda texts: embedder.encode(texts, "document"), glosses
        )
        role = llm_chat.run(work)
    run.save(role.scenarios, schemas.Scenario)
    starts = [*map(cold_start.from_news, plan.news), *role.starts]
    run.save(starts, schemas.ColdStart)
    with run.chat("generator", "dialogue_generation") as chat:
        return llm_chat.run(generation.generate(starts, chat, profile, run.folder, glosses, role.unfinished))


@contextmanager
def _client(profile: Profile) -> Iterator[Any]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ExtraMissing("engine: dask needs Dask: pip install -e '.[scale]'") from error
    if profile.models.scheduler is not None:
        with Client(profile.models.scheduler) as client:
            client.wait_for_workers(1, timeout=60)
            yield client
        return
    # One thread a worker: a part has an event loop of its own and lives off waiting.
    with (
        LocalCluster(threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client
