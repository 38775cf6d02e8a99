"""The page of a run: what it holds, that it is inert, and what a reader does with it in a browser."""

import json
import re
from pathlib import Path

import browser
import made_page
import pytest
from made_page import HOSTILE, SENT

from memecmd_utils import people, report
from memecmd_utils.files import paths


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return made_page.write(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def opened(open_browser):
    with open_browser() as driver:
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
    with_memes = [turn for turn in all_of(driver, "#chat .turn") if turn.find_elements("tag name", "img")]
    return [int(turn.get_attribute("data-turn")) for turn in with_memes]


def choose_strategy(driver, name: str) -> None:
    """By its tab, else in the menu of the others."""
    tab, other = f"#strategies label:has([value={name}])", f"#others [value={name}]"
    (all_of(driver, tab) + all_of(driver, other))[0].click()


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


def click(driver, selector: str, place: int = 0) -> None:
    """Click wherever it stands: nothing on the page covers what is clicked."""
    # In one step: the page may draw anew in between.
    script = "document.querySelectorAll(arguments[0])[arguments[1]].click()"
    driver.execute_script(script, selector, place)


def test_a_journey_through_the_explorer(driver) -> None:
    """Tabs, chat, cards, gate and keyboard; hostile texts are shown as they are, no script of theirs runs.

    theta_k = theta0 + exp(-k) after a meme (Eq. 23): 0.05 and 0.1 exp(-k) on the scale of T.
    """
    from selenium.webdriver import ActionChains, Keys

    cards = all_of(driver, ".card img")
    assert all(card.is_displayed() for card in cards), "the library shows its pictures, English or not"
    sources = [card.get_attribute("src") for card in cards]
    shown = [label.text for label in all_of(driver, "#strategies label")]
    assert shown == ["Reranked", "Greedy", "Your threshold"] and len(all_of(driver, "#others option")) == 4
    assert one(driver, "#strategies input:checked").get_attribute("value") == "reranked"
    all_of(driver, "#chat .turn")[1].click()
    assert "of the 3 that Reranked could choose from" in one(driver, "#steps").text
    one(driver, "#steps a[href='#meme-m2']").click()
    assert all_of(driver, ".card")[1].get_property("open")
    one(driver, "#meme-m2 .back").click()
    assert driver.switch_to.active_element.get_attribute("href").endswith("#meme-m2"), "back at the link"
    all_of(driver, "#chat .turn")[2].click()
    assert "Reranked sends nothing\nIts reason: 因为3" in one(driver, "#steps").text
    choose_strategy(driver, "greedy")
    assert turns_with_memes(driver) == list(SENT) and one(driver, "#gate").is_displayed()
    assert {image.get_attribute("src") for image in all_of(driver, "#chat .turn img")} == {sources[0]}
    choose_strategy(driver, "random")
    assert turns_with_memes(driver) == [3, 4] and not one(driver, "#gate").is_displayed()
    assert "Random sends" in one(driver, "#steps").text

    choose_strategy(driver, "yours")
    assert turns_with_memes(driver) == list(SENT), "nothing was moved: the run's own gate"
    assert "The best meme has T = 0.020, the threshold is 0.087." in one(driver, "#steps").text
    limits = [float(one(driver, "#theta0").get_attribute(name)) for name in ("min", "max")]
    for turn, best in made_page.SCORES.items():  # lie on the scale of the slider, and their parts add up
        click(driver, "#chat .turn", turn - 1)
        shown = [line.get_property("textContent") for line in all_of(driver, "#steps .parts")]
        signed = [re.sub("\u2212\\s?", "-", text) for text in shown]  # the four parts and then T
        lines = [[*map(float, re.findall(r"-?\d+\.\d+", text))] for text in signed]
        assert limits[0] < best == lines[0][-1] < limits[1]
        assert all(len(line) == 5 and line[-1] == pytest.approx(sum(line[:-1]), abs=1e-9) for line in lines)
    move(driver, "theta0", 0.25)
    assert turns_with_memes(driver) == [5, 6] and "2 memes" in one(driver, "#rate").text
    assert [output.text for output in all_of(driver, "#sliders output")] == ["0.250", "0.037"]
    move(driver, "rise", 0.15)
    assert turns_with_memes(driver) == [5], "the second is held back by the rise"
    for strategy, turns in (("greedy", list(SENT)), ("yours", [5])):  # the paper's keeps its own threshold
        choose_strategy(driver, strategy)
        assert turns_with_memes(driver) == turns
    click(driver, "#usual")
    assert turns_with_memes(driver) == list(SENT)

    def press(*keys: str) -> None:
        ActionChains(driver).send_keys(*keys).perform()

    choose_strategy(driver, "reranked")
    one(driver, "#strategies input:checked").send_keys("")
    press(Keys.RIGHT)  # strategies are radio buttons
    assert one(driver, "#strategies input:checked").get_attribute("value") == "greedy"
    driver.execute_script("document.querySelector('#chat .turn[aria-current=true]').focus()")
    for keys, turn in (((Keys.HOME, Keys.DOWN, Keys.DOWN), "3"), ((Keys.END,), "8")):
        press(*keys)
        (picked,) = all_of(driver, ".turn[aria-current=true]")
        assert picked.get_attribute("data-turn") == turn and driver.switch_to.active_element == picked

    while "news-</script>" not in one(driver, "#origin").text:
        click(driver, "#next")
    spoken = all_of(driver, "#chat .turn")[2].find_element("css selector", ".words [lang=zh]")
    assert spoken.get_property("textContent") == HOSTILE
    choose_strategy(driver, "sampling")
    assert one(driver, "#chat .turn img").get_attribute("alt") == "Meme: 字m2" + " ".join(HOSTILE.split())
    driver.execute_script("delete talk().placed.sampling; choose({turn: 2})")
    assert "it was not run" in one(driver, "#rate").text and turns_with_memes(driver) == []
    # Against the day when an escape is forgotten: the page allows its own script only.
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        "document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
    )
    assert driver.execute_async_script("setTimeout(() => arguments[0](window.hacked), 50)") is None
    refused = browser.errors(driver)  # taken out, so that the fixture finds no other
    assert sum("Content Security Policy" in message for message in refused) == 2


# --- Questions to the visitor


def test_a_question_is_answered_by_keys_and_the_focus_stays_with_what_comes_next(driver) -> None:
    from selenium.webdriver import ActionChains, Keys

    driver.execute_script("document.querySelector('#grid button').focus()")
    for _ in range(2):
        ActionChains(driver).send_keys(Keys.ENTER).perform()
        assert driver.switch_to.active_element.get_attribute("id") == "again"
        ActionChains(driver).send_keys(Keys.ENTER).perform()
        assert driver.switch_to.active_element.get_attribute("data-meme") == "m1"
    driver.execute_script("localStorage.clear(); document.getElementById('game').focus()")
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert driver.switch_to.active_element.text == "1 is better"
    browser.resize(driver, 390, 844)  # one side at a time
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")  # it is laid out
    click(driver, "#rate button")
    assert one(driver, "#rate mark").text == "Look at 2 first, then vote."
    click(driver, "#strategies input", 1)
    click(driver, "#rate button")
    assert "You preferred" in one(driver, "#rate").text


def test_the_game_is_played_to_its_end_and_memecmd_reads_the_votes(path, open_browser, tmp_path, monkeypatch):
    """Three questions, one without a meme, then the blind test: kept by the browser, saved, read, counted."""
    monkeypatch.setattr(paths, "raw", tmp_path)
    saved = tmp_path / "ratings" / "made-up"
    saved.mkdir(parents=True)
    with open_browser(downloads=saved) as driver:
        driver.get(path.as_uri())
        assert one(driver, "#ask").is_displayed()
        assert one(driver, "#ask-chat li:last-child").text.endswith("?")
        for answer in ("[data-meme=m3]", "[data-meme=m1]"):
            assert not one(driver, "#told").text and "graded" not in one(driver, "#ask").text
            click(driver, f"#grid {answer}")
            assert "Reranked" in one(driver, "#told").text and "Its reason: 因为" in one(driver, "#told").text
            browser.reload_until(driver, lambda: "its threshold is off" in one(driver, "#told").text)
            click(driver, "#again")
        browser.reload_until(driver, lambda: one(driver, "#ask-count").text.startswith("Question 3 of 3"))
        click(driver, "#none")
        assert "That was the last question" in one(driver, "#ask-what").text
        assert "In these 3 questions" in one(driver, "#told").text
        row = [cell.text for cell in all_of(driver, ".tally tbody tr:first-child td")]
        assert row[-2] == "1" and int(row[0]) + int(row[-3]) == 2

        told = "return arguments[0].map(grades => verdict('You', grades.map(grade => ['m1', grade])))"
        for grades, said in {
            (0, None): "Of your memes one has a grade, and it does not fit. 1 more has no grade.",
            (2, 0.5, None, None): "Of your 2 graded memes, 1 fits and lands, too. 2 more have no grade.",
            (1, 2, 1.5): "Of your 3 graded memes, all 3 fit and 1 of them lands.",
            (None, None): "None of your 2 memes has a grade.",
        }.items():
            assert driver.execute_script(told, [grades]) == [said]
        titles, won = [], 0
        click(driver, "#game")
        for at in (1, 2, 3):
            assert [side.text for side in all_of(driver, ".which")] == ["Side 1", "Side 2"], "side by side"
            hidden = one(driver, "#rate").text + one(driver, "#rival").text
            assert not any(word in hidden for word in ("Greedy", "Reranked", "graded"))
            assert hidden.startswith(f"Chat {at} of 3") and not one(driver, "#next").is_displayed()
            titles.append(one(driver, "#origin").text)
            sides = []
            for _ in "12":
                sides.append(one(driver, "#chat .turn img").get_attribute("alt"))
                click(driver, "#strategies input", len(sides) % 2)
            click(driver, "#rate button", sides.index("Meme: 字m3") if at == 1 else 2)
            won = one(driver, "#score").text
            assert "which you preferred" in one(driver, "#browser").text or at > 1, "both sides stay in sight"
            if at < 3:
                click(driver, "#rate button")
        assert len(set(titles)) == 3, "no chat comes twice"
        click(driver, "#rate button:last-of-type")
        assert one(driver, "#score").text == won, "the score stays when the test has ended"
        assert "3 chats so far: Reranked’s memes were better in 1, Greedy’s in 0, no difference in 2." in won
        click(driver, "#told button:nth-of-type(1)")
        table = browser.downloaded(saved)
    votes = people.read_answers(table.parent, people.Vote)
    assert votes.vote.tolist() == ["send"] * 3 + ["prefer"] * 3 and votes.rater.nunique() == 1
    assert votes.answer.tolist() == ["m3", "m1", "", "reranked", "", ""]
    made = made_page.run(tmp_path / "again")
    assert "1 visitor(s) of the page gave 6 votes." in people.people_of_run(made)[1]


def test_a_game_that_ends_early_tells_its_result_and_the_next_one_keeps_its_votes(path, open_browser) -> None:
    with open_browser() as driver:
        driver.get(path.as_uri())
        click(driver, "#game")
        click(driver, "#rate button", 2)
        click(driver, "#rate button:last-of-type")
        said = "You preferred Reranked in 0 of 1 and Greedy in 0, and saw no difference in 1."
        assert one(driver, "#rate").text.startswith(said)
        click(driver, "#rate button:last-of-type")
        click(driver, "#game")
        said = "Your earlier votes (1) are kept; these are other chats. Chat 1 of 2."
        assert one(driver, "#rate").text.startswith(said)


def test_one_turn_of_each_chat_is_asked_about_where_most_candidates_are_graded() -> None:
    rows = [choice for name in ("a", "b") for choice in made_page.choices(name)]
    graded = {("a", turn): {"m1": 2.0} for turn in (4, 5)} | {("b", turn): {} for turn in (4, 5)}
    asked = report.questions(["b", "a", "no choices"], rows, graded, seed=1)
    assert [choice.dialogue_id for choice in asked] == ["b", "a"]
    assert asked[1].turn == (5 if asked[1].meme_id else 4)
