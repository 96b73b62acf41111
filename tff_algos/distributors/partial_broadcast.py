"""Partial broadcast: which layers of a model travel in a round."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tff_algos.errors import InputError
from tff_algos.models.functional import Weights

# Keras names of layers that learn general features: convolutions, recurrent layers and
# what comes before them.
_SHALLOW = re.compile(r"conv|lstm|gru|rnn|embedding", re.IGNORECASE)


class PartialBroadcast:
  """Cuts a model's weights into shallow layers, then deep ones.

  Attributes:
    num_shallow: How many weight arrays are shallow: the first ones.
  """

  def __init__(self, weight_names: Sequence[str], deep_from: str = ""):
    """Finds the boundary.

    Args:
      weight_names: The names of the weight arrays, in their order.
      deep_from: The first deep layer: what the name of its first array starts with, such
        as "dense". "": the first array after the last convolution, recurrent layer or
        embedding [paper, TWAFL Fig. 1]; without any, the second half of the arrays
        [convention].

    Raises:
      InputError: No weight has such a name, or one of the two parts would be empty.
    """
    names = list(weight_names)
    if deep_from:
      found = [k for k, name in enumerate(names) if name.startswith(deep_from)]
      if not found:
        raise InputError(
          f"deep_from is {deep_from!r}, but no weight's name starts so: the names are "
          f"{', '.join(names)}."
        )
      self.num_shallow = found[0]
    else:
      shallow = [k for k, name in enumerate(names) if _SHALLOW.search(name)]
      self.num_shallow = shallow[-1] + 1 if shallow else len(names) // 2
    if not 0 < self.num_shallow < len(names):
      raise InputError(
        "Partial broadcast needs shallow and deep layers, but all weights "
        f"({', '.join(names)}) would be of one kind: name the first deep layer by "
        "deep_from."
      )

  def shallow(self, weights: Weights) -> Weights:
    """The shallow layers' weights."""
    return tuple(weights)[: self.num_shallow]

  def deep(self, weights: Weights) -> Weights:
    """The deep layers' weights."""
    return tuple(weights)[self.num_shallow :]
