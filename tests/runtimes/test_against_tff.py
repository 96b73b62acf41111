"""Properties: what in_process computes, TFF's own runtime computes too.

Computations are random trees of TFF's operators, and the aggregations that TFF ships.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st

import tff_algos
from tff_algos.runtimes import blocks

_VECTOR = tff.TensorType(np.float32, [2])
_NAMED = collections.OrderedDict(a=np.int32, b=(np.float32, _VECTOR))
# Of several kinds: numbers, structs with names and without, one that is equal for all.
_ARGUMENTS = (
  tff.FederatedType(np.int32, tff.CLIENTS),
  tff.FederatedType(_NAMED, tff.CLIENTS),
  tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True),
  tff.FederatedType(np.int32, tff.SERVER),
  tff.FederatedType((np.float32, (), np.int32), tff.SERVER),
)


def _argument(num_clients: int) -> tuple:
  draw = np.random.default_rng(num_clients)

  def named() -> collections.OrderedDict:
    b = np.float32(draw.uniform(1, 2)), draw.uniform(1, 2, 2).astype(np.float32)
    return collections.OrderedDict(a=np.int32(draw.integers(1, 9)), b=b)

  return (
    [np.int32(n) for n in draw.integers(1, 9, num_clients)],
    [named() for _ in range(num_clients)],
    np.float32(0.75),
    np.int32(3),
    (np.float32(1.5), (), np.int32(4)),
  )


@pytest.fixture(scope="module")
def runtimes():
  """Ours and TFF's own, both started and neither installed."""
  ours = tff_algos.create_runtime("in_process", num_threads=2)
  with (
    contextlib.closing(ours),
    contextlib.closing(tff_algos.create_runtime("local_worker")) as theirs,
  ):
    yield ours, theirs


def _on(runtime, comp: tff.Computation, *arguments) -> Any:
  before = tff.framework.get_context_stack().current
  tff.framework.set_default_context(runtime.context)
  try:
    return comp(*arguments)
  finally:
    tff.framework.set_default_context(before)


def _assert_alike(found: Any, expected: Any, rtol: float = 1e-6) -> None:
  """Containers and integers are the same, floats up to rounding."""
  assert type(found) is type(expected)
  if hasattr(expected, "__attrs_attrs__"):
    found, expected = (
      [getattr(v, a.name) for a in v.__attrs_attrs__] for v in (found, expected)
    )
  if isinstance(expected, dict):
    assert list(found) == list(expected)
    found, expected = found.values(), expected.values()
  if isinstance(expected, (list, tuple, type({}.values()))):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
      _assert_alike(a, b, rtol)
    return
  assert np.shape(found) == np.shape(expected)
  assert np.asarray(found).dtype == np.asarray(expected).dtype
  if np.issubdtype(np.asarray(expected).dtype, np.floating):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6)
  else:
    np.testing.assert_array_equal(found, expected)


# --- Random trees ----------------------------------------------------------------------

# They are made of few functions, as building one takes longer than running it.


def _total(value: Any, dtype: tf.DType) -> tf.Tensor:
  """The sum of the leaves of a dtype, small."""
  leaves = [tf.reduce_sum(v) for v in tf.nest.flatten(value) if v.dtype == dtype]
  total = functools.reduce(lambda x, y: x + y, leaves, tf.constant(1, dtype))
  return total % 97


_MAPS: dict[str, Callable] = {
  "more": lambda x: tf.nest.map_structure(lambda v: v + tf.ones_like(v), x),
  "named": lambda x: collections.OrderedDict(
    p=_total(x, tf.int32), q=(_total(x, tf.float32), ())
  ),
  "unnamed": lambda x: (tf.fill([2], _total(x, tf.float32)), _total(x, tf.int32)),
  "number": lambda x: _total(x, tf.int32),
  "part": lambda x: _total(x, tf.float32),
  "nothing": lambda x: (),
}


class _Accumulation(NamedTuple):
  """An aggregation of integers; `zero` is neutral for `merge`, as TFF asks."""

  zero: Any
  accumulate: Callable
  merge: Callable
  report: Callable


# The largest number that is no total of `_total`.
_NONE_YET = np.int32(-1)
_ACCUMULATIONS: dict[str, _Accumulation] = {
  "ten times": _Accumulation(
    np.int32(0), lambda a, x: a + x, lambda a, b: a + b, lambda total: 10 * total
  ),
  # Digits to the base 2, and what is a digit's worth before them.
  "in order": _Accumulation(
    (np.int32(0), np.int32(1)),
    lambda a, x: ((2 * a[0] + x) % 1009, 2 * a[1] % 1009),
    lambda a, b: ((a[0] * b[1] + b[0]) % 1009, a[1] * b[1] % 1009),
    lambda total: total[0],
  ),
  "last": _Accumulation(
    _NONE_YET,
    lambda a, x: x,
    lambda a, b: tf.where(b < 0, a, b),
    lambda total: (total, {"again": total}),
  ),
  "largest": _Accumulation(
    _NONE_YET,
    lambda a, x: tf.maximum(a, x),
    lambda a, b: tf.maximum(a, b),
    lambda total: -total,
  ),
  "none": _Accumulation(np.int32(0), lambda a, x: a, lambda a, b: a, lambda total: ()),
}
_tf = functools.lru_cache(maxsize=None)(tff.tensorflow.computation)


def _map(name: str, value: Any) -> Any:
  return tff.federated_map(_tf(_MAPS[name], value.type_signature.member), value)


def _read(value: Any) -> Any:
  """Values of unknown length on the way, as of examples in a file."""
  values = tff.federated_map(_tf(_COUNT, np.int32), _map("number", value))
  return tff.federated_map(_tf(_ADD_UP, values.type_signature.member), values)


def _aggregate(name: str, value: Any) -> Any:
  zero, accumulate, merge, report = _ACCUMULATIONS[name]
  t = tff.to_type((np.int32, np.int32) if isinstance(zero, tuple) else np.int32)
  return tff.federated_aggregate(
    _map("number", value),
    zero,
    _tf(accumulate, tff.StructType([t, np.int32])),
    _tf(merge, tff.StructType([t, t])),
    _tf(report, t),
  )


def _weighted_mean(value: Any, weight: Any) -> Any:
  return tff.federated_mean(_map("part", value), _map("part", weight))


def _nested(value: Any) -> Any:
  @tff.federated_computation(value.type_signature)
  def inner(x):
    mapped = _map("more", x)
    return collections.OrderedDict(x=mapped, y=(x, mapped))

  found = inner(value)
  return tff.federated_zip((found["x"], found.y[0]))


def _selected(value: Any) -> Any:
  t = value.type_signature.member
  return value[len(t) - 1] if isinstance(t, tff.StructType) and len(t) else value


def _COUNT(n):
  return tf.range(n % 5) + n


def _ADD_UP(values):
  return tf.reduce_sum(values), tf.cast(tf.size(values), tf.float32)


_C, _S = tff.CLIENTS, tff.SERVER
_ONE_OPERATORS: dict[str, tuple[Any, Callable]] = {
  **{f"map {k}": (None, functools.partial(_map, k)) for k in _MAPS},
  **{f"aggregate {k}": (_C, functools.partial(_aggregate, k)) for k in _ACCUMULATIONS},
  "broadcast": (_S, tff.federated_broadcast),
  "sum": (_C, tff.federated_sum),
  "mean": (_C, lambda x: tff.federated_mean(_map("part", x))),
  "largest": (_C, lambda x: tff.federated_max(_map("number", x))),
  "read": (_C, _read),
  "nested": (None, _nested),
  "selected": (None, _selected),
}
_TWO_OPERATORS: dict[str, tuple[Any, Callable]] = {
  "zip": (None, lambda x, y: tff.federated_zip((x, y))),
  "zip with names": (
    None,
    lambda x, y: tff.federated_zip(collections.OrderedDict(y=x, x=(y,))),
  ),
  "weighted mean": (_C, _weighted_mean),
}
_SOURCES: dict[str, Callable] = {
  "value": lambda: tff.federated_value(7, _S),
  "nothing": lambda: tff.federated_value((), _C),
  "same": lambda: tff.federated_value(2.5, _C),
  "eval": lambda: tff.federated_eval(_tf(_CONSTANT), _S),
  "eval at clients": lambda: tff.federated_eval(_tf(_CONSTANT), _C),
}


def _CONSTANT():
  return tf.constant(6), (tf.constant([0.5, 1.5]),)


_places = st.integers(0, 99)
_trees = st.lists(
  st.one_of(
    st.tuples(st.sampled_from([*_ONE_OPERATORS]), _places),
    st.tuples(st.sampled_from([*_ONE_OPERATORS]), _places),
    st.tuples(st.sampled_from([*_TWO_OPERATORS]), _places, _places),
    st.tuples(st.sampled_from([*_SOURCES])),
  ),
  min_size=4,
  max_size=14,
)


def _is_small(value: Any) -> bool:
  return tff.types.count(value.type_signature, lambda t: True) <= 12


def _build(tree) -> tff.Computation:
  """A computation that does these things one after the other and returns them all."""

  @tff.federated_computation(*_ARGUMENTS)
  def comp(numbers, named, same, number, struct):
    made = [numbers, named, same, number, struct]

    def at(place: int, placement: Any) -> Any:
      fit = [v for v in made if v.type_signature.placement is (placement or _C)]
      if placement is None and place % 2:
        fit = [v for v in made if v.type_signature.placement is _S]
      # The latest are likelier, so that trees grow deep.
      small = [v for v in fit if _is_small(v)]
      return small[-1 - (place // 2) % min(4, len(small))]

    for name, *places in tree:
      if name in _SOURCES:
        made.append(_SOURCES[name]())
        continue
      placement, operator = {**_ONE_OPERATORS, **_TWO_OPERATORS}[name]
      parity = places[0] % 2
      made.append(operator(*(at(2 * (p // 2) + parity, placement) for p in places)))
    return collections.OrderedDict((f"v{i}", v) for i, v in enumerate(made))

  return comp


@hypothesis.settings(
  max_examples=8,
  deadline=None,
  derandomize=True,
  phases=[hypothesis.Phase.generate],  # Making an example smaller takes minutes.
  suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(tree=_trees)
def test_random_trees(runtimes, tree):
  comp = _build(tree)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(blocks, "ON_CPU", blocks.ON_CPU._replace(fewest_clients=7))
    for num_clients in (2, 5, 9):  # In turn, four at once, vectorised.
      argument = _argument(num_clients)
      found, expected = (_on(each, comp, *argument) for each in runtimes)
      _assert_alike(found, expected)


# --- The aggregations that TFF ships ----------------------------------------------------

_aggregators, _learning = tff.aggregators, tff.learning
_VALUES = (_VECTOR, np.float32)
_ROUNDS = 3


def _values_of(round_num: int, num_clients: int = 6) -> list:
  """Updates of some clients; one is far from the others."""
  draw = np.random.default_rng(round_num)
  values = [
    (draw.normal(size=2).astype(np.float32), np.float32(draw.normal()))
    for _ in range(num_clients)
  ]
  values[2] = tuple(np.float32(1000) * v for v in values[2])
  return values


_WEIGHTS = [np.float32(w) for w in (3, 1, 2, 5, 1, 4)]
_SUM = _aggregators.SumFactory
_QUANTILE = functools.partial(
  _aggregators.PrivateQuantileEstimationProcess.no_noise,
  initial_estimate=2.0,
  target_quantile=0.8,
  learning_rate=0.5,
)
_DP = _aggregators.DifferentiallyPrivateFactory
_NO_NOISE = dict(noise_multiplier=0.0, clients_per_round=6.0)
_UNWEIGHTED: dict[str, Callable] = {
  "sum": _SUM,
  "mean": _aggregators.UnweightedMeanFactory,
  "clipping": lambda: _aggregators.clipping_factory(1.5, _SUM()),
  "adaptive clipping": lambda: _aggregators.clipping_factory(_QUANTILE(), _SUM()),
  "zeroing": lambda: _aggregators.zeroing_factory(20.0, _SUM(), norm_order=2.0),
  "adaptive zeroing": lambda: _aggregators.zeroing_factory(
    _QUANTILE(multiplier=2.0, increment=1.0), _SUM()
  ),
  "concat": lambda: _aggregators.concat_factory(_SUM()),
  "dp fixed": lambda: _DP.gaussian_fixed(clip=1.0, **_NO_NOISE),
  "dp adaptive": lambda: _DP.gaussian_adaptive(
    **_NO_NOISE, initial_l2_norm_clip=0.5, target_unclipped_quantile=0.5
  ),
  "measurements": lambda: _aggregators.add_measurements(
    _SUM(),
    client_measurement_fn=lambda v: collections.OrderedDict(
      total=tff.federated_sum(v), largest=tff.federated_max(v[1])
    ),
  ),
  "sampling": lambda: _aggregators.UnweightedReservoirSamplingFactory(
    sample_size=8, return_sampling_metadata=False
  ),
  "dp aggregator": lambda: _learning.dp_aggregator(0.0, 6.0),
}
_WEIGHTED: dict[str, Callable] = {
  "weighted mean": _aggregators.MeanFactory,
  "robust": _learning.robust_aggregator,
  "robust with measurements": lambda: _learning.robust_aggregator(
    debug_measurements_fn=_learning.add_debug_measurements
  ),
}
# They draw by a seed in their state, which is of the clock.
_DRAWN: dict[str, Callable] = {
  "dp tree": lambda: _DP.tree_aggregation(
    noise_multiplier=0.0,
    clients_per_round=6.0,
    l2_norm_clip=1.0,
    record_specs=(tf.TensorSpec([2]), tf.TensorSpec([])),
  ),
  "quantized": lambda: _aggregators.EncodedSumFactory.quantize_above_threshold(
    quantization_bits=8, threshold=0
  ),
  "compression": lambda: _learning.compression_aggregator(weighted=False),
  "hadamard": lambda: _aggregators.HadamardTransformFactory(_SUM()),
  "fourier": lambda: _aggregators.DiscreteFourierTransformFactory(_SUM()),
}
# TFF's runtime runs none; ours the sums that they are, and so does TFF's for tests.
_SECURE: dict[str, Callable] = {
  "secure sum": lambda: _aggregators.SecureSumFactory(2.0),
  "secure modular clipped sum": lambda: _aggregators.SecureModularSumFactory(64, True),
  "secure aggregator": lambda: _learning.secure_aggregator(weighted=False),
}


def _process_of(factory: Any) -> tff.templates.AggregationProcess:
  value_type = tff.to_type(_VALUES)
  if isinstance(factory, _aggregators.WeightedAggregationFactory):
    return factory.create(value_type, tff.TensorType(np.float32))
  return factory.create(value_type)


# They are made of others of the table, or as others.
_LIKE_OTHERS = {"compression", "dp aggregator", "dp fixed", "robust", "secure aggregator"}
_LIKE_OTHERS |= {"adaptive zeroing", "robust with measurements", "fourier"}
_LIKE_OTHERS |= {"secure modular clipped sum", "hadamard", "dp adaptive"}


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=pytest.mark.thorough) if name in _LIKE_OTHERS else name
    for name in (*_UNWEIGHTED, *_WEIGHTED, *_DRAWN, *_SECURE)
  ],
)
def test_aggregations(runtimes, name):
  ours, theirs = runtimes
  factory = {**_UNWEIGHTED, **_WEIGHTED, **_DRAWN, **_SECURE}[name]()
  is_whole = isinstance(factory, _aggregators.SecureModularSumFactory)
  process = factory.create(tff.to_type(np.int32)) if is_whole else _process_of(factory)
  plain = tff.framework.ConcreteComputation.with_type(
    tff.backends.test.replace_secure_intrinsics_with_bodies(process.next),
    process.next.type_signature,
  )
  state = _on(ours, process.initialize)
  if name not in _DRAWN:
    _assert_alike(state, _on(theirs, process.initialize))
  for round_num in range(_ROUNDS):
    values = [0, 5, -7, 31, 2, 1] if is_whole else _values_of(round_num)
    arguments = [state, values]
    if name in _WEIGHTED:
      arguments.append(_WEIGHTS)
    found = _on(ours, process.next, *arguments)
    expected = _on(theirs, plain if name in _SECURE else process.next, *arguments)
    _assert_alike(found, expected, rtol=1e-5)
    state = found.state
