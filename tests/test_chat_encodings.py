import pytest
from hypothesis import given
from hypothesis import strategies as st

from memecmd_utils import chat_encodings
from memecmd_utils.chat_columns import ChatFileError

CHATS = {
    "big5": [
        "speaker,text\n小華,去不去\n阿傑,下雨\n",
        "發送人,內容\n王小明,今天晚上吃什麼？\n陳美玲,隨便，你決定就好\n",
        "時間,暱稱,訊息\n2024/05/01 12:30,小明,哈哈哈哈\n2024/05/01 12:31,小華,好喔\n",
    ],
    "big5hkscs": ["speaker,text\n阿明,佢哋喺邊度呀，我哋去食嘢囉\n阿欣,唔知喎\n"],
    "shift_jis": [
        "speaker,text\n太郎,了解\n花子,東京駅で会おう\n",
        "名前,内容\nさくら,週末に山に登らない？\n健太,天気予報だと雨だよ\n",
        "話者,テキスト\nタロウ,ｱﾘｶﾞﾄｳ\nハナコ,どういたしまして\n",
    ],
    "euc_jp": ["speaker,text\nさくら,週末に山に登らない？\n健太,天気予報だと雨だよ\n"],
    "euc_kr": ["speaker,text\n민수,주말에 산에 갈래?\n지영,비 온대\n"],
    "gb18030": [
        "speaker,text\n小雨,去不去\n阿杰,下雨\n",
        "昵称,消息\n张三,开会吗\n李四,[图片]\n王五,😂😂开\n",
        "speaker,text\n甲,一\n乙,二\n",
    ],
    "cp1252": [
        "speaker,text\nJörg,Schöne Grüße\nÄnne,“Où?” “Là…”\n",
        "speaker,text\nBob,don’t know\nAnn,me neither\n",
        "speaker,text\nJosé,¿Qué tal?\nZoë,très bien\n",
    ],
}
EACH = [(codec, text) for codec, texts in CHATS.items() for text in texts]


@pytest.mark.parametrize(("codec", "text"), EACH)
def test_an_older_encoding_is_recognised_said_and_written_back(codec, text) -> None:
    data = text.encode(codec)
    read, encoding = chat_encodings.decode(data, "c.csv")
    assert read == text and encoding.guessed and "a guess: FIELDS=" in encoding.text()
    assert encoding.encode(read) == data
    # Long lines of ASCII around do not hide what tells.
    assert chat_encodings.decode(b"#,ok\n" * 20_000 + data, "c.csv")[0].endswith(text)


@pytest.mark.parametrize(("codec", "text"), EACH)
def test_its_owner_may_name_it(codec, text) -> None:
    read, encoding = chat_encodings.decode(text.encode(codec), "c.csv", codec)
    assert read == text and not encoding.guessed and "guess" not in encoding.text()


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [t for _, t in EACH] + ["speaker,text\nBob,hi\n", "发送人,内容\n小雨,一\n"])
def test_wide_characters_without_a_mark(codec, text) -> None:
    read, encoding = chat_encodings.decode(text.encode(codec), "c.csv")
    assert (read, encoding.codec) == (text, codec)


@pytest.mark.parametrize(("codec", "text"), [("utf-8", text) for _, text in EACH] + EACH)
@pytest.mark.parametrize("zeros", ["\0", "\0\0", "\0\0\0\0"])
def test_a_zero_byte_does_not_make_it_wide(codec, text, zeros) -> None:
    for place in (0, 5, len(text) // 2, len(text)):
        spoilt = text[:place] + zeros + text[place:]
        assert chat_encodings.decode(spoilt.encode(codec), "c.csv")[0] == spoilt


def test_a_damaged_file_in_utf_8_stays_utf_8() -> None:
    data = "speaker,text\n小雨,周末去不去爬山\n阿杰,好".encode()[:-1] + b",\xff\n"
    read, encoding = chat_encodings.decode(data, "c.csv")
    assert "周末去不去爬山" in read and encoding.codec == "utf-8" and encoding.encode(read) == data
    assert "3 bytes" in encoding.text()


@pytest.mark.parametrize("codec", ["gb18030", "big5"])
def test_a_damaged_file_of_two_bytes_a_sign_is_no_western_text(codec) -> None:
    data = CHATS[codec][1].encode(codec)
    for damaged in (data[:-2], data[:30] + b"\xff" + data[30:]):
        with pytest.raises(ChatFileError, match="in none of"):
            chat_encodings.decode(damaged, "c.csv")
        with pytest.raises(ChatFileError, match=r"c\.csv line \d: not"):
            chat_encodings.decode(damaged, "c.csv", codec)
    with pytest.raises(ChatFileError, match="in none of"):
        chat_encodings.decode("Иван,Привет как дела\n".encode("cp1251"), "c.csv")


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-32", "iso2022_jp"])
def test_marks_and_escapes(codec) -> None:
    data = "speaker,text\n太郎,了解\n".encode(codec)
    for given_codec in ("", codec):
        read, encoding = chat_encodings.decode(data, "c.csv", given_codec)
        assert read == "speaker,text\n太郎,了解\n" and encoding.encode(read) == data


@pytest.mark.parametrize(
    ("data", "named", "message"),
    [
        (b"x", "klingon", "no encoding is called 'klingon'"),
        (b"x", "base64", "no encoding is called 'base64'"),
        ("a\n好".encode(), "ascii", "c.csv line 2: not ascii"),
        (b"\xef\xbb\xbfa\n\xff", "", "c.csv line 2: not utf-8"),
        (b"a,\xff\x81\n", "", "in none of UTF-8, UTF-16 and GB18030, Big5"),
    ],
)
def test_what_cannot_be_read_says_why(data, named, message) -> None:
    with pytest.raises(ChatFileError, match=message):
        chat_encodings.decode(data, "c.csv", named)


def test_a_sign_that_the_encoding_lacks() -> None:
    _, encoding = chat_encodings.decode("太郎,了解です".encode("shift_jis"), "c.csv")
    with pytest.raises(ChatFileError, match=r"'带' cannot be written in cp932.*save IN as UTF-8"):
        encoding.encode("带了解")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_and_come_back(data) -> None:
    try:
        text, encoding = chat_encodings.decode(data, "c.csv")
    except ChatFileError:
        return
    assert chat_encodings.decode(encoding.encode(text), "c.csv", encoding.codec)[0] == text
    assert not encoding.codec.startswith("utf") or encoding.encode(text) == data
