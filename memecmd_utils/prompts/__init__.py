"""Prompt files; `memecmd_utils.llm.prompts` renders them."""
