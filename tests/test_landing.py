"""Do memes land? Who sends what where, by hand, and the tables of a made-up split."""

import json
import re
from dataclasses import replace
from pathlib import Path

import made_chats
import made_turns
import made_up
import numpy as np
import pandas as pd
import pytest

from memecmd_utils import benchmark, learned, retrieval
from memecmd_utils.files import StageOutputError
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Dialogue, Placement
from memecmd_utils.splits import splits_of_run
from memecmd_utils.studies import landing
from memecmd_utils.studies.landing import ALL, GREEDY, POPULAR, SINGLE, Senders

N_DIALOGUES, TURNS, MEMES = 8, 5, 4
FEW = {"PENALTIES": (3.0, 30.0), "GATE_STRENGTHS": (0.3,)}


@pytest.fixture
def made() -> Senders:
    """Eight dialogues of six turns, four memes. m000 is what everybody likes: it fits at every second turn.

    The paper ranks m003 first everywhere, learned placement m001; a model chose m002 at turns 2 and 4, and
    the marker would send there.
    """
    rng, data = np.random.default_rng(0), made_turns.world(N_DIALOGUES, TURNS + 1, MEMES)
    is_sent = np.array([turn in (2, 4) for _, turn in data.keys])
    n = len(is_sent)
    given = np.zeros((n, MEMES))
    given[::2, 0] = 2  # lands at every second turn
    given[:, 1] = np.arange(n) % 3  # 0, 1, 2, 0, ...
    given[:, 2] = np.tile([2, 0, 1, 0, 0], N_DIALOGUES)
    given[0, 3] = np.nan
    scores = {meme: np.zeros((n, MEMES)) for meme in range(MEMES)}
    for meme, of in scores.items():
        of[:, meme] = 1 + rng.random(n)
    chosen = [
        made_up.choice(*key, "m002" if sent else "") for key, sent in zip(data.keys, is_sent, strict=True)
    ]
    marks = is_sent[:, None].astype(float)
    vars(data).update(grades=given, answerable=np.arange(n), scores=scores[3], marks=marks)
    said = learned.Predicted(scores[1], rng.random(n), rng.random(n))
    return Senders(data, said, scores[1], scores[0], scores[0], {retrieval.RERANKED: chosen})


def test_who_sends_what_where(made: Senders) -> None:
    every, turns = replace(made), np.array([turn for _, turn in made.data.keys])
    every.turns[retrieval.RERANKED][:] = True  # five turns a chat, four memes

    def sent(who: str, where: str, made: Senders = made) -> list[tuple[int, str]]:
        return [*made.sent(who, where).memes[["turn", "meme"]].itertuples(index=False, name=None)]

    assert (made.turns[retrieval.RERANKED] == np.isin(turns, (2, 4))).all() and made.turns[ALL].all()
    for who, meme in ((POPULAR, "m000"), (SINGLE, "m000"), (learned.LEARNED, "m001"), (GREEDY, "m003")):
        assert sent(who, ALL) == [(turn, meme) for turn in turns]
    order = retrieval.order(made.liked, made.data.meme_ids)
    nth = np.where(turns == 2, 0, 1)  # no meme twice in a chat
    by_turn = [(turn, f"m00{memes[n]}") for turn, memes, n in zip(turns, order, nth, strict=True)]
    assert sent(POPULAR, retrieval.RERANKED) == [one for one in by_turn if one[0] in (2, 4)]
    nth = np.tile([0, 1, 2, 3, 0], N_DIALOGUES)
    by_turn = [(turn, f"m00{memes[n]}") for turn, memes, n in zip(turns, order, nth, strict=True)]
    assert sent(POPULAR, retrieval.RERANKED, every) == by_turn
    gated = made.turns[learned.LEARNED]
    assert gated.mean() == pytest.approx(made.data.profile.retrieval.wanted_rate, abs=0.1)
    first = made.firsts[retrieval.RERANKED]  # its choice stands before the paper's order
    assert (first == np.where(made.chosen[retrieval.RERANKED] >= 0, 2, 3)).all()


def test_turns_without_a_summary_count_for_the_gate_as_in_the_run() -> None:
    """Where the summary agent failed at a fifth of the turns greedy is measured at the turns of the run."""
    rng = np.random.default_rng(1)
    lacking = [(n, turn) for n in range(6) for turn in rng.choice(range(2, 19), 4).tolist()]
    data = made_turns.world(dialogues=6, turns=18, unscored=lacking, threshold_penalty=2.0)
    index = retrieval.index_library(data.annotations, made_turns.encode, data.profile)
    scored = retrieval.score_dialogues(data.split.dialogues, index, made_turns.encode, data.profile)
    placed = retrieval.place(scored, index, data.profile.replace(strategies=[GREEDY]))
    said = learned.Predicted(data.scores, *data.scores.T[:2])
    sent = Senders(data, said, data.scores, data.scores, data.scores, {}).sent(GREEDY, GREEDY).memes
    keys = [*zip(sent["dialogue"], sent["turn"], strict=True)]
    assert keys == [(p.dialogue_id, p.turn) for p in placed] != []


def test_tables_say_what_the_measures_say(made: Senders, tmp_path: Path) -> None:
    run = Run("made", made.data.profile, tmp_path / "run", tmp_path / "report")
    found = landing.tabulate(run, [made])
    placed = found["placed"].set_index(["where", "who"])
    mine = placed.loc[("reranked", "reranked")]
    assert (mine.memes, mine.fits.value, mine.lands.value) == (2 * N_DIALOGUES, 1, 0.5)
    counted = (mine.different, mine.repeats, mine.chats, mine["lands a chat"])
    assert counted == (1, N_DIALOGUES, N_DIALOGUES, 1)
    assert placed.loc[("reranked", POPULAR), "repeats"] == 0
    minus = found["differences"].set_index(["where", "who", "minus", "measure"])
    gap = minus.loc[("reranked", "reranked", "greedy", "fits")]
    assert (gap.difference.value, gap.n, gap.dialogues) == (1, 2 * N_DIALOGUES, N_DIALOGUES)
    sending = found["sending"].set_index("who").loc["reranked"]
    assert (sending.rate, sending["kappa with made-up marker"].value) == (0.4, 1)
    ranking = found["ranking"].set_index("what")
    assert ranking.loc["learned", "R@1"].value == pytest.approx(2 / 3, abs=0.02)
    quoted = landing.quoted(run)  # with the tables of what was asked once, which no run changes
    assert quoted["placed"][0]["split"] == "made up" and quoted["settings"][0]["memes"] == 33


@pytest.fixture
def graded(monkeypatch, tmp_path: Path):
    """A run with ten dialogues of each kind, and a table in which the meme of a turn's topic fits."""
    run = made_chats.finished_run(monkeypatch, tmp_path)
    monkeypatch.setattr(learned, "embedder_of", lambda *_, **__: made_chats.TopicEmbedder())
    for name, values in FEW.items():
        monkeypatch.setattr(learned, name, values)
    dialogues, lines = [], ["dialogue_id,turn,meme_id,grade"]
    for number in range(10):
        base = made_up.dialogue(f"news-{number}")
        topics = {s.turn: (3 * number + s.turn) % made_chats.N_MEMES for s in base.summaries}
        told = [s.model_copy(update=made_chats.summary(topics[s.turn])) for s in base.summaries]
        dialogues.append(base.model_copy(update={"summaries": told}))
        for turn, topic in topics.items():
            for step, grade in ((0, 2), (3, 0), (7, 0)):
                meme = made_chats.meme_id((topic + step) % made_chats.N_MEMES)
                lines.append(f"{base.dialogue_id},{turn},{meme},{grade}")
    run.save(dialogues, Dialogue)
    path = tmp_path / "grades.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run, path


def test_ones_own_grades_fit_what_insert_memes_applies(monkeypatch, graded) -> None:
    """And scores of a split are saved once and read back."""
    run, path = graded
    run.save_json(landing.TABLES, {"of": "notebook 04b"})
    told = landing.fit_run(run, path)
    assert "| reranked |" not in told and "| learned | learned |" in told and "there is no gate" in told
    assert run.load_json(landing.TABLES) == {"of": "notebook 04b"}, "its own tables are in fitted.json"
    saved = pd.read_csv(run.report / "tables" / "fitted_ranking.csv")
    assert saved.set_index("what")["R@1"]["learned"] > 0.9
    assert json.loads(run.write("fitted.json").read_text())["ranking"]
    model = learned.load_placement(run.write(learned.FILE))
    assert all(one.gate is None for one in (model.model, *model.folds)), "grades do not say when"
    assert model.embedders == ("topics", "topics") and set(model.fold_of) == {f"news-{n}" for n in range(10)}
    landing.tabulate(run, landing.grade_run(run))  # nobody graded this run's memes but in the table
    assert landing.saved_rankings(run, "made") is None and landing.quoted(run) == {}
    split = next(splits_of_run(run, path))
    monkeypatch.setattr(landing, "splits_of_run", lambda _: [split])
    landing.tabulate(run, landing.grade_run(run))
    found, sends, ids = landing.saved_rankings(run, "made")
    assert sends["greedy"].sum() and {"learned", "greedy"} <= set(sends) and ALL not in sends
    assert {"learned", POPULAR, SINGLE, landing.PAPER} <= set(found) and set(ids) == set(split.memes)
    assert found["learned"].shape == (len(sends["greedy"]), len(ids))


def test_a_fit_on_few_grades_ends_with_a_sentence(graded) -> None:
    """Turn 2 alone is graded, and hardly a system's best memes: it ends well, and measures turn 2 alone."""
    run, path = graded
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([head, *(r for r in rows if r.split(",")[1] == "2")]), encoding="utf-8")
    told = landing.fit_run(run, path)
    # Three memes of a turn are graded, so what others rank first mostly is not: no number is made of that.
    assert re.search(r"all turns \| random \| 10 \| 0\.\d+( \| –){4} \|", told)
    assert "there is no gate" in told and "`make grading-page`" in told
    placed = pd.read_csv(run.report / "tables" / "fitted_placed.csv").set_index(["where", "who"])
    assert placed.loc[(ALL, "learned"), "memes"] == 10
    one_a_turn = {tuple(row.split(",")[:2]): row for row in rows}.values()
    path.write_text("\n".join([head, *one_a_turn]), encoding="utf-8")
    with pytest.raises(StageOutputError, match="At no turn do two of them differ"):
        landing.fit_run(run, path)
    path.write_text("\n".join([head, *rows[:2]]), encoding="utf-8")
    for given, here in ((path, "1 news"), (None, "none")):
        with pytest.raises(StageOutputError, match=f"5 or more dialogues of each kind; here are {here}"):
            landing.fit_run(run, given)


def test_a_page_for_grades_takes_one_turn_of_every_dialogue_first(graded) -> None:
    run, _ = graded
    run.save([made_up.placement(2, made_chats.meme_id(0), dialogue_id="news-0")], Placement)
    told = benchmark.grading_page(run)
    page = (run.report / "grade.html").read_text(encoding="utf-8")
    asked = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page)[1])
    first = list(dict.fromkeys(tuple(asked["turns"][turn]["key"]) for turn, _ in asked["items"]))[:10]
    assert len({name for name, _ in first}) == 10 and str(run.report / "grade.html") in told
    assert len({*map(tuple, asked["items"])}) == len(asked["items"]) >= 2 * len(asked["turns"])
