import gzip
import json
import shutil

import pytest

from memecmd_utils import meme_sources, paths
from memecmd_utils import picture_descriptions as descriptions
from memecmd_utils.images import LibraryError

REAL = paths.root.parent / "shared" / "corpora" / "emo_visual_data"
GOOD = "一只戴墨镜的猫坐在电脑前，看起来很得意。"


def write(folder, file, records):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")


def record(name, content):
    return {"filename": name, "content": content}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (GOOD, True),
        ("这个表情包的文字是“对不起，我没有任何世俗的欲望”，配上一只猫，很好笑。", True),
        ("“抱歉，打扰了”是图上的文字，一只企鹅转身离开。", True),
        ("图里的人笑个不停，旁边写着“" + "哈" * 30 + "”，越看越好笑。", True),
        ("很好笑", False),
        ("抱歉，我无法回答关于这张图片的问题，请换一张试试。", False),
        ("对不起，作为一个文本模型我无法查看图片，请描述一下。", False),
        ("作为一个人工智能语言模型，我不能看到图片的内容。", False),
        ("I'm sorry, but I can't help with this image.", False),
        ("这个表情包的文字是“苦" + "苦" * 80 + "”", False),
        ("左边写着" + "“数学。你会了吗？”和" * 12 + "。", False),
        ("啊" * 700, False),
        ("".join(map(chr, range(0x4E00, 0x4E00 + 700))), False),
    ],
)
def test_refusals_stumps_and_texts_that_run_away_are_unusable(text, good) -> None:
    assert descriptions.usable(text) is good


def test_the_first_usable_description_counts_and_says_where_it_is_from(tmp_path) -> None:
    write(
        tmp_path,
        "data.json",
        [record("a.jpg", "抱歉，我无法回答。"), record("a.jpg", GOOD), record("b.jpg", "短")],
    )
    write(tmp_path, "glm/glm_data.json", [record("a.jpg", GOOD + "二"), record("b.jpg", f" {GOOD}\n三 ")])
    found = descriptions.read(tmp_path)
    assert {name: tuple(d) for name, d in found.items()} == {
        "a.jpg": (GOOD, "data.json"),
        "b.jpg": (f"{GOOD} 三", "glm/glm_data.json"),
    }
    assert found["a.jpg"].note == f"图片描述（data.json）：{GOOD}"
    assert descriptions.read(tmp_path / "glm").keys() == {"a.jpg", "b.jpg"}


def test_files_of_another_form_are_left_alone_and_broken_ones_named(tmp_path) -> None:
    for other in ({"data": []}, [1, 2], [{"filename": "a.jpg"}], [record("a.jpg", None)], "text"):
        write(tmp_path, "data.json", other)
        assert descriptions.read(tmp_path) == {}
    (tmp_path / "data.json").write_text('[{"filename": "a.jpg", "cont', encoding="utf-8")
    with pytest.raises(LibraryError, match=r"data\.json cannot be read as JSON .*fetch it again"):
        descriptions.read(tmp_path)


def test_a_source_gives_its_pictures_their_descriptions(tmp_path) -> None:
    write(tmp_path, "data.json", [record("a.jpg", GOOD), record("gone.jpg", GOOD)])
    for name in ("images/emo/a.jpg", "images/b.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff\xd8\xff")
    notes = {c.origin: c.note for c in meme_sources.find_candidates([str(tmp_path)])}
    assert notes == {"images/emo/a.jpg": f"图片描述（data.json）：{GOOD}", "images/b.jpg": ""}


@pytest.mark.corpora
def test_real_descriptions(tmp_path) -> None:
    if not REAL.is_dir():
        pytest.skip(f"no real descriptions at {REAL}")
    counts = {}
    for file, name in (("data.json", "data"), ("glm/glm_data.json", "glm_data")):
        with gzip.open(REAL / f"{name}.json.gz", "rt", encoding="utf-8") as handle:
            records = json.load(handle)
        write(tmp_path, file, records)
        bad = [r["content"] for r in records if not descriptions.usable(" ".join(r["content"].split()))]
        counts[file] = len(records), len(bad)
        # Two refusals, two that run away and a stump; all else is a description.
        assert sorted(map(len, bad)) == ([] if name == "data" else [11, 14, 40, 1665, 2041])
    assert counts == {"data.json": (3196, 0), "glm/glm_data.json": (2549, 5)}
    found = descriptions.read(tmp_path)
    assert 3060 < len(found) <= 3067
    assert sum(d.file == "data.json" for d in found.values()) == 2400
    shutil.copytree(REAL / "example", tmp_path / "example")
    candidates = meme_sources.find_candidates([str(tmp_path)])
    assert len(candidates) == 7 and all(c.note.startswith("图片描述（") for c in candidates)
