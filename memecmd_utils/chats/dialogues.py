"""Chats of one's own as the dialogues of a run: the key `dialogues` names their file (stage 03)."""

import re
from collections.abc import Sequence
from itertools import groupby

from memecmd_utils import authors, schemas
from memecmd_utils.chats import readers
from memecmd_utils.chats.readers import OWN, Released, counted
from memecmd_utils.chats.turns import Conversation, SpokenTurn, spoken_turns
from memecmd_utils.files import paths
from memecmd_utils.settings import Profile, ProfileError


def load_dialogues(profile: Profile) -> tuple[list[schemas.Dialogue], str]:
    """Dialogues of the file that the key `dialogues` names, at most `n_dialogues`, and what was read.

    It is any file that `make insert-memes` reads; without that key there are none. With `paper_data` the
    dialogues are those of the authors' release. Who speaks first is A;
    messages of one speaker in a row are one turn, joined with a space. A group among several chats is left
    out and counted. Raises `ChatError` for a file that cannot be read, and `ProfileError` where there is no
    chat of two, or summaries are missing that no model of the profile could write.
    """
    limit = profile.dialogue.n_dialogues
    limit = limit if isinstance(limit, int) else None
    if release := authors.of_profile(profile):
        dialogues = release.dialogues[:limit]
        return dialogues, f"{len(dialogues):,} dialogues of the authors' release"
    if profile.dialogue.dialogues is None:
        return [], ""
    path = paths.user_path(profile.dialogue.dialogues)
    export = readers.read(path)
    released, own = readers.released(export.content), []
    chats = [(chat, spoken_turns(chat)) for chat in export.chats]
    of_two = [(chat, turns) for chat, turns in chats if len(_speakers(turns)) == 2]
    others = [(chat.name, _speakers(turns)) for chat, turns in chats if len(_speakers(turns)) != 2]
    if others and (released or not of_two):
        name, there = others[0]
        shown = ", ".join(there[:4]) + (" ..." if len(there) > 4 else "")
        raise ProfileError(
            f"{path.name}: a dialogue has two speakers, and {name!r} has {len(there)}: {shown}"
        )
    for number, (chat, turns) in enumerate(of_two[:limit], start=1):
        if released:
            about = released[chat.messages[0].place[0]]
        else:
            name = re.sub(r"[^\w.-]+", "-", chat.name).strip("-")[:70]
            is_taken = name in ("", *(dialogue.dialogue_id for dialogue in own))
            dialogue_id = f"{name or 'chat'}-{number}" if is_taken else name
            about = Released.model_construct(dialogue_id=dialogue_id, title=chat.name, turns=[])
        own.append(_dialogue(chat, turns, about, profile))
    ids = [dialogue.dialogue_id for dialogue in own]
    wrong = [name for name in ids if not re.fullmatch(r"[\w.-]{1,80}", name) or ids.count(name) > 1]
    if wrong:
        raise ProfileError(
            f"{path.name}: dialogue_id {wrong[0]!r} must name one dialogue, in 1 to 80 letters, digits, '_', "
            "'.' and '-'"
        )
    missing = sum(len(dialogue.turns) - 1 - len(dialogue.summaries) for dialogue in own)
    if missing and profile.models.llm == "authored":
        raise ProfileError(
            f"{missing:,} turns in {path.name} have no summary, and profile {profile.name!r} has no model to "
            "write one: name a profile with a model, or add them in columns S, E and Psi (a release has "
            "`summaries` with turn, scenario, emotion and motivation)"
        )
    left_out = f"; left out: {counted(len(others), 'chat')} not of two speakers" if others else ""
    return own, export.taken + left_out


def _speakers(turns: Sequence[SpokenTurn]) -> list[str]:
    return list(dict.fromkeys(turn.speaker for turn in turns))


def _dialogue(
    chat: Conversation, spoken: Sequence[SpokenTurn], about: Released, profile: Profile
) -> schemas.Dialogue:
    """A chat of two as a dialogue; `about` says what its file tells beside the messages."""
    turns, summaries = [], []
    for turn, (_, group) in enumerate(groupby(spoken, key=lambda turn: turn.speaker), start=1):
        first, *more = group
        place = {"turn": turn, "speaker": schemas.speaker_of(turn), "profile": profile.name}
        source = about.turns[chat.messages[first.first].place[-1]].source if about.turns else OWN
        text = " ".join(part.text for part in (first, *more))
        turns.append(schemas.Turn(text=text, source=source, **place))
        if turn > 1 and first.summary is not None:
            summaries.append(schemas.Summary(**{"source": OWN} | first.summary.model_dump() | place))
    names, (first, second) = {"A": about.name_a or "A", "B": about.name_b or "B"}, _speakers(spoken)
    return schemas.Dialogue(
        dialogue_id=about.dialogue_id,
        kind=about.kind if about.kind in schemas.DIALOGUE_KINDS else "own",
        ref=about.dialogue_id,
        name_a=names.get(first, first),
        name_b=names.get(second, second),
        title=about.title or about.dialogue_id,
        turns=turns,
        summaries=summaries,
        complete=True,
        source=about.source or OWN,
        profile=profile.name,
    )
