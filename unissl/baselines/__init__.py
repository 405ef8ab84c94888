"""Simple baselines on the features of a frozen backbone: what a user could do in a few lines of scikit-learn."""

from unissl.baselines.simple import NearestNeighbours, SimpleClassifier, choose_strength, fit_simple_baselines
from unissl.ops.linear import LinearClassifier

__all__ = ["LinearClassifier", "NearestNeighbours", "SimpleClassifier", "choose_strength", "fit_simple_baselines"]
