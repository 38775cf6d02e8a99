import numpy as np
import pytest
from made_studies import study

from memecmd_utils.evaluation import tables
from memecmd_utils.studies import gates, threshold_forms


@pytest.fixture(scope="module")
def data():
    return study(n_dialogues=20, unscored=[(0, 4)])


def test_the_three_forms_share_scale_and_rate(data) -> None:
    rules = threshold_forms.rules(data)
    assert list(rules) == ["exponential", "linear", "fixed"]
    assert [r.penalty for r in rules.values()] == [1.0, 1.0, 0.0]
    assert all(rule.theta0 is None and rule.scale == "standard" for rule in rules.values())
    assert (rules["linear"].decay, rules["exponential"].decay) == (0.25, 1.0)
    forms, _ = threshold_forms.threshold_tables(data)
    assert forms["rate"].to_numpy() == pytest.approx(0.3, abs=0.06)


def test_follow_ups_need_the_turn_before_in_the_same_dialogue() -> None:
    """Two dialogues of turns 2, 3, 4; turn 3 of the first has no summary, so 4 follows nothing."""
    data = study(n_dialogues=2, n_turns=4, unscored=[(0, 3)])
    sent = np.array([[True, True, True, True, True], [True, True, False, True, True]])
    found = threshold_forms.follow_ups(data, sent)
    assert found.tolist() == [[False, False, False, True, True], [False, False, False, False, True]]


def test_the_numbers_of_a_form_by_plain_counting(data) -> None:
    forms, differences = threshold_forms.threshold_tables(data)
    sent_by, best = threshold_forms.placed(data)
    for row in forms.to_dict("records"):
        keys = [key for key, is_sent in zip(data.keys, sent_by[row["form"]], strict=True) if is_sent]
        gaps = tables.gaps_of(keys)
        grade = {}
        for g in data.truth.grades:
            grade.setdefault((g.dialogue_id, g.turn, g.meme_id), []).append(g.grade)
        rows = {key: i for i, key in enumerate(data.keys)}
        memes = [(*key, data.meme_ids[best[rows[key]]]) for key in keys]
        assert row["memes"] == len(keys) and row["mean gap"] == pytest.approx(np.mean(gaps))
        assert row["sd of gaps"] == pytest.approx(np.std(gaps))
        assert row["follow-ups"] == pytest.approx(gaps.count(1) / len(keys))
        assert row["mean grade"] == pytest.approx(np.mean([np.mean(grade.get(m, [0])) for m in memes]))
        assert row["judged"] == pytest.approx(np.mean([m in grade for m in memes]))
        assert -1 <= row["kappa with made-up marker"] <= 1
    of = forms.set_index("form")
    for row in differences.to_dict("records"):
        assert row["mean"] == pytest.approx(
            of.loc[row["form"], row["measure"]] - of.loc["exponential", row["measure"]]
        )
        assert row["low"] <= row["mean"] <= row["high"]


def test_a_fixed_threshold_lets_memes_follow_each_other() -> None:
    """Scores that stay high for three turns: without a penalty nothing keeps the memes apart."""
    data = study(n_dialogues=16, n_turns=13)
    turn = np.array([key[1] for key in data.keys])
    top1 = np.where(turn % 6 < 3, 1.0, 0.0) + np.random.default_rng(0).random(len(turn)) / 10
    after = {
        form: threshold_forms.follow_ups(data, gates.sent(data, top1[None], rule)).sum()
        for form, rule in threshold_forms.rules(data).items()
    }
    assert after["fixed"] > after["exponential"] >= after["linear"]
