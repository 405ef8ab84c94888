"""What every worker needs, imported once, by the process that the workers are forked from. Makes no tensor."""

import PIL.Image  # noqa: F401
import torch._dynamo  # noqa: F401 - imported by the first call of any optimiser, and slow

import suite.__main__  # noqa: F401
from unissl.methods.registry import all_methods

all_methods()
