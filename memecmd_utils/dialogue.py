"""Stage 03: dialogues of two agents, started from news or from role pairs (2507.00891, Eq. 3-17).

Two agents take turns under prompts of four phases and rules that code checks; a third sums up every turn.
One's own dialogues come from a file instead; then only the third agent is asked, for what the file lacks.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain, cycle, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from memecmd_utils import files, schemas, statistics
from memecmd_utils.files import StageOutputError, paths
from memecmd_utils.llm import authored, prompts, replies
from memecmd_utils.llm.chat import Bar, Chat, each, progress
from memecmd_utils.llm.types import Answer, BrokenRules, Reply, Request, Sampling, UnusableReply
from memecmd_utils.runs import Run
from memecmd_utils.settings import Phases, Profile, ProfileError

# --- Cold starts: a news item or a role pair becomes the context that a dialogue begins from (Eq. 3)

TOPIC_NAMES = dict(zip(schemas.TOPICS, ("体育", "娱乐", "科技", "游戏", "教育", "健康"), strict=True))
RELATION_NAMES = {
    "intimacy": {"stranger": "陌生人", "acquaintance": "认识", "close": "亲近", "very_close": "非常亲密"},
    "dominance": {
        "equal": "平等", "mutual_dependence": "互相依靠", "a_dominant": "{a}说了算",
        "b_dominant": "{b}说了算",
    },
    "age_relation": {"same_age": "同龄", "a_older": "{a}年长", "b_older": "{b}年长", "generational": "隔代"},
    "primary_scenario": {
        "work": "工作", "study": "学习", "life": "生活", "entertainment": "娱乐", "special": "特殊场合",
    },
}  # fmt: skip
"""The four dimensions of a role pair in the words of the prompts; `a` and `b` are its roles."""
FACT_CHARS = 80
"""Characters of a sentence of a news item: its short context keeps the first two."""
Background = Literal["context", "brief", "persona", ""]
BACKGROUNDS: tuple[Background, ...] = ("context", "brief", "persona")
"""What a speaker may be told of the start, the longest first: fields of a `ColdStart`, and prompt files."""
Encode = Callable[[list[str]], np.ndarray]
"""Texts to unit vectors, [texts, dim]."""


def plan(
    items: Sequence[schemas.NewsItem], pairs: Sequence[schemas.RolePair], profile: Profile
) -> tuple[list[schemas.NewsItem], list[tuple[schemas.RolePair, int]]]:
    """What the dialogues of a run start from: news items, and role pairs, each with its number of scenarios.

    These are at most `n_dialogues` cold starts, taken from both kinds in turn, and news in turn from each
    topic, so that a small run is as balanced as a large one. `ProfileError` where there are too few news.
    """
    n_news, n_role = map(len, planned(profile).values())
    by_topic = ([item for item in items if item.topic == topic] for topic in schemas.TOPICS)
    ordered = [item for item in chain(*zip_longest(*by_topic)) if item]
    if n_news > len(ordered):
        raise ProfileError(
            f"the run needs {n_news} news items, and there are {len(ordered)}: lower n_news or n_dialogues, "
            "or collect more (`make collect-news` on later days, from more feeds)"
        )
    most = profile.dialogue.scenarios_per_pair
    scenarios = [(pair, min(most, n_role - done * most)) for done, pair in enumerate(pairs)]
    return ordered[:n_news], [(pair, n) for pair, n in scenarios if n > 0]


def planned(profile: Profile) -> dict[schemas.Kind, list[int]]:
    """How many turns each dialogue gets that a profile plans, those from news and those from roles.

    Separate lengths are dealt in turn within a kind, or, where `n_dialogues` says how many there are of each,
    one length after another.
    """
    knobs = profile.dialogue
    lengths, most = knobs.separate or [knobs.longest], knobs.n_dialogues
    n_news, n_role = knobs.n_news, knobs.n_role_pairs * knobs.scenarios_per_pair
    if isinstance(most, int):
        # In turn, news first; where one kind is used up, the other goes on.
        n_news = min(n_news, max((most + 1) // 2, most - n_role))
        n_role = min(n_role, most - n_news)
    dealt: dict[schemas.Kind, list[int]] = {}
    for kind, n in (("news", n_news), ("role", n_role)):
        if isinstance(most, dict):
            dealt[kind] = np.repeat(lengths, most.get(kind, 0)).tolist()[:n]
        else:
            dealt[kind] = [lengths[number % len(lengths)] for number in range(n)]
    return dealt


def from_news(item: schemas.NewsItem) -> schemas.ColdStart:
    """f_news (Eq. 7): topic, title and text of a news item become a dialogue's context."""
    sentences = re.findall(r"[^。！？!?\s][^。！？!?\n]*[。！？!?]*[”’」』]?", item.text)
    told = {"topic": TOPIC_NAMES[item.topic], "title": item.title, "text": item.text}
    told["facts"] = [prompts.one_line(sentence, FACT_CHARS) for sentence in sentences[:2]]
    named = {"ref": item.news_id, "title": item.title, "source": item.source}
    return _cold_start("news", ("甲", "乙"), (told, told), **named)


def from_scenario(scenario: schemas.Scenario, pair: schemas.RolePair) -> schemas.ColdStart:
    """f_role (Eq. 9): both roles and the scene become a dialogue's context."""
    scene = scenario.model_dump(include={"scenario", "event", "relationship"})
    fields = ("background", "personality", "state")
    a, b = ({field: getattr(scenario, f"{field}_{who}") for field in fields} for who in "ab")
    told = [{**scene, **me, "other_background": other["background"]} for me, other in ((a, b), (b, a))]
    named = {"ref": scenario.scenario_id, "title": scenario.scenario, "source": scenario.source}
    return _cold_start("role", (pair.role_a, pair.role_b), told, **named)


def from_own(dialogue: schemas.Dialogue) -> schemas.ColdStart:
    """The start of one's own dialogue: nothing is known of it but its title."""
    about = dialogue.model_dump(exclude={"turns", "summaries", "complete", "gloss"})
    told = dict.fromkeys(("A", "B"), dialogue.title)
    return schemas.ColdStart(**dict.fromkeys(BACKGROUNDS, told), **about)


def _cold_start(
    kind: schemas.Kind, names: tuple[str, str], told: Sequence[dict[str, Any]], **about: str
) -> schemas.ColdStart:
    """The start of a dialogue; a speaker's prompts are rendered with what it is `told`, A's first."""
    speakers = [*zip("AB", names, names[::-1], told, strict=True)]
    backgrounds = {
        name: {
            who: prompts.render(f"{name}_{kind}", me=me, other=other, **values)
            for who, me, other, values in speakers
        }
        for name in BACKGROUNDS
    }
    sha256 = prompts.prompt_sha256(f"context_{kind}")
    about |= {"dialogue_id": f"{kind}-{about['ref']}", "name_a": names[0], "name_b": names[1]}
    return schemas.ColdStart(kind=kind, prompt_sha256=sha256, **backgrounds, **about)


async def role_cold_starts(
    pairs: Sequence[tuple[schemas.RolePair, int]], chat: Chat, profile: Profile, encode: Encode
) -> tuple[list[schemas.Scenario], list[schemas.ColdStart], list[schemas.Unfinished]]:
    """Have an agent write so many scenarios of each pair, pairs side by side, and make cold starts of them.

    Returns scenarios, their cold starts, and scenarios that came to nothing.
    """
    written = await chat.side_by_side(write_scenarios(pair, n, chat, profile, encode) for pair, n in pairs)
    by_id = {pair.pair_id: pair for pair, _ in pairs}
    scenarios = [scenario for done, _ in written for scenario in done]
    starts = [from_scenario(scenario, by_id[scenario.pair_id]) for scenario in scenarios]
    return scenarios, starts, [lost for _, failed in written for lost in failed]


async def write_scenarios(
    pair: schemas.RolePair, n: int, chat: Chat, profile: Profile, encode: Encode
) -> tuple[list[schemas.Scenario], list[schemas.Unfinished]]:
    """Have an agent write `n` scenarios of a pair, each with its details; also those that came to nothing.

    One whose cosine with an earlier one of the pair is above `scenario_similarity_cap` cannot be used.
    """
    done, failed, source = [], [], chat.backend.source
    made_by = {"profile": profile.name, "source": source}
    made_by["prompt_sha256"] = authored.prompt_sha256(source, "scenario")
    for name in (f"{pair.pair_id}-{number}" for number in range(1, n + 1)):
        seed = int(statistics.rng(profile.seed, "scenario", name).integers(2**31))
        earlier = [scenario.scenario for scenario in done]
        request = _scenario_request("scenario", name, seed, pair, earlier=earlier)
        cap = profile.dialogue.scenario_similarity_cap
        answer = await chat.ask(request, partial(read_scene, earlier=earlier, encode=encode, cap=cap))
        texts = answer.value
        if texts is not None:
            request = _scenario_request("scenario_details", f"{name}/details", seed, pair, **texts)
            answer = await chat.ask(request, lambda reply: replies.structured(reply, schemas.ScenarioDetails))
        if answer.value is None:
            reason = " ".join(f"no scenario: {answer.outcome}: {answer.reason}".split())
            lost = {"dialogue_id": f"role-{name}", "turn": 1, "reason": reason, "turns": []}
            failed.append(schemas.Unfinished(**lost, seed=seed, **made_by))
            continue
        texts |= answer.value.model_dump()
        ids = {"scenario_id": name, "pair_id": pair.pair_id, "gloss": _gloss(source, name)}
        done.append(schemas.Scenario(**ids, **texts, seed=seed, **made_by))
    return done, failed


def read_scene(reply: Reply, earlier: Sequence[str], encode: Encode, cap: float) -> dict[str, Any]:
    """The scenario in a reply, with its cosine to the nearest `earlier` one; one above `cap` is unusable."""
    text = replies.structured(reply, schemas.ScenarioReply).scenario
    if not earlier:
        return {"scenario": text}
    vectors = encode([*earlier, text])
    cosines = vectors[:-1] @ vectors[-1]
    nearest = int(cosines.argmax())
    if cosines[nearest] > cap:
        raise UnusableReply(prompts.render("scenario_again", nearest=earlier[nearest]))
    return {"scenario": text, "similarity": float(cosines[nearest])}


def _scenario_request(
    prompt: Literal["scenario", "scenario_details"],
    subject: str,
    seed: int,
    pair: schemas.RolePair,
    **values: object,
) -> Request:
    roles = {"a": pair.role_a, "b": pair.role_b}
    relation = {
        dimension: names[getattr(pair, dimension)].format(**roles)
        for dimension, names in RELATION_NAMES.items()
    }
    text = prompts.render(prompt, pair=pair, **relation, **values)
    return Request(
        task="scenario",
        subject=subject,
        messages=prompts.messages(text),
        sampling=Sampling(temperature=0.9, max_tokens=500),
        seed=seed,
        reply_schema=schemas.ScenarioReply if prompt == "scenario" else schemas.ScenarioDetails,
    )


def _gloss(source: str, subject: str) -> str:
    """English of an authored text; nobody has written one of any other."""
    return authored.glosses().get(subject, "") if source == "authored" else ""


# --- What a speaker is asked: four phases (Eq. 11-14), and the summary agent (Eq. 16)

Task = Literal["utterance", "summary"]
SHARED_PROMPTS = ("chat_system", "chat_examples")
"""Prompts that stand before every request of a dialogue."""
HISTORY_TURNS = 17
"""Turns before t that a model reads: all in the dialogues of 18, the last ones of a longer chat."""


class Context(NamedTuple):
    """A place in a chat as models read it: the turns before it, and who speaks next."""

    chat: str
    turn: int
    lines: Sequence[tuple[str, str]]
    """Names and texts, oldest first: all of them, or the last `HISTORY_TURNS` at least."""
    next_speaker: str
    relation: str = ""
    """What the speakers are to each other, where that is known."""

    @classmethod
    def before(cls, chat: str, lines: Sequence[tuple[str, str]], turn: int, relation: str = "") -> "Context":
        """The place of turn `turn` in a chat of `lines`."""
        earlier = lines[max(0, turn - 1 - HISTORY_TURNS) : turn - 1]
        return cls(chat, turn, earlier, lines[turn - 1][0], relation)


Phase = Literal["initial", "early", "middle", "late"]


class Ladder(NamedTuple):
    """What a speaker is told of the start in each phase, and how the middle phase speaks of other topics."""

    told: dict[Phase, Background]
    opening: Literal["offered", "asked", ""]


_SHRINKING: dict[Phase, Background] = {
    "initial": "context", "early": "brief", "middle": "brief", "late": "persona",
}  # fmt: skip
_WHOLE: dict[Phase, Background] = dict.fromkeys(_SHRINKING, "context")
LADDERS: dict[Phases, Ladder] = {
    "ours": Ladder(_SHRINKING, "offered"),
    "paper": Ladder({**_SHRINKING, "late": ""}, "asked"),  # Eq. 11-14
    "full": Ladder(_WHOLE, "offered"),
    "no_opening": Ladder(_SHRINKING, ""),
}
"""By the setting `phases`. With `ours` a speaker keeps its persona, and may leave the topic; the paper takes
the one away and asks for the other."""


def phase_of(turn: int) -> Phase:
    """Phase of a turn: t = 1, 2 <= t < 7, 7 <= t < 13, t >= 13 (Eq. 11-14)."""
    if turn < 7:
        return "initial" if turn == 1 else "early"
    return "middle" if turn < 13 else "late"


def lines_of(start: schemas.ColdStart | schemas.Dialogue, turns: Sequence[str]) -> list[tuple[str, str]]:
    """u_{1:t-1}: names and texts of the dialogue so far."""
    names = {"A": start.name_a, "B": start.name_b}
    return [(names[schemas.speaker_of(turn)], text) for turn, text in enumerate(turns, start=1)]


def history_text(lines: Sequence[tuple[str, str]]) -> str:
    """Names and texts as the prompts have them: one line a turn."""
    return "\n".join(f"{name}：{text}" for name, text in lines)


def _request(task: Task, dialogue_id: str, turn: int, text: str, profile: Profile, **more: Any) -> Request:
    # What all agents share comes first, so that an endpoint can reuse the growing prefix. The examples are
    # messages of their own: a small model takes one inside the prompt for a part of the chat.
    system, examples = prompts.render("chat_system"), prompts.render_examples("chat_examples")
    return Request(
        task=task,
        subject=f"{dialogue_id}/{turn}",
        messages=prompts.messages(text, system, examples),
        seed=_seed(task, dialogue_id, turn, profile),
        **more,
    )


def _seed(task: Task, dialogue_id: str, turn: int, profile: Profile) -> int:
    return int(statistics.rng(profile.seed, task, dialogue_id, turn).integers(2**31))


def _against_loops(profile: Profile, allowed_length: int) -> dict[str, float]:
    """Sampling of small models, which loop and turn polite: cut the tail, make repeating costly (DRY)."""
    if profile.models.llm != "local":
        return {}
    return {"min_p": 0.05, "dry_multiplier": 1.0, "dry_base": 1.75, "dry_allowed_length": allowed_length}


def utterance_request(start: schemas.ColdStart, earlier: Sequence[str], profile: Profile) -> Request:
    """P_t of Eq. 11-14 for the turn after `earlier`."""
    turn, max_chars = len(earlier) + 1, profile.dialogue.max_utterance_chars
    names = (start.name_a, start.name_b)
    speaker, other = names if schemas.speaker_of(turn) == "A" else names[::-1]
    phase, ladder = phase_of(turn), LADDERS[profile.dialogue.phases]
    told = ladder.told[phase]
    text = prompts.render(
        f"utterance_{phase}",
        history=history_text(lines_of(start, earlier)),
        told=told,
        background=getattr(start, told)[schemas.speaker_of(turn)] if told else "",
        opening=ladder.opening,
        speaker=speaker,
        # A small model answers what stands last; the history alone leaves it to guess whose turn it is.
        other=other,
        last=earlier[-1] if earlier else "",
        max_chars=max_chars,
    )
    extra = _against_loops(profile, allowed_length=2)
    max_tokens = max(60, 2 * max_chars + 10)  # a character may take two tokens
    sampling = Sampling(temperature=0.9, presence_penalty=0.6, max_tokens=max_tokens, extra=extra)
    return _request("utterance", start.dialogue_id, turn, text, profile, sampling=sampling)


def summary_request(context: Context, profile: Profile) -> Request:
    """Request of the summary agent for turn t, seen from the side of who speaks at t (Eq. 16).

    The last `HISTORY_TURNS` are read. Names may come from strangers, so they stand inside fences, cut and in
    one line.
    """
    lines = context.lines[-HISTORY_TURNS:]
    history = history_text([(prompts.one_line(name, prompts.NAME_CHARS), text) for name, text in lines])
    speaker = prompts.one_line(context.next_speaker, prompts.NAME_CHARS)
    text = prompts.render("summary", speaker=speaker, history=history)
    extra = _against_loops(profile, allowed_length=6)  # names of six tokens may recur
    sampling = Sampling(temperature=0.3, max_tokens=300, extra=extra)
    how = {"sampling": sampling, "reply_schema": schemas.SummaryReply}
    return _request("summary", context.chat, context.turn, text, profile, **how)


# --- The dialogues (Eq. 4-6, 15, 17)


async def answer_turn(
    start: schemas.ColdStart, earlier: Sequence[str], chat: Chat, profile: Profile
) -> Answer[str]:
    """u_t = A_t(P_t) (Eq. 15), asked for again while it breaks a rule; no `value` where there is no text."""
    names = (start.name_a, start.name_b)
    authored = chat.backend.source == "authored"  # its text stands as it was written, also in quotes

    def parse(reply: Reply) -> str:
        text = reply.text if authored else replies.utterance_text(reply, names)
        if not bare(text):
            raise UnusableReply("empty reply")
        if broken := violations(text, earlier, profile.dialogue.max_utterance_chars, names):
            raise BrokenRules(text, broken)
        return text

    return await chat.ask(utterance_request(start, earlier, profile), parse)


async def answer_summary(context: Context, chat: Chat, profile: Profile) -> Answer[schemas.SummaryReply]:
    """The model's answer to `summary_request`."""
    request = summary_request(context, profile)
    return await chat.ask(request, lambda reply: replies.structured(reply, schemas.SummaryReply))


async def summarise(
    start: schemas.ColdStart | schemas.Dialogue, earlier: Sequence[str], chat: Chat, profile: Profile
) -> schemas.Summary:
    """(S, E, Psi) for the turn after `earlier` (Eq. 16); `unscored` says why there is none."""
    turn = len(earlier) + 1
    speaker = {"A": start.name_a, "B": start.name_b}[schemas.speaker_of(turn)]
    context = Context(start.dialogue_id, turn, lines_of(start, earlier), speaker)
    answer = await answer_summary(context, chat, profile)
    if answer.value is not None:
        texts = answer.value.model_dump()
    else:
        texts = dict.fromkeys(schemas.SummaryReply.model_fields, "")
        texts["unscored"] = f"{answer.outcome}: {answer.reason}"
    about = _about("summary", "summary", start.dialogue_id, turn, answer, profile)
    return schemas.Summary(**texts, **about)


def _about(
    task: Task, prompt: str, dialogue_id: str, turn: int, answer: Answer, profile: Profile
) -> dict[str, Any]:
    """Turn, speaker and provenance of what was said."""
    return {
        "turn": turn,
        "speaker": schemas.speaker_of(turn),
        "profile": profile.name,
        "seed": _seed(task, dialogue_id, turn, profile),
        "source": answer.source,
        "prompt_sha256": authored.prompt_sha256(answer.source, *SHARED_PROMPTS, prompt),
    }


async def talk(
    start: schemas.ColdStart, chat: Chat, profile: Profile, bar: Bar, n_turns: int
) -> schemas.Dialogue | schemas.Unfinished:
    """Hold one dialogue u_1 ... u_T of `n_turns` (Eq. 4, 5), without summaries: no turn reads any."""
    turns: list[schemas.Turn] = []
    made_by = {"profile": profile.name, "seed": profile.seed, "dialogue_id": start.dialogue_id}
    for turn in range(1, n_turns + 1):
        answer = await answer_turn(start, [said.text for said in turns], chat, profile)
        if answer.value is None:
            bar(n_turns - len(turns))
            reason = f"{answer.outcome} after {answer.attempts} attempts: {answer.reason}"
            source = chat.backend.source
            return schemas.Unfinished(turn=turn, reason=reason, turns=turns, source=source, **made_by)
        gloss = _gloss(answer.source, f"{start.dialogue_id}/{turn}")
        prompt = f"utterance_{phase_of(turn)}"
        about = _about("utterance", prompt, start.dialogue_id, turn, answer, profile)
        turns.append(schemas.Turn(text=answer.value, gloss=gloss, violations=answer.violations, **about))
        bar()
    about = start.model_dump(include={"kind", "ref", "title", "name_a", "name_b"})
    source = turns[0].source
    about["prompt_sha256"] = authored.prompt_sha256(source, f"context_{start.kind}")
    return schemas.Dialogue(turns=turns, summaries=[], complete=True, source=source, **about, **made_by)


async def with_summaries(
    dialogues: Sequence[schemas.Dialogue], chat: Chat, profile: Profile
) -> list[schemas.Dialogue]:
    """The dialogues with the summaries that they lack (Eq. 16); one's own may bring some or all."""
    known = {(d.dialogue_id, summary.turn): summary for d in dialogues for summary in d.summaries}
    turns = {d.dialogue_id: range(2, len(d.turns) + 1) for d in dialogues}
    lacking = [(d, t) for d in dialogues for t in turns[d.dialogue_id] if (d.dialogue_id, t) not in known]

    async def ask(place: tuple[schemas.Dialogue, int]) -> None:
        d, turn = place
        earlier = [said.text for said in d.turns[: turn - 1]]
        known[d.dialogue_id, turn] = await summarise(d, earlier, chat, profile)

    await each(chat, lacking, ask, "summaries", "summary")
    summaries = {name: [known[name, turn] for turn in of] for name, of in turns.items()}
    return [d.model_copy(update={"summaries": summaries[d.dialogue_id]}) for d in dialogues]


async def generate(
    starts: Sequence[schemas.ColdStart | schemas.Dialogue],
    chat: Chat,
    profile: Profile,
    folder: Path,
    unfinished: Sequence[schemas.Unfinished] = (),
) -> tuple[list[schemas.Dialogue], list[schemas.Unfinished]]:
    """Hold all dialogues side by side, then have them summed up, and write them (Eq. 17).

    `dialogues.jsonl` takes the complete ones in the order of `starts`, `unfinished.jsonl` those that stopped,
    after `unfinished`, which never began; both are returned. One's own dialogue stands among the starts as it
    was read, and only the summaries that it lacks are asked for. Without any complete dialogue or any usable
    summary raises `StageOutputError`.
    """
    dialogues = [start for start in starts if isinstance(start, schemas.Dialogue)]
    lengths = {kind: cycle(turns) for kind, turns in planned(profile).items()}
    planned_talks = [(s, next(lengths[s.kind])) for s in starts if isinstance(s, schemas.ColdStart)]
    with progress(chat, sum(n for _, n in planned_talks), "turns", "turn") as bar:
        held = await chat.side_by_side(talk(start, chat, profile, bar, n) for start, n in planned_talks)
    dialogues += [made for made in held if isinstance(made, schemas.Dialogue)]
    stopped = [*unfinished, *(made for made in held if isinstance(made, schemas.Unfinished))]
    if stopped and not dialogues:
        raise nobody_talked(stopped)
    dialogues = await with_summaries(dialogues, chat, profile)
    summaries = [summary for made in dialogues for summary in made.summaries]
    if summaries and all(summary.unscored for summary in summaries):
        raise StageOutputError(f"no turn has a usable summary; the first: {summaries[0].unscored}")
    files.write_jsonl(folder / "dialogues.jsonl", dialogues)
    files.write_jsonl(folder / "unfinished.jsonl", stopped)
    return dialogues, stopped


def nobody_talked(stopped: Sequence[schemas.Unfinished]) -> StageOutputError:
    """What is raised where no dialogue began, or none came to its end."""
    first = f"{stopped[0].dialogue_id}, turn {stopped[0].turn}: {stopped[0].reason}"
    return StageOutputError(f"no dialogue came to its end; the first: {first}")


# --- Rules that every utterance must keep (Section 4.1.3)

STARTER_WINDOW = 6
"""Turns back in which a sentence starter must not come again; beyond it two people may both say 那你."""
REPEATED_CHARS = 6
"""Characters in a row from an earlier turn that count as saying it again; a name or an echo is shorter."""
PUNCTUATION = re.compile(r"[\s，。！？、；：…—~～·,.!?;:\"'“”‘’（）()《》【】\-]+")
ROLES = (
    r"用户|助手|助理|人类|机器人|系统|旁白|客服|AI|User|Assistant|Human|Bot|System|Narrator"
    r"|(?:角色|说话人|发言人)\w?"
)


def violations(text: str, earlier: Sequence[str], max_chars: int, names: Sequence[str] = ()) -> list[str]:
    """What is wrong with an utterance after `earlier` ones, in Chinese as it is told to the model.

    Of several attempts the one that breaks the fewest rules is kept.
    """
    broken = []
    if len(text) > max_chars:
        broken.append(f"太长（{len(text)}字，最多{max_chars}字）")
    if prefix := name_prefix(text, names):
        broken.append(f"写了人名前缀（{prefix}）")
    for name, pattern in forbidden_forms().items():
        if match := pattern.search(text):
            broken.append(f"{name}（{match[0].strip('，,。！! ')}）")
    begins = bare(text)[:2]
    if begins in {bare(other)[:2] for other in earlier[-STARTER_WINDOW:]}:
        broken.append(f"开头“{begins}”和前面的话一样")
    if bare(text) in map(bare, earlier):
        broken.append("重复了前面说过的话")
    elif run := shared_run(text, [*earlier, *example_lines()]):
        broken.append(f"“{run}”前面已经说过")
    return broken


def bare(text: str) -> str:
    """Text without punctuation and blanks."""
    return PUNCTUATION.sub("", text)


def shared_run(text: str, others: Sequence[str]) -> str | None:
    """The first `REPEATED_CHARS` characters in a row that `text` has from one of `others`, or None."""
    words, known = bare(text), [bare(other) for other in others]
    parts = (words[i : i + REPEATED_CHARS] for i in range(len(words) - REPEATED_CHARS + 1))
    return next((part for part in parts if any(part in other for other in known)), None)


@cache
def example_lines() -> tuple[str, ...]:
    """What is said in the worked examples before every request: small models lift it."""
    texts = [text for _, text in prompts.render_examples("chat_examples")]
    lines = [line for text in texts for line in re.findall(r"^\w{1,4}：(.+)$", text, re.MULTILINE)]
    return (*lines, *(text for text in texts if "\n" not in text and not text.startswith("{")))


@cache
def forbidden_forms() -> dict[str, re.Pattern[str]]:
    """The pattern of each rule of `utterance_rules.yaml`, by the name that the model is told."""
    table = yaml.safe_load((paths.prompts / "utterance_rules.yaml").read_text(encoding="utf-8"))

    def filled(line: str) -> str:
        return re.sub(r"\{([A-Z_]+)\}", lambda name: table["words"][name[1]], line)

    return {rule: re.compile("|".join(map(filled, lines))) for rule, lines in table["rules"].items()}


def name_prefix(text: str, names: Sequence[str] = ()) -> str | None:
    """The name before a speaker's words, as in 甲： or 【外婆】, also before a second speaker's; or None."""
    known = "|".join([*map(re.escape, filter(None, names)), "[AB甲乙丙丁]"])
    end = r"[\s\]］】)）*＊]*(?:[(（][^()（）]{1,10}[)）])?"
    match = re.search(
        rf"(?:^|(?<=[。！？!?…~\s]))[\s\[［【(（*＊#]*(?:(?:{known}){end}(?:说|道|回复?|问|答)?|(?:{ROLES}){end})\s*[：:]"
        rf"|^[\[［【(（](?:{known}|{ROLES})[\]］】)）]",
        text,
        re.IGNORECASE,
    )
    return match and match.group().strip()


def english_titles(run: Run, dialogues: Sequence[schemas.Dialogue]) -> dict[str, str]:
    """English titles by dialogue id: those of `gloss`, else those of the example's texts."""
    known: dict[tuple[str, str], str] = {}
    if run.profile.dialogue.news == "example":
        known = {("news", item.news_id): item.gloss for item in authored.load_news()}
    if any(dialogue.kind == "role" for dialogue in dialogues):
        known |= {("role", row.scenario_id): row.gloss for row in run.load(schemas.Scenario)}
    return {d.dialogue_id: d.gloss or known.get((d.kind, d.ref), "") for d in dialogues}
