"""How many examples a model is given at once, where that is for us to choose."""

from __future__ import annotations

from tff_algos.models.functional import Model

# What a network computes on the way grows with its examples: of DenseNet-121 and pictures
# of 224 x 224 x 3 each takes 20 MB to predict and 190 MB to differentiate [measured].
_PREDICTED, _DIFFERENTIATED = 2**21, 2**19


def to_predict(model: Model, most: int) -> int:
  """`most`, or as many as have two million numbers together, and at least one."""
  return _at_once(model, most, _PREDICTED)


def to_differentiate(model: Model, most: int) -> int:
  """`most`, or as many as have half a million numbers together, and at least one."""
  return _at_once(model, most, _DIFFERENTIATED)


def _at_once(model: Model, most: int, numbers: int) -> int:
  of_one: int = model.example_spec[0].shape.num_elements()
  return max(1, min(most, numbers // max(1, of_one)))
