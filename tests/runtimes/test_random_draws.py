"""Draws of many clients at once against TensorFlow's own of one client after another."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tff_algos.runtimes.blocks  # noqa: F401  It has `tf.vectorized_map` take the forms.
from tff_algos.client_work import step_seeds
from tff_algos.runtimes import private_apis, random_draws

_LIMIT = random_draws._MOST_NUMBERS
_SEEDS = np.random.default_rng(0).integers(-(2**31), 2**31, (5, 2)).astype(np.int32)
_FULL = dict(minval=None, maxval=None)


@pytest.mark.parametrize(
  "counter, key, expected",
  [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
      [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
      [0xA4093822, 0x299F31D0],
      "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
  ],
)
def test_philox_has_its_authors_known_answers(counter, key, expected):
  words = random_draws._philox(*(tf.constant([[w]], tf.uint64) for w in counter + key))
  assert " ".join(f"{int(word):08x}" for word in words) == expected


def _vectorised(draw, own, *shared):
  """`draw` of all clients at once; the number of clients is not known when traced.

  Returns:
    What is drawn, and the operations that draw it.
  """
  spec = [tf.TensorSpec([None, *own.shape[1:]], own.dtype)]
  spec += [tf.TensorSpec([], tf.int32) for _ in shared]
  function = tf.function(
    lambda own, *shared: tf.vectorized_map(lambda v: draw(v, *shared), own),
    input_signature=spec,
  ).get_concrete_function()
  needed = tf.compat.v1.graph_util.extract_sub_graph(
    function.graph.as_graph_def(), [tensor.op.name for tensor in function.graph.outputs]
  )
  found = function(tf.constant(own), *map(tf.constant, shared))
  return found, [node.op for node in needed.node]


@pytest.mark.parametrize("shape", [[], [1], [7], [3, 4], [2, _LIMIT // 2]])
@pytest.mark.parametrize(
  "options",
  [dict(dtype=tf.float32), dict(dtype=tf.int32, **_FULL), dict(dtype=tf.uint32, **_FULL)],
)
def test_a_few_numbers_are_tensorflows_and_need_no_loop(shape, options):
  def draw(seed):
    return tf.random.stateless_uniform(shape, seed, **options)

  found, operations = _vectorised(draw, _SEEDS)
  for numbers, seed in zip(found, _SEEDS):
    np.testing.assert_array_equal(numbers, draw(seed))
  # Which of the two is known before it runs.
  assert sum("If" in name for name in operations) <= 1
  assert not any("While" in name for name in operations)


@pytest.mark.parametrize("size", [0, 1, 6, _LIMIT, _LIMIT + 1, 3000])
def test_as_many_as_turn_out(size):
  def draw(seed, size):
    return tf.random.stateless_uniform([2, size], seed, dtype=tf.int32, **_FULL)

  found, _ = _vectorised(draw, _SEEDS, size)
  assert found.shape == [len(_SEEDS), 2, size]
  for numbers, seed in zip(found, _SEEDS):
    np.testing.assert_array_equal(numbers, draw(seed, size))


@pytest.mark.parametrize("size", [1, _LIMIT + 1, 3000])
@pytest.mark.parametrize(
  "options",
  [dict(dtype=tf.float32), dict(dtype=tf.int32, **_FULL), dict(dtype=tf.uint32, **_FULL)],
)
def test_for_gpus_there_is_no_loop_whatever_the_size(size, options):
  def draw(seed, size):
    return tf.random.stateless_uniform([2, size], seed, **options)

  with private_apis.forms_for_own_inputs(random_draws.FORMS_ON_GPU):
    found, operations = _vectorised(draw, _SEEDS, size)
  for numbers, seed in zip(found, _SEEDS):
    np.testing.assert_array_equal(numbers, draw(seed, size))
  assert not any("If" in name or "While" in name for name in operations)


@pytest.mark.parametrize("seed_dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
  "options", [dict(dtype=tf.float64), dict(dtype=tf.half), dict(dtype=tf.int64, **_FULL)]
)
def test_other_types(options, seed_dtype):
  def draw(seed):
    return tf.random.stateless_uniform([5], seed, **options)

  seeds = _SEEDS.astype(seed_dtype) * (2**31 if seed_dtype == np.int64 else 1)
  found, _ = _vectorised(draw, seeds)
  for numbers, seed in zip(found, seeds):
    np.testing.assert_array_equal(numbers, draw(seed))


def test_seeds_of_64_bits():
  seeds = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, (5, 2))
  found, _ = _vectorised(lambda seed: tf.random.stateless_uniform([9], seed), seeds)
  for numbers, seed in zip(found, seeds):
    np.testing.assert_array_equal(numbers, tf.random.stateless_uniform([9], seed))


def test_a_counter_that_overflows_carries():
  counters = np.array([[2**64 - 2, 5], [2**64 - 1, 2**64 - 1], [7, 8]], np.uint64)

  def draw(counter):
    return tf.raw_ops.StatelessRandomUniformV2(
      shape=[20], key=tf.constant([3], tf.uint64), counter=counter, alg=1
    )

  found, _ = _vectorised(draw, counters)
  for numbers, counter in zip(found, counters):
    np.testing.assert_array_equal(numbers, draw(counter))


def test_philox_by_its_name():
  def draw(seed):
    return tf.random.stateless_uniform([6], seed, alg="philox")

  found, _ = _vectorised(draw, _SEEDS)
  for numbers, seed in zip(found, _SEEDS):
    np.testing.assert_array_equal(numbers, draw(seed))


def test_shape_of_64_bits():
  def draw(seed):
    return tf.random.stateless_uniform(tf.constant([2, 3], tf.int64), seed)

  found, _ = _vectorised(draw, _SEEDS)
  for numbers, seed in zip(found, _SEEDS):
    np.testing.assert_array_equal(numbers, draw(seed))


def test_fold_in_and_split():
  def draw(seed):
    folded = tf.random.experimental.stateless_fold_in(seed, 7)
    return tf.random.experimental.stateless_split(step_seeds.of_step(folded, 2), 3)

  found, _ = _vectorised(draw, _SEEDS)
  for seeds, seed in zip(found, _SEEDS):
    np.testing.assert_array_equal(seeds, draw(seed))
