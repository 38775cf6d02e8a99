"""Whether memes of learned placement land, counted on made-up splits; fitting one's own grades."""

import dataclasses
import json

import made_chats
import made_up
import numpy as np
import pytest

from memecmd_utils import learned
from memecmd_utils.evaluation import landing, learning
from memecmd_utils.evaluation.landing import Graded
from memecmd_utils.evaluation.learning import Choice, Corpus, Predicted
from memecmd_utils.evaluation.rankings import Query
from memecmd_utils.files import StageOutputError
from memecmd_utils.schemas import Dialogue
from memecmd_utils.settings import load_profile


@pytest.fixture
def made() -> Graded:
    """Ten dialogues of five turns, six memes: learned finds the meme that fits, the paper finds another."""
    rng, memes = np.random.default_rng(3), 6
    dialogues = [made_up.dialogue(f"{'news' if n % 2 else 'role'}-{n}") for n in range(10)]
    dialogues = [d.model_copy(update={"kind": d.dialogue_id.partition("-")[0]}) for d in dialogues]
    asked = [Query(d, s.turn) for d in dialogues for s in d.summaries]
    fitting = rng.integers(memes, size=len(asked))
    gains = np.zeros((len(asked), memes))
    gains[np.arange(len(asked)), fitting] = 4
    wanted = rng.random(len(asked))
    marks = np.stack([wanted > 0.5] * 2, axis=1).astype(int)
    corpus = Corpus(asked, [f"m{n}" for n in range(memes)], [], [], gains, marks)
    noise = rng.random(gains.shape)
    found = Predicted(gains + 0.1 * noise, wanted, wanted)
    return Graded("made", corpus, found, np.roll(gains, 1, axis=1) + 0.1 * noise, load_profile("example"))


def test_what_learned_sends_fits_and_what_the_paper_sends_does_not(made: Graded) -> None:
    found = landing.tabulate([made])
    placed = found.placed[found.placed.part == "all"].set_index("way")
    assert placed.fits["learned"] == 1 and placed.fits["greedy"] == 0
    assert placed.memes["learned"] == made.ways["learned"].turns.sum() > 0
    assert placed["wanted and fits"]["learned"] > 0.9  # promise is P(wanted) here
    gaps = found.differences.set_index(["part", "learned minus", "where"])["mean"]
    assert gaps["all", "greedy", "each at its own turns"] == 2
    assert gaps["all", "greedy", "at the turns of Greedy"] == 2
    ranking = found.ranking.set_index(["part", "what"])["R@1"]
    assert ranking["news", "learned"] == 1 and ranking["role", "the paper's score"] == 0
    gate = found.gate.set_index(["gate", "measure"])["mean"]
    assert gate["learned", "AUC"] == 1 and gate["learned", "kappa with marker 2"] > 0.9
    assert abs(gate["the paper's top score", "AUC"] - 0.5) < 0.3
    assert found.reliability["marked"].is_monotonic_increasing
    assert found.reliability["turns"].sum() == len(made.corpus.asked)
    assert {row["case"] for row in found.cases} == {"win"}


def test_a_meme_that_nobody_graded_counts_as_not_fitting_and_is_told(made: Graded) -> None:
    gains = np.where(made.corpus.gains == 4, np.nan, made.corpus.gains)
    corpus = dataclasses.replace(made.corpus, gains=gains)
    (row,) = [
        r
        for r in landing.placed_rows(dataclasses.replace(made, corpus=corpus))
        if (r["part"], r["way"]) == ("all", "learned")
    ]
    assert row["ungraded"] == 1 and row["fits"] == 0


def test_the_memory_of_the_last_meme_keeps_memes_apart(made: Graded) -> None:
    with_memory = dataclasses.replace(made, profile=made.profile.replace(learned_penalty=20.0))

    def followed(one: Graded) -> int:
        names, sent = np.array(one.corpus.dialogues), one.ways["learned"].turns
        return int((sent[1:] & sent[:-1] & (names[1:] == names[:-1])).sum())

    assert followed(with_memory) < followed(made)


def test_new_memes_are_measured_by_themselves(made: Graded) -> None:
    rows = landing.ranking_rows(dataclasses.replace(made, new=frozenset({"m1", "m2"})))
    alone = {r["what"]: r for r in rows if r["part"] == "new memes alone"}
    best = made.corpus.gains.argmax(axis=1)
    assert alone["learned"]["turns"] == np.isin(best, [1, 2]).sum() and alone["learned"]["R@1"] == 1


@pytest.fixture
def graded(monkeypatch, tmp_path):
    """A made-up run of ten dialogues, and a CSV file that grades three memes of every turn."""
    run = made_chats.finished_run(monkeypatch, tmp_path, mode="auto")
    monkeypatch.setattr(learning, "TREES", 5)
    monkeypatch.setattr(learning, "CHOICES", [Choice(3.0, 2, 0.0)])
    monkeypatch.setattr(landing, "embedder_of", lambda *_, **__: made_chats.TopicEmbedder())
    dialogues, lines = [], ["dialogue_id,turn,meme_id,grade"]
    for number in range(10):
        base = made_up.dialogue(f"news-{number}")
        topics = {s.turn: (3 * number + s.turn) % made_chats.N_MEMES for s in base.summaries}
        told = [s.model_copy(update=made_chats.summary(topics[s.turn])) for s in base.summaries]
        dialogues.append(base.model_copy(update={"summaries": told}))
        for turn, topic in topics.items():
            fits = 2 if turn % 2 else 0  # at even turns nothing fits
            for step, grade in ((0, fits), (3, 0), (7, 0)):
                meme = made_chats.meme_id((topic + step) % made_chats.N_MEMES)
                lines.append(f"{base.dialogue_id},{turn},{meme},{grade}")
    run.save(dialogues, Dialogue)
    path = tmp_path / "grades.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run, path


def test_ones_own_grades_fit_what_insert_memes_applies(graded) -> None:
    run, path = graded
    found = landing.fit_run(run, path)
    ranking = found.ranking[found.ranking.part == "all"].set_index("what")["R@1"]
    assert ranking[learning.LEARNED] > 0.9
    gap = ranking["learned minus the paper's score"]
    assert gap == pytest.approx(ranking[learning.LEARNED] - ranking[learning.PAPER])
    assert (run.report / "tables" / "learned_placed.csv").is_file()
    assert json.loads(run.write(landing.FILE).read_text())["ranking"]
    model = learned.load_placement(run.write("placement.json"))
    assert model.model.embedders == ("topics", "topics")
    assert set(model.fold_of) == {f"news-{n}" for n in range(10)}


def test_a_run_without_enough_grades_and_a_bad_file_are_errors(graded, tmp_path) -> None:
    run, path = graded
    with pytest.raises(StageOutputError, match="5 or more dialogues of each kind; here are none"):
        landing.fit_run(run)
    few = "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("news-"))
    (tmp_path / "few.csv").write_text(few + "news-1,2,m01,2\n")
    with pytest.raises(StageOutputError, match="here are 1 news"):
        landing.fit_run(run, tmp_path / "few.csv")
    (tmp_path / "bad.csv").write_text("dialogue_id,turn,meme_id,grade\nnews-1,2,m01,7\n")
    with pytest.raises(StageOutputError, match=r"bad\.csv line 2"):
        landing.fit_run(run, tmp_path / "bad.csv")
    (tmp_path / "lacks.csv").write_text("dialogue_id,turn,meme\nnews-1,2,m01\n")
    with pytest.raises(StageOutputError, match=r"lacks\.csv line 2"):
        landing.fit_run(run, tmp_path / "lacks.csv")
    assert not run.write("placement.json").exists()
