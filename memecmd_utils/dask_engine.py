"""`engine: dask`: workers make the shards of a run, on this machine or wherever a scheduler has them.

Dask starts, watches and starts again; what is made and recorded is the shards' own affair. A worker that is
lost costs the calls it had open: its shard goes to another worker, which finds the rest recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memecmd_utils import dialogue_run, news, shards
from memecmd_utils.errors import ExtraMissing
from memecmd_utils.profiles import Profile, ProfileError
from memecmd_utils.runs import Run


def refusal(profile: Profile) -> str:
    """Why Dask cannot make the dialogues that a profile wants it to make; empty where it can, or need not."""
    if profile.engine != "dask" or profile.mode == "recorded" or profile.llm == "authored":
        return ""
    if profile.mode == "live":
        return "engine: dask needs mode: auto, for the parts are put together from recordings"
    if profile.shard:
        return "engine: dask makes all shards by itself: leave `shard` out"
    if profile.llm == "local":
        return "engine: dask needs an endpoint: every worker would load the local model anew"
    return ""


def prepare(run: Run) -> int:
    """Have Dask make the dialogues of a run in shards; returns how many shards, 0 where there is no need.

    Afterwards every reply is recorded, so stage 03 of the run itself asks nothing. Workers need this project
    at the same path, the key's variable and the same recordings folder (a shared disk, on several machines).
    """
    profile = run.profile
    if profile.engine != "dask" or profile.mode == "recorded" or profile.llm == "authored":
        return 0
    if why := refusal(profile):
        raise ProfileError(why)
    news.load(profile)  # feeds are read here, once, and not by every worker
    with _client(profile) as client:
        return launch(run, client)


def launch(run: Run, client: Any) -> int:
    """Make all shards on a Dask client and wait for them; the first fault of a shard ends the others."""
    from distributed import as_completed
    from tqdm.auto import tqdm

    workers = len(client.nthreads())
    parts = run.profile.shards or max(1, workers)
    # The profile's cap on requests in flight holds for all workers together.
    each = max(1, run.profile.concurrency // max(1, min(workers, parts)))
    todo = []
    for number in range(1, parts + 1):
        shard = shards.of_run(run, number, parts)
        todo.append(client.submit(make, shard, each, key=shard.name, pure=False))
    try:
        for done in tqdm(as_completed(todo), total=parts, desc="shards", unit="shard"):
            done.result()
    finally:
        client.cancel(todo)
    return parts


def make(run: Run, concurrency: int) -> int:
    """Make one shard in this process; returns the number of its dialogues."""
    run.profile = run.profile.model_copy(update={"concurrency": concurrency})
    return dialogue_run.make(run).dialogues


@contextmanager
def _client(profile: Profile) -> Iterator[Any]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ExtraMissing("engine: dask needs Dask: pip install -e '.[scale]'") from error
    if profile.scheduler is not None:
        with Client(profile.scheduler) as client:
            client.wait_for_workers(1, timeout=60)
            yield client
        return
    # One thread a worker: a shard has an event loop of its own and lives off waiting.
    with (
        LocalCluster(threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client
