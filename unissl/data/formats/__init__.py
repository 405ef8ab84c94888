"""Readers of archive formats that reject everything but plain data."""
