"""Law: no sum of floats is left to TensorFlow's graph optimizer.

It makes a sum of sums into one operation that starts with whichever term's memory is
free, so that a run may round differently from the next. Whether one does depends on
timing; whether it could is seen in the graphs as they are run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import driver
import pytest
import tensorflow as tf
from replays import REPLAYS
from tensorflow.python.eager import context

from tff_algos.algorithms import registry


def sums_made_in(run: Callable[[], Any]) -> list[str]:
  """The sums of three or more floats in the graphs that TensorFlow makes of functions."""
  context.context().enable_graph_collection()
  try:
    run()
    functions = context.context().export_run_metadata().function_graphs
  finally:
    context.context().disable_graph_collection()
  assert functions
  graphs = [graph for function in functions for graph in function.partition_graphs]
  bodies = [f.node_def for graph in graphs for f in graph.library.function]
  return [
    f"{node.name} of {', '.join(node.input)}"
    for nodes in [*(graph.node for graph in graphs), *bodies]
    for node in nodes
    if "AddOpsRewrite" in node.name
    and node.attr["N"].i > 2
    and node.attr["T"].type == tf.float32.as_datatype_enum
  ]


def test_optimizer_makes_such_sums():
  @tf.function
  def total(a, b, c):
    return tf.tanh(tf.tanh(a) + 2.0 * b + tf.tanh(c))

  assert sums_made_in(lambda: total(*3 * [tf.ones([2, 3])]))


def _cases():
  """Of each algorithm a setting of its replay without momentum, and one with, if any.

  The other laws and the replays then go on with the processes that are traced here.
  """
  for name in registry.ALGORITHMS:
    settings = REPLAYS[name].settings.items()
    label = next(label for label, own in settings if not own.get("momentum"))
    yield pytest.param(name, label, id=f"{name}-{label}")
    if driver.where_it_has_them(name, momentum=0.9):
      label = next(label for label, own in settings if own.get("momentum"))
      yield pytest.param(name, label, id=f"{name}-{label}", marks=pytest.mark.thorough)


@pytest.mark.parametrize("name, label", _cases())
def test_no_such_sum_in_a_round(federate, name, label):
  federation = federate(name, **REPLAYS[name].settings[label])
  assert not sums_made_in(lambda: federation.round((0, 1, 2)).round((1, 2)))
