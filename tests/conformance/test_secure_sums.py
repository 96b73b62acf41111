"""Law: whatever goes from clients to the server is a plain sum, as secure sums make it.

In every kind of round the only operators from clients to the server are aggregations
whose zero is all zeros, whose accumulation and merging add, and whose report changes
nothing: the server could learn no more from them than the sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import driver
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.runtimes import compiler

# Settings with a wire format of their own.
CASES = driver.every_form(
  ("fedgg", dict(direction="broadcast")),
  ("fedagg", dict(epochs=1)),
)


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
  """Random values of a type; without `rng` all are zero."""
  if isinstance(t, tff.StructType):
    return tff.structure.Struct(
      [(name, values(e, rng)) for name, e in tff.structure.iter_elements(t)]
    )
  if rng is None:
    return np.zeros(t.shape, t.dtype)
  return (100 * rng.normal(size=t.shape)).astype(t.dtype)


def leaves(value) -> list:
  """In the order of the type, where `tf.nest` sorts by name."""
  if isinstance(value, Mapping):
    value = tuple(value.values())
  if isinstance(value, (tuple, tff.structure.Struct)):
    return [leaf for v in value for leaf in leaves(v)]
  return [value]


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
  driver.assert_same(leaves(zero()), leaves(values(t, None)), "the zero")
  driver.assert_same(leaves(accumulate(one, other)), total, "accumulating")
  driver.assert_same(leaves(merge(one, other)), total, "merging")
  driver.assert_same(leaves(report(one)), leaves(one), "the report")


def aggregations(next_fn):
  """The calls that take from clients and give the server, and what they refer to."""
  block = compiler.to_call_dominant(next_fn).result
  known = [(k, v) for k, v in block.locals if not is_federated(v)]
  return [call for _, call in block.locals if sends_to_server(call)], known


@pytest.mark.parametrize("name, settings", CASES)
def test_server_gets_plain_sums_only(federate, name, settings):
  for next_fn in federate(name, **settings).process.next_fns.values():
    calls, known = aggregations(next_fn)
    assert {call.function.uri for call in calls} == {"federated_aggregate"}
    assert len(calls) >= 2  # a message and the metrics
    for call in calls:
      assert_plain_sum(call, known)


PLAIN_SUM = dict(
  zero=lambda: np.float32(0),
  accumulate=lambda a, b: a + b,
  merge=lambda a, b: a + b,
  report=lambda a: a,
)
NO_PLAIN_SUM = dict(
  zero=lambda: np.float32(1),
  accumulate=lambda a, b: tf.maximum(a, b),
  merge=lambda a, b: tf.maximum(a, b),
  report=lambda a: 2 * a,
)


@pytest.mark.parametrize("changed", [None, *NO_PLAIN_SUM])
def test_aggregation_that_is_no_plain_sum_is_seen(in_process, changed):
  def make(name):
    function = (NO_PLAIN_SUM if name == changed else PLAIN_SUM)[name]
    parameters = [np.float32] * function.__code__.co_argcount
    return tff.tensorflow.computation(function, *parameters)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def aggregate(x):
    others = (make(name) for name in ("accumulate", "merge", "report"))
    return tff.federated_aggregate(x, make("zero")(), *others)

  (call,), known = aggregations(aggregate)
  if changed is None:
    assert_plain_sum(call, known)
  else:
    with pytest.raises(AssertionError):
      assert_plain_sum(call, known)
