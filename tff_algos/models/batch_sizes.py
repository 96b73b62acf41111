"""How many examples a model is given at once, where that is for us to choose."""

from __future__ import annotations

from tff_algos.models.functional import Model

# What a network computes on the way grows with its examples: of DenseNet-121 and pictures
# of 224 x 224 x 3 each takes 20 MB to predict and 190 MB to differentiate [measured].
_NUMBERS = 2**21


def examples_at_once(model: Model, most: int) -> int:
  """`most`, or as many as have two million numbers together, and at least one."""
  numbers: int = model.example_spec[0].shape.num_elements()
  return max(1, min(most, _NUMBERS // max(1, numbers)))
