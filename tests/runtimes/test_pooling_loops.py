"""Loops with a pooling's gradient: what they compute, and by which operations."""

from __future__ import annotations

import numpy as np
import pytest
import rounds_of
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tff_algos
from tff_algos.runtimes import pooling_loops, runtime

_STEPS, _RATE = 3, 0.1

on_cpus = pytest.mark.skipif(
  bool(tf.config.list_physical_devices("GPU")), reason="Nothing is set apart for GPUs."
)


def _operations_of(run, folder) -> set[str]:
  """Those that run, by their names as the last pass of TensorFlow's has them."""
  with tf.profiler.experimental.Profile(str(folder)):
    run()
  [path] = folder.glob("**/*.xplane.pb")
  space = xplane_pb2.XSpace.FromString(path.read_bytes())
  names = (m.name for plane in space.planes for m in plane.event_metadata.values())
  return {name.rpartition(":")[2] for name in names}


def _descend(pictures, slopes, size, stride, padding):
  """Steps down the sum of `slopes` times what is pooled of the pictures."""

  def body(step, x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      pooled = tf.nn.max_pool2d(x, size, stride, padding)
      loss = tf.reduce_sum(slopes * pooled)
    return step + 1, x - _RATE * tape.gradient(loss, x)

  return tf.while_loop(lambda step, _: step < _STEPS, body, (0, pictures))[1]


def _descend_in_numpy(x, slopes, size, stride, padding):
  """The same: of equal inputs of a window the first, row by row, has the gradient."""
  _, height, width, _ = x.shape
  _, rows, columns, _ = slopes.shape
  before = [0, 0]
  if padding == "SAME":
    for axis, (outputs, length) in enumerate([(rows, height), (columns, width)]):
      before[axis] = max((outputs - 1) * stride + size - length, 0) // 2
  for _ in range(_STEPS):
    gradient = np.zeros_like(x)
    for n, i, j, c in np.ndindex(*slopes.shape):
      places = [
        (n, i * stride + a - before[0], j * stride + b - before[1], c)
        for a in range(size)
        for b in range(size)
      ]
      inside = [p for p in places if 0 <= p[1] < height and 0 <= p[2] < width]
      gradient[max(inside, key=lambda place: x[place])] += slopes[n, i, j, c]
    x = x - np.float32(_RATE) * gradient
  return x


@pytest.mark.parametrize(
  "shape, size, stride, padding",
  [
    ((2, 6, 8, 3), 2, 2, "VALID"),
    ((2, 7, 5, 3), 2, 2, "SAME"),
    ((2, 7, 5, 3), 2, 2, "VALID"),
    ((2, 7, 6, 2), 3, 2, "SAME"),
    ((1, 5, 5, 2), 3, 1, "VALID"),
  ],
)
def test_steps_are_those_of_numpy(shape, size, stride, padding):
  draw = np.random.default_rng(0)
  # Halves of small whole numbers, so that many inputs of a window are equal.
  x = draw.integers(0, 4, shape).astype(np.float32) / 2
  outputs = tf.nn.max_pool2d(x, size, stride, padding).shape
  slopes = draw.integers(1, 9, outputs).astype(np.float32)

  @tff.tensorflow.computation(
    tff.TensorType(np.float32, shape), tff.TensorType(np.float32, outputs)
  )
  def descend(x, slopes):
    return _descend(x, slopes, size, stride, padding)

  with runtime.create_runtime("in_process"):
    found = descend(x, slopes)
  expected = _descend_in_numpy(x, slopes, size, stride, padding)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@on_cpus
def test_rounds_pool_by_one_dnn(tmp_path):
  """Of a network with two poolings, of which one alone may be met in order by chance."""
  plain = tf.function(lambda x: tf.gradients(tf.nn.max_pool2d(x, 2, 2, "SAME"), x)[0])
  found = _operations_of(lambda: plain(tf.ones([1, 4, 4, 1])), tmp_path / "plain")
  if "MaxPoolGrad" in found:
    pytest.skip("TensorFlow has no oneDNN here.")
  layers = tf.keras.layers
  network = tf.keras.Sequential(
    [
      layers.Input([12, 12, 1]),
      layers.Conv2D(4, 3, activation="relu"),
      layers.MaxPool2D(),
      layers.Conv2D(4, 2, activation="relu"),
      layers.MaxPool2D(),
      layers.Flatten(),
      layers.Dense(8, "relu"),
      layers.Dense(3),
    ]
  )
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([12, 12, 1], tf.float32), tf.TensorSpec([], tf.int32)
  )
  draw = np.random.default_rng(0)
  clients = tff_algos.write_clients(
    "ram://pooling_loops",
    {"one": (draw.normal(size=(6, 12, 12, 1)), draw.integers(0, 3, 6))},
    spec,
  )
  process = tff_algos.build_fed_reg(tff_algos.from_keras(network, spec))
  operations = _operations_of(
    lambda: rounds_of.run(process, clients, rounds=1), tmp_path / "round"
  )
  assert "_MklNativeMaxPoolGrad" in operations
  assert "MaxPoolGrad" not in operations


def _graph_of(function, *arguments) -> tf.compat.v1.GraphDef:
  graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
  return graph.as_graph_def()


def _descend_twice(x):
  def body(i, x):
    return i + 1, _descend(x, tf.ones([1, 2, 2, 1]), 2, 2, "VALID")

  return tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]


@on_cpus
def test_only_the_innermost_loop_is_set_apart():
  graph_def = _graph_of(_descend_twice, tf.TensorSpec([1, 4, 4, 1]))
  before = {f.signature.name for f in graph_def.library.function}
  pooling_loops.set_apart(graph_def)
  [added] = [f for f in graph_def.library.function if f.signature.name not in before]
  assert added.attr["_noinline"].b
  assert "MaxPoolGrad" in {node.op for node in added.node_def}
  callers = [
    f.signature.name
    for f in graph_def.library.function
    if any(n.attr["f"].func.name == added.signature.name for n in f.node_def)
  ]
  assert len(callers) == 1


def _halve(x):
  return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x / 2), (0, x))[1]


@pytest.mark.parametrize("function, gpus", [(_halve, []), (_descend_twice, ["GPU:0"])])
def test_other_loops_and_those_beside_gpus_stay(monkeypatch, function, gpus):
  graph_def = _graph_of(function, tf.TensorSpec([1, 4, 4, 1]))
  expected = graph_def.SerializeToString(deterministic=True)
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
  pooling_loops.set_apart(graph_def)
  assert graph_def.SerializeToString(deterministic=True) == expected
