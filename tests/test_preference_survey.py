"""All answers here are made up."""

import json
import re
from html.parser import HTMLParser

import browser
import pytest
from made_surveys import NASTY, SYSTEMS, answers, pictures, readings, survey

from memecmd_utils import preference_survey
from memecmd_utils.human_ratings import RatingsError
from memecmd_utils.preference_survey import COLUMNS, QUESTIONS
from memecmd_utils.rating_items import FormError


class Scripts(HTMLParser):
    """Texts of the page's scripts as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.found.append("")

    def handle_endtag(self, tag) -> None:
        self.inside = False

    def handle_data(self, data) -> None:
        if self.inside:
            self.found[-1] += data


@pytest.fixture
def form(tmp_path):
    made, key = survey()
    file = preference_survey.write_form(tmp_path / "survey.html", made, key, pictures(tmp_path))
    return made, key, file


def test_the_page_gives_no_system_away(form) -> None:
    _, key, file = form
    text = re.sub(r"data:image/jpeg;base64,[\w+/=]+", "", file.read_text(encoding="utf-8"))
    for name in (*SYSTEMS, "secret-", "source", "prompt"):
        assert name not in text, name
    scripts = Scripts(text).found
    payload = json.loads(scripts[0])
    assert len(scripts) == 2, "a text broke out of the payload"
    assert {item["item"] for item in payload["items"]} == {row.item for row in key}
    shown = [o["text"] for item in payload["items"] for q in item["questions"] for o in q["options"]]
    assert NASTY in shown and tuple(payload["columns"]) == COLUMNS


def test_answers_of_all_systems_are_options_and_equal_ones_are_one() -> None:
    made, key = survey()
    assert len(made.items) == 3
    for item in made.items:
        # All systems name the same emotion, so nothing can be chosen there.
        assert list(item.questions) == [s for s in QUESTIONS if s != "emotions"]
        assert [len(o) for o in item.questions.values()] == [2, 2, 3, 2]
        for subtask, options in item.questions.items():
            rows = [r for r in key if (r.item, r.subtask) == (item.item, subtask)]
            assert {r.option for r in rows} == {o.letter for o in options}
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
        made, key = preference_survey.choose({"one": one, "two": two}, 5, seed)
        assert len(made.items) == 1 and {row.meme_id for row in key} == {"secret-17"}


def test_what_cannot_be_asked_is_refused(tmp_path) -> None:
    with pytest.raises(FormError, match="two systems or more"):
        preference_survey.choose({"one": readings(SYSTEMS[0])})
    others = {"one": readings(SYSTEMS[0], 1), "two": readings(SYSTEMS[1], 1, meme_id="other")}
    with pytest.raises(FormError, match="same memes"):
        preference_survey.choose(others)
    with pytest.raises(FormError, match="say the same"):
        preference_survey.choose({"one": readings(SYSTEMS[0]), "two": readings(SYSTEMS[0])})
    unscored = {"one": readings(SYSTEMS[0]), "two": readings(SYSTEMS[1], unscored="refused")}
    with pytest.raises(FormError, match="same memes"):
        preference_survey.choose(unscored)
    made, key = survey()
    with pytest.raises(FormError, match="no picture of secret-"):
        preference_survey.write_form(tmp_path / "x.html", made, key, {})
    (tmp_path / "broken.jpg").write_bytes(b"GIF89a and no more")
    broken = dict.fromkeys((row.meme_id for row in key), tmp_path / "broken.jpg")
    with pytest.raises(FormError, match=r"broken\.jpg: broken image data"):
        preference_survey.write_form(tmp_path / "x.html", made, key, broken)


def test_key_and_answers_are_read_as_they_were_written(tmp_path) -> None:
    _, key = survey()
    assert preference_survey.read_key(preference_survey.write_key(tmp_path / "key.csv", key)) == key
    given = [*answers(key), *answers(key, "r2", SYSTEMS[1], source="human", comment='a, "b"')]
    file = preference_survey.write_answers(tmp_path / "answers.csv", given)
    assert file.read_text(encoding="utf-8").split("\n")[0].split(",") == list(COLUMNS)
    assert preference_survey.read_answers(file, key) == given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": "Z"}, "'Z' cannot be chosen there"),
        ({"options": "a"}, "line 2: options"),
        ({"form": "other"}, "no such question"),
        ({"subtask": "emotions"}, "no such question"),
    ],
)
def test_bad_answers_are_named(tmp_path, change, message) -> None:
    _, key = survey()
    given = [answers(key)[0].model_copy(update=change)]
    file = preference_survey.write_answers(tmp_path / "answers.csv", given)
    with pytest.raises(RatingsError, match=message):
        preference_survey.read_answers(file, key)


def test_a_time_that_a_spreadsheet_changed_is_named(tmp_path) -> None:
    _, key = survey()
    file = preference_survey.write_answers(tmp_path / "answers.csv", answers(key)[:1])
    file.write_text(file.read_text(encoding="utf-8").replace("2026-01-02T00:00:00Z", "yesterday"), "utf-8")
    with pytest.raises(RatingsError, match="line 2: at"):
        preference_survey.read_answers(file, key)


def test_two_choices_where_one_is_asked_are_refused(tmp_path) -> None:
    _, key = survey()
    given = next(a for a in answers(key) if a.subtask == "meme caption")
    file = preference_survey.write_answers(tmp_path / "x.csv", [given.model_copy(update={"options": "A B"})])
    with pytest.raises(RatingsError, match="'A B' cannot be chosen there"):
        preference_survey.read_answers(file, key)
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(RatingsError, match="columns missing"):
        preference_survey.read_answers(file, key)


def test_the_form_works_in_a_browser(form, tmp_path) -> None:
    made, key, file = form
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
        assert browser.errors(driver) == []
    given = preference_survey.read_answers(saved, key)
    assert {a.item for a in given} == {made.items[0].item} and {a.source for a in given} == {"made up"}
    assert [a.options for a in given] == ["A B", "B", "C", ""]
    assert given[0].comment == '=1+1, "x"'
