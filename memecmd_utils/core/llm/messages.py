"""The error of an endpoint, for `chats.insertion`."""

from memecmd_utils.llm.messages import EndpointError

__all__ = ["EndpointError"]
