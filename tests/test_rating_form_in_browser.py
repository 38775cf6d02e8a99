"""The form in a real browser. What is entered here is made up, and the form is told so."""

import time

import browser
import made_ratings
import pytest
from made_ratings import NASTY, answers, dialogues, files, form

from memecmd_utils import forms
from memecmd_utils.people import HumanRating
from memecmd_utils.schemas import DIMENSIONS


@pytest.fixture
def driver():
    """One for each test: what a page stored, or cleared, may reach the next page of a browser too late."""
    with browser.open_browser(1200, 900) as opened:
        yield opened


@pytest.fixture
def page(driver, tmp_path):
    """Write a form, open it, and return what the tests need."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def open_form(kind: str = "rating", **changes):
        made, key = form(kind, n_items=3, **{"repeats": 0, **changes})
        path = forms.write_page(tmp_path / "form.html", made, files(tmp_path))
        driver.get(path.as_uri())
        return made, key, folder

    yield open_form
    assert browser.errors(driver) == []


def by_id(driver, name: str):
    return driver.find_element("id", name)


def keys(driver, *pressed: str) -> None:
    """Type into whatever has the focus, as a hand on the keyboard does."""
    for key in pressed:
        driver.switch_to.active_element.send_keys(key)


def begin(driver, name: str = "rater-1") -> None:
    by_id(driver, "rater").send_keys(name)
    by_id(driver, "consent").click()
    by_id(driver, "trial").click()
    by_id(driver, "begin").click()


def downloaded(driver, folder):
    driver.find_element("css selector", "#bar .download").click()
    return browser.downloaded(folder)


def test_two_items_by_keyboard_then_the_csv(driver, page) -> None:
    from selenium.webdriver.common.keys import Keys

    made, key, folder = page()
    keys(driver, Keys.TAB)  # from the top of the page to the name
    keys(driver, "rater-1", Keys.TAB, " ", Keys.TAB, " ", Keys.ENTER)
    assert by_id(driver, "trial-note").is_displayed()
    for first in "70":
        # The first question has the focus; a digit sets tens, the arrows change by five, End is 100.
        keys(driver, first, Keys.TAB, "4", Keys.ARROW_RIGHT, Keys.TAB, Keys.END, Keys.TAB, " ", Keys.TAB)
        keys(driver, Keys.ENTER)  # one is missing
        assert "missing" in by_id(driver, "say").text
        keys(driver, Keys.HOME, Keys.ENTER)
    assert by_id(driver, "count").text == "3 / 3"
    file = downloaded(driver, folder)
    assert file.name == f"ratings_{made.form}_rater-1.csv"
    found = forms.load([file], key, HumanRating)
    assert found.source == "made up" and [r.item for r in found.answers] == [i.item for i in made.items[:2]]
    for answer, first in zip(found.answers, (70, 0), strict=True):
        assert [getattr(answer, name) for name in DIMENSIONS] == [first, 45, 100, 50, 0]
        assert answer.rater == "rater-1" and 0 < answer.seconds < 60


def test_choices_by_keyboard_and_an_earlier_csv_taken_in(driver, page) -> None:
    from selenium.webdriver.common.keys import Keys

    _, key, folder = page("pairwise")
    begin(driver)
    keys(driver, "b", Keys.ENTER, "n", Keys.ENTER, "a", Keys.ENTER)
    assert by_id(driver, "end").is_displayed() and "Thank you" in by_id(driver, "end").text
    file = downloaded(driver, folder)
    assert [r.choice for r in forms.load([file], key, HumanRating).answers] == [
        "B",
        "no difference",
        "A",
    ]
    rows = file.read_text(encoding="utf-8-sig").split("\n")
    file.write_text("\ufeff" + "\r\n".join(rows[:3]) + "\r\n", encoding="utf-8")
    with browser.open_browser(1200, 900) as other:  # another device
        other.get(driver.current_url)
        by_id(other, "import").send_keys(str(file))
        assert "2 answers imported" in wait_for_text(other, "who-say")
        assert by_id(other, "rater").get_attribute("value") == "rater-1"
        by_id(other, "consent").click()
        by_id(other, "begin").click()
        assert by_id(other, "count").text == "3 / 3" and by_id(other, "trial-note").is_displayed()
        assert csv_text(other).split("\n")[:3] == rows[:3]
        assert browser.errors(other) == []


def csv_text(driver) -> str:
    return driver.execute_script("return csvText()")


def wait_for_text(driver, name: str) -> str:
    end = time.monotonic() + 10
    while not (text := by_id(driver, name).text):
        assert time.monotonic() < end
        time.sleep(0.05)
    return text


def test_files_that_do_not_fit_are_refused(driver, page, tmp_path) -> None:
    _, key, _ = page()
    given = answers(key, ["r1"])
    bad = {
        "another form": answers(form("rating", n_items=2, seed=77)[1], ["r1"]),
        "two people": answers(key, ["r1", "r2"]),
        "another item": [given[0].model_copy(update={"item": "nothing"})],
        "out of range": [given[0].model_copy(update={"humor_effect": 101.0})],
        "empty": [],
    }
    for name, rows in bad.items():
        path = made_ratings.write_answers(tmp_path / f"{name}.csv", HumanRating, rows)
        message = driver.execute_script("return takeCsv(arguments[0])", path.read_text(encoding="utf-8"))
        assert message and csv_text(driver).count("\n") == 1, name
    path = made_ratings.write_answers(tmp_path / "good.csv", HumanRating, given)
    assert driver.execute_script("return takeCsv(arguments[0])", path.read_text(encoding="utf-8")) == ""
    path.write_text(csv_text(driver), encoding="utf-8")
    found = forms.load([path], key, HumanRating).answers
    assert sorted(r.model_dump_json() for r in found) == sorted(r.model_dump_json() for r in given)


def test_answers_outlive_a_reload_and_can_be_changed(driver, page) -> None:
    from selenium.webdriver.common.keys import Keys

    page()
    begin(driver)
    keys(driver, "1", Keys.TAB, "2", Keys.TAB, "3", Keys.TAB, "4", Keys.TAB, "5", Keys.ENTER)
    browser.reload_until(driver, lambda: driver.execute_script("return state.position") == 1)
    assert by_id(driver, "rater").get_attribute("value") == "rater-1"
    assert not by_id(driver, "consent").is_selected(), "asked again"
    by_id(driver, "consent").click()
    by_id(driver, "begin").click()
    assert by_id(driver, "count").text == "2 / 3"
    by_id(driver, "back").click()
    assert [by_id(driver, f"o{i}").text for i in range(5)] == ["10", "20", "30", "40", "50"]
    keys(driver, "9")
    assert csv_text(driver).split("\n")[1].split(",")[4:9] == ["90", "20", "30", "40", "50"]


def test_markup_in_the_data_is_shown_as_text(driver, page) -> None:
    page(of=dialogues(text=NASTY))
    begin(driver)
    shown = [bubble.text for bubble in driver.find_elements("css selector", ".bubble")]
    assert shown and all("</script><img src=x onerror=alert(1)><!--" in text for text in shown)
    assert driver.execute_script("return document.querySelectorAll('#shown img').length") == 1
    by_id(driver, "comment").send_keys('=1+1,"<b>')
    for slider in driver.find_elements("css selector", "input[type=range]"):
        slider.send_keys("5")
    assert csv_text(driver).split("\n")[1].endswith(""","'=1+1,""<b>",1""")


@pytest.mark.parametrize("kind", ["rating", "pairwise"])
def test_it_fits_a_phone(driver, page, kind) -> None:
    page(kind)
    browser.resize(driver, 390, 844)
    widths = "return [document.documentElement.scrollWidth, innerWidth]"
    assert driver.execute_script(widths) == [390, 390]
    begin(driver)
    assert driver.execute_script(widths) == [390, 390]
    targets = driver.find_elements("css selector", "#answers button, .choice, input[type=range]")
    assert min(target.size["height"] for target in targets) >= 32
    assert by_id(driver, "shown").location["y"] < 400 < by_id(driver, "answers").location["y"]
