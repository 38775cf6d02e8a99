"""Memes for one's own chats: what people export from their programs, read and written back with memes."""

from memecmd_utils.chats.insertion import insert_file
from memecmd_utils.chats.readers import load_dialogues
from memecmd_utils.chats.search import Library, asking_run, library_run, open_library
