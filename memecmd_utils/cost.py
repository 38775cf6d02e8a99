"""What a profile will ask for, before it runs (calls, tokens, money, hours), and what a run wrote and used.

No call is made. `estimate` is that of the chats, `template_memes` has that of the template memes; both make
their rows by `line`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from memecmd_utils import settings
from memecmd_utils.annotation import annotation_request
from memecmd_utils.dialogue import relation, sizes, speaker_of, summary_request, utterance_request
from memecmd_utils.embedders import INPUTS, TASK
from memecmd_utils.evaluation import judges
from memecmd_utils.evaluation.judges import STOPPED
from memecmd_utils.files import paths
from memecmd_utils.library import example_memes
from memecmd_utils.llm import budget, prompts, usage
from memecmd_utils.llm.budget import (
    REMOTE_SECONDS_PER_CALL,
    EstimateRow,
    Spent,
    estimate_row,
    pictures_of,
    tokens_per_image,
)
from memecmd_utils.llm.messages import Request
from memecmd_utils.schemas import ColdStart, Dialogue, Meme, RolePair, Turn
from memecmd_utils.settings import Endpoint, Profile, run_name

TYPICAL_UTTERANCE = "这事儿我跟你说没那么简单啊"
MEME = Meme(
    meme_id="m", file="m.png", text="这班谁爱上谁上", text_source="ocr", picture_note="一只猫趴在桌上",
    origin="x", sha256="0", phash="0", width=1, height=1, source="estimate",
)  # fmt: skip
PAIR = RolePair(
    pair_id="R00", role_a="甲", role_b="乙", intimacy="close", dominance="equal",
    age_relation="same_age", primary_scenario="life", source="estimate",
)  # fmt: skip
START = ColdStart(
    dialogue_id="estimate", kind="news", ref="x", title="题" * 18, name_a="甲", name_b="乙",
    context="文" * 200, brief="题" * 40, source="estimate",
)  # fmt: skip
REPLY_TOKENS = {"annotation": 160, "scenario": 120, "utterance": 18, "summary": 110}


def _characters(request: Request) -> int:
    return sum(len(message.text) for message in request.messages)


def _tokens(request: Request, profile: Profile, endpoint: Endpoint) -> float:
    """Tokens of a request with its pictures."""
    pictures = pictures_of(request) * tokens_per_image(endpoint)
    return _characters(request) * profile.models.tokens_per_character + pictures


def estimate(profile: Profile, n_memes: int) -> pd.DataFrame:
    """Estimate a run over `n_memes` memes: a row per stage and a total.

    Prompts are rendered with text of typical length; tokens are characters times `tokens_per_character`,
    images by rule. What is already recorded is not looked at.
    """
    generator = profile.models.endpoints.generator
    annotator = profile.models.endpoints.annotator or generator
    n_news, n_role = sizes(profile)
    n_dialogues, turns = n_news + n_role, range(1, profile.dialogue.n_turns + 1)

    def row(stage: str, at: str, task: str, n: int, calls: int, tokens: float, **whom: Any) -> EstimateRow:
        """`n` memes, scenarios or dialogues, each with so many calls and tokens of prompts."""
        asked = {"llm": profile.models.llm, "endpoint": generator, **whom}
        written = n * calls * REPLY_TOKENS[task]
        return estimate_row(
            stage, (at, task), profile, calls=n * calls, t_in=n * tokens, t_out=written, **asked
        )

    def length(build: Callable[..., Request], turns: range) -> float:
        """Tokens of the prompts for these turns of a dialogue."""
        requests = (build(START, [TYPICAL_UTTERANCE] * (turn - 1), profile) for turn in turns)
        return sum(_tokens(request, profile, generator) for request in requests)

    sees = annotator.vision and profile.models.llm == "openai"
    request = annotation_request(MEME, 0, (lambda meme: "") if sees else None, profile.library.flag_unsafe)
    per_meme = _tokens(request, profile, annotator)
    values = {"pair": PAIR, "scenario": "一" * 30, **relation(PAIR)}
    details = prompts.render("scenario_details", fence=prompts.fence, **values)
    per_scenario = 2 * len(details) * profile.models.tokens_per_character
    per_talk = length(utterance_request, turns)
    summed_up = turns[1:]
    per_summaries = length(summary_request, summed_up)
    lines = [
        row("02 annotation", "annotation", "annotation", n_memes, 1, per_meme, endpoint=annotator),
        row("03 scenarios", "scenario", "scenario", n_role, 2, per_scenario),
        row("03 utterance", "dialogue_generation", "utterance", n_dialogues, len(turns), per_talk),
        row("03 summary", "dialogue_generation", "summary", n_dialogues, len(summed_up), per_summaries),
        *_embedding_lines(profile, n_memes, n_dialogues, n_role),
        *_judge_lines(profile, n_dialogues, n_memes),
    ]
    if others := min(profile.evaluation.other_summaries, n_dialogues):
        lines.append(
            row("05b summary", "studies", "summary", others, len(summed_up), per_summaries, llm="local")
        )
    return pd.DataFrame(lines)


def _embedding_lines(profile: Profile, n_memes: int, n_dialogues: int, n_role: int) -> list[EstimateRow]:
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
        instruction = 3 * per_char * len(profile.models.query_instruction or "")
        tokens += n_summaries * (REPLY_TOKENS["summary"] + instruction)
    else:
        texts = n_memes + n_turns
        tokens = n_memes * len(MEME.text) * per_char + n_turns * REPLY_TOKENS["utterance"]
    calls = -(-texts // INPUTS)
    usd = tokens * (endpoint.usd_per_million_in or 0.0) / 1e6
    hours = calls * REMOTE_SECONDS_PER_CALL / 3600
    ledger = (TASK, TASK)
    return [EstimateRow("04 embedding", endpoint.model, calls, round(tokens), 0, usd, hours, ledger)]


def _judge_lines(profile: Profile, n_dialogues: int, n_memes: int) -> Iterator[EstimateRow]:
    turns = [
        Turn(turn=t, speaker=speaker_of(t), text=TYPICAL_UTTERANCE, source="estimate")
        for t in range(1, profile.dialogue.n_turns + 1)
    ]
    dialogue = Dialogue(
        dialogue_id="estimate", kind="news", ref="x", title="x", name_a="甲", name_b="乙", turns=turns,
        summaries=[], complete=True, source="estimate",
    )  # fmt: skip
    places = profile.dialogue.n_turns - 1
    rates = [
        profile.retrieval.random_rate if s == "random" else profile.retrieval.wanted_rate
        for s in profile.retrieval.strategies
    ]
    sent = [rate * places * n_dialogues for rate in rates]
    sampled = [min(rate * places, profile.evaluation.judge_sample or places) * n_dialogues for rate in rates]
    for number, judge in enumerate(profile.evaluation.judges):
        endpoints = profile.models.endpoints.judges
        endpoint = endpoints[number] if number < len(endpoints) else profile.models.endpoints.generator
        name = f"05 judge {number + 1} ({judge.kind})"
        ledger = ("evaluation" if number == 0 else f"evaluation-{number + 1}", "rating")
        calls, t_in, t_out = 0, 0.0, 0.0
        if judge.kind == "yes_no":
            half = min(n_memes, sum(sampled) / 2)
            # The checks ask about three memes a turn, and three times about two memes of some turns.
            wordings = min(profile.evaluation.judge_checks, profile.evaluation.judge_wordings)
            checked, worded = 3 * profile.evaluation.judge_checks, 6 * wordings
            held_out = 2 * min(n_memes, half + checked / 2) * profile.evaluation.judge_contexts
            calls = round(5 * (sum(sampled) + checked + worded + held_out))
            context = judges.Context(dialogue, min(10, profile.dialogue.n_turns))
            request = judges.yes_no_request(context, MEME, "humor_effect")
            # Four of five questions share all but their last line with the first: the server's cache has it.
            share = 0.3 if judge.llm == "local" else 1.0
            t_in = calls * share * _tokens(request, profile, endpoint)
            t_out = calls
        else:
            by_meme = profile.evaluation.judge_unit == "meme"
            sees = judge.llm == "openai" and endpoint.vision
            screenshot = ("estimate", lambda: b"") if sees else None
            spans = [min(10, profile.dialogue.n_turns)]
            if profile.evaluation.judge_unit == "dialogue":
                spans = judges.lengths(profile.dialogue.n_turns)
            for memes_sent in sampled if by_meme else sent:
                for span in spans:
                    item = judges.Item(None, dialogue, {2: MEME}, span)
                    request = judges.rating_request(item, 0, screenshot)
                    n_calls = round(memes_sent) if by_meme else n_dialogues
                    calls += n_calls
                    t_in += n_calls * _tokens(request, profile, endpoint)
                t_out += 60 * (memes_sent if by_meme else memes_sent * sum(spans) / profile.dialogue.n_turns)
        yield estimate_row(name, ledger, profile, judge.llm, endpoint, calls, t_in, t_out, judge.local_model)


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
    folder = report.relative_to(paths.root)
    scored, stopped = _judged(data / "ratings.parquet")
    lines = [
        "",
        f"run {run}: {_count(data / 'memes.parquet')} memes, {_count(data / 'dialogues.jsonl')} dialogues, "
        f"{_count(data / 'placements.parquet')} memes placed, {_count(data / 'ratings.parquet')} ratings, "
        f"{scored} scored",
        f"  page to look at    {folder}/index.html",
        f"  dataset            {data.relative_to(paths.root)}/release/",
        f"  tables             {folder}/tables/",
        f"  figures            {folder}/figures/",
        f"  numbers            {folder}/numbers.json",
        f"  executed notebooks {folder}/*.html",
    ]
    lines += [*stopped, *real_usage(run)]
    settled = settings.read_resolved(data)
    if settled and (lacking := usage.not_recorded(Profile.model_validate(settled), data)):
        lines += ["", lacking]
    return "\n".join(lines)


def _judged(path: Path) -> tuple[str, list[str]]:
    """How many ratings have a score, and a line for each judge that was stopped early."""
    if not path.is_file():
        return "-", []
    ratings = pd.read_parquet(path, columns=["judge", "overall", "unscored"])
    unasked = ratings[ratings["unscored"] == STOPPED].groupby("judge", sort=False).size()
    return str(ratings["overall"].count()), [
        f"  {judge} {STOPPED}; {n} of its ratings were not asked for (another model or model_label would be)"
        for judge, n in unasked.items()
    ]


def cost_text(profile: Profile) -> str:
    """The estimate of a profile, beside what its run really used where it has begun. No call is made."""
    spent = Spent(paths.processed / run_name(profile) / "usage" / "spent.jsonl")
    table = budget.with_real_usage(estimate(profile, expected_memes(profile)), spent)
    notes = ["", "Estimate: prompts of typical length, nothing recorded yet. No call was made."]
    if not spent.rows:
        notes[1] += " After a run the real figures stand beside it."
    ends = profile.models.endpoints
    for endpoint in (ends.generator, ends.annotator, *ends.judges, ends.embedder):
        if endpoint is None or not endpoint.model:
            continue
        if endpoint.usd_per_million_in is None:
            prices = "usd_per_million_in, usd_per_million_out"
            notes.append(f"The price of {endpoint.model} is not known ({prices}).")
        if endpoint.vision and endpoint.tokens_per_image is None:
            notes.append(
                f"What {endpoint.model} counts for a picture is not known (tokens_per_image): a meme counts "
                f"as {budget.TOKENS_PER_IMAGE} tokens here; gpt-4o counts 255, gpt-4o-mini 8,500."
            )
    return budget.estimate_text(table) + "\n" + "\n".join(notes)


def real_usage(run: str) -> Iterator[str]:
    """A line per stage that spoke to a model."""
    for stage, used in usage.usage_of(paths.processed / run):
        if used["source"] == "authored":
            yield f"  {stage}: {used['calls']} authored texts, no model asked"
            continue
        again = usage.counts_in_words(used["retries"])
        yield (
            f"  {stage}: {used['source']}; {used['calls']} calls, {used['replayed']} replayed, "
            f"{used['tokens_in']} tokens in, {used['tokens_out']} out, ${used['usd']:.2f}; "
            f"{usage.counts_in_words(used['outcomes'])}" + (f"; tried again: {again}" if again else "")
        )
    vectors = Spent(paths.processed / run / "usage" / "spent.jsonl").rows.get((TASK, TASK))
    if vectors is not None:
        yield f"  {TASK}: {vectors.calls} calls, {vectors.tokens_in} tokens in, ${vectors.usd:.2f}"


def expected_memes(profile: Profile) -> int:
    """How many memes a run will have, from its cap or from the example table; folders are counted by file."""
    total, most = 0, profile.library.max_memes
    for source in profile.library.sources:
        if source == "example":
            total += len(example_memes())
        else:
            total += sum(path.is_file() for path in (paths.root / source).rglob("*"))
    return min(total or most, most) if most else total
