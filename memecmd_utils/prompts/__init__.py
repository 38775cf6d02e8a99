"""Prompt files; `memecmd_utils.prompting` renders them."""
