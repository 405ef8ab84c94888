"""Random views of images: operations on whole batches that give, image by image, what Pillow gives."""

from unissl.augment.views import VIEWS, AugmentConfig, check_view_name, make_view, normalise

__all__ = ["VIEWS", "AugmentConfig", "check_view_name", "make_view", "normalise"]
