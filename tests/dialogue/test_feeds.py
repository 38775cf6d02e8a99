import random
import time
from pathlib import Path

import pytest
from feed_server import item, rss

from memecmd_utils.core.fetch.http import FetchError
from memecmd_utils.dialogue.feeds import MAX_CHARACTERS, Seen, clean, decode, normal_title, parse

LONG = "这是一条足够长的新闻正文，里面说了一件有意思的事情。"
RSS = f"""<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0"><channel><title>体育</title>
<item><title>女排 3:1 &amp;amp; 晋级</title><link>https://a.b/1</link>
<description><![CDATA[<p>{LONG}</p><img src="x.png" alt="1 > 0"/>A &lt; B &amp; C&nbsp;D
<script>alert(1)</script><style>p {{}}</style>]]></description></item>
<item><title>没有链接</title><link>javascript:alert(1)</link>
<description>{LONG}{"长" * 3000}</description></item>
</channel></rss>"""
ATOM = f"""<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>科技</title><id>x</id><updated>2026-01-01T00:00:00Z</updated>
<entry><id>1</id><title>新手机</title><link href="https://a.b/p?q=1&amp;r=2"/>
<updated>2026-01-01T08:00:00+08:00</updated>
<summary type="html">&lt;b&gt;短&lt;/b&gt;</summary>
<content type="html">&lt;p&gt;{LONG}&lt;/p&gt;</content></entry>
<entry><id>2</id><title>只有摘要</title><link href="p/2"/>
<summary type="html">&lt;p&gt;{LONG}&lt;/p&gt;</summary></entry></feed>"""


def test_rss() -> None:
    first, second = parse(RSS.encode()).entries
    assert first.title == "女排 3:1 & 晋级" and first.link == "https://a.b/1"
    assert first.text == f"{LONG} A < B & C D"
    assert second.link == "" and len(second.text) == MAX_CHARACTERS


def test_atom() -> None:
    found = parse(ATOM.encode(), url="https://a.b/x/feed")
    first, second = found.entries
    assert (first.title, first.text, first.link) == ("新手机", LONG, "https://a.b/p?q=1&r=2")
    assert first.published == "2026-01-01T00:00:00Z" and second.published == "" and found.title == "科技"
    assert (second.text, second.link) == (LONG, "https://a.b/x/p/2")


@pytest.mark.parametrize(
    ("declared", "written", "header"),
    [
        ("gb2312", "gb18030", ""), ("GBK", "gbk", "text/xml"),
        ("gb2312", "gb18030", "text/xml; charset=ISO-8859-1"), ("utf-8", "gb18030", "text/xml; charset=gbk"),
        ("utf-8", "gb18030", "text/xml"), ("gbk", "utf-8", "application/xml; charset=utf-8"),
        ("gbk", "utf-8-sig", ""), ("utf-16", "utf-16", ""), ("utf-16", "utf-16-le", ""), ("", "gb18030", ""),
        ("big5", "big5hkscs", ""),
        ("no-such-charset", "utf-8", "text/xml; charset=nonsense"),
    ],
)  # fmt: skip
def test_charsets(declared: str, written: str, header: str) -> None:
    name = f' encoding="{declared}"' if declared else ""
    text = rss([item(1, title="朱镕基、喆与€的囧事")], head=f'<?xml version="1.0"{name}?>')
    if written == "gbk":
        text = text.replace("囧", "冏")
    (entry,) = parse(text.encode(written, "xmlcharrefreplace"), header).entries
    assert entry.title.startswith("朱镕基、喆与€的") and entry.text == item(1)["text"]


def test_the_language_tells_old_charsets_apart() -> None:
    text = "金牌得主今天回到家鄉"
    assert decode(text.encode("big5"), language="zh-TW") == (text, "big5hkscs")


def test_a_damaged_character_costs_no_more_than_itself() -> None:
    body = rss([item(1)]).encode().replace("稿件".encode(), b"\xff\xfe\xfd\x80\xff")
    found = parse(body, "application/xml; charset=utf-8", language="zh-CN")
    assert (
        len(found.entries) == 1 and found.entries[0].title == item(1)["title"] and "not utf-8" in found.note
    )
    # These bytes happen to be GB18030, too, but of other characters.
    cut = ("观众起立鼓掌" * 20).encode()[:-2]
    assert cut.decode("gb18030")[:2] != "观众" == decode(cut, "text/xml; charset=utf-8")[0][:2]
    assert decode(b"", "") == ("", "utf-8")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<p>你&nbsp;好</p>\n\n<br/>吗", "你 好 吗"), ("1 < 2 而且 3 > 2", "1 < 2 而且 3 > 2"),
        ("<!-- 注 -->好", "好"), ("好<!-- 没有完", "好"),
        ('{{ 7*7 }} >>> {"a": 1}', '{{ 7*7 }} >>> {"a": 1}'), ("中<b>国</b>人<p>段</p>尾", "中国人 段 尾"),
        ('<img alt="a > b">文', "文"), ('<p title="没有完>坏</p>', "坏"),
        ("<SCRIPT x>if (a<b) {}</SCRIPT >好<style>p{}</style>", "好"), ("<script>没有完", ""),
        ("&lt;三体&gt;热播", "<三体>热播"), ("x&#xD800;\x00\u202ey\u200bz", "x\ufffd yz"), ("", ""),
    ],
)  # fmt: skip
def test_clean(text: str, plain: str) -> None:
    assert clean(text) == plain
    clean(text).encode("utf-8")


@pytest.mark.parametrize(
    "part", ["<!--", "<a ", "<div>", "<script>", "&#", "<a b='", "<![CDATA[", "<?", '<a x="', "<![foo "]
)
def test_hostile_html_costs_little(part: str) -> None:
    begun = time.perf_counter()
    clean(part * (100_000 // len(part)))
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"),
    [
        ("", "text/xml", "broken", "no content"),
        ("  \n", "text/xml", "broken", "no content"),
        ("<html><body>404</body></html>", "text/html", "not a feed", "text/html"),
        ("{}", "application/json", "not a feed", "application/json"),
        ("<rss version='2.0'><channel><title>x", "text/xml", "broken", "no entry"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "image/png", "not a feed", "image/png"),
        ("<rss version='2.0'><channel>" + "<item><title>" * 100_000, "text/xml", "broken", "not well-formed"),
    ],
)
def test_what_is_no_feed(body: str | bytes, kind: str, status: str, reason: str) -> None:
    with pytest.raises(FetchError, match=reason) as caught:
        parse(body.encode() if isinstance(body, str) else body, kind)
    assert caught.value.status == status


def test_a_feed_that_breaks_off_gives_what_came_before() -> None:
    found = parse(RSS[: RSS.index("<item><title>没有链接")].encode())
    assert [entry.title for entry in found.entries] == ["女排 3:1 & 晋级"] and "broken XML" in found.note


def test_a_body_is_never_taken_for_a_path_or_an_address(tmp_path: Path) -> None:
    path = tmp_path / "secret.xml"
    path.write_text(RSS, encoding="utf-8")
    for body in (str(path), f"file://{path}", "http://127.0.0.1:9/"):
        with pytest.raises(FetchError, match="neither RSS nor Atom"):
            parse(body.encode())


def test_entities_do_not_multiply() -> None:
    rows = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(12))
    body = (
        f'<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">{rows}]><rss version="2.0"><channel><item><title>&m;</title>'
    )
    outside = '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/hostname">]><rss version="2.0"><channel><item>'
    outside += f"<title>&x;</title><description>{LONG}</description></item></channel></rss>"
    for text in (body + f"<description>{LONG}</description></item></channel></rss>", outside):
        begun = time.perf_counter()
        for entry in parse(text.encode()).entries:
            assert len(entry.title) < 30 and "/" not in entry.title
        assert time.perf_counter() - begun < 5


def test_many_entries_are_cut() -> None:
    found = parse(rss([{"title": "x", "link": "", "text": ""}] * 1200).encode())
    assert len(found.entries) == 1000 and "first 1,000 of 1,200" in found.note


LETTERS = [chr(0x4E00 + i) for i in range(3000)]
A = "市队昨晚在主场赢下关键一战，门将在补时阶段扑出点球，全场球迷起立鼓掌，教练说这是训练换来的成绩。"


def text(seed: int, n: int = 120) -> str:
    return "".join(random.Random(seed).choices(LETTERS, k=n))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("女排３：１晋级！", "女排3:1晋级", True), ("女排晋级 - 新浪", "女排晋级", True),
        ("女排晋级_体育频道_新浪网", "女排晋级|腾讯体育", True), ("女排晋级", "女排晋级 | 甲乙丙", True),
        ("ＩＰＨＯＮＥ 发布", "iPhone发布", True), ("比分 3-1", "比分 3-2", False),
        ("发布会 - 新机亮相", "发布会 - 股价下跌", False), ("新浪网", "腾讯网", False),
        ("？？？", "！！！", False),
    ],
)  # fmt: skip
def test_titles(one: str, other: str, same: bool) -> None:
    assert (normal_title(one) == normal_title(other, "甲乙丙")) is same


def test_same_title_same_text_near_text() -> None:
    seen = Seen()
    assert seen.add("市队赢下关键一战", A)
    assert not seen.add("市队赢下关键一战 - 新浪", text(1)), "the same title"
    assert not seen.add("另一个题目", A.replace("，", ",  ")), "the same text"
    assert not seen.add("再一个题目", A.replace("球迷", "观众")), "nearly the same text"
    assert not seen.add("长的那篇", text(2) + A + text(3)), "one text holds the other"
    assert seen.add("别的事情", text(4))


def test_what_is_like_but_not_the_same_stays() -> None:
    seen = Seen()
    assert seen.add("甲", text(1, 60) + text(2, 60))
    assert seen.add("乙", text(1, 60) + text(3, 60)), "half is not enough"
    assert seen.add("早报", text(5)) and seen.add("早报", text(6)), "a short title is a column's name"


def test_boilerplate_makes_no_duplicates() -> None:
    seen, foot = Seen(), "更多精彩内容请关注我们的公众号，本文版权归原作者所有，转载请注明出处。"
    assert all(seen.add(f"第{i}号题目", text(i) + foot) for i in range(200))


def test_the_work_grows_with_the_number_of_items() -> None:
    seen, base = Seen(), text(0, 300)
    begun = time.perf_counter()
    for i in range(400):
        seen.add(f"第{i}号题目", base + text(i + 1, 300))
    first = time.perf_counter() - begun
    for i in range(400, 1200):
        seen.add(f"第{i}号题目", base + text(i + 1, 300))
    begun = time.perf_counter()
    for i in range(1200, 1600):
        assert seen.add(f"第{i}号题目", base + text(i + 1, 300))
    assert time.perf_counter() - begun < 3 * first + 0.5, "the last 400 take about as long as the first 400"
