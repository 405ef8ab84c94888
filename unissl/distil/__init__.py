"""After training on the vectors of a frozen backbone: its last stages learn what the whole pool agrees on.

:mod:`unissl.features.multi_crop` shows more of every photo, :mod:`unissl.distil.teacher` makes soft labels for the pool,
:mod:`unissl.distil.student` trains the last stages on them.
"""

from unissl.distil.config import DistilConfig
from unissl.distil.student import Student, train_student
from unissl.distil.teacher import soft_labels

__all__ = ["DistilConfig", "Student", "soft_labels", "train_student"]
