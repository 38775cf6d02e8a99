"""The rating form, its key and its answers. All answers here are made up."""

import csv
import json
import math
import re
from collections import Counter
from html.parser import HTMLParser

import browser
import numpy as np
import pytest
from made_ratings import MEMES, NASTY, QUALITY, answers, dialogues, form, placements, write_answers
from made_up import meme_files, profile

from memecmd_utils import files, people, runs
from memecmd_utils.files import paths
from memecmd_utils.people import TABLES, Answers, FormError
from memecmd_utils.schemas import DIMENSIONS

# --- which items


def test_items_are_balanced_and_the_key_tells_the_truth() -> None:
    of = dialogues()
    placed = {(p.strategy, p.dialogue_id, p.turn): p.meme_id for p in placements(of)}
    made, key = form()
    drawn = Counter(row.strategy for row in key)
    assert set(drawn) == set(QUALITY) and max(drawn.values()) - min(drawn.values()) <= 1
    shown = {item.item: item for item in made.items}
    assert len(shown) == 24 and {row.item for row in key} == set(shown)
    for row in key:
        assert row.form == made.form and placed[row.strategy, row.dialogue_id, row.turn] == row.meme_id
        item = shown[row.item]
        assert item.meme_id == row.meme_id
        texts = [text for _, _, text in item.lines if text]
        assert texts == [turn.text for turn in of[row.dialogue_id].turns[max(0, row.turn - 8) : row.turn]]
        assert [i for i, line in enumerate(item.lines) if not line[2]] == [len(item.lines) - 2], "before u_t"


# --- the page


class Page(HTMLParser):
    """Elements and scripts of a page as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data


def written(folder, made, memes=MEMES) -> str:
    meme_files(folder)
    people.write_page(folder / "form.html", made, memes, folder, by_models=True)
    return (folder / "form.html").read_text(encoding="utf-8")


def test_the_page_gives_nothing_away_and_needs_nothing_from_outside(tmp_path) -> None:
    made, key = form()
    text = written(tmp_path, made)
    page, plain = Page(text), re.sub(r"data:image/webp;base64,[\w+/=]+", "", text)
    assert not [name for name in (*QUALITY, "strateg", "made-", *MEMES, "threshold") if name in plain]
    assert {row.item for row in key} == {item["item"] for item in json.loads(page.scripts[0])["items"]}
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert not re.search(r"https?://|fetch\(|XMLHttp|import\(|url\(", text)
    assert not any({"src", "href", "action"} & set(a) for _, a in page.elements)
    assert "Language models wrote the chats" in text


def test_data_stays_data_and_a_broken_picture_is_named(tmp_path) -> None:
    made, _ = form()
    plain = Page(written(tmp_path, made))
    nasty = {name: one.model_copy(update={"text": NASTY}) for name, one in MEMES.items()}
    found = Page(written(tmp_path, form(of=dialogues(text=NASTY))[0], nasty))
    assert [t for t, _ in found.elements] == [t for t, _ in plain.elements]
    assert len(found.scripts) == 2 and found.scripts[1] == plain.scripts[1]
    assert not any(sign in found.scripts[0] for sign in ("</", "<!--", "\u2028", "<script"))
    (tmp_path / "m1.png").write_bytes(b"GIF89a and no more")
    with pytest.raises(FormError, match=r"m1\.png: .*the form shows"):
        people.write_page(tmp_path / "form.html", made, MEMES, tmp_path)


# --- answers


@pytest.fixture(scope="module")
def rated():
    _, key = form(n_items=8)
    return key, answers(key)


@pytest.fixture
def file(rated, tmp_path):
    return write_answers(tmp_path / "made_up.csv", rated[1])


def change(file, line: int, **cells: str):
    """Write other cells into one line of a CSV (line 2 is the first row of data)."""
    rows = list(csv.DictReader(file.open(encoding="utf-8-sig", newline="")))
    rows[line - 2] |= cells
    with file.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_answers_are_read_as_they_were_written_also_by_a_spreadsheet(rated, file, tmp_path) -> None:
    key, given = rated
    assert file.read_text(encoding="utf-8").split("\n")[0].split(",") == list(people.COLUMNS)
    found = people.collect(tmp_path, key)
    assert (found.answers, found.source) == (given, "made up")
    text = file.read_text(encoding="utf-8")
    file.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert people.collect(tmp_path, key).answers == given
    assert people.collect(tmp_path / "gone", key).source is None
    file.write_bytes(text.replace("r1", "甲").encode("gb18030"))
    with pytest.raises(FormError, match="not UTF-8"):
        people.collect(tmp_path, key)


def test_where_a_person_answered_made_up_answers_do_not_count(rated, file, tmp_path) -> None:
    key, given = rated
    person = given[0].model_copy(update={"made_up": False, "humor_effect": 33.0})
    # A trial under the same name, later, replaces no answer.
    trial = given[0].model_copy(update={"at": given[0].at.replace(year=2030)})
    write_answers(tmp_path / "person.csv", [person, trial])
    found = people.collect(tmp_path, key)
    assert found.source == "human" and found.counted == [person]
    text = people.ratings_verdict(found, people.ratings_summary(found))
    assert text.startswith("1 person(s) gave 1 answers. 24 made-up answers are left out.")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("humor_effect", "101"), ("humor_effect", "nan"), ("humor_effect", ""), ("at", "31.01.26"),
        ("at", "2026-01-31T12:00:00"), ("seconds", "-3"), ("rater", " "), ("made_up", "perhaps"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_line(rated, file, tmp_path, column, cell) -> None:
    change(file, 3, **{column: cell})
    with pytest.raises(FormError, match=rf"(?s)made_up\.csv line 3: .*{column}.*correct the row"):
        people.collect(tmp_path, rated[0])


# --- what they say


@pytest.fixture(scope="module")
def key():
    return form(n_items=60, of=dialogues(20))[1]


def test_tables_say_what_is_made_up_and_count_the_items_of_a_strategy(key) -> None:
    given = answers(key)
    tables = people.ratings_summary(Answers(given, key))
    for name, table in tables.items():
        assert list(table.columns) == TABLES[name] and set(table.source) <= {"made up"}
    text = people.ratings_verdict(Answers(given, key), tables)
    assert "Krippendorff's alpha of the overall score: 0." in text
    assert text.startswith("No person has rated this run. 180 made-up answers") and "gave" not in text
    drawn = [row.item for row in key if row.strategy == "random"]
    overall = {item: np.mean([[getattr(a, d) for d in DIMENSIONS] for a in given if a.item == item])
               for item in drawn}  # fmt: skip
    row = tables["means"].query("scale == 'overall' and strategy == 'random'").iloc[0]
    assert row["mean"] == pytest.approx(np.mean([overall[item] for item in drawn]))
    assert (row["items"], row.ratings) == (len(drawn), 3 * len(drawn))
    assert tables["alpha"].alpha.min() > 0.5 and set(tables["alpha"].raters) == {3}
    assert all(table.empty for table in people.ratings_summary(Answers([], key)).values())


def test_correlation_with_judges(key) -> None:
    given = answers(key)
    liked = {
        item: np.mean([[getattr(a, d) for d in DIMENSIONS] for a in given if a.item == item])
        for item in {row.item for row in key}
    }
    same = {(row.dialogue_id, row.turn, row.meme_id): liked[row.item] ** 3 for row in key}
    against = {p: -v for p, v in list(same.items())[:30]}
    judged = {"same order": same, "against": against, "elsewhere": {("x", 2, "m1"): 1.0}}
    table = people.ratings_summary(Answers(given, key), judged)["correlations"].set_index("scorer")
    assert table.spearman["same order"] == pytest.approx(1) and table["items"]["same order"] == 60
    assert table.spearman["against"] == pytest.approx(-1) and table["items"]["against"] == 30
    assert math.isnan(table.spearman["elsewhere"]) and table["items"]["elsewhere"] == 0


def test_a_run_gets_a_form_a_key_and_tables_of_what_came_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    of, folder = dialogues(), tmp_path / "data"
    meme_files(folder)
    run = runs.Run("made-up", profile(), folder, tmp_path / "report")
    files.write_text(run.write("memes.parquet"), "")  # pictures lie beside it
    made, text = people.people_of_run(run, placements(of), of, MEMES, {})
    assert text == "No person has rated this run." and made.form in (
        run.report / "rating_form.html"
    ).read_text(encoding="utf-8")
    key = people.read_rows(run.read("rating_key.csv"), people.KeyRow, "")
    assert {row.form for row in key} == {made.form}
    write_answers(tmp_path / "raw" / "ratings" / run.profile.name / "a.csv", answers(key, made_up=False))
    assert "3 person(s) gave" in people.people_of_run(run, placements(of), of, MEMES, {})[1]
    assert "human" in (run.report / "tables" / "human_means.csv").read_text(encoding="utf-8")
    assert people.people_of_run(run, [], of, MEMES, {})[0] is None


# --- the form in a real browser


@pytest.fixture
def page(tmp_path):
    """Write a form, open it in a browser of its own, and return what the tests need."""
    with browser.open_browser(1200, 900) as driver:
        folder = tmp_path / "downloads"
        folder.mkdir()
        allow = {"behavior": "allow", "downloadPath": str(folder)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)

        def open_form(**changes):
            made, key = form(n_items=3, **changes)
            written(tmp_path, made)
            driver.get((tmp_path / "form.html").as_uri())
            return driver, made, key, folder

        yield open_form
        assert browser.errors(driver) == []


def by_id(driver, name: str):
    return driver.find_element("id", name)


def keys(driver, *pressed: str) -> None:
    """Type into whatever has the focus, as a hand on the keyboard does."""
    for key in pressed:
        driver.switch_to.active_element.send_keys(key)


def begin(driver) -> None:
    by_id(driver, "rater").send_keys("rater-1")
    by_id(driver, "consent").click()
    by_id(driver, "trial").click()
    by_id(driver, "begin").click()


def test_items_by_keyboard_a_reload_and_the_csv(page) -> None:
    from selenium.webdriver.common.keys import Keys

    driver, made, key, folder = page()
    keys(driver, Keys.TAB)  # from the top of the page to the name
    keys(driver, "rater-1", Keys.TAB, " ", Keys.TAB, " ", Keys.TAB, Keys.ENTER)
    assert by_id(driver, "trial-note").is_displayed()
    # The first question has the focus; arrows change by five, End is 100, a blank takes the middle.
    keys(driver, Keys.HOME, Keys.TAB, Keys.ARROW_RIGHT, Keys.TAB, Keys.END, Keys.TAB, " ", Keys.ENTER)
    assert "missing" in by_id(driver, "say").text
    keys(driver, Keys.HOME, Keys.ENTER)
    browser.reload_until(driver, lambda: driver.execute_script("return state.position") == 1)
    assert by_id(driver, "rater").get_attribute("value") == "rater-1"
    assert not by_id(driver, "consent").is_selected(), "asked again"
    by_id(driver, "consent").click()
    by_id(driver, "begin").click()
    by_id(driver, "back").click()
    assert [by_id(driver, f"o{i}").text for i in range(5)] == ["0", "55", "100", "50", "0"]
    driver.find_element("css selector", "#bar .download").click()
    file = browser.downloaded(folder)
    assert file.name == f"ratings_{made.form}_rater-1.csv"
    [answer] = people.collect(folder, key).answers
    assert [getattr(answer, name) for name in DIMENSIONS] == [0, 55, 100, 50, 0]
    assert (answer.item, answer.rater, answer.made_up) == (made.items[0].item, "rater-1", True)
    assert 0 < answer.seconds < 600


def test_markup_is_shown_as_text_and_the_page_fits_a_phone(page) -> None:
    driver, *_ = page(of=dialogues(text=NASTY))
    browser.resize(driver, 390, 844)
    widths = "return [document.documentElement.scrollWidth, innerWidth]"
    assert driver.execute_script(widths) == [390, 390]
    begin(driver)
    assert driver.execute_script(widths) == [390, 390]
    assert by_id(driver, "shown").location["y"] < 400 < by_id(driver, "answers").location["y"]
    shown = [bubble.text for bubble in driver.find_elements("css selector", ".bubble")]
    assert shown and all("</script><img src=x onerror=alert(1)><!--" in text for text in shown)
    assert driver.execute_script("return document.querySelectorAll('#shown img').length") == 1
    by_id(driver, "comment").send_keys('=1+1,"<b>')
    for slider in driver.find_elements("css selector", "input[type=range]"):
        assert slider.size["height"] >= 32
        slider.send_keys(" ")
    text = driver.execute_script("return csvText()")
    assert text.split("\n")[1].endswith(""","'=1+1,""<b>",1""")
