"""Decoded images in the cache."""
