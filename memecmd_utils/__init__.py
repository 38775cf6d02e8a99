"""Helpers behind the MemeCMD notebooks: one module per stage, plus the seams they share."""

__version__ = "0.1.0"
