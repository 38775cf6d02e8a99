import logging
import socket

import pytest
from PIL import Image, ImageDraw

from memecmd_utils.drawing import pil_font
from memecmd_utils.library import ocr
from memecmd_utils.library.ocr import Line, RapidOcr, reading_order


def page(*lines):
    image = Image.new("RGB", (360, 240), "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        pen.text((20, 20 + 80 * number), line, font=pil_font(40), fill="black")
    return image


@pytest.fixture(scope="module")
def engine():
    return RapidOcr(threads=1)


def test_chinese_lines_are_read_in_order_without_network_or_logs(engine, monkeypatch, capfd):
    def no_network(*args, **kwargs):
        raise AssertionError("OCR must not use the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    assert engine.read_text(page("早上九点的我", "晚上九点的我")) == "早上九点的我 晚上九点的我"
    assert (root.level, list(root.handlers)) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "score", "kept"),
    [
        ("", 1.0, False), ("呵", 0.74, False), ("呵", 0.76, True), ("ok", 0.89, False), ("OK", 0.91, True),
        ("0", 0.99, False), ("oO", 0.99, False), ("CCC", 0.99, False), ("COCO", 0.99, True),
        ("8", 0.99, False), ("88", 0.99, True), ("6", 0.99, True), ("QQ", 0.99, True), ("？", 0.99, True),
    ],
)  # fmt: skip
def test_outlines_of_a_drawing_are_no_text(text, score, kept) -> None:
    assert ocr.is_text(text, score) is kept


def test_a_wheel_without_models_is_an_error(monkeypatch):
    ocr.wheel_models.cache_clear()
    monkeypatch.setattr(ocr.metadata, "files", lambda package: [])
    try:
        with pytest.raises(ocr.OcrError, match="holds no det model"):
            ocr.wheel_models()
    finally:
        ocr.wheel_models.cache_clear()


@pytest.mark.parametrize(
    ("read", "joined"),
    [
        ("今天也要 加油", "今天也要加油"), ("早上九点的我 晚上九点的我", "早上九点的我晚上九点的我"),
        ("so tired today", "so tired today"), ("我 OK 你呢", "我 OK 你呢"), ("第 3 天", "第 3 天"),
        ("真的吗？ 假的", "真的吗？假的"), ("他说 “好”", "他说“好”"), ("“好” 他说", "“好”他说"),
        ("等等…… 我来了", "等等……我来了"), ("今日は いい 天気", "今日はいい天気"),
        ("안녕 하세요", "안녕 하세요"), ("一 二 三", "一二三"), ("𠮷 野家", "𠮷野家"),
        ("don’t 走", "don’t 走"),
        ("", ""), ("甲\n乙", "甲乙"), ("ＳＯ ＴＩＲＥＤ", "ＳＯ ＴＩＲＥＤ"), ("（笑） 走", "（笑）走"),
        ("我说: 好", "我说: 好"),
    ],
)  # fmt: skip
def test_a_wrapped_line_of_chinese_has_no_blank(read, joined) -> None:
    assert ocr.without_wraps(read) == joined


def test_rows_go_from_left_to_right_even_if_tilted():
    lines = [Line("三", 0, 60, 50, 90), Line("二", 60, 5, 110, 35), Line("一", 0, 8, 50, 38)]
    assert [line.text for line in reading_order(lines)] == ["一", "二", "三"]


def test_vertical_columns_go_from_right_to_left():
    lines = [Line("左边", 0, 0, 20, 80), Line("右边", 40, 0, 60, 80)]
    assert [line.text for line in reading_order(lines)] == ["右边", "左边"]
