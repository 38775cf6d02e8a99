import csv
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_server import FeedSite, Page, atom, bomb, item, rss

from memecmd_utils import files
from memecmd_utils.core.fetch.http import Limits
from memecmd_utils.dialogue import news
from memecmd_utils.dialogue.news import CollectedItem, Feed, NewsError, collect, compile_items, read_feeds
from memecmd_utils.files import paths as core_paths
from memecmd_utils.schemas import TOPICS, NewsItem
from memecmd_utils.settings import Profile

QUICK = Limits(
    delay_s=0, connect_s=1, read_s=0.6, total_s=0.8, max_bytes=300_000, backoff_s=0.01, max_wait_s=0.5
)
LETTERS = [chr(0x4E00 + i) for i in range(3000)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "LIMITS", QUICK)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds are asked again also soon after they were read."""
    monkeypatch.setattr(news, "MAX_AGE_S", 0)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedSite]:
    monkeypatch.setattr(core_paths, "raw", tmp_path / "raw")
    with FeedSite().running() as site:
        yield site


def made(*numbers: int) -> list[dict[str, str]]:
    """Items that share nothing."""
    texts = ("".join(random.Random(n).choices(LETTERS, k=80)) for n in numbers)
    return [item(n, title=f"{text[:8]}", body=text[8:]) for n, text in zip(numbers, texts, strict=True)]


def feeds_of(site: FeedSite, *paths: str, **more: str) -> list[Feed]:
    return [Feed(topic=TOPICS[i % 6], url=site.url + path, **more) for i, path in enumerate(paths)]


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "feeds.csv").open(encoding="utf-8", newline="") as handle:
        return {"/" + row["url"].rpartition("/")[2]: row for row in csv.DictReader(handle)}


def profile(site: FeedSite, **settings: object) -> Profile:
    feeds = [f"sports={site.url}/a", f"health={site.url}/b"]
    return Profile(**{"name": "p", "news": "feeds", "feeds": feeds, "n_news": 4, **settings})


def test_where_news_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(news.load_news(Profile(name="p"))) >= 6
    assert news.load_news(Profile(name="p", n_news=0, news="nowhere.jsonl")) == []
    with pytest.raises(NewsError, match=r"nowhere\.jsonl"):
        news.load_news(Profile(name="p", news="nowhere.jsonl"))
    with pytest.raises(NewsError, match="`feeds`"):
        news.load_news(Profile(name="p", news="feeds"))
    monkeypatch.setattr(core_paths, "root", tmp_path)
    item = {"source": "mine", "news_id": "1", "topic": "health", "title": "题", "text": "文"}
    (tmp_path / "my news.jsonl").write_text(json.dumps(item) + "\n", encoding="utf-8")
    assert news.load_news(Profile(name="p", news="my news.jsonl"))[0].title == "题"


def test_feeds_are_collected_once(site: FeedSite, at_once: None) -> None:
    site.pages = {"/a": Page(rss([item(i) for i in (0, 1, 2)])), "/b": Page(rss([item(i) for i in (3, 4)]))}
    items = news.load_news(profile(site))
    assert len(items) == 5 and {item.topic for item in items} == {"sports", "health"}
    asked = len(site.log)
    assert news.load_news(profile(site)) == items and len(site.log) == asked, "enough lies there"
    folder = news.collection_folder(profile(site))
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "feeds.csv", "items.jsonl", "news.jsonl", "state",
    ]  # fmt: skip
    frozen = Profile(name="q", news=str(folder / "news.jsonl"))
    assert news.load_news(frozen) == items, "a collection can be used as a fixed file"


def test_more_are_collected_and_too_few_is_an_error_with_the_numbers_of_each_topic(site: FeedSite) -> None:
    site.pages = {"/a": Page(rss([item(i) for i in (0, 1, 2)])), "/b": Page(rss([item(i) for i in (3, 4)]))}
    assert len(news.load_news(profile(site, feeds=[f"sports={site.url}/a"], n_news=3))) == 3
    assert site.asked("/b") == 0
    assert len(news.load_news(profile(site))) == 5
    assert (site.asked("/a"), site.asked("/b")) == (1, 1)
    with pytest.raises(NewsError, match=r"n_news=6, .* 5 news items \(sports 3, .*games 0, .*health 2\)"):
        news.load_news(profile(site, n_news=6))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "`feeds`"), (["https://a.b"], "topic=URL"), (["weather=https://a.b"], "topics are sports"),
        (["sports=ftp://a.b/x"], "http"), (["sports=https://"], "host"),
        (["sports=https://a.b:port/"], "a.b"), (["sports=https://me:secret@a.b/x"], "user and password"),
        (["sports=https://a.b/", "games=https://a.b/"], "twice"), (["nowhere.yaml"], "not there"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(entries: list[str], message: str) -> None:
    with pytest.raises(NewsError, match=message) as caught:
        read_feeds(entries)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sports: [{url: https://a.b, licence: x}]", "licence.*a feed has url, name, terms, language"),
        ("weather: [{url: https://a.b}]", "topics are sports"), ("sports: [{name: x}]", "url"),
        ("sports: {url: x}", "lists of feeds"), ("sports: [https://a.b]", "a feed has"), ("- a", "must map"),
        ("a: [", "not YAML"), ("{}", "empty"),
    ],
)  # fmt: skip
def test_a_wrong_list_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NewsError, match=message):
        read_feeds([str(path)])


def test_the_shipped_list_has_every_topic_and_names_terms() -> None:
    feeds = read_feeds(["data/feeds.yaml"])
    assert {feed.topic for feed in feeds} == set(TOPICS)
    assert all(feed.terms and feed.name and feed.language.startswith("zh") for feed in feeds)


def test_good_and_bad_feeds_side_by_side(site: FeedSite, tmp_path: Path) -> None:
    gbk = rss(made(5, 6), head='<?xml version="1.0" encoding="gb2312"?>').encode("gb18030")
    short = {"title": "太短", "link": "https://a.b/s", "text": "短"}
    site.pages = {
        "/robots.txt": Page("user-agent: *\ndisallow: /private"),
        "/rss": Page(rss([*made(1, 2), short])),
        "/atom": Page(atom(made(3, 4))),
        "/gbk": Page(gbk, kind="text/xml"),
        "/hang": Page(site.hang),
        "/bomb": Page(bomb(64), Content_Encoding="gzip"),
        "/page": Page("<html><body>hello</body></html>", kind="text/html"),
        "/torn": Page(rss(made(7, 8))[:-80]),
        "/none": Page(rss([])),
        "/loop": Page(code=302, Location="/loop"),
        "/private": Page(rss(made(9))),
        "/busy": [Page(code=429, Retry_After="0"), Page(rss(made(10)))],
    }
    paths = [path for path in site.pages if path != "/robots.txt"] + ["/missing"]
    got = collect(feeds_of(site, *paths, name="甲", terms="CC BY", language="zh-CN"), tmp_path)
    table = rows(tmp_path)
    assert {path: row["status"] for path, row in table.items()} == {
        "/rss": "read", "/atom": "read", "/gbk": "read", "/hang": "time-out", "/bomb": "too big",
        "/page": "not a feed", "/torn": "read", "/none": "empty", "/loop": "redirect",
        "/private": "forbidden", "/busy": "read", "/missing": "http error",
    }  # fmt: skip
    assert table["/missing"]["http_code"] == "404" and table["/private"]["robots"] == "denied"
    assert table["/rss"]["left_out"] == "1" and "broken XML" in table["/torn"]["reason"]
    assert all(row["reason"] for row in table.values() if row["status"] not in ("read", "empty"))
    assert all(row["terms"] == "CC BY" and row["checked"] for row in table.values())
    assert len(got.items) == sum(int(row["kept"]) for row in table.values()) == 8
    assert "sports" in got.totals()


def test_items_carry_where_they_come_from(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/rss": Page(code=301, Location="/new"), "/new": Page(rss(made(1), title="频道甲"))}
    feeds = feeds_of(site, "/rss", terms="ask first", language="zh-CN")
    collect(feeds, tmp_path)
    (kept,) = files.read_jsonl(tmp_path / "items.jsonl", CollectedItem)
    assert (kept.link, kept.feed_url, kept.feed_name) == ("https://a.b/1", feeds[0].url, "频道甲")
    assert (kept.terms, kept.language, kept.published) == ("ask first", "zh-CN", "2026-11-02T00:00:00Z")
    assert kept.fetched[:4] == str(time.gmtime().tm_year) and kept.news_id.startswith("sports-")
    (plain,) = files.read_jsonl(tmp_path / "news.jsonl", NewsItem)
    assert plain == kept.news_item() and plain.source == "feed https://a.b/1"
    assert rows(tmp_path)["/rss"]["final_url"] == site.url + "/new"


def test_a_later_collection_adds_and_loses_nothing(
    site: FeedSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = feeds_of(site, "/a", "/b")
    site.pages = {"/a": Page(rss(made(1, 2)), ETag='"1"'), "/b": Page(rss(made(3)))}
    first = collect(feeds, tmp_path)
    asked = len(site.log)
    assert collect(feeds, tmp_path).items == first.items and len(site.log) == asked, "within MAX_AGE_S"
    monkeypatch.setattr(news, "MAX_AGE_S", 0)
    site.pages["/b"] = Page(rss(made(4)))
    second = collect(feeds, tmp_path)
    assert second.items[:3] == first.items and len(second.items) == 4
    assert rows(tmp_path)["/a"]["status"] == "unchanged" and rows(tmp_path)["/a"]["kept"] == "2"
    site.pages = {"/a": Page(code=500), "/b": Page(rss(made(4, 5)))}
    third = collect(feeds, tmp_path)
    assert third.items[:4] == second.items and len(third.items) == 5, "a failure costs no items"
    assert [rows(tmp_path)["/b"][key] for key in ("items", "new", "duplicates")] == ["3", "1", "0"]
    # The first version of an item stands, so that what a run used stays true.
    changed = {**made(1)[0], "text": made(77)[0]["text"]}
    site.pages["/a"] = Page(rss([changed]))
    assert collect(feeds, tmp_path).items == third.items
    assert compile_items(feeds[:1], tmp_path).items == first.items[:2], "only of the feeds that are listed"


def test_a_killed_collection_goes_on(site: FeedSite, tmp_path: Path) -> None:
    with FeedSite({"/slow": Page(site.hang)}).running() as other:
        site.pages = {f"/{i}": Page(rss(made(i))) for i in range(4)}
        urls = [f"{site.url}/{i}" for i in range(4)] + [f"{other.url}/slow"]
        code = (
            "import sys; from pathlib import Path\n"
            "from memecmd_utils.core.fetch import http as http_client\n"
            "from memecmd_utils.dialogue import news\n"
            "news.LIMITS = http_client.Limits(delay_s=0)\n"
            "news.collect(news.read_feeds(['sports=' + url for url in sys.argv[2:]]), Path(sys.argv[1]))"
        )
        command = [sys.executable, "-c", code, str(tmp_path), *urls]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while len(list(tmp_path.glob("state/sports-*.json"))) < 4 and time.monotonic() < until:
            time.sleep(0.02)
        feeds = [Feed(topic="sports", url=url) for url in urls]
        with pytest.raises(NewsError, match="another collection"):
            collect(feeds, tmp_path)
        child.kill()
        child.wait(timeout=10)
        assert len(compile_items(feeds, tmp_path).items) == 4, "nothing that came is lost"
        other.pages["/slow"] = Page(rss(made(9)))
        got = collect(feeds, tmp_path)
        assert len(got.items) == 5 and [site.asked(f"/{i}") for i in range(4)] == [1] * 4


def test_a_server_that_named_a_time_is_not_asked_before(
    site: FeedSite, tmp_path: Path, at_once: None
) -> None:
    site.pages = {"/a": Page(rss(made(1))), "/b": Page(code=429, Retry_After="3600")}
    for _ in range(2):
        collect(feeds_of(site, "/a", "/b"), tmp_path)
    assert (site.asked("/a"), site.asked("/b")) == (2, 1) and rows(tmp_path)["/b"]["status"] == "http error"


def test_all_failing_is_an_error_that_names_each(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/a": Page(code=500), "/b": Page("<html/>")}
    with pytest.raises(NewsError, match=r"(?s)none of the 2 feeds.*/a: http error: HTTP 500.*/b: not a feed"):
        collect(feeds_of(site, "/a", "/b"), tmp_path)
    assert set(rows(tmp_path)) == {"/a", "/b"}


def test_saved_feeds_need_no_net(tmp_path: Path) -> None:
    (tmp_path / "my feed.xml").write_text(rss(made(1)), encoding="utf-8")
    feeds = [Feed(topic="games", url=str(tmp_path / name)) for name in ("my feed.xml", "none.xml")]
    got = collect(feeds, tmp_path / "x")
    assert [row["status"] for row in got.rows] == ["read", "unreachable"] and len(got.items) == 1


def test_a_damaged_state_is_named(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/a": Page(rss(made(1)))}
    collect(feeds_of(site, "/a"), tmp_path)
    (path,) = tmp_path.glob("state/*.json")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(NewsError, match=f"{path.name} is damaged; delete it"):
        collect(feeds_of(site, "/a"), tmp_path)
