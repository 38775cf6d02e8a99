"""Chats and memes as pictures and as HTML, fonts and line breaking."""
