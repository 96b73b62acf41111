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


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_no_such_sum_in_a_round(in_process, problem_of, name, momentum):
  """Of a process built anew: graphs are seen when they are first run."""
  settings = driver.where_it_has_them(name, momentum=momentum)
  if momentum and not settings:
    pytest.skip("It has no momentum.")
  problem, hparams = problem_of("mlp"), driver.hparams_of(name, **settings)
  process = driver.build(name, problem, hparams)
  federation = driver.Federation(process, problem, hparams, seed=1)
  assert not sums_made_in(lambda: federation.round((0, 1, 2)).round((1, 2)))
