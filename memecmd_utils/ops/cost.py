"""What a profile will ask for, before it runs: calls, tokens, money, hours. No call is made.

`estimate` is that of the chats, `annotation` that of the template memes; both make their rows by `line`.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from memecmd_utils import settings
from memecmd_utils.annotation.annotator import annotation_request
from memecmd_utils.core import paths
from memecmd_utils.core.encoders import text
from memecmd_utils.core.encoders.text import TASK
from memecmd_utils.core.llm import outcomes, prices, prompts
from memecmd_utils.core.llm.budget import Ledger, pictures_of
from memecmd_utils.core.llm.messages import Request
from memecmd_utils.core.llm.prices import REMOTE_SECONDS_PER_CALL, Line, line, tokens_per_image
from memecmd_utils.dialogue import cold_start, generation
from memecmd_utils.evaluation import judges
from memecmd_utils.evaluation.judges import STOPPED
from memecmd_utils.schemas import ColdStart, Dialogue, Meme, Placement, RolePair, Turn
from memecmd_utils.settings import Profile, run_name

TYPICAL_UTTERANCE = "这事儿我跟你说没那么简单啊"
REPLY_TOKENS = {"annotation": 160, "scenario": 120, "utterance": 18, "summary": 110}


def _characters(request: Request) -> int:
    return sum(len(message.text) for message in request.messages)


def estimate(profile: Profile, n_memes: int) -> pd.DataFrame:
    """Estimate a run over `n_memes` memes: a row per stage and a total.

    Prompts are rendered with text of typical length; tokens are characters times `tokens_per_character`,
    images by rule. Answers that are already recorded cost nothing and are not looked at here. `beside` adds
    what was really used.
    """
    per_char = profile.models.tokens_per_character
    generator = profile.models.endpoints.generator
    annotator = profile.models.endpoints.annotator or generator
    meme = _typical_meme()
    pair = RolePair(
        pair_id="R00", role_a="甲", role_b="乙", intimacy="close", dominance="equal",
        age_relation="same_age", primary_scenario="life", source="estimate",
    )  # fmt: skip
    start = _typical_start()
    n_news, n_role = cold_start.sizes(profile)
    n_dialogues = n_news + n_role
    sees = annotator.vision and profile.models.llm == "openai"
    asked = annotation_request(meme, 0, (lambda meme: "") if sees else None, profile.library.flag_unsafe)
    t_in = n_memes * (_characters(asked) * per_char + pictures_of(asked) * tokens_per_image(annotator))
    ledger, t_out = ("annotation", "annotation"), n_memes * REPLY_TOKENS["annotation"]
    lines = [line("02 annotation", ledger, profile, profile.models.llm, annotator, n_memes, t_in, t_out)]
    details = prompts.render(
        "scenario_details",
        pair=pair,
        scenario="一" * 30,
        fence=prompts.fence,
        **cold_start.dimensions_of(pair),
    )
    calls, ledger = 2 * n_role, ("scenario", "scenario")
    t_in, t_out = calls * len(details) * per_char, calls * REPLY_TOKENS["scenario"]
    lines.append(line("03 scenarios", ledger, profile, profile.models.llm, generator, calls, t_in, t_out))
    for task, build in (
        ("utterance", generation.utterance_request),
        ("summary", generation.summary_request),
    ):
        turns = range(1 if task == "utterance" else 2, profile.dialogue.n_turns + 1)
        characters = sum(_characters(build(start, [TYPICAL_UTTERANCE] * (t - 1), profile)) for t in turns)
        calls, ledger = n_dialogues * len(turns), ("dialogue_generation", task)
        t_in, t_out = n_dialogues * characters * per_char, calls * REPLY_TOKENS[task]
        lines.append(line(f"03 {task}", ledger, profile, profile.models.llm, generator, calls, t_in, t_out))
    lines += _embedding_lines(profile, n_memes, n_dialogues, n_role)
    lines += _judge_lines(profile, n_dialogues, n_memes, start, meme, per_char)
    if profile.evaluation.other_summaries:
        summarised = min(profile.evaluation.other_summaries, n_dialogues)
        calls = summarised * (profile.dialogue.n_turns - 1)
        t_in = summarised * characters * per_char
        ledger = ("studies", "summary")
        t_out = calls * REPLY_TOKENS["summary"]
        lines.append(line("05b summary", ledger, profile, "local", generator, calls, t_in, t_out))
    return pd.DataFrame(lines)


def _embedding_lines(profile: Profile, n_memes: int, n_dialogues: int, n_role: int) -> list[Line]:
    """Vectors that an endpoint makes: of scenarios, annotations and summaries, or for the consistency."""
    endpoint = profile.models.endpoints.embedder
    if endpoint is None or "endpoint" not in (profile.models.embedder, profile.models.consistency_embedder):
        return []
    per_char = profile.models.tokens_per_character
    n_turns = n_dialogues * profile.dialogue.n_turns
    if profile.models.embedder == "endpoint":
        n_summaries = n_turns - n_turns // profile.dialogue.n_turns
        texts = n_role + 4 * n_memes + 3 * n_summaries
        tokens = n_role * REPLY_TOKENS["scenario"] / 2 + n_memes * REPLY_TOKENS["annotation"]
        tokens += n_summaries * (
            REPLY_TOKENS["summary"] + 3 * per_char * len(profile.models.query_instruction or "")
        )
    else:
        texts = n_memes + n_turns
        tokens = n_memes * len(_typical_meme().text) * per_char + n_turns * REPLY_TOKENS["utterance"]
    calls = -(-texts // text.INPUTS)
    usd = tokens * (endpoint.usd_per_million_in or 0.0) / 1e6
    hours = calls * REMOTE_SECONDS_PER_CALL / 3600
    ledger = (text.TASK, text.TASK)
    return [Line("04 embedding", endpoint.model, calls, round(tokens), 0, usd, hours, ledger)]


def _judge_lines(
    profile: Profile, n_dialogues: int, n_memes: int, start: ColdStart, meme: Meme, per_char: float
) -> list[Line]:
    turns = [
        Turn(turn=t, speaker=generation.speaker_of(t), text=TYPICAL_UTTERANCE, source="estimate")
        for t in range(1, profile.dialogue.n_turns + 1)
    ]
    dialogue = Dialogue(
        dialogue_id="estimate", kind="news", ref="x", title="x", name_a="甲", name_b="乙", turns=turns,
        summaries=[], complete=True, source="estimate",
    )  # fmt: skip
    places = profile.dialogue.n_turns - 1
    per_strategy = {
        s: profile.retrieval.random_rate if s == "random" else profile.retrieval.wanted_rate
        for s in profile.retrieval.strategies
    }
    most = profile.evaluation.judge_sample or places
    sent = {s: rate * places * n_dialogues for s, rate in per_strategy.items()}
    sampled = {s: min(rate * places, most) * n_dialogues for s, rate in per_strategy.items()}
    lines = []
    for number, judge in enumerate(profile.evaluation.judges):
        endpoints = profile.models.endpoints.judges
        endpoint = endpoints[number] if number < len(endpoints) else profile.models.endpoints.generator
        name = f"05 judge {number + 1} ({judge.kind})"
        ledger = ("evaluation" if number == 0 else f"evaluation-{number + 1}", "rating")
        if judge.kind == "yes_no":
            half = min(n_memes, sum(sampled.values()) / 2)
            # The checks ask about three memes a turn, and three times about two memes of some turns.
            checked, worded = (
                3 * profile.evaluation.judge_checks,
                6 * min(profile.evaluation.judge_checks, profile.evaluation.judge_wordings),
            )
            pairs = sum(sampled.values()) + checked + worded
            held_out = 2 * min(n_memes, half + checked / 2)
            calls = round(5 * (pairs + held_out * profile.evaluation.judge_contexts))
            context = judges.Context(dialogue, min(10, profile.dialogue.n_turns))
            characters = _characters(judges.yes_no_request(context, meme, "humor_effect"))
            # Four of five questions share all but their last line with the first: the server's cache has it.
            t_in = calls * per_char * characters * (0.3 if judge.llm == "local" else 1.0)
            local = judge.local_model
            lines.append(line(name, ledger, profile, judge.llm, endpoint, calls, t_in, calls, local))
            continue
        placed = Placement(
            dialogue_id="estimate", turn=2, speaker="B", strategy="greedy", meme_id="m", rank=1, score=0,
            gate_score=None, threshold=None, fold="a", source="estimate",
        )  # fmt: skip
        calls, t_in, t_out = 0, 0.0, 0.0
        sees = judge.llm == "openai" and endpoint.vision
        screenshot = ("estimate", lambda: b"") if sees else None
        spans = [min(10, profile.dialogue.n_turns)]
        if profile.evaluation.judge_unit == "dialogue":
            spans = judges.lengths(profile.dialogue.n_turns)
        for memes_sent in (sampled if profile.evaluation.judge_unit == "meme" else sent).values():
            for shown in spans:
                request = judges.rating_request(dialogue, [placed], {"m": meme}, shown, 0, screenshot)
                n_calls = round(memes_sent) if profile.evaluation.judge_unit == "meme" else n_dialogues
                calls += n_calls
                seen = pictures_of(request) * tokens_per_image(endpoint)
                t_in += n_calls * (_characters(request) * per_char + seen)
            each = (
                memes_sent
                if profile.evaluation.judge_unit == "meme"
                else memes_sent * sum(spans) / profile.dialogue.n_turns
            )
            t_out += each * 60
        local = judge.local_model
        lines.append(line(name, ledger, profile, judge.llm, endpoint, calls, t_in, t_out, local))
    return lines


def _typical_meme() -> Meme:
    return Meme(
        meme_id="m", file="m.png", text="这班谁爱上谁上", text_source="ocr", picture_note="一只猫趴在桌上",
        origin="x", sha256="0", phash="0", width=1, height=1, source="estimate",
    )  # fmt: skip


def _typical_start() -> ColdStart:
    return ColdStart(
        dialogue_id="estimate", kind="news", ref="x", title="题" * 18, name_a="甲", name_b="乙",
        context="文" * 200, brief="题" * 40, source="estimate",
    )  # fmt: skip


# --- What a run wrote and where, in a few lines for the terminal


def _count(path: Path) -> str:
    if not path.is_file():
        return "-"
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return str(pq.ParquetFile(path).metadata.num_rows)
    return str(sum(1 for line in path.read_text(encoding="utf-8").split("\n") if line.strip()))


def summary_text(run: str) -> str:
    """The closing lines of `make reproduce`."""
    data, report = paths.processed / run, paths.reports / run
    show = {
        "memes": _count(data / "memes.parquet"),
        "dialogues": _count(data / "dialogues.jsonl"),
        "memes placed": _count(data / "placements.parquet"),
        "ratings": _count(data / "ratings.parquet"),
    }
    scored, stopped = _judged(data / "ratings.parquet")
    lines = [
        "",
        f"run {run}: " + ", ".join(f"{value} {name}" for name, value in show.items()) + f", {scored} scored",
        f"  page to look at    {_where(report / 'index.html')}",
        f"  dataset            {_where(data / 'release')}/",
        f"  tables             {_where(report / 'tables')}/",
        f"  figures            {_where(report / 'figures')}/",
        f"  numbers            {_where(report / 'numbers.json')}",
        f"  executed notebooks {_where(report)}/*.html",
    ]
    lines += [*stopped, *real_usage(run)]
    settled = settings.read_resolved(data)
    if settled and (lacking := outcomes.not_recorded(Profile.model_validate(settled), data)):
        lines += ["", lacking]
    return "\n".join(lines)


def _judged(path: Path) -> tuple[str, list[str]]:
    """How many ratings have a score, and a line for each judge that was stopped early."""
    if not path.is_file():
        return "-", []
    import pandas as pd

    ratings = pd.read_parquet(path, columns=["judge", "overall", "unscored"])
    unasked = ratings[ratings["unscored"] == STOPPED].groupby("judge", sort=False).size()
    return str(ratings["overall"].count()), [
        f"  {judge} {STOPPED}; {n} of its ratings were not asked for (another model or model_label is)"
        for judge, n in unasked.items()
    ]


def cost_text(profile: Profile) -> str:
    """The estimate of a profile, beside what its run really used where it has begun. No call is made."""

    ledger = Ledger(paths.processed / run_name(profile) / "usage" / "ledger.sqlite")
    table = prices.beside(estimate(profile, expected_memes(profile)), ledger)
    notes = ["", "Estimate: prompts of typical length, nothing recorded yet. No call was made."]
    if not ledger.spent:
        notes[1] += " After a run the real figures stand beside it."
    if profile.models.batch:
        notes.append("Batches come back within 24 hours, often sooner; they cost half.")
    ends = profile.models.endpoints
    for endpoint in (ends.generator, ends.annotator, *ends.judges, ends.embedder):
        if endpoint is None or not endpoint.model:
            continue
        if endpoint.usd_per_million_in is None:
            notes.append(
                f"The price of {endpoint.model} is not known (usd_per_million_in, usd_per_million_out)."
            )
        if endpoint.vision and endpoint.tokens_per_image is None:
            notes.append(
                f"What {endpoint.model} counts for a picture is not known (tokens_per_image): a meme counts "
                f"as {prices.UNSAID_TOKENS_PER_IMAGE} tokens here; gpt-4o counts 255, gpt-4o-mini 8,500."
            )
    return prices.estimate_text(table) + "\n" + "\n".join(notes)


def _where(path: Path) -> str:
    return str(path.relative_to(paths.root))


def real_usage(run: str) -> Iterator[str]:
    """A line per stage that spoke to a model."""
    for stage, used in outcomes.usage_of(paths.processed / run):
        if used["source"] == "authored":
            yield f"  {stage}: {used['calls']} authored texts, no model asked"
            continue
        again = outcomes.counted(used["retries"])
        yield (
            f"  {stage}: {used['source']}; {used['calls']} calls, {used['replayed']} replayed, "
            f"{used['tokens_in']} tokens in, {used['tokens_out']} out, ${used['usd']:.2f}; "
            f"{outcomes.counted(used['outcomes'])}" + (f"; tried again: {again}" if again else "")
        )
    vectors = Ledger(paths.processed / run / "usage" / "ledger.sqlite").spent.get((TASK, TASK))
    if vectors is not None:
        yield (
            f"  {TASK}: {vectors.calls + vectors.unsure_calls} calls, {vectors.tokens_in} tokens in, "
            f"${vectors.usd + vectors.unsure_usd:.2f}"
        )


def expected_memes(profile: Profile) -> int:
    """How many memes a run will have, from its cap or from the example table; folders are counted by file."""
    total = 0
    for source in profile.library.sources:
        if source == "example":
            with (paths.example / "memes.csv").open(encoding="utf-8", newline="") as handle:
                total += sum(1 for _ in csv.DictReader(handle))
        elif (paths.root / source).is_dir():
            total += sum(1 for path in (paths.root / source).rglob("*") if path.is_file())
    return (
        min(total, profile.library.max_memes)
        if profile.library.max_memes and total
        else profile.library.max_memes or total
    )
