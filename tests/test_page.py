"""The page of a run in a browser: what a reader chooses is shown, with mouse, keyboard and on a phone."""

import dataclasses
import itertools
import os
import re
from pathlib import Path

import browser
import made_page
import page_pictures
import pytest
from made_page import HOSTILE, SENT
from PIL import Image

from memecmd_utils.files import paths
from memecmd_utils.report import chats

EXAMPLE = paths.reports / "example" / "index.html"


def has_example() -> bool:
    """Whether `make reproduce` wrote the example's page here, and with a chat browser."""
    return EXAMPLE.is_file() and 'id="browser"' in EXAMPLE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return made_page.write(tmp_path_factory.mktemp("page")).as_uri()


@pytest.fixture(scope="module")
def opened():
    with browser.open_browser() as driver:
        yield driver


@pytest.fixture
def driver(opened, page):
    """The page as it opens, in a browser that the tests of this file share."""
    browser.resize(opened, 1400, 1000)
    opened.get("about:blank")
    opened.get(page)
    yield opened
    assert browser.errors(opened) == []
    assert opened.execute_script("return window.hacked") is None


def all_of(driver, selector: str) -> list:
    return driver.find_elements("css selector", selector)


def one(driver, selector: str):
    return driver.find_element("css selector", selector)


def turns_with_memes(driver) -> list[int]:
    return [
        int(t.get_attribute("data-turn"))
        for t in all_of(driver, ".turn")
        if t.find_elements("tag name", "img")
    ]


def choose_strategy(driver, name: str) -> None:
    one(driver, f"#strategies input[value={name}]").click()


def picked(driver) -> list[str]:
    return [t.get_attribute("data-turn") for t in all_of(driver, ".turn[aria-current=true]")]


# --- choosing -----------------------------------------------------------------------------------------


def test_another_strategy_shows_its_memes_at_its_turns(driver) -> None:
    sources = [card.get_attribute("src") for card in all_of(driver, ".card > img")]
    assert {i.get_attribute("src") for i in all_of(driver, ".turn img")} == {sources[0]}
    choose_strategy(driver, "sampling")
    assert turns_with_memes(driver) == list(SENT)
    assert {i.get_attribute("src") for i in all_of(driver, ".turn img")} == {sources[1]}
    choose_strategy(driver, "random")
    assert turns_with_memes(driver) == [3, 4]
    assert {i.get_attribute("src") for i in all_of(driver, ".turn img")} == {sources[2]}
    assert "asks no gate" in one(driver, "#strategy-words").text
    assert len(all_of(driver, "#chart .tick")) == 2
    all_of(driver, ".turn")[2].click()
    assert "not among the best 2" in one(driver, "#turn").text
    assert one(driver, "#said").text == "Turn 3: score 0.200 ≤ threshold 0.868; by lot, a meme is sent"


def test_a_turn_shows_what_the_retrieval_saw_and_found(driver) -> None:
    note = one(driver, "#turn .seen + .note").text
    assert note.startswith("A is 阿橙 (right in the chat), B is </script>")
    text = one(driver, "#turn").text
    assert "两人商量周末安排" in text and "想定下来" in text and "1 of 2 markers" in text
    assert "Mean grade of 2 graders (0-2; a model's, not people's): 1.5" in text
    assert "Judge judge one (0-100): 61.0" in text and "text:x (0-100): 70.5" in text
    found = all_of(driver, ".found li")
    assert (
        len(found) == 2 and "placed" in found[0].get_attribute("class") and "placed here" not in found[1].text
    )
    bars = found[0].find_elements("css selector", ".meter i")
    assert [bar.get_attribute("class") for bar in bars] == ["", "minus", "", "", ""]
    widths = [bar.rect["width"] for bar in bars]
    assert widths[0] == widths[1] == pytest.approx(2 * widths[2], rel=0.05) and widths[3] == 0
    numbers = [cell.text for cell in found[0].find_elements("css selector", ".parts dd:nth-of-type(even)")]
    assert numbers == ["0.100", "−0.100", "0.050", "0.000", "0.100"]
    all_of(driver, ".turn")[4].click()
    assert picked(driver) == ["5"] and "not scored" in one(driver, "#turn").text
    all_of(driver, ".turn")[0].click()
    assert "no meme is looked for" in one(driver, "#said").text


# --- English, links, keyboard -------------------------------------------------------------------------


def test_a_view_can_be_linked(driver, page) -> None:
    one(driver, "#next").click()
    choose_strategy(driver, "sampling")
    all_of(driver, ".turn")[5].click()
    address = driver.current_url
    driver.get("about:blank")
    driver.get(address)
    assert one(driver, "#title").text.startswith("题news-</script>") and picked(driver) == ["6"]
    assert one(driver, "#strategies input:checked").get_attribute("value") == "sampling"
    driver.get(page + "#d=role-b&s=random&t=4")  # the same page: only the hash changes
    assert one(driver, "#title").text == "题role-b" and picked(driver) == ["4"]
    for odd in ("#d=gone&s=x&t=1", "#d=news-a&s=nobody&t=99", "#%E0%A4%A", "#d=%FF", "#__proto__"):
        driver.get("about:blank")
        driver.get(page + odd)
        assert one(driver, "#title").text == "题news-a" and picked(driver) == ["2"]


def test_everything_can_be_done_with_the_keyboard(driver) -> None:
    from selenium.webdriver import ActionChains, Keys

    def press(*keys: str) -> None:
        ActionChains(driver).send_keys(*keys).perform()

    driver.execute_script("document.getElementById('previous').focus()")
    press(Keys.TAB, Keys.DOWN)  # the list of dialogues
    assert one(driver, "#title").text.startswith("题news-</script>")
    press(Keys.TAB, Keys.ENTER)  # the next one
    assert one(driver, "#title").text == "题role-b"
    press(Keys.TAB, Keys.RIGHT)  # strategies are radio buttons
    assert one(driver, "#strategies input:checked").get_attribute("value") == "sampling"
    press(Keys.TAB, Keys.SPACE)
    assert one(driver, "#english").is_selected()
    press(Keys.TAB, Keys.DOWN, Keys.DOWN)
    assert picked(driver) == ["4"]
    press(Keys.END)
    assert picked(driver) == ["8"] and driver.switch_to.active_element.get_attribute("data-turn") == "8"
    press(Keys.DOWN, Keys.HOME, Keys.UP)
    assert picked(driver) == ["1"]
    outline = driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press(Keys.TAB)  # one stop for all turns: the next is behind the chat
    assert driver.execute_script("return !document.activeElement.classList.contains('turn')")


# --- hostile texts, phones, dark, no scripts ----------------------------------------------------------


def test_hostile_texts_are_shown_as_they_are(driver) -> None:
    one(driver, "#next").click()
    said = all_of(driver, ".turn")[2].find_element("css selector", ".words [lang=zh]")
    assert said.get_property("textContent") == HOSTILE
    choose_strategy(driver, "sampling")
    alt = one(driver, ".turn img").get_attribute("alt")
    assert alt == f"Meme: 字m2{HOSTILE}"
    assert len(all_of(driver, "script")) == 2 and len(all_of(driver, "img[onerror]")) == 0


def test_a_script_that_came_in_would_not_run(driver) -> None:
    # Against the day when an escape is forgotten: the page allows its own script only.
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        "document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
    )
    assert driver.execute_async_script("setTimeout(() => arguments[0](window.hacked), 50)") is None
    refused = browser.errors(driver)  # taken out, so that the fixture finds no other
    assert refused and all("Content Security Policy" in message for message in refused)


def test_on_a_phone_nothing_is_wider_than_the_screen(driver, page) -> None:
    assert browser.on_a_phone(driver, page) == 0 and browser.asked_elsewhere(driver) == []
    cards = [card.rect for card in all_of(driver, ".answer")]
    assert len({card["x"] for card in cards}) == 1 and all(card["width"] > 330 for card in cards)
    assert all(b["y"] >= a["y"] + a["height"] for a, b in itertools.pairwise(cards))  # one below another
    chat, side = one(driver, "#chat").rect, one(driver, ".side").rect
    assert side["y"] >= chat["y"] + chat["height"] - 1  # the picture stands below the chat
    assert 300 < one(driver, "#chart svg").rect["width"] <= 390
    small = [b for b in all_of(driver, ".plain, .choice, .turn, select") if 0 < b.rect["height"] < 36]
    assert small == []  # a thumb needs room


# --- what is folded -----------------------------------------------------------------------------------


@pytest.fixture
def folded(opened, tmp_path) -> Path:
    """The page with one card of three open, and with a wide and a tall figure."""
    found = made_page.records()
    sheet = chats.sheet(found.memes, found.annotations, found.placements, made_page.pictures(tmp_path))
    figures = []
    for name, size in (("wide", (1600, 900)), ("tall", (1600, 2400))):
        path = tmp_path / "report" / "figures" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, "orange").save(path, dpi=(150, 150))
        figures.append((path, f"The {name} one"))
    return made_page.write(tmp_path, library=dataclasses.replace(sheet, first=1), figures=figures)


def shown(driver, selector: str) -> list[bool]:
    return [element.is_displayed() for element in all_of(driver, selector)]


def test_long_parts_are_folded_and_links_into_them_open_them(opened, folded) -> None:
    browser.resize(opened, 1280, 900)
    opened.get("about:blank")
    opened.get(folded.as_uri())
    assert shown(opened, ".card") == [True, False, False] and shown(opened, ".group > div") == [False, False]
    assert shown(opened, "figure .scroll img") == [True, False]
    opened.get(folded.as_uri() + "#meme-2")
    assert shown(opened, ".card") == [True, True, True]
    opened.get("about:blank")
    opened.get(folded.as_uri())
    one(opened, "#filter").send_keys("字m3")
    assert shown(opened, ".card") == [False, False, True]
    assert one(opened, "#filter-count").text == "1 of 3 memes"
    assert browser.errors(opened) == []


def test_without_scripts_still_chats_are_shown(page) -> None:
    with browser.open_browser(600, 500, scripts=False) as driver:
        driver.get(page)
        assert not one(driver, "#browser").is_displayed()
        assert (
            one(driver, "noscript img").is_displayed() and "needs JavaScript" in one(driver, "noscript").text
        )
        assert one(driver, ".card img").is_displayed()
        assert not one(driver, "#fold-tables").is_displayed()


# --- the example's page -------------------------------------------------------------------------------


@pytest.fixture
def example(opened):
    """The page that `make reproduce` wrote."""
    if not has_example():
        pytest.skip("the example has no page yet: make reproduce")
    browser.resize(opened, 1400, 1000)
    opened.get("about:blank")
    opened.get(EXAMPLE.as_uri())
    return opened


def test_the_example_s_page_shows_what_was_placed(example) -> None:
    lines = (EXAMPLE.parent / "placements.csv").read_text(encoding="utf-8").splitlines()[1:]
    placed = [line.split(",") for line in lines]
    for dialogue, strategy in (
        ("news-games-1", "greedy"),
        ("role-R16-1", "random"),
        ("role-R23-1", "sampling"),
    ):
        index = next(
            o.get_attribute("value")
            for o in all_of(example, "#dialogue option")
            if f". {dialogue} " in o.text
        )
        one(example, f"#dialogue option[value='{index}']").click()
        choose_strategy(example, strategy)
        wanted = {int(row[1]): row[4] for row in placed if row[0] == dialogue and row[3] == strategy}
        assert turns_with_memes(example) == sorted(wanted)
        for turn, meme in wanted.items():
            all_of(example, ".turn")[turn - 1].click()
            assert meme in one(example, "#turn").text or "not among the best" in one(example, "#turn").text
    assert browser.errors(example) == []


def test_the_example_s_page_is_small_and_whole(example) -> None:
    assert EXAMPLE.stat().st_size < 10_000_000
    assert len(all_of(example, "#dialogue option")) == 47 and len(all_of(example, ".card")) == 200
    broken = "return [...document.images].filter(i => i.complete && !i.naturalWidth).length"
    assert example.execute_script(broken) == 0
    assert browser.asked_elsewhere(example) == []
    assert browser.on_a_phone(example, EXAMPLE.as_uri()) == 0


def test_pictures_of_the_page_for_the_readme(tmp_path, page) -> None:
    """Of the example where there is its page; MEMECMD_PICTURES names a folder that keeps them."""
    folder = Path(os.environ.get("MEMECMD_PICTURES") or tmp_path)
    shown = EXAMPLE if has_example() else Path(page.removeprefix("file://"))
    taken = page_pictures.take(shown, folder)
    assert [path.name for path in taken] == list(page_pictures.PICTURES)
    for path in taken:
        with Image.open(path) as picture:
            assert picture.size == page_pictures.PICTURES[path.name][:2]
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 50  # something is on it


def test_english_comes_on_demand_and_its_absence_is_said(driver) -> None:
    third = all_of(driver, ".turn")[2]
    assert "The third thing" not in third.text and not one(driver, "#title-gloss").is_displayed()
    one(driver, "#english").click()
    assert "The third thing" in all_of(driver, ".turn")[2].text
    assert "the data hold no English" in all_of(driver, ".turn")[0].text
    assert "Eat" in all_of(driver, ".turn")[1].text  # the gloss of a meme
    assert one(driver, "#title-gloss").text == "A title"
    assert "no English for this summary" in one(driver, "#turn").text
    assert driver.current_url.endswith("&e=1")


def test_a_summary_with_english_shows_it(opened, tmp_path) -> None:
    found = made_page.records()
    first = found.dialogues[0]
    authored = [s.model_copy(update={"source": "authored"}) for s in first.summaries]
    name = "role-R13-1"  # the data hold English for its summaries
    told = first.model_copy(update={"dialogue_id": name, "summaries": authored})
    rows = [c.model_copy(update={"dialogue_id": name}) for c in made_page.candidates(name, made_page.SCORES)]
    records = dataclasses.replace(found, dialogues=[told], candidates=rows, placements=[])
    opened.get(made_page.write(tmp_path, records).as_uri())
    shown = one(opened, "#turn .seen")
    assert "the midnight album" not in shown.text
    one(opened, "#english").click()
    assert "the midnight album" in one(opened, "#turn .seen").text
    assert "no English for this summary" not in one(opened, "#turn").text


def test_an_answer_leads_to_its_table_with_the_keyboard(driver) -> None:
    from selenium.webdriver import ActionChains, Keys

    card = one(driver, "#answer-random")
    assert "Yes, but" in card.text and "+0.20" in card.text and "[+0.12, +0.29]" in card.text
    assert HOSTILE[:20] in one(driver, "#answer-people").text
    assert not one(driver, "#table-1-1").is_displayed()
    driver.execute_script("arguments[0].focus()", card.find_element("tag name", "a"))
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert one(driver, "#table-1-1").is_displayed() and driver.current_url.endswith("#table-1-1")


@pytest.mark.parametrize("dark", [False, True])
def test_words_of_the_cards_stand_out_from_their_ground(page, dark: bool) -> None:
    """Contrast of at least 4.5, as WCAG asks for text of this size (level AA)."""
    with browser.open_browser(dark=dark) as driver:
        driver.get(page)
        ground = one(driver, ".answer").value_of_css_property("background-color")
        for selector in ("h3", "p", "strong", ".interval", ".detail", "a"):
            ink = one(driver, f".answer {selector}").value_of_css_property("color")
            assert contrast(ink, ground) >= 4.5, selector


def contrast(ink: str, ground: str) -> float:
    """WCAG's contrast of two colours as a browser writes them, `rgb(...)` or `rgba(...)`."""
    lights = []
    for colour in (ink, ground):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    low, high = sorted(lights)
    return (high + 0.05) / (low + 0.05)
