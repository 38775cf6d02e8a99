import codecs
import csv
import io
import json

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memecmd_utils.chats import readers
from memecmd_utils.chats.messages import ChatError, Message
from memecmd_utils.chats.readers import MEME_COLUMNS

MEME = dict(zip(MEME_COLUMNS, ("m1", "memes/m1.png", 0.5, -1.25, -2.0, "greedy"), strict=True))
ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(tmp_path, content, name="chat.csv", **keywords):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return readers.read(tmp_path / name, **keywords)


def said(export) -> list[list[tuple[str, str]]]:
    return [[(m.speaker, m.text) for m in chat.messages] for chat in export.chats]


def lines_with(export, memes) -> list[str]:
    return export.render(memes).decode().splitlines()


# --- tables

PLAIN = "speaker,text\n小雨,去不去\n阿杰,下雨\n"


MARKED = [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")]
UNMARKED = [(b"", codec) for codec in ("utf-8", "utf-16-le", "utf-16-be", "gb18030", "gbk")]


@pytest.mark.parametrize(("mark", "codec"), MARKED + UNMARKED)
def test_encodings_are_read_and_kept(tmp_path, mark, codec) -> None:
    export = read(tmp_path, mark + PLAIN.encode(codec))
    assert said(export) == [[("小雨", "去不去"), ("阿杰", "下雨")]]
    data = export.render({(0, 1): MEME})
    assert data.startswith(mark)
    written = data[len(mark) :].decode(codec).splitlines()
    assert written[0] == "speaker,text," + ",".join(MEME_COLUMNS)
    assert written[1:] == ["小雨,去不去,,,,,,", "阿杰,下雨,m1,memes/m1.png,0.5,-1.25,-2.0,greedy"]


@pytest.mark.parametrize(
    "header", ["Sender Name,Message", "发送人,内容", "昵称,消息内容", "from,body", "role,content", "user,txt"]
)
def test_columns_by_their_common_names(tmp_path, header) -> None:
    assert said(read(tmp_path, f"{header}\na,b\n")) == [[("a", "b")]]


def test_columns_that_are_named(tmp_path) -> None:
    columns = readers.parse_columns("speaker=wer, text=was ,chat=wo")
    export = read(tmp_path, "was;wer;wo\nhallo;a;x\n", columns=columns)
    assert said(export) == [[("a", "hallo")]] and export.chats[0].name == "x"


def test_several_chats_in_the_order_they_were_sent(tmp_path) -> None:
    """Newest first, as some programs export: numbers, else times, put the messages in order."""
    rows = ["x,2,,乙,二", "y,,2024-01-02 10:00,乙,四", "x,1,,甲,一", "y,,2024/01/02 09:59,甲,三"]
    export = read(tmp_path, "\n".join(["session,turn,time,speaker,text", *rows]))
    assert [chat.name for chat in export.chats] == ["x", "y"]
    assert said(export) == [[("甲", "一"), ("乙", "二")], [("甲", "三"), ("乙", "四")]]
    out = lines_with(export, {(1, 0): MEME})
    assert [line.split(",")[4] for line in out[1:]] == ["二", "四", "一", "三"], "rows stay where they were"
    assert out[4].endswith("greedy")


# --- what pandas and chat programs write

FRAME = pd.DataFrame({"speaker": list("甲乙丙甲"), "text": list("一二三四")})
TALK = [list(zip(FRAME.speaker, FRAME.text, strict=True))]


INDEXED = {
    "blank": FRAME.to_csv(),
    "read again": pd.read_csv(io.StringIO(FRAME.to_csv())).to_csv(),
    "two levels": FRAME.set_index([pd.Index([0, 0, 1, 1]), pd.Index([3, 2, 1, 0])]).to_csv(),
    "backwards": FRAME.set_index(pd.Index([3, 2, 1, 0])).to_csv(),
    "last": FRAME.assign(**{"": [3, 2, 1, 0]}).to_csv(index=False),
    **{f"named {name}": FRAME.to_csv(index_label=name) for name in ("index", "id", "session", "row")},
}


@pytest.mark.parametrize("table", INDEXED.values(), ids=INDEXED)
def test_an_index_is_no_chat_and_no_order(tmp_path, table) -> None:
    export = read(tmp_path, table)
    assert said(export) == TALK
    out = lines_with(export, {(0, 1): MEME})
    assert [line.removesuffix(",,,,,,") for line in (out[1], *out[3:])] == [
        line for i, line in enumerate(table.splitlines()) if i not in (0, 2)
    ]
    assert out[2].startswith(table.splitlines()[2]) and out[2].endswith("greedy")


def test_a_column_that_is_given_is_taken_as_it_is(tmp_path) -> None:
    table = FRAME.to_csv(index_label="session")
    assert len(read(tmp_path, table, columns={"chat": "session"}).chats) == 4


DAYS = ["2024-05-01 09:05", "2024-05-01 23:59", "2024-05-02 08:00", "2024-05-02 08:01", "2024-05-13 12:30"]


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m月%d日 %H:%M", "%s000"])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 0, 4, 1, 2]])
def test_numbers_that_restart_every_day_leave_the_order_to_the_time(tmp_path, form, rows) -> None:
    numbers = [1, 2, 1, 2, 1]
    stamps = [pd.Timestamp(day) for day in DAYS]
    times = [str(int(s.timestamp() * 1000)) if form == "%s000" else s.strftime(form) for s in stamps]
    table = "".join(f'{numbers[i]},"{times[i]}",{"甲乙"[i % 2]},{i}\n' for i in rows)
    export = read(tmp_path, "no,time,speaker,text\n" + table)
    assert "".join(text for _, text in said(export)[0]) == "01234"
    assert "ordered by time, as their numbers repeat" in export.taken


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
@pytest.mark.parametrize("columns", ["日期,时间,序号", "日期,钟,序号", "日期,x,序号"])
def test_day_and_time_may_stand_in_two_columns(tmp_path, rows, columns) -> None:
    """Also the day alone: within it the numbers count."""
    numbers = [1, 2, 1, 2, 1]
    table = "".join(f"{DAYS[i].replace(' ', ',')},{numbers[i]},{'甲乙'[i % 2]},{i}\n" for i in rows)
    export = read(tmp_path, f"{columns},发送人,内容\n{table}")
    assert "".join(text for _, text in said(export)[0]) == "01234"


@pytest.mark.parametrize(
    ("table", "order", "told"),
    [
        # Times of day without a day cannot say which of two messages was first.
        ("no,time\n1,12:30\n2,12:31\n1,08:00\n", "012", "their place in the file, as their numbers repeat"),
        ("no,x\n3,\n2,\n2,\n1,\n", "3210", "their numbers, newest first in the file"),
        ("no,time\n2,00:02\n1,00:01\n2,23:55\n1,23:50\n", "3210", "their numbers, newest first in the file"),
        ("no,x\n2,\n1,\n2,\n", "012", "their place in the file, as their numbers repeat"),
        ("no,x\n2,\n0,\n1,\n", "120", "their numbers"),
        # Two messages of one minute in a file with the newest first.
        ("x,time\n,2024-05-01 12:31\n,2024-05-01 12:30\n,2024-05-01 12:30\n", "210", "time"),
        # A running number that was given to a file with the newest first, and to one that was sorted.
        ("index,time\n0,2024-05-03\n1,2024-05-02\n2,2024-05-01\n", "210", "time, the newest first in the"),
        ("index,time\n2,2024-05-01\n0,2024-05-02\n1,2024-05-03\n", "012", "time, against their numbers"),
        ("turn,time\n1,2024-05-02\n2,2024-05-01\n3,2024-05-03\n", "012", "their place in the file"),
        # The day stands at the first message of it only.
        ("date,time\n2024-05-02,08:00\n,08:01\n2024-05-01,12:30\n,12:31\n", "2301", "time"),
        ("time,x\n5月2日 12:30,\n5月1日 12:30,\n,\n", "210", "time"),
        ("time,x\n昨天 12:30,\n5月1日 12:30,\n", "01", "their place in the file"),
    ],
)
def test_which_order_is_taken_is_said(tmp_path, table, order, told) -> None:
    header, *rows = table.splitlines()
    cells = [f"{row},{'甲乙'[i % 2]},{i}" for i, row in enumerate(rows)]
    export = read(tmp_path, "\n".join([f"{header},speaker,text", *cells]))
    assert "".join(text for _, text in said(export)[0]) == order
    assert f"ordered by {told}" in export.taken


@pytest.mark.parametrize(
    ("cells", "chats"),
    [
        (["s1", "", "s2", ""], [("s1", "01"), ("s2", "23")]),  # a name at the head of its messages
        (["s1", "s1", "", "s2"], [("s1", "01"), ("chat", "2"), ("s2", "3")]),
        (["chat", "chat", "", ""], [("chat", "01"), ("chat #2", "23")]),
    ],
)
def test_rows_without_the_name_of_a_chat(tmp_path, cells, chats) -> None:
    rows = [f"{cell},{'甲乙'[i % 2]},{i}\n" for i, cell in enumerate(cells)]
    export = read(tmp_path, "session,speaker,text\n" + "".join(rows))
    assert [(c.name, "".join(m.text for m in c.messages)) for c in export.chats] == chats


def test_the_owner_of_the_telephone_does_not_say_everything(tmp_path) -> None:
    export = read(tmp_path, "nickname,sender,text\n小王,小王,一\n小王,我,二\n小王,,三\n")
    assert said(export) == [[("小王", "一"), ("我", "二"), ("", "三")]]
    assert "speaker is 'sender'" in export.taken and "'nickname' is the same everywhere" in export.taken
    talk = [{"role": "user", "name": who, "content": text} for who, text in TALK[0]]
    assert said(read(tmp_path, json.dumps({"messages": talk}), "c.json")) == TALK
    talk = [{"author": {"id": "1", "name": who}, "content": text} for who, text in TALK[0]]
    assert said(read(tmp_path, json.dumps({"messages": talk}), "c.json")) == TALK


@pytest.mark.parametrize(("inner", "outer"), [("\r\n", "\n"), ("\n", "\r\n"), ("\r", "\n"), ("\n", "\r")])
@pytest.mark.parametrize("last", [True, False])
def test_a_line_break_in_a_cell_does_not_change_those_between_rows(tmp_path, inner, outer, last) -> None:
    table = outer.join(["speaker,text", f'甲,"一{inner}二"', "乙,三"]) + outer * last
    export = read(tmp_path, table)
    assert said(export) == [[("甲", f"一{inner}二"), ("乙", "三")]]
    added = "," + ",".join(MEME_COLUMNS)
    expected = outer.join([f"speaker,text{added}", f'甲,"一{inner}二",,,,,,', "乙,三,,,,,,"]) + outer * last
    assert export.render({}).decode() == expected


def test_a_zero_byte_is_not_said_and_is_kept(tmp_path) -> None:
    export = read(tmp_path, "speaker,text\n小雨,去\0不去\n")
    assert said(export) == [[("小雨", "去不去")]]
    assert "去\0不去" in export.render({}).decode()


def test_messages_without_text_or_sender_are_kept_in_place(tmp_path) -> None:
    rows = ["甲,,1", "乙,[图片],2", ",乙 left,3", "系统,note,4", "", "甲,<Media omitted>,5", "乙,[图片] 看,6"]
    export = read(tmp_path, "\n".join(["speaker,text,n", *rows]))
    assert export.chats[0].messages == tuple(
        Message(*pair)
        for pair in [("甲", ""), ("乙", ""), ("", "乙 left"), ("", "note"), ("甲", ""), ("乙", "[图片] 看")]
    )
    assert [line.removesuffix(",,,,,,") for line in lines_with(export, {})[1:]] == rows


def test_summaries_count_with_all_three(tmp_path) -> None:
    export = read(tmp_path, "speaker,text,S,E,Ψ\n甲,一,,,\n乙,二,s,e,p\n")
    assert export.chats[0].messages[0].summary is None
    assert export.chats[0].messages[1].summary.model_dump() == {
        "scenario": "s", "emotion": "e", "motivation": "p",
    }  # fmt: skip
    # A data set's own column of emotions is no summary.
    assert read(tmp_path, "speaker,text,emotion\n甲,一,joy\n").chats[0].messages[0].summary is None
    with pytest.raises(ChatError, match=r"chat\.csv line 3: E is empty"):
        read(tmp_path, "speaker,text,S,E,Psi\n甲,一,,,\n乙,二,s,,p\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("a,b\n1,2\n", r"line 1: no column says speaker or text; there are: a, b\. Known names: speaker \("),
        ("speaker,b\n1,2\n", r"no column says text.*FIELDS='text=\.\.\.'"),
        ("speaker,text,text\n1,2,3\n", "two columns are called 'text'"),
        ("speaker,text\na,b\nc,d,e\n", r"line 3: 3 cells under 2 columns; a text that holds ','"),
        ('speaker,text\na,b\n\nc,"d\n', "line 4: unexpected end of data"),
        ('speaker,text\na,"b"c\n', "line 2: .* double"),
        ('speaker,text\na,"one\ntwo"\nc,d,e\n', "line 4: 3 cells"),  # a line break in a cell counts
        ("speaker,text\n", "no message has both a speaker and a text"),
        ("speaker,text\na,\n,b\n", "no message has both a speaker and a text"),
    ],
)
def test_a_table_that_cannot_be_read_says_where_and_why(tmp_path, content, message) -> None:
    with pytest.raises(ChatError, match=message):
        read(tmp_path, content)


def test_files_that_are_no_chats(tmp_path) -> None:
    with pytest.raises(ChatError, match=r"a chat is a file \.csv"):
        readers.read(tmp_path / "chat.xlsx")
    with pytest.raises(ChatError, match="cannot be read: No such file"):
        readers.read(tmp_path / "chat.csv")
    with pytest.raises(ChatError, match=r"no such part of a message: .'who'"):
        read(tmp_path, PLAIN, columns={"who": "speaker"})


TEXT = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12
) | st.sampled_from(
    ["=1+1", "+86", "-", "@小雨", 'a"b', "一\n二", "a\r\nb", "a\rb", " x ", ",;\t|", "\ufeff"]
)


@ANY
@given(
    rows=st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT), min_size=1, max_size=6),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    codec=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "gb18030"]),
    newline=st.sampled_from(["\n", "\r\n"]),
    data=st.data(),
)
def test_a_table_comes_back_as_it_was(tmp_path, rows, delimiter, codec, newline, data) -> None:
    """Whatever stands in the cells: same rows, same columns, and memes where they were put."""
    table = [["note", "发送人", "会话", "内容"], ["#", "甲", "c", "开始"], *map(list, rows)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator=newline, quoting=csv.QUOTE_ALL).writerows(table)
    export = read(tmp_path, buffer.getvalue().encode(codec))
    places = [(c, m) for c, chat in enumerate(export.chats) for m in range(len(chat.messages))]
    assert len(places) == sum(any(cell.strip() for cell in row) for row in table[1:])
    chosen = data.draw(st.sets(st.sampled_from(places)))
    written = export.render(dict.fromkeys(chosen, MEME))
    text = io.StringIO(written.decode(codec), newline="")
    back = list(csv.reader(text, delimiter=delimiter, strict=True))
    assert [row[:4] for row in back] == table
    assert back[0][4:] == list(MEME_COLUMNS)
    with_meme = {export.chats[c].places[m].record for c, m in chosen}
    assert [i for i, row in enumerate(back) if i and row[4]] == sorted(with_meme)
    assert said(read(tmp_path, written)) == said(export)


# --- JSON


def lines(*objects) -> str:
    return "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects)


def test_a_message_a_line(tmp_path) -> None:
    rows = [{"chat_id": 1, "sender": "甲", "text": "一"}, {"sender": "乙", "text": None, "chat_id": 1}]
    rows += [{"chat_id": 2, "sender": "丙", "text": 666, "more": {"a": [1.0]}}]
    export = read(tmp_path, lines(*rows), "c.jsonl")
    assert said(export) == [[("甲", "一"), ("乙", "")], [("丙", "666")]]
    assert [chat.name for chat in export.chats] == ["1", "2"]
    out = lines_with(export, {(1, 0): MEME})
    assert out[:2] == lines(*rows).splitlines()[:2] and json.loads(out[2]) == {**rows[2], **MEME}


PARTS = [{"type": "text", "text": "看"}, {"type": "image_url"}]
TOOL = [{"role": "tool", "content": "3"}, {"role": "user", "content": "好"}]
NO_TEXT = [{"speaker_id": "s", "txt": "y", "img_id": "1"}, {"speaker_id": "t"}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"messages": [{"role": "user", "content": PARTS}]}, [("user", "看")]),
        ({"messages": TOOL}, [("", "3"), ("user", "好")]),
        ({"dialogue": [{"speaker": "a", "utterance": "x"}]}, [("a", "x")]),
        ({"conversations": [{"from": "human", "value": "x"}]}, [("human", "x")]),
        ({"dialog": ["一", "二", "三"]}, [("A", "一"), ("B", "二"), ("A", "三")]),
        ({"turns": NO_TEXT}, [("s", "y"), ("t", "")]),
    ],
)
def test_a_chat_a_line(tmp_path, value, expected) -> None:
    export = read(tmp_path, lines(value, value), "c.jsonl")
    assert said(export)[0] == expected
    last = (len(export.chats) - 1, len(export.chats[-1].messages) - 1)
    written = export.render({last: MEME})
    one, two = map(json.loads, written.splitlines())
    assert one == value and two != value and "memes/m1.png" in json.dumps(two)
    again = read(tmp_path, written, "c.jsonl")
    assert said(again) == said(export)
    assert [json.loads(line) for line in lines_with(again, {})] == [value, value]


def test_a_message_that_brings_its_history_is_a_message(tmp_path) -> None:
    value = {"history": ["x"], "speaker": "a", "text": "y"}
    assert said(read(tmp_path, lines(value, value), "c.jsonl")) == [[("a", "y"), ("a", "y")]]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "a", "a #2"], ["a", "a #3", "a #2"]),
        (["a #2", "a", "a", "a"], ["a #2", "a", "a #3", "a #4"]),
        (["a", "a #2", "a #2", "a"], ["a", "a #2", "a #2 #2", "a #3"]),
        ([1, "1", "", None], ["1", "1 #2", "chat 3", "chat 4"]),
        (["chat 2", None, "chat 2"], ["chat 2", "chat 2 #2", "chat 2 #3"]),
    ],
)
def test_chats_of_any_names_stay_apart(tmp_path, names, expected) -> None:
    talks = [{"id": name, "messages": [{"role": "user", "content": str(i)}]} for i, name in enumerate(names)]
    export = read(tmp_path, lines(*talks), "c.jsonl")
    assert [chat.name for chat in export.chats] == expected
    assert [chat.messages[0].text for chat in export.chats] == [str(i) for i in range(len(names))]
    assert [chat.name for chat in read(tmp_path, json.dumps(talks), "c.json").chats] == expected


def test_two_values_under_one_key_are_refused(tmp_path) -> None:
    with pytest.raises(ChatError, match=r"c\.json: two values under one key, 'a'"):
        read(
            tmp_path, '{"a": [{"role": "u", "content": "1"}], "a": [{"role": "u", "content": "2"}]}', "c.json"
        )


def test_a_key_of_ones_own_beside_bare_texts_is_kept(tmp_path) -> None:
    value = {"dialog": ["一", "二"], "memes": ["x", "y"]}
    export = read(tmp_path, lines(value), "c.jsonl")
    out = json.loads(export.render({(0, 1): MEME}))
    assert {**value, "inserted_memes": [None, MEME]} == out


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([{"speaker": "a", "text": "x"}, {"speaker": "b", "text": "y"}], ["chat"]),
        ([{"messages": [{"role": "user", "content": "a"}]}], ["chat 1"]),
        ({"messages": [{"role": "user", "content": "a"}], "tags": []}, ["chat 1"]),
        ({"dialogue 1": [{"speaker_id": "[speaker1]", "txt": "a"}], "dialogue 2": []}, ["dialogue 1"]),
    ],
)
def test_one_document(tmp_path, value, names) -> None:
    export = read(tmp_path, json.dumps(value), "c.json")
    assert [chat.name for chat in export.chats] == names
    written = export.render({(0, 0): MEME})
    assert b"memes/m1.png" in written
    assert json.loads(read(tmp_path, written, "c.json").render({})) == value


def test_half_a_surrogate_pair_can_be_written(tmp_path) -> None:
    export = read(tmp_path, '{"speaker": "a", "text": "\\ud83d!"}\n', "c.jsonl")
    assert said(export) == [[("a", "\ufffd!")]]
    assert json.loads(export.render({(0, 0): MEME}))["text"] == "\ud83d!"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", '{"speaker": "a", "text": "x"}\n{"a"\n', r"c\.jsonl line 2: not JSON"),
        ("c.jsonl", '{"speaker": "a", "text": "x"}\n\n[1]\n', "line 3: an object is expected.*not a list"),
        ("c.jsonl", "7\n", "line 1: an object is expected.*not a number"),
        ("c.jsonl", '{"messages": [{"role": "u", "content": "x"}, null]}\n', "line 1, message 2.*not null"),
        ("c.jsonl", '{"messages": [{"role": "user"}]}\n', "line 1: no column says text; there are: role"),
        ("c.jsonl", '{"a": 1}\n', "no column says speaker or text; there are: a"),
        ("c.json", "[]", "holds no message"),
        ("c.json", "[" * 100_000, "not JSON"),
        ("c.json", '{"a": [], "b": [3]}', "'b', message 1: an object with .* is expected, not a number"),
    ],
)
def test_json_that_cannot_be_read_says_where_and_why(tmp_path, name, content, message) -> None:
    with pytest.raises(ChatError, match=message):
        read(tmp_path, content, name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


@ANY
@given(
    messages=st.lists(
        st.fixed_dictionaries({"role": TEXT, "content": JSON}, optional={"x": JSON}), min_size=1, max_size=5
    ),
    nested=st.booleans(),
    data=st.data(),
)
def test_json_comes_back_as_it_was(tmp_path, messages, nested, data) -> None:
    messages = [{"role": "user", "content": "开始"}, *messages]
    objects = [{"id": "c", "messages": messages}] if nested else messages
    export = read(tmp_path, lines(*objects), "c.jsonl")
    assert len(export.chats[0].messages) == len(messages)
    place = data.draw(st.integers(0, len(messages) - 1))
    back = [json.loads(line) for line in export.render({(0, place): MEME}).split(b"\n") if line]
    inside = back[0]["messages"] if nested else back
    for key, value in MEME.items():
        assert inside[place].pop(key) == value
    assert back == json.loads(json.dumps(objects))
