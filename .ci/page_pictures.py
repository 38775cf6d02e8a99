"""Pictures of page and lessons for the READMEs: `python .ci/page_pictures.py [PAGE] [FOLDER]`.

They depend on the fonts and the version of the browser, so they are taken by hand and nothing compares them.
"""

import io
import sys
import time
from pathlib import Path

import browser
from PIL import Image, ImageDraw, ImageFont, ImageOps

from memecmd_utils.files import paths

LESSONS, SHOWN = "lessons.png", (480, 300)
"""A picture of each executed lesson: the largest output of about this shape."""
OUTPUTS = ".jp-OutputArea-output :is(img, svg, .mc-row, .mc-beside, .mc-page):not(details:not([open]) *)"
STILL, MOVING = ("chat_browser.png", (1280, 800)), ("hero.gif", (1000, 560))
"""Name, and width and height in pixels."""
OPEN = "location.hash = `by=${arguments[0]}&turn=${arguments[1]}`; location.reload();"
"""The explorer opens on its first chat: one that the system made."""
CROP = """
const style = document.createElement("style");
style.textContent = `header, #ask, #browser h2, .pick, #origin, .key, .bar > :not(fieldset) { display: none }
  #steps section:first-of-type { display: none }
  #chat { height: 440px } .side { max-height: 440px; overflow: hidden }`;
document.head.append(style);
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
    name, size = MOVING
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
    pictures, times = zip(*frames, strict=True)
    pictures[0].save(
        folder / name, save_all=True, append_images=pictures[1:], duration=list(times), loop=0, optimize=True
    )
    return [*taken, folder / name]


def take_lessons(folder: Path, target: Path) -> Path:
    """One picture for all lessons whose pages stand in `folder`, two in a row, each with its name."""
    font = ImageFont.load_default(18)
    parts = []
    with browser.open_browser(1000, 1500) as driver:
        for page in sorted(folder.glob("0*.html")):
            driver.get(page.resolve().as_uri())
            sizes = [(one, *one.size.values()) for one in driver.find_elements("css selector", OUTPUTS)]
            fitting = [
                (high * wide, one)
                for one, high, wide in sizes
                if 0.8 < wide / max(1, high) < 2.6 and high < 900
            ]
            _, largest = max(fitting, key=lambda pair: pair[0])
            place = (
                "arguments[0].scrollIntoView({block: 'center'}); return arguments[0].getBoundingClientRect()"
            )
            driver.execute_script(place, largest)
            time.sleep(0.5)  # pictures above it load now
            box = driver.execute_script(place, largest)
            with Image.open(io.BytesIO(driver.get_screenshot_as_png())) as shot:
                cut = shot.convert("RGB").crop([box[side] for side in ("left", "top", "right", "bottom")])
            parts.append((page.stem, ImageOps.pad(cut, SHOWN, color="white")))
    wide, high = SHOWN[0] + 20, SHOWN[1] + 50
    sheet = Image.new("RGB", (2 * wide, -(-len(parts) // 2) * high), "white")
    for number, (name, picture) in enumerate(parts):
        left, top = number % 2 * wide + 10, number // 2 * high
        ImageDraw.Draw(sheet).text((left, top + 12), name, fill="black", font=font)
        sheet.paste(picture, (left, top + 40))
    sheet.quantize(128).save(target, optimize=True)
    return target


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
    for picture in (*take(page, folder), take_lessons(page.parent, folder / LESSONS)):
        print(picture)
