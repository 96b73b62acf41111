"""TFF's own compilation, as far as our runtimes and counts need it."""

from __future__ import annotations

import collections
from collections.abc import Container
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import graphs
from tff_algos.errors import UnsupportedComputationError


def with_plain_sums(comp: tff.Computation) -> tff.Computation:
  """The computation with its secure sums as the sums that they are.

  They check their values' bounds as the secure ones do. Nothing is kept from the server:
  it is for simulation.
  """
  if not _sums_securely(comp.to_building_block()):
    return comp
  return tff.backends.test.replace_secure_intrinsics_with_bodies(comp)


def _sums_securely(block: tff.framework.ComputationBuildingBlock) -> bool:
  return any("_secure_" in part.uri for part in _parts(block, tff.framework.Intrinsic))


def _parts(block: tff.framework.ComputationBuildingBlock, kind: Any) -> list[Any]:
  """The blocks of a kind that are in a block."""
  found = []

  def look(
    part: tff.framework.ComputationBuildingBlock,
  ) -> tuple[tff.framework.ComputationBuildingBlock, bool]:
    if isinstance(part, kind):
      found.append(part)
    return part, False

  tff.framework.transform_postorder(block, look)
  return found


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


def refuse_repeated_draws(block: tff.framework.ComputationBuildingBlock) -> None:
  """Refuses what would be drawn again with each use, where TFF draws it once.

  An unplaced value is evaluated in every step that uses it, and for every client.

  Args:
    block: A call-dominant computation.

  Raises:
    UnsupportedComputationError: It is drawn, and used more than once or in a function.
  """
  block = block.result if isinstance(block, tff.framework.Lambda) else block
  if not isinstance(block, tff.framework.Block):
    return
  drawn: collections.Counter[str] = collections.Counter()
  for name, value in [*block.locals, ("", block.result)]:
    drawn.update(used := [n for n in _references(value) if n in drawn])
    if any(drawn[n] > 1 for n in used) or _functions_use(value, drawn):
      raise UnsupportedComputationError(
        "The in_process runtime would draw a random value anew wherever it is used: draw "
        "it by tff.federated_eval at the server, or use the local_worker runtime."
      )
    is_placed = tff.types.contains(
      value.type_signature, lambda t: isinstance(t, tff.FederatedType)
    )
    if not is_placed and (used or _draws(value)):
      drawn[name] = 0


def _references(block: tff.framework.ComputationBuildingBlock) -> list[str]:
  return [part.name for part in _parts(block, tff.framework.Reference)]


def _functions_use(
  block: tff.framework.ComputationBuildingBlock, names: Container[str]
) -> bool:
  functions = _parts(block, tff.framework.Lambda)
  return any(name in names for part in functions for name in _references(part.result))


def _draws(block: tff.framework.ComputationBuildingBlock) -> bool:
  return any(
    graphs.drawing_operations(
      tf.compat.v1.GraphDef.FromString(part.proto.tensorflow.graph_def.value)
    )
    for part in _parts(block, tff.framework.CompiledComputation)
  )
