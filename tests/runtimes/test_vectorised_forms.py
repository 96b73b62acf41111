"""What `tf.vectorized_map` makes of operations while blocks are traced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.runtimes import private_apis, vectorised_forms


def _all_at_once(work: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
  def run(*own):
    with private_apis.forms_for_own_inputs(vectorised_forms.FORMS_FOR_OWN_INPUTS):
      return tf.vectorized_map(lambda values: work(*values), own)

  return run


def _draw(*shape: int) -> np.ndarray:
  return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


# Of each client, and one for all.
@pytest.mark.parametrize(
  "own, shared",
  [
    ([(), (4,)], []),
    ([(4,), (3, 4)], []),
    ([(3, 1), (4,), ()], []),
    ([()], [(3, 4)]),
    ([(4,)], [(3, 4)]),
    ([(2, 3, 4)], [(4,)]),
    # As many rows as clients.
    ([(5,)], [(5, 5)]),
  ],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["ranks known", "not known"])
def test_what_differs_in_rank_is_broadcast_for_each_client(own, shared, is_known):
  clients = [_draw(5, *shape) for shape in own]
  constants = [tf.constant(_draw(*shape)) for shape in shared]

  def work(*values):
    together = tf.constant(0.5)
    for value in (*values, *constants):
      together = tf.where(value > 0, together * value, value - together)
    return together

  shapes = [value.shape if is_known else None for value in clients]
  function = tf.function(
    _all_at_once(work), input_signature=[tf.TensorSpec(shape) for shape in shapes]
  ).get_concrete_function()
  found = function(*map(tf.constant, clients))
  expected = [work(*map(tf.constant, values)) for values in zip(*clients)]
  np.testing.assert_array_equal(found, tf.stack(expected))
  graph = function.graph.as_graph_def()
  bodies = [graph.node, *(body.node_def for body in graph.library.function)]
  if is_known:
    # TensorFlow's way to see to it when it runs.
    assert not {"Tile", "Reshape"} & {node.op for nodes in bodies for node in nodes}


def test_vectorised_sort_is_stable():
  values = tf.constant([[2, 1, 2, 1], [0, 3, 3, 0]])
  found = tf.function(
    lambda v: tf.vectorized_map(lambda row: tf.argsort(row, stable=True), v)
  )(values)
  np.testing.assert_array_equal(found, np.argsort(values, axis=1, kind="stable"))


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize("axes", [None, [0], [-1], [2, 0]])
def test_vectorised_squeeze_keeps_the_clients(num_clients, axes):
  values = _draw(num_clients, 1, 4, 1)
  found = tf.function(_all_at_once(lambda value: tf.squeeze(value, axes)))(values)
  expected = np.stack([np.squeeze(v, axes and tuple(axes)) for v in values])
  np.testing.assert_array_equal(found, expected)


def test_squeeze_of_unknown_sizes_has_no_vectorised_form():
  work = _all_at_once(lambda value: tf.squeeze(value[: tf.cast(value[0, 0], tf.int32)]))
  values = np.full([1, 2, 4], 2, np.float32)
  found = tf.function(work)(values)
  np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("takes", ["TTT", "FFF", "TFT"])
def test_vectorised_choice_between_branches(takes):
  values = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
  conditions = tf.constant([take == "T" for take in takes])

  def choose(value, condition):
    return tf.cond(condition, lambda: (value, value[0]), lambda: (-value, 2 * value[1]))

  found = tf.function(_all_at_once(choose))(values, conditions)
  expected = [choose(*own) for own in zip(values, conditions)]
  for part, parts in zip(found, zip(*expected)):
    np.testing.assert_array_equal(part, tf.stack(parts))


def test_choices_within_choices_are_traced_as_often_as_by_tensorflow():
  """Once more for the outermost; four times at each level would be 256 times."""

  def choose(depth, value):
    if depth == 0:
      return value
    branches = (lambda: choose(depth - 1, value) + 1, lambda: choose(depth - 1, value))
    return tf.cond(value > depth, *branches)

  def count(forms):
    def all_at_once(values):
      with private_apis.forms_for_own_inputs(forms):
        return tf.vectorized_map(lambda value: choose(4, value), values)

    trace = tf.function(all_at_once, autograph=False).get_concrete_function
    graph = trace(tf.TensorSpec([None])).graph.as_graph_def()
    return sum(len(function.node_def) for function in graph.library.function)

  assert count(vectorised_forms.FORMS_FOR_OWN_INPUTS) < 3 * count({})


def test_forms_for_strings_of_one_length_are_there_in_a_trace_only():
  with private_apis.forms_for_own_inputs(vectorised_forms.FORMS_FOR_OWN_INPUTS):
    assert private_apis.has_vectorised_form("DecodeRaw")
  assert not private_apis.has_vectorised_form("DecodeRaw")
