"""Which operations of a graph give other values each time."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tff_algos import graphs

_SAMPLES = dict(num_true=1, num_sampled=3, unique=True, range_max=1000)
_BOXES = tf.zeros([1, 0, 4])


@pytest.fixture(autouse=True)
def _without_a_global_seed():
  """Undoes what other tests have set: with it a shuffle without a seed has one."""
  tf.random.set_seed(None)


def _shuffled(seed):
  return tf.data.Dataset.range(9).shuffle(9, seed).batch(9).get_single_element()


@pytest.mark.parametrize(
  "draw, expected",
  [
    (lambda: tf.random.normal([2]), ["RandomStandardNormal"]),
    (lambda: tf.random.shuffle([1, 2]), ["RandomShuffle"]),
    (lambda: tf.timestamp(), ["Timestamp"]),
    (
      lambda: tf.random.log_uniform_candidate_sampler(
        [[tf.constant(1, tf.int64)]], **_SAMPLES
      ),
      ["LogUniformCandidateSampler"],
    ),
    (
      lambda: tf.image.sample_distorted_bounding_box(
        [9, 9, 3], _BOXES, seed=1, use_image_if_no_bounding_boxes=True
      ),
      ["SampleDistortedBoundingBoxV2"],
    ),
    (lambda: tf.raw_ops.NonDeterministicInts(shape=[1]), ["NonDeterministicInts"]),
    (lambda: tf.py_function(lambda: 1.0, [], tf.float32), ["EagerPyFunc"]),
    (lambda: _shuffled(None), ["ShuffleDatasetV3"]),
    (lambda: _shuffled(5), []),
    (lambda: _shuffled(tf.cast(tf.timestamp(), tf.int64)), ["Timestamp"]),
    (lambda: tf.random.stateless_normal([2], [1, 2]), []),
    (lambda: tf.random.experimental.index_shuffle(3, [1, 2], 9), []),
    (
      lambda: tf.image.stateless_sample_distorted_bounding_box(
        [9, 9, 3], _BOXES, [1, 2], use_image_if_no_bounding_boxes=True
      ),
      [],
    ),
    (lambda: tf.linalg.matmul([[1.0]], [[2.0]]), []),
  ],
)
def test_what_draws_is_found_in_functions_too(draw, expected):
  called = tf.function(draw)
  graph = tf.function(lambda: called()).get_concrete_function().graph
  assert graphs.drawing_operations(graph.as_graph_def()) == expected


def test_shuffle_that_a_global_seed_fixes_is_not_one_that_draws():
  tf.random.set_seed(3)
  graph = tf.function(lambda: _shuffled(None)).get_concrete_function().graph
  tf.random.set_seed(None)
  assert graphs.drawing_operations(graph.as_graph_def()) == []
