"""Configurations that suit the data: recipes, and suggestions for folders of images."""
