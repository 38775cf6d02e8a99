"""Blind forms for people, for both papers: items, options, key, saved answers, and what they say."""
