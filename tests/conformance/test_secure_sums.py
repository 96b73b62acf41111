"""Law: whatever goes from clients to the server is a plain sum, as secure sums make it.

In every kind of round the only operators from clients to the server are aggregations
whose zero is all zeros, whose accumulation and merging add, and whose report changes
nothing: the server could learn no more from them than the sums.
"""

from __future__ import annotations

import driver
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.algorithms import registry
from tff_algos.runtimes import compiler

# Settings with a wire format of their own.
CASES = [(name, {}) for name in registry.ALGORITHMS] + [
  ("fedgg", dict(direction="broadcast")),
  ("fedagg", dict(estimates="fixed_point")),
  ("fedagg", dict(epochs=1)),
]


def sends_to_server(node) -> bool:
  """Whether a building block is a call that takes from clients and gives the server."""
  if not isinstance(node, tff.framework.Call) or node.argument is None:
    return False
  taken, given = node.argument.type_signature, node.type_signature
  return tff.types.contains(taken, lambda t: placed_at(t, tff.CLIENTS)) and (
    tff.types.contains(given, lambda t: placed_at(t, tff.SERVER))
  )


def placed_at(t, placement) -> bool:
  return isinstance(t, tff.FederatedType) and t.placement is placement


def is_federated(block) -> bool:
  signature = block.type_signature
  return tff.types.contains(signature, lambda t: isinstance(t, tff.FederatedType))


def runnable(block, known):
  """A computation of a block that may refer to `known`, blocks by name."""
  block = tff.framework.Block(known, block)
  if not isinstance(block.type_signature, tff.FunctionType):
    block = tff.framework.Lambda(None, None, block)
  return tff.framework.ConcreteComputation.from_building_block(block)


def values(t, rng):
  """Random values of a type, for `None` zeros."""
  if isinstance(t, tff.StructType):
    return tff.structure.Struct(
      [(name, values(e, rng)) for name, e in tff.structure.iter_elements(t)]
    )
  if rng is None:
    return np.zeros(t.shape, t.dtype)
  return (100 * rng.normal(size=t.shape)).astype(t.dtype)


def leaves(value) -> list:
  if isinstance(value, tff.structure.Struct):
    return [leaf for v in value for leaf in leaves(v)]
  return driver.flat(value)


def assert_plain_sum(aggregate, known):
  """Of one call of `federated_aggregate`."""
  value, *functions = aggregate.argument
  t = value.type_signature.member
  zero, accumulate, merge, report = (runnable(f, known) for f in functions)
  # One type for what is summed, for sums and for results.
  assert accumulate.type_signature.result.is_equivalent_to(t)
  assert report.type_signature.result.is_equivalent_to(t)
  rng = np.random.default_rng(5)
  one, other = values(t, rng), values(t, rng)
  total = [a + b for a, b in zip(leaves(one), leaves(other))]
  driver.assert_same(zero(), leaves(values(t, None)), "the zero")
  driver.assert_same(accumulate(one, other), total, "accumulating")
  driver.assert_same(merge(one, other), total, "merging")
  driver.assert_same(report(one), leaves(one), "the report")


@pytest.mark.parametrize(
  "name, settings", CASES, ids=[f"{n}-{'-'.join(s) or 'plain'}" for n, s in CASES]
)
def test_server_gets_plain_sums_only(federate, name, settings):
  for next_fn in federate(name, **settings).process.next_fns.values():
    block = compiler.to_call_dominant(next_fn).result
    known = [(k, v) for k, v in block.locals if not is_federated(v)]
    calls = [call for _, call in block.locals if sends_to_server(call)]
    assert {call.function.uri for call in calls} == {"federated_aggregate"}
    assert len(calls) >= 2  # a message and the metrics
    for call in calls:
      assert_plain_sum(call, known)
