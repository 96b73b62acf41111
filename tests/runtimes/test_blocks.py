"""Blocks of clients against one client after another."""

from __future__ import annotations

import functools
import pathlib

import numpy as np
import pytest
import rounds_of
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tasks.models import cnn
from tff_algos.aggregators import table
from tff_algos.algorithms import registry
from tff_algos.runtimes import (
  blocks,
  execution,
  in_process,
  planning,
  private_apis,
)

_THOROUGH = pytest.mark.thorough
_SPEC = tff_algos.ExampleSpec(tf.TensorSpec([5], tf.float32), tf.TensorSpec([], tf.int32))
_SIZES = (4, 7, 4, 4, 2, 7, 4)


def _dense_model(hidden: int = 4) -> tff_algos.Model:
  layers = [
    tf.keras.layers.Input([5]),
    tf.keras.layers.Dense(hidden, "tanh"),
    tf.keras.layers.Dense(3),
  ]
  return tff_algos.from_keras(tf.keras.Sequential(layers), _SPEC)


@pytest.fixture(scope="module")
def model():
  return _dense_model()


def _draw(sizes, seed=0):
  draw = np.random.default_rng(seed)
  return {
    f"c{i}": (
      draw.normal(size=(n, 5)).astype(np.float32),
      draw.integers(0, 3, n).astype(np.int32),
    )
    for i, n in enumerate(sizes)
  }


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("clients"))
  return tff_algos.write_clients(folder, _draw(_SIZES), _SPEC)


@pytest.fixture
def few_are_enough(monkeypatch):
  for name in ("ON_CPU", "ON_GPU"):
    limits = getattr(blocks, name)._replace(fewest_clients=2)
    monkeypatch.setattr(blocks, name, limits)


@pytest.fixture
def plans(monkeypatch):
  """What `blocks.plan` gives in this test."""
  found, original = [], blocks.plan

  def plan(*args, **settings):
    found.append(original(*args, **settings))
    return found[-1]

  monkeypatch.setattr(blocks, "plan", plan)
  return found


def _run(process, clients, monkeypatch, *, in_blocks: bool, num_threads=2):
  fewest = 2 if in_blocks else 10**9
  monkeypatch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(fewest_clients=fewest))
  return rounds_of.run(process, clients, num_threads=num_threads)


_OPTIONS = dict(scaffold=dict(option="I", momentum=0.5))


@pytest.fixture(scope="module")
def process_of(model):
  """`(name) -> process`; each is built, and vectorised, once."""

  @functools.cache
  def build(name):
    if name == "clipping":  # TFF's, by norms.
      return tff_algos.build_fed_avg(
        model, model_aggregator=table.make("clipping", clients_per_round=7)
      )
    row = registry.get(name)
    options = dict(batch_size=3, learning_rate=0.1, **_OPTIONS.get(name, {}))
    known = row.hparams_class.__dataclass_fields__
    hparams = row.hparams_class(**{k: v for k, v in options.items() if k in known})
    return row.build(model, hparams, num_clients=7, num_examples=sum(_SIZES))

  return build


@pytest.fixture(scope="module")
def in_blocks(process_of, clients):
  """`(name) -> (states, plans)` of a run in blocks; each algorithm is run once."""

  @functools.cache
  def run(name):
    plans, original = [], blocks.plan

    def plan(*args, **settings):
      plans.append(original(*args, **settings))
      return plans[-1]

    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(blocks, "plan", plan)
      return _run(process_of(name), clients, patch, in_blocks=True), plans

  return run


# Those whose clients do different things: memories, states and another gradient, carries,
# loops in loops, these with noise. FedAvg's own are below.
_BY_NAME = ("twafl", "scaffold", "fedgg", "fedcurv", "fedavg_dpsgd")


@pytest.mark.parametrize(
  "name",
  ["clipping", *(pytest.param(name, marks=_THOROUGH) for name in _BY_NAME)],
)
def test_equals_one_client_after_another(
  name, in_blocks, process_of, clients, monkeypatch
):
  states, plans = in_blocks(name)
  assert any(plans)
  rounds_of.assert_close(
    states, _run(process_of(name), clients, monkeypatch, in_blocks=False)
  )


@_THOROUGH
def test_bounds_of_blocks_change_nothing(in_blocks, process_of, clients, monkeypatch):
  process = process_of("scaffold")
  expected, _ = in_blocks("scaffold")
  monkeypatch.setattr(blocks, "MOST_CLIENTS", 3)
  states = _run(process, clients, monkeypatch, in_blocks=True)
  rounds_of.assert_close(states, expected)
  one_thread = _run(process, clients, monkeypatch, in_blocks=True, num_threads=1)
  for value, other in zip(tf.nest.flatten(states), tf.nest.flatten(one_thread)):
    np.testing.assert_array_equal(value, other)


def test_drops_only_the_client_that_is_not_finite(process_of, monkeypatch, tmp_path):
  data = _draw(_SIZES)
  clients = tff_algos.write_clients(str(tmp_path), data, _SPEC)
  x, _ = data["c2"]
  spoilt = x.copy()
  spoilt[1, 1] = np.nan
  path = pathlib.Path(clients.path("c2"))
  path.write_bytes(path.read_bytes().replace(x.tobytes(), spoilt.tobytes()))
  process = process_of("fedavg")
  states = _run(process, clients, monkeypatch, in_blocks=True)
  rounds_of.assert_close(states, _run(process, clients, monkeypatch, in_blocks=False))
  assert states[0][2]["client_work"]["train"]["num_dropped"] == 1


# --- The rule --------------------------------------------------------------------------


def _work_of(process, num_clients: int, *, on_gpu: bool = False):
  plan = execution.Plan(process.next)
  [level] = [level for level in plan.levels if level.at_clients]
  return level.work_of(num_clients, on_gpu=on_gpu)


@pytest.fixture(scope="module")
def fed_avg(process_of):
  return process_of("fedavg")


def test_rule_takes_small_dense_models_and_many_clients(fed_avg):
  assert isinstance(_work_of(fed_avg, blocks.ON_CPU.fewest_clients), blocks.Blocks)
  assert isinstance(_work_of(fed_avg, blocks.ON_CPU.fewest_clients - 1), planning.Step)


def test_rule_leaves_out_large_models(fed_avg, model, monkeypatch):
  # The weights and the two tunable numbers that are sent with them.
  limits = blocks.ON_CPU._replace(most_bytes=4 * model.num_weights)
  monkeypatch.setattr(blocks, "ON_CPU", limits)
  assert isinstance(_work_of(fed_avg, 100), planning.Step)


def test_rule_leaves_out_convolutions():
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([8, 8, 1], tf.uint8), tf.TensorSpec([], tf.int32)
  )
  model = tff_algos.from_keras(cnn.digits((8, 8, 1), 10), spec)
  assert 4 * model.num_weights < blocks.ON_CPU.most_bytes
  assert isinstance(_work_of(tff_algos.build_fed_avg(model), 100), planning.Step)


# --- Other computations than ours ------------------------------------------------------


def _sum_of_ranges(zero, accumulate, report=lambda total: total):
  """Accumulates sum(range(n)) of each client's n."""
  count = tff.tensorflow.computation(lambda n: tf.range(n), np.int32)
  total = tff.tensorflow.computation(
    lambda values: tf.reduce_sum(values), tff.TensorType(np.int32, [None])
  )
  pair = (np.int32, np.int32)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_aggregate(
      tff.federated_map(total, tff.federated_map(count, numbers)),
      np.int32(zero),
      tff.tensorflow.computation(accumulate, pair),
      tff.tensorflow.computation(lambda a, b: a + b, pair),
      tff.tensorflow.computation(report, np.int32),
    )

  return compute


@pytest.mark.parametrize(
  "accumulate, expected",
  [
    (lambda total, value: total + value, 5 + 45 + 1 + 1 + 6),
    (lambda total, value: tf.maximum(total, value), 45),
    (lambda total, value: value, 6),
    (lambda total, value: total, 5),
    (lambda total, value: total + value + 1, 5 + 45 + 1 + 1 + 6 + 4),
    (lambda total, value: 2 * total + value, 80 + 360 + 4 + 2 + 6),
  ],
)
def test_accumulates_in_the_order_of_the_clients(
  accumulate, expected, few_are_enough, monkeypatch
):
  monkeypatch.setattr(blocks, "MOST_CLIENTS", 3)
  computation = _sum_of_ranges(5, accumulate)
  with tff_algos.create_runtime(clients_per_part=4):
    assert computation([10, 2, 2, 4]) == expected


def test_returns_client_values_in_their_order(few_are_enough):
  draw = tff.tensorflow.computation(lambda n: tf.range(n) + n, np.int32)
  last = tff.tensorflow.computation(
    lambda values: (values[-1], tf.cast(values[:2], tf.float32) / 2),
    tff.TensorType(np.int32, [None]),
  )

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(last, tff.federated_map(draw, numbers))

  numbers = [5, 3, 5, 2, 3]
  with tff_algos.create_runtime():
    found = compute(numbers)
  assert [int(pair[0]) for pair in found] == [2 * n - 1 for n in numbers]
  np.testing.assert_allclose(
    [pair[1] for pair in found], [[n / 2, (n + 1) / 2] for n in numbers]
  )


def test_results_of_unknown_shapes_are_left_to_one_client_after_another(few_are_enough):
  draw = tff.tensorflow.computation(lambda n: tf.range(n), np.int32)
  outer = tff.tensorflow.computation(
    lambda values: tf.stack([values, 2 * values]), tff.TensorType(np.int32, [None])
  )

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(outer, tff.federated_map(draw, numbers))

  with tff_algos.create_runtime():
    found = compute([1, 3, 2])
  for n, value in zip([1, 3, 2], found):
    np.testing.assert_array_equal(value, [np.arange(n), 2 * np.arange(n)])


def test_what_has_two_unknown_sizes_is_left_to_one_client_after_another(
  few_are_enough, plans
):
  """The lengths that are read, by which clients are batched, are of the first alone."""
  draw = tff.tensorflow.computation(lambda n: tf.fill([n, n + 1], n), np.int32)
  total = tff.tensorflow.computation(
    lambda values: tf.reduce_sum(values), tff.TensorType(np.int32, [None, None])
  )

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(total, tff.federated_map(draw, numbers))

  with tff_algos.create_runtime():
    found = compute([1, 3, 3, 2])
  assert plans == [None] and found == [n * n * (n + 1) for n in [1, 3, 3, 2]]


def test_sizes_inside_the_work_may_depend_on_values(few_are_enough, monkeypatch):
  """Which a batch cannot have: each client is worked on alone, found out anew."""
  sizes, original = [], blocks.Blocks._run

  def run(self, shared, own):
    sizes.append(len(next(leaf for leaves in own.values() for leaf in leaves)))
    return original(self, shared, own)

  monkeypatch.setattr(blocks.Blocks, "_run", run)
  draw = tff.tensorflow.computation(
    lambda n: tf.fill([tf.maximum(n - n + 3, 3)], n), np.int32
  )
  total = tff.tensorflow.computation(
    lambda values: tf.reduce_sum(tf.range(values[0])), tff.TensorType(np.int32, [None])
  )

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(total, tff.federated_map(draw, numbers))

  with tff_algos.create_runtime():
    assert compute([5, 3, 1, 4, 3]) == [10, 3, 0, 6, 3]
    assert sizes[0] > 1 and sizes.count(1) == 5
    first = sizes.copy()
    sizes.clear()
    assert compute([5, 3, 1, 4, 3]) == [10, 3, 0, 6, 3]
    assert sorted(sizes) == sorted(first)


def _map_twice(work):
  """A computation of clients' numbers: `work`, of three or more equal ones."""
  draw = tff.tensorflow.computation(
    lambda n: tf.fill([tf.maximum(n - n + 3, 3)], tf.cast(n, tf.float32)), np.int32
  )
  work = tff.tensorflow.computation(work, tff.TensorType(np.float32, [None]))

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(work, tff.federated_map(draw, numbers))

  return compute


def test_client_whose_vectorised_form_fails_is_done_without(few_are_enough):
  """TensorFlow runs a choice within a choice over nobody too, where a slice fails."""

  def work(values):
    row = tf.reshape(values[:3], [3])

    def choose():
      place = tf.cast(row[:1], tf.int32)
      return tf.cond(row[0] > 9, lambda: row * tf.slice(row, place, [1]), lambda: row)

    return tf.cond(row[0] > 0, choose, lambda: row - 1)

  with tff_algos.create_runtime():
    found = _map_twice(work)([3, -1, 5, 0, 2])
  np.testing.assert_array_equal(found, [[3] * 3, [-2] * 3, [5] * 3, [-1] * 3, [2] * 3])


def test_what_no_vectorised_form_takes_is_left_to_one_client_after_another(
  few_are_enough, plans
):
  def work(values):  # A size of 64 bits, which TensorFlow's form of Fill joins with 32.
    return tf.fill(tf.constant([2], tf.int64), values[0])

  with tff_algos.create_runtime():
    found = _map_twice(work)([1, 3, 2])
  np.testing.assert_array_equal(found, [[1, 1], [3, 3], [2, 2]])
  assert plans == [None]


def _examples(lists):
  """Each as the text of a `tf.train.Example`."""
  values = (tf.train.Int64List(value=v) for v in lists)
  features = (
    tf.train.Features(feature={"t": tf.train.Feature(int64_list=v)}) for v in values
  )
  return [tf.train.Example(features=f).SerializeToString() for f in features]


def _gradient_of_segments(values):
  """Of a fixed graph whose last segments are empty."""
  x = values[0] * tf.constant([[1.0], [2.0], [3.0], [4.0], [5.0]])
  with tf.GradientTape() as tape:
    tape.watch(x)
    means = tf.sparse.segment_mean(x, [4, 0, 1, 1], [0, 0, 1, 3], num_segments=6)
    total = tf.reduce_sum(tf.square(means))
  return tf.convert_to_tensor(tape.gradient(total, x))


def test_operations_whose_vectorised_form_mixes_clients_are_not_in_blocks(
  few_are_enough, plans
):
  lists = [[300], [1, 2], [5], [7, 9]]
  fixed = {"t": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
  varying = {"t": tf.io.VarLenFeature(tf.int64)}

  def parsed(text):
    one = tf.io.parse_single_example(text, fixed)["t"]
    other = tf.io.parse_single_example(text, varying)["t"].values
    return tf.stack(
      [tf.reduce_sum(one) // tf.size(one, tf.int64), tf.size(other, "int64")]
    )

  def missing(text):
    del text
    return tf.io.decode_csv("NA", [["none"]], na_value="NA")[0]

  for work, given, expected in (
    (parsed, _examples(lists), [[300, 1], [1, 2], [5, 1], [8, 2]]),
    (lambda text: tf.strings.format("<{}>", text), [b"a", b"b"], [b'<"a">', b'<"b">']),
    (missing, [b"a", b"b"], [b"none", b"none"]),
  ):
    compute = _after_another(work, tff.TensorType(np.str_))
    with tff_algos.create_runtime():
      np.testing.assert_array_equal(compute(given), expected)
  assert plans and not any(plans)


def _after_another(work, kind):
  """A computation of clients' values: `work` of what another step gives, their own."""
  before = tff.tensorflow.computation(lambda value: tf.identity(value), kind)
  after = tff.tensorflow.computation(work, kind)

  @tff.federated_computation(tff.FederatedType(kind, tff.CLIENTS))
  def compute(values):
    return tff.federated_map(after, tff.federated_map(before, values))

  return compute


def test_segments_of_sparse_rows_are_each_clients_own(few_are_enough, plans):
  with tff_algos.create_runtime():
    found = _map_twice(_gradient_of_segments)([1, 1, 2])
  # Means of (5, 1), of 2 and of 2: the derivatives of the sum of their squares.
  expected = np.float32([3, 8, 0, 0, 3])[:, None]
  np.testing.assert_allclose(found, [expected, expected, 2 * expected], rtol=1e-6)
  assert plans == [None]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_large_draws_are_looped_over_clients_on_a_cpu_alone(on_gpu):
  plan = execution.Plan(
    _map_twice(
      lambda values: tf.random.stateless_uniform([1000], tf.cast(values[:2], tf.int32))
    )
  )
  [level] = [level for level in plan.levels if level.at_clients]
  work = level.work_of(100, on_gpu=on_gpu)
  assert isinstance(work, blocks.Blocks)
  graph = work._do_work.trace().graph
  needed = tf.compat.v1.graph_util.extract_sub_graph(
    graph.as_graph_def(), [tensor.op.name for tensor in graph.outputs]
  )
  # Whether there are many is asked where the graph is made for either case.
  assert any("If" in node.op for node in needed.node) is not on_gpu


@pytest.mark.parametrize("num_clients, clients_per_part", [(100, 50), (8, 8)])
def test_sums_do_not_depend_on_how_many_could_be_a_block(
  few_are_enough, monkeypatch, num_clients, clients_per_part
):
  """In the first round blocks come down to one client; the second begins with one."""
  original, tried = blocks.Blocks._run, []

  def run(self, shared, own):
    tried.append(len(next(leaf for leaves in own.values() for leaf in leaves)))
    if tried[-1] > 1:
      raise tf.errors.ResourceExhaustedError(None, None, "no more memory")
    return original(self, shared, own)

  monkeypatch.setattr(blocks.Blocks, "_run", run)
  draw = tff.tensorflow.computation(
    lambda n: tf.fill([tf.cast(tf.maximum(n - n + 3, 3), tf.int32)], n), np.float32
  )
  same = tff.tensorflow.computation(
    lambda v: tf.reduce_max(tf.fill([1 + tf.cast(v[0], tf.int32) % 7], v[0])),
    tff.TensorType(np.float32, [None]),
  )

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_sum(tff.federated_map(same, tff.federated_map(draw, numbers)))

  numbers = [np.float32(n) for n in np.random.default_rng(0).lognormal(0, 3, num_clients)]
  # So many that the first block of a part, and so a part's sum, holds several clients.
  with tff_algos.create_runtime(clients_per_part=clients_per_part, num_threads=1):
    first, sizes_at_first = compute(numbers), set(tried)
    tried.clear()
    second = compute(numbers)
  np.testing.assert_array_equal(first, second)
  assert {1} == set(tried) < sizes_at_first


def test_what_was_in_a_block_before_does_not_matter_to_it(few_are_enough):
  """Exponentials are rounded by how many there are at once."""
  draw = tff.tensorflow.computation(
    lambda n: tf.fill([tf.cast(tf.maximum(n - n + 11, 11), tf.int32)], n), np.float32
  )

  def exponentials(values):
    size = tf.where(values[0] > 100, 3, 2)  # Which the others of a block must have too.
    return tf.exp(tf.sin(values * tf.range(11.0))) + tf.reduce_sum(tf.zeros([size]))

  work = tff.tensorflow.computation(exponentials, tff.TensorType(np.float32, [None]))

  def made():
    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def compute(numbers):
      return tff.federated_map(work, tff.federated_map(draw, numbers))

    return compute

  numbers = [np.float32(n) for n in np.random.default_rng(0).normal(size=17)]
  with tff_algos.create_runtime():
    compute = made()
    before = compute([np.float32(200), *numbers[1:]])
    np.testing.assert_array_equal(compute(numbers), made()(numbers))
    assert any(np.any(x != y) for x, y in zip(before[1:], compute(numbers)[1:]))


def test_strings_keep_their_last_zeros(few_are_enough):
  same = tff.tensorflow.computation(lambda s: tf.identity(s), np.str_)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def compute(strings):
    return tff.federated_map(same, strings)

  strings = [b"ab\0\0", b"cd\0\0", b"\0\0\0\0"]
  with tff_algos.create_runtime():
    assert list(compute(strings)) == strings


def test_a_reading_may_depend_on_what_was_broadcast(few_are_enough):
  draw = tff.tensorflow.computation(lambda n, m: tf.range(n) + m, (np.int32, np.int32))
  total = tff.tensorflow.computation(
    lambda values: tf.reduce_sum(values), tff.TensorType(np.int32, [None])
  )
  at_server = tff.FederatedType(np.int32, tff.SERVER)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS), at_server)
  def compute(numbers, sent):
    sent = tff.federated_broadcast(sent)
    own = tff.federated_map(total, tff.federated_map(draw, (numbers, sent)))
    same = tff.federated_map(total, tff.federated_map(draw, (sent, sent)))
    return own, same

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS), at_server)
  def compute_the_same(numbers, sent):
    sent = tff.federated_broadcast(sent)
    return tff.federated_map(total, tff.federated_map(draw, (sent, sent))), numbers

  with tff_algos.create_runtime():
    own, same = compute([1, 3, 2], 10)
    assert own == [10, 33, 21] and same == [145] * 3
    # Nothing differs from client to client.
    assert compute_the_same([1, 3, 2], 10) == ([145] * 3, [1, 3, 2])


def _byte_sum(text):
  return tf.reduce_sum(tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32))


def test_contents_of_different_lengths_are_decoded(few_are_enough, plans):
  """Those that were read, and strings that were given, of which each batch has one."""
  load = tff.tensorflow.computation(
    lambda n: tf.strings.reduce_join(tf.fill([n], "ab")), np.int32
  )
  total = tff.tensorflow.computation(
    lambda text, name: _byte_sum(text) + 1000 * _byte_sum(name), (np.str_, np.str_)
  )

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(np.str_, tff.CLIENTS)
  )
  def compute(numbers, names):
    return tff.federated_map(total, (tff.federated_map(load, numbers), names))

  numbers, names = [3, 1, 3, 3, 20], ["x", "yy", "yy", "z", "x"]
  with tff_algos.create_runtime():
    found = compute(numbers, names)
  assert all(plans) and len(plans) == 1
  assert found == [
    n * sum(b"ab") + 1000 * sum(name.encode()) for n, name in zip(numbers, names)
  ]


@pytest.mark.parametrize(
  "wrong, words",
  [
    (np.ones(3, np.float32), r"float32\[2\]; found one of shape \(3,\)"),
    (np.full(2, 1e300), r"float32\[2\]; found 1e\+300, which is no float32"),
  ],
)
def test_refuses_what_a_type_does_not_hold(few_are_enough, plans, wrong, words):
  """Also where all clients' values could be stacked as they are."""
  pair = tff.TensorType(np.float32, [2])
  draw = tff.tensorflow.computation(lambda n: tf.range(n), np.int32)
  total = tff.tensorflow.computation(
    lambda values, own: tf.reduce_sum(tf.cast(values, tf.float32)) * tf.reduce_sum(own),
    (tff.TensorType(np.int32, [None]), pair),
  )

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(pair, tff.CLIENTS)
  )
  def compute(numbers, own):
    return tff.federated_map(total, (tff.federated_map(draw, numbers), own))

  numbers, right = [2, 3, 2], np.array([1.0, 2.0], np.float32)
  with tff_algos.create_runtime():
    found = compute(numbers, [right] * 3)
    # Past TFF's own checks of arguments.
    with pytest.raises(TypeError, match=f"Expected a value of type {words}"):
      private_apis.default_context().invoke(
        compute, tff.structure.Struct.unnamed(numbers, [wrong] * 3)
      )
  assert all(plans) and len(plans) == 1
  assert found == [3.0, 9.0, 3.0]


def test_refuses_files_of_another_model(process_of, monkeypatch, tmp_path):
  spec = _SPEC._replace(x=tf.TensorSpec([6], tf.float32))
  data = {c: (np.zeros((3, 6)), np.zeros(3, np.int32)) for c in "abcdefg"}
  clients = tff_algos.write_clients(str(tmp_path), data, spec)
  with pytest.raises(tf.errors.InvalidArgumentError, match="Not a client file of this"):
    _run(process_of("scaffold"), clients, monkeypatch, in_blocks=True)


# --- What TensorFlow cannot vectorise by itself ----------------------------------------


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 5)])
def test_vectorised_l2_loss(shape):
  values = tf.random.stateless_normal(shape, [1, 2])
  found = tf.function(lambda v: tf.vectorized_map(tf.nn.l2_loss, v))(values)
  expected = np.sum(np.reshape(values, (3, -1)).astype(np.float64) ** 2, axis=1) / 2
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_a_client_keeps_is_no_view_of_its_block(monkeypatch):
  """A state that stays would else keep those of a hundred others in memory."""
  limits = blocks.ON_CPU._replace(fewest_clients=2)
  monkeypatch.setattr(blocks, "ON_CPU", limits)
  draw = tff.tensorflow.computation(lambda n: tf.range(n) + n, np.int32)
  ends = tff.tensorflow.computation(
    lambda v: tf.stack([v[0], v[-1]]), tff.TensorType(np.int32, [None])
  )

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def compute(numbers):
    return tff.federated_map(ends, tff.federated_map(draw, numbers))

  kept, run = [], in_process.InProcessContext._run_cohort

  def note(self, plan, cohort):
    assert isinstance(cohort.work, blocks.Blocks)
    for part in run(self, plan, cohort):
      kept.extend(v for each in part.kept.values() for leaves in each for v in leaves)
      yield part

  monkeypatch.setattr(in_process.InProcessContext, "_run_cohort", note)
  with tff_algos.create_runtime():
    compute([5, 5, 3])
  assert len(kept) == 3 and all(v.base is None for v in kept)
