import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import COLOURS, TEXTS, dialogue, meme_files
from PIL import Image

from memecmd_utils import drawing
from memecmd_utils.drawing import PAGE, WIDTH, Bubble, ChatSpec, chat_from_dialogue
from memecmd_utils.files import paths

MIXED = (
    "看这个 https://example.com/a/very/long/path?query=1&lang=zh-CN 好好笑，13,999.00元！",
    "这件事说来话长，" * 14 + "“破冰”……",
    "哈哈😂👨\u200d👩\u200d👧🇨🇳，e\u0301te\u0301",
    "臺灣「繁體」龍龜，שלום，Привет мир",
    "a" * 90,
    "\n".join(["第一行", "", "第三行"]),
)


def named(a: str, b: str) -> ChatSpec:
    return ChatSpec(
        title=b, bubbles=(Bubble(side="right", name=a, text="早"), Bubble(side="left", name=b, text="早啊"))
    )


def shown(spec: ChatSpec) -> list[str]:
    return [bubble.meme_id or bubble.text for bubble in spec.bubbles]


def test_meme_stands_before_or_after_the_utterance_on_its_speakers_side() -> None:
    memes = {2: "m1", 5: "m2"}
    before = chat_from_dialogue(dialogue(), memes)
    assert shown(before) == [TEXTS[0], "m1", *TEXTS[1:4], "m2", *TEXTS[4:]]
    after = chat_from_dialogue(dialogue(), memes, meme_position="after")
    assert shown(after) == [*TEXTS[:2], "m1", *TEXTS[2:5], "m2", TEXTS[5]]
    assert shown(chat_from_dialogue(dialogue(), memes, n_turns=4)) == [TEXTS[0], "m1", *TEXTS[1:4]]
    sides = {b.meme_id: b.side for b in before.bubbles if b.meme_id}
    assert sides == {"m1": "left", "m2": "right"}  # B wrote turn 2, A (the owner) turn 5
    assert before.title == "老柏"


def test_pixels_of_memes_and_bubbles(tmp_path: Path) -> None:
    files = meme_files(tmp_path)
    spec = chat_from_dialogue(dialogue(), {2: "m1", 5: "m2"})
    image = drawing.draw_chat(spec, files)
    boxes, height = drawing.arrange(spec, files)
    assert image.size == (390, height)
    for box in boxes:
        assert (box.x + box.width / 2 < image.width / 2) == (box.bubble.side == "left")
        if box.bubble.meme_id:
            assert (box.width, box.height) == (150, 150)
            assert image.getpixel((box.x + 75, box.y + 75)) == COLOURS[box.bubble.meme_id]
        else:
            fill = drawing.BUBBLES[box.bubble.side][0]
            assert image.getpixel((box.x + box.width // 2, box.y + 3)) == fill
            assert image.getpixel((box.x, box.y)) != fill  # the corner is round
    for above, below in itertools.pairwise(boxes):
        assert below.top >= above.y + above.height


def test_any_text_stays_in_its_bubble_and_bubbles_on_the_page(tmp_path: Path) -> None:
    spec = chat_from_dialogue(dialogue(texts=MIXED), {2: "m1"})
    files = meme_files(tmp_path)
    boxes, height = drawing.arrange(spec, files)
    image = np.asarray(drawing.draw_chat(spec, files)).astype(int)
    column = drawing.MARGIN + drawing.AVATAR + drawing.GAP
    for box in boxes:
        assert column <= box.x and box.x + box.width <= WIDTH - column
        assert box.y + box.height <= height - drawing.FOOTER
        # Around the bubble, but for its tail, there is nothing but page.
        beyond = box.x + box.width if box.bubble.side == "left" else (box.x - column + 1)
        assert (image[box.y : box.y + box.height, beyond : beyond + column - 1] == PAGE).all()
        assert (image[box.y - 1, box.x : box.x + box.width] == PAGE).all()
        for number, line in enumerate(box.lines):  # every line has ink
            top = box.y + drawing.PAD_Y + number * drawing.LINE
            row = image[top : top + drawing.LINE, box.x : box.x + box.width]
            assert not line.strip() or row.min() < 128


def test_hash_changes_with_content_and_not_with_paths_or_order(monkeypatch: pytest.MonkeyPatch) -> None:
    memes = {2: "m1"}
    spec = chat_from_dialogue(dialogue(), memes)
    first = drawing.spec_sha256(spec)
    reordered = dict(reversed(spec.model_dump(mode="json").items()))
    assert drawing.spec_sha256(ChatSpec.model_validate(reordered)) == first
    others = [
        chat_from_dialogue(dialogue(), {}),
        chat_from_dialogue(dialogue(), {2: "m2"}),
        chat_from_dialogue(dialogue(), memes, meme_position="after"),
        chat_from_dialogue(dialogue(), memes, n_turns=5),
    ]
    assert len({first, *map(drawing.spec_sha256, others)}) == 1 + len(others)
    assert "png" not in spec.model_dump_json()  # a meme is its id; where its file lies is not content
    monkeypatch.setattr(drawing, "RENDERER_VERSION", drawing.RENDERER_VERSION + 1)
    assert drawing.spec_sha256(spec) != first


@pytest.mark.parametrize(
    ("names", "sha256"),
    [
        (("甲", "乙"), "f7dc7e9e40ad37004e0016151048d8f72dc5a22f48c2291b33ac0e7c3adc2bb4"),
        (("小王", "小李"), "0b98eb2bc05d13bae56610ad272a6c095a0e5cad1c0e158cd81dae032694f296"),
    ],
)
def test_hashes_are_those_under_which_answers_are_recorded(names, sha256) -> None:
    assert drawing.spec_sha256(named(*names)) == sha256


def test_missing_and_odd_memes_are_named(tmp_path: Path) -> None:
    spec = chat_from_dialogue(dialogue(), {2: "m1"})
    with pytest.raises(KeyError, match="'m1' is in the chat but has no file"):
        drawing.draw_chat(spec, {})
    with pytest.raises(FileNotFoundError, match=r"'m1' is missing: .*gone\.png"):
        drawing.draw_chat(spec, {"m1": tmp_path / "gone.png"})
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"'m1' is no picture: .*text\.png"):
        drawing.draw_chat(spec, {"m1": tmp_path / "text.png"})


def test_changed_meme_file_is_not_shown_from_the_cache(tmp_path: Path) -> None:
    files = meme_files(tmp_path)
    spec = chat_from_dialogue(dialogue(), {2: "m1"})
    old = drawing.draw_chat(spec, files)
    Image.new("RGB", (300, 300), (0, 200, 0)).save(files["m1"])
    os.utime(files["m1"], ns=(1, 1))
    assert drawing.draw_chat(spec, files).tobytes() != old.tobytes()


def test_the_pictures_bytes_do_not_depend_on_what_was_drawn_before(tmp_path: Path) -> None:
    files = meme_files(tmp_path)
    spec = chat_from_dialogue(dialogue(texts=MIXED), {2: "m1"})
    code = (
        "import sys, pathlib\nfrom memecmd_utils import drawing as s\n"
        "spec = s.ChatSpec.model_validate_json(pathlib.Path(sys.argv[1]).read_text('utf-8'))\n"
        "files = {'m1': pathlib.Path(sys.argv[2])}\n"
        "sys.stdout.buffer.write(s.encode(s.draw_chat(spec, files)))"
    )
    (tmp_path / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-c", code, str(tmp_path / "spec.json"), str(files["m1"])]
    env = {**os.environ, "PYTHONHASHSEED": "5"}
    fresh = subprocess.run(command, capture_output=True, env=env, cwd=paths.root, timeout=60, check=True)
    assert drawing.encode(drawing.draw_chat(spec, files)) == fresh.stdout
    jpeg = drawing.encode(drawing.draw_chat(spec, files), "jpeg")
    assert jpeg == drawing.encode(drawing.draw_chat(spec, files), "jpeg")
    assert Image.open(io.BytesIO(jpeg)).format == "JPEG"
