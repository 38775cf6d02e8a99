"""Pictures of a run's page for the READMEs: `python tests/bench/page_pictures.py [PAGE] [FOLDER]`.

They depend on the fonts and the version of the browser, so they are taken by hand and nothing compares them.
"""

import sys
from pathlib import Path

import browser

from memecmd_utils.core import paths

VIEW = "#d=role-R16-1&s=greedy&t=3&e=1"
"""What the chat browser shows on the pictures, where the run has it."""
PICTURES = {
    "page.png": (1400, 1000, "", None),
    "chat_browser.png": (1400, 1000, VIEW, "chats"),
    "phone.png": (390, 844, VIEW, "title"),
}
"""Name to width, height, what stands after the page's address, and the element that is scrolled to."""


def take(page: Path, folder: Path) -> list[Path]:
    """Take all pictures of `page` and put them into `folder`; raises if the page wrote an error."""
    taken = []
    for name, (width, height, view, element) in PICTURES.items():
        with browser.open_browser(width, height) as driver:
            driver.get(page.resolve().as_uri() + view)
            if element:
                driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", element)
            if found := browser.errors(driver):
                raise AssertionError(f"{page}: {found}")
            taken.append(browser.photograph(driver, folder / name))
    return taken


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    defaults = [paths.reports / "example" / "index.html", paths.reports]
    for picture in take(*(given + defaults[len(given) :])):
        print(picture)
