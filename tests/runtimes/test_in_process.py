"""The interpreter on small computations whose results are worked out by hand."""

from __future__ import annotations

import collections
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent import futures

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client_data, errors
from tff_algos.runtimes import (
  accumulation,
  execution,
  in_process,
  planned_context,
  planning,
  private_apis,
  runtime,
  tracing,
  values,
)

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)


@pytest.fixture(scope="module", autouse=True)
def installed():
  with runtime.create_runtime("in_process", num_threads=2) as running:
    yield running


def test_sums_a_client_argument_directly():
  @tff.federated_computation(_INTS)
  def total(x):
    return tff.federated_sum(x)

  assert total([1, 2, 39]) == 42


def test_a_sum_is_over_all_clients_of_each_part():
  """Of 9 and of 6 clients: in fours, and those that are left one by one."""
  double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

  @tff.federated_computation(_INTS)
  def total(x):
    return tff.federated_sum(tff.federated_map(double, x)), tff.federated_sum(x)

  powers = [2**i for i in range(15)]
  with runtime.create_runtime("in_process", clients_per_part=9):
    assert total(powers) == (2**16 - 2, 2**15 - 1)


def test_a_sum_over_no_clients_is_zero():
  @tff.federated_computation(_INTS)
  def total(x):
    return tff.federated_sum(x)

  assert total([]) == 0


def test_weighs_a_mean():
  @tff.federated_computation(_FLOATS, _FLOATS)
  def mean(x, weight):
    return tff.federated_mean(x, weight)

  assert mean([1.0, 5.0], [3.0, 1.0]) == pytest.approx(2.0)


def test_a_broadcast_of_an_aggregate_starts_a_second_exchange():
  @tff.tensorflow.computation(np.float32, np.float32)
  def squared_distance(x, mean):
    return (x - mean) ** 2

  @tff.federated_computation(_FLOATS)
  def variance(x):
    mean = tff.federated_broadcast(tff.federated_mean(x))
    return tff.federated_mean(tff.federated_map(squared_distance, (x, mean)))

  assert variance([1.0, 3.0, 5.0]) == pytest.approx(8 / 3)


def _tenfold_total():
  """Ten times the sum, by the `report` of an aggregation."""
  pair = (np.int32, np.int32)
  add = tff.tensorflow.computation(lambda x, y: x + y, pair)
  tenfold = tff.tensorflow.computation(lambda x: 10 * x, np.int32)
  return lambda values: tff.federated_aggregate(values, 0, add, add, tenfold)


def test_every_use_of_an_aggregate_gets_what_was_reported():
  tenfold_total = _tenfold_total()

  @tff.federated_computation(_INTS)
  def compute(x):
    total = tenfold_total(x)
    sent = tff.federated_broadcast(total)
    return total, sent, tff.federated_sum(sent), tenfold_total(sent), {"again": total}

  total, sent, summed, again, named = compute([1, 2, 3])
  assert (total, sent, summed, again) == (60, 60, 180, 1800)
  assert named == {"again": 60}


def test_results_may_be_empty_or_nowhere():
  double = tff.tensorflow.computation(lambda x: 2 * x, np.int32)

  @tff.federated_computation(_INTS)
  def compute(x):
    return tff.federated_sum(x), (), {"a": double(4), "b": ((), ())}

  assert compute([1, 2]) == (3, (), {"a": 8, "b": ((), ())})


def test_what_is_equal_for_all_clients_is_one_value():
  @tff.tensorflow.computation(np.int32, np.int32)
  def add(x, y):
    return x + y

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS, True), _INTS)
  def compute(same, own):
    constant = tff.federated_value(7, tff.CLIENTS)
    return (
      same,
      constant,
      tff.federated_sum(tff.federated_map(add, (same, own))),
    )

  assert compute(5, [1, 2]) == (5, 7, 13)
  assert compute(5, []) == (5, 7, 0)


def test_a_map_of_what_is_equal_for_all_clients_is_one_value():
  same = tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True)
  double = tff.tensorflow.computation(lambda x: 2 * x, np.int32).to_building_block()
  # Only compilers make this operator.
  signature = tff.FunctionType([double.type_signature, same], same)
  operator = tff.framework.Intrinsic("federated_map_all_equal", signature)
  argument = tff.framework.Reference("x", same)
  call = tff.framework.Call(operator, tff.framework.Struct([double, argument]))
  block = tff.framework.Lambda("x", same, call)
  assert tff.framework.ConcreteComputation.from_building_block(block)(4) == 8


def test_a_value_that_is_drawn_is_the_same_for_all_clients():
  draw = tff.tensorflow.computation(lambda: tf.random.uniform([]))
  keep = tff.tensorflow.computation(lambda x: x, np.float32)

  @tff.federated_computation(_INTS)
  def compute(x):
    drawn = tff.federated_value(draw(), tff.CLIENTS)
    return tff.federated_map(keep, drawn), x, drawn

  each, _, drawn = compute([1, 2, 3])
  assert each == [drawn] * 3


_DRAW = tff.tensorflow.computation(lambda: tf.random.uniform([], 0, 2**30, tf.int32))
_KEEP = tff.tensorflow.computation(lambda x: x, np.int32)
_ADD = tff.tensorflow.computation(lambda x, y: x + y, np.int32, np.int32)


def _drawn_once(x):
  return x, tff.federated_value(_DRAW(), tff.SERVER)


def _drawn_by_each_client(x):
  del x
  drawn = tff.federated_eval(_DRAW, tff.CLIENTS)
  return drawn, tff.federated_map(_KEEP, drawn)


def _at_server_and_clients(x):
  drawn = _DRAW()
  return (
    x,
    tff.federated_value(drawn, tff.SERVER),
    tff.federated_value(drawn, tff.CLIENTS),
  )


def _in_what_is_made_of_it(x):
  drawn = _DRAW()
  return x, tff.federated_value(_KEEP(drawn), tff.SERVER), _KEEP(drawn)


def _by_the_clients_function(x):
  drawn = _DRAW()
  add = tff.federated_computation(lambda v: _ADD(v, drawn), np.int32)
  return tff.federated_map(add, x)


@pytest.mark.parametrize("compute", [_drawn_once, _drawn_by_each_client])
def test_draws_that_are_used_where_they_are_made_run(compute):
  result = tff.federated_computation(compute, _INTS)([1, 2, 3])
  if compute is _drawn_by_each_client:
    assert result[0] == result[1] and len(set(result[0])) == 3


@pytest.mark.parametrize(
  "compute", [_at_server_and_clients, _in_what_is_made_of_it, _by_the_clients_function]
)
def test_a_draw_that_would_be_made_again_for_each_use_is_refused(compute):
  """In TFF's own runtime all uses have the same value."""
  comp = tff.federated_computation(compute, _INTS)
  with pytest.raises(errors.UnsupportedComputationError, match="draw it by"):
    comp([1, 2, 3])


def _aggregate_of(types, function) -> planning.Node:
  """An aggregate of values that are accumulated by a function, without a wrapper."""
  accumulate = tff.tensorflow.computation(function, types).to_building_block()
  total, value = accumulate.type_signature.parameter
  clients = planning.Node("argument", tff.FederatedType(value, tff.CLIENTS))
  detail = None, tracing.Lazy(accumulate, {})
  server = tff.FederatedType(total, tff.SERVER)
  return planning.Node("aggregate", server, [clients], detail)


_PAIR = (np.int32, np.int32)
_PAIRS = (_PAIR, _PAIR)


@pytest.mark.parametrize(
  "types, accumulate, is_sum",
  [
    (_PAIR, lambda x, y: x + y, True),
    (_PAIR, lambda x, y: tf.identity(y) + tf.identity(x), True),
    (_PAIR, tf.function(lambda x, y: x + y), True),
    (_PAIR, tf.function(lambda x, y: tf.function(lambda z: z + y)(x)), True),
    (_PAIRS, lambda x, y: (x[0] + y[0], x[1] + y[1]), True),
    (_PAIRS, tf.function(lambda x, y: (y[0] + x[0], x[1] + y[1])), True),
    (_PAIRS, lambda x, y: (x[0] + y[1], x[1] + y[0]), False),
    (_PAIRS, tf.function(lambda x, y: (x[1] + y[1], x[0] + y[0])), False),
    (_PAIRS, lambda x, y: (x[0] + y[0], x[1] + y[1] + y[0]), False),
    (_PAIR, lambda x, y: x + x, False),
    (_PAIR, lambda x, y: y + y, False),
    (_PAIR, lambda x, y: x + y + 1, False),
    (_PAIR, lambda x, y: x - y, False),
    (_PAIR, lambda x, y: tf.identity(x), False),
    ((np.str_, np.str_), lambda x, y: x + y, False),
    ((tff.TensorType(np.int32, [2]), np.int32), lambda x, y: x + y, False),
  ],
)
def test_knows_what_is_a_sum(types, accumulate, is_sum):
  assert accumulation._is_sum(_aggregate_of(types, accumulate)) == is_sum


def test_client_values_are_kept_from_one_exchange_to_the_next():
  @tff.tensorflow.computation(np.float32)
  def double(x):
    return 2 * x

  @tff.tensorflow.computation(np.float32, np.float32)
  def subtract(x, y):
    return x - y

  @tff.federated_computation(_FLOATS)
  def centred_doubles(x):
    doubles = tff.federated_map(double, x)
    mean = tff.federated_broadcast(tff.federated_mean(doubles))
    return tff.federated_map(subtract, (doubles, mean)), x

  centred, same = centred_doubles([1.0, 2.0, 6.0])
  assert [float(v) for v in centred] == [-4.0, -2.0, 6.0]
  assert [float(v) for v in same] == [1.0, 2.0, 6.0]


def test_what_a_client_draws_is_the_same_after_an_exchange():
  """Though it has no seed: it is kept, and not made again where it is used again."""

  @tff.tensorflow.computation(np.float32)
  def add_noise(x):
    return x + tf.random.uniform([])

  @tff.tensorflow.computation(np.float32, np.float32)
  def first(x, y):
    del y
    return x

  @tff.federated_computation(_FLOATS)
  def compute(x):
    drawn = tff.federated_map(add_noise, x)
    total = tff.federated_sum(drawn)
    again = tff.federated_map(first, (drawn, tff.federated_broadcast(total)))
    return total, tff.federated_sum(again)

  total, again = compute([1.0, 2.0, 6.0])
  assert total == again > 9


def test_returns_client_values_in_the_order_of_the_clients():
  @tff.tensorflow.computation(np.int32)
  def slow_if_small(x):
    # The first clients take longest, so their results come in last.
    steps = 200_000 // (x + 1)
    spent = tf.while_loop(lambda i: i < steps, lambda i: [i + 1], [tf.constant(0)])[0]
    return x + 0 * spent

  @tff.federated_computation(_INTS)
  def each(x):
    return tff.federated_map(slow_if_small, x)

  assert [int(v) for v in each(list(range(20)))] == list(range(20))


def test_returns_a_broadcast_value_once():
  @tff.federated_computation(_SERVER_FLOAT)
  def send(x):
    return tff.federated_broadcast(x)

  assert send(3.5) == 3.5


def test_takes_and_returns_nested_structures_in_their_containers():
  Point = collections.namedtuple("Point", ["x", "y"])
  inner = collections.OrderedDict(b=Point(np.int32, np.float32), a=(np.int32, [2]))

  @tff.tensorflow.computation(inner)
  def swap(value):
    return collections.OrderedDict(a=value["b"], b=(value["a"], value["b"].x))

  result = swap(collections.OrderedDict(b=Point(1, 2.5), a=np.array([3, 4], np.int32)))
  assert isinstance(result["a"], Point)
  assert (result["a"].x, result["a"].y) == (1, 2.5)
  np.testing.assert_array_equal(result["b"][0], [3, 4])
  assert result["b"][1] == 1


def test_matches_a_dictionary_by_name_not_by_order():
  @tff.tensorflow.computation(collections.OrderedDict(a=np.int32, b=np.int32))
  def minus(value):
    return value["a"] - value["b"]

  assert minus(collections.OrderedDict(a=5, b=3)) == 2
  assert minus({"b": 3, "a": 5}) == 2


def test_passes_strings_and_data_sets():
  @tff.tensorflow.computation(np.str_)
  def count_up(text):
    return tf.data.Dataset.range(tf.strings.to_number(text, tf.int64))

  @tff.tensorflow.computation(count_up.type_signature.result)
  def add_up(numbers):
    return numbers.reduce(np.int64(0), lambda total, x: total + x)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def total(texts):
    return tff.federated_sum(
      tff.federated_map(add_up, tff.federated_map(count_up, texts))
    )

  assert total(["3", "5"]) == 3 + 10
  assert add_up(tf.data.Dataset.range(4)) == 6


def _through_two_of_the_same_names(make, rename):
  """The sum over two clients of 0 through `make(1)` and `make(100)`, renamed alike."""

  def renamed(constant):
    proto = tff.framework.serialize_computation(make(constant))
    text = proto.tensorflow.graph_def.value
    graph_def = tf.compat.v1.GraphDef.FromString(text)
    rename(graph_def)
    proto.tensorflow.graph_def.Pack(graph_def)
    return tff.framework.deserialize_computation(proto)

  one, hundred = renamed(1), renamed(100)

  @tff.federated_computation(_INTS)
  def both(x):
    return tff.federated_sum(tff.federated_map(hundred, tff.federated_map(one, x)))

  return both([0, 0])


def test_two_computations_may_use_one_function_name_for_two_functions():
  def make(constant):
    @tff.tensorflow.computation(np.int32)
    def apply(x):
      @tf.function
      def add(x):
        return x + constant

      return add(x)

    return apply

  def rename(graph_def):
    (function,) = graph_def.library.function
    old, new = function.signature.name, "the_same_name"
    function.signature.name = new
    for node in graph_def.node:
      if node.op == old:
        node.op = new
      if "f" in node.attr and node.attr["f"].func.name == old:
        node.attr["f"].func.name = new

  assert _through_two_of_the_same_names(make, rename) == 202


def test_two_computations_may_use_the_same_names_in_lists_of_functions():
  def make(constant):
    @tff.tensorflow.computation(np.int32)
    def apply(x):
      return tf.switch_case(x, [lambda: x + constant, lambda: x - constant])

    return apply

  def rename(graph_def):
    functions = {f.signature.name: f for f in graph_def.library.function}
    (case,) = (node for node in graph_def.node if "branches" in node.attr)
    for place, branch in enumerate(case.attr["branches"].list.func):
      functions[branch.name].signature.name = branch.name = f"the_same_name_{place}"

  assert _through_two_of_the_same_names(make, rename) == 2 * (1 - 100)


def test_plans_a_computation_once(monkeypatch):
  planned = []
  original = execution.Plan

  def count(*arguments):
    planned.append(arguments)
    return original(*arguments)

  monkeypatch.setattr(execution, "Plan", count)

  @tff.tensorflow.computation(np.int32)
  def add_one(x):
    return x + 1

  assert [add_one(i) for i in range(5)] == [1, 2, 3, 4, 5]
  assert len(planned) == 1


@pytest.mark.parametrize("size, is_kept", [(1, True), (1 << 20, False)])
def test_traces_that_hold_large_constants_go(size, is_kept):
  """Of what takes no argument, as a process's `initialize`; it can be run again."""

  @tff.federated_computation
  def made():
    zeros = tff.tensorflow.computation(lambda: tf.ones([size]))
    return tff.federated_eval(zeros, tff.SERVER)

  before = set(planned_context._PLANS)
  for _ in range(2):
    assert made().tolist() == [1.0] * size
  assert len(set(planned_context._PLANS) - before) == is_kept


@pytest.mark.skipif(
  len(os.sched_getaffinity(0)) < 2, reason="operations have one core each"
)
def test_works_on_several_clients_at_once():
  barrier = threading.Barrier(2, timeout=30)

  def meet(x):
    barrier.wait()
    return x

  @tff.tensorflow.computation(np.int32)
  def wait(x):
    return tf.ensure_shape(tf.numpy_function(meet, [x], tf.int32), [])

  @tff.federated_computation(_INTS)
  def total(x):
    return tff.federated_sum(tff.federated_map(wait, x))

  assert total([1, 2, 3, 4]) == 10


@pytest.mark.parametrize("num_clients", [5, 50])
def test_client_threads_find_what_they_call_traced(num_clients, monkeypatch):
  callers = []
  original = planning.Step.trace

  def watch(step, *flat):
    callers.append(threading.current_thread())
    return original(step, *flat)

  monkeypatch.setattr(planning.Step, "trace", watch)
  count = tff.tensorflow.computation(lambda n: tf.range(n), np.int32)
  total = tff.tensorflow.computation(
    lambda v: tf.reduce_sum(v), tff.TensorType(np.int32, [None])
  )

  @tff.federated_computation(_INTS)
  def compute(x):
    return tff.federated_map(total, tff.federated_map(count, x))

  assert compute([3] * num_clients) == [3] * num_clients
  assert set(callers) == {threading.current_thread()}


def test_what_several_threads_ask_for_at_once_is_traced_once():
  barrier = threading.Barrier(4, timeout=30)
  traces = []

  def trace(x):
    traces.append(x)
    time.sleep(0.1)
    return [x + 1]

  function = tracing.Function(trace, [tf.TensorSpec([], tf.int32)])

  def call(x):
    barrier.wait()
    return int(function(tf.constant(x))[0])

  with futures.ThreadPoolExecutor(4) as pool:
    assert list(pool.map(call, range(4))) == [1, 2, 3, 4]
  assert len(traces) == 1


def test_is_a_few_results_ahead_at_most():
  begun: list[int] = []
  context = in_process.InProcessContext(num_threads=1)
  results = context._in_order(
    lambda device, number: number, (begun.append(n) or n for n in range(100))
  )
  for number, result in enumerate(results):
    assert result == number
    assert len(begun) <= number + 4
  context.close()


def test_who_has_not_begun_when_a_round_ends_does_not_begin():
  """As after an error: of a thousand clients it would be long until that is said."""
  begun: list[int] = []
  is_ending = threading.Event()

  def work(device, number):
    begun.append(number)
    if number:  # It holds the only thread until the round ends.
      is_ending.wait(30)
    return number

  context = in_process.InProcessContext(num_threads=1)
  results = context._in_order(work, range(100))
  assert next(results) == 0
  threading.Timer(0.5, is_ending.set).start()
  results.close()  # Which waits for the one that has begun.
  assert 2 not in begun
  context.close()


@pytest.mark.parametrize(
  "device, num_devices, num_threads",
  [("CPU:0", 1, 8), ("CPU:1", 3, 2), ("CPU:0", 9, 1), ("GPU:1", 2, 1)],
)
def test_cores_are_shared_out_over_the_devices(
  monkeypatch, device, num_devices, num_threads
):
  """Of 8 cores; on a GPU it is one client at a time."""
  monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
  assert in_process._default_threads(device, num_devices) == num_threads


@pytest.mark.thorough
@pytest.mark.parametrize("own", [0, 3])
def test_operations_take_one_core_unless_it_is_said_otherwise(own):
  code = (
    "import tensorflow as tf\n"
    "from tff_algos.runtimes import in_process\n"
    "threads = tf.config.threading\n"
    f"threads.set_intra_op_parallelism_threads({own})\n"
    "in_process.prepare()\n"
    "print(threads.get_intra_op_parallelism_threads())\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
  )
  assert done.stdout == f"{own or 1}\n"


def test_an_error_of_one_client_ends_the_round():
  @tff.tensorflow.computation(np.int32)
  def refuse_three(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.not_equal(x, 3), ["three"])]):
      return tf.identity(x)

  @tff.federated_computation(_INTS)
  def total(x):
    return tff.federated_sum(tff.federated_map(refuse_three, x))

  with pytest.raises(tf.errors.InvalidArgumentError, match="three"):
    total([1, 2, 3, 4])
  assert total([1, 2]) == 3


def test_what_no_result_needs_is_not_run_as_in_tff(tmp_path):
  """An assertion, and a file that is written."""
  path = str(tmp_path / "file")

  @tff.tensorflow.computation(np.int32)
  def add_one(x):
    tf.debugging.assert_less(x, 3)
    tf.io.write_file(path, "x")
    return x + 1

  @tff.federated_computation(_INTS)
  def total(x):
    return tff.federated_sum(tff.federated_map(add_one, x))

  assert add_one(5) == 6 and total([5, 1]) == 8
  assert not os.path.exists(path)


def test_operation_beside_one_that_no_result_needs():
  @tff.tensorflow.computation(np.int32, np.int32)
  def first(x, y):
    with tf.compat.v1.colocate_with(y + 1):
      return tf.identity(x)

  assert first(5, 6) == 5


def test_refuses_variables_with_the_way_out():
  @tff.tensorflow.computation(np.int32)
  def count(x):
    counter = tf.Variable(0)
    with tf.control_dependencies([counter.assign_add(x)]):
      return counter.read_value()

  with pytest.raises(errors.UnsupportedComputationError, match="local_worker"):
    count(1)


def test_secure_sums_are_the_sums_that_they_are():
  @tff.federated_computation(_INTS)
  def secure(x):
    nothing = tff.federated_value((), tff.CLIENTS)
    return (
      tff.federated_secure_sum_bitwidth(x, 3),
      tff.federated_secure_sum(x, 6),
      tff.backends.mapreduce.federated_secure_modular_sum(x, 8),
      tff.federated_secure_sum_bitwidth(nothing, ()),
    )

  assert list(secure([5, 6])) == [11, 11, 11 % 8, ()]
  with pytest.raises(tf.errors.InvalidArgumentError, match="larger than maximum"):
    secure([5, 7])  # Of 3 bits, but more than 6.


@pytest.mark.parametrize(
  "wrong",
  [
    tff.structure.Struct.unnamed(1, 2),
    tff.structure.Struct.named(a=1, b=2),
    {"a": 1, "b": 2},
    collections.namedtuple("Pair", ["a", "b"])(1, 2),
    7,
    "12",
  ],
)
def test_refuses_what_is_no_list_of_clients(wrong):
  @tff.federated_computation(_INTS, tff.FederatedType(np.int32, tff.SERVER))
  def total(x, y):
    return tff.federated_sum(x), y

  context = private_apis.default_context()
  # TFF's own checks of arguments come before a context's, and let some of these through.
  with pytest.raises(TypeError, match="takes a list with one value for each client"):
    context.invoke(total, tff.structure.Struct.unnamed(wrong, 5))


def test_refuses_other_fields_than_those_of_the_type():
  @tff.tensorflow.computation(collections.OrderedDict(a=np.int32, b=np.int32))
  def minus(value):
    return value["a"] - value["b"]

  context = private_apis.default_context()
  assert context.invoke(minus, tff.structure.Struct.named(b=3, a=5)) == 2
  for wrong in ({"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, (1, 2, 3), 4):
    with pytest.raises(TypeError, match="Expected a value of type <a=int32,b=int32>"):
      context.invoke(minus, wrong)


_Swapped = collections.namedtuple("_Swapped", "b a")
_Ordered = collections.namedtuple("_Ordered", "a b")
_Other = collections.namedtuple("_Other", "a c")


def test_fields_of_named_tuples_are_found_by_name():
  t = tff.StructType([("a", np.int32), ("b", np.int32)])
  for value in (_Ordered(1, 2), _Swapped(2, 1), {"b": 2, "a": 1}, (1, 2)):
    assert values.flatten(t, value) == [1, 2]
  empty = tff.StructType([])
  assert values.flatten(empty, ()) == []
  for wrong_type, wrong in ((t, _Other(1, 2)), (empty, (1,)), (empty, _Ordered(1, 2))):
    with pytest.raises(TypeError, match="Expected a value of type"):
      values.flatten(wrong_type, wrong)


def test_place_of_what_does_not_fit_is_said():
  """As of the server's state of another algorithm."""
  inner = tff.StructType([("extra", tff.StructType([])), ("rate", np.float32)])
  t = tff.StructType([("variables", inner), ("round_num", np.int32)])
  given = {"variables": {"extra": {"moment": 1.0}, "rate": 0.1}, "round_num": 2}
  said = r"^variables: extra: Expected a value of type <>; found one of \[moment\]\.$"
  with pytest.raises(TypeError, match=said):
    values.flatten(t, given)


def test_files_and_data_sets_in_the_places_of_each_other_are_told_apart():
  files = tff.to_type(client_data.CLIENT_INPUT_TYPE)
  data_set = tff.SequenceType(tff.to_type((np.float32, np.int32)))
  given = tf.data.Dataset.from_tensors((1.0, 2))
  with pytest.raises(TypeError, match=r"build over_datasets\(process\) for data sets"):
    values.flatten(files, given)
  with pytest.raises(TypeError, match="the process as it was before over_datasets"):
    values.flatten(data_set, client_data.ClientInput("a", np.zeros(2, np.int32)))


_PAIR = tff.TensorType(np.float32, [2])


@pytest.mark.parametrize("num_clients", [1, 20])  # In one thread, and in several.
@pytest.mark.parametrize(
  "t, wrong, words",
  [
    (np.int32, np.float64(1.5), "int32; found 1.5, which is no int32"),
    (np.int32, 2**40, f"int32; found {2**40}, which is no int32"),
    (np.int32, np.int64(2**40), f"int32; found {2**40}, which is no int32"),
    (np.int32, [1, 2], r"int32; found one of shape \(2,\)"),
    (np.int32, "one", "int32; found 'one'"),
    (np.bool_, np.int32(2), "bool; found 2, which is no bool"),
    (np.uint8, -1, "uint8; found -1, which is no uint8"),
    (np.float32, 1e300, r"float32; found 1e\+300, which is no float32"),
    (np.float32, np.complex64(1 + 2j), r"float32; found \(1\+2j\), which is no float32"),
    (_PAIR, np.float32(1), r"float32\[2\]; found one of shape \(\)"),
    (_PAIR, np.ones((1, 2), np.float32), r"float32\[2\]; found one of shape \(1, 2\)"),
    (_PAIR, tf.ones([3]), r"float32\[2\]; found one of shape \(3,\)"),
  ],
)
def test_refuses_what_a_type_does_not_hold(num_clients, t, wrong, words):
  same = tff.tensorflow.computation(lambda x: x, t)
  comp = tff.federated_computation(
    lambda x: tff.federated_map(same, x), tff.FederatedType(t, tff.CLIENTS)
  )
  context = private_apis.default_context()
  # Past TFF's own checks of arguments, which let most of these through.
  for run, value in ((comp, [wrong] * num_clients), (same, wrong)):
    with pytest.raises(TypeError, match=f"Expected a value of type {words}"):
      context.invoke(run, value)


@pytest.mark.parametrize(
  "t, given, expected",
  [
    (np.int32, np.int64(3), 3),
    (np.int64, tf.constant(3), 3),
    (np.float32, 3, 3.0),
    (np.float32, np.float64(0.1), np.float32(0.1)),
    (np.float32, float("inf"), float("inf")),
    (np.complex64, 1.5, 1.5),
    (_PAIR, [1, 2.5], [1.0, 2.5]),
    (_PAIR, np.array([0.5, np.inf]), [0.5, np.inf]),
    (tff.TensorType(np.float32, [None]), [], []),
    (np.str_, "a", b"a"),
    (tff.TensorType(np.str_, [None]), ["a", "b"], [b"a", b"b"]),
  ],
)
def test_casts_what_a_type_holds(t, given, expected):
  same = tff.tensorflow.computation(lambda x: x, t)
  found = np.asarray(same(given))
  np.testing.assert_array_equal(found, expected)


def test_refuses_a_list_for_a_data_set():
  @tff.tensorflow.computation(tff.SequenceType(np.int32))
  def total(numbers):
    return numbers.reduce(0, lambda x, y: x + y)

  with pytest.raises(TypeError, match=r"takes a tf\.data\.Dataset .* found list"):
    total([1, 2])


def test_refuses_a_data_set_without_an_end():
  """Which would be read for ever."""

  @tff.tensorflow.computation(tff.SequenceType(np.int64))
  def first_two(numbers):
    return numbers.take(2).reduce(np.int64(0), lambda x, y: x + y)

  numbers = tf.data.Dataset.range(1, 9)
  assert first_two(numbers.repeat(3)) == first_two(numbers.repeat().take(9)) == 3
  with pytest.raises(errors.InputError, match="leave out its repeat"):
    first_two(numbers.repeat())


@pytest.mark.parametrize(
  "change",
  [
    lambda dataset: dataset.batch(2),
    lambda dataset: dataset.map(lambda x, y: (tf.cast(x, tf.float64), y)),
    lambda dataset: dataset.map(lambda x, y: (y, x)),
    lambda dataset: dataset.map(lambda x, y: x),
  ],
)
def test_refuses_a_data_set_of_other_elements(change):
  """With one sentence, and not of an operation deep in the computation."""
  pair = tff.StructType([np.int32, tff.TensorType(np.float32, [3])])

  @tff.tensorflow.computation(tff.SequenceType(pair))
  def total(pairs):
    return pairs.reduce(np.int32(0), lambda sum_, pair: sum_ + pair[0])

  dataset = tf.data.Dataset.from_tensor_slices((np.arange(4, dtype="i"), np.ones([4, 3])))
  dataset = dataset.map(lambda x, y: (x, tf.cast(y, tf.float32)))
  assert total(dataset) == 6
  with pytest.raises(
    TypeError, match=r"data set of elements <int32,float32\[3\]>; found"
  ):
    total(change(dataset))


def test_takes_a_data_set_of_named_tuples():
  """Whose fields stand in another order than a mapping's keys would."""
  named = collections.namedtuple("named", ["label", "image"])
  t = tff.StructWithPythonType([("label", np.int32), ("image", np.float32)], named)

  @tff.tensorflow.computation(tff.SequenceType(t))
  def total(examples):
    return examples.reduce(np.int32(0), lambda sum_, example: sum_ + example.label)

  columns = np.arange(4, dtype="i"), np.ones(4, "f")
  dataset = tf.data.Dataset.from_tensor_slices(named(*columns))
  assert total(dataset) == 6
  with pytest.raises(TypeError, match="<label=int32,image=float32>; found"):
    total(dataset.map(lambda example: named(example.image, example.label)))


def test_refuses_to_return_a_data_set():
  count = tff.tensorflow.computation(lambda n: tf.data.Dataset.range(n), np.int64)
  with pytest.raises(errors.UnsupportedComputationError, match="returns no data sets"):
    count(3)


def test_refuses_arguments_for_different_numbers_of_clients():
  @tff.tensorflow.computation(np.int32, np.int32)
  def add(x, y):
    return x + y

  @tff.federated_computation(_INTS, _INTS)
  def total(x, y):
    return tff.federated_sum(tff.federated_map(add, (x, y)))

  with pytest.raises(ValueError, match="different numbers of clients: 2, 3"):
    total([1, 2], [1, 2, 3])


def test_large_sums_of_several_clients_at_once():
  """TensorFlow's memory optimizer would name one temporary variable for all threads.

  From 80 % of 256 MiB on, by its estimate, which counts each of these views of 17 MB.
  """

  @tff.tensorflow.computation(np.int32)
  @tf.function
  def add_many(client):
    rows = tf.fill([60, 70_000], tf.cast(client, tf.float32))
    return tf.reduce_mean(tf.add_n([rows[k : k + 30] for k in range(30)]))

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def add_at_clients(clients):
    return tff.federated_map(add_many, clients)

  with runtime.create_runtime("in_process", num_threads=4):
    sums = add_at_clients(list(range(8)))
  np.testing.assert_allclose(sums, [30 * c for c in range(8)], rtol=1e-5)


def test_a_round_that_ends_waits_for_who_has_begun():
  """What a client writes would else come after what is done about the error."""
  is_begun, is_ending, done = threading.Event(), threading.Event(), []

  def work(device, number):
    if number:
      is_begun.set()
      is_ending.wait(30)
    done.append(number)
    return number

  context = in_process.InProcessContext(num_threads=1)
  results = context._in_order(work, range(100))
  assert next(results) == 0 and is_begun.wait(30)
  threading.Timer(0.5, is_ending.set).start()
  results.close()
  assert done == [0, 1]
  context.close()


def test_threads_of_a_closed_runtime_end():
  add_one = tff.tensorflow.computation(lambda x: x + 1, np.int32)
  before = set(threading.enumerate())
  with runtime.create_runtime(num_threads=2):
    assert (
      tff.federated_computation(
        lambda x: tff.federated_sum(tff.federated_map(add_one, x)),
        tff.FederatedType(np.int32, tff.CLIENTS),
      )([1, 2, 3])
      == 9
    )
    assert [t for t in threading.enumerate() if t not in before]
  assert not [t for t in threading.enumerate() if t not in before]


@pytest.mark.parametrize(
  "devices, on_gpu",
  [
    (["GPU:0", "GPU:1"], True),
    (["GPU:0", "CPU:0"], False),
    (["CPU:0", "GPU:0"], False),
    (["CPU:0"], False),
  ],
)
def test_work_is_planned_for_gpus_where_all_devices_are(monkeypatch, devices, on_gpu):
  monkeypatch.setattr(in_process, "prepare", lambda given: given)
  context = in_process.InProcessContext(devices=devices)
  assert context._on_gpu == on_gpu
  context.close()


def test_devices_may_be_named_in_small_letters():
  with runtime.create_runtime(devices=["cpu:0"]) as running:
    assert running.context.devices == ("CPU:0",)


def test_a_plan_goes_with_its_computation():
  """They are found by identity, which another computation may have then."""
  add_two = tff.tensorflow.computation(lambda x: x + 2, np.int32)
  with runtime.create_runtime():
    assert add_two(1) == 3
  key = id(add_two)
  assert key in planned_context._PLANS
  del add_two
  gc.collect()
  assert key not in planned_context._PLANS


@attrs.define
class _Pair:
  a: object
  b: object


def test_takes_and_returns_attrs_classes():
  """As a learning algorithm's state and a model's weights are of TFF."""

  @tff.tensorflow.computation(_Pair(np.int32, _Pair(np.int32, np.int32)))
  def turn(value):
    return _Pair(value.b.b - value.a, value.b.a)

  with runtime.create_runtime():
    assert turn(_Pair(1, _Pair(3, 5))) == _Pair(4, 3)


def test_takes_a_data_set_of_one_size_where_any_size_will_do():
  total = tff.tensorflow.computation(
    lambda batches: batches.reduce(np.int64(0), lambda a, b: a + tf.reduce_sum(b)),
    tff.SequenceType(tff.TensorType(np.int64, [None])),
  )
  with runtime.create_runtime():
    for options in ({}, dict(drop_remainder=True)):
      assert total(tf.data.Dataset.range(4).batch(2, **options)) == 6
