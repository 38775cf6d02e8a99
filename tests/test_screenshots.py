import hashlib
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import COLOURS, TEXTS, dialogue, meme_files, placement
from PIL import Image
from pydantic import ValidationError

from memecmd_utils import chat_tiles, paths, screenshots
from memecmd_utils.screenshots import Bubble, ChatSpec


def test_meme_stands_before_or_after_the_utterance_on_its_speakers_side() -> None:
    memes = [placement(2, "m1"), placement(5, "m2"), placement(3, "m3", dialogue_id="another")]
    before = screenshots.chat_from_dialogue(dialogue(), memes)
    assert [b.meme_id or b.text for b in before.bubbles] == [
        TEXTS[0],
        "m1",
        *TEXTS[1:4],
        "m2",
        *TEXTS[4:],
    ]
    after = screenshots.chat_from_dialogue(dialogue(), memes, meme_position="after")
    assert [b.meme_id or b.text for b in after.bubbles] == [*TEXTS[:2], "m1", *TEXTS[2:5], "m2", TEXTS[5]]
    sides = {b.meme_id: b.side for b in before.bubbles if b.meme_id}
    assert sides == {"m1": "left", "m2": "right"}  # B wrote turn 2, A (the owner) turn 5
    assert before.title == "老柏"


def test_n_turns_cuts_turns_and_memes() -> None:
    memes = [placement(2, "m1"), placement(5, "m2")]
    spec = screenshots.chat_from_dialogue(dialogue(), memes, n_turns=4)
    assert [b.meme_id or b.text for b in spec.bubbles] == [TEXTS[0], "m1", *TEXTS[1:4]]


def test_two_strategies_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="one strategy"):
        screenshots.chat_from_dialogue(
            dialogue(), [placement(2, "m1"), placement(2, "m2", strategy="random")]
        )
    with pytest.raises(ValueError, match="the meme is A's"):
        screenshots.chat_from_dialogue(dialogue(), [placement(2, "m1", speaker="A")])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scale", [1, 2])
def test_pixels_of_memes_and_bubbles(tmp_path: Path, theme: str, scale: int) -> None:
    files = meme_files(tmp_path)
    spec = screenshots.chat_from_dialogue(
        dialogue(), [placement(2, "m1"), placement(5, "m2")], theme=theme, scale=scale
    )
    image = screenshots.draw(spec, files)
    boxes, height = screenshots.arrange(spec, files)
    assert image.size == (390 * scale, height)
    colours = chat_tiles.THEMES[theme]
    memes = [box for box in boxes if box.bubble.meme_id]
    assert [box.bubble.meme_id for box in memes] == ["m1", "m2"]
    for box in memes:
        middle = (box.x + box.width // 2, box.y + box.height // 2)
        assert image.getpixel(middle) == COLOURS[box.bubble.meme_id]
        assert (box.x + box.width / 2 < image.width / 2) == (box.bubble.side == "left")
        assert (box.width, box.height) == (150 * scale, 150 * scale)
    for box in boxes:
        if not box.bubble.meme_id:
            fill = colours.right if box.bubble.side == "right" else colours.left
            assert image.getpixel((box.x + box.width // 2, box.y + 3 * scale)) == fill
            assert image.getpixel((box.x, box.y)) != fill  # the corner is round
    for above, below in itertools.pairwise(boxes):
        assert below.top >= above.y + above.height


def test_text_is_drawn_inside_its_bubble(tmp_path: Path) -> None:
    long = "这句话特别长，" * 8 + "终于说完了。"
    spec = ChatSpec(title="老柏", bubbles=(Bubble(side="left", name="老柏", text=long),))
    image = screenshots.draw(spec, {})
    (box,), _ = screenshots.arrange(spec, {})
    assert len(box.lines) > 3
    inside = image.crop((box.x, box.y, box.x + box.width, box.y + box.height)).convert("L")
    dark = inside.point(lambda v: 255 if v < 128 else 0).getbbox()
    assert dark is not None
    pad = screenshots.PAD_X
    assert dark[0] >= pad - 1 and dark[2] <= box.width - pad + 1
    assert dark[1] >= 4 and dark[3] <= box.height - 4
    # every line has ink
    for number in range(len(box.lines)):
        top = screenshots.PAD_Y + number * screenshots.LINE
        assert inside.crop((0, top, box.width, top + screenshots.LINE)).getextrema()[0] < 128


def test_hash_changes_with_content_and_not_with_paths_or_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memes = [placement(2, "m1")]
    spec = screenshots.chat_from_dialogue(dialogue(), memes)
    first = screenshots.spec_sha256(spec)
    assert len(first) == 64
    reordered = dict(reversed(spec.model_dump(mode="json").items()))
    assert screenshots.spec_sha256(ChatSpec.model_validate(reordered)) == first
    others = [
        screenshots.chat_from_dialogue(dialogue(), []),
        screenshots.chat_from_dialogue(dialogue(), [placement(2, "m2")]),
        screenshots.chat_from_dialogue(dialogue(), memes, meme_position="after"),
        screenshots.chat_from_dialogue(dialogue(), memes, n_turns=5),
        screenshots.chat_from_dialogue(dialogue(), memes, theme="dark"),
        screenshots.chat_from_dialogue(dialogue(), memes, scale=2),
    ]
    assert len({first, *map(screenshots.spec_sha256, others)}) == 1 + len(others)
    assert "png" not in spec.model_dump_json()  # a meme is its id; where its file lies is not content
    monkeypatch.setattr(screenshots, "RENDERER_VERSION", screenshots.RENDERER_VERSION + 1)
    assert screenshots.spec_sha256(spec) != first


def test_same_specification_same_bytes(tmp_path: Path) -> None:
    files = meme_files(tmp_path)
    spec = screenshots.chat_from_dialogue(dialogue(), [placement(2, "m1")])
    for kind, name in (("png", "PNG"), ("jpeg", "JPEG")):
        first = screenshots.encode(screenshots.draw(spec, files), kind)
        assert first == screenshots.encode(screenshots.draw(spec, files), kind)
        assert Image.open(io.BytesIO(first)).format == name


def test_missing_and_odd_memes(tmp_path: Path) -> None:
    spec = screenshots.chat_from_dialogue(dialogue(), [placement(2, "m1")])
    with pytest.raises(KeyError, match="'m1'"):
        screenshots.draw(spec, {})
    with pytest.raises(FileNotFoundError, match="'m1' is missing"):
        screenshots.draw(spec, {"m1": tmp_path / "gone.png"})
    banner = tmp_path / "banner.png"
    Image.new("RGBA", (2000, 10), (0, 0, 0, 0)).save(banner)
    boxes, _ = screenshots.arrange(spec, {"m1": banner})
    shown = next(box for box in boxes if box.bubble.meme_id)
    assert (shown.width, shown.height) == (150, 24)
    image = screenshots.draw(spec, {"m1": banner})
    assert image.getpixel((shown.x + 75, shown.y + 12)) == (255, 255, 255)  # transparent means white


def test_changed_meme_file_is_not_shown_from_the_cache(tmp_path: Path) -> None:
    files = meme_files(tmp_path)
    spec = screenshots.chat_from_dialogue(dialogue(), [placement(2, "m1")])
    old = screenshots.draw(spec, files)
    Image.new("RGB", (300, 300), (0, 200, 0)).save(files["m1"])
    os.utime(files["m1"], ns=(1, 1))
    assert screenshots.draw(spec, files).tobytes() != old.tobytes()


def test_bubble_needs_text_or_meme() -> None:
    for values in ({}, {"text": "嗨", "meme_id": "m1"}):
        with pytest.raises(ValidationError, match="either text or meme_id"):
            Bubble(side="left", name="A", **values)


MIXED = (
    "看这个 https://example.com/a/very/long/path?query=1&lang=zh-CN 好好笑，13,999.00元！",
    "这件事说来话长，" * 14 + "“破冰”……",
    "哈哈😂👨\u200d👩\u200d👧🇨🇳，e\u0301te\u0301",
    "臺灣「繁體」龍龜，שלום，Привет мир",
    "a" * 90,
    "\n".join(["第一行", "", "第三行"]),
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_scale_2_is_the_same_layout_doubled(tmp_path: Path, theme: str) -> None:
    files = {"m1": tmp_path / "m1.png", "m2": tmp_path / "m2.png"}
    Image.new("RGB", (313, 297), COLOURS["m1"]).save(files["m1"])
    Image.new("RGBA", (80, 401), (0, 0, 0, 0)).save(files["m2"])
    memes = [placement(2, "m1"), placement(5, "m2")]
    one, two = (
        screenshots.chat_from_dialogue(dialogue(texts=MIXED), memes, theme=theme, scale=k) for k in (1, 2)
    )
    (boxes, height), (large, double) = screenshots.arrange(one, files), screenshots.arrange(two, files)
    assert double == 2 * height
    for box, other in zip(boxes, large, strict=True):
        assert other.lines == box.lines
        assert other[1:6] == tuple(2 * value for value in box[1:6])
    # And it looks alike: half of the large picture is close to the small one.
    half = screenshots.draw(two, files).resize((390, height), Image.Resampling.BOX)
    difference = np.abs(np.asarray(half).astype(int) - np.asarray(screenshots.draw(one, files)))
    assert difference.mean() < 6


@pytest.mark.parametrize("scale", [1, 2])
def test_any_text_stays_in_its_bubble_and_bubbles_on_the_page(tmp_path: Path, scale: int) -> None:
    memes = [placement(2, "m1")]
    spec = screenshots.chat_from_dialogue(dialogue(texts=MIXED), memes, scale=scale)
    files = meme_files(tmp_path)
    boxes, height = screenshots.arrange(spec, files)
    image = np.asarray(screenshots.draw(spec, files)).astype(int)
    page = chat_tiles.THEMES["light"].page
    column = (screenshots.MARGIN + chat_tiles.AVATAR + screenshots.GAP) * scale
    for box in boxes:
        assert column <= box.x and box.x + box.width <= 390 * scale - column
        assert box.y + box.height <= height - chat_tiles.FOOTER * scale
        # Around the bubble, but for its tail, there is nothing but page.
        beyond = box.x + box.width if box.bubble.side == "left" else (box.x - column + 1)
        strip = image[box.y : box.y + box.height, beyond : beyond + column - 1]
        assert (strip == page).all()
        assert (image[box.y - 1, box.x : box.x + box.width] == page).all()


def test_the_pictures_bytes_do_not_depend_on_what_was_drawn_before(tmp_path: Path) -> None:
    files = meme_files(tmp_path)
    spec = screenshots.chat_from_dialogue(dialogue(texts=MIXED), [placement(2, "m1")])
    code = (
        "import sys, pathlib\nfrom memecmd_utils import screenshots as s\n"
        "spec = s.ChatSpec.model_validate_json(pathlib.Path(sys.argv[1]).read_text('utf-8'))\n"
        "files = {'m1': pathlib.Path(sys.argv[2])}\n"
        "sys.stdout.buffer.write(s.encode(s.draw(spec, files)))"
    )
    (tmp_path / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-c", code, str(tmp_path / "spec.json"), str(files["m1"])]
    env = {**os.environ, "PYTHONHASHSEED": "5"}
    fresh = subprocess.run(command, capture_output=True, env=env, cwd=paths.root, timeout=60, check=True)
    screenshots.draw(screenshots.chat_from_dialogue(dialogue(), [], theme="dark", scale=2), files)
    assert screenshots.encode(screenshots.draw(spec, files)) == fresh.stdout


def test_people_without_names_and_with_long_names_can_be_drawn() -> None:
    for name in ("", "很长的名字" * 20, "👨\u200d👩\u200d👧一家人", "a\nb"):
        bubbles = (Bubble(side="left", name=name, text="在吗"),)
        spec = ChatSpec(title=name, bubbles=bubbles, clock="9:41")
        image = np.asarray(screenshots.draw(spec, {})).astype(int)
        bar = chat_tiles.THEMES["light"].bar
        # The title stays between the arrow and the three dots.
        assert (image[35:70, 30:80] == bar).all() and (image[35:70, 310:350] == bar).all()
        assert bool(name) == bool((image[35:70, 80:310] != bar).any())


def named(a: str, b: str) -> ChatSpec:
    return ChatSpec(
        title=b,
        bubbles=(Bubble(side="right", name=a, text="早"), Bubble(side="left", name=b, text="早啊")),
    )


def test_people_whose_names_begin_alike_have_other_signs() -> None:
    alike, apart = screenshots.draw(named("小王", "小李"), {}), screenshots.draw(named("王", "李"), {})
    spec = named("小王", "小李")
    boxes, _ = screenshots.arrange(spec, {})
    k = spec.scale
    for box, name, sign in zip(boxes, ("小王", "小李"), ("王", "李"), strict=True):
        right = box.bubble.side == "right"
        x = spec.width - (screenshots.MARGIN + screenshots.AVATAR) * k if right else screenshots.MARGIN * k
        shown = alike.crop((x, box.y, x + screenshots.AVATAR, box.y + screenshots.AVATAR))
        wanted = chat_tiles.avatar(name, right, k, chat_tiles.THEMES["light"].page, sign)
        assert shown.tobytes() == wanted.tobytes()
        assert shown.tobytes() != chat_tiles.avatar(name, right, k, chat_tiles.THEMES["light"].page).tobytes()
    assert apart.size == alike.size


def test_only_pictures_that_look_otherwise_have_another_hash() -> None:
    """Answers about them are recorded under it."""
    for spec, plain in ((named("甲", "乙"), True), (named("小王", "小李"), False)):
        value = {"renderer": screenshots.RENDERER_VERSION, "spec": spec.model_dump(mode="json")}
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        before = hashlib.sha256(text.encode()).hexdigest()
        assert (screenshots.spec_sha256(spec) == before) is plain
