"""News come from the example, a file or feeds, as many as the run starts dialogues from.

A collection only grows: a failing feed costs nothing, the same report is kept once. Feeds are strangers'
bytes, which become plain text.
"""

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

import pandas as pd
import pytest
from fault_server import Answer
from web_site import Site

from memecmd_utils import cost, fetch, files, news, schemas
from memecmd_utils.files import paths
from memecmd_utils.news import CollectedItem, Feed, NewsError, collect, plain, read_feed, read_feeds
from memecmd_utils.schemas import TOPICS
from memecmd_utils.settings import Profile

LETTERS = [chr(0x4E00 + i) for i in range(3000)]
FEED = Feed(topic="sports", url="https://a.b/rss", terms="CC BY")


def rss(*numbers: int, head: str = '<?xml version="1.0"?>', same: str = "") -> str:
    """RSS 2.0 with made-up items that share nothing, or the text `same`."""
    rows = ""
    for n in numbers:
        letters = "".join(random.Random(n).choices(LETTERS, k=180))
        rows += (
            f"<item><title>{escape(letters[:9])}</title><link>https://a.b/{n}</link>"
            "<pubDate>Mon, 02 Nov 2026 08:00:00 +0800</pubDate>"
            f"<description><![CDATA[<p>{same or letters[9:]}</p>]]></description></item>"
        )
    return f'{head}<rss version="2.0"><channel><title>频道</title>{rows}</channel></rss>'


def put(site: Site, path: str, text: str, status: int = 200) -> Feed:
    """Have the site answer a path with a feed, or what stands in its place."""
    site.pages[f"/{path}"] = Answer(text, status, "application/rss+xml; charset=utf-8")
    return Feed(topic=TOPICS[len(site.pages) % 6], url=f"{site.url}/{path}", terms="CC BY")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(paths, "raw", tmp_path / "raw")
    monkeypatch.setattr(fetch, "Client", partial(fetch.Client, pause_s=0))
    with Site().running() as running:
        yield running


def rows(folder: Path) -> dict[str, dict[str, str]]:
    table = pd.read_csv(folder / "feeds.csv", dtype=str)
    return {row["url"].rpartition("/")[2]: row for row in table.to_dict("records")}


ITEM = {"news_id": "n-1", "topic": "health", "title": "食堂开了少油窗口", "text": "队伍排到了门外。"}


def of_file(path: Path, *items: dict, **settings) -> Profile:
    path.write_bytes("\r\n".join(json.dumps(item, ensure_ascii=False) for item in items).encode("gb18030"))
    given = {"news": str(path), "n_news": len(items), "n_role_pairs": 0, **settings}
    return Profile(name="p").replace(**given)


def test_news_are_the_examples_or_those_of_a_file_which_need_no_source(tmp_path: Path) -> None:
    assert len(news.load_news(Profile(name="p"))) >= 6
    assert news.load_news(Profile(name="p").replace(n_news=0, news="nowhere.jsonl")) == []
    bare, known = ITEM | {"link": None}, ITEM | {"news_id": "n-2", "source": "晚报", "link": "https://a.b/2"}
    one, two = news.load_news(of_file(tmp_path / "my news.jsonl", bare, known))
    assert (one.title, one.source, one.link) == (ITEM["title"], "user news", "")
    assert (two.source, two.link) == ("晚报", "https://a.b/2")
    assert "user of the pipeline" in schemas.describe_source(one.source)


@pytest.mark.parametrize(
    ("change", "settings", "what"),
    [
        ({"topic": "weather"}, {}, "n.jsonl line 2: topic: Input should be 'sports'"),
        ({"text": ""}, {}, "n.jsonl line 2: text: Field required; each line is an item"),
        ({"news_id": "a b"}, {}, "n.jsonl line 2: news_id: String should match"),
        ({"news_id": "n-1"}, {}, "n.jsonl: news_id 'n-1' must name one item"),
        ({"news_id": "n-2"}, {"n_news": 3}, "the run needs 3 news items, and there are 2"),
        ({}, {"news": "nowhere.jsonl"}, "'nowhere.jsonl' is not `example`, `feeds` or a file"),
    ],
)
def test_what_is_wrong_with_a_file_of_news_is_told_before_any_stage(
    change: dict, settings: dict, what: str, tmp_path: Path
) -> None:
    (lack,) = cost.lacks(of_file(tmp_path / "n.jsonl", ITEM, ITEM | change, **settings))
    assert lack.startswith(f"news: {what}") and "\n" not in lack and "http" not in lack
    assert not cost.lacks(of_file(tmp_path / "n.jsonl", ITEM, ITEM | change, n_news=0)), "it is not read"


def test_feeds_are_collected_until_there_are_enough(site: Site) -> None:
    urls = [f"{feed.topic}={feed.url}" for feed in (put(site, "a", rss(0, 1, 2)), put(site, "b", rss(3, 4)))]
    profile = Profile(name="p").replace(news="feeds", feeds=urls, n_news=5)
    items = news.load_news(profile)
    assert len(items) == 5 and {item.topic for item in items} == {"entertainment", "technology"}
    asked = len(site.paths)
    assert news.load_news(profile) == items and len(site.paths) == asked, "enough lies there"
    path = news.collection_folder(profile) / "news.jsonl"
    assert news.load_news(profile.replace(news=str(path))) == items, "a collection is a file of news, too"
    large = profile.replace(n_news=965, n_role_pairs=9, n_dialogues=10)
    assert "5 of 5 news items" in news.collect_for(large), "ten dialogues start from five of them"


def test_good_and_bad_feeds_side_by_side(site: Site, tmp_path: Path) -> None:
    feeds = [
        put(site, "torn", rss(7, 8)[:-80]),
        put(site, "page", "<html>hello</html>"),
        put(site, "c", "", 500),
    ]
    items = collect(feeds, tmp_path)
    status = {path: row["status"] for path, row in rows(tmp_path).items()}
    assert status["torn"] == "read" and len(items) >= 1
    assert "neither RSS" in status["page"] and "HTTP 500" in status["c"]
    with pytest.raises(NewsError, match=r"(?s)none of the 2 feeds.*/page: failed.*/c: failed"):
        collect(feeds[1:], tmp_path)


def test_a_later_collection_adds_and_loses_nothing(site: Site, tmp_path: Path) -> None:
    feeds = [put(site, "a", rss(1, 2)), put(site, "b", rss(3))]
    first = collect(feeds, tmp_path)
    report = first[0].text + "（完）"  # another outlet prints it, too
    put(site, "b", rss(4, 3).replace("</channel>", rss(9, same=report).partition("频道</title>")[2]))
    second = collect(feeds, tmp_path)
    assert second[:3] == first and len(second) == 4
    assert [rows(tmp_path)[name]["new"] for name in "ab"] == ["0", "1"]
    put(site, "b", rss(3, same="新稿" * 60))
    assert collect(feeds, tmp_path) == second, "an item's first version stands"
    kept = files.read_jsonl(tmp_path / "news.jsonl", CollectedItem)[0]
    assert (kept.link, kept.feed_url, kept.terms) == ("https://a.b/1", feeds[0].url, "CC BY")
    assert (kept.source, kept.published) == ("feed https://a.b/1", "2026-11-02T00:00:00Z")


def test_chinese_encodings_and_html_become_plain_text() -> None:
    gbk = rss(5, head='<?xml version="1.0" encoding="gb2312"?>').encode("gb18030")
    (item,) = read_feed(FEED, gbk, "text/xml", "2026-11-26")
    assert item.title == "".join(random.Random(5).choices(LETTERS, k=180))[:9]
    assert item.news_id.startswith("sports-")
    html = "<script>x()</script><p>今天<b>很</b>热</p><p>多喝&nbsp;水 &lt;3</p>\u200b\x07"
    assert plain(html, 99) == "今天很热 多喝 水 <3" and plain("长" * 50, 9) == "长" * 9
    assert read_feed(FEED, rss(1, same="短").encode(), "", "") == [], "too short to talk about"


@pytest.mark.parametrize(
    "entries", [["weather=https://a.b"], ["sports=https://me:secret@a.b/x"], ["nowhere.yaml"]]
)
def test_what_cannot_be_asked_is_refused(entries) -> None:
    with pytest.raises(NewsError, match="the topics are sports") as caught:
        read_feeds(entries)
    assert "secret" not in str(caught.value)
