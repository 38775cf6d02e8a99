"""The benchmark on made-up grades: what is written is read back, a meme is relevant where it fits.

Entries rank by score, then id, may abstain, and are refused with file and line; MOD is a benchmark, too.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import made_chats
import made_up
import numpy as np
import pandas as pd
import pytest

from memecmd_utils import __main__ as command
from memecmd_utils import benchmark, grades, statistics
from memecmd_utils.benchmark import DEPTH, MEASURES, PAPER, Benchmark, BenchmarkError
from memecmd_utils.chats import search
from memecmd_utils.grades import GroundTruth
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme
from memecmd_utils.splits import Split

IDS = [f"m{number:02}" for number in range(30)]


def made_split(name: str = "made", dialogues: int = 8) -> Split:
    """Dialogues with grades of some memes by two graders, a second batch, and a turn where nothing fits."""
    chats = [made_up.dialogue(f"{name}-{number}") for number in range(dialogues)]
    pool, later = [], []
    for chat in chats:
        for turn in range(2, 7):
            rng = statistics.rng(0, "made grades", chat.dialogue_id, turn)
            for place, meme in enumerate(rng.permutation(IDS)[:14]):
                # At turn 6 nothing fits; elsewhere the first meme does.
                values = (0, 0) if turn == 6 else (2, 1) if place == 0 else rng.integers(0, 3, 2)
                batch = later if place > 11 else pool
                batch += [
                    made_up.grade(turn, meme, grader, int(value), chat.dialogue_id)
                    for grader, value in zip(("one", "two"), values, strict=True)
                ]
    memes = {name: made_up.meme(name) for name in IDS}
    annotations = [made_up.annotation(name, s_plus=f"约饭{name}") for name in IDS]
    return Split(name, chats, memes, annotations, GroundTruth((), {"pool": pool, "learned": later}))


@pytest.fixture(scope="module")
def made() -> Benchmark:
    return benchmark.build(made_split())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(Run, "embedder", lambda self: SimpleNamespace(encode=made_up.vectors))
    return Run("made", made_up.profile(), tmp_path / "data", tmp_path / "report")


# --- layout -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(made: Benchmark, tmp_path: Path) -> None:
    benchmark.write(tmp_path, [made])
    (back,) = benchmark.read(tmp_path)
    for name in ("turns", "memes", "judgements", "qrels"):
        pd.testing.assert_frame_equal(
            getattr(back, name).reset_index(drop=True), getattr(made, name).reset_index(drop=True)
        )
    with pytest.raises(BenchmarkError, match="no benchmark is here"):
        benchmark.read(tmp_path / "made")
    (tmp_path / "made" / "judgements.tsv").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(BenchmarkError, match="not a split of a benchmark"):
        benchmark.read(tmp_path)


def test_turns_hold_nothing_of_the_turn_itself(made: Benchmark) -> None:
    turn = next(t for t in made.turns.itertuples() if t.turn == 4)
    assert turn.id == "made-0/4" and turn.speaker == "B"
    assert [said["text"] for said in turn.before] == list(made_up.TEXTS[:3])
    assert turn.context == "\n".join(made_up.TEXTS[:3])


def test_qrels_hold_sums_of_both_batches_at_turns_where_a_meme_fits(made: Benchmark) -> None:
    means = made_split().truth.means
    found = {(turn, meme): score for turn, meme, score in made.qrels.itertuples(index=False)}
    assert found == {(f"{name}/{turn}", meme): 2 * mean for (name, turn), memes in means.items()
                     for meme, mean in memes.items() if turn != 6}  # fmt: skip
    assert made.judgements["batch"].value_counts().to_dict() == {"pool": 8 * 5 * 12, "learned": 8 * 5 * 2}
    assert len(made.asked) == 8 * 4 and len(made.turns) == 8 * 5
    with pytest.raises(BenchmarkError, match="differ only in spaces"):
        benchmark.build(Split("made", [made_up.dialogue("a b"), made_up.dialogue("a_b")], {}, []))


def test_a_flagged_meme_is_in_no_benchmark() -> None:
    split = made_split(dialogues=1)
    notes = [a.model_copy(update={"unsafe": "hate" * (a.meme_id == "m03")}) for a in split.annotations]
    built = benchmark.build(replace(split, annotations=notes))
    assert len(built.memes) == len(IDS) - 1
    assert "m03" not in {*built.memes["id"], *built.judgements["corpus-id"]}


@pytest.mark.parametrize(
    ("given", "score"),
    [((1, 1, 1, 0), 1), ((2, 2, 1), 3), ((0.7, 1.4, 0.9), 2)],
)
def test_a_meme_is_relevant_where_its_mean_grade_says_that_it_fits(given, score: int) -> None:
    """With three graders or more a mean may lie between the scores: it counts as the lower one."""
    plain = made_split(dialogues=1)
    sure = made_up.grade(2, "m01", "0", 2, "made-0")
    row = sure.model_dump() | {"meme_id": "m00"}
    graded = [grades.UserGrade(**row | {"grader": str(n), "grade": g}) for n, g in enumerate(given)]
    built = benchmark.build(replace(plain, truth=GroundTruth((), {"user": [*graded, sure]})))
    assert built.relevant["made-0/2"] == {"m00": score, "m01": 4}
    hit = grades.measure({"made-0/2": ["m00"]}, built.relevant)[0, MEASURES.index("R@1")]
    assert hit == grades.fits(round(np.mean(given), 9)) == (score >= 2)


def test_datasets_loads_the_configurations_in_the_form_of_mteb(made: Benchmark, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    benchmark.write(tmp_path / "benchmark", [made])
    corpus, queries, qrels = (
        datasets.load_dataset(
            str(tmp_path / "benchmark"), f"made-{part}", split="test", cache_dir=str(tmp_path / "cache")
        )
        for part in ("corpus", "queries", "qrels")
    )
    assert corpus["_id"][:] == IDS and "text" in corpus.column_names
    assert queries["_id"][:] == [*made.turns["id"]]
    scores = {(row["query-id"], row["corpus-id"]): row["score"] for row in qrels}
    assert scores == {(turn, meme): n for turn, memes in made.relevant.items() for meme, n in memes.items()}


# --- measures -----------------------------------------------------------------------------------------------


def test_a_table_has_every_system_with_interval_and_test(made: Benchmark, run: Run) -> None:
    best = {t: sorted(known, key=known.get, reverse=True) for t, known in made.relevant.items()}
    systems = {name: ("package", r) for name, r in benchmark.package_systems(made, run).items()}
    assert set(systems) == {PAPER, grades.CAPTION, *(f"{part} alone" for part in grades.PARTS)}
    found = benchmark.table(made, {**systems, "ideal": ("file", best)}, seed=0).set_index("system")
    row, paper = found.loc["ideal"], found.loc[PAPER]
    assert found.index[0] == "ideal" and row["R@1"] == row["judged@5"] == 1
    assert row["nDCG@5"].value == pytest.approx(1)
    assert row["difference"].value == pytest.approx(1 - paper["nDCG@5"].value)
    assert 0 < row["difference"].low < row["difference"].value < row["difference"].high and row["p"] < 0.05
    assert row["p"] <= row["p Holm"] and (row["turns"], row["dialogues"]) == (32, 8)
    assert np.isnan(paper["p"]) and 0 < found.loc[grades.RANDOM, "R@1"] < 0.5


# --- entries ------------------------------------------------------------------------------------------------


def trec(one: Benchmark, path: Path, **cells: str) -> Path:
    """A run file of every turn; `cells` change the fifth line."""
    rows = [
        {"turn": turn, "q0": "Q0", "meme": meme, "rank": str(rank), "score": str(-rank), "tag": "x"}
        for turn in one.asked["id"]
        for rank, meme in enumerate(IDS)
    ]
    rows[4] |= cells
    path.write_text("\n".join(" ".join(row.values()) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"score": "nan"}, "no finite score nan"),
        ({"meme": "m03"}, "meme m03 is listed twice at turn made-0/2"),
    ],
)
def test_a_broken_line_is_refused(made: Benchmark, tmp_path: Path, cells: dict, why: str) -> None:
    path = trec(made, tmp_path / "mine.trec", **cells)
    with pytest.raises(BenchmarkError, match=rf"\Aentry mine\.trec, line 5: [^\n]*{why}"):
        benchmark.rank_by_entry(path, made, set(made.turns["id"]))


def test_a_run_file_is_ranked_by_score_then_id_and_must_have_every_turn(made, tmp_path: Path) -> None:
    known = set(made.turns["id"])
    path = trec(made, tmp_path / "mine.trec", score="-3")
    found = benchmark.rank_by_entry(path, made, known)
    assert found["made-0/2"][:5] == ["m00", "m01", "m02", "m03", "m04"] and len(found["made-0/2"]) == DEPTH
    path.write_text("\n".join(path.read_text("utf-8").splitlines()[30:]), encoding="utf-8")
    with pytest.raises(BenchmarkError, match=r"mine\.trec: 1 of 32 turns of split made .*: made-0/2"):
        benchmark.rank_by_entry(path, made, known)
    other = benchmark.build(made_split("other", 2))
    theirs = trec(other, tmp_path / "other.trec")
    with pytest.raises(BenchmarkError, match="no turn other-0/2"):
        benchmark.rank_by_entry(theirs, made, known)
    assert benchmark.rank_by_entry(theirs, made, known | {*other.turns["id"]}) is None


def test_a_run_file_may_abstain(made: Benchmark, run: Run, tmp_path: Path) -> None:
    """At every second turn it names the best meme, at the others none: half the turns, all of them hits."""
    best = [(turn, max(known, key=known.get)) for turn, known in made.relevant.items()]
    lines = [f"{t} Q0 {m if n % 2 else benchmark.NONE} 1 1 x" for n, (t, m) in enumerate(best)]
    path = tmp_path / "mine.trec"
    path.write_text("\n".join(lines), encoding="utf-8")
    benchmark.score([made], run, [str(path)])
    row = next(row for row in benchmark.load(run.report) if row["system"] == "mine")
    assert (row["R@1"], row["answered"], row["R@1 answered"]) == (0.5, 0.5, 1.0)


def test_a_leaderboard_of_entries_is_written_and_read(made: Benchmark, run: Run, tmp_path: Path) -> None:
    entry = tmp_path / "mine.py"
    entry.write_text(
        "def rank(turn, memes):\n    assert turn.before[0]['text'] and turn.context and turn.scenario\n"
        "    return [m.id == 'm07' and bool(m.s_plus) for m in memes]\n",
        encoding="utf-8",
    )
    entries = [str(entry), str(trec(made, tmp_path / "theirs.trec"))]
    text = benchmark.score([made], run, entries)
    assert "made: 32 turns, 30 memes" in text and "| mine | function |" in text
    rows = benchmark.load(run.report)
    assert {row["system"] for row in rows} >= {"mine", "theirs", PAPER, grades.RANDOM}
    assert {row["system"] for row in benchmark.first(rows, 0)} == {PAPER, grades.RANDOM}
    assert benchmark.load(tmp_path) == []
    with pytest.raises(BenchmarkError, match=f"a system is called {PAPER}"):
        benchmark.score([made], run, entries[:1], PAPER)


# --- MOD ----------------------------------------------------------------------------------------------------

TALK = [
    {"speaker_id": "[speaker1]", "emotion_id": 0, "img_id": "195", "txt": "早"},
    {"speaker_id": "[speaker2]", "txt": "早啊"},
    {"speaker_id": "[speaker1]", "img_id": "007"},
    {"speaker_id": "[speaker2]", "img_id": "030", "txt": "哈哈"},
]


def file(folder: Path, value: object, name: str = "c_val.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder / name


def test_each_meme_from_the_second_message_on_is_a_question(tmp_path: Path) -> None:
    captions = {"195": "字幕", "7": "别的"}
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
        with pytest.raises(BenchmarkError, match=r"c_val\.json (is not a file of MOD|asks for no memes)"):
            benchmark.read_mod(file(tmp_path, bad), {})


def test_mod_is_scored_as_a_benchmark(tmp_path: Path, monkeypatch, capsys) -> None:
    """Seven of eight memes are the right ones for what the agent says; one is not in the library."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    run = made_chats.finished_run(monkeypatch, tmp_path, origins={n: f"set/{n:03d}.jpg" for n in range(12)})
    sent = {n: f"{n:03d}" if n < 7 else "999" for n in range(8)}
    talks = {
        f"dialogue {n}": [
            {"speaker_id": "[speaker1]", "img_id": "003", "txt": "早"},
            {"speaker_id": "[speaker2]", "txt": f"说说 k{n}"},
            {"speaker_id": "[speaker1]", "img_id": name},
        ]
        for n, name in sent.items()
    }
    file(tmp_path / "mod", talks)
    file(tmp_path / "mod", {"喜": 0}, "emotion_dict.json")
    with made_chats.agent().running() as server:
        profile = made_chats.live_profile(tmp_path, server.url)
        for _ in range(2):
            with pytest.raises(SystemExit, match="0"):
                command.main(
                    ["--profile", profile, "leaderboard", "--run", "made", "--mod", str(tmp_path / "mod")]
                )
        assert len(server.bodies) == 8, "recorded: nothing is asked twice"
    assert "甲：早［表情包：字幕 k8］\n乙：说说 k" in server.bodies[0]["messages"][-1]["content"]
    assert "emotion_dict.json is not a file of MOD" in capsys.readouterr().out
    other = search.asking_run(run, profile, "", "mod")
    rows = {row["system"]: row for row in benchmark.load(other.report)}
    assert rows[PAPER]["R@1"] == pytest.approx(7 / 8) and rows[PAPER]["dialogues"] == 8
    (layout,) = benchmark.read(other.folder / "benchmark")
    assert layout.relevant["c_val/dialogue_7/3"] == {"999": benchmark.SENT}
    assert {*layout.memes["id"]} == {meme.meme_id for meme in run.load(Meme)}
