"""The benchmark on made-up grades: what is written is read back, a meme is relevant where it fits.

Entries rank by score, then id, may abstain, and are refused with file and line; MOD is a benchmark, too.
"""

import gzip
import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import made_chats
import made_up
import numpy as np
import pandas as pd
import pytest

from memecmd_utils import __main__ as command
from memecmd_utils import benchmark, grades, statistics
from memecmd_utils.benchmark import PAPER, Benchmark, BenchmarkError, System
from memecmd_utils.chats import search
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme
from memecmd_utils.splits import Split

IDS = [f"m{number:02}" for number in range(30)]


def made_split(name: str = "made", dialogues: int = 8) -> Split:
    """Dialogues with grades of some memes by two graders, a second batch, and a turn where nothing fits."""
    chats = [made_up.dialogue(f"{name}-{number}") for number in range(dialogues)]
    batches = {"pool": [], "learned": []}
    for chat, turn in product(chats, range(2, 7)):
        rng = statistics.rng(0, "made grades", chat.dialogue_id, turn)
        for place, meme in enumerate(rng.permutation(IDS)[:14]):
            # At turn 6 nothing fits; elsewhere the first meme does.
            values = (0, 0) if turn == 6 else (2, 1) if place == 0 else rng.integers(0, 3, 2)
            batches["learned" if place > 11 else "pool"] += [
                made_up.grade(turn, meme, grader, int(value), chat.dialogue_id)
                for grader, value in zip(("one", "two"), values, strict=True)
            ]
    memes = {name: made_up.meme(name) for name in IDS}
    annotations = [made_up.annotation(name, s_plus=f"约饭{name}") for name in IDS]
    return Split(name, chats, memes, annotations, grades.GroundTruth((), batches))


@pytest.fixture(scope="module")
def made() -> Benchmark:
    return benchmark.build(made_split())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(Run, "embedder", lambda self: SimpleNamespace(encode=made_up.vectors))
    return Run("made", made_up.profile(), tmp_path / "data", tmp_path / "report")


# --- layout -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back_and_holds_nothing_of_a_turn_itself(made, tmp_path: Path) -> None:
    benchmark.write(tmp_path, [made])
    (back,) = benchmark.read(tmp_path)
    for name in ("turns", "memes", "judgements", "qrels"):
        mine, written = (getattr(one, name).reset_index(drop=True) for one in (made, back))
        pd.testing.assert_frame_equal(written, mine)
    turn = back.turns.set_index("id").loc["made-0/4"]
    assert [said["text"] for said in turn.before] == list(made_up.TEXTS[:3]) and turn.speaker == "B"
    assert turn.context == "\n".join(made_up.TEXTS[:3])
    with pytest.raises(BenchmarkError, match="no benchmark is here"):
        benchmark.read(tmp_path / "made")
    (tmp_path / "made" / "judgements.tsv").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(BenchmarkError, match="not a split of a benchmark"):
        benchmark.read(tmp_path)


def test_qrels_hold_sums_of_both_batches_at_turns_where_a_meme_fits(made: Benchmark) -> None:
    means = made_split().truth.means
    found = {(turn, meme): score for turn, meme, score in made.qrels.itertuples(index=False)}
    assert found == {(f"{name}/{turn}", meme): 2 * mean for (name, turn), memes in means.items()
                     for meme, mean in memes.items() if turn != 6}  # fmt: skip
    assert made.judgements["batch"].value_counts().to_dict() == {"pool": 8 * 5 * 12, "learned": 8 * 5 * 2}
    assert len(made.relevant) == 8 * 4 and len(made.turns) == 8 * 5
    with pytest.raises(BenchmarkError, match="differ only in spaces"):
        benchmark.build(Split("made", [made_up.dialogue("a b"), made_up.dialogue("a_b")], {}, []))
    split = made_split(dialogues=1)
    notes = [a.model_copy(update={"unsafe": "hate" * (a.meme_id == "m03")}) for a in split.annotations]
    built = benchmark.build(replace(split, annotations=notes))
    assert {*built.memes["id"], *built.judgements["corpus-id"]} == {*IDS} - {"m03"}, "flagged"


def test_a_mean_between_two_scores_counts_as_the_lower_one_and_fits_where_that_does() -> None:
    row = made_up.grade(2, "m", "0", 2).model_dump()
    for given, score in (((1, 1, 1, 0), 1), ((2, 2, 1), 3), ((0.7, 1.4, 0.9), 2)):
        rows = [grades.UserGrade(**row | {"grader": str(n), "grade": grade}) for n, grade in enumerate(given)]
        ((mean,),) = (of_turn.values() for of_turn in grades.mean_grades(rows).values())
        assert grades.relevance(mean) == score and grades.fits(mean) == (score >= grades.RELEVANT)


def test_datasets_loads_the_configurations_in_the_form_of_mteb(made: Benchmark, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    benchmark.write(tmp_path / "benchmark", [made])
    there = {"path": str(tmp_path / "benchmark"), "split": "test", "cache_dir": str(tmp_path / "cache")}
    parts = ("corpus", "queries", "qrels")
    corpus, queries, qrels = (datasets.load_dataset(name=f"made-{part}", **there) for part in parts)
    assert corpus["_id"][:] == IDS and "text" in corpus.column_names
    assert queries["_id"][:] == [*made.turns["id"]]
    scores = {(row["query-id"], row["corpus-id"]): row["score"] for row in qrels}
    assert scores == {(turn, meme): n for turn, memes in made.relevant.items() for meme, n in memes.items()}


# --- measures -----------------------------------------------------------------------------------------------


def test_a_table_has_every_system_with_interval_and_test(made: Benchmark, run: Run) -> None:
    best = {t: sorted(known, key=known.get, reverse=True) for t, known in made.relevant.items()}
    systems = benchmark.package_systems(made, run)
    assert set(systems) == {PAPER, grades.CAPTION, *(f"{part} alone" for part in grades.PARTS)}
    # Everything is graded, as the pool of the example is for the systems that fed it.
    every = made.scores.fillna(0).astype(int).stack().rename("score").rename_axis(["query-id", "corpus-id"])
    whole = replace(made, judgements=every.reset_index().assign(batch="pool"))
    found = benchmark.table(whole, {**systems, "ideal": System("file", best)}, seed=0).set_index("system")
    row, paper = found.loc["ideal"], found.loc[PAPER]
    assert found.index[0] == "ideal" and row["R@1"] == row["judged@5"] == 1
    assert row["nDCG@5"].value == pytest.approx(1) and row["above chance"] == "yes"
    assert row["difference"].value == pytest.approx(1 - paper["nDCG@5"].value)
    assert 0 < row["difference"].low < row["difference"].value < row["difference"].high and row["p"] < 0.05
    assert row["p"] <= row["p Holm"] and (row["turns"], row["dialogues"]) == (32, 8)
    assert np.isnan(paper["p"]) and 0 < found.loc[grades.RANDOM, "R@1"] < 0.5


def test_what_nobody_graded_is_no_miss(made: Benchmark, run: Run) -> None:
    """A random ranking, half of it ungraded, is not told from chance; one that finds what fits is."""
    drawn, informed = {}, {}
    for turn, scores in made.scores.iterrows():
        drawn[turn] = statistics.rng(0, "another random ranking", turn).permutation(IDS).tolist()
        best = scores.dropna().sort_values(ascending=False, kind="stable")
        informed[turn] = [*scores.index[scores.isna()][:3], *best.index]
    systems = {"drawn": System("file", drawn), "informed": System("file", informed)}
    found = benchmark.table(made, {**benchmark.package_systems(made, run), **systems}, 0).set_index("system")
    for name, verdict in {"drawn": "not shown", "informed": "yes"}.items():
        row = found.loc[name]
        assert row["judged@5"] < benchmark.JUDGED and row["above chance"] == verdict
        assert np.isnan([row[benchmark.NET].value, row["difference"].value, row["p"], row["p Holm"]]).all()
    drawn_row, random = found.loc["drawn"], found.loc[grades.RANDOM]
    assert drawn_row[benchmark.GRADED] == pytest.approx(drawn_row[benchmark.BY_CHANCE], abs=0.05)
    assert found.loc["informed", benchmark.GRADED] == 1 > 2 * random["nDCG@5"].value
    assert found[benchmark.BY_CHANCE].nunique() == 1, "one chance for all, where all memes are ranked"


def test_a_sender_is_measured_by_what_it_sends(made: Benchmark) -> None:
    """Neither one meme nor a meme at every turn wins: a landing meme counts 1, an unfit one -1, a chat."""
    scores = {turn: row.to_dict() for turn, row in made.scores.iterrows()}
    lands = {t: [m for m, s in row.items() if s == benchmark.LANDS] for t, row in scores.items()}
    unfit = {t: [m for m, s in row.items() if s < grades.RELEVANT] for t, row in scores.items()}
    some, nothing = [turn for turn in lands if lands[turn]], {key: [] for key in lands}
    systems = {
        "choosy": System("file", {turn: lands[turn][:1] for turn in lands}),
        "one": System("file", nothing | {some[0]: lands[some[0]]}),
        "always": System("file", {turn: lands[turn] or unfit[turn] for turn in lands}),
        "never": System("file", nothing),
        "gated": System("package", unfit, frozenset(some[:1])),
    }
    of = {name: benchmark.as_sender(made, system) for name, system in systems.items()}
    hits, turns = len(some), len(scores)
    sums = {name: (8 * row[benchmark.NET].value, turns * row["rate"]) for name, row in of.items()}
    assert sums == {
        "choosy": (hits, hits), "one": (1, 1), "always": (2 * hits - turns, turns), "never": (0, 0),
        "gated": (-1, 1),
    }, "of 8 chats"  # fmt: skip
    assert of["choosy"]["lands"].value == 1 and np.isnan(of["never"]["lands"].value)
    assert of["choosy"]["specificity"] > of["always"]["specificity"]


def test_missing_pairs_are_graded_on_a_page_and_count(
    made: Benchmark, run: Run, tmp_path: Path, capsys
) -> None:
    """The page of an entry asks for its ungraded memes; with its table nothing is missing."""
    entry = tmp_path / "mine.py"
    entry.write_text("def rank(turn, memes):\n    return [-n for n, _ in enumerate(memes)]\n")
    told = benchmark.score([made], run, [str(entry)])
    page = (run.report / "grade_mine_made.html").read_text(encoding="utf-8")
    asked = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page)[1])
    rows = [[*asked["turns"][t]["key"], meme] for t, meme in asked["items"]]
    lacking = made.scores[IDS[:5]].isna()
    assert len(rows) == lacking.to_numpy().sum() and f"mine: {len(rows)} memes" in told
    assert {meme for *_, meme in rows[: lacking["m00"].sum()]} == {"m00"}, "sent first"
    already = made.judgements.iloc[0]
    dialogue, turn = already["query-id"].split("/")
    table = pd.DataFrame([*rows, [dialogue, int(turn), already["corpus-id"]]], columns=grades.COLUMNS[:3])
    table.assign(grade=2).to_csv(tmp_path / "grades.csv", index=False)
    (more,) = benchmark.with_grades([made], tmp_path / "grades.csv")
    assert f"{len(rows)} graded pairs are new; 1 had grades" in capsys.readouterr().out
    benchmark.score([more], run, [str(entry)])
    row = next(row for row in benchmark.load(run.report) if row["system"] == "mine")
    assert row["judged@5"] == 1 and row["ungraded"] == 0 and row["lands"].value > 0.4


# --- entries ------------------------------------------------------------------------------------------------


def lines_of(one: Benchmark) -> list[str]:
    """A run file of every turn, all memes in the order of their ids."""
    return [f"{turn} Q0 {meme} {rank} {-rank} x" for turn in one.relevant for rank, meme in enumerate(IDS)]


def test_a_run_file_is_ranked_by_score_then_id(made: Benchmark, tmp_path: Path) -> None:
    """It may be gzip; one that speaks of another split alone is none of this one."""
    path, lines = tmp_path / "mine.trec", lines_of(made)
    lines[4] = "made-0/2 Q0 m04 4 -3 x"
    other = benchmark.build(made_split("other", 2))
    known = {turn for split in (made, other) for turn in split.turns["id"]}
    for more in ([], lines_of(other)):
        path.write_bytes(gzip.compress("\n".join([*lines, *more]).encode()))
        found = benchmark.rank_by_entry(path, made, known)
        assert found["made-0/2"] == IDS and found.keys() == made.relevant.keys()
    path.write_text("\n".join(lines_of(other)), encoding="utf-8")
    assert benchmark.rank_by_entry(path, made, known) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("made-0/2 Q0 m04 4 nan x", "line 5: not .* a finite score: made-0/2 Q0 m04 4 nan x"),
        ("made-0/2 Q0 m03 4 -4 x", "line 5: not .* once"),
        ("other-0/2 Q0 m04 4 -4 x", "line 5: not .* of a turn"),
        ("made-0/2 m04", "line 5: not `query-id"),
        (f"made-0/2 Q0 {benchmark.NONE} 4 -4 x\n" * 2, "line 6: not"),
        (gzip.compress(b"a b", mtime=0)[:9], "no TREC run"),
        (b"made-0/2 Q0 m04 4 -4 x", "31 of 32 turns of split made .*: made-0/3"),
    ],
    ids=["score", "twice", "turn", "fields", "none twice", "cut gzip", "lacks turns"],
)
def test_a_broken_run_file_is_refused_in_one_sentence(made, tmp_path: Path, given: str | bytes, why) -> None:
    """`given` is the fifth line, or the whole file."""
    lines, path = lines_of(made), tmp_path / "mine.trec"
    path.write_bytes(given if isinstance(given, bytes) else "\n".join([*lines[:4], given]).encode())
    with pytest.raises(BenchmarkError, match=rf"\Aentry mine\.trec[^\n]*{why}[^\n]*\Z"):
        benchmark.rank_by_entry(path, made, set(made.turns["id"]))


def test_entries_ask_by_name_or_key_may_abstain_and_are_scored(
    made: Benchmark, run: Run, tmp_path: Path
) -> None:
    """At every second turn the run file names the best meme, at the others none: all it sends are hits."""
    entry, path = tmp_path / "mine.py", tmp_path / "theirs.trec"
    for wrong in ("turn['contxt']", "turn.contxt"):
        entry.write_text(f"def rank(turn, memes):\n    return {wrong}\n")
        with pytest.raises(BenchmarkError, match=r"mine.py, turn made-0/2: .*no scores: .*contxt"):
            benchmark.rank_by_entry(entry, made, set())
    entry.write_text(
        "def rank(turn, memes):\n    assert turn.before[0]['text'] and turn['context'] == turn.context\n"
        "    return {2: [], 3: None}.get(turn.turn, [m.id == 'm07' and bool(m['s_plus']) for m in memes])\n"
    )
    found = benchmark.rank_by_entry(entry, made, set())
    assert len(found) == len(made.scores) and found["made-0/4"][0] == "m07"
    assert {turn.partition("/")[2] for turn, memes in found.items() if not memes} == {"2", "3"}
    best = [(turn, max(known, key=known.get)) for turn, known in made.relevant.items()]
    named = (f"{t} Q0 {m if n % 2 else benchmark.NONE} 1 1 x" for n, (t, m) in enumerate(best))
    path.write_text("\n".join(named))
    text = benchmark.score([made], run, [str(entry), str(path)])
    assert "made: 32 turns, 30 memes" in text and "| mine | – |" in text
    rows = {row["system"]: row for row in benchmark.load(run.report)}
    shown = {"mine", "theirs", PAPER, grades.RANDOM}
    assert {row["system"] for row in benchmark.first([*rows.values()], 0)} == shown <= rows.keys()
    row = rows["theirs"]
    assert (row["R@1"], row["rate"], row["judged@5"], row["ungraded"]) == (0.5, 16 / 40, 1, 0)
    assert benchmark.load(tmp_path) == []
    with pytest.raises(BenchmarkError, match=f"a system is called {PAPER}"):
        benchmark.score([made], run, [str(entry)], PAPER)


# --- MOD ----------------------------------------------------------------------------------------------------

TALK = [
    {"speaker_id": "[speaker1]", "emotion_id": 0, "img_id": "003", "txt": "早"},
    {"speaker_id": "[speaker2]", "txt": "早啊"},
    {"speaker_id": "[speaker1]", "img_id": "007"},
    {"speaker_id": "[speaker2]", "img_id": "030", "txt": "哈哈"},
]


def file(folder: Path, value: object, name: str = "c_val.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder / name


def test_each_meme_from_the_second_message_on_is_a_question(tmp_path: Path) -> None:
    captions = {"3": "字幕", "7": "别的"}
    first, second = benchmark.read_mod(file(tmp_path, {"dialogue 1": TALK, "dialogue 2": TALK[:1]}), captions)
    dialogue, context, meme = first
    assert (dialogue, context.chat, context.next_speaker) == ("dialogue 1", "c_val/dialogue 1/3", "甲")
    assert context.lines == (("甲", "早［表情包：字幕］"), ("乙", "早啊")), "the meme itself is not known"
    assert second[1].lines[-1] == ("乙", "哈哈"), "the words that came with it are"
    assert (meme, second[2]) == ("7", "30")
    task = {"history": TALK[:2], "answer": TALK[3], "candidate": {"set": ["030", "007"]}}
    tasks = [task, {**task, "history": TALK[1:3]}, {**task, "answer": {}}]
    one, two = benchmark.read_mod(file(tmp_path, tasks), {})
    assert (one[1].chat, one[2], one[1].next_speaker) == ("c_val/1", "30", "乙") and one[0] != two[0]
    for bad in ([3], {"a": TALK[:1]}):
        with pytest.raises(BenchmarkError, match=r"c_val\.json is not a file of MOD"):
            benchmark.read_mod(file(tmp_path, bad), {})


def test_mod_is_scored_as_a_benchmark(tmp_path: Path, monkeypatch, capsys) -> None:
    """Seven of eight memes are the right ones for what the agent says; one is not in the library."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    run = made_chats.finished_run(monkeypatch, tmp_path, origins={n: f"set/{n:03d}.jpg" for n in range(12)})
    sent = [f"{n:03d}" if n < 7 else "999" for n in range(8)]
    said = [{"speaker_id": "[speaker2]", "txt": f"说说 k{n}"} for n in range(8)]
    memes = [{"speaker_id": "[speaker1]", "img_id": name} for name in sent]
    talks = {f"dialogue {n}": [TALK[0], *rest] for n, rest in enumerate(zip(said, memes, strict=True))}
    file(tmp_path / "mod", talks)
    file(tmp_path / "mod", {"喜": 0}, "emotion_dict.json")
    with made_chats.agent().running() as server:
        profile = made_chats.live_profile(tmp_path, server.url)
        given = ["--profile", profile, "leaderboard", "--run", "made", "--mod", str(tmp_path / "mod")]
        for _ in range(2):
            with pytest.raises(SystemExit, match="0"):
                command.main(given)
        assert len(server.bodies) == 8, "recorded: nothing is asked twice"
    assert "甲：早［表情包：字幕 k8］\n乙：说说 k" in server.bodies[0]["messages"][-1]["content"]
    assert "emotion_dict.json is not a file of MOD" in capsys.readouterr().out
    other = search.asking_run(run, profile, "", "mod")
    rows = {row["system"]: row for row in benchmark.load(other.report)}
    assert rows[PAPER]["R@1"] == pytest.approx(7 / 8) and rows[PAPER]["dialogues"] == 8
    (layout,) = benchmark.read(other.folder / "benchmark")
    assert layout.relevant["c_val/dialogue_7/3"] == {"999": benchmark.SENT}
    assert {*layout.memes["id"]} == {meme.meme_id for meme in run.load(Meme)}
