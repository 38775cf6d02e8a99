"""Made-up dialogues and annotations for the tests of the panel: enough of both for a gate with two halves."""

import made_up

from memecmd_utils.retrieval import placement, scoring

N_MEMES = 40


def talk(name: str, kind: str, unscored: tuple[int, ...] = ()):
    """A dialogue of 18 turns whose summaries all differ; those at the turns `unscored` are missing."""
    base = made_up.dialogue(name, tuple(f"{name} says {t}" for t in range(1, 19)))
    summaries = []
    for s in base.summaries:
        texts = {part: f"{name} {part} {s.turn}" for part in ("scenario", "emotion", "motivation")}
        if s.turn in unscored:
            texts = dict.fromkeys(texts, "") | {"unscored": "unusable: not JSON"}
        summaries.append(s.model_copy(update=texts))
    return base.model_copy(update={"kind": kind, "summaries": summaries})


ALL = tuple(range(2, 19))
DIALOGUES = [talk(f"news-{i}", "news") for i in range(3)] + [
    talk("role-0", "role", unscored=(2, 7, 18)),
    talk("role-1", "role"),
    talk("role-2", "role", unscored=ALL),
]
ANNOTATIONS = [
    made_up.annotation(f"m{i:02d}", **{part: f"meme {i} {part}" for part in scoring.MEME_SIDE})
    for i in range(N_MEMES)
]


def scored_with(dialogues=DIALOGUES, annotations=ANNOTATIONS, **changes):
    profile = made_up.profile(n_turns=18, **changes)
    index = placement.index_library(annotations, made_up.vectors, profile)
    return placement.score_dialogues(dialogues, index, made_up.vectors, profile), index, profile
