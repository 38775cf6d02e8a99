"""Pictures for the READMEs: `python tests/bench/page_pictures.py [PAGE] [FOLDER]`.

They depend on the fonts and the version of the browser, so they are taken by hand and nothing compares them.
"""

import json
import sys
import tempfile
from pathlib import Path

import browser

from memecmd_utils import drawing, evaluation, runs, schemas
from memecmd_utils.files import paths

TEACHING = json.loads((paths.example / "teaching_dialogues.json").read_text(encoding="utf-8"))
SHOW = """
const dialogue = document.getElementById("dialogue");
dialogue.value = [...dialogue.options].findIndex(option => option.textContent.includes(arguments[0]));
dialogue.dispatchEvent(new Event("change"));
document.querySelector("#strategies input[value=reranked]")?.click();
document.getElementById("english").click();
document.querySelectorAll("#chat button")[11]?.click();
document.getElementById(arguments[1]).scrollIntoView();
"""
"""What the chat browser shows: turn 12 of a dialogue with the memes of `reranked`, in English."""
PICTURES = {
    "page.png": (1400, 1000, None),
    "chat_browser.png": (1400, 1000, "chats"),
    "phone.png": (390, 844, "title"),
}
"""Name to width, height, and the element that is scrolled to."""
HERO = (range(2, 5), range(5, 8), range(10, 13))
"""Turns of the typical teaching dialogue on the READMEs' first picture, one column each."""
HERO_SIZE = (1120, 480)
HERO_STYLE = """
body { margin: 0; background: #ededed; }
.mc-beside { flex-wrap: nowrap; gap: 0; align-items: stretch; }
.mc-beside > figure { max-width: none; padding: 6px 0; }
.mc-beside > figure + figure { border-left: 1px solid #cfcfcf; }
.mc-beside figcaption { display: none; }
.mc-page { padding: 8px 10px; }
.mc-turn { margin-bottom: 5px; }
.mc-says { gap: 2px; max-width: calc(100% - 42px); }
.mc-text { padding: 4px 10px; }
.mc-english { line-height: 1.25; }
.mc-meme img { width: auto; height: 118px; }
.mc-small { display: none; }
"""


def take(page: Path, folder: Path) -> list[Path]:
    """Take all pictures of `page` and put them into `folder`; raises if the page wrote an error."""
    taken = []
    for name, (width, height, element) in PICTURES.items():
        with browser.open_browser(width, height) as driver:
            driver.get(page.resolve().as_uri())
            if element:
                driver.execute_script(SHOW, TEACHING["typical"], element)
            if found := browser.errors(driver):
                raise AssertionError(f"{page}: {found}")
            taken.append(browser.photograph(driver, folder / name))
    return taken


def take_hero(run: runs.Run, folder: Path) -> Path:
    """The typical teaching dialogue, cut to a few turns, with the memes of `reranked` and the English."""
    dialogue = drawing.teaching_dialogue(run.load(schemas.Dialogue), "typical")
    memes = {meme.meme_id: meme for meme in run.load(schemas.Meme)}
    picks = {
        placed.turn: memes[placed.meme_id]
        for placed in run.load(schemas.Placement)
        if placed.dialogue_id == dialogue.dialogue_id and placed.strategy == "reranked"
    }
    files = evaluation.meme_files(run, memes)
    parts = {
        f"part_{number}": drawing.show_chat(dialogue, picks, files, turns=turns)
        for number, turns in enumerate(HERO)
    }
    beside = drawing.show_beside(**parts).data
    page = f'<!doctype html><meta charset="utf-8">{beside}<style>{HERO_STYLE}</style>'
    with tempfile.TemporaryDirectory() as made, browser.open_browser(*HERO_SIZE) as driver:
        source = Path(made) / "hero.html"
        source.write_text(page, encoding="utf-8")
        driver.get(source.as_uri())
        high = driver.execute_script("return document.querySelector('.mc-beside').scrollHeight")
        if high > HERO_SIZE[1]:
            raise AssertionError(f"the chat is {high} pixels high, the picture {HERO_SIZE[1]}")
        browser.resize(driver, HERO_SIZE[0], high)
        return browser.photograph(driver, folder / "hero.png")


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    defaults = [paths.reports / "example" / "index.html", paths.reports]
    page, folder = given + defaults[len(given) :]
    for picture in (*take(page, folder), take_hero(runs.open_run("example"), folder)):
        print(picture)
