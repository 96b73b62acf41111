"""Temporal weighting against its direct formula over K stored models, in float64.

sum_k n_k a^(t_k - t) w_k / sum_k n_k a^(t_k - t)
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict

import driver
import numpy as np
import problems
import pytest
import replay
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.client_memory import ClientMemoryFactory, Contribution
from tff_algos.aggregators.temporal_weighting import TemporalWeightingFactory
from tff_algos.algorithms import fed_agg, fed_prox, registry, twafl
from tff_algos.client_data import ClientInput
from tff_algos.errors import InputError

# n_k of K = 7 clients; the last one never takes part.
_N = (3, 11, 1, 7, 20, 5, 2)
_ABSENT = len(_N) - 1
_SHAPES = ((3, 2), (2,), ())
_BASES = (1.0, math.e / 2, 3.0)

# No contribution in these tests is larger than this.
_BOUND = 256.0

_CONTRIBUTION = tff.to_type(
  Contribution(tuple(tff.TensorType(np.float32, s) for s in _SHAPES), np.float32)
)


def _random_model(rng) -> tuple:
  return tuple(rng.normal(size=s).astype(np.float32) for s in _SHAPES)


_INITIAL = _random_model(np.random.default_rng(0))


def _direct(uploads, weights, base, t, normalize=True) -> list:
  """The formula; `uploads` maps each of the K clients to (w_k, t_k)."""
  shares = {k: weights[k] * base ** (t_k - t) for k, (_, t_k) in uploads.items()}
  total = sum(shares.values()) if normalize else sum(weights)
  terms = [replay.scaled(replay.as_weights(uploads[k][0]), s) for k, s in shares.items()]
  return replay.scaled([sum(arrays) for arrays in zip(*terms)], 1 / total)


def _factory(**options) -> TemporalWeightingFactory:
  return TemporalWeightingFactory(_INITIAL, total_weight=sum(_N), **options)


class _Run:
  """The server with its K clients, and beside it the K stored models."""

  def __init__(self, factory, process, next_fn, base, normalize=True):
    self.state, self._next = process.initialize(), next_fn
    self.round_num = 0
    self._factory, self._base, self._normalize = factory, base, normalize
    self._memories = {k: factory.initialize_client() for k in range(len(_N))}
    self._uploads = {k: (_INITIAL, 0) for k in range(len(_N))}
    self._counts = list(_N)

  def round(self, uploads, dropped=(), counts=None):
    """What the process says, and what the formula says.

    A client of `dropped` adds 0 and does not remember what it sent. `counts` are n_k that
    have changed.
    """
    now = {**dict(enumerate(self._counts)), **(counts or {})}
    self.round_num += 1
    contributions = []
    for k, w in uploads.items():
      contribution, memory = self._factory.contribute(
        tuple(map(tf.constant, w)),
        tf.constant(float(now[k])),
        self._memories[k],
        tf.constant(self.round_num),
      )
      if k in dropped:
        contribution = tf.nest.map_structure(tf.zeros_like, contribution)
      else:
        self._memories[k], self._uploads[k] = memory, (w, self.round_num)
        self._counts[k] = now[k]
      contributions.append(_as_numpy(contribution))
    assert max(np.abs(a).max() for a in driver.flat(contributions)) < _BOUND
    output = self._next(self.state, contributions)
    found = output["result"] if isinstance(output, dict) else output.result
    self.state = output["state"] if isinstance(output, dict) else output.state
    return found, self.expected()

  def skip(self):
    self.round_num += 1
    self.state = _as_numpy(self._factory.skip_round(self.state))

  def expected(self) -> list:
    arguments = self._uploads, self._counts, self._base, self.round_num, self._normalize
    return _direct(*arguments)


def _as_numpy(value):
  return tf.nest.map_structure(np.asarray, value)


def _cohort(rng, t) -> dict:
  """Uploads of 1 to 6 clients, in any order; in every seventh round of one."""
  size = 1 if t % 7 == 0 else rng.integers(1, _ABSENT + 1)
  clients = rng.choice(_ABSENT, size, replace=False)
  return {int(k): _random_model(rng) for k in clients}


@pytest.fixture(scope="module")
def start(in_process):
  """`(base, normalize) -> _Run` of a new server; each process is built once."""
  made = {}

  def get(base, normalize=True):
    if (base, normalize) not in made:
      factory = _factory(base=base, normalize=normalize)
      made[base, normalize] = factory, factory.create(_CONTRIBUTION)
    factory, process = made[base, normalize]
    return _Run(factory, process, process.next, base, normalize)

  return get


# --- The sums are the formula -----------------------------------------------------------

# A hundred rounds of sums of up to 7 numbers of size 1, some hundreds of roundings of
# 6e-8, whatever the sum is: some are near 0.
_CLOSE = dict(rtol=2e-5, atol=1e-6, size=1.0)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
  "base", [1.0, pytest.param(math.e / 2, marks=pytest.mark.thorough), 3.0]
)
def test_result_is_the_direct_formula_over_a_hundred_rounds(start, base, normalize):
  run, rng = start(base, normalize), np.random.default_rng(1)
  for t in range(1, 101):
    found, expected = run.round(_cohort(rng, t))
    driver.assert_close(found, expected, f"round {t}", **_CLOSE)


@pytest.mark.parametrize("base", _BASES, ids=["1", "e/2", "3"])
def test_number_of_examples_may_change(start, base):
  """Each upload counts by the n_k that its client had then."""
  run, rng = start(base), np.random.default_rng(4)
  run.round({k: _random_model(rng) for k in range(_ABSENT)})
  for t in range(2, 30):
    cohort = _cohort(rng, t)
    changed = {k: int(rng.integers(1, 30)) for k in cohort if rng.random() < 0.5}
    found, expected = run.round(cohort, counts=changed)
    driver.assert_close(found, expected, f"round {t}", **_CLOSE)


def test_default_is_half_of_e_and_normalized(in_process):
  factory = _factory()
  process = factory.create(_CONTRIBUTION)
  run, rng = _Run(factory, process, process.next, math.e / 2), np.random.default_rng(2)
  for t in range(1, 6):
    found, expected = run.round(_cohort(rng, t))
    driver.assert_close(found, expected, f"round {t}", **_CLOSE)


@pytest.mark.parametrize("base", _BASES, ids=["1", "e/2", "3"])
def test_without_new_uploads_the_literal_form_shrinks_by_the_base(start, base):
  """All is x^0 still: normalized x^0 itself, divided by sum n_k only x^0 a^-t."""
  normal, literal = start(base), start(base, normalize=False)
  uploads = {0: _random_model(np.random.default_rng(3))}
  for t in range(1, 5):
    found, _ = normal.round(uploads, dropped=[0])
    driver.assert_close(found, _INITIAL, f"round {t}")
    found, _ = literal.round(uploads, dropped=[0])
    driver.assert_close(found, [w * base**-t for w in _INITIAL], f"round {t}")


@pytest.mark.parametrize("base", _BASES, ids=["1", "e/2", "3"])
def test_dropped_upload_counts_for_nothing_and_is_not_remembered(start, base):
  run, rng = start(base), np.random.default_rng(4)
  for t in range(1, 41):
    uploads = _cohort(rng, t)
    dropped = [k for k in uploads if rng.random() < 0.4]
    found, expected = run.round(uploads, dropped)
    driver.assert_close(found, expected, f"round {t}", **_CLOSE)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("base", _BASES, ids=["1", "e/2", "3"])
def test_time_goes_on_in_rounds_in_which_the_part_does_not_travel(start, base, normalize):
  run, rng = start(base, normalize), np.random.default_rng(5)
  travelled = 0
  for t in range(1, 81):
    # Ten rounds in a row to begin with, then two of three.
    if t <= 10 or t % 3:
      run.skip()
      continue
    found, expected = run.round(_cohort(rng, t))
    driver.assert_close(found, expected, f"round {t}", **_CLOSE)
    travelled += 1
  assert travelled == 23


def test_state_of_the_sums_own_factory_stays_in_such_a_round():
  """What is learned there of bounds, for example, is of the messages that come."""
  sums = Contribution((tf.constant([4.0, 8.0]),), tf.constant(6.0))
  own = (tf.constant(3), tf.constant([0.5, 7.0]))
  after = _factory(base=2.0).skip_round({"sums": sums, "sum": own})
  driver.assert_same(after["sums"], Contribution((np.float32([2, 4]),), np.float32(3)))
  driver.assert_same(after["sum"], own)


def test_server_keeps_one_model_and_one_number(start):
  run, rng = start(3.0), np.random.default_rng(6)
  for _ in range(2):
    shapes = [a.shape for a in driver.flat(run.state)]
    assert shapes == [*_SHAPES, ()]
    run.round(_cohort(rng, 1))


def test_client_remembers_its_last_upload_and_its_round():
  factory = _factory(base=3.0)
  memory = factory.initialize_client()
  driver.assert_same(memory, [0, *_INITIAL, 0.0])
  w = _random_model(np.random.default_rng(7))
  contribution, memory = factory.contribute(
    tuple(map(tf.constant, w)), tf.constant(5.0), memory, tf.constant(2)
  )
  driver.assert_same(memory, [2, *w, 5.0])
  # n_k w_k - n_k a^(0 - 2) x^0
  expected = [5 * np.float64(a) - 5 / 9 * b for a, b in zip(w, _INITIAL)]
  driver.assert_close(contribution.value, expected, size=5.0)
  np.testing.assert_allclose(contribution.weight, 5 - 5 / 9, rtol=1e-6)


# --- A plain sum over the round's clients -----------------------------------------------


def test_nothing_but_secure_sums_leaves_the_clients(in_process):
  secure = _factory(sum_factory=tff.aggregators.SecureSumFactory(_BOUND))
  process = secure.create(_CONTRIBUTION)
  tff.test.assert_contains_secure_aggregation(process.next)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  # What the check finds otherwise.
  with pytest.raises(AssertionError, match="found 1:"):
    tff.test.assert_not_contains_unsecure_aggregation(
      _factory().create(_CONTRIBUTION).next
    )


def test_secure_sum_gives_the_formula_within_its_quantization(in_process):
  """32 bits over +-256 and float32 on the way: 512 * 2^-23 for each contribution.

  An error of the sums ages with them, so all rounds' are at most a / (a - 1) times those
  of one; they are divided by the sum of the weights, at least the n_k of the last round.
  """
  base = 3.0
  factory = _factory(
    base=base, sum_factory=tff.aggregators.SecureSumFactory(_BOUND, -_BOUND)
  )
  process = factory.create(_CONTRIBUTION)
  next_fn = tff.backends.test.replace_secure_intrinsics_with_bodies(process.next)
  run, rng = _Run(factory, process, next_fn, base), np.random.default_rng(8)
  one = 2 * _BOUND * 2**-23
  for t in range(1, 31):
    uploads = _cohort(rng, t)
    found, expected = run.round(uploads)
    # The numerator's error, and the denominator's times the result.
    size = max(1.0, *(np.abs(w).max() for w in expected))
    error = 2 * size * _ABSENT * one * base / (base - 1) / sum(_N[k] for k in uploads)
    assert error < 0.01
    for a, b in zip(found, expected):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=error, err_msg=f"round {t}")


# --- With any algorithm -----------------------------------------------------------------


class _TemporalFedProx(replay.FedProx):
  """FedProx whose server is the formula over all clients' last models."""

  def __init__(self, *args, base, **options):
    super().__init__(*args, **options)
    self.base, self.round_num = base, 0
    self.uploads = {k: (self.weights, 0) for k in range(problems.NUM_CLIENTS)}

  def round(self, cohort, dropped=()):
    self.round_num += 1
    for k, (x, y), batches in cohort:
      if k not in dropped:
        change, _ = self._client(k, x, y, batches)
        self.uploads[k] = replay.add(self.weights, change), self.round_num
    sizes = problems.SIZES
    n = sizes if self.weighting == "examples" else [1] * len(sizes)
    self.weights = _direct(self.uploads, n, self.base, self.round_num)
    return self.weights


_MU, _BASE, _SEED = 0.5, 3.0, 3


def _fed_prox_hparams(**settings) -> fed_prox.FedProxHparams:
  return fed_prox.FedProxHparams(mu=_MU, **problems.LOCAL, **settings)


def _temporal_fed_prox(problem, hparams, **options):
  by_examples = hparams.client_weighting == "examples"
  total = sum(problems.SIZES) if by_examples else problems.NUM_CLIENTS
  aggregator = TemporalWeightingFactory(
    problem.model.initial_weights, total_weight=total, base=_BASE, **options
  )
  return fed_prox.build_fed_prox(problem.model, hparams, model_aggregator=aggregator)


def _replayed(problem, hparams) -> _TemporalFedProx:
  return _TemporalFedProx(
    problem.numpy_model,
    problem.model.initial_weights,
    learning_rate=hparams.learning_rate,
    mu=_MU,
    momentum=hparams.momentum,
    weighting=hparams.client_weighting,
    base=_BASE,
  )


@pytest.fixture(scope="module")
def mlp(tmp_path_factory) -> problems.Problem:
  return problems.make("mlp", str(tmp_path_factory.mktemp("mlp")))


@pytest.mark.parametrize("name", ["fedsgd", "sgd", "feddyn", "scaffold"])
def test_servers_that_need_this_rounds_messages_refuse_it(mlp, name):
  builder = registry.ALGORITHMS[name].builder
  wanted = inspect.signature(builder).parameters
  counts = {k: 4 for k in ("num_clients", "num_examples") if k in wanted}
  with pytest.raises(InputError, match=r" cannot take a TemporalWeightingFactory: "):
    builder(mlp.model, model_aggregator=_factory(), **counts)
  process = builder(mlp.model, **counts)
  aggregators = {**process.composed_of["aggregators"], "model": _factory()}
  with pytest.raises(InputError, match=r" cannot take a TemporalWeightingFactory: "):
    process.recomposed(aggregators=aggregators)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedprox_with_it_is_replayed(in_process, mlp, weighting):
  hparams = _fed_prox_hparams(client_weighting=weighting)
  process = _temporal_fed_prox(mlp, hparams)
  run = driver.Federation(process, mlp, hparams, _SEED)
  expected = _replayed(mlp, hparams)
  rounds = [*problems.ROUNDS, (2,), (0, 3), (1,)]
  for t, clients in enumerate(rounds):
    # Client 0's message of round 3 is not a number: it is as if it had stayed away.
    dropped = [0] if t == 3 else []
    expected.round(run.cohort(clients), dropped)
    run.round(clients, data={k: "nan" for k in dropped})
    assert run.training["num_dropped"] == len(dropped)
    driver.assert_close(run.weights, expected.weights, f"round {t}")
    for k, state in run.client_states.items():
      w, last = expected.uploads[k]
      count = problems.SIZES[k] if weighting == "examples" else 1
      memory = [last, *w, count if last else 0]
      driver.assert_close(state, memory, f"client {k} after round {t}")


@pytest.mark.thorough
def test_fedprox_with_it_and_secure_sums_is_replayed(in_process, mlp):
  hparams = _fed_prox_hparams()
  bound = 64.0
  process = _temporal_fed_prox(
    mlp, hparams, sum_factory=tff.aggregators.SecureSumFactory(bound)
  )
  next_fn = tff.backends.test.replace_secure_intrinsics_with_bodies(process.next)
  expected = _replayed(mlp, hparams)
  state, clients = process.initialize(), (1, 2, 3)
  cohort = mlp.cohort(clients, _SEED, 0, hparams)
  inputs = [
    ClientInput(mlp.directory.path(str(k)), problems.client_seed(_SEED, 0, k))
    for k in clients
  ]
  output = next_fn(state, [process.initialize_client() for _ in clients], inputs)
  found = output["state"]["variables"]["model"]
  # 128 * 2^-23 of each of three clients, over n_1 + n_2 + n_3 = 19, with weights below 2.
  expected.round(cohort)
  assert all(np.abs(w).max() < 2 for w in expected.weights)
  error = 3 * 3 * 2 * bound * 2**-23 / 19
  driver.assert_close(found, expected.weights, atol=error + driver.ATOL)


# --- Bad arguments ----------------------------------------------------------------------


@pytest.mark.parametrize("base", [0.999, 0.0, -2.0, math.nan, math.inf])
def test_refuses_a_base_below_1_or_not_finite(base):
  with pytest.raises(ValueError, match=r"^base must be .* at least 1; found .*\.$"):
    _factory(base=base)


@pytest.mark.parametrize("total_weight", [0, -1.0, math.nan, math.inf])
def test_refuses_a_total_weight_that_is_not_positive(total_weight):
  message = rf"^total_weight must be positive and finite; found {total_weight}\.$"
  with pytest.raises(ValueError, match=message):
    TemporalWeightingFactory(_INITIAL, total_weight=total_weight)


@pytest.mark.parametrize("options", [dict(total_weight=1e39), dict(base=1e39)])
def test_refuses_what_would_be_infinite_where_it_is_computed_with(options):
  with pytest.raises(ValueError, match="must be a number that float32 holds; found 1e"):
    TemporalWeightingFactory(_INITIAL, **{"total_weight": 1.0, **options})


@pytest.mark.parametrize(
  "initial, said",
  [
    (None, "must be a sequence of float32 arrays"),
    ([w.astype(np.float64) for w in _INITIAL], "must be a sequence of float32 arrays"),
    ([np.full([2], np.nan, np.float32)], "holds a number that is not finite"),
  ],
)
def test_refuses_initial_values_that_are_no_weights(initial, said):
  with pytest.raises(InputError, match=f"^initial {said}"):
    TemporalWeightingFactory(initial, total_weight=1.0)


def test_refuses_the_initial_values_of_another_model(mlp):
  weights = mlp.model.initial_weights
  for wrong in (weights[:-1], [*weights, weights[0]], weights[::-1]):
    factory = TemporalWeightingFactory(wrong, total_weight=4.0)
    with pytest.raises(
      InputError, match=r"^The initial values .*: give those of the part"
    ):
      fed_prox.build_fed_prox(mlp.model, model_aggregator=factory)


def test_refuses_a_part_that_the_server_does_not_send_as_it_is(mlp):
  process = fed_prox.build_fed_prox(mlp.model)
  [rounds_] = process.composed_of["rounds"].values()

  def in_halves(variables):
    return OrderedDict(model=tuple(tf.cast(w, tf.float16) for w in variables.model))

  def as_another(variables):
    return OrderedDict(others=variables.model)

  def client_update(received, *args):
    [weights] = received.values()
    full = tuple(tf.cast(w, tf.float32) for w in weights)
    return rounds_.client_update(OrderedDict(model=full), *args)

  for distribute in (in_halves, as_another):
    with pytest.raises(InputError, match="must send a part of this name, of the arrays"):
      process.recomposed(
        rounds=rounds_._replace(distribute=distribute, client_update=client_update),
        aggregators={
          **process.composed_of["aggregators"],
          "model": TemporalWeightingFactory(mlp.model.initial_weights, total_weight=4.0),
        },
      )


def test_refuses_a_server_that_goes_on_with_the_rounds_mean(mlp):
  """FedAgg's phi2 is of this round's clients."""
  of_round_before = fed_agg.FedAggHparams(estimates="previous_round")
  factory = TemporalWeightingFactory(mlp.model.initial_weights, total_weight=4.0)
  with pytest.raises(InputError, match=r" cannot take a TemporalWeightingFactory: "):
    fed_agg.build_fed_agg(mlp.model, of_round_before, model_aggregator=factory)


@pytest.mark.parametrize(
  "factory, name",
  [
    (tff.aggregators.MeanFactory(), "MeanFactory"),
    (tff.aggregators.UnweightedMeanFactory(), "UnweightedMeanFactory"),
    (
      tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, 5, 1.0),
      "DifferentiallyPrivateFactory",
    ),
  ],
)
def test_refuses_what_averages_the_contributions(factory, name):
  message = rf"^sum_factory must sum .*; found {name}, which averages\.$"
  with pytest.raises(ValueError, match=message):
    _factory(sum_factory=factory)


def test_is_one_of_the_factories_whose_clients_remember():
  assert isinstance(_factory(), ClientMemoryFactory)
  assert isinstance(_factory(), tff.aggregators.UnweightedAggregationFactory)


@pytest.mark.parametrize(
  "around",
  [
    tff.learning.add_debug_measurements,
    lambda factory: tff.aggregators.clipping_factory(1.0, factory),
  ],
)
def test_no_other_factory_goes_around_it(around):
  weights = tff.to_type(tuple(tff.TensorType(np.float32, s) for s in _SHAPES))
  with pytest.raises(InputError, match="give one that sums as its sum_factory"):
    around(_factory()).create(weights)


@pytest.mark.parametrize("wrong", ["sum", tff.aggregators.SumFactory])
def test_what_is_no_factory_of_sums_is_refused(wrong):
  with pytest.raises(InputError, match="sum_factory must be an aggregation factory"):
    _factory(sum_factory=wrong)


@pytest.mark.parametrize("name", ["num_clients", "num_examples"])
@pytest.mark.parametrize("wrong", [0, 2.5, "7", True, None])
def test_numbers_of_clients_and_examples_are_whole(mlp, name, wrong):
  population = {"num_clients": 7, "num_examples": 49, name: wrong}
  with pytest.raises(InputError, match=f"^{name} must be "):
    twafl.build_tefl(mlp.model, **population)


@pytest.mark.parametrize("name", ["twafl", "tefl", "afl"])
def test_process_says_of_whom_it_is(mlp, name):
  """Both numbers, as its clients' weights are of all of them."""
  build = registry.get(name).builder
  process = build(mlp.model, num_clients=7, num_examples=49)
  assert process.population == (7, 49)
