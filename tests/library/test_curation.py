"""The contact sheet in a real browser: its buttons make the curation file that the build reads."""

import csv
import time

import browser
import made_up
import pytest

from memecmd_utils.library.curation import (
    Card,
    Decision,
    LeftOut,
    check_ocr_on_sample,
    closest_pictures,
    read_curation,
    write_contact_sheet,
)
from memecmd_utils.pictures import LibraryError

MANY = 6000


@pytest.fixture(scope="module")
def driver():
    with browser.open_browser(1200, 900) as opened:
        yield opened


@pytest.fixture
def page(driver, tmp_path):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
    )
    made_up.meme_files(tmp_path, (24, 24))

    def open_page(n, decisions=(), left_out=(), pairs=()):
        cards = [
            Card(f'组 {i % 7}/图,"{i}".png', f"memes/m{i}.png", f"第{i}句", f"note {i}") for i in range(n)
        ]
        target = tmp_path / "contact_sheet.html"
        write_contact_sheet(
            target, "run", cards, [(cards[a], cards[b]) for a, b in pairs], [], left_out, decisions
        )
        driver.get(target.as_uri())
        return cards, downloads

    yield open_page
    driver.execute_script("localStorage.clear()")
    assert [e for e in browser.errors(driver) if "ERR_FILE_NOT_FOUND" not in e] == []


def figures(driver, name):
    return [f for f in driver.find_elements("css selector", "figure") if f.get_attribute("data-file") == name]


def press(driver, box, action):
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    end = time.monotonic() + 10
    while not (buttons := box.find_elements("css selector", f"button[data-action={action}]")):
        assert time.monotonic() < end, "no buttons in view"
    buttons[0].click()


def download(driver, folder, known):
    driver.find_element("id", "download").click()
    return read_curation(browser.downloaded(folder), known)


def test_what_is_marked_comes_back_as_decisions(driver, page) -> None:
    left_out = [LeftOut("small.png", "shorter side of 9", True), LeftOut("broken.png", "empty file", False)]
    earlier = [Decision('组 3/图,"3".png', "drop", "旧的")]
    cards, folder = page(6, earlier, left_out, pairs=[(0, 1)])
    assert driver.find_element("id", "marked").get_attribute("value") == "1"
    twice = figures(driver, cards[0].file)
    assert len(twice) == 2, "among the pairs and in the grid"
    press(driver, twice[1], "drop")
    assert all("drop" in f.get_attribute("class") for f in twice)
    twice[1].find_element("tag name", "input").send_keys('看"不"清, 真的')
    press(driver, figures(driver, cards[5].file)[0], "keep")
    press(driver, figures(driver, cards[4].file)[0], "keep")
    press(driver, figures(driver, cards[4].file)[0], "keep")  # pressed again: no mark
    rows = driver.find_elements("css selector", "tr .choice")
    assert [row.get_attribute("data-file") for row in rows] == ["small.png"], "what is broken stays out"
    press(driver, rows[0], "keep")
    browser.reload_until(driver, lambda: driver.find_element("id", "marked").get_attribute("value") == "4")
    known = {card.file for card in cards} | {"small.png"}
    assert download(driver, folder, known) == {
        cards[0].file: Decision(cards[0].file, "drop", '看"不"清, 真的'),
        cards[3].file: earlier[0],
        cards[5].file: Decision(cards[5].file, "keep", ""),
        "small.png": Decision("small.png", "keep", ""),
    }
    # The build that read this file writes the page anew: marks stored on top of the older one are forgotten.
    cards, _ = page(6, [Decision(cards[1].file, "keep", "")])
    assert driver.find_element("id", "marked").get_attribute("value") == "1"


def test_odd_names_come_back_from_a_file_that_no_spreadsheet_runs(driver, page) -> None:
    names = [
        " a.png ", "=1+1.png", "'=1+1.png", "-b.png", "@c.png", "\td.png", "\re.png", "f\ng.png", "a.png"
    ]  # fmt: skip
    _, folder = page(1, left_out=[LeftOut(name, "too small", True) for name in names])
    rows = driver.find_elements("css selector", "tr .choice")
    assert [row.get_attribute("data-file") for row in rows] == names
    for row in rows:
        press(driver, row, "keep")
    rows[0].find_element("tag name", "input").send_keys("=1+1")
    found = download(driver, folder, set(names))
    assert found == {name: Decision(name, "keep", "=1+1" * (name == names[0])) for name in names}
    with next(folder.glob("*.csv")).open(encoding="utf-8", newline="") as handle:
        cells = [cell for row in csv.reader(handle) for cell in row]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)


def test_six_thousand_memes_stay_usable(driver, page) -> None:
    started = time.monotonic()
    page(MANY)
    loaded = time.monotonic() - started
    made = driver.execute_script("return document.querySelectorAll('.choice button').length")
    asked = driver.execute_script("return performance.getEntriesByType('resource').length")
    assert 0 < made < 600 and asked < 600, "buttons and pictures are made when they come into view"
    driver.execute_script("document.getElementById('memes').lastElementChild.scrollIntoView()")
    press(driver, driver.find_elements("css selector", "#memes figure:last-child")[0], "drop")
    words, shown = driver.find_element("id", "words"), driver.find_element("id", "shown")
    started = time.monotonic()
    words.send_keys("第4321句")
    assert shown.get_attribute("value") == "1"
    assert driver.execute_script("return csvText()").count("\n") == 2
    assert loaded < 20 and time.monotonic() - started < 20, (loaded, time.monotonic() - started)


def test_a_key_marks_the_meme_under_the_pointer(driver, page) -> None:
    from selenium.webdriver import ActionChains

    cards, _ = page(3)
    ActionChains(driver).move_to_element(figures(driver, cards[1].file)[0]).send_keys("d").perform()
    assert driver.execute_script("return csvText()") == 'file,action,why\n"组 1/图,""1"".png","drop",""\n'
    driver.find_element("id", "words").send_keys("d")
    assert driver.execute_script("return csvText()").count("\n") == 2, "typing is no mark"


def test_a_curation_file_of_another_encoding_is_named(tmp_path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes("file,action,why\n中文图.png,drop,\n".encode("gbk"))
    with pytest.raises(LibraryError, match="is not UTF-8"):
        read_curation(path, {"中文图.png"})


class Reads:
    """Reads the same text from every picture."""

    ocr_id = "fake 1"

    def read_text(self, image):
        return "上面的"


def test_ocr_is_held_against_known_texts(tmp_path):
    made_up.meme_files(tmp_path / "images", (24, 24))
    memes = [
        made_up.meme("m1").model_copy(update={"text": "上面的 下面的", "text_source": "known"}),
        made_up.meme("m2").model_copy(update={"text": "上面的！", "text_source": "known"}),
        made_up.meme("m3").model_copy(update={"text": "别的", "text_source": "ocr"}),
    ]
    sample = check_ocr_on_sample(memes, tmp_path, Reads(), n=1, seed=1)
    assert list(sample.columns) == ["meme_id", "known", "read", "similarity"] and len(sample) == 1
    whole = check_ocr_on_sample(memes, tmp_path, Reads())
    assert dict(zip(whole.meme_id, whole.similarity, strict=True)) == {
        "m1": pytest.approx(2 * 3 / 9),
        "m2": 1.0,
    }
    assert check_ocr_on_sample(memes[2:], tmp_path, Reads()).empty


def test_the_closest_pictures_come_first():
    known = {"m0": (0b0, "早"), "m1": (0b1, "早！"), "m2": (0b111, "晚安"), "far": (2**64 - 1, "早")}
    memes = [
        made_up.meme(name).model_copy(update={"phash": f"{bits:016x}", "text": text})
        for name, (bits, text) in known.items()
    ]
    pairs = closest_pictures(memes, n=2)
    assert pairs.values.tolist() == [["m0", "早", "m1", "早！", 1, 1.0], ["m1", "早！", "m2", "晚安", 2, 0.0]]
    # Beyond the first distance that is tried, and where there are not as many.
    assert closest_pictures(memes, n=4).bits.tolist() == [1, 2, 3, 61]
    assert len(closest_pictures(memes, n=99)) == 5, "a picture and its negative share no bit"
    assert closest_pictures(memes[:1]).empty and list(closest_pictures([]).columns) == list(pairs.columns)
