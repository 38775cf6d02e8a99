"""The page of a run: what it holds, that it is inert, and what a reader does with it in a browser."""

import json
import re
from pathlib import Path

import browser
import made_page
import numpy as np
import pytest
from made_page import HOSTILE, SENT

from memecmd_utils import report


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return made_page.write(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def opened():
    with browser.open_browser() as driver:
        yield driver


@pytest.fixture
def driver(opened, path):
    """The page as it opens, in a browser that the tests of this file share."""
    browser.resize(opened, 1400, 1000)
    opened.get("about:blank")
    opened.get(path.as_uri())
    yield opened
    assert browser.errors(opened) == []
    assert opened.execute_script("return window.hacked") is None


def all_of(driver, selector: str) -> list:
    return driver.find_elements("css selector", selector)


def one(driver, selector: str):
    return driver.find_element("css selector", selector)


def turns_with_memes(driver) -> list[int]:
    with_memes = [turn for turn in all_of(driver, ".turn") if turn.find_elements("tag name", "img")]
    return [int(turn.get_attribute("data-turn")) for turn in with_memes]


def choose_strategy(driver, name: str) -> None:
    one(driver, f"#strategies label:has([value={name}])").click()


def picked(driver) -> list[str]:
    return [t.get_attribute("data-turn") for t in all_of(driver, ".turn[aria-current=true]")]


# --- What is in the file


def test_the_page_stands_alone_and_escapes_what_comes_from_outside(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    shown = re.findall(r'<img[^>]* src="([^"]+)"', text)
    assert shown and all(source.startswith(("data:image/", "figures/")) for source in shown)
    assert text.count("<script") == 2 and not re.search(r"<link|@import|url\(|<script src|fetch\(", text)
    assert "&lt;script&gt;window.hacked" in text


def test_large_runs_show_a_part_of_their_dialogues_and_memes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report, "DIALOGUES", 2)
    monkeypatch.setattr(report, "LIBRARY", 0)
    text = made_page.write(tmp_path).read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="chat-data">(.*?)</script>', text, re.DOTALL)[1])
    assert [chat["kind"] for chat in data["dialogues"]] == ["news", "role"], "of each kind in turn"
    assert "2 of 3 dialogues are shown" in text
    assert len(data["memes"]) == 3, "whatever the chats need is there"


# --- In a browser


def move(driver, slider: str, value: float) -> None:
    driver.execute_script(
        "const slider = document.getElementById(arguments[0]); slider.value = arguments[1];"
        "slider.dispatchEvent(new Event('input'));",
        slider, value,
    )  # fmt: skip


def test_a_journey_through_the_page(driver) -> None:
    """Tabs, chat, gate, game and keyboard; hostile texts are shown as they are and no script of theirs runs.

    theta_k = theta0 + exp(-k) after a meme (Eq. 23), on the scale of the best scores.
    """
    from selenium.webdriver import ActionChains, Keys

    sources = [card.get_attribute("src") for card in all_of(driver, ".card img")]
    assert one(driver, "#strategies input:checked").get_attribute("value") == "greedy"
    assert turns_with_memes(driver) == list(SENT) and one(driver, "#gate").is_displayed()
    assert {image.get_attribute("src") for image in all_of(driver, ".turn img")} == {sources[0]}
    choose_strategy(driver, "random")
    assert turns_with_memes(driver) == [3, 4] and not one(driver, "#gate").is_displayed()
    all_of(driver, ".turn")[2].click()
    assert "Random sends" in one(driver, "#steps").text

    choose_strategy(driver, "yours")
    assert turns_with_memes(driver) == list(SENT), "nothing was moved: the run's own gate"
    all_of(driver, ".turn")[2].click()
    assert "score 0.20, threshold 0.87." in one(driver, "#steps").text
    move(driver, "theta0", 2.5)
    assert turns_with_memes(driver) == [5, 6] and "2 memes" in one(driver, "#rate").text
    move(driver, "penalty", 4)
    assert turns_with_memes(driver) == [5], "the second is held back by the rise"

    one(driver, "#game").click()
    assert [label.text for label in all_of(driver, "#strategies label")] == ["1", "2"]
    assert "Random" not in one(driver, "#steps").text and "graded" not in one(driver, "#steps").text
    all_of(driver, "#rate button")[0].click()
    assert re.match("(Right|No). 1 is (random|Greedy), 2 is (random|Greedy)", one(driver, "#rate").text)
    all_of(driver, "#rate button")[1].click()

    def press(*keys: str) -> None:
        ActionChains(driver).send_keys(*keys).perform()

    choose_strategy(driver, "greedy")
    one(driver, "#strategies input:checked").send_keys("")
    press(Keys.RIGHT)  # strategies are radio buttons
    assert one(driver, "#strategies input:checked").get_attribute("value") == "random"
    driver.execute_script("document.querySelector('.turn[aria-current=true]').focus()")
    press(Keys.HOME, Keys.DOWN, Keys.DOWN)
    assert picked(driver) == ["3"]
    press(Keys.END)
    assert picked(driver) == ["8"] and driver.switch_to.active_element.get_attribute("data-turn") == "8"

    while "news-</script>" not in one(driver, "#origin").text:
        one(driver, "#next").click()
    spoken = all_of(driver, ".turn")[2].find_element("css selector", ".words [lang=zh]")
    assert spoken.get_property("textContent") == HOSTILE
    choose_strategy(driver, "sampling")
    assert one(driver, ".turn img").get_attribute("alt") == "Meme: 字m2" + " ".join(HOSTILE.split())
    # Against the day when an escape is forgotten: the page allows its own script only.
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        "document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
    )
    assert driver.execute_async_script("setTimeout(() => arguments[0](window.hacked), 50)") is None
    refused = browser.errors(driver)  # taken out, so that the fixture finds no other
    assert sum("Content Security Policy" in message for message in refused) == 2


@pytest.mark.parametrize(("std", "theta0", "penalty"), [(5.0, 0.05, 0.0), (0.02, 3.0, 1.0)])
def test_sliders_reach_as_far_as_the_scores_in_usable_steps(opened, tmp_path, std, theta0, penalty) -> None:
    """Best scores lie within 0.07, or are 18 apart."""
    gate = {**made_page.GATE, "score_std": std, "theta0": theta0, "penalty": penalty}
    opened.get(made_page.write(tmp_path, gate=gate).as_uri())
    choose_strategy(opened, "yours")
    slider = one(opened, "#theta0")
    low, high, step = (float(slider.get_attribute(name)) for name in ("min", "max", "step"))
    scores = [score / std for score in made_page.SCORES.values()]
    assert low < min(*scores, theta0) and max(*scores, theta0) < high < low + 2 * (
        max(scores) - min(scores) + 1
    )
    assert 30 < (high - low) / step < 1000
    move(opened, "penalty", 0)
    for wanted in (2, 5):  # between the scores, so that two and five memes are sent
        move(opened, "theta0", float(np.mean(sorted(scores)[-wanted - 1 : len(scores) - wanted + 1])))
        assert len(turns_with_memes(opened)) == wanted
    assert browser.errors(opened) == []


# --- The example's page
