"""Convolutions of many clients at once against one client after another.

No GPU is needed: the rule for GPUs is asked for, and what it gives runs on the CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import rounds_of
import tensorflow as tf

import tff_algos
from tff_algos.runtimes import (
  blocks,
  convolutions,
  execution,
  in_process,
  planning,
  private_apis,
)

_layers = tf.keras.layers


def _operations(function: tf.types.experimental.ConcreteFunction) -> set[str]:
  """Of what its results need; what one client alone needs is left in the graph."""
  graph = tf.compat.v1.graph_util.extract_sub_graph(
    function.graph.as_graph_def(), [tensor.op.name for tensor in function.outputs]
  )
  bodies = {body.signature.name: body.node_def for body in graph.library.function}
  waiting, found = list(graph.node), set()
  while waiting:
    node = waiting.pop()
    found.add(node.op)
    named = [node.op, *(value.func.name for value in node.attr.values())]
    waiting += (inner for name in named for inner in bodies.pop(name, ()))
  return found


def _draw(*shape: int, seed: int = 0) -> np.ndarray:
  """Of float64, in which sums of another order differ by far less than a wrong one."""
  return np.random.default_rng(seed).normal(size=shape)


def _with_gradients(layer, inputs):
  """A layer's output, and the gradients of a function of it."""
  with tf.GradientTape() as tape:
    tape.watch(inputs)
    output = layer(*inputs)
    loss = tf.reduce_sum(tf.sin(output))
  return (output, *tape.gradient(loss, inputs))


def _vectorised(layer, inputs, is_own):
  """`_with_gradients` of all clients at once, and how it is done."""

  def work(own):
    own = iter(own)
    return _with_gradients(
      layer, [next(own) if o else tf.constant(v) for v, o in zip(inputs, is_own)]
    )

  def of_all(*own):
    with private_apis.forms_for_own_inputs(convolutions.FORMS):
      return tf.vectorized_map(work, own)

  own = [value for value, o in zip(inputs, is_own) if o]
  # The number of clients and that of a client's pictures are not known when it is traced.
  specs = [tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in own]
  specs[0] = tf.TensorSpec([None, None, *own[0].shape[2:]], own[0].dtype)
  function = tf.function(of_all, input_signature=specs).get_concrete_function()
  return function(*map(tf.constant, own)), _operations(function)


_CLIENTS, _PICTURES = 3, 4


@pytest.mark.parametrize(
  "picture, filters, stride, dilation, padding",
  [
    ((8, 9, 2), (3, 3, 2, 3), (1, 1), 1, "SAME"),
    ((8, 9, 2), (5, 3, 2, 3), (2, 1), 1, "SAME"),
    ((8, 9, 1), (3, 2, 1, 4), (2, 3), 1, "VALID"),
    ((9, 8, 3), (3, 3, 3, 2), (1, 1), 2, "SAME"),
    ((9, 8, 3), (3, 2, 3, 2), (1, 1), (2, 3), "VALID"),
    ((5, 5, 2), (5, 5, 2, 2), (1, 1), 1, "VALID"),
    # Some of the pictures is in no window.
    ((7, 7, 2), (1, 1, 2, 2), (2, 2), 1, "SAME"),
    ((7, 7, 2), (1, 1, 2, 2), (3, 3), 1, "VALID"),
    ((10, 10, 2), (2, 2, 2, 2), (3, 4), 1, "VALID"),
  ],
)
def test_convolution_and_its_gradients(picture, filters, stride, dilation, padding):
  def layer(values, weights):
    return tf.nn.conv2d(values, weights, stride, padding, dilations=dilation)

  # TensorFlow has gradients of dilated ones on a GPU, and on some CPUs only.
  steps = np.broadcast_to(dilation, 2)
  spread = [np.eye((n - 1) * d + 1)[::d] for n, d in zip(filters, steps)]

  def dense(values, weights):
    between = tf.einsum("ijkl,iy,jx->yxkl", weights, *spread)  # Zeros.
    return tf.nn.conv2d(values, between, stride, padding)

  inputs = [_draw(_CLIENTS, _PICTURES, *picture), _draw(_CLIENTS, *filters, seed=1)]
  found, operations = _vectorised(layer, inputs, (True, True))
  assert not any("While" in name or "Conv2D" in name for name in operations)
  for client in range(_CLIENTS):
    expected = _with_gradients(dense, [tf.constant(v[client]) for v in inputs])
    for value, other in zip(found, expected):
      np.testing.assert_allclose(value[client], other, rtol=1e-9, atol=1e-9)


def test_convolution_by_one_filter_for_all_stays_a_convolution():
  weights = tf.constant(_draw(3, 3, 2, 4, seed=1))
  pictures = _draw(_CLIENTS, _PICTURES, 6, 6, 2)

  def layer(values):
    return tf.nn.conv2d(values, weights, 1, "SAME")

  found, operations = _vectorised(layer, [pictures], (True,))
  assert {"Conv2D", "Conv2DBackpropInput"} <= operations
  for client in range(_CLIENTS):
    expected = _with_gradients(layer, [tf.constant(pictures[client])])
    for value, other in zip(found, expected):
      np.testing.assert_allclose(value[client], other, rtol=1e-9, atol=1e-9)


def test_convolution_in_groups_is_left_to_one_client_after_another():
  def layer(values, weights):
    return tf.nn.conv2d(values, weights, 1, "SAME")

  inputs = [_draw(_CLIENTS, _PICTURES, 6, 6, 4), _draw(_CLIENTS, 3, 3, 2, 6, seed=1)]
  own = [tf.constant(v) for v in inputs]
  with private_apis.forms_for_own_inputs(convolutions.FORMS):
    found = tf.function(lambda *v: tf.vectorized_map(lambda v: layer(*v), v))(*own)
  for client in range(_CLIENTS):
    expected = layer(*(v[client] for v in own))
    np.testing.assert_allclose(found[client], expected, rtol=1e-9, atol=1e-9)


# A layer of Keras, such as RandomTranslation, reflects by default.
@pytest.mark.parametrize(
  "interpolation, fill_mode", [("BILINEAR", "CONSTANT"), ("NEAREST", "REFLECT")]
)
@pytest.mark.parametrize("num_transforms", [1, _PICTURES])
def test_vectorised_moving_of_pictures(num_transforms, interpolation, fill_mode):
  pictures = tf.constant(_draw(_CLIENTS, _PICTURES, 5, 6, 2))
  moves = np.zeros((_CLIENTS, num_transforms, 8), np.float32)
  moves[..., [0, 4]] = 1.0
  moves[..., [2, 5]] = _draw(_CLIENTS, num_transforms, 2, seed=1)

  def move(of_client):
    values, transforms = of_client
    return tf.raw_ops.ImageProjectiveTransformV3(
      images=values,
      transforms=transforms,
      output_shape=[5, 6],
      fill_value=0.5,
      interpolation=interpolation,
      fill_mode=fill_mode,
    )

  found = tf.function(lambda *own: tf.vectorized_map(move, own))(pictures, moves)
  for client in range(_CLIENTS):
    expected = move((pictures[client], moves[client]))
    np.testing.assert_allclose(found[client], expected, rtol=1e-6, atol=1e-6)


# --- Whole rounds ----------------------------------------------------------------------

_SIZES = (7, 4, 7, 7, 4)
_SPEC = tff_algos.ExampleSpec(
  tf.TensorSpec([12, 12, 3], tf.uint8), tf.TensorSpec([], tf.int32)
)


def _network(*layers: tf.keras.layers.Layer) -> tff_algos.Model:
  rest = [_layers.Flatten(), _layers.Dense(3)]
  return tff_algos.from_keras(
    tf.keras.Sequential([_layers.Input([12, 12, 3]), *layers, *rest]), _SPEC
  )


@pytest.fixture(scope="module")
def process():
  """Of a network with all that the rule for GPUs adds, and what draws at random."""
  model = _network(
    _layers.RandomTranslation(0.2, 0.2),
    _layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
    _layers.DepthwiseConv2D(2, padding="same"),
    _layers.MaxPooling2D(2),
    _layers.Dropout(0.3),
    _layers.Conv2D(5, 2, activation="tanh"),
    _layers.AveragePooling2D(2),
  )
  hparams = tff_algos.ScaffoldHparams(batch_size=3, learning_rate=0.1, epochs=2)
  return tff_algos.build_scaffold(model, hparams, num_clients=len(_SIZES))


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
  draw = np.random.default_rng(0)
  data = {
    f"c{i}": (
      draw.integers(0, 256, (n, 12, 12, 3)).astype(np.uint8),
      draw.integers(0, 3, n).astype(np.int32),
    )
    for i, n in enumerate(_SIZES)
  }
  return tff_algos.write_clients(str(tmp_path_factory.mktemp("clients")), data, _SPEC)


def _run(process, clients, monkeypatch, *, is_gpu: bool):
  monkeypatch.setattr(in_process, "_is_gpu", lambda device: is_gpu)
  return rounds_of.run(process, clients, devices=["CPU:0"])


@pytest.fixture(scope="module")
def in_blocks(process, clients):
  """The states of a run in blocks, the blocks' sizes, and what does their work."""
  seen, original = [], blocks.Blocks._run

  def run(self, shared, own):
    seen.append((len(next(leaf for leaves in own.values() for leaf in leaves)), self))
    return original(self, shared, own)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocks.Blocks, "_run", run)
    states = _run(process, clients, patch, is_gpu=True)
  return states, [size for size, _ in seen], seen[0][1]


def test_rounds_in_blocks_equal_one_client_after_another(
  in_blocks, process, clients, monkeypatch
):
  states, sizes, _ = in_blocks
  assert sizes == [len(_SIZES)] * 2
  rounds_of.assert_close(states, _run(process, clients, monkeypatch, is_gpu=False))


def test_no_convolution_is_left_to_a_loop(in_blocks):
  *_, work = in_blocks
  operations = _operations(work._do_work.trace())
  assert "ExtractImagePatches" in operations and "Conv2D" not in operations


def test_blocks_shrink_to_what_the_memory_holds(in_blocks, process, clients, monkeypatch):
  expected, *_ = in_blocks
  sizes, original = [], blocks.Blocks._run

  def run(self, shared, own):
    sizes.append(len(next(leaf for leaves in own.values() for leaf in leaves)))
    if sizes[-1] > 2:
      raise tf.errors.ResourceExhaustedError(None, None, "no more memory")
    return original(self, shared, own)

  monkeypatch.setattr(blocks.Blocks, "_run", run)
  rounds_of.assert_close(_run(process, clients, monkeypatch, is_gpu=True), expected)
  # The second round begins with what the first one came down to.
  assert sizes == [5, 2, 3, 1, 2, 2, 1, 2]


def test_one_client_for_whom_there_is_no_memory_is_an_error(
  process, clients, monkeypatch
):
  """By the vectorised form, and without it."""

  def run(self, *given):
    raise tf.errors.ResourceExhaustedError(None, None, "no more memory")

  monkeypatch.setattr(blocks.Blocks, "_run", run)
  monkeypatch.setattr(blocks.Blocks, "_run_alone", run)
  with pytest.raises(tf.errors.ResourceExhaustedError):
    _run(process, clients, monkeypatch, is_gpu=True)


# --- The rule --------------------------------------------------------------------------


def _level_of(process):
  plan = execution.Plan(process.next)
  [level] = [level for level in plan.levels if level.at_clients]
  return level


@pytest.fixture(scope="module")
def level(process):
  """What clients do in a round, which is planned once for each kind of device."""
  return _level_of(process)


def test_rule_takes_convolutions_on_a_gpu_only(level):
  few = blocks.ON_GPU.fewest_clients
  assert isinstance(level.work_of(few, on_gpu=True), blocks.Blocks)
  assert isinstance(level.work_of(few - 1, on_gpu=True), planning.Step)
  assert isinstance(level.work_of(100, on_gpu=False), planning.Step)


def test_what_was_planned_for_gpus_is_not_for_cpus(monkeypatch):
  """A computation's plan is kept for all runtimes: each has its own blocks, made once."""
  planned = []

  def plan(one_by_one, is_given, *, on_gpu):
    planned.append(on_gpu)
    return "on GPUs" if on_gpu else "on CPUs"

  monkeypatch.setattr(blocks, "plan", plan)
  level = execution.Level([], [], [], lambda node: False)
  for _ in range(2):
    assert level.work_of(100, on_gpu=True) == "on GPUs"
    assert level.work_of(100, on_gpu=False) == "on CPUs"
  assert planned == [True, False]


def test_large_models_are_in_smaller_blocks_or_in_none(process, level, monkeypatch):
  work = level.work_of(100, on_gpu=True)
  assert work.block_size(100) == 100 and work.block_size(1000) == blocks.MOST_CLIENTS
  sent = blocks.ON_GPU.most_bytes / 10  # More than this broadcast has.
  limits = blocks.ON_GPU._replace(block_bytes=7 * sent)
  assert limits.block_size(100, int(sent)) == 7
  assert limits.block_size(100, int(100 * sent)) == 1
  monkeypatch.setattr(blocks, "ON_GPU", blocks.ON_GPU._replace(most_bytes=100))
  assert isinstance(_level_of(process).work_of(100, on_gpu=True), planning.Step)


def test_other_kinds_of_convolutions_have_no_form():
  def attributes(**settings):
    graph = tf.Graph()
    with graph.as_default():
      pictures = tf.compat.v1.placeholder(tf.float32, [None, 4, 4, 4])
      tf.raw_ops.Conv2D(
        input=pictures, filter=tf.ones([2, 2, 4, 4]), strides=[1] * 4, **settings
      )
    [node] = [node for node in graph.as_graph_def().node if node.op == "Conv2D"]
    return node.attr

  assert convolutions.is_known(attributes(padding="SAME"))
  assert not convolutions.is_known(attributes(padding="SAME", data_format="NCHW"))
  explicit = attributes(padding="EXPLICIT", explicit_paddings=[0, 0, 1, 1, 1, 1, 0, 0])
  assert not convolutions.is_known(explicit)


def test_forms_are_those_of_tensorflow_again_afterwards():
  def forms():
    return {
      name: private_apis._pfor_converter_registry[name] for name in convolutions.FORMS
    }

  before = forms()
  with pytest.raises(KeyError), private_apis.forms_for_own_inputs(convolutions.FORMS):
    assert not set(before.values()) & set(forms().values())
    raise KeyError
  assert forms() == before
