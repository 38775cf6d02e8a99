"""The benchmark on made-up grades: layout, measures beside others', entries that count or are refused."""

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import made_chats
import made_up
import numpy as np
import pytest

from memecmd_utils import __main__ as command
from memecmd_utils import grades as rankings
from memecmd_utils import statistics
from memecmd_utils.chats import library as insertion
from memecmd_utils.evaluation import benchmark, leaderboard
from memecmd_utils.evaluation.benchmark import DEPTH, Benchmark, Marked, Split
from memecmd_utils.evaluation.leaderboard import MEASURES, EntryError
from memecmd_utils.files import paths
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Meme
from memecmd_utils.settings import load_profile

N_MEMES = 30
IDS = [f"m{number:02}" for number in range(N_MEMES)]


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
    marks = [made_up.mark(turn, "one", turn == 3, name=chat.dialogue_id) for chat in chats for turn in (2, 3)]
    memes = {name: made_up.meme(name) for name in IDS}
    annotations = [made_up.annotation(name, s_plus=f"约饭{name}") for name in IDS]
    return Split(name, chats, memes, annotations, {"pool": pool, "learned": later}, marks)


@pytest.fixture(scope="module")
def made() -> Benchmark:
    return benchmark.build(made_split())


@pytest.fixture
def folder(made: Benchmark, tmp_path: Path) -> Path:
    benchmark.write(tmp_path / "benchmark", [made])
    return tmp_path / "benchmark"


def scores_of(made: Benchmark, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(made.asked), N_MEMES))


# --- layout -------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(made: Benchmark, folder: Path) -> None:
    assert benchmark.read(folder) == [made]


def test_turns_hold_nothing_of_the_turn_itself(made: Benchmark) -> None:
    turn = next(turn for turn in made.turns if turn.turn == 4)
    assert turn.id == "made-0/4" and turn.speaker == "B"
    assert [text for _, text in turn.before] == list(made_up.TEXTS[:3])
    assert turn.context == "\n".join(made_up.TEXTS[:3])


def test_qrels_hold_sums_at_turns_where_a_meme_fits(made: Benchmark, folder: Path) -> None:
    """Both batches count, and `judgements.tsv` tells them apart."""
    split = made_split()
    sums: dict[tuple[str, str], int] = {}
    for grade in (g for batch in split.grades.values() for g in batch):
        key = f"{grade.dialogue_id}/{grade.turn}", grade.meme_id
        sums[key] = sums.get(key, 0) + grade.grade
    with (folder / "made" / "qrels" / "test.tsv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    found = {(row["query-id"], row["corpus-id"]): int(row["score"]) for row in rows}
    assert found == {key: score for key, score in sums.items() if not key[0].endswith("/6")}
    batches = {
        row.batch: sum(other.batch == row.batch for other in made.judgements) for row in made.judgements
    }
    assert batches == {"pool": 8 * 5 * 12, "learned": 8 * 5 * 2}
    assert len(made.asked) == 8 * 4 and len(made.turns) == 8 * 5


def test_grades_of_any_number_of_people_become_whole_numbers() -> None:
    one = made_split(dialogues=1)
    graders = [
        made_up.grade(2, "m00", who, value, "made-0") for who, value in zip("abc", (2, 1, 1), strict=True)
    ]
    built = benchmark.build(Split("users", one.dialogues, one.memes, one.annotations, {"user": graders}))
    assert built.qrels == {"made-0/2": {"m00": 3}}  # twice the mean of 4/3, rounded


def test_dialogues_that_differ_in_spaces_only_are_refused() -> None:
    chats = [made_up.dialogue("a b"), made_up.dialogue("a_b")]
    with pytest.raises(benchmark.BenchmarkError, match="one id"):
        benchmark.build(Split("made", chats, {}, [], {}))


def test_datasets_loads_the_configurations_in_the_form_of_mteb(
    made: Benchmark, folder: Path, tmp_path: Path
) -> None:
    from datasets import load_dataset

    rows = {
        part: load_dataset(str(folder), f"made-{part}", split="test", cache_dir=str(tmp_path / "cache"))
        for part in ("corpus", "queries", "qrels")
    }
    assert rows["corpus"]["_id"][:] == IDS and "text" in rows["corpus"].column_names
    assert rows["queries"]["_id"][:] == [turn.id for turn in made.turns]
    found: dict[str, dict[str, int]] = {}
    for row in rows["qrels"]:
        found.setdefault(row["query-id"], {})[row["corpus-id"]] = row["score"]
    assert found == made.qrels


def test_beir_loads_a_split(made: Benchmark, folder: Path) -> None:
    pytest.importorskip("beir", reason="needs the `exchange` extra")
    from beir.datasets.data_loader import GenericDataLoader

    corpus, queries, qrels = GenericDataLoader(str(folder / "made")).load("test")
    assert list(corpus) == IDS and corpus["m00"]["title"] == made.memes[0].caption
    assert queries == {turn.id: turn.text for turn in made.asked} and qrels == made.qrels


def test_the_untouched_split_takes_part_once_it_is_graded(tmp_path: Path) -> None:
    """With made-up grades beside its real texts."""
    source = paths.example / "untouched"
    for path in source.iterdir():
        if path.is_file() and path.name != "grades.jsonl":
            shutil.copyfile(path, tmp_path / path.name)
    from memecmd_utils.library import example_memes

    memes = {row.meme_id: made_up.meme(row.meme_id) for row in example_memes()}
    annotations = [made_up.annotation(name) for name in memes]
    example = Split("example", [], memes, annotations, {})
    assert benchmark.untouched_split(example, tmp_path) is None
    row = {"dialogue_id": "news-sports-5", "turn": 2, "source": "made", "grades": {"m001": 1, "m240": 2}}
    lines = [json.dumps({**row, "grader": grader}) + "\n" for grader in ("one", "two")]
    (tmp_path / "grades.jsonl").write_text("".join(lines), encoding="utf-8")
    built = benchmark.build(benchmark.untouched_split(example, tmp_path))
    assert [meme.id for meme in built.memes] == [f"m{number:03}" for number in range(1, 241)]
    assert built.qrels == {"news-sports-5/2": {"m001": 2, "m240": 4}} and len(built.turns) == 16 * 17
    fewer = Split("example", [], {"m001": memes["m001"]}, annotations, {})
    assert benchmark.untouched_split(fewer, tmp_path) is None, "another library than the test's"


# --- measures -----------------------------------------------------------------------------------------


def test_ir_measures_finds_the_same_from_qrels_and_run_files(
    made: Benchmark, folder: Path, tmp_path: Path
) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    from ir_measures import RR, Judged, Success, nDCG

    run = tmp_path / "made.trec"
    scores = scores_of(made)
    leaderboard.write_trec(run, scores, made, "made")
    with (folder / "made" / "qrels" / "test.tsv").open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        qrels = [ir_measures.Qrel(r["query-id"], r["corpus-id"], int(r["score"])) for r in rows]
    names = [Success(rel=2) @ 1, Success(rel=2) @ 5, RR(rel=2) @ DEPTH, nDCG @ 5, Judged @ 5]
    theirs = ir_measures.calc_aggregate(names, qrels, ir_measures.read_trec_run(str(run)))
    for mine in (scores, leaderboard.read_trec(run, made)):
        ours = leaderboard.measure(leaderboard.order_of(mine, IDS), made).mean(axis=0)
        assert np.allclose(ours, [theirs[name] for name in names], atol=1e-9)


def test_a_short_run_is_measured_as_by_trec_eval(made: Benchmark, tmp_path: Path) -> None:
    """Memes that are not listed are not found: three a turn."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    scores = scores_of(made)
    third = np.sort(scores, axis=1)[:, [-3]]
    run = tmp_path / "short.trec"
    leaderboard.write_trec(run, np.where(scores >= third, scores, leaderboard.NOTHING), made, "short")
    assert len(run.read_text("utf-8").splitlines()) == 3 * len(made.asked)
    found = leaderboard.measure(leaderboard.order_of(leaderboard.read_trec(run, made), IDS), made)
    with run.open(encoding="utf-8") as lines:
        told = pytrec_eval.parse_run(lines)
    judge = pytrec_eval.RelevanceEvaluator(
        made.qrels, {"ndcg_cut.5", "recip_rank", "success.5"}, relevance_level=2
    )
    theirs = judge.evaluate(told)
    names = {"nDCG@5": "ndcg_cut_5", leaderboard.MRR: "recip_rank", "R@5": "success_5"}
    for row, turn in zip(found, made.asked, strict=True):
        for ours, name in names.items():
            assert row[MEASURES.index(ours)] == pytest.approx(theirs[turn.id][name], abs=1e-9)


def test_equal_scores_of_an_entry_are_ordered_by_id_and_tiny_differences_count() -> None:
    scores = np.array([[0.0, 1e-12, 1e-12, -np.inf]])
    assert leaderboard.order_of(scores, ["d", "c", "b", "a"], exact=True).tolist() == [[2, 1, 0, -1]]


def test_a_table_has_every_system_with_interval_and_test(made: Benchmark) -> None:
    best = np.nan_to_num(rankings.grade_matrix([turn.id for turn in made.asked], IDS, made.qrels))
    systems = [
        leaderboard.package_systems(made, made_up.vectors, made_up.profile()),
        leaderboard.Systems("function", {"ideal": best}),
    ]
    found = leaderboard.table(made, systems, seed=0).set_index("system")
    assert found.index[0] == "ideal" and found.loc["ideal", "nDCG@5"] == pytest.approx(1)
    assert found.loc["ideal", "R@1"] == 1 and found.loc["ideal", "judged@5"] == 1
    row = found.loc["ideal"]
    assert row["difference"] == pytest.approx(1 - found.loc[leaderboard.PAPER, "nDCG@5"])
    assert 0 < row["difference low"] < row["difference"] < row["difference high"] and row["p"] < 0.05
    assert row["p"] <= row["p Holm"] and (row["turns"], row["dialogues"]) == (32, 8)
    assert np.isnan(found.loc[leaderboard.PAPER, "p"]) and rankings.RANDOM in found.index
    with pytest.raises(EntryError, match="another system has this name"):
        leaderboard.table(made, [*systems, systems[1]], seed=0)


# --- entries ------------------------------------------------------------------------------------------


def trec(made: Benchmark, path: Path) -> list[list[str]]:
    leaderboard.write_trec(path, scores_of(made), made, "x")
    return [line.split() for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (4, 0, "made-0/99", r"line 5: no turn has the id made-0/99"),
        (4, 2, "m99", r"line 5: no meme has the id m99"),
        (4, 4, "high", r"line 5: the score high is no finite number"),
        (4, 4, "nan", r"line 5: the score nan is no finite number"),
        (4, 5, "x y", r"line 5: 7 columns"),
    ],
)
def test_a_broken_line_is_refused(made: Benchmark, tmp_path: Path, row, column, value, message) -> None:
    path = tmp_path / "mine.trec"
    rows = trec(made, path)
    rows[row][column] = value
    path.write_text("\n".join(" ".join(cells) for cells in rows), encoding="utf-8")
    with pytest.raises(EntryError, match=rf"\Aentry mine\.trec, {message}[^\n]*\Z"):
        leaderboard.read_trec(path, made)


def test_missing_and_doubled_lines_are_refused(made: Benchmark, tmp_path: Path) -> None:
    path = tmp_path / "mine.trec"
    lines = [" ".join(cells) for cells in trec(made, path)]
    path.write_text("\n".join(lines[DEPTH:]), encoding="utf-8")
    with pytest.raises(EntryError, match=r"mine\.trec: 1 of 32 turns of split made have no meme: made-0/2"):
        leaderboard.read_trec(path, made)
    path.write_text("\n".join([*lines, lines[0]]), encoding="utf-8")
    with pytest.raises(EntryError, match=r"stands twice at turn made-0/2"):
        leaderboard.read_trec(path, made)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EntryError, match="no text in UTF-8"):
        leaderboard.read_trec(path, made)


def test_a_run_may_hold_turns_of_several_splits(made: Benchmark, tmp_path: Path) -> None:
    other = benchmark.build(made_split("other", 2))
    path = tmp_path / "other.trec"
    trec(other, path)
    known = {turn.id for built in (made, other) for turn in built.turns}
    assert leaderboard.read_trec(path, made, known) is None
    assert leaderboard.read_trec(path, other, known) is not None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_package", "it cannot be run: ModuleNotFoundError"),
        ("def other(): pass", r"it has no function rank\(turn, memes\)"),
        ("def rank(turn, memes): return [1 / 0]", "turn made-0/2: no scores: ZeroDivisionError"),
        ("def rank(turn, memes): return [1, 2]", "turn made-0/2: 2 scores for 30 memes"),
        ("def rank(turn, memes): return ['a'] * len(memes)", "turn made-0/2: no scores: ValueError"),
        ("def rank(turn, memes): return [float('inf')] * len(memes)", "meme m00 is no finite number"),
        ("def rank(turn, memes): raise SystemExit", "turn made-0/2: no scores: SystemExit"),
    ],
)
def test_a_broken_function_is_refused(made: Benchmark, tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(code, encoding="utf-8")
    with pytest.raises(EntryError, match=rf"\Aentry mine\.py[^\n]*{message}[^\n]*\Z"):
        leaderboard.ask(leaderboard.load_module(path).rank, path.name, made)


# --- the command --------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A finished run whose memes are about topics, and a user's grades: the topic's meme lands."""
    made = made_chats.finished_run(monkeypatch, tmp_path)
    rows = ["dialogue_id,turn,meme_id,grade"]
    for number in range(4):
        for turn in range(2, 7):
            topic = (number + turn) % made_chats.N_MEMES
            rows += [f"news-{number},{turn},{made_chats.meme_id(t)},{2 * (t == topic)}" for t in range(10)]
    (tmp_path / "grades.csv").write_text("\n".join(rows), encoding="utf-8")
    return made


def leaderboard_rows(run) -> dict[str, dict]:
    found = json.loads((run.report / leaderboard.FILE).read_text("utf-8"))
    return {row["system"]: row for row in found["rows"]}


FUNCTION = """
def rank(turn, memes):
    topic = turn.scenario.split("k")[-1]
    return [float(meme.s_plus == f"k{topic}") for meme in memes]
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return float('nan')", "wanted(turn) is no finite number"),
        ("return turn.text", "no number: ValueError"),
    ],
)
def test_a_broken_answer_to_when_is_refused(made: Benchmark, tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def rank(turn, memes): return [1.0] * len(memes)\ndef wanted(turn): {code}\n", "utf-8")
    with pytest.raises(
        leaderboard.EntryError, match=re.escape(f"entry mine.py, turn {made.turns[0].id}: {message}")
    ):
        leaderboard.entry_systems(str(path), made, set(), None)


def test_the_timing_task_is_scored_by_marks(made: Benchmark) -> None:
    sent = {turn.id: place % 3 == 0 for place, turn in enumerate(made.turns)}
    marks = tuple(Marked(turn, marker, int(send)) for turn, send in sent.items() for marker in ("one", "two"))
    told = np.array([float(sent[turn.id]) for turn in made.turns])
    systems = [leaderboard.Systems("function", {}, {"oracle": told, "contrary": -told})]
    found = leaderboard.timing_table(dataclasses.replace(made, marks=marks), systems)
    means = found.set_index(["system", "measure"])["mean"]
    assert means["oracle", "AUC"] == 1 and means["contrary", "AUC"] == 0
    assert means["oracle", "kappa with marker 2"] == 1
    assert leaderboard.timing_table(dataclasses.replace(made, marks=()), systems).empty


def test_a_file_and_a_function_appear_and_a_broken_one_is_refused(run, tmp_path: Path, capsys) -> None:
    kept = paths.raw / leaderboard.FOLDER
    kept.mkdir(parents=True)
    (kept / "topics.py").write_text(FUNCTION, encoding="utf-8")
    lines = [f"news-{n}/{t} Q0 m00 1 1.0 x" for n in range(4) for t in range(2, 7)]
    (tmp_path / "always.trec").write_text("\n".join(lines), encoding="utf-8")
    grades = ["--grades", str(tmp_path / "grades.csv")]
    words = ["leaderboard", "--run", "made", *grades]
    assert command.main([*words, "--name", "always m00", str(tmp_path / "always.trec")]) == 0
    assert "always m00" in capsys.readouterr().out
    rows = leaderboard_rows(run)
    assert rows["topics"]["kind"] == "function" and rows["topics"]["R@1"] == 1
    assert rows["always m00"]["kind"] == "file" and rows["always m00"]["R@1"] < 0.2
    assert rows[leaderboard.PAPER]["R@1"] == 1, "the memes' annotations name the topic"
    before = (run.report / "tables" / "leaderboard.csv").read_text("utf-8")
    (kept / "broken.trec").write_text(lines[0], encoding="utf-8")
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: entry broken.trec: ") and said.count("\n") == 1
    assert (run.report / "tables" / "leaderboard.csv").read_text("utf-8") == before


def test_a_release_has_run_files_of_every_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = [made_split(name) for name in ("made", "untouched")]
    built = [benchmark.build(split) for split in splits]

    def learned(one: Benchmark, run: object) -> leaderboard.Systems:
        return leaderboard.Systems("package", {leaderboard.LEARNED: scores_of(one)})

    monkeypatch.setattr(leaderboard, "learned_systems", learned)
    monkeypatch.setattr(Run, "embedder", lambda self: SimpleNamespace(encode=made_up.vectors))
    run = Run("made", load_profile("example"), tmp_path / "data", tmp_path / "report")
    leaderboard.write_runs(tmp_path / "runs", built, run, splits)
    names = sorted(path.relative_to(tmp_path / "runs").as_posix() for path in tmp_path.rglob("*.trec"))
    systems = ("caption", "learned", "paper", "random")
    assert names == [f"{split}/{system}.trec" for split in ("made", "untouched") for system in systems]
    read = leaderboard.read_trec(tmp_path / "runs" / "untouched" / "learned.trec", built[1])
    found, ours = (leaderboard.order_of(scores, IDS) for scores in (read, scores_of(built[1])))
    assert (found == ours).all()

    paid = dataclasses.replace(run, profile=run.profile.replace(embedder="endpoint", strategies=["greedy"]))
    leaderboard.write_runs(tmp_path / "paid", built, paid, splits)
    names = sorted(
        path.relative_to(tmp_path / "paid").as_posix() for path in (tmp_path / "paid").rglob("*.trec")
    )
    assert names == [f"made/{system}.trec" for system in systems if system != "learned"]


def test_a_run_without_grades_says_what_is_missing(run, capsys) -> None:
    assert command.main(["leaderboard", "--run", "made"]) == 2
    assert "GRADES=grades.csv" in capsys.readouterr().err


def test_an_entry_that_is_nothing_says_so(run, tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["leaderboard", "--run", "made", "--grades", str(tmp_path / "grades.csv")]
    assert command.main([*words, str(tmp_path / "gone.trec")]) == 2
    assert "gone.trec: there is no such file" in capsys.readouterr().err


def test_mod_reads_as_a_benchmark(run, tmp_path: Path, monkeypatch, capsys) -> None:
    """The meme that was sent counts; entries work as on the run's own."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    memes = run.load(Meme)
    renamed = [m.model_copy(update={"origin": f"set/{n:03d}.jpg"}) for n, m in enumerate(memes)]
    run.save(renamed, Meme)
    talks = {
        f"dialogue {n}": [
            {"speaker_id": "[speaker1]", "txt": f"说说 k{n}"},
            {"speaker_id": "[speaker2]", "txt": "好", "img_id": f"{n:03d}"},
        ]
        for n in range(7)
    }
    (tmp_path / "mod").mkdir()
    (tmp_path / "mod" / "c_val.json").write_text(json.dumps(talks), encoding="utf-8")
    entry = tmp_path / "last.py"
    entry.write_text(
        "def rank(turn, memes):\n    return [float(m.s_plus in turn.text.split()) for m in memes]\n", "utf-8"
    )
    with made_chats.agent().running() as server:
        profile = made_chats.live_profile(tmp_path, server.url)
        words = ["--profile", profile, "leaderboard", "--run", "made", "--mod", str(tmp_path / "mod")]
        assert command.main([*words, str(entry)]) == 0, capsys.readouterr().err
    other = insertion.asking_run(run, profile, "", "mod")
    rows = leaderboard_rows(other)
    assert rows["last"]["R@1"] == rows[leaderboard.PAPER]["R@1"] == 1
    assert rows["last"]["turns"] == 7 and rows["last"]["dialogues"] == 7
    (layout,) = benchmark.read(other.folder / "benchmark")
    assert layout.split == "c_val" and layout.turns[0].id == "c_val/dialogue_0/2"
