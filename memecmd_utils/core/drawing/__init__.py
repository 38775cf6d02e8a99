"""Chats and memes as pictures and as HTML."""
