"""What a profile will ask for before it runs (calls, tokens, money, hours), and what a run wrote and used."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from memecmd_utils import annotation, evaluation, judges, retrieval, runs, schemas
from memecmd_utils.dialogue import (
    lines_of,
    load_own,
    relation,
    sizes,
    speaker_of,
    summary_request,
    utterance_request,
)
from memecmd_utils.files import paths
from memecmd_utils.library import example_memes
from memecmd_utils.llm import prompts, spending
from memecmd_utils.llm.embedding import INPUTS, TASK
from memecmd_utils.llm.spending import Spent, estimate_row
from memecmd_utils.llm.types import Request
from memecmd_utils.settings import Endpoint, Judge, Profile

TYPICAL_UTTERANCE = "这事儿我跟你说没那么简单啊"
MEME = schemas.Meme(
    meme_id="m", file="m.png", text="这班谁爱上谁上", text_source="ocr", picture_note="一只猫趴在桌上",
    origin="x", sha256="0", phash="0", width=1, height=1, source="estimate",
)  # fmt: skip
PAIR = schemas.RolePair(
    pair_id="R00", role_a="甲", role_b="乙", intimacy="close", dominance="equal",
    age_relation="same_age", primary_scenario="life", source="estimate",
)  # fmt: skip
START = schemas.ColdStart(
    dialogue_id="estimate", kind="news", ref="x", title="题" * 18, name_a="甲", name_b="乙",
    context="文" * 200, brief="题" * 40, source="estimate",
)  # fmt: skip
REPLY_TOKENS = {
    "annotation": 160,
    "scenario": 120,
    "utterance": 18,
    "summary": 110,
    "choice": 50,
    "rating": 60,
}


CHOICE_SYSTEM, OPTION = 450, 32
"""Characters of what the chooser is told, of a candidate's caption with its note, and of an annotation."""


# --- before a run -------------------------------------------------------------------------------------


def _tokens(request: Request, profile: Profile, endpoint: Endpoint) -> float:
    """Tokens of a request with its pictures."""
    characters = sum(len(message.text) for message in request.messages)
    pictures = spending.pictures_of(request) * spending.tokens_per_image(endpoint)
    return characters * profile.models.tokens_per_character + pictures


def estimate(profile: Profile, n_memes: int) -> list[dict[str, Any]]:
    """Estimate a run over `n_memes` memes: a row (`spending.estimate_row`) for each task of a stage.

    Prompts are rendered with text of typical length; tokens are characters times `tokens_per_character`,
    images by rule. No call is made, and what is already recorded is not looked at.
    """
    models, endpoints = profile.models, profile.models.endpoints
    generator, annotator = endpoints.generator, endpoints.annotator or endpoints.generator
    n_news, n_role = sizes(profile)
    own, n_turns = load_own(profile), profile.dialogue.n_turns
    n_written, n_dialogues = n_news + n_role, n_news + n_role + len(own)

    def row(stage: str, task: str, calls: int, t_in: float, **whom: Any) -> dict[str, Any]:
        asked = {"llm": models.llm, "endpoint": generator, **whom}
        written = calls * REPLY_TOKENS[task]
        return estimate_row(stage, profile, calls=calls, t_in=t_in, t_out=written, **asked)

    def length(build: Callable[..., Request], first: int) -> float:
        """Tokens of the prompts for all turns of a dialogue."""
        earlier = [[TYPICAL_UTTERANCE] * (turn - 1) for turn in range(first, n_turns + 1)]
        return sum(_tokens(build(START, texts, profile), profile, generator) for texts in earlier)

    sees = (lambda _: "") if annotator.vision and models.llm == "openai" else None
    request = annotation.annotation_request(MEME, 0, sees, profile.library.flag_unsafe)
    details = prompts.render(
        "scenario_details", fence=prompts.fence, pair=PAIR, scenario="一" * 30, **relation(PAIR)
    )
    per_scenario = len(details) * models.tokens_per_character

    def summary(start: schemas.ColdStart, texts: list[str], profile: Profile) -> Request:
        lines = lines_of(start, texts)
        return summary_request(start.dialogue_id, len(texts) + 1, lines, start.name_a, profile)

    summed_up, summaries = n_turns - 1, length(summary, 2)
    n_summaries = n_written * summed_up + sum(len(d.turns) - 1 - len(d.summaries) for d in own)
    rows = [
        row("02 annotation", "annotation", n_memes, n_memes * _tokens(request, profile, annotator),
            endpoint=annotator),
        row("03 scenarios", "scenario", 2 * n_role, 2 * n_role * per_scenario),
        row("03 utterance", "utterance", n_written * n_turns, n_written * length(utterance_request, 1)),
        row("03 summary", "summary", n_summaries, n_summaries * summaries / summed_up),
    ]  # fmt: skip
    if endpoints.embedder is not None and models.embedder == "endpoint":
        texts = 4 * n_memes + 3 * n_dialogues * summed_up
        tokens = n_memes * REPLY_TOKENS["annotation"] + n_dialogues * summed_up * REPLY_TOKENS["summary"]
        whom = {"llm": "openai", "endpoint": endpoints.embedder, "t_in": tokens, "t_out": 0}
        rows.append(estimate_row("04 embedding", profile, calls=texts / INPUTS, **whom))
    if retrieval.RERANKED in profile.retrieval.strategies:
        knobs, chooser = profile.retrieval, endpoints.chooser or generator
        characters = CHOICE_SYSTEM + knobs.rerank_k * OPTION + len(TYPICAL_UTTERANCE) * n_turns / 2
        pictures = knobs.rerank_k * spending.tokens_per_image(chooser) if chooser.vision else 0
        calls = n_dialogues * summed_up
        tokens = calls * (characters * models.tokens_per_character + pictures)
        rows.append(row("04 choice", "choice", calls, tokens, endpoint=chooser))
    for number, judge in enumerate(profile.evaluation.judges):
        endpoint = endpoints.judges[number] if number < len(endpoints.judges) else generator
        asked = _judge_calls(profile, judge, endpoint, n_dialogues, n_memes)
        name = f"05 judge {number + 1} ({judge.kind})"
        rows.append(estimate_row(name, profile, judge.llm, endpoint, *asked, judge.local_model))
    return rows


def _judge_calls(
    profile: Profile, judge: Judge, endpoint: Endpoint, n_dialogues: int, n_memes: int
) -> tuple[float, float, float]:
    """Calls, tokens in and tokens out of one judge."""
    given, places = profile.evaluation, profile.dialogue.n_turns - 1
    turns = [
        schemas.Turn(turn=t, speaker=speaker_of(t), text=TYPICAL_UTTERANCE, source="estimate")
        for t in range(1, places + 2)
    ]
    dialogue = schemas.Dialogue(
        **START.model_dump(include={"dialogue_id", "kind", "ref", "title", "name_a", "name_b", "source"}),
        turns=turns, summaries=[], complete=True,
    )  # fmt: skip
    by_random, wanted = profile.retrieval.random_rate, profile.retrieval.wanted_rate
    rates = [by_random if strategy == "random" else wanted for strategy in profile.retrieval.strategies]
    sent = sum(rate * places * n_dialogues for rate in rates)
    sampled = sum(min(rate * places, given.judge_sample or places) * n_dialogues for rate in rates)
    if judge.kind == "yes_no":
        checked = 3 * given.judge_checks  # three memes a turn
        held_out = 2 * min(n_memes, (sampled + checked) / 2) * given.judge_contexts
        calls = 5 * (sampled + checked + held_out)
        context = judges.Query(dialogue, min(10, places + 1))
        request = judges.yes_no_request(context, MEME, "humor_effect")
        # Four of five questions share all but their last line with the first: a local server has it read.
        share = 0.3 if judge.llm == "local" else 1.0
        return calls, calls * share * _tokens(request, profile, endpoint), calls
    picture = ("estimate", lambda: b"") if judge.llm == "openai" and endpoint.vision else None
    by_meme = given.judge_unit == "meme"
    spans = [min(10, places + 1)] if by_meme else evaluation.lengths(places + 1)
    calls = sampled if by_meme else len(rates) * n_dialogues
    items = [judges.Excerpt(dialogue, {2: MEME}, span) for span in spans]
    tokens = sum(_tokens(judges.rating_request(i, 0, picture), profile, endpoint) for i in items)
    rated = sampled if by_meme else sent * sum(spans) / (places + 1)
    return calls * len(spans), calls * tokens, REPLY_TOKENS["rating"] * rated


def cost_text(profile: Profile) -> str:
    """The estimate of a profile. No call is made."""
    rows = estimate(profile, expected_memes(profile))
    notes = ["", "Estimate: prompts of typical length, nothing recorded yet. No call was made."]
    ends = profile.models.endpoints
    for endpoint in filter(None, (ends.generator, ends.annotator, *ends.judges, ends.embedder)):
        if endpoint.model and endpoint.usd_per_million_in is None:
            prices = "usd_per_million_in, usd_per_million_out"
            notes.append(f"The price of {endpoint.model} is not known ({prices}).")
        if endpoint.model and endpoint.vision and endpoint.tokens_per_image is None:
            notes.append(
                f"What {endpoint.model} counts for a picture is not known (tokens_per_image): it counts as "
                f"{spending.TOKENS_PER_IMAGE} tokens here; gpt-4o counts 255, gpt-4o-mini 8,500."
            )
    return "\n".join([spending.estimate_text(rows), *notes])


def expected_memes(profile: Profile) -> int:
    """How many memes a run will have, from its cap or from the example table; folders are counted by file."""
    total, most = 0, profile.library.max_memes
    for source in profile.library.sources:
        if source == "example":
            total += len(example_memes())
        else:
            total += sum(path.is_file() for path in (paths.root / source).rglob("*"))
    return min(total or most, most) if most else total


# --- after a run --------------------------------------------------------------------------------------


def summary_text(run: str) -> str:
    """The closing lines of `make reproduce`."""
    data, report = paths.processed / run, paths.reports / run
    folder, counts = report.relative_to(paths.root), []
    for name in ("memes.parquet", "dialogues.jsonl", "placements.parquet", "ratings.parquet"):
        if (path := data / name).is_file():
            rows = pd.read_parquet(path) if path.suffix == ".parquet" else path.read_bytes().splitlines()
            counts.append(f"{len(rows)} {path.stem}")
    left_out = data / "rejected.csv"
    n = len(pd.read_csv(left_out)) if left_out.is_file() else 0
    lines = [
        "",
        f"run {run}: {', '.join(counts)}",
        *([f"  left out           {n} files: {left_out.relative_to(paths.root)} says why"] if n else []),
        f"  page to look at    {folder}/index.html",
        f"  dataset            {data.relative_to(paths.root)}/release/",
        f"  tables, figures    {folder}/tables/, {folder}/figures/",
        f"  executed notebooks {folder}/*.html",
    ]
    line = (
        "  {stage}: {source}; {calls} calls, {replayed} replayed, {tokens in} tokens in, {tokens out} out, "
        "${US dollars:.2f}; {outcomes}; tried again: {tried again}"
    )
    lines += [line.format(**row) for row in spending.outcome_rows(data)]
    if vectors := Spent(data / "usage" / "spent.jsonl").rows.get((TASK, TASK)):
        lines.append(
            f"  {TASK}: {vectors['calls']} calls, {vectors['tokens_in']} tokens in, ${vectors['usd']:.2f}"
        )
    done = runs.open_finished(run)
    records = (done.load(schema) for schema in (schemas.Placement, schemas.Candidate))
    closed = retrieval.closed_gate(done.profile, *records, done.load_json("gates.json"))
    notes = filter(None, (closed, spending.not_recorded(data)))
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])
