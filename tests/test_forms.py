"""What all blind forms promise, for the two kinds that people are asked with. All answers here are made up."""

import json
import re
from html.parser import HTMLParser

import made_ratings
import pytest

from memecmd_utils import forms, people
from memecmd_utils.forms import FormError

KINDS = people.KINDS
SECRETS = {
    **dict.fromkeys(
        people.KINDS,
        (*made_ratings.QUALITY, "strateg", "made-", *made_ratings.MEMES, "rank", "theta", "threshold"),
    ),
}
NASTY = made_ratings.NASTY


class Page(HTMLParser):
    """Elements and scripts of a page as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data


def made(kind: str):
    """A form with its key."""
    return made_ratings.form(kind)


def pictures(kind: str, folder) -> dict:
    return made_ratings.files(folder)


@pytest.fixture(params=KINDS)
def written(request, tmp_path):
    form, key = made(request.param)
    path = forms.write_page(tmp_path / "form.html", form, pictures(request.param, tmp_path))
    return request.param, form, key, path.read_text(encoding="utf-8")


def payload(text: str) -> dict:
    return json.loads(Page(text).scripts[0])


@pytest.mark.parametrize(
    ("kind", "form", "item", "answers_of"),
    [
        ("rating", "ed1a2b37b9", "5d11e4f1f8", people.COLUMNS),
        ("pairwise", "34624d2662", "a061d859ad", people.COLUMNS),
    ],
)
def test_forms_that_were_handed_out_keep_their_names_and_columns(kind, form, item, answers_of) -> None:
    """Of one run and seed the same form comes out for ever, or the answers that people gave would be lost."""
    found, _ = made(kind)
    assert (found.form, found.items[0].item, found.columns) == (form, item, answers_of)


HANDED_OUT = {
    people.KeyRow: "form,kind,item,draw,side,dialogue_id,turn,strategy,meme_id,repeat_of\n"
    "ed1a2b37b9,rating,5d11e4f1f8,1,,made-7,9,random,m1,\n",
}


@pytest.mark.parametrize("row", HANDED_OUT)
def test_keys_of_forms_that_were_handed_out_are_read(tmp_path, row) -> None:
    file = tmp_path / "key.csv"
    file.write_text(HANDED_OUT[row], encoding="utf-8")
    [read] = forms.read_key(file, row)
    assert read.form in ("ed1a2b37b9",) and read.meme_id == "m1"


def test_the_page_gives_away_nothing_that_stands_behind_it(written) -> None:
    kind, _, key, text = written
    plain = re.sub(r"data:image/jpeg;base64,[\w+/=]+", "", text)
    assert [name for name in SECRETS[kind] if name in plain] == []
    # The ids of items are all that leads to the key.
    assert {row.item for row in key} == {item["item"] for item in payload(text)["items"]}


def test_the_page_needs_nothing_from_outside(written) -> None:
    text = written[-1]
    page = Page(text)
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy
    assert not re.search(r"https?://|fetch\(|XMLHttp|import\(|url\(", "".join(page.scripts[1:]) + text)
    assert not any({"src", "href", "action"} & set(a) for _, a in page.elements)


def test_data_stays_data(tmp_path, written) -> None:
    """Every text of a form may come from a model or a stranger."""
    kind, form, _, plain = written
    nasty = form._replace(
        alt=dict.fromkeys(form.alt, NASTY),
        intro=(NASTY, NASTY),
        notes=((NASTY, NASTY),) * len(form.notes),
        items=tuple(
            item._replace(
                lines=tuple(line._replace(name=NASTY, text=line.text and NASTY) for line in item.lines),
                questions=tuple(
                    question._replace(
                        options=tuple(o._replace(words=(NASTY, NASTY)) for o in question.options)
                    )
                    for question in item.questions
                ),
            )
            for item in form.items
        ),
    )
    path = forms.write_page(tmp_path / "nasty.html", nasty, pictures(kind, tmp_path))
    found, expected = Page(path.read_text(encoding="utf-8")), Page(plain)
    assert [t for t, _ in found.elements] == [t for t, _ in expected.elements]
    assert len(found.scripts) == 2 and found.scripts[1] == expected.scripts[1]
    assert not any(sign in found.scripts[0] for sign in ("</", "<!--", "\u2028", "<script"))
    item = json.loads(found.scripts[0])["items"][0]
    texts = [line["text"] for line in item["lines"] if line["text"]]
    texts += [o["words"][1] for question in item["questions"] for o in question["options"]]
    assert texts and set(texts) == {NASTY}


def test_a_picture_that_is_missing_or_broken_is_named(tmp_path) -> None:
    form, _ = made("rating")
    with pytest.raises(FormError, match="no picture of m"):
        forms.write_page(tmp_path / "x.html", form, {})
    (tmp_path / "broken.jpg").write_bytes(b"GIF89a and no more")
    broken = dict.fromkeys(made_ratings.MEMES, tmp_path / "broken.jpg")
    with pytest.raises(FormError, match=r"broken\.jpg: broken image data"):
        forms.write_page(tmp_path / "x.html", form, broken)


@pytest.mark.parametrize("kind", KINDS)
def test_the_key_is_read_as_it_was_written(tmp_path, kind) -> None:
    _, key = made(kind)
    row = type(key[0])
    path = forms.write_key(tmp_path / "key.csv", row, key)
    assert forms.read_key(path, row) == key
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join([*lines[:3], lines[3].replace(",", ",?", 2), *lines[4:]]), encoding="utf-8")
    with pytest.raises(FormError, match=r"key.csv line 4: (?s:.*)run the notebook again"):
        forms.read_key(path, row)
