"""A run, one file per stage. Read ``pipeline.py`` first."""
