import logging
import tempfile
from pathlib import Path

import pytest

from memecmd_utils.annotation import keywords
from memecmd_utils.core import paths

TEXTS = ["同事催我交报告，我想摸鱼", "加班的同事都很疲惫", "老板让同事加班，大家很无奈"]


def test_counts_content_words_and_leaves_function_words_out() -> None:
    counts = keywords.count_keywords(TEXTS)
    assert counts["同事"] == 3 and counts["加班"] == 2 and counts["疲惫"] == 1
    assert not {"大家", "的", "我", "很", "，"} & set(counts)
    assert all(len(word) >= 2 for word in counts)
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_order_of_texts_does_not_matter_and_top_cuts() -> None:
    assert list(keywords.count_keywords(TEXTS).items()) == list(keywords.count_keywords(TEXTS[::-1]).items())
    assert list(keywords.count_keywords(TEXTS, top=2)) == ["同事", "加班"]
    assert keywords.count_keywords([]) == {}


def test_names_and_numbers_do_not_count() -> None:
    counts = keywords.count_keywords(["王小明在北京买了300个苹果"])
    assert "苹果" in counts and not {"王小明", "北京", "300"} & set(counts)


def test_stopwords_list_is_read_without_comments() -> None:
    words = keywords.stopwords()
    assert "什么" in words and len(words) > 100
    assert not any(word.startswith("#") or " " in word for word in words)


def test_jieba_is_quiet_and_keeps_its_cache_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "interim", tmp_path / "interim")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    keywords._tagger.cache_clear()
    try:
        level = logging.getLogger("jieba").level
        keywords.count_keywords(TEXTS)
        assert logging.getLogger("jieba").level == level
        assert (tmp_path / "interim" / "jieba" / "dictionary.cache").is_file()
        assert not list((tmp_path / "elsewhere").iterdir())
        assert capfd.readouterr() == ("", "")
    finally:
        keywords._tagger.cache_clear()
