"""Classifiers with scikit-learn's interface: arrays in, labels out, no files."""

from unissl.estimators.classifier import SAGEClassifier, SemiSupervisedClassifier
from unissl.estimators.labels import InvalidInput

__all__ = ["InvalidInput", "SAGEClassifier", "SemiSupervisedClassifier"]
