"""A small local model."""
