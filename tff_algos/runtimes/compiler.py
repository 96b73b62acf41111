"""TFF's own compilation, as far as our runtimes and counts need it."""

from __future__ import annotations

import tensorflow_federated as tff


def to_call_dominant(comp: tff.Computation) -> tff.framework.ComputationBuildingBlock:
  """Expands compound operators and flattens the computation to a list of calls.

  What is left of the federated operators are broadcasts, aggregations, maps and zips.
  """
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(comp.to_building_block())
  return tff.framework.to_call_dominant(block)
