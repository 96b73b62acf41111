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
  # Of a single client that TensorFlow knows of it vectorises nothing.
  spec = tf.TensorSpec([None, 1, 4, 1])
  squeeze = _all_at_once(lambda value: tf.squeeze(value, axes))
  found = tf.function(squeeze, input_signature=[spec])(values)
  expected = np.stack([np.squeeze(v, axes and tuple(axes)) for v in values])
  np.testing.assert_array_equal(found, expected)


def test_vectorised_padding_has_its_value():
  values, ends = _draw(3, 2, 4), _draw(3)
  found = tf.function(
    _all_at_once(lambda value: tf.pad(value, [[0, 1], [2, 0]], constant_values=-7.0))
  )(values)
  expected = np.pad(values, [[0, 0], [0, 1], [2, 0]], constant_values=-7)
  np.testing.assert_array_equal(found, expected)
  found = tf.function(
    _all_at_once(lambda value, end: tf.pad(value, [[0, 1], [0, 0]], constant_values=end))
  )(values, ends)
  own = np.broadcast_to(ends[:, None, None], [3, 1, 4])
  np.testing.assert_array_equal(found, np.concatenate([values, own], 1))


@pytest.mark.parametrize(
  "shift, axis", [(1, 0), (1, 1), (2, -1), (-1, -2), ([1, 2], [-1, 0]), ([1, 1], [1, 1])]
)
def test_vectorised_roll_stays_within_its_client(shift, axis):
  values = _draw(3, 2, 4)
  found = tf.function(_all_at_once(lambda value: tf.roll(value, shift, axis)))(values)
  np.testing.assert_array_equal(found, [np.roll(v, shift, axis) for v in values])


@pytest.mark.parametrize("axis", [-4, -3, 2])
def test_vectorised_roll_refuses_axes_that_there_are_not(axis):
  work = _all_at_once(lambda value: tf.roll(value, 1, axis))
  with pytest.raises(tf.errors.InvalidArgumentError, match="axis"):
    tf.function(work)(_draw(3, 2, 4))


def test_vectorised_roll_may_be_by_a_shift_of_its_own():
  values, shifts = _draw(3, 4), np.array([0, 1, -2], np.int32)
  found = tf.function(_all_at_once(lambda value, by: tf.roll(value, by, -1)))(
    values, shifts
  )
  np.testing.assert_array_equal(found, [np.roll(*own) for own in zip(values, shifts)])


_IDS = np.array([[0, -1, 1, 1], [-3, 1, 0, 0], [-1, -1, -1, 0]])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("ids_of", ["each", "all"])
@pytest.mark.parametrize(
  "name, join, start",
  [("sum", np.add, 0), ("prod", np.multiply, 1), ("max", np.maximum, None)],
)
def test_vectorised_segments_leave_out_negative_ids(name, join, start, ids_of, dtype):
  """Which are not the segments of the client before."""
  values = _draw(3, 4, 2)
  ids = (_IDS if ids_of == "each" else np.broadcast_to(_IDS[0], _IDS.shape)).astype(dtype)
  operation = getattr(tf.math, f"unsorted_segment_{name}")
  start = np.finfo(np.float32).min if start is None else start
  expected = np.full([3, 2, 2], start, np.float32)
  for client in range(3):
    for place in range(4):
      if ids[client, place] >= 0:
        at = client, ids[client, place]
        expected[at] = join(expected[at], values[client, place])
  if ids_of == "each":
    work = _all_at_once(lambda value, own: operation(value, own, 2))
    found = tf.function(work)(values, ids)
  else:
    work = _all_at_once(lambda value: operation(value, ids[0], 2))
    found = tf.function(work)(values)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_vectorised_segments_refuse_ids_that_are_too_large():
  """Which are not the segments of the client behind."""
  work = _all_at_once(lambda value, ids: tf.math.unsorted_segment_sum(value, ids, 2))
  # On a GPU TensorFlow drops them.
  with tf.device("CPU:0"), pytest.raises(tf.errors.InvalidArgumentError):
    tf.function(work)(_draw(3, 4), np.array([[0, 1, 1, 0], [0, 2, 0, 0], [0] * 4]))


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


@pytest.mark.parametrize("takes", ["TTT", "FFF", "TFT"])
@pytest.mark.parametrize("is_otherwise", [False, True])
def test_branch_that_nobody_takes_is_not_run(takes, is_otherwise):
  """TensorFlow runs it over nobody, where many an operation fails."""
  # In float64 the order of a product's sums, which is the machine's, does not matter.
  matrix = _draw(4, 4).astype(np.float64)
  values = _draw(3, 2, 4).astype(np.float64)

  def multiply(x):  # By one matrix for all.
    return x @ tf.constant(matrix)

  def work(taken, x):
    branches = [lambda: multiply(x), lambda: x]
    return tf.cond(taken, *(branches[::-1] if is_otherwise else branches))

  taken = np.array([letter == "T" for letter in takes])
  found = tf.function(_all_at_once(work))(tf.constant(taken), tf.constant(values))
  is_multiplied = (taken != is_otherwise)[:, np.newaxis, np.newaxis]
  expected = np.where(is_multiplied, values @ matrix, values)
  np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("option", ["transpose_a", "transpose_b", None])
def test_vectorised_product_transposes_without_conjugating(dtype, is_shared, option):
  a, b = _draw(5, 3, 3).astype(dtype), _draw(4, 3, 3)[:3].astype(dtype)
  if dtype == np.complex64:
    a, b = a + 1j * a[::-1], b - 2j * b[::-1]
  a, options = a[:3], {option: True} if option else {}
  turned_a = a.swapaxes(1, 2) if option == "transpose_a" else a
  turned_b = b.swapaxes(1, 2) if option == "transpose_b" else b
  if is_shared:
    given, work = [a], lambda x: tf.linalg.matmul(x, tf.constant(b[0]), **options)
    expected = turned_a @ turned_b[0]
  else:
    given, work = [a, b], lambda x, y: tf.linalg.matmul(x, y, **options)
    expected = turned_a @ turned_b
  found = tf.function(_all_at_once(work))(*map(tf.constant, given))
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 4), (2, 3, 3, 3, 3)])
def test_vectorised_bias_is_of_the_channels_before_the_rest(shape):
  values, biases = _draw(3, *shape), _draw(3, 3)

  def work(x, bias):
    return tf.nn.bias_add(x, bias, "NCHW" if len(shape) > 2 else None)

  expected = values + biases.reshape(3, 1, 3, *[1] * (len(shape) - 2))
  found = tf.function(_all_at_once(work))(*map(tf.constant, (values, biases)))
  np.testing.assert_array_equal(found, expected)


def test_vectorised_places_of_the_largest_are_of_the_type_that_is_asked_for():
  work = _all_at_once(lambda row: tf.math.top_k(row, 2, index_type=tf.int64).indices)
  found = tf.function(work)(tf.constant([[3, 9, 4], [7, 1, 8]]))
  assert found.dtype == tf.int64
  np.testing.assert_array_equal(found, [[1, 2], [2, 0]])


def _until(limit: tf.Tensor, step: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
  """A loop within a loop, from a total that is the same for all."""

  def work(own):
    def outer(place, total):
      _, more = tf.while_loop(
        lambda inner, _: inner < 2.0 * limit,
        lambda inner, more: (inner + step(own), more * own + 1.0),
        (0.0, total),
      )
      return place + 1, more

    return tf.while_loop(lambda place, _: place < 3, outer, (0, tf.zeros([2])))[1]

  return work


def test_bodies_of_loops_are_traced_once(monkeypatch):
  traced, convert = [], private_apis._pfor.WhileV2.__call__

  def count(loop):
    traced.append(loop)
    return convert(loop)

  monkeypatch.setattr(private_apis._pfor.WhileV2, "__call__", count)
  function = tf.function(_all_at_once(_until(tf.constant(2.0), lambda own: 1.0)))
  graph = function.get_concrete_function(tf.TensorSpec([5])).graph.as_graph_def()
  assert len(traced) == 2
  nodes = [node for body in graph.library.function for node in body.node_def]
  # By which clients are sorted where their loops end apart.
  assert "DynamicPartition" not in {node.op for node in nodes}


@pytest.mark.parametrize("is_own", [False, True], ids=["together", "each its own"])
def test_vectorised_loops_within_loops_end_when_they_would(is_own):
  values = np.abs(_draw(5)) + 0.1
  work = _until(tf.constant(1.5), lambda own: own if is_own else tf.constant(0.7))
  found = tf.function(_all_at_once(work))(values)
  expected = [work(value) for value in values]
  np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("is_own", [False, True], ids=["one for all", "each its own"])
def test_vectorised_loops_may_set_what_differed_to_one_for_all(is_own):
  def work(own):
    def body(step, total, rate):
      return step + 1, total + rate * own, 1 / tf.cast(step + 1, tf.float32)

    first = own if is_own else tf.constant(0.5)
    return tf.while_loop(lambda step, *_: step < 3, body, (0, own, first))[1:]

  values = _draw(5)
  found = tf.function(_all_at_once(work))(values)
  expected = zip(*(work(value) for value in values))
  for a, b in zip(found, expected):
    np.testing.assert_allclose(a, b, rtol=1e-6)


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


@pytest.mark.parametrize("is_little", [True, False], ids=["little", "big"])
@pytest.mark.parametrize("fixed_length", [None, 6], ids=["whole", "padded"])
def test_bytes_are_decoded_in_the_order_that_is_asked_for(fixed_length, is_little):
  texts = [b"\1\0\0\2", b"\0\3\4\0"]
  found = tf.function(
    _all_at_once(lambda text: tf.io.decode_raw(text, tf.int16, is_little, fixed_length))
  )(tf.constant(texts))
  length, order = fixed_length or 4, "<i2" if is_little else ">i2"
  expected = [np.frombuffer(text.ljust(length, b"\0"), order) for text in texts]
  np.testing.assert_array_equal(found, expected)


def test_forms_for_strings_of_one_length_are_there_in_a_trace_only():
  with private_apis.forms_for_own_inputs(vectorised_forms.FORMS_FOR_OWN_INPUTS):
    assert private_apis.has_vectorised_form("DecodeRaw")
  assert not private_apis.has_vectorised_form("DecodeRaw")
