"""Pictures of page and lessons for the READMEs: `python .ci/page_pictures.py [PAGE] [FOLDER]`.

They depend on the fonts and the version of the browser, so they are taken by hand and nothing compares them.
"""

import base64
import io
import re
import sys
import time
from pathlib import Path

import browser
from PIL import Image, ImageDraw, ImageFont, ImageOps

from memecmd_utils.files import paths

CARD, SCALE = (420, 230), 1.5
"""The size of a lesson's card in CSS pixels, and how many pixels of the file one of them is."""
SHEETS = {"lessons.png": 2, "lessons_phone.png": 1}
"""A sheet of all cards -> its columns."""
OUTPUTS = ".jp-OutputArea-output :is(img, .mc-row, .mc-page)"
CARDS = {
    "01_library_build": (6, (390, 0, 780, 214)),
    "02_annotation": (9, (0, 0, 614, 269)),
    "03_dialogue_generation": (0, (0, 0, 560, 300)),
    "04_retrieval": (7, (-8, 0, 540, 250)),
    "04b_learned_placement": (5, (0, 0, 425, 384)),
    "04c_reranking": (1, (0, 0, 506, 232)),
    "05_evaluation": (22, (0, 0, 768, 269)),
    "05b_studies": (0, (0, 0, 768, 407)),
    "06_figures": (25, (0, 0, 672, 250)),
    "07_template_memes": (3, (0, 0, 864, 346)),
    "08_meme_text_retrieval": (8, (0, 0, 574, 258)),
    "09_the_papers_data": (8, (0, 0, 768, 240)),
}
"""Lesson -> which of its outputs the card shows, and the part of it: left, top, right, bottom."""
STILL = ("chat_browser.png", (1280, 800))
MOVING = (("hero.gif", (1000, 560)), ("hero_phone.gif", (420, 640)))
"""Name, and width and height in pixels. A README on a phone shows the small one."""
OPEN = "location.hash = `by=${arguments[0]}&turn=${arguments[1]}`; location.reload();"
"""The explorer opens on its first chat: one that the system made."""
CROP = """
const style = document.createElement("style");
style.textContent = `header, #ask, .head, .pick, #words, #origin, #usual, #gate .note { display: none }
  .bar > :not(fieldset), #rate .note, #steps section:first-of-type > :not(h3) { display: none }
  main { padding-top: 0 } #browser { margin-top: .8rem } #rate { min-height: 0 }
  #steps :is(h2, .note, .parts, .found a, section:nth-of-type(2) .detail) { display: none }
  .live-gate #steps section:is(:first-of-type, :last-of-type) { display: none }
  .found { grid-template-columns: repeat(3, minmax(0, 1fr)) } .found img { width: 48px; height: 48px }
  .found li { grid-template-columns: 48px minmax(0, 1fr) }
  #steps section:last-of-type .found { display: block }
  #browser:not(.playing) .tap { display: none }
  #chat { height: 452px } .side { height: 452px; overflow: hidden }`;
document.head.append(style);
// The chat begins with a whole message.
const chat = document.getElementById("chat"), now = chat.querySelector("[aria-current=true]");
const place = element => element.getBoundingClientRect();
const first = [...chat.children].find(item => place(now).bottom - place(item).top < 400);
chat.scrollTop += place(first).top - place(chat).top;
"""
SLIDE = """
const slider = document.getElementById("theta0");
slider.value = arguments[0];
slider.dispatchEvent(new Event("input"));
"""
THRESHOLDS = (0.243, 0.213, 0.199, 0.191, 0.184, 0.177, 0.169, 0.162, 0.154)
"""What the threshold is moved to: memes come, then it goes back and they leave."""
HOLD_MS, STEP_MS = 2500, 350


def take(page: Path, folder: Path) -> list[Path]:
    """Take all pictures of `page` and put them into `folder`; raises if the page wrote an error."""
    name, size = STILL
    with browser.open_browser(*size) as driver:
        driver.get(page.resolve().as_uri())
        time.sleep(0.5)  # the chat goes to its end once its pictures are there
        taken = [browser.photograph(driver, folder / name)]
    return [*taken, *(record(page, folder / name, size) for name, size in MOVING)]


def record(page: Path, target: Path, size: tuple[int, int]) -> Path:
    """Record how a model's memes give way to those of the gate while its threshold moves."""
    with browser.open_browser(*size) as driver:
        _open(driver, page, "reranked", 13)
        driver.execute_script(CROP)
        frames = [(_frame(driver), HOLD_MS)]
        for tab in driver.find_elements("css selector", "#strategies input[value=yours]"):
            driver.execute_script("arguments[0].click()", tab)
            for theta0 in (*THRESHOLDS, *THRESHOLDS[::-1]):
                driver.execute_script(SLIDE, theta0)
                frames.append((_frame(driver), HOLD_MS if theta0 == THRESHOLDS[-1] else STEP_MS))
        if found := browser.errors(driver):
            raise AssertionError(f"{page}: {found}")
    frames.append(frames[0])  # it plays twice and rests where it began
    pictures, times = zip(*frames, strict=True)
    pictures[0].save(
        target, save_all=True, append_images=pictures[1:], duration=list(times), loop=1, optimize=True
    )
    return target


def take_lessons(folder: Path, target: Path) -> list[Path]:
    """Sheets of equal cards for the lessons in `folder`: question and a part of one output."""
    font = ImageFont.load_default(15 * SCALE)
    wide, high = (round(SCALE * side) for side in CARD)
    gap = round(10 * SCALE)
    readme = (paths.root / "README.md").read_text(encoding="utf-8")
    questions = dict(re.findall(r"^\| \[(\w+)\]\(.*\) \| (.*) \|$", readme, re.MULTILINE))
    cards = []
    with browser.open_browser(1000, 1500) as driver:
        for lesson, (output, part) in CARDS.items():
            driver.get((folder / f"{lesson}.html").resolve().as_uri())
            shown = driver.find_elements("css selector", OUTPUTS)[output]
            card = Image.new("RGB", (wide + gap, high + 4 * gap), "white")
            draw = ImageDraw.Draw(card)
            title = f"{lesson.split('_')[0]}  {questions[lesson]}"
            draw.text((gap, gap), title, fill="black", font=font)
            card.paste(ImageOps.pad(_part(driver, shown, part), (wide, high), color="white"), (gap, 3 * gap))
            draw.rectangle((gap, 3 * gap, gap + wide - 1, 3 * gap + high), outline="lightgrey")
            cards.append(card)
    for name, columns in SHEETS.items():
        (width, height), rows = cards[0].size, -(-len(cards) // columns)
        sheet = Image.new("RGB", (columns * width + gap, rows * height), "white")
        for number, card in enumerate(cards):
            sheet.paste(card, (number % columns * width, number // columns * height))
        sheet.quantize(128).save(target / name, optimize=True)
    return [target / name for name in SHEETS]


def _part(driver, shown, part: tuple[int, int, int, int]) -> Image.Image:
    """A part of an element (left, top, right, bottom in its CSS pixels), as sharp as its card needs it."""
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", shown)
    time.sleep(0.5)  # pictures above it load now
    left, top, right, bottom = part
    clip = {
        "x": shown.rect["x"] + left,
        "y": shown.rect["y"] + top,
        "width": right - left,
        "height": bottom - top,
        "scale": SCALE * min(CARD[0] / (right - left), CARD[1] / (bottom - top)),
    }
    options = {"clip": clip, "captureBeyondViewport": True}
    data = driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def _open(driver, page: Path, strategy: str, turn: int) -> None:
    driver.get(page.resolve().as_uri())
    driver.execute_script(OPEN, strategy, turn)
    if found := browser.errors(driver):
        raise AssertionError(f"{page}: {found}")


def _frame(driver) -> Image.Image:
    with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as shot:
        return shot.convert("RGB").quantize(96, dither=Image.Dither.NONE)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    defaults = [paths.reports / "example" / "index.html", paths.reports]
    page, folder = given + defaults[len(given) :]
    for picture in (*take(page, folder), *take_lessons(page.parent, folder)):
        print(picture)
