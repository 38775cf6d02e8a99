"""All answers here are made up."""

import browser
import pytest
from made_surveys import SYSTEMS, answers, pictures, readings, survey

from memecmd_utils import forms
from memecmd_utils.cm50 import survey as cm50_survey
from memecmd_utils.cm50.survey import QUESTIONS, SurveyAnswer
from memecmd_utils.forms import Answers, FormError


def test_answers_of_all_systems_are_options_and_equal_ones_are_one() -> None:
    made, key = survey()
    assert len(made.items) == 3
    for item in made.items:
        # All systems name the same emotion, so nothing can be chosen there.
        assert [q.name for q in item.questions] == [s for s in QUESTIONS if s != "emotions"]
        assert [len(q.options) for q in item.questions] == [2, 2, 3, 2]
        for question in item.questions:
            rows = [r for r in key if (r.item, r.subtask) == (item.item, question.name)]
            assert {r.option for r in rows} == {o.key for o in question.options}
            assert {r.system for r in rows} == set(SYSTEMS)


def test_the_order_is_drawn_by_seed() -> None:
    one, other, again = survey(seed=1), survey(seed=2), survey(seed=1)
    assert one == again and one[0].form != other[0].form
    places = {
        row.option
        for seed in range(12)
        for row in survey(seed=seed)[1]
        if row.system == SYSTEMS[0] and row.subtask == "meme caption"
    }
    assert places == {"A", "B", "C"}


def test_memes_of_which_all_say_the_same_are_passed_over() -> None:
    same = {"meme_caption": "m", "image_caption": "i", "embedded_text": "t", "literary_devices": []}
    one, two = ([r.model_copy(update=same) for r in readings(name, 30)] for name in SYSTEMS[:2])
    two[17] = two[17].model_copy(update={"meme_caption": "another"})
    for seed in range(5):
        made, key = cm50_survey.choose({"one": one, "two": two}, 5, seed)
        assert len(made.items) == 1 and {row.meme_id for row in key} == {"secret-17"}


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(FormError, match="two systems or more"):
        cm50_survey.choose({"one": readings(SYSTEMS[0])})
    others = {"one": readings(SYSTEMS[0], 1), "two": readings(SYSTEMS[1], 1, meme_id="other")}
    with pytest.raises(FormError, match="same memes"):
        cm50_survey.choose(others)
    with pytest.raises(FormError, match="say the same"):
        cm50_survey.choose({"one": readings(SYSTEMS[0]), "two": readings(SYSTEMS[0])})
    unscored = {"one": readings(SYSTEMS[0]), "two": readings(SYSTEMS[1], unscored="refused")}
    with pytest.raises(FormError, match="same memes"):
        cm50_survey.choose(unscored)


def test_the_form_works_in_a_browser(tmp_path) -> None:
    made, key = survey()
    file = forms.write_page(tmp_path / "survey.html", made, pictures(tmp_path))
    folder = tmp_path / "downloads"
    folder.mkdir()
    with browser.open_browser(1200, 900) as driver:
        behaviour = {"behavior": "allow", "downloadPath": str(folder)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        driver.get(file.as_uri())
        for name in ("consent", "trial"):
            driver.find_element("id", name).click()
        driver.find_element("id", "rater").send_keys("r1")
        driver.find_element("id", "begin").click()
        next_ = driver.find_element("id", "next")
        next_.click()
        assert "choose one" in driver.find_element("id", "say").text  # a caption has no choice yet
        assert len(driver.find_elements("css selector", "#questions fieldset")) == 4
        driver.find_element("id", "q0A").click()
        driver.find_element("id", "q0B").click()  # several
        driver.find_element("id", "q1A").click()
        driver.find_element("id", "q1B").click()  # one: B stays
        driver.find_element("id", "q2C").click()
        driver.find_element("id", "comment").send_keys('=1+1, "x"')
        next_.click()
        driver.find_element("id", "skip").click()
        there = min(2, len(made.items) - 1)  # answers are kept, and the place
        browser.reload_until(driver, lambda: driver.execute_script("return state.position") == there)
        driver.find_element("id", "consent").click()
        driver.find_element("id", "begin").click()
        driver.find_element("css selector", "#bar .download").click()
        saved = browser.downloaded(folder)
        # Another device takes the file in and gives the same again.
        text = saved.read_text(encoding="utf-8-sig")
        driver.execute_script("state = fresh()")
        assert driver.execute_script("return takeCsv(arguments[0])", text) == ""
        assert driver.execute_script("return csvText()") == text
        assert browser.errors(driver) == []
    given = forms.load([saved], key, SurveyAnswer).answers
    assert {a.item for a in given} == {made.items[0].item} and {a.source for a in given} == {"made up"}
    assert [a.options for a in given] == ["A B", "B", "C", ""]
    assert given[0].comment == '=1+1, "x"'


def test_the_papers_cells_add_up_to_its_totals() -> None:
    table = cm50_survey.paper_votes()
    assert len(table) == 26
    total = table.iloc[-1]
    assert total["meme"] == "Total" and total[2:].tolist() == [49, 34, 44, 28, 14, 21]


def test_votes_are_counted_by_meme_subtask_and_system() -> None:
    _, key = survey()
    table = cm50_survey.tally(Answers([*answers(key, "r1"), *answers(key, "r2", SYSTEMS[1])], key))
    assert list(table.columns) == ["meme", "subtask", *SYSTEMS]
    assert len(table) == 3 * 4 + 1 and set(table["meme"]) - {"Total"} <= {f"secret-{i}" for i in range(4)}
    by = table.groupby("subtask")[list(SYSTEMS)].sum()
    assert by.loc["meme caption"].tolist() == [3, 3, 0]
    assert by.loc["embedded text"].tolist() == [3, 3, 3]  # the third says what the second says
    total = table.iloc[-1]
    assert total[SYSTEMS[0]] == table[SYSTEMS[0]][:-1].sum() == 12
    assert table.attrs == {"source": "made up", "raters": 2}


def test_totals_stand_beside_the_papers() -> None:
    _, key = survey()
    found = cm50_survey.vote_totals(cm50_survey.tally(Answers(answers(key), key)))
    assert found.loc[SYSTEMS[0], "votes"] == 12 and found.loc[SYSTEMS[0], "share of the best"] == 1
    assert found.loc["GPT-4o, with context", "votes (paper)"] == 49
    named = [row.model_copy(update={"system": "GPT-4o, with context"}) for row in key]
    joined = cm50_survey.vote_totals(
        cm50_survey.tally(Answers(answers(named, prefers="GPT-4o, with context"), named))
    )
    assert joined.loc["GPT-4o, with context", ["votes", "votes (paper)"]].notna().all()
