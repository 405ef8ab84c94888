"""Distillation, stage 2 of a run on a frozen backbone: its last stages are trained on soft labels for the pool.

:mod:`unissl.features.multi_crop` extracts features of further crops of every photo, :mod:`unissl.distil.teacher`
computes soft labels for the pool, :mod:`unissl.distil.student` trains the last stages on them.
"""

from unissl.distil.config import DistilConfig
from unissl.distil.student import DistilSet, Student, linear_head, train_student
from unissl.distil.teacher import soft_labels

__all__ = ["DistilConfig", "DistilSet", "Student", "linear_head", "soft_labels", "train_student"]
