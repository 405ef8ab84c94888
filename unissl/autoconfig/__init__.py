"""Configurations: fixed starting points by name in ``recipes.py``; what depends on the images in ``suggest.py``."""
