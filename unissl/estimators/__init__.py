"""Classifiers with scikit-learn's interface: arrays in, labels out, nothing left on the disk."""

from unissl.estimators.classifier import SAGEClassifier, SemiSupervisedClassifier
from unissl.estimators.refusal import RefusedInput

__all__ = ["RefusedInput", "SAGEClassifier", "SemiSupervisedClassifier"]
