"""Chats and memes as pictures and as HTML, fonts, line breaking. Notebooks show them with these functions."""

from memecmd_utils.core.drawing.lesson import (
    show_beside,
    show_chat,
    show_meme,
    show_memes,
    show_summary,
    show_texts,
    teaching_dialogue,
)

__all__ = [
    "show_beside",
    "show_chat",
    "show_meme",
    "show_memes",
    "show_summary",
    "show_texts",
    "teaching_dialogue",
]
