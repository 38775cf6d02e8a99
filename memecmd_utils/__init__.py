"""MemeCMD: two papers on memes in dialogue as notebooks that can be run, and the modules they share.

`README.md` beside this file is the map.
"""

__version__ = "0.1.0"
