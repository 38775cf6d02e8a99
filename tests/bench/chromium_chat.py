"""The chat of a screenshot's specification as HTML, drawn by a headless Chromium: the other way to do it.

One page stays open with style and font loaded; a screenshot puts the chat into it, waits until its pictures
are decoded, and takes the whole page as JPEG. That is the fastest use of a browser: nothing is started,
fetched or parsed anew.
"""

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from memecmd_utils.core.drawing import fonts, screenshots
from memecmd_utils.core.drawing.screenshots import AVATAR_COLOURS, BUBBLES, ChatSpec

PAGE = """<!doctype html><html lang="zh-CN"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><style>
@font-face { font-family: chat; src: url("FONT"); }
body { margin: 0; background: rgb PAGE; color: rgb INK; font: 16px/22px chat, sans-serif; }
#top, #bottom { background: rgb BAR; text-align: center; }
#top { height: 74px; border-bottom: 1px solid rgb RULE; box-sizing: border-box; font-weight: 600; }
#top i { float: left; font: 14px/30px chat; padding-left: 22px }
#top b { position: absolute; top: 41px; left: 85px; right: 85px; }
#bottom { height: 76px; } #bottom u { display: block; background: rgb FIELD; border-radius: 5px; height: 38px;
  position: relative; top: 9px; margin: 0 90px 0 50px; }
.stamp { text-align: center; color: rgb FAINT; font-size: 12px; line-height: 30px; }
.row { display: flex; margin: 14px 12px; gap: 11px; align-items: flex-start; }
.right { flex-direction: row-reverse; }
.face { width: 40px; height: 40px; border-radius: 5px; color: #fff; font-size: 19px; line-height: 40px;
  text-align: center; flex: none; }
.text { background: rgb LEFT; color: rgb LEFT_INK; border-radius: 6px; padding: 9px 12px; max-width: 240px;
  position: relative; overflow-wrap: anywhere; white-space: pre-wrap; line-break: strict; }
.right .text { background: rgb RIGHT; color: rgb RIGHT_INK; }
.text::before { content: ""; position: absolute; top: 14px; left: -5px; border: 6px solid transparent;
  border-left-width: 0; border-right: 5px solid rgb LEFT; }
.right .text::before { left: auto; right: -5px; border-left: 5px solid rgb RIGHT; border-right-width: 0; }
img { max-width: 150px; max-height: 150px; border-radius: 5px; background: #fff; }
</style><div id="top"><i></i><b></b></div><div id="chat"></div><div id="bottom"><u></u></div>"""
FILL = """
const [title, clock, chat, done] = arguments;
document.querySelector("#top b").textContent = title;
document.querySelector("#top i").textContent = clock;
document.querySelector("#chat").innerHTML = chat;
Promise.all([document.fonts.ready, ...[...document.images].map(image => image.decode())])
  .then(() => done(document.documentElement.scrollHeight), error => done(String(error)));
"""


def page() -> str:
    """The page without messages."""
    filled = PAGE.replace("FONT", fonts.cjk_font_path().as_uri())
    colours = {name: getattr(screenshots, name) for name in ("PAGE", "BAR", "RULE", "INK", "FAINT", "FIELD")}
    for side, (fill, ink) in BUBBLES.items():
        colours |= {side.upper(): fill, f"{side.upper()}_INK": ink}
    for name in sorted(colours, key=len, reverse=True):
        filled = filled.replace(f"rgb {name}", f"rgb{colours[name]}")
    return filled


def messages(spec: ChatSpec, meme_files: Mapping[str, Path]) -> str:
    """The messages as HTML; texts and names are escaped."""
    parts = []
    for bubble in spec.bubbles:
        if bubble.stamp:
            parts.append(f'<div class="stamp">{html.escape(bubble.stamp)}</div>')
        fill = AVATAR_COLOURS[4 if bubble.side == "right" else 1]
        face = f'<div class="face" style="background: rgb{fill}">{html.escape(bubble.name[:1])}</div>'
        if bubble.meme_id:
            said = f'<img src="{meme_files[bubble.meme_id].as_uri()}">'
        else:
            said = f'<div class="text">{html.escape(bubble.text)}</div>'
        parts.append(f'<div class="row {bubble.side}">{face}{said}</div>')
    return "".join(parts)


def shoot(driver, spec: ChatSpec, meme_files: Mapping[str, Path]) -> bytes:
    """JPEG (quality 88) of the chat from a driver that has `page` open."""
    height = driver.execute_async_script(FILL, spec.title, spec.clock, messages(spec, meme_files))
    if not isinstance(height, int):
        raise RuntimeError(f"Chromium could not draw the chat: {height}")
    clip = {"x": 0, "y": 0, "width": screenshots.WIDTH, "height": height, "scale": 1}
    taken = driver.execute_cdp_cmd(
        "Page.captureScreenshot",
        {"format": "jpeg", "quality": 88, "clip": clip, "captureBeyondViewport": True},
    )
    return base64.b64decode(taken["data"])
