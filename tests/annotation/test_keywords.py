from memecmd_utils.annotation import keywords

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
