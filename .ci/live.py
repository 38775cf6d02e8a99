"""The tracked tables of the live corpus (`data/live`), made of run `live` and of what readers said.

python .ci/live.py track      # writes them
python .ci/live.py compare    # says which differ from what the run gives
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jieba.posseg
import numpy as np
import pandas as pd

from memecmd_utils import dialogue, files, grades, llm, runs, schemas, statistics
from memecmd_utils.dialogue import bare
from memecmd_utils.files import paths
from memecmd_utils.retrieval import RERANKED
from memecmd_utils.studies import live

MADE = (
    "annotations.jsonl", "dialogues.jsonl", "placements.jsonl", "candidates.jsonl", "gates.json",
    "choices.jsonl", "scores.csv", "ladders.csv",
)  # fmt: skip
KEPT = 3
"""Candidates of a turn that are tracked, as many as the page shows."""


def track(run: runs.Run, folder: Path) -> None:
    """Write the tables of a finished run; memes bear the names of their drawings."""
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
    files.write_frame(folder / "scores.csv", pd.DataFrame(rated, columns=[*live.KEY, "strategy", "score"]))


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


# --- What a ladder does to a chat, as the plan defines it


def measure_ladders(
    ladders: Mapping[str, Sequence[schemas.Dialogue]], starts: Mapping[str, str], run: runs.Run
) -> pd.DataFrame:
    """The measures of each chat; `starts`: all that its cold start tells, by dialogue."""
    encode = run.embedder().encode
    rows = []
    for phases, dialogues in ladders.items():
        for chat in dialogues:
            said = [turn.text for turn in chat.turns]
            openings = Counter(bare(text)[:2] for text in said)
            ends = encode(["\n".join(said[:6]), "\n".join(said[-6:])], "document")
            known, new = starts[chat.dialogue_id], 0
            for text in said:
                names = {word for word, kind in jieba.posseg.cut(text) if kind == "nr" and len(word) > 1}
                new += sum(name not in known for name in names)
                known += text
            echoes = [echo(text, said[max(0, t - 3) : t]) for t, text in enumerate(said) if t]
            rows.append(
                {
                    "phases": phases, "dialogue_id": chat.dialogue_id,
                    "repeated openings": np.mean([openings[bare(text)[:2]] > 1 for text in said]),
                    "new names": new / len(said),
                    "questions": np.mean(["？" in text or "?" in text for text in said]),
                    "distance": 1 - float(ends[0] @ ends[1]),
                    "echo": np.mean(echoes),
                }
            )  # fmt: skip
    return pd.DataFrame(rows).round(6)


def echo(text: str, before: Sequence[str]) -> float:
    """Share of a text's pairs of characters that stand in the texts before it."""
    pairs = {bare(text)[i : i + 2] for i in range(len(bare(text)) - 1)}
    heard = {bare(other)[i : i + 2] for other in before for i in range(len(bare(other)) - 1)}
    return len(pairs & heard) / max(1, len(pairs))


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
    """Write the tables, or compare them with what is tracked: 1 where one differs."""
    run = runs.open_finished("live")
    with tempfile.TemporaryDirectory() as scratch:
        target = live.FOLDER if action == "track" else Path(scratch)
        track(run, target)
        starts = {
            live.PREFIX + start.dialogue_id: "".join(
                text for told in (start.context, start.brief, start.persona) for text in told.values()
            )
            for start in run.load(schemas.ColdStart)
        }
        measured = measure_ladders(live.ladders(), starts, run)
        measured.to_csv(target / "ladders.csv", index=False)
        differ = [name for name in MADE if (target / name).read_bytes() != (live.FOLDER / name).read_bytes()]
        differ += held_again(run, Path(scratch))
    print(f"differs from the tracked file: {', '.join(differ)}" if differ else "all tables as tracked")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
