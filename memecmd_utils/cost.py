"""What a profile lacks and will ask for before it runs (calls, tokens, money, hours), and what a run used."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pandas as pd

from memecmd_utils import dialogue, drawing, news, retrieval, runs, tables
from memecmd_utils.chats import load_dialogues
from memecmd_utils.embedders import embedder_of
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.library import find_candidates
from memecmd_utils.llm import gloss, local_model, spending
from memecmd_utils.llm.endpoint import INPUTS, OpenAIBackend
from memecmd_utils.runs import Role
from memecmd_utils.schemas import AnnotationReply, SummaryReply
from memecmd_utils.settings import Judge, Profile


class Tokens(NamedTuple):
    """Tokens of a request: read, read more for each turn of the chat in it, and written in answer."""

    read: float
    of_turn: float
    written: float


TOKENS = {
    "annotation": Tokens(1140, 0, 216),
    "scenario": Tokens(165, 0, 114),
    "utterance": Tokens(1180, 9.4, 13),
    "summary": Tokens(947, 16.5, 92),
    "choice": Tokens(1245, 0, 50),
    "rating": Tokens(248, 22.6, 54),
    "yes_no": Tokens(182, 6.3, 1),
    "gloss": Tokens(110, 30, 30),
    "embedding": Tokens(34 * INPUTS, 0, 0),
}
"""By task, without pictures: means over the example's own prompts and texts (200 memes, 846 turns, 799
summaries, 799 choices, 790 rated chats, 600 questions), counted by the tokenizer of gpt-4o, `o200k_base`;
in stages 02 to 04 by characters, as many a token as under earlier prompts. An annotation is one of a model
that sees and is asked for unsafe memes; a choice is one of 20 captions; a rating reads a transcript, and is
answered so much for each meme; vectors are those of `INPUTS` texts. A
gloss reads and writes so much for each text: an estimate from the texts of memes and summaries, no count."""
SCREENSHOT = (190, 62, 155)
"""Pixels of a screenshot's height: bars and times, and more for each turn and each meme (means likewise)."""
SHARED = 0.3
"""Part of a yes/no question that a local judge reads anew: its pair differs in the last line only."""


# --- what is missing ----------------------------------------------------------------------------------


def lacks(profile: Profile, templates: bool = False) -> list[str]:
    """All that a run lacks and what to do about it, each thing once; a replay needs its inputs alone.

    Nothing is loaded, fetched or asked. A stage names a missing folder or file itself before its first call;
    here stands what would be found out only after something was paid: keys, models, addresses, prices and
    weights.
    """
    missing = []

    @contextmanager
    def look(what: str = "") -> Iterator[None]:
        try:
            yield
        except MemecmdError as error:
            missing.append(f"{what}{error}")

    if not templates:
        with look("dialogues: "):
            load_dialogues(profile)
        with look("news: "):
            if profile.dialogue.news != "feeds":  # which stage 03 asks
                dialogue.plan(news.load_news(profile), [], profile)
    asked = runs.models_asked(profile, templates) if profile.models.mode != "recorded" else {}
    for (role, _), (llm, endpoint, local) in asked.items():
        with look():
            if llm == "local":
                local_model.check(local)
            elif role == "embedder":
                OpenAIBackend(endpoint, key=embedder_of(profile, "endpoint").key())
            else:
                OpenAIBackend(endpoint)
        if llm == "openai" and endpoint.model:
            with look():
                runs.check_price(endpoint, profile, reads_only=role == "embedder")
    return list(dict.fromkeys(missing))


def check(profile: Profile, templates: bool = False) -> None:
    """Raise `MemecmdError` where anything is missing for `make reproduce`, or for `make templates`."""
    if missing := lacks(profile, templates):
        head = [f"{len(missing)} things are missing:"] if len(missing) > 1 else []
        raise MemecmdError("\n- ".join(head + missing))


# --- before a run -------------------------------------------------------------------------------------


def estimate(profile: Profile, n_memes: int) -> list[dict[str, Any]]:
    """Estimate a run over `n_memes` memes: a row for each task of a stage.

    Calls by the profile's sizes, tokens by `TOKENS`, pictures by their size and what their endpoint counts
    for one. What is already recorded is not looked at.
    """
    by_kind, (own, _) = dialogue.planned(profile), load_dialogues(profile)
    turns = [n for of_kind in by_kind.values() for n in of_kind]
    n_dialogues, n_turns = len(turns) + len(own), sum(turns) / max(1, len(turns))
    places = sum(turns) - len(turns) + sum(len(d.turns) - 1 for d in own)
    n_summaries = sum(turns) - len(turns) + sum(len(d.turns) - 1 - len(d.summaries) for d in own)
    rows = [
        _row(profile, "02 annotation", "annotation", "annotator", n_memes, pictures=1),
        _row(profile, "03 scenarios", "scenario", "generator", 2 * len(by_kind["role"])),
        _row(profile, "03 utterance", "utterance", "generator", sum(turns), (n_turns - 1) / 2),
        _row(profile, "03 summary", "summary", "generator", n_summaries, n_turns / 2),
    ]
    if profile.models.gloss:
        texts = len(AnnotationReply.model_fields) + 1
        rows.append(_row(profile, "02 gloss", "gloss", "generator", n_memes, texts, answers=texts))
        lines, told = n_turns + 1, len(SummaryReply.model_fields) * max(0, n_turns - 1)
        calls = math.ceil(lines / gloss.TEXTS) + math.ceil(told / gloss.TEXTS)
        texts = (lines + told) / max(1, calls)
        rows.append(
            _row(profile, "03 gloss", "gloss", "generator", n_dialogues * calls, texts, answers=texts)
        )
    if ("embedder", 0) in runs.models_asked(profile):
        requests = (4 * n_memes + 3 * places) / INPUTS
        rows.append(_row(profile, "04 embedding", "embedding", "embedder", requests))
    if retrieval.RERANKED in profile.retrieval.strategies:  # a model that sees gets a sheet at each turn
        sheet = spending.pictures_worth(*drawing.sheet_size(profile.retrieval.rerank_k))
        rows.append(_row(profile, "04 choice", "choice", "chooser", places, pictures=sheet))
    for number, judge in enumerate(profile.evaluation.judges):
        rows.append(_judge_row(profile, number, judge, n_dialogues, n_memes, places / max(1, n_dialogues)))
    return rows


def _row(
    profile: Profile, stage: str, task: str, role: Role, calls: float, turns: float = 0, pictures: float = 0,
    number: int = 0, answers: float = 1,
) -> dict[str, Any]:  # fmt: skip
    """`calls` of a task about so many turns each, where the model sees also pictures, each with `answers`.

    Of `pictures` one is within 512 x 512 pixels (`spending.pictures_worth`). What this machine answers costs
    no money.
    """
    llm, endpoint, local_model = runs.model_of(profile, role, number)
    tokens, name = TOKENS[task], endpoint.model or "(no model named)"
    seen = pictures * spending.tokens_per_image(endpoint) if llm == "openai" and endpoint.vision else 0
    t_in = calls * (tokens.read + tokens.of_turn * turns + seen)
    t_out = calls * answers * tokens.written
    usd = endpoint.usd(t_in, t_out)
    apart = 60 / profile.models.max_rpm if profile.models.max_rpm else 0
    seconds = spending.reckoned_seconds(calls, t_in, t_out, False, profile.models.concurrency, apart)
    if llm == "authored":
        name, calls, t_in, t_out, usd, seconds = "authored text", 0, 0, 0, 0.0, 0.0
    elif llm == "local":
        name, usd, anew = local_model, 0.0, SHARED if task == "yes_no" else 1
        seconds = spending.reckoned_seconds(calls, anew * t_in, t_out, True, 1)
    row = {"stage": stage, "model": name, "calls": round(calls), "tokens_in": round(t_in)}
    return {**row, "tokens_out": round(t_out), "usd": usd, "hours": seconds / 3600}


def _screenshot(turns: float, memes: float) -> float:
    """How many pictures a screenshot counts as (`spending.pictures_worth`)."""
    bars, turn, meme = SCREENSHOT
    return spending.pictures_worth(drawing.WIDTH, bars + turn * turns + meme * memes)


def _judge_row(
    profile: Profile, number: int, judge: Judge, n_dialogues: int, n_memes: int, places: float
) -> dict[str, Any]:
    """The row of one judge; a dialogue has so many places."""
    given = profile.evaluation
    by_random, wanted = profile.retrieval.random_rate, profile.retrieval.wanted_rate
    rates = [by_random if strategy == "random" else wanted for strategy in profile.retrieval.strategies]
    stage, window = f"05 judge {number + 1} ({judge.kind})", min(10, places + 1)
    if judge.kind == "rating" and given.judge_unit != "meme":
        spans = [places + 1] if profile.dialogue.separate else tables.lengths(profile)
        calls, turns = len(rates) * n_dialogues * len(spans), sum(spans) / len(spans)
        rate = sum(rates) / len(rates) * places / (places + 1)
        pictures = sum(_screenshot(span, rate * span) for span in spans) / len(spans)
        answers = rate * turns if given.judge_unit == "dialogue" else 1
        return _row(profile, stage, "rating", "judge", calls, turns, pictures, number, answers)
    sampled = sum(min(rate * places, given.judge_sample or places) * n_dialogues for rate in rates)
    if judge.kind == "yes_no":
        checked = 3 * given.judge_checks  # three memes a turn
        held_out = 2 * min(n_memes, (sampled + checked) / 2) * given.judge_contexts
        calls = 5 * (sampled + checked + held_out)
        return _row(profile, stage, "yes_no", "judge", calls, window, number=number)
    return _row(profile, stage, "rating", "judge", sampled, window, _screenshot(window, 1), number)


def cost_text(profile: Profile) -> str:
    """The estimate of a profile. No call is made."""
    rows = estimate(profile, expected_memes(profile))
    notes = ["", "Estimate: tokens as on the example, nothing recorded yet. No call was made."]
    asked = [model.endpoint for model in runs.models_asked(profile).values() if model.llm == "openai"]
    for endpoint in asked:
        unknown = []
        if endpoint.usd_per_million_in is None:
            unknown.append("price (usd_per_million_in, usd_per_million_out)")
        if endpoint.vision and endpoint.tokens_per_image is None:
            unknown.append(
                f"tokens of a picture (tokens_per_image; it counts as {spending.TOKENS_PER_IMAGE} here; "
                "gpt-4o counts 255, gpt-4o-mini 8,500)"
            )
        if endpoint.model and unknown:
            notes.append(f"Not known of {endpoint.model}: {'; '.join(unknown)}.")
    table = pd.DataFrame(rows)
    usd, cap = table["usd"].sum(), profile.models.max_usd
    if cap is not None and usd > cap:
        notes.append(
            f"The total of ${usd:,.2f} is above max_usd={cap:g}, at which the run stops: raise max_usd, or "
            "lower n_dialogues, n_turns or max_memes."
        )
    table.loc[len(rows)] = {"stage": "total", "model": "", **table[table.columns[2:]].sum()}
    whole = dict.fromkeys(("calls", "tokens_in", "tokens_out"), "{:,.0f}".format)
    printed = table.to_string(index=False, float_format="{:,.4f}".format, formatters=whole)
    return "\n".join([printed, *dict.fromkeys(notes)])


def expected_memes(profile: Profile) -> int:
    """How many memes a run will have at the most: its pictures, up to its cap.

    Where a folder is still to be fetched the cap is expected.
    """
    sources, most = profile.library.sources, profile.library.max_memes
    here = [name for name in sources if name == "example" or paths.user_path(name).is_dir()]
    total = len(find_candidates(here))
    return min(total if len(here) == len(sources) else most or total, most or total)


# --- after a run --------------------------------------------------------------------------------------


def summary_text(run: str) -> str:
    """The closing lines of `make reproduce`."""
    done = runs.open_finished(run)
    data, folder = (path.relative_to(paths.root) for path in (done.folder, done.report))
    left_out = len(pd.read_csv(done.read("rejected.csv")))
    lines = [
        "",
        f"run {run}",
        f"  left out           {left_out} files: {data}/rejected.csv says why",
        f"  page to look at    {folder}/index.html",
        *([] if done.profile.paper_data else [f"  dataset            {data}/release/"]),
        f"  tables, figures    {folder}/tables/, {folder}/figures/",
        f"  executed notebooks {folder}/*.html",
    ]
    line = (
        "  {stage}: {source}; {calls} calls, {replayed} replayed, {tokens in} tokens in, {tokens out} out, "
        "${US dollars:.2f}; {outcomes}; tried again: {tried again}"
    )
    lines += [line.format(**row) for row in spending.outcome_rows(done.folder)]
    return "\n".join([*lines, done.not_recorded()])
