"""What is tracked of run `live` in `data/live`: chats, memes, choices, a judge's scores.

python .ci/live.py track      # writes it
python .ci/live.py compare    # says which files differ from what the run gives
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from memecmd_utils import dialogue, files, grades, llm, runs, schemas, statistics
from memecmd_utils.files import paths
from memecmd_utils.retrieval import RERANKED
from memecmd_utils.studies import live

MADE = (
    "annotations.jsonl", "dialogues.jsonl", "placements.jsonl", "candidates.jsonl", "gates.json",
    "choices.jsonl", "scores.csv",
)  # fmt: skip
KEPT = 3
"""Candidates of a turn that are tracked, as many as the page shows."""


def track(run: runs.Run, folder: Path) -> None:
    """Write the files of a finished run; memes bear the names of their drawings."""
    name_of = {meme.meme_id: Path(meme.origin).stem for meme in run.load(schemas.Meme)}

    def ours(record: schemas.Record) -> schemas.Record:
        changes = {"dialogue_id": live.PREFIX + record.dialogue_id}
        if meme := getattr(record, "meme_id", ""):
            changes["meme_id"] = name_of[meme]
        if hasattr(record, "options"):
            changes["options"] = [name_of[meme] for meme in record.options]
        if hasattr(record, "fold"):
            changes["fold"] = live.PREFIX + record.fold
        return record.model_copy(update=changes)

    dialogues = [*map(ours, run.load(schemas.Dialogue))]
    placements = [*map(ours, run.load(schemas.Placement))]
    candidates = [*map(ours, run.load(schemas.Candidate))]
    annotations = [a.model_copy(update={"meme_id": name_of[a.meme_id]}) for a in run.load(schemas.Annotation)]
    files.write_jsonl(folder / "annotations.jsonl", sorted(annotations, key=lambda a: a.meme_id))
    files.write_jsonl(folder / "dialogues.jsonl", dialogues)
    others = at_the_same_turns(placements, candidates, sorted(name_of.values()), run.profile.seed)
    files.write_jsonl(folder / "placements.jsonl", [*placements, *others])
    kept = [candidate for candidate in candidates if candidate.rank <= KEPT]
    files.write_jsonl(folder / "candidates.jsonl", kept)
    files.write_jsonl(folder / "choices.jsonl", map(ours, run.load(schemas.Choice)))
    gates = {live.PREFIX + half: row for half, row in run.load_json("gates.json").items()}
    files.write_json(folder / "gates.json", gates)
    rated = [
        (r.dialogue_id, r.turn, r.meme_id, r.strategy, r.overall)
        for r in map(ours, run.load(schemas.Rating))
        if r.n_turns == run.profile.dialogue.longest
    ]
    files.write_frame(
        folder / "scores.csv", pd.DataFrame(rated, columns=["dialogue", "turn", "meme", "strategy", "score"])
    )


def at_the_same_turns(
    placements: Sequence[schemas.Placement],
    candidates: Sequence[schemas.Candidate],
    memes: Sequence[str],
    seed: int,
) -> Iterator[schemas.Placement]:
    """What Greedy, popular memes and chance would send at the turns that the reader chose."""
    first = {(c.dialogue_id, c.turn): c.meme_id for c in candidates if c.rank == 1}
    liked: Counter[str] = Counter()
    for of_turn in grades.load_truth(paths.example).means.values():
        liked.update(of_turn)
    popular = sorted(liked, key=lambda meme: (-liked[meme], meme))
    had: Counter[str] = Counter()
    for p in placements:
        if p.strategy != RERANKED:
            continue
        drawn = statistics.rng(seed, "random at the same turns", p.dialogue_id, p.turn).integers(len(memes))
        others = {
            live.THERE: first[p.dialogue_id, p.turn],
            "popular": popular[had[p.dialogue_id]],
            "random": memes[drawn],
        }
        had[p.dialogue_id] += 1
        for who, meme in others.items():
            yield p.model_copy(
                update={"strategy": who, "meme_id": meme, "rank": None, "score": None, "reason": ""}
            )


def held_again(run: runs.Run, scratch: Path) -> Iterator[str]:
    """Turns of the other ladders that their recordings do not give once more; what is counted goes apart."""
    starts = {live.PREFIX + start.dialogue_id: start for start in run.load(schemas.ColdStart)}
    for phases, dialogues in live.ladders().items():
        profile = run.profile.replace(phases=phases)
        asking = replace(run, profile=profile, folder=scratch, counted={}, used={})
        with asking.chat("generator", "dialogue_generation") as chat:
            for name, turns in ((said.dialogue_id, said.turns) for said in dialogues):
                texts = [turn.text for turn in turns]
                for place, text in enumerate(texts):
                    asked = dialogue.answer_turn(starts[name], texts[:place], chat, profile)
                    if llm.run(asked).value != text:
                        yield f"{phases}/{name}/{place + 1}"


def main(action: str) -> int:
    """Write the files, or compare them with what is tracked: 1 where one differs."""
    run = runs.open_finished("live")
    with tempfile.TemporaryDirectory() as scratch:
        target = live.FOLDER if action == "track" else Path(scratch)
        track(run, target)
        differ = [name for name in MADE if (target / name).read_bytes() != (live.FOLDER / name).read_bytes()]
        differ += held_again(run, Path(scratch))
    print(f"differs from the tracked file: {', '.join(differ)}" if differ else "all files as tracked")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
