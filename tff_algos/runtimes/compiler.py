"""TFF's own compilation, as far as our runtimes and counts need it."""

from __future__ import annotations

import tensorflow_federated as tff


def with_plain_sums(comp: tff.Computation) -> tff.Computation:
  """The computation with its secure sums as the sums that they are.

  They check their values' bounds as the secure ones do. Nothing is kept from the server:
  it is for simulation.
  """
  if not _sums_securely(comp.to_building_block()):
    return comp
  return tff.backends.test.replace_secure_intrinsics_with_bodies(comp)


def _sums_securely(block: tff.framework.ComputationBuildingBlock) -> bool:
  found: list[str] = []

  def look(
    block: tff.framework.ComputationBuildingBlock,
  ) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
    if isinstance(block, tff.framework.Intrinsic) and "_secure_" in block.uri:
      found.append(block.uri)
    return block, False

  tff.framework.transform_postorder(block, look)
  return bool(found)


def to_native(comp: tff.Computation) -> tff.Computation:
  """What TFF's workers run."""
  return tff.backends.native.desugar_and_transform_to_native(with_plain_sums(comp))


def to_call_dominant(comp: tff.Computation) -> tff.framework.ComputationBuildingBlock:
  """Expands compound operators and flattens the computation to a list of calls.

  What is left of the federated operators are broadcasts, aggregations, maps and zips.
  """
  # Making blocks of a computation takes a third of compiling it: it is done once.
  block = comp.to_building_block()
  if _sums_securely(block):
    block = with_plain_sums(comp).to_building_block()
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
  return tff.framework.to_call_dominant(block)
