"""MemeCMD: two papers on memes in dialogue as notebooks that can be run, and the modules they share.

`README.md` beside this file is the map.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memecmd_utils.chats.ranking import LiveLibrary

__version__ = "1.0.0"


def open(name: str = "example", profile: str = "", settings: str = "") -> "LiveLibrary":
    """A library whose memes are ranked for any chat: of a finished run, or of a folder of pictures.

    `library.rank([("小周", "我一个字没动"), ("阿岚", "今天就是周五")], k=3)` gives memes with id, score, text
    and picture (`chats.ranking.LiveLibrary.rank`). A model is asked only where `profile`, by default that of
    the run, has one. Raises `MemecmdError` with one sentence where there is no such library.
    """
    from memecmd_utils.chats.ranking import open_live

    return open_live(name, profile, settings)
