"""TFF's own compilation, as far as our runtimes and counts need it."""

from __future__ import annotations

import tensorflow_federated as tff
from tensorflow_federated.python.core.environments.tensorflow_backend import (
  tensorflow_tree_transformations,
)
from tensorflow_federated.python.core.impl.compiler import transformations

from tff_algos.errors import UnsupportedComputationError as UnsupportedComputationError


def to_call_dominant(comp: tff.Computation) -> tff.framework.ComputationBuildingBlock:
  """Expands compound operators and flattens the computation to a list of calls.

  What is left of the federated operators are broadcasts, aggregations, maps and zips.
  """
  block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(
    comp.to_building_block()
  )
  return transformations.to_call_dominant(block)
