"""The confirmation sheet: what it holds without a browser, and what its keys save in a real one."""

import re
from pathlib import Path

import browser
import made_matches
import pytest

from memecmd_utils.cm50.matching import (
    RULES,
    Matches,
    TemplateMatch,
    confirm,
    write_match_sheet,
)

HOSTILE = '<script>alert("x")</script>, "quoted"'


def made(folder: Path, n: int = 3) -> Matches:
    """A pair a template, one with a name that would be a script if it were not escaped."""
    templates = made_matches.templates(folder)
    memes = made_matches.instances(folder / "memes")[:n]
    names = [HOSTILE, *(meme.name for meme in memes[1:])]
    done = Matches(
        RULES["code"],
        {name: meme.image for name, meme in zip(names, memes, strict=True)},
        {t.template: folder / t.picture for t in templates},
        [],
        models="made-up encoder",
    )
    done.pairs = [
        TemplateMatch(
            instance=name, template=t.template, variant="concatenated", distance=20.123, lpips=0.1, kept=True
        )
        for name, t in zip(names, templates, strict=False)
    ]
    return done


def test_the_page_holds_all_it_shows_and_escapes_names(tmp_path: Path) -> None:
    page = write_match_sheet(tmp_path / "sheet.html", "example", made(tmp_path)).read_text(encoding="utf-8")
    assert page.count("data:image/") == 6, "three memes, three templates"
    assert not re.search(r'(?:src|href)="(?!data:)', page), "nothing is loaded from elsewhere"
    assert "default-src 'none'" in page, "nor can anything be"
    assert page.count("<script>") == 1 and "&lt;script&gt;alert" in page
    assert "distance 20.123" in page and "LPIPS 0.100" in page and "made-up encoder" in page
    assert "The limits are made for other models" in page


@pytest.fixture(scope="module")
def driver():
    with browser.open_browser(1100, 900) as opened:
        yield opened


@pytest.fixture
def sheet(driver, tmp_path):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
    )
    done = made(tmp_path)

    def open_sheet():
        driver.get(write_match_sheet(tmp_path / "sheet.html", "example", done).as_uri())
        return done, downloads

    yield open_sheet
    driver.execute_script("localStorage.clear()")
    assert browser.errors(driver) == []


def keys(driver, *pressed: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*pressed).perform()


def value(driver, name: str) -> str:
    return driver.find_element("id", name).get_attribute("value")


def note_of_the_first(driver) -> str:
    return driver.find_element("css selector", ".pair input").get_attribute("value")


def test_keys_mark_pairs_and_the_csv_comes_back(driver, sheet) -> None:
    from selenium.webdriver.common.keys import Keys

    done, folder = sheet()
    keys(driver, "k", "r")  # the first kept, the second rejected: each mark goes on to the next
    assert (value(driver, "kept"), value(driver, "rejected"), value(driver, "open")) == ("1", "1", "1")
    keys(driver, "k", "k")  # the last one: marked, and the mark taken off
    assert value(driver, "open") == "1"
    keys(driver, Keys.ARROW_UP, Keys.ARROW_UP)
    why = 'k "r", sure'
    driver.find_element("css selector", ".pair.current input").send_keys(why)
    browser.reload_until(driver, lambda: note_of_the_first(driver) == why)  # marks survive a closed page
    driver.find_element("id", "download").click()
    said = confirm(done.pairs, browser.downloaded(folder))
    assert [(p.confirmed, p.why) for p in said] == [(True, why), (False, ""), (None, "")]
    assert said[0].instance == HOSTILE
