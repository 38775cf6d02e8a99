"""Memes for one's own chats: what people export from their programs, read and written back with memes."""

from memecmd_utils.chats.insertion import insert_file
from memecmd_utils.chats.library import (
    Library,
    asking_run,
    encoder,
    learned_library,
    library_run,
    open_library,
    unrecorded,
)
from memecmd_utils.chats.messages import (
    ChatError,
    Context,
    Conversation,
    Message,
    NoSummaryAgent,
    contexts,
    spoken_turns,
    summarise,
    summarise_unrecorded,
)

__all__ = [
    "ChatError",
    "Context",
    "Conversation",
    "Library",
    "Message",
    "NoSummaryAgent",
    "asking_run",
    "contexts",
    "encoder",
    "insert_file",
    "learned_library",
    "library_run",
    "open_library",
    "spoken_turns",
    "summarise",
    "summarise_unrecorded",
    "unrecorded",
]
