"""A whole run against a simulated endpoint: news, file names, texts on pictures and replies stay data."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import whole_pipeline
from bs4 import BeautifulSoup
from fault_replies import Asked
from hypothesis import given
from hypothesis import strategies as st
from whole_pipeline import EVERYTHING, KEPT, NEVER_LOOSE, RENDERED

from memecmd_utils import files, schemas
from memecmd_utils.llm import prompts

FENCED = re.compile(r"<<<\n.*?\n>>>", re.DOTALL)


def test_the_whole_pipeline_ends_with_page_and_release(whole) -> None:
    assert whole.status == 0, whole.shown[-3000:]
    assert (whole.report / "index.html").is_file() and (whole.data / "release" / "manifest.json").is_file()
    memes = files.read_parquet(whole.data / "memes.parquet", schemas.Meme)
    assert {meme.origin for meme in memes} == {*whole_pipeline.FILE_NAMES, whole_pipeline.READ_BY_OCR}
    assert "simulated" in whole.shown, "the last lines say who was asked"


def test_planted_text_reaches_the_endpoint_between_fences_only(whole) -> None:
    rates = [prompts.render("choice_system", rate=n / 20, seen=True) for n in range(1, 20)]
    fixed = {prompts.render("chat_system"), prompts.render("judge_system"), *rates}
    requests = [Asked(body) for body in whole.bodies if "messages" in body]
    own = {message for one in requests for message in one.messages if message[0] != "assistant"}
    sheets = [len(one.images) for one in requests if "候选表情包（画面在附图里" in one.messages[-1][1]]
    assert {*sheets} == {1}, "one sheet"
    assert {text for role, text in own if role == "system"} <= fixed
    for role, text in own:
        marks = re.findall(r"<<<|>>>", text)
        assert marks == ["<<<", ">>>"] * (len(marks) // 2), text
        loose = FENCED.sub("", text)
        assert role == "system" or not any(part in loose for part in NEVER_LOOSE), loose
    assert not any(RENDERED in text for _, text in own)


@given(st.text(alphabet=st.one_of(st.sampled_from("<>‹›\n\u200b ＜＞"), st.characters())))
def test_a_fence_is_never_closed_by_its_text(text: str) -> None:
    fenced = prompts.fence(text)
    assert fenced.count("<<<") == fenced.count(">>>") == 1 and FENCED.sub("", f"前{fenced}后") == "前后"


def page_of(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def planted(page: BeautifulSoup) -> list[Any]:
    """Elements that only planted text could have made."""

    def is_foreign(element: Any) -> bool:
        addresses = [re.sub(r"\s", "", element.get(key, "")) for key in ("href", "src", "action", "data")]
        ours = element.get("src", "").startswith(("data:image/", "memes/", "figures/"))
        return (
            element.name in ("iframe", "base")
            or any(key.startswith("on") for key in element.attrs)
            or any(address.lower().startswith("javascript:") for address in addresses)
            or (element.name == "img" and not ours)
        )

    return page.find_all(is_foreign)


def test_no_element_of_a_page_comes_from_planted_text(whole, tmp_path: Path) -> None:
    pages = {path.name: page_of(path) for path in sorted(whole.root.rglob("*.html"))}
    assert {"index.html", "contact_sheet.html", "04_retrieval.html"} <= set(pages)
    assert [name for name, page in pages.items() if planted(page)] == []
    for name in ("02_annotation.html", "03_dialogue_generation.html", "contact_sheet.html"):
        assert "<script>alert(1)</script>" in pages[name].get_text(), "it is on the page, as text"
    control = tmp_path / "control.html"
    control.write_text(f"<p>{EVERYTHING}</p>", encoding="utf-8")
    assert {element.name for element in planted(page_of(control))} >= {"img", "svg"}


def test_a_site_shows_planted_text_as_text_and_no_meme_without_a_licence(whole, tmp_path, open_browser):
    """Also where a browser finds it by the search; nothing on the site tells of this machine."""
    copy = shutil.copytree(whole.root, tmp_path / "copy", symlinks=True)
    done = whole_pipeline.command(copy, "site")
    ungraded, unlicensed, _ = done.stdout.splitlines()
    assert done.returncode == 0 and "has no grades" in ungraded and "have no licence" in unlicensed
    site = copy / "reports" / whole.run / "site"
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.iterdir() if path.is_file()
             if path.suffix in (".html", ".js")}  # fmt: skip
    assert not [name for name, text in pages.items() if re.search("data:image/(jpeg|webp)", text)]
    assert not [path for path in site.rglob("*") if path.suffix in (".jpg", ".jpeg", ".webp")]
    ours = [str(place) for place in (whole.root, files.paths.root, sys.prefix)]
    assert not [name for name, text in pages.items() if any(place in text for place in ours)]
    found = {name: planted(page_of(site / name)) for name in pages if name.endswith(".html")}
    # Pictures are left out as `data:,`, and those of documents lie beside the pages.
    assert not [name for name, all_of in found.items() for one in all_of if one.get("src", "x") == "x"]
    with open_browser() as driver:
        for address in ("index.html", "03_dialogue_generation.html", "search.html?q=alert(1)"):
            driver.get(f"{site.as_uri()}/{address}")
            text = driver.execute_script("return document.body.textContent")  # fails where an alert is open
            assert "<script>alert(1)" in text, address


def test_texts_stay_as_they_were_written(whole) -> None:
    starts = files.read_jsonl(whole.data / "cold_starts.jsonl", schemas.ColdStart)
    assert [start.title for start in starts if start.kind == "news"] == [f"题0 {EVERYTHING}"]
    annotations = files.read_parquet(whole.data / "annotations.parquet", schemas.Annotation)
    assert all(EVERYTHING in annotation.s_plus and not annotation.unscored for annotation in annotations)
    assert all(EVERYTHING in said.picture and len(said.english) == 5 for said in annotations)
    dialogues = files.read_jsonl(whole.data / "dialogues.jsonl", schemas.Dialogue)
    for dialogue in dialogues:
        assert [turn.text for turn in dialogue.turns] == KEPT
        english = [dialogue.gloss, *(turn.gloss for turn in dialogue.turns)]
        english += [text for summary in dialogue.summaries for text in summary.english]
        assert len(english) == 1 + 6 + 3 * 5 and all(text.startswith("English ") for text in english)
    assert files.read_jsonl(whole.data / "release" / "dialogues.jsonl", schemas.Dialogue) == dialogues


def test_no_file_holds_what_a_template_or_a_spreadsheet_would_have_made(whole) -> None:
    for path in whole.files():
        if path.suffix in (".json", ".jsonl", ".csv", ".md", ".tex", ".html", ".ipynb", ".yaml"):
            text = path.read_text(encoding="utf-8")
            assert RENDERED not in text and "root:x:0" not in text, path
        if path.suffix == ".csv" and path.parent.name != "example":
            assert not re.search(r"(?m)(?:^|,)\"?=HYPERLINK", text), path
    rows = json.loads((whole.data / "release" / "croissant.json").read_text(encoding="utf-8"))
    assert not any(part in json.dumps(rows, ensure_ascii=False) for part in NEVER_LOOSE)
