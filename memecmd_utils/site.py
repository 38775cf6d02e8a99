"""A run's page with its notebooks, figures and tables as one folder that any static host can serve."""

import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from memecmd_utils.errors import MemecmdError

MARKER = ".nojekyll"
"""An empty file: hosts that run Jekyll then leave the pages as they are. By it a site is known again."""
PARTS = ("figures", "tables")
FILES = ("*.html", "numbers.json", "placements.csv")
_SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL | re.IGNORECASE)
_LINK = re.compile(r"""(<a\b[^>]*?\s)href="([^"]*)\"""", re.IGNORECASE)


class SiteError(MemecmdError, RuntimeError):
    """There is nothing to make a site of, or no room for it."""


def build(run_folder: Path, target: Path | None = None) -> Path:
    """Copy the pages, figures and tables of `reports/<run>/` into `target` (default: `site/` in it).

    A notebook's link to a notebook leads to its page. A link to what is not in the site, such as the dataset,
    stays as text. The site is made beside and then put in place of an older one; `SiteError` if `target`
    holds anything else, or if the run has no page yet.
    """
    if not (run_folder / "index.html").is_file():
        raise SiteError(f"{run_folder.name} has no index.html: run `make reproduce` first")
    target = target or run_folder / "site"
    if target.exists() and any(target.iterdir()) and not (target / MARKER).is_file():
        raise SiteError(f"{target} is not a site that this command made; name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=target.parent) as folder:
        fresh = Path(folder) / "site"
        fresh.mkdir()
        _fill(run_folder, fresh)
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    return target


def _fill(run_folder: Path, site: Path) -> None:
    for pattern in FILES:
        for path in sorted(run_folder.glob(pattern)):
            shutil.copyfile(path, site / path.name)
    for part in PARTS:
        if (run_folder / part).is_dir():
            shutil.copytree(run_folder / part, site / part)
    for page in sorted(site.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        page.write_text(mended(text, site), encoding="utf-8", newline="\n")
    (site / MARKER).touch()


def mended(text: str, site: Path) -> str:
    """A page whose links all lead to files of `site` or to the web; scripts are left as they are."""

    def link(match: re.Match[str]) -> str:
        start, address = match.groups()
        if leads_somewhere(address, site):
            return match[0]
        page = re.sub(r"\.ipynb(?=$|#)", ".html", address)
        if page != address and leads_somewhere(page, site):
            return f'{start}href="{page}"'
        return f"{start}data-not-here"  # an anchor without href is text

    pieces = _SCRIPT.split(text)
    return "".join(piece if _SCRIPT.match(piece) else _LINK.sub(link, piece) for piece in pieces)


def leads_somewhere(address: str, site: Path) -> bool:
    """Whether an address is on the web, in the page itself, or a file below `site`, relative to it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("http", "https", "mailto")
    if not parts.path:
        return True
    found = (site / unquote(parts.path)).resolve()
    return not parts.path.startswith("/") and found.is_relative_to(site.resolve()) and found.is_file()
