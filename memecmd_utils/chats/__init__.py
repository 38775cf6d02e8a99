"""Memes of a finished run for one's own chats: readers of exports, and insertion."""
