"""Folders of images: the index of files, label files, probing, loading."""
