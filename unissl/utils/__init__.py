"""Helpers without domain knowledge: files, cache, progress, processors."""
