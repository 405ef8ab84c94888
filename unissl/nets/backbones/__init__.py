"""Pretrained backbones for photos, one family per file. Adding a file enrols it: see docs/extend/backbone.md."""
