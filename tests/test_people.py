"""The rating form, its key and its answers. All answers here are made up."""

import re
from collections import Counter
from datetime import timedelta

import browser
import pandas as pd
import pytest
from made_ratings import MEMES, NASTY, QUALITY, answers, dialogues, form, placements, write_answers
from made_up import annotation, meme_files, profile

from memecmd_utils import grades, people, pictures, runs, schemas
from memecmd_utils.files import paths
from memecmd_utils.people import FormError
from memecmd_utils.schemas import DIMENSIONS

# --- which items


def test_items_are_balanced_and_the_key_tells_the_truth() -> None:
    of = dialogues()
    placed = {(p.strategy, p.dialogue_id, p.turn): p.meme_id for p in placements(of)}
    made = form()
    drawn = Counter(made.key.strategy)
    assert set(drawn) == set(QUALITY) and max(drawn.values()) - min(drawn.values()) <= 1
    shown = {item.item: item for item in made.items}
    assert len(shown) == 24 and set(made.key.item) == set(shown)
    for row in made.key.itertuples():
        assert row.form == made.form and placed[row.strategy, row.dialogue_id, row.turn] == row.meme_id
        item = shown[row.item]
        assert item.meme_id == row.meme_id
        texts = [text for _, _, text in item.lines if text]
        assert texts == [turn.text for turn in of[row.dialogue_id].turns[max(0, row.turn - 8) : row.turn]]
        assert [i for i, line in enumerate(item.lines) if not line[2]] == [len(item.lines) - 2], "before u_t"


# --- the page


def written(folder, made):
    meme_files(folder)
    people.write_page(folder / "form.html", made, MEMES, folder, by_models=True)
    return folder / "form.html"


def test_the_page_gives_nothing_away(tmp_path) -> None:
    made = form()
    text = written(tmp_path, made).read_text(encoding="utf-8")
    plain = re.sub(r"data:image/webp;base64,[\w+/=]+", "", text)
    assert not [name for name in (*QUALITY, "strateg", "made-", *MEMES, "threshold") if name in plain]
    assert all(item in plain for item in made.key.item) and "Language models wrote the chats" in text
    assert not re.search(r"https?://|fetch\(|XMLHttp|import\(|url\(", plain), "nothing from outside"
    assert re.search(r'http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;', text)


# --- answers


def test_answers_are_read_as_they_were_written_also_by_a_spreadsheet(tmp_path) -> None:
    made = form(n_items=8)
    file = write_answers(tmp_path / "answers.csv", answers(made))
    found, left_out = people.collect(tmp_path, made)
    assert left_out == 0 and len(found) == len(answers(made))
    text = file.read_text(encoding="utf-8")
    file.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert people.collect(tmp_path, made)[0].equals(found)
    file.write_bytes(text.replace("r1", "甲").replace(",", ";").encode("gb18030"))
    assert set(people.collect(tmp_path, made)[0].rater) == {"甲", "r2", "r3"}
    write_answers(file, answers(made).head(2).assign(humor_effect=[50.0, 101.0]))
    with pytest.raises(FormError, match=r"(?s)answers\.csv line 3: .*humor_effect"):
        people.collect(tmp_path, made)


def test_the_latest_answer_counts_and_trials_and_other_forms_do_not(tmp_path) -> None:
    made = form(n_items=8)
    person = answers(made).head(1)
    again = person.assign(humor_effect=33.0, at=person["at"] + timedelta(days=1))
    trial = person.assign(made_up=True, at=person["at"] + timedelta(days=2))
    write_answers(tmp_path / "a.csv", pd.concat([again, person, trial, person.assign(form="another")]))
    found, left_out = people.collect(tmp_path, made)
    assert found.humor_effect.tolist() == [33.0] and left_out == 2


# --- what they say


def test_a_run_gets_a_form_a_key_and_tables_of_what_came_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    of, folder = dialogues(), tmp_path / "data"
    meme_files(folder)
    run = runs.Run("made-up", profile(evaluation={"judge_sample": 1}), folder, tmp_path / "report")
    run.save(MEMES.values(), schemas.Meme)
    run.save([annotation(name) for name in MEMES], schemas.Annotation)
    run.save(of.values(), schemas.Dialogue)
    run.save(placements(of), schemas.Placement)
    made, text = people.people_of_run(run)
    assert max(made.key.groupby(["dialogue_id", "strategy"]).size()) > 1, "not the judges' sample"
    page = (run.report / "rating_form.html").read_text(encoding="utf-8")
    assert text == "No person has rated this run." and made.form in page
    assert pd.read_csv(run.read("rating_key.csv")).item.tolist() == made.key.item.tolist()
    given = answers(made)
    write_answers(tmp_path / "raw" / "ratings" / run.profile.name / "a.csv", given)
    assert "3 person(s) gave" in people.people_of_run(run)[1]
    tables = people.ratings_summary(given, made.key)
    row = tables["means"].set_index("strategy").loc["greedy"]
    drawn = made.key[made.key.strategy == "greedy"].item
    liked = given.set_index("item")[list(DIMENSIONS)].mean(axis=1).loc[drawn]
    assert row["mean"].value == pytest.approx(liked.mean()) and row.ratings == 3 * row["items"] == len(liked)
    (alpha,) = tables["alpha"].itertuples()
    assert alpha.alpha.value > 0.5 and alpha.raters == 3
    assert (run.report / "tables" / "human_means.csv").is_file()
    run.save([], schemas.Placement)
    assert people.people_of_run(run)[0] is None


# --- the form in a real browser


def by_id(driver, name: str):
    return driver.find_element("id", name)


def keys(driver, *pressed: str) -> None:
    """Type into whatever has the focus, as a hand on the keyboard does."""
    for key in pressed:
        driver.switch_to.active_element.send_keys(key)


def test_items_by_keyboard_a_reload_and_the_csv(tmp_path, open_browser) -> None:
    """Hostile texts are shown as text, and the page fits a phone."""
    from selenium.webdriver.common.keys import Keys

    made, folder = form(n_items=3, of=dialogues(text=NASTY)), tmp_path / "downloads"
    page = written(tmp_path, made)
    with open_browser(1200, 900, folder) as driver:
        driver.get(page.as_uri())
        keys(driver, Keys.TAB)  # from the top of the page to the name
        keys(driver, "rater-1", Keys.TAB, " ", Keys.TAB, " ", Keys.TAB, Keys.ENTER)
        # The first question has the focus; arrows change by five, End is 100, a blank takes the middle.
        keys(driver, Keys.HOME, Keys.TAB, Keys.ARROW_RIGHT, Keys.TAB, Keys.END, Keys.TAB, " ", Keys.ENTER)
        assert "missing" in by_id(driver, "say").text
        keys(driver, Keys.HOME, Keys.ENTER)
        browser.reload_until(driver, lambda: driver.execute_script("return state.position") == 1)
        assert by_id(driver, "rater").get_attribute("value") == "rater-1"
        assert not by_id(driver, "consent").is_selected(), "asked again"
        for name in ("consent", "begin", "back"):
            by_id(driver, name).click()
        assert [by_id(driver, f"o{i}").text for i in range(5)] == ["0", "55", "100", "50", "0"]
        driver.find_element("css selector", "#bar .download").click()
        file = browser.downloaded(folder)
        assert file.name == f"ratings_{made.form}_rater-1.csv"
        answers = people.read_answers(folder, people.HumanRating)
        assert answers[list(DIMENSIONS)].to_numpy().tolist() == [[0, 55, 100, 50, 0]]
        assert answers[["item", "rater"]].to_numpy().tolist() == [[made.items[0].item, "rater-1"]]
        assert people.collect(folder, made)[1] == 1, "a trial"
        by_id(driver, "comment").send_keys('=1+1,"<b>')
        assert """'=1+1,""<b>""" in driver.execute_script("return csvText()")
        shown = [bubble.text for bubble in driver.find_elements("css selector", ".bubble")]
        assert shown and all("</script><img src=x onerror=alert(1)><!--" in text for text in shown)
        assert browser.on_a_phone(driver, page.as_uri()) == 0


# --- the page for grades


def test_memes_are_graded_by_key_and_read_as_a_table_of_grades(tmp_path, open_browser) -> None:
    """0, 1 and 2 grade, a blank skips, Backspace goes back; grades outlive a reload."""
    from selenium.webdriver.common.keys import Keys

    turns = [
        {"id": f"chat/{t}", "dialogue": "chat", "turn": t, "speaker": "B",
         "before": [{"speaker": "AB"[n % 2], "text": NASTY if n else ""} for n in range(t - 1)]}
        for t in (2, 3)
    ]  # fmt: skip
    memes = [{"id": f"m{n}", "picture": "一只猫", "caption": NASTY, "text": ""} for n in (1, 2)]
    folder, page = tmp_path / "downloads", tmp_path / "grade.html"
    picture = pictures.thumbnail(meme_files(tmp_path)["m1"], 80)
    people.write_grading_page(page, [(t, m) for t in turns for m in memes], {"m1": picture})
    with open_browser(1200, 900, folder) as driver:
        driver.get(page.as_uri())
        by_id(driver, "begin").click()
        assert len(driver.find_elements("css selector", "#shown img")) == 1
        keys(driver, "1")
        shown = driver.find_element("css selector", ".meme.bubble").text
        assert "一只猫" in shown and "<img src=x onerror=alert(1)>" in shown
        keys(driver, Keys.BACKSPACE)
        assert by_id(driver, "count").text == "1 / 4"
        keys(driver, "2", " ", "0")
        browser.reload_until(driver, lambda: driver.execute_script("return state.position") == 3)
        by_id(driver, "begin").click()
        driver.find_elements("css selector", "#grades button")[1].click()
        driver.find_element("css selector", "#end .download").click()
        found = grades.read_grades(browser.downloaded(folder), {("chat", 2), ("chat", 3)}, {"m1", "m2"})
        assert [(g.turn, g.meme_id, g.grade, g.grader) for g in found] == [
            (2, "m1", 2, "grader"), (3, "m1", 0, "grader"), (3, "m2", 1, "grader"),
        ]  # fmt: skip
