"""Memes for one's own chats: what people export from their programs, read and written back with memes."""

from memecmd_utils.chats.insertion import insert_file
from memecmd_utils.chats.library import Library, asking_run, library_run, open_library, unrecorded
from memecmd_utils.chats.messages import ChatError, Context, summarise_unrecorded
