"""Encoders of texts and pictures, each beside its recorded vectors."""
