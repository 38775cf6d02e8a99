"""The language models of a run: who answers for a role, at what price and within which caps."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from memecmd_utils import files
from memecmd_utils.llm import authored
from memecmd_utils.llm.authored import AuthoredBackend
from memecmd_utils.llm.chat import Chat
from memecmd_utils.llm.endpoint import NO_KEY, OpenAIBackend, is_local
from memecmd_utils.llm.spending import Budget, Spent, Usage, tokens_per_image
from memecmd_utils.llm.types import Backend, EndpointError
from memecmd_utils.local_model import LocalServer
from memecmd_utils.runs import Role, Run
from memecmd_utils.settings import Endpoint, Profile


def spent(run: Run) -> Spent:
    """What a run has spent so far, in all its processes."""
    return Spent(None if run.profile.models.mode == "recorded" else run.folder / "usage" / "spent.jsonl")


def budget(run: Run, stage: str, endpoint: Endpoint, reads_only: bool = False) -> Budget:
    """The profile's caps, held against what the run has spent, at the endpoint's prices.

    `reads_only`: the endpoint writes nothing, so its price for that need not be known.
    """
    knobs, usd = run.profile.models, prices(endpoint, run.profile, reads_only)
    return Budget(spent(run), stage, knobs.max_calls, knobs.max_usd, *usd, tokens_per_image(endpoint))


@contextmanager
def open_chat(run: Run, role: Role, stage: str, number: int = 0) -> Iterator[Chat]:
    """Open the model of a role with its recordings of `stage` and caps; counts are written at the end."""
    name = stage if number == 0 else f"{stage}-{number + 1}"
    with ExitStack() as stack:
        backend, at_once, caps = _model(run, role, number, name, stack)
        store = run.recordings(stage) if backend.recordable else None
        if store is not None:
            stack.enter_context(store.writing())
        # A run can go on without judges, who measure what is there without them, and without one strategy.
        strict = run.strict or role not in ("judge", "chooser")
        # A stage may open a judge twice: for placed memes, and for the items it is checked on.
        usage, counts = run.counted.setdefault(name, Usage()), run.folder / "usage" / f"{name}.json"
        chat = Chat(backend, store, run.profile.models.mode, at_once, caps, strict, usage)
        # Also of a chat that a cap, a fault or the stop button ended.
        stack.callback(lambda: files.write_json(counts, {"source": backend.source, **usage.as_dict()}))
        yield chat
        if store is not None and store.used_keys:
            run.note_used(stage, store.used_keys)


def _model(
    run: Run, role: Role, number: int, name: str, stack: ExitStack
) -> tuple[Backend, int, Budget | None]:
    """Who answers for a role, how many requests at a time it is asked, and what it may cost.

    Authored texts, a local server that `stack` stops, or an endpoint.
    """
    profile = run.profile
    llm, local_model = profile.models.llm, profile.models.local_model
    if role == "judge":
        llm = profile.evaluation.judges[number].llm
        local_model = profile.evaluation.judges[number].local_model or local_model
    if llm == "authored":
        return AuthoredBackend(authored.texts()), profile.models.concurrency, None
    replays = profile.models.mode == "recorded"
    if llm == "local":
        # A chat of one's own gets the same memes when it is asked again after a kill.
        at_once = 1 if role == "chooser" or name == "own_chats" else min(profile.models.concurrency, 2)
        server = LocalServer(local_model, at_once, threads=profile.models.local_threads)
        local = (server if replays else stack.enter_context(server)).backend()
        return local, at_once, budget(run, name, local.endpoint)
    endpoint = run.endpoint(role, number)
    remote = OpenAIBackend(endpoint, key=NO_KEY if replays else None)  # replaying needs no key
    return remote, profile.models.concurrency, budget(run, name, endpoint)


def prices(endpoint: Endpoint, profile: Profile, reads_only: bool = False) -> tuple[float, float]:
    """US dollars per million tokens in and out; `EndpointError` where `max_usd` would count nothing."""
    known = endpoint.usd_per_million_in, 0.0 if reads_only else endpoint.usd_per_million_out
    pays = profile.models.max_usd is not None and profile.models.mode != "recorded" and not is_local(endpoint)
    if None in known and pays:
        raise EndpointError(
            f"max_usd={profile.models.max_usd} is set, but the price of {endpoint.model!r} is not known: "
            f"give usd_per_million_in{'' if reads_only else ' and usd_per_million_out'} of its endpoint "
            "(0 for a server of your own), or set max_usd=null"
        )
    return known[0] or 0.0, known[1] or 0.0
