import json

import pytest

from memecmd_utils.library import sources
from memecmd_utils.pictures import LibraryError

GOOD = "一只戴墨镜的猫坐在电脑前，看起来很得意。"


def write(folder, file, records):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")


def record(name, content):
    return {"filename": name, "content": content}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (GOOD, True), ("这个表情包的文字是“对不起，我没有任何世俗的欲望”，配上一只猫，很好笑。", True),
        ("“抱歉，打扰了”是图上的文字，一只企鹅转身离开。", True),
        ("图里的人笑个不停，旁边写着“" + "哈" * 30 + "”，越看越好笑。", True), ("很好笑", False),
        ("抱歉，我无法回答关于这张图片的问题，请换一张试试。", False),
        ("对不起，作为一个文本模型我无法查看图片，请描述一下。", False),
        ("作为一个人工智能语言模型，我不能看到图片的内容。", False),
        ("I'm sorry, but I can't help with this image.", False),
        ("这个表情包的文字是“苦" + "苦" * 80 + "”", False),
        ("左边写着" + "“数学。你会了吗？”和" * 12 + "。", False), ("啊" * 700, False),
        ("".join(map(chr, range(0x4E00, 0x4E00 + 700))), False),
    ],
)  # fmt: skip
def test_refusals_stumps_and_texts_that_run_away_are_unusable(text, good) -> None:
    assert sources.usable(text) is good


def test_the_first_usable_description_counts_and_says_where_it_is_from(tmp_path) -> None:
    write(
        tmp_path,
        "data.json",
        [record("a.jpg", "抱歉，我无法回答。"), record("a.jpg", GOOD), record("b.jpg", "短")],
    )
    write(tmp_path, "glm/glm_data.json", [record("a.jpg", GOOD + "二"), record("b.jpg", f" {GOOD}\n三 ")])
    found = sources.descriptions(tmp_path)
    assert found == {
        "a.jpg": f"图片描述（data.json）：{GOOD}",
        "b.jpg": f"图片描述（glm/glm_data.json）：{GOOD} 三",
    }
    assert sources.descriptions(tmp_path / "glm").keys() == {"a.jpg", "b.jpg"}


def test_files_of_another_form_are_left_alone_and_broken_ones_named(tmp_path) -> None:
    for other in ({"data": []}, [1, 2], [{"filename": "a.jpg"}], [record("a.jpg", None)], "text"):
        write(tmp_path, "data.json", other)
        assert sources.descriptions(tmp_path) == {}
    (tmp_path / "data.json").write_text('[{"filename": "a.jpg", "cont', encoding="utf-8")
    with pytest.raises(LibraryError, match=r"data\.json cannot be read as JSON .*fetch it again"):
        sources.descriptions(tmp_path)


def test_a_source_gives_its_pictures_their_descriptions(tmp_path) -> None:
    write(tmp_path, "data.json", [record("a.jpg", GOOD), record("gone.jpg", GOOD)])
    for name in ("images/emo/a.jpg", "images/b.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff\xd8\xff")
    notes = {c.origin: c.note for c in sources.find_candidates([str(tmp_path)])}
    assert notes == {"images/emo/a.jpg": f"图片描述（data.json）：{GOOD}；文件夹：emo", "images/b.jpg": ""}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("今天也要加油", True), ("so tired", True), ("猫2", True), ("微信图片_20180101120000", False),
        ("mmexport1526547", False), ("IMG_20200101_120000", False),
        ("0005fce3-aefd-4694-bb94-55fbe56d0793", False), ("d41d8cd98f00b204e9800998ecf8427e", False),
        ("9150e4e5ly1fdj7nq2gmtg206o06oq5n", False), ("123", False), ("下载 (3)", False),
        ("Screenshot 2024-01-01", False), ("表情", False),
    ],
)  # fmt: skip
def test_names_that_say_something(name, words):
    assert sources.reads_as_words(name) is words


def test_picture_note_leaves_out_what_says_nothing():
    assert sources.picture_note("", "123") == ""
    assert sources.picture_note("鸽子", "123") == "文件夹：鸽子"
    assert sources.picture_note("其他", "好的") == "文件名：好的"
