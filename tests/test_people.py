"""The rating form, its key and its answers. All answers here are made up."""

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import browser
import numpy as np
import pandas as pd
import pytest
from made_up import annotation, dialogue, meme, meme_files, placement, profile

from memecmd_utils import files, grades, people, pictures, runs, schemas
from memecmd_utils.files import paths
from memecmd_utils.people import Form, FormError, HumanRating
from memecmd_utils.schemas import DIMENSIONS

# --- a made-up run with four strategies, and made-up answers: no person gave any of them

SENDERS = ("greedy", "sampling", "random", "random_same_turns")
NASTY = "</script><img src=x onerror=alert(1)><!-- \u2028 {{ 7*7 }} & \"q\" 'a'"
MEMES = {name: meme(name).model_copy(update={"file": f"{name}.png"}) for name in ("m1", "m2", "m3")}


def dialogues(text: str = "") -> dict[str, schemas.Dialogue]:
    names = {f"made-{d}": tuple(f"第{d}段第{t}句{text}" for t in range(1, 13)) for d in range(12)}
    return {name: dialogue(name, texts) for name, texts in names.items()}


def placements() -> list[schemas.Placement]:
    """Three strategies share their turns, as behind one gate; Random has turns of its own."""
    rng, found = np.random.default_rng(1), []
    for name in dialogues():
        gate, own = (rng.choice(range(2, 13), size=n, replace=False).tolist() for n in (4, 5))
        for strategy in SENDERS:
            for turn in own if strategy == "random" else gate:
                chosen = f"m{rng.integers(1, 4)}"
                found.append(placement(turn, chosen, dialogue_id=name, strategy=strategy))
    return found


def form(n_items: int = 24, of: dict | None = None) -> Form:
    return people.choose(placements(), of or dialogues(), n_items=n_items, seed=5)


def answers(made: Form) -> pd.DataFrame:
    """Made-up answers of three raters who agree but for noise."""
    rng, found = np.random.default_rng(0), []
    for place, item in enumerate(made.items):
        for rater in ("r1", "r2", "r3"):
            given = {name: 20.0 + place + rng.integers(0, 5) for name in DIMENSIONS}
            about = {"form": made.form, "item": item.item, "rater": rater, "at": "2026-01-31T12:00:00Z"}
            found.append(HumanRating(**about, **given).model_dump())
    return pd.DataFrame(found)


def write_answers(path: Path, given: pd.DataFrame) -> Path:
    """Write answers in the form's own columns, as its page saves them."""
    rows = given.assign(at=[at.isoformat() for at in given["at"]], made_up=given.made_up.astype(int))
    return files.write_frame(path, rows[list(HumanRating.model_fields)])


# --- which items


def test_items_are_balanced_and_the_key_tells_the_truth() -> None:
    of = dialogues()
    placed = {(p.strategy, p.dialogue_id, p.turn): p.meme_id for p in placements()}
    made = form()
    drawn = Counter(made.key.strategy)
    assert set(drawn) == set(SENDERS) and max(drawn.values()) - min(drawn.values()) <= 1
    shown = {item.item: item for item in made.items}
    assert len(shown) == 24 and set(made.key.item) == set(shown)
    for row in made.key.itertuples():
        assert row.form == made.form and placed[row.strategy, row.dialogue_id, row.turn] == row.meme_id
        item = shown[row.item]
        assert item.meme_id == row.meme_id
        *before, last = [turn.text for turn in of[row.dialogue_id].turns[max(0, row.turn - 8) : row.turn]]
        assert [line["text"] for line in item.lines] == [*before, "", last], "before u_t"


# --- answers


def test_the_latest_answer_counts_and_trials_and_other_forms_do_not(tmp_path) -> None:
    """Also in a file that a spreadsheet wrote."""
    made = form(n_items=8)
    person = answers(made).head(1).assign(rater="甲")
    again = person.assign(humor_effect=33.0, at=person["at"] + timedelta(days=1))
    trial = person.assign(made_up=True, at=person["at"] + timedelta(days=2))
    file = tmp_path / "answers.csv"
    write_answers(file, pd.concat([again, person, trial, person.assign(form="another")]))
    file.write_bytes(file.read_text(encoding="utf-8").replace(",", ";").encode("gb18030"))
    found, left_out = people.collect(tmp_path, made)
    assert found[["rater", "humor_effect"]].to_numpy().tolist() == [["甲", 33.0]] and left_out == 2
    write_answers(file, answers(made).head(2).assign(humor_effect=[50.0, 101.0]))
    with pytest.raises(FormError, match=r"(?s)answers\.csv line 3: .*humor_effect"):
        people.collect(tmp_path, made)


# --- a run's form and what people say


def test_a_run_gets_a_form_that_gives_nothing_away_and_means_of_answers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    run = runs.Run("one", profile(evaluation={"judge_sample": 1}), tmp_path / "data", tmp_path / "report")
    meme_files(run.folder)
    run.save(MEMES.values(), schemas.Meme)
    run.save([annotation(name) for name in MEMES], schemas.Annotation)
    run.save(dialogues().values(), schemas.Dialogue)
    run.save(placements(), schemas.Placement)
    made, text = people.people_of_run(run)
    assert max(made.key.groupby(["dialogue_id", "strategy"]).size()) > 1, "not the judges' sample"
    page = (run.report / "rating_form.html").read_text(encoding="utf-8")
    plain = re.sub(r"data:image/webp;base64,[\w+/=]+", "", page)
    assert not [name for name in (*SENDERS, "strateg", "made-", *MEMES, "threshold") if name in plain]
    assert all(item in plain for item in made.key.item) and "Language models wrote the chats" in page
    assert re.search(r'http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;', page)
    assert text == "No person has rated this run." and made.form in page
    assert pd.read_csv(run.read("rating_key.csv")).item.tolist() == made.key.item.tolist()
    given = answers(made)
    write_answers(tmp_path / "raw" / "ratings" / run.profile.name / "a.csv", given)
    assert "3 person(s) gave" in people.people_of_run(run)[1]
    alpha, means = people.ratings_summary(given, made.key)
    row = means.set_index("strategy").loc["greedy"]
    drawn = made.key[made.key.strategy == "greedy"].item
    liked = given.set_index("item")[list(DIMENSIONS)].mean(axis=1).loc[drawn]
    assert row["mean"].value == pytest.approx(liked.mean()) and row.ratings == 3 * row["items"] == len(liked)
    assert alpha.value > 0.5 and (run.report / "tables" / "human_means.csv").is_file()
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
    meme_files(tmp_path)
    page = tmp_path / "form.html"
    people.write_page(page, made, MEMES, tmp_path, by_models=True)
    with open_browser(1200, 900, folder) as driver:
        driver.get(page.as_uri())
        keys(driver, Keys.TAB)  # from the top of the page to the name
        keys(driver, "rater-1", Keys.TAB, " ", Keys.TAB, " ", Keys.TAB, Keys.ENTER)
        # Arrows change by five, End is 100, a blank takes the middle.
        keys(driver, Keys.HOME, Keys.TAB, Keys.ARROW_RIGHT, Keys.TAB, Keys.END, Keys.TAB, " ", Keys.ENTER)
        assert "missing" in by_id(driver, "say").text
        keys(driver, Keys.HOME, Keys.ENTER)
        browser.reload_until(driver, lambda: driver.execute_script("return state.position") == 1)
        assert by_id(driver, "begin").text == "继续 Go on (已答 answered 1 / 3)"
        for name in ("consent", "begin", "back"):
            by_id(driver, name).click()
        assert [by_id(driver, f"o{i}").text for i in range(5)] == ["0", "55", "100", "50", "0"]
        driver.find_element("css selector", "#bar .download").click()
        file = browser.downloaded(folder)
        assert file.name == f"ratings_{made.form}_rater-1.csv"
        answers = people.read_answers(folder, HumanRating)
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
        assert "<img src=x onerror=alert(1)>" in driver.find_element("css selector", ".meme.bubble").text
        keys(driver, Keys.BACKSPACE, "2", " ", "0")
        browser.reload_until(driver, lambda: driver.execute_script("return state.position") == 3)
        by_id(driver, "begin").click()
        driver.find_elements("css selector", "#grades button")[1].click()
        driver.find_element("css selector", "#end .download").click()
        found = grades.read_grades(browser.downloaded(folder), {("chat", 2), ("chat", 3)}, {"m1", "m2"})
        assert [(g.turn, g.meme_id, g.grade, g.grader) for g in found] == [
            (2, "m1", 2, "grader"), (3, "m1", 0, "grader"), (3, "m2", 1, "grader"),
        ]  # fmt: skip
