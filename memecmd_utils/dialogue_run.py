"""Stage 03 of a run from its cold starts to its dialogues, as notebook 03 goes through it step by step."""

from memecmd_utils import (
    cold_start,
    dialogue_generation,
    example_corpus,
    llm,
    news,
    start_plan,
    storage,
)
from memecmd_utils.dialogue_generation import Generated
from memecmd_utils.runs import Run


def make(run: Run) -> Generated:
    """Write `scenarios.jsonl`, `cold_starts.jsonl`, `dialogues.jsonl` and `unfinished.jsonl` of a run.

    Raises what the models' seam raises; whatever was answered until then is recorded and not asked for again.
    """
    profile = run.profile
    pairs = example_corpus.load_role_pairs()[: profile.n_role_pairs]
    planned = start_plan.plan(news.load(profile), pairs, profile)
    glosses = example_corpus.glosses() if profile.llm == "authored" else {}
    embedder = run.embedder()
    with run.chat("generator", "scenario") as chat:
        work = cold_start.role_cold_starts(
            planned.pairs, chat, profile, lambda texts: embedder.encode(texts, "document"), glosses
        )
        role = llm.run(work)
    storage.write_jsonl(run.write("scenarios.jsonl"), role.scenarios)
    starts = [*map(cold_start.from_news, planned.news), *role.starts]
    storage.write_jsonl(run.write("cold_starts.jsonl"), starts)
    with run.chat("generator", "dialogue_generation") as chat:
        return llm.run(
            dialogue_generation.generate(starts, chat, profile, run.folder, glosses, role.unfinished)
        )
