import json
from pathlib import Path

import pytest

from memecmd_utils import news, paths
from memecmd_utils.news import NewsError
from memecmd_utils.profiles import Profile

LONG = "这是一条足够长的新闻正文，里面说了一件有意思的事情。"
RSS = f"""<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0"><channel><title>体育</title>
<item><title>女排 3:1 &amp;amp; 晋级</title><link>https://a.b/1</link>
<description><![CDATA[<p>{LONG}</p><img src="x.png"/>A &lt; B &amp; C&nbsp;D
<script>alert(1)</script>]]></description></item>
<item><title>同一条</title><link>https://a.b/1</link><description>{LONG}第二次</description></item>
<item><title>太短</title><link>https://a.b/2</link><description>短</description></item>
<item><title></title><link>https://a.b/3</link><description>{LONG}</description></item>
<item><title>没有链接</title><description>{LONG}{"长" * 3000}</description></item>
</channel></rss>"""
ATOM = f"""<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>科技</title><id>x</id><updated>2026-01-01T00:00:00Z</updated>
<entry><id>1</id><title>新手机</title><link href="https://a.b/p?q=1&amp;r=2"/><updated>2026-01-01T00:00:00Z</updated>
<summary type="html">&lt;b&gt;{LONG}&lt;/b&gt;</summary></entry>
<entry><id>2</id><title>只有正文</title><link href="https://a.b/2"/><updated>2026-01-01T00:00:00Z</updated>
<content type="html">&lt;p&gt;{LONG}&lt;/p&gt;</content></entry></feed>"""


def read(tmp_path: Path, text: str, topic: str = "sports") -> list:
    path = tmp_path / "feed.xml"
    path.write_text(text, encoding="utf-8")
    return news.read_feed(topic, str(path))


def test_rss(tmp_path: Path) -> None:
    first, second = read(tmp_path, RSS)
    assert first.title == "女排 3:1 & 晋级" and first.topic == "sports"
    assert first.text.startswith(LONG) and first.text.endswith("A < B & C D")
    assert "<p>" not in first.text and "alert" not in first.text and "第二次" not in first.text
    assert first.news_id.startswith("sports-") and first.source == "feed https://a.b/1"
    assert second.title == "没有链接" and len(second.text) == news.MAX_CHARACTERS
    assert read(tmp_path, RSS)[0].news_id == first.news_id, "ids are the same tomorrow"


def test_atom(tmp_path: Path) -> None:
    first, second = read(tmp_path, ATOM, "technology")
    assert (first.title, first.text) == ("新手机", LONG) and first.source == "feed https://a.b/p?q=1&r=2"
    assert (second.title, second.text) == ("只有正文", LONG)
    assert first.news_id != second.news_id


@pytest.mark.parametrize("text", ["", "<html><body>404</body></html>", "<rss><channel><item", "{}"])
def test_a_broken_or_empty_feed_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(NewsError, match=r"feed\.xml could not be read"):
        read(tmp_path, text)


def test_a_feed_that_breaks_off_gives_what_came_before(tmp_path: Path) -> None:
    assert [item.title for item in read(tmp_path, RSS[: RSS.index("<item><title>太短")])] == [
        "女排 3:1 & 晋级"
    ]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<p>你&nbsp;好</p>\n\n<br/>吗", "你 好 吗"),
        ("1 < 2 而且 3 > 2", "1 < 2 而且 3 > 2"),
        ("<!-- 注 -->好", "好"),
        ('{{ 7*7 }} >>> {"a": 1}', '{{ 7*7 }} >>> {"a": 1}'),
        ("", ""),
    ],
)
def test_clean(text: str, plain: str) -> None:
    assert news.clean(text) == plain


def test_topics_of_feeds() -> None:
    assert news.split_feed("games=https://a.b/?x=y") == ("games", "https://a.b/?x=y")
    for bad in ("https://a.b", "weather=https://a.b"):
        with pytest.raises(NewsError, match="topic=URL"):
            news.split_feed(bad)


def test_where_news_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(news.load(Profile(name="p"))) >= 6
    assert news.load(Profile(name="p", n_news=0, news="nowhere.jsonl")) == []
    with pytest.raises(NewsError, match=r"nowhere\.jsonl"):
        news.load(Profile(name="p", news="nowhere.jsonl"))
    with pytest.raises(NewsError, match="`feeds`"):
        news.load(Profile(name="p", news="feeds"))
    monkeypatch.setattr(paths, "root", tmp_path)
    item = {"source": "mine", "news_id": "1", "topic": "health", "title": "题", "text": "文"}
    (tmp_path / "my news.jsonl").write_text(json.dumps(item) + "\n", encoding="utf-8")
    assert news.load(Profile(name="p", news="my news.jsonl"))[0].title == "题"
    (tmp_path / "feed.xml").write_text(RSS, encoding="utf-8")
    got = news.load(Profile(name="p", news="feeds", feeds=[f"education={tmp_path}/feed.xml"]))
    assert {item.topic for item in got} == {"education"} and len(got) == 2
