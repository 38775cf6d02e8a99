"""Stage 05: every placed meme is rated by every judge, one that gives numbers from the chat's screenshot."""

from collections.abc import Mapping, Sequence

from PIL import Image

from memecmd_utils import drawing, statistics
from memecmd_utils.evaluation import judges
from memecmd_utils.evaluation.judges import Item, Judge
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Dialogue, Meme, Placement, Rating
from memecmd_utils.settings import Profile


def screenshot(
    run: Run,
    dialogue: Dialogue,
    placements: Sequence[Placement],
    strategy: str,
    memes: Mapping[str, Meme],
    n_turns: int | None = None,
) -> tuple[str, Image.Image]:
    """Draw a dialogue (or its first turns) with one strategy's memes: specification's hash and picture."""
    mine = {
        placed.turn: placed.meme_id
        for placed in placements
        if placed.strategy == strategy and placed.dialogue_id == dialogue.dialogue_id
    }
    spec = drawing.chat_from_dialogue(dialogue, mine, n_turns, run.profile.retrieval.meme_position)
    return drawing.spec_sha256(spec), drawing.draw_chat(spec, judges.meme_files(run, memes))


def rate(
    run: Run, placements: Sequence[Placement], dialogues: Mapping[str, Dialogue], memes: Mapping[str, Meme]
) -> list[Rating]:
    """Rate with every judge of the profile and save the ratings; a judge that was stopped early is named."""
    ratings: list[Rating] = []
    names: list[str] = []
    for number in range(len(run.profile.evaluation.judges)):
        with judges.open_judge(run, number, list(dialogues.values()), memes, names) as judge:
            by_meme = judge.kind == "yes_no" or run.profile.evaluation.judge_unit == "meme"
            chosen = to_judge(placements, run.profile) if by_meme else placements
            mine = rate_with(judge, chosen, dialogues, memes)
        unasked = sum(rating.unscored == judges.STOPPED for rating in mine)
        if unasked:
            print(f"{judge.name}: {judges.STOPPED}; {unasked} of its {len(mine)} ratings were not asked for")
        ratings += mine
        names.append(judge.name)
    run.save(ratings, Rating)  # what has no recorded answer is counted from there
    return ratings


def to_judge(placements: Sequence[Placement], profile: Profile) -> list[Placement]:
    """The placements that are judged: all, or `judge_sample` of each dialogue and strategy.

    Turns are drawn once for a dialogue, so strategies that share their turns keep sharing them. By hand the
    memes may be those of a run with more turns.
    """
    if profile.evaluation.judge_sample is None:
        return list(placements)
    groups: dict[tuple[str, str], list[Placement]] = {}
    for placed in placements:
        groups.setdefault((placed.dialogue_id, placed.strategy), []).append(placed)
    chosen: set[tuple[str, str, int]] = set()
    longest = max([profile.dialogue.n_turns, *(placed.turn for placed in placements)])
    for (name, strategy), group in groups.items():
        drawn = statistics.rng(profile.seed, "judge sample", name).permutation(longest - 1)
        rank = {int(turn) + 2: place for place, turn in enumerate(drawn)}
        first = sorted(group, key=lambda placed: rank[placed.turn])[: profile.evaluation.judge_sample]
        chosen |= {(name, strategy, placed.turn) for placed in first}
    return [p for p in placements if (p.dialogue_id, p.strategy, p.turn) in chosen]


def rate_with(
    judge: Judge,
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
) -> list[Rating]:
    """Ratings by one judge: about each place and meme, or about calls of one or more placed memes."""
    if judge.kind == "rating":
        return _by_call(judge, placements, dialogues, memes)
    # A pair of place and meme that several strategies share is asked about once.
    pairs = sorted({(p.dialogue_id, p.turn, p.meme_id) for p in placements})
    items = [Item(pair, dialogues[pair[0]], {pair[1]: memes[pair[2]]}, pair[1]) for pair in pairs]
    answers = judges.ask(items, judge)
    ratings = []
    for placed in placements:
        answer = answers[placed.dialogue_id, placed.turn, placed.meme_id]
        ratings.append(_rating(placed, judge, "meme", judge.profile.dialogue.n_turns, answer, 0))
    return ratings


def _by_call(
    judge: Judge,
    placements: Sequence[Placement],
    dialogues: Mapping[str, Dialogue],
    memes: Mapping[str, Meme],
) -> list[Rating]:
    """One call per dialogue, strategy and length (unit `dialogue`) or per placed meme (unit `meme`)."""
    unit = judge.profile.evaluation.judge_unit
    calls: list[tuple[list[Placement], int]] = []
    groups: dict[tuple[str, str], list[Placement]] = {}
    for placed in sorted(placements, key=lambda placed: placed.turn):
        groups.setdefault((placed.strategy, placed.dialogue_id), []).append(placed)
    for strategy in dict.fromkeys(placed.strategy for placed in placements):
        for name in dialogues:
            mine = groups.get((strategy, name), [])
            if unit == "meme":
                # Up to u_t: what comes later cannot make a meme fit, and the rating serves every length.
                calls += [([placed], placed.turn) for placed in mine]
            else:
                for n in judges.lengths(judge.profile.dialogue.n_turns):
                    calls.append(([placed for placed in mine if placed.turn <= n], n))
    calls = [(shown, n) for shown, n in calls if shown]
    items = [
        Item(number, dialogues[shown[0].dialogue_id], {p.turn: memes[p.meme_id] for p in shown}, n)
        for number, (shown, n) in enumerate(calls)
    ]
    answers = judges.ask(items, judge)
    return [
        _rating(placed, judge, unit, n, answers[number], place)
        for number, (shown, n) in enumerate(calls)
        for place, placed in enumerate(shown)
    ]


def _rating(
    placed: Placement, judge: Judge, unit: str, n_turns: int, answer: judges.Answer, place: int
) -> Rating:
    scores = {"unscored": answer} if isinstance(answer, str) else answer[place]
    return Rating(
        dialogue_id=placed.dialogue_id,
        turn=placed.turn,
        strategy=placed.strategy,
        meme_id=placed.meme_id,
        judge=judge.name,
        judge_unit=unit,
        n_turns=n_turns,
        source=judge.chat.backend.source,
        profile=judge.profile.name,
        seed=judge.profile.seed,
        **scores,
    )
