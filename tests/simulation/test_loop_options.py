"""What the loop can do besides: clients that drop out or are late, and the like."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree

import tff_algos
from tff_algos.aggregators import table
from tff_algos.algorithms import fed_avg
from tff_algos.runtimes import runtime, tracing
from tff_algos.simulation import client_evaluation, cohorts, loop, schedules, stopping
from tff_algos.simulation.availability import Availability, ClientDurations

_SECONDS = ("seconds", "evaluation_seconds", "client_evaluation_seconds")


def _settings(rounds: int = 6, **options) -> loop.Settings:
  return loop.Settings(rounds=rounds, clients_per_round=4, seed=8, **options)


def _without_seconds(records: list[dict]) -> list[dict]:
  return [{k: v for k, v in r.items() if k not in _SECONDS} for r in records]


def _assert_same_state(found: loop.Result, expected: loop.Result) -> None:
  """Bit for bit, of the server and of the clients."""
  every = range(6)
  for a, b in (
    (found.state, expected.state),
    (found.client_states.get(every), expected.client_states.get(every)),
  ):
    tree.assert_same_structure(a, b)
    for x, y in zip(tree.flatten(a), tree.flatten(b)):
      np.testing.assert_array_equal(x, y)


def _assert_same(found: loop.Result, expected: loop.Result) -> None:
  _assert_same_state(found, expected)
  assert _without_seconds(found.records) == _without_seconds(expected.records)


# --- Clients that drop out, and clients that are late -------------------------------


@pytest.mark.parametrize(
  "availability",
  [Availability(0.4), Availability(0.2, ClientDurations(10.0), 9.0)],
  ids=["dropout", "deadline"],
)
def test_run_is_that_of_the_clients_that_are_left(
  process_of, federation, monkeypatch, availability
):
  process, settings = process_of("scaffold"), _settings(availability=availability)
  rounds = [settings.attendance(6, r) for r in range(6)]
  assert any(a.dropped_out for a in rounds)
  assert all(a.taking_part for a in rounds), "another seed: rounds are to have clients"
  result = loop.simulate(process, federation.clients, settings)
  with monkeypatch.context() as patched:
    patched.setattr(
      cohorts, "uniform_cohort", lambda n, m, seed, r: rounds[r].taking_part
    )
    expected = loop.simulate(process, federation.clients, _settings())
  _assert_same_state(result, expected)
  for record, other, a in zip(result.records, expected.records, rounds):
    assert record["train_loss"] == other["train_loss"]
    assert record["num_accepted"] == len(a.taking_part)
    assert record["num_dropped"] == 0
    assert record["num_dropped_out"] == len(a.dropped_out)
    assert record.get("num_late", 0) == len(a.late)
    assert record.get("round_duration") == a.seconds
    # Who is late has been sent the model and has sent its own.
    senders = len(a.taking_part) + len(a.late)
    assert record["bytes_up"] * len(a.taking_part) == other["bytes_up"] * senders


@pytest.mark.parametrize(
  "name",
  [
    *("scaffold", "tefl"),
    *(pytest.param(n, marks=pytest.mark.thorough) for n in ("fedadam", "fedagg")),
  ],
)
def test_round_with_nobody_leaves_the_model(process_of, federation, name):
  """The round is counted, by the server too; the run goes on."""
  settings = dataclasses.replace(
    _settings(4, availability=Availability(0.5)), clients_per_round=1, seed=63
  )
  sizes = [len(settings.attendance(6, r).taking_part) for r in range(4)]
  assert sizes == [1, 0, 1, 1], "another seed: round 2 is to be empty"
  starts = []
  result = loop.simulate(
    process_of(name), federation.clients, settings, before_round=starts.append
  )
  states = [*(start.state for start in starts), result.state]
  for a, b in zip(tree.flatten(states[1].variables), tree.flatten(states[2].variables)):
    np.testing.assert_array_equal(a, b)
  assert [int(state.round_num) for state in states] == [0, 1, 2, 3, 4]
  for before, after in ((0, 1), (2, 3)):
    weights = [np.array(states[k].variables.model[0]) for k in (before, after)]
    assert not np.array_equal(*weights)
    assert np.all(np.isfinite(weights[1]))
  empty = result.records[1]
  assert np.isnan(empty["train_loss"])
  assert (empty["num_examples"], empty["num_accepted"]) == (0, 0)
  assert (empty["num_dropped"], empty["num_dropped_out"]) == (0, 1)
  assert (empty["bytes_down"], empty["bytes_up"]) == (0, 0)


_THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
  "spec",
  [
    "clipping",
    *(
      pytest.param(spec, marks=_THOROUGH)
      for spec in ("secure_sum", "zeroing", "robust", "dp")
    ),
  ],
)
def test_round_with_nobody_leaves_the_aggregators(federation, spec):
  """Whose estimates of norms would be of no number, and no number from then on."""
  words = {"dp": "dp:noise_multiplier=1e-3"}
  aggregator = table.make(words.get(spec, spec), clients_per_round=1)
  process = fed_avg.build_fed_avg(federation.model, model_aggregator=aggregator)
  settings = dataclasses.replace(
    _settings(4, availability=Availability(0.5)), clients_per_round=1, seed=63
  )
  starts = []
  result = loop.simulate(
    process, federation.clients, settings, before_round=starts.append
  )
  assert [r["num_accepted"] for r in result.records] == [1, 0, 1, 1]
  states = [
    tree.flatten(state.aggregator)
    for state in (*(start.state for start in starts), result.state)
  ]
  for a, b in zip(states[1], states[2]):
    np.testing.assert_array_equal(a, b)
  assert any(np.any(a != b) for a, b in zip(states[2], states[3]))
  numbers = [v for v in states[-1] if not isinstance(v, bytes)]
  assert all(np.all(np.isfinite(v)) for v in numbers)
  assert all(np.all(np.isfinite(w)) for w in result.state.variables.model)


@_THOROUGH
def test_round_with_nobody_is_done_by_tffs_worker_too(process_of, federation):
  """Which cannot give the new states of no clients."""
  settings = dataclasses.replace(
    _settings(3, availability=Availability(0.5)), clients_per_round=1, seed=63
  )
  process = process_of("scaffold")
  expected = loop.simulate(process, federation.clients, settings)
  with runtime.create_runtime("local_worker"):
    result = loop.simulate(process, federation.clients, settings)
  assert [r["num_accepted"] for r in result.records] == [1, 0, 1]
  for a, b in zip(tree.flatten(result.state), tree.flatten(expected.state)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@_THOROUGH
def test_tffs_worker_reads_clients_in_any_folder(process_of, federation, tmp_path):
  spec = federation.model.example_spec
  examples = {"one": (np.ones([3, 4], np.float32), np.int32([0, 1, 2]))}
  clients = tff_algos.write_clients(tmp_path / "zwölf Ordner ✓", examples, spec)
  settings = loop.Settings(rounds=1, clients_per_round=1)
  expected = loop.simulate(process_of("fedavg"), clients, settings)
  with runtime.create_runtime("local_worker"):
    result = loop.simulate(process_of("fedavg"), clients, settings)
  assert result.records[0]["num_examples"] == 3
  for a, b in zip(tree.flatten(result.state), tree.flatten(expected.state)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_resumed_run_has_the_same_clients(process_of, federation, tmp_path):
  process, asked = process_of("scaffold"), []
  settings = _settings(
    availability=Availability(0.3, ClientDurations(10.0), 12.0),
    checkpoint_folder=str(tmp_path / "a"),
  )
  unbroken = loop.simulate(process, federation.clients, settings)
  settings = dataclasses.replace(settings, checkpoint_folder=str(tmp_path / "b"))

  def should_stop():
    asked.append(None)
    return len(asked) == 2

  loop.simulate(process, federation.clients, settings, should_stop=should_stop)
  resumed = loop.simulate(process, federation.clients, settings, resume=True)
  _assert_same(resumed, unbroken)


# --- Learning rates of the rounds ---------------------------------------------------


def test_schedule_of_ones_is_bit_for_bit_none(process_of, federation):
  process = process_of("scaffold")
  plain = loop.simulate(process, federation.clients, _settings(3))
  settings = _settings(3, learning_rate_schedule=schedules.exponential(decay=1.0))
  result = loop.simulate(process, federation.clients, settings)
  _assert_same_state(result, plain)
  for record, other in zip(
    _without_seconds(result.records), _without_seconds(plain.records)
  ):
    assert record.pop("learning_rate") == float(np.float32(0.1))
    assert record == other


@pytest.mark.parametrize("name", ["fedsgd", "scaffold"])
def test_each_round_is_that_of_a_process_with_its_rate(
  process_of, federation, name, monkeypatch
):
  """Traced once, by `set_hparams` between rounds that are done by hand."""
  process = process_of(name)
  factors = [1.0, 0.5, 2.0, 0.25]
  settings = _settings(4, learning_rate_schedule=lambda t: factors[t])
  starts = []
  result = loop.simulate(
    process, federation.clients, settings, before_round=starts.append
  )
  rates = [np.float32(0.1) * np.float32(f) for f in factors]
  assert [r["learning_rate"] for r in result.records] == rates
  state = process.initialize()
  for start, rate in zip(starts, rates):
    given = process.get_hparams(state)
    state = process.set_hparams(state, {**given, "learning_rate": rate})
    tree.assert_same_structure(state, start.state)
    for x, y in zip(tree.flatten(state), tree.flatten(start.state)):
      np.testing.assert_array_equal(x, y)
    state = process.next(state, start.client_states, start.client_inputs).state
  for x, y in zip(tree.flatten(state), tree.flatten(result.state)):
    np.testing.assert_array_equal(x, y)


def test_a_rate_half_as_large_moves_a_gradient_step_half_as_far(process_of, federation):
  """FedSGD's only step, from the same start."""
  start = federation.model.initial_weights[0]
  moves = []
  for factor in (1.0, 0.5):
    settings = _settings(1, learning_rate_schedule=lambda t, factor=factor: factor)
    result = loop.simulate(process_of("fedsgd"), federation.clients, settings)
    moves.append(np.array(result.state.variables.model[0]) - start)
  np.testing.assert_allclose(moves[1], moves[0] / 2, rtol=1e-4, atol=1e-7)
  assert np.abs(moves[0]).max() > 1e-3


def test_schedule_traces_nothing_more(process_of, federation, monkeypatch):
  process = process_of("scaffold")
  schedule = schedules.exponential(decay=0.5)
  settings = _settings(2, learning_rate_schedule=schedule)
  loop.simulate(process, federation.clients, settings)
  traced, original = [], tracing._call_tensorflow
  monkeypatch.setattr(
    tracing, "_call_tensorflow", lambda *a: traced.append(a) or original(*a)
  )
  settings = dataclasses.replace(settings, rounds=5)
  loop.simulate(process, federation.clients, settings)
  assert not traced


def test_resumed_run_has_the_same_rates(process_of, federation, tmp_path):
  process = process_of("fedadam")
  settings = _settings(
    5,
    learning_rate_schedule=schedules.step(every=2, factor=0.1),
    checkpoint_folder=str(tmp_path / "a"),
  )
  unbroken = loop.simulate(process, federation.clients, settings)
  settings = dataclasses.replace(settings, checkpoint_folder=str(tmp_path / "b"))
  loop.simulate(process, federation.clients, settings, should_stop=lambda: True)
  resumed = loop.simulate(process, federation.clients, settings, resume=True)
  _assert_same(resumed, unbroken)


def test_run_resumed_without_its_schedule_has_the_rate_that_was_given(
  process_of, federation, tmp_path
):
  process, folder = process_of("fedadam"), str(tmp_path)
  given = process.get_hparams(process.initialize())
  schedule = schedules.exponential(decay=0.5)
  settings = _settings(2, learning_rate_schedule=schedule, checkpoint_folder=folder)
  first = loop.simulate(process, federation.clients, settings)
  assert process.get_hparams(first.state) != given
  settings = _settings(3, checkpoint_folder=folder)
  resumed = loop.simulate(process, federation.clients, settings, resume=True)
  assert process.get_hparams(resumed.state) == given


def test_schedule_is_refused_before_the_first_round(process_of, federation, tmp_path):
  process, seen = process_of("fedavg"), []
  settings = _settings(5, learning_rate_schedule=schedules.cosine(rounds=4))
  with pytest.raises(ValueError, match="round 5 of 5"):
    loop.simulate(process, federation.clients, settings, on_start=seen.append)

  class _Fixed:
    """The process without the rate among what can be changed."""

    def __getattr__(self, name):
      return getattr(process, name)

    def get_hparams(self, state):
      return {"server_learning_rate": 1.0}

  with pytest.raises(ValueError, match="no tunable learning_rate"):
    loop.simulate(_Fixed(), federation.clients, settings, on_start=seen.append)
  assert not seen


# --- Clients that never train, and evaluation on clients' examples ------------------


def test_held_out_clients_never_take_part(process_of, federation):
  settings = dataclasses.replace(_settings(8), held_out_clients=2, clients_per_round=2)
  held_out = cohorts.held_out_clients(6, 2, 8)
  starts = []
  loop.simulate(
    process_of("fedsgd"), federation.clients, settings, before_round=starts.append
  )
  paths = [federation.clients.path(name) for name in federation.clients.ids]
  seen = {paths.index(given.path) for start in starts for given in start.client_inputs}
  assert seen == set(range(6)) - set(held_out)
  with pytest.raises(ValueError, match=r"clients_per_round must be in 1\.\.4"):
    loop.simulate(
      process_of("fedsgd"),
      federation.clients,
      dataclasses.replace(settings, clients_per_round=5),
    )


class _Watched:
  """An evaluation of clients that notes of what it was asked."""

  def __init__(self):
    self.asked = []

  def __call__(self, weights, clients, ids):
    self.asked.append((np.array(weights[0]), list(ids)))
    accuracy = np.array([clients.place(name) / 10 for name in ids])
    return {"loss": accuracy, "accuracy": accuracy, "num_examples": accuracy}


def _spread(name: str, values: np.ndarray) -> dict:
  return client_evaluation.spread(name, values, np.ones(len(values)))


def _client_values(record: dict) -> dict:
  return {
    name: value
    for name, value in record.items()
    if name.startswith(("client_", "held_out_"))
  }


def test_records_have_the_spread_over_both_groups(process_of, federation):
  settings = dataclasses.replace(
    _settings(5, held_out_clients=2, eval_clients_every=2), clients_per_round=2
  )
  watched = _Watched()
  result = loop.simulate(
    process_of("fedsgd"), federation.clients, settings, evaluate_clients=watched
  )
  names = federation.clients.ids
  groups = {
    "client": cohorts.training_clients(6, 2, 8),
    "held_out": cohorts.held_out_clients(6, 2, 8),
  }
  asked = [[names[place] for place in places] for places in groups.values()]
  assert [ids for _, ids in watched.asked] == 3 * asked
  np.testing.assert_array_equal(watched.asked[-1][0], result.state.variables.model[0])
  for record in result.records:
    found = _client_values(record)
    if record["round"] not in (2, 4, 5):
      assert found == {}
      continue
    assert found.pop("client_evaluation_seconds") >= 0
    assert found == {
      f"{group}_{name}_{part}": value
      for group, places in groups.items()
      for name in ("loss", "accuracy")
      for part, value in _spread(name, np.array(places) / 10).items()
    }


def test_real_evaluation_of_clients_is_in_the_records(process_of, federation):
  steps = client_evaluation.Personalization(steps=2, learning_rate=0.1)
  evaluate = client_evaluation.build_client_evaluation(federation.model, steps)
  settings = _settings(2)
  result = loop.simulate(
    process_of("fedavg"), federation.clients, settings, evaluate_clients=evaluate
  )
  weights = process_of("fedavg").get_model_weights(result.state).trainable
  values = evaluate(weights, federation.clients, federation.clients.ids)
  last = _client_values(result.records[-1])
  columns = client_evaluation.columns(federation.model, steps, has_held_out=False)
  assert list(last) == columns and len(columns) == 17
  worst = dict(loss=np.max, accuracy=np.min)
  for name in (*worst, *(f"personalized_{name}" for name in worst)):
    assert last[f"client_{name}_p50"] == np.median(values[name])
    of_all = worst[name.removeprefix("personalized_")](values[name])
    assert last[f"client_{name}_worst"] == of_all


def test_stopping_leaves_no_evaluation_of_clients_that_an_unbroken_run_lacks(
  process_of, federation, tmp_path
):
  process = process_of("fedsgd")
  asked = dict(eval_every=1, eval_clients_every=3, held_out_clients=1)
  settings = _settings(5, checkpoint_folder=str(tmp_path / "a"), **asked)
  options = dict(evaluate_clients=_Watched(), evaluate=lambda weights: {"loss": 1.0})
  unbroken = loop.simulate(process, federation.clients, settings, **options)
  settings = dataclasses.replace(settings, checkpoint_folder=str(tmp_path / "b"))
  stopped = loop.simulate(
    process, federation.clients, settings, should_stop=lambda: True, **options
  )
  assert _client_values(stopped.records[0])
  resumed = loop.simulate(process, federation.clients, settings, resume=True, **options)
  _assert_same(resumed, unbroken)


def test_a_run_gone_on_with_keeps_the_evaluations_of_its_rounds(
  process_of, federation, tmp_path
):
  """Though from now on there are fewer; not the last one's, as if it had not ended."""
  options = dict(evaluate_clients=_Watched(), evaluate=lambda weights: {"loss": 1.0})
  kept = dict(checkpoint_folder=str(tmp_path))
  process, clients = process_of("fedsgd"), federation.clients
  every = _settings(4, eval_every=1, eval_clients_every=2, **kept)
  loop.simulate(process, clients, every, **options)
  third = _settings(6, eval_every=3, eval_clients_every=3, **kept)
  result = loop.simulate(process, clients, third, resume=True, **options)
  rounds = {
    name: [r["round"] for r in result.records if name in r]
    for name in ("test_loss", "client_accuracy_p50")
  }
  assert rounds == {"test_loss": [1, 2, 3, 6], "client_accuracy_p50": [2, 6]}


def test_run_that_ends_where_it_had_broken_off_is_measured_there(
  process_of, federation, tmp_path
):
  process, clients = process_of("fedsgd"), federation.clients

  def fail_in_round_4(start):
    if start.rounds_done == 3:
      raise OSError

  def run(folder, **options):
    settings = _settings(
      options.pop("rounds"),
      eval_every=2,
      eval_clients_every=2,
      checkpoint_folder=str(tmp_path / folder),
    )
    measures = dict(
      evaluate=lambda weights: {"accuracy": float(weights[0].sum())},
      evaluate_clients=_Watched(),
    )
    return loop.simulate(process, clients, settings, **measures, **options)

  with pytest.raises(OSError):
    run("broken", rounds=6, before_round=fail_in_round_4)
  before, shown = [], []
  options = dict(rounds=3, keep_best="accuracy")
  found = run(
    "broken", resume=True, on_start=before.extend, on_round=shown.append, **options
  )
  unbroken = run("unbroken", **options)
  _assert_same(found, unbroken)
  # What is measured now is told as a round is, to trackers too.
  assert before == found.records[:2] and shown == found.records[2:]
  assert "test_accuracy" in shown[0] and "client_accuracy_p50" in shown[0]
  assert found.best.round_num == unbroken.best.round_num


def test_run_at_its_end_keeps_its_last_evaluation_of_clients(
  process_of, federation, tmp_path
):
  settings = _settings(
    5,
    eval_clients_every=3,
    checkpoint_folder=str(tmp_path),
    stop=stopping.StopRule("loss", target=1.0),
  )
  options = dict(evaluate_clients=_Watched(), evaluate=lambda weights: {"loss": 1.0})
  process, clients = process_of("fedsgd"), federation.clients
  first = loop.simulate(process, clients, settings, **options)
  assert len(first.records) == 1 and _client_values(first.records[0])
  again = loop.simulate(process, clients, settings, resume=True, **options)
  assert again.records == first.records
