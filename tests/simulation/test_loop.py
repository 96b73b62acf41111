"""The loop: who takes part, with which state and seed, and what a stop leaves."""

from __future__ import annotations

import collections
import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_algos import client_data
from tff_algos.algorithms import fed_avg, twafl
from tff_algos.errors import InputError, InputWarning
from tff_algos.runtimes import runtime, tracing
from tff_algos.simulation import (
  checkpoints,
  cohorts,
  evaluation,
  loop,
  measurements,
  seeds,
  stopping,
)
from tff_algos.simulation.availability import Availability
from tff_algos.simulation.client_state_store import ClientStateStore
from tff_algos.templates.identity import Identity
from tff_algos.templates.ledger import RoundTraffic
from tff_algos.templates.rounds import RoundOutput

_SECONDS = ("seconds", "evaluation_seconds")


# --- What a process is given, by a process that only takes notes --------------------


class _Notes:
  """Stands for a process: counts the rounds, and of each client its rounds."""

  model = personal_model = population = None
  state_types = client_state_types = None
  identity = Identity()

  def __init__(self):
    self.rounds: list[list[tuple]] = []
    crossing = RoundTraffic(down={"model": 7, "hparams": 3}, up={"model": 3})
    self.traffic = {"": crossing}

  def kind_of_round(self, rounds_done):
    del rounds_done
    return ""

  def next_of(self, rounds_done):
    del rounds_done
    return self.next

  def initialize(self):
    return np.int32(0)

  def initialize_client(self):
    return np.int32(0)

  def get_hparams(self, state):
    return {"learning_rate": np.float32(0.1)}

  def set_hparams(self, state, hparams):
    assert hparams == self.get_hparams(state)
    return state

  def get_model_weights(self, state):
    return collections.namedtuple("Weights", "trainable")((state,))

  def next(self, state, client_states, client_inputs):
    assert len(client_states) == len(client_inputs)
    self.rounds.append(list(zip(client_states, client_inputs)))
    n = len(client_inputs)
    train = dict(loss=np.float32(0.5), num_examples=np.int64(7 * n))
    counts = dict(num_accepted=np.int32(n), num_dropped=np.int32(0))
    return RoundOutput(
      state=np.int32(state + 1),
      client_states=[np.int32(s + 1) for s in client_states],
      metrics=dict(client_work=dict(train={**train, **counts})),
    )


@pytest.fixture
def notes():
  return _Notes()


class _NotesOfTwoKinds(_Notes):
  """Every third round is long; `next` by itself is neither kind."""

  def __init__(self):
    super().__init__()
    self.kinds: list[str] = []
    self.traffic = {
      "short": RoundTraffic(down={"a": 5, "question": 2}, up={"a": 4}),
      "long": RoundTraffic(down={"a": 5, "b": 8}, up={"a": 4, "answer": 1}),
    }

  def kind_of_round(self, rounds_done):
    return "long" if rounds_done % 3 == 2 else "short"

  def next_of(self, rounds_done):
    return getattr(self, self.kind_of_round(rounds_done))

  def short(self, *arguments):
    self.kinds.append("short")
    return self.next(*arguments)

  def long(self, *arguments):
    self.kinds.append("long")
    return self.next(*arguments)


@pytest.fixture
def notes_of_two_kinds():
  return _NotesOfTwoKinds()


def _settings(rounds: int, **options) -> loop.Settings:
  return loop.Settings(rounds=rounds, clients_per_round=3, seed=8, **options)


def test_before_each_round_comes_what_it_starts_from(notes, federation):
  starts = []

  def before_round(start):
    assert len(notes.rounds) == start.rounds_done  # Not yet done.
    starts.append(start)

  loop.simulate(notes, federation.clients, _settings(5), before_round=before_round)
  assert [start.rounds_done for start in starts] == [0, 1, 2, 3, 4]
  assert [start.state for start in starts] == [0, 1, 2, 3, 4]
  for start, given in zip(starts, notes.rounds):
    assert list(zip(start.client_states, start.client_inputs)) == given


def test_each_round_has_the_cohort_of_its_seed(notes, federation):
  clients = federation.clients
  result = loop.simulate(notes, clients, _settings(7))
  assert result.state == 7
  taken_part = collections.Counter()
  for round_num, given in enumerate(notes.rounds):
    cohort = cohorts.uniform_cohort(len(clients), 3, 8, round_num)
    for place, (state, client_input) in zip(cohort, given):
      assert state == taken_part[place]
      assert client_input.path == clients.path(f"client {place}")
      np.testing.assert_array_equal(
        client_input.seed, seeds.client_seed(8, round_num, place)
      )
    taken_part.update(cohort)
  assert len(notes.rounds) == 7
  kept = result.client_states.get(range(len(clients)))
  assert kept == [taken_part[place] for place in range(len(clients))]


def test_record_of_a_round(notes, federation):
  values = {"loss": 0.25, "accuracy": 0.75}
  [record] = loop.simulate(
    notes, federation.clients, _settings(1), evaluate=lambda weights: values
  ).records
  assert all(record.pop(name) >= 0 for name in _SECONDS)
  assert record == dict(
    round=1,
    train_loss=0.5,
    num_examples=21,
    num_accepted=3,
    num_dropped=0,
    bytes_down=30,
    bytes_down_model=21,
    bytes_down_hparams=9,
    bytes_up=9,
    bytes_up_model=9,
    test_loss=0.25,
    test_accuracy=0.75,
  )


def _bytes_of(record: loop.Record) -> dict[str, int]:
  return {name: n for name, n in record.items() if name.startswith("bytes_")}


def test_records_have_the_parts_of_all_kinds_of_rounds(notes_of_two_kinds, federation):
  """0 for a part that does not travel in this kind."""
  rounds = loop.simulate(notes_of_two_kinds, federation.clients, _settings(4)).records
  short = dict(
    bytes_down=21,
    bytes_down_a=15,
    bytes_down_b=0,
    bytes_down_question=6,
    bytes_up=12,
    bytes_up_a=12,
    bytes_up_answer=0,
  )
  long = dict(
    bytes_down=39,
    bytes_down_a=15,
    bytes_down_b=24,
    bytes_down_question=0,
    bytes_up=15,
    bytes_up_a=12,
    bytes_up_answer=3,
  )
  assert [_bytes_of(record) for record in rounds] == [short, short, long, short]


def test_resumed_run_goes_on_with_the_kind_of_its_round(
  notes_of_two_kinds, federation, tmp_path
):
  notes, clients = notes_of_two_kinds, federation.clients
  settings = _settings(7, checkpoint_folder=str(tmp_path))
  loop.simulate(notes, clients, settings, should_stop=lambda: len(notes.rounds) == 2)
  assert notes.kinds == ["short", "short"]
  loop.simulate(notes, clients, settings, resume=True)
  assert notes.kinds == ["short", "short", "long", "short", "short", "long", "short"]


def test_round_with_nobody_is_of_its_kind(notes_of_two_kinds, federation, monkeypatch):
  """Which says what is measured of it, and what grows older."""
  notes, kinds = notes_of_two_kinds, []

  def on_device_next(process, rounds_done):
    kind = process.kind_of_round(rounds_done)

    def next_fn(state, clients):
      assert clients == []
      kinds.append(kind)
      return np.int32(state + 1), {}

    return next_fn

  monkeypatch.setattr(loop, "on_device_next", on_device_next)
  nobody = Availability(dropout=1 - 1e-12)
  result = loop.simulate(notes, federation.clients, _settings(4, availability=nobody))
  assert kinds == ["short", "short", "long", "short"]
  assert result.state == 4 and notes.rounds == []


@pytest.mark.parametrize(
  "every, rounds, expected", [(1, 3, [1, 2, 3]), (3, 7, [3, 6, 7]), (10, 4, [4])]
)
def test_evaluates_at_the_interval_and_at_the_end(
  notes, federation, every, rounds, expected
):
  seen = []

  def evaluate(weights):
    seen.append(int(weights[0]))
    return {"loss": 1.0}

  result = loop.simulate(
    notes, federation.clients, _settings(rounds, eval_every=every), evaluate=evaluate
  )
  assert seen == expected
  measured = [r["round"] for r in result.records if "test_loss" in r]
  assert measured == expected


def test_reports_the_start_and_each_round(notes, federation, tmp_path):
  settings = _settings(4, checkpoint_folder=tmp_path, checkpoint_every=3)
  events = []
  options = dict(
    on_start=lambda records: events.append([r["round"] for r in records]),
    on_round=lambda record: events.append(record["round"]),
  )
  loop.simulate(
    notes,
    federation.clients,
    settings,
    should_stop=lambda: len(notes.rounds) == 2,
    **options,
  )
  assert events == [[], 1, 2]
  events.clear()
  loop.simulate(notes, federation.clients, settings, resume=True, **options)
  assert events == [[1, 2], 3, 4]


@pytest.mark.parametrize(
  "every, expected", [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])]
)
def test_saves_at_the_interval_and_at_the_end(
  notes, federation, tmp_path, monkeypatch, every, expected
):
  saved, save = [], checkpoints.save

  def note(folder, state, store, round_num, records, **_):
    saved.append(round_num)
    save(folder, state, store, round_num, records)

  monkeypatch.setattr(checkpoints, "save", note)
  settings = _settings(5, checkpoint_folder=str(tmp_path / "a"), checkpoint_every=every)
  loop.simulate(notes, federation.clients, settings)
  assert saved == expected
  loop.simulate(notes, federation.clients, _settings(5))
  assert saved == expected  # Without a folder, none.


def test_finished_run_resumed_does_nothing(notes, federation, tmp_path):
  settings = _settings(2, checkpoint_folder=str(tmp_path))
  first = loop.simulate(notes, federation.clients, settings)
  again = loop.simulate(notes, federation.clients, settings, resume=True)
  assert len(notes.rounds) == 2
  assert again.records == first.records
  assert again.state == first.state
  longer = _settings(3, checkpoint_folder=str(tmp_path))
  assert loop.simulate(notes, federation.clients, longer, resume=True).state == 3
  assert len(notes.rounds) == 3


def test_an_empty_name_is_no_folder(notes, federation):
  settings = _settings(1, checkpoint_folder="")
  with pytest.raises(InputError, match="To resume a run, give the checkpoint_folder"):
    loop.simulate(notes, federation.clients, settings, resume=True)


# --- What ends a run ----------------------------------------------------------------


def _accuracy_in_round(*values):
  """An evaluation that gives the value of each round."""
  return lambda weights: {"accuracy": values[int(weights[0]) - 1]}


def test_run_ends_by_its_rule_with_a_checkpoint(notes, federation, tmp_path):
  settings = _settings(
    9, checkpoint_folder=str(tmp_path), stop=stopping.StopRule(target=0.5, patience=2)
  )
  clients, evaluate = federation.clients, _accuracy_in_round(0.1, 0.3, 0.2, 0.6, 0.7)
  result = loop.simulate(notes, clients, settings, evaluate=evaluate)
  assert (len(result.records), result.ended_by) == (4, "target")
  # It is at its end still; with another rule it goes on.
  again = loop.simulate(notes, clients, settings, evaluate=evaluate, resume=True)
  assert (again.records, again.ended_by) == (result.records, "target")
  assert len(notes.rounds) == 4
  settings = dataclasses.replace(settings, stop=None, rounds=5)
  longer = loop.simulate(notes, clients, settings, evaluate=evaluate, resume=True)
  assert (longer.state, longer.ended_by) == (5, "rounds")


def test_run_ends_by_planned_evaluations_only(notes, federation, tmp_path):
  """That of a stopped run's last round would not be there in the unbroken run."""
  rule = stopping.StopRule(target=0.5)
  settings = _settings(6, eval_every=2, checkpoint_folder=str(tmp_path), stop=rule)
  clients = federation.clients
  evaluate = _accuracy_in_round(0.9, 0.1, 0.9, 0.2, 0.9, 0.3)
  stopped = loop.simulate(
    notes,
    clients,
    settings,
    evaluate=evaluate,
    should_stop=lambda: len(notes.rounds) == 3,
  )
  assert stopped.records[2]["test_accuracy"] == 0.9
  assert stopped.ended_by == "stopped"
  resumed = loop.simulate(notes, clients, settings, evaluate=evaluate, resume=True)
  assert (len(resumed.records), resumed.ended_by) == (6, "rounds")


def test_rule_needs_its_metric(notes, federation):
  settings = _settings(2, stop=stopping.StopRule("f1", target=0.5))
  with pytest.raises(ValueError, match="give evaluate="):
    loop.simulate(notes, federation.clients, settings)
  assert notes.rounds == []
  with pytest.raises(ValueError, match="stop by f1, but evaluation gives accuracy:"):
    loop.simulate(
      notes, federation.clients, settings, evaluate=_accuracy_in_round(0.1, 0.2)
    )


# --- What is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
  "values, match",
  [
    (dict(rounds=0), "rounds must be at least 1; found 0"),
    (dict(clients_per_round=0), "clients_per_round must be at least 1"),
    (dict(eval_every=0), "eval_every must be at least 1"),
    (dict(rounds=2.5), r"rounds must be a whole number; found 2\.5\.$"),
    (dict(clients_per_round=True), "clients_per_round must be a whole number"),
    (dict(eval_every=np.float32(1)), "eval_every must be a whole number"),
    (dict(eval_clients_every=None), "eval_clients_every must be a whole number"),
    (dict(seed="0"), "seed must be a whole number; found '0'"),
    (dict(checkpoint_every=0.5), "checkpoint_every must be a whole number"),
    (dict(held_out_clients=False), "held_out_clients must be a whole number"),
    (dict(seed=-1), "seed must be at least 0"),
    (dict(checkpoint_every=-1), "checkpoint_every must be at least 0"),
    (
      dict(availability=0.5),
      r"availability must be a tff_algos.Availability; .* 0\.5\.$",
    ),
    (dict(availability=None), "availability must be a tff_algos.Availability; .* None"),
    (dict(stop="accuracy:0.9"), "stop must be a tff_algos.StopRule; .*'accuracy:0.9'"),
    (dict(learning_rate_schedule="cosine"), "must be a function .* found a str"),
    (dict(checkpoint_every=1), "checkpoint_every needs the checkpoint_folder"),
    (dict(checkpoint_folder="ram://a/b"), "must be a local folder, .*ram://a/b"),
  ],
)
def test_impossible_settings_are_refused(values, match):
  with pytest.raises(ValueError, match=match):
    loop.Settings(**{**dict(rounds=1, clients_per_round=1), **values})


def test_settings_may_be_numpys_integers():
  found = loop.Settings(np.int64(2), np.int32(1), seed=np.int64(3))
  assert found == loop.Settings(2, 1, seed=3)
  assert not [v for v in vars(found).values() if isinstance(v, np.generic)]


def test_model_in_the_place_of_a_process_is_refused(federation):
  with pytest.raises(InputError, match=r"process is a Model: .*\.build_fed_avg"):
    loop.simulate(federation.model, federation.clients, _settings(1))


@pytest.mark.parametrize("settings", [{"rounds": 1}, loop.Settings, None])
def test_other_than_settings_is_refused(notes, federation, settings):
  with pytest.raises(InputError, match=r"^settings must be a tff_algos\.Settings; found"):
    loop.simulate(notes, federation.clients, settings)


def test_cohort_larger_than_the_population_is_refused(notes, federation):
  settings = loop.Settings(rounds=1, clients_per_round=7)
  with pytest.raises(ValueError, match="the number of clients"):
    loop.simulate(notes, federation.clients, settings)
  assert notes.rounds == []


def test_run_without_a_checkpoint_is_begun_where_it_is_resumed(
  notes, federation, tmp_path
):
  """So that a script that is started again and again does one run."""
  settings = _settings(2, checkpoint_folder=str(tmp_path / "new"))
  for _ in range(2):
    result = loop.simulate(notes, federation.clients, settings, resume=True)
    assert len(result.records) == len(notes.rounds) == 2
  with pytest.raises(InputError, match="give the checkpoint_folder"):
    loop.simulate(notes, federation.clients, _settings(1), resume=True)


@pytest.mark.parametrize("folder", ["file/ck", "/proc/ck"])
def test_folder_that_cannot_be_written_to_is_refused_before_the_first_round(
  notes, federation, tmp_path, folder
):
  (tmp_path / "file").write_text("mine")
  settings = _settings(2, checkpoint_folder=str(tmp_path / folder))
  said = r"/ck cannot be written to \(.*\): choose another checkpoint_folder"
  with pytest.raises(InputError, match=said):
    loop.simulate(notes, federation.clients, settings)
  assert notes.rounds == []


@pytest.mark.parametrize("whose", ["initialize", "initialize_client"])
def test_state_that_checkpoints_do_not_hold_is_refused_before_the_first_round(
  notes, federation, tmp_path, monkeypatch, whose
):
  monkeypatch.setattr(notes, whose, lambda: tf.constant(0, tf.bfloat16).numpy())
  with pytest.raises(InputError, match="bfloat16, which checkpoints do not hold"):
    loop.simulate(notes, federation.clients, _settings(2, checkpoint_folder=tmp_path))
  assert notes.rounds == []


def test_a_second_run_in_the_folder_is_refused(notes, federation, tmp_path):
  settings, started = _settings(2, checkpoint_folder=str(tmp_path)), []

  def run_another(start):
    del start
    with pytest.raises(InputError, match="is being written by another run"):
      loop.simulate(
        _Notes(), federation.clients, settings, resume=True, on_start=started.append
      )

  loop.simulate(notes, federation.clients, settings, before_round=run_another)
  assert len(notes.rounds) == 2
  assert started == []


def test_resumed_run_has_the_clients_it_began_with(notes, federation, tmp_path):
  """A client's state goes by its place."""
  settings = _settings(2, checkpoint_folder=str(tmp_path / "run"))
  loop.simulate(notes, federation.clients, settings)
  spec, clients = federation.model.example_spec, federation.clients
  examples = {name: clients.examples(name, spec) for name in reversed(clients.ids)}
  others = client_data.write_clients(tmp_path / "others", examples, spec)
  with pytest.raises(InputError, match="began with clients=6 of digest"):
    loop.simulate(notes, others, settings, resume=True)
  held_out = dataclasses.replace(settings, rounds=3, held_out_clients=1)
  with pytest.raises(InputError, match="began with held_out_clients=0, "):
    loop.simulate(notes, federation.clients, held_out, resume=True)
  assert len(notes.rounds) == 2


def test_resumed_run_has_the_hyper_parameters_it_began_with(
  process_of, federation, tmp_path
):
  """Those too that shape the computation."""
  settings = _settings(1, checkpoint_folder=str(tmp_path))
  loop.simulate(process_of("fedavg"), federation.clients, settings)
  other = fed_avg.build_fed_avg(federation.model, fed_avg.FedAvgHparams(epochs=7))
  with pytest.raises(InputError, match=r"but this one has epochs=7[,:]"):
    loop.simulate(other, federation.clients, settings, resume=True)


@pytest.mark.parametrize(
  "name",
  [
    *("evaluate", "evaluate_clients"),
    *("on_start", "before_round", "on_round", "should_stop"),
  ],
)
def test_what_is_no_function_is_refused(notes, federation, name):
  with pytest.raises(InputError, match=f"^{name} must be a function.* found a tuple"):
    loop.simulate(notes, federation.clients, _settings(1), **{name: (1, 2)})
  assert notes.rounds == []


def test_context_that_gives_references_is_refused(notes, federation):
  context = runtime.create_runtime().federated_context()
  said = "^simulate runs on a runtime itself, .* `with runtime:` in the place of"
  with (
    tff.framework.get_context_stack().install(context),
    pytest.raises(InputError, match=said),
  ):
    loop.simulate(notes, federation.clients, _settings(1))
  assert notes.rounds == []


@pytest.mark.parametrize("given", [None, 0.5])
def test_evaluation_without_names_is_refused(notes, federation, given):
  words = f"a mapping of metrics to numbers.* found a {type(given).__name__}"
  with pytest.raises(InputError, match=words):
    loop.simulate(notes, federation.clients, _settings(1), evaluate=lambda w: given)


def test_metric_that_is_no_number_is_refused(notes, federation):
  with pytest.raises(InputError, match="number for each metric; accuracy is 'high'"):
    loop.simulate(
      notes, federation.clients, _settings(1), evaluate=lambda w: {"accuracy": "high"}
    )


def test_process_whose_global_model_predicts_nothing_is_not_evaluated(
  notes, federation, monkeypatch
):
  monkeypatch.setattr(notes, "personal_model", lambda weights, examples: None)
  with pytest.raises(InputError, match="leave evaluate out"):
    loop.simulate(notes, federation.clients, _settings(1), evaluate=lambda w: {})


def test_stopping_leaves_no_evaluation_that_an_unbroken_run_lacks(
  notes, federation, tmp_path
):
  def run(settings, **options):
    def evaluate(weights):
      return {"accuracy": float(weights[0])}

    result = loop.simulate(
      notes, federation.clients, settings, evaluate=evaluate, **options
    )
    return [(r["round"], r.get("test_accuracy")) for r in result.records]

  settings = _settings(6, eval_every=2, checkpoint_folder=str(tmp_path))
  stopped = run(settings, should_stop=lambda: len(notes.rounds) == 3)
  assert stopped == [(1, None), (2, 2.0), (3, 3.0)]
  unbroken = [(1, None), (2, 2.0), (3, None), (4, 4.0), (5, None), (6, 6.0)]
  assert run(settings, resume=True) == unbroken


@pytest.mark.parametrize("rate, seed", [(0.1, 9), (0.5, 8), (0.5, 9)])
def test_run_with_another_origin_is_not_resumed(
  notes, federation, tmp_path, monkeypatch, rate, seed
):
  folder = dict(checkpoint_folder=str(tmp_path))
  loop.simulate(notes, federation.clients, _settings(2, **folder))
  monkeypatch.setattr(
    notes, "get_hparams", lambda state: {"learning_rate": np.float32(rate)}
  )
  was = ", ".join(["seed=8"] * (seed != 8) + ["learning_rate=0.1"] * (rate != 0.1))
  now = was.replace("8", str(seed)).replace("0.1", str(rate))
  settings = loop.Settings(rounds=3, clients_per_round=3, seed=seed, **folder)
  with pytest.raises(ValueError, match=f"began with {was}, but this one has {now}: "):
    loop.simulate(notes, federation.clients, settings, resume=True)
  assert len(notes.rounds) == 2


def test_checkpoint_without_an_origin_is_gone_on_with(notes, federation, tmp_path):
  state, store = (
    np.int32(1),
    ClientStateStore(np.int32(0), path=checkpoints.client_file(str(tmp_path))),
  )
  checkpoints.save(str(tmp_path), state, store, 1, [dict(round=1)])
  settings = _settings(2, checkpoint_folder=str(tmp_path))
  found = loop.simulate(notes, federation.clients, settings, resume=True)
  assert found.state == 2


def test_new_run_over_checkpoints_of_another_is_refused(notes, federation, tmp_path):
  """It would mix two runs: a checkpoint of the same round would be the older run's."""
  settings = _settings(2, checkpoint_folder=str(tmp_path))
  loop.simulate(notes, federation.clients, settings)
  with pytest.raises(ValueError, match="resume"):
    loop.simulate(notes, federation.clients, settings)
  assert len(notes.rounds) == 2


# --- The best round -----------------------------------------------------------------

# The test metric after each round of `_Notes`, whose state is the number of rounds.
_VALUES = [np.nan, 0.25, 0.75, 0.5, 0.75, 0.875, 0.0]


def _simulate_best(clients, folder=None, stop_after=99, **options):
  """The best round, (round, value, state), of a process that does so many rounds."""
  notes, run = _Notes(), dict(resume=False)
  for name in ("resume", "keep_best"):
    if name in options:
      run[name] = options.pop(name)
  if folder is not None:
    options["checkpoint_folder"] = str(folder)
  metric, sign = ("loss", -1) if run.get("keep_best") == "loss" else ("score", 1)
  result = loop.simulate(
    notes,
    clients,
    _settings(options.pop("rounds", 7), **options),
    evaluate=lambda weights: {metric: sign * _VALUES[weights[0] - 1]},
    should_stop=lambda: len(notes.rounds) == stop_after,
    **{"keep_best": "score", **run},
  )
  best = result.best
  return best and (best.round_num, best.value, best.weights and best.weights[0])


@pytest.mark.parametrize(
  "options, expected",
  [
    (dict(rounds=1), None),  # Not a number.
    (dict(rounds=2), (2, 0.25, 2)),
    (dict(rounds=5), (3, 0.75, 3)),  # The first of two that are as good.
    (dict(), (6, 0.875, 6)),
    (dict(eval_every=3), (6, 0.875, 6)),
    (dict(eval_every=2, rounds=5), (5, 0.75, 5)),  # The last is measured anyway.
    (dict(keep_best=None), None),
    # Of which less is better: minus the score.
    (dict(keep_best="loss", rounds=5), (3, -0.75, 3)),
  ],
)
@pytest.mark.filterwarnings("ignore:Round 1. the test loss is nan")
def test_best_round_is_that_of_the_records(federation, options, expected):
  assert _simulate_best(federation.clients, **options) == expected


def test_best_round_is_by_a_metric_that_is_measured(notes, federation):
  options = dict(keep_best="acuracy")
  with pytest.raises(InputError, match=r"keep the best model .*, give evaluate="):
    loop.simulate(notes, federation.clients, _settings(5), **options)
  assert notes.rounds == []
  options["evaluate"] = _accuracy_in_round(*_VALUES)
  with pytest.raises(InputError, match="by acuracy, but evaluation gives accuracy:"):
    loop.simulate(notes, federation.clients, _settings(5, eval_every=2), **options)
  assert len(notes.rounds) == 2


@pytest.mark.parametrize("stop_after", range(1, 7))
@pytest.mark.parametrize("eval_every", [1, 2, 4])
def test_best_round_of_a_resumed_run_is_that_of_the_unbroken_one(
  federation, tmp_path, stop_after, eval_every
):
  """Also where stopping had a round measured that is not measured otherwise."""
  clients, options = federation.clients, dict(eval_every=eval_every)
  unbroken = _simulate_best(clients, **options)
  stopped = _simulate_best(clients, tmp_path, stop_after, **options)
  measured = [t for t in range(1, stop_after) if t % eval_every == 0] + [stop_after]
  finite = {t: _VALUES[t - 1] for t in measured if not np.isnan(_VALUES[t - 1])}
  want = max(finite, key=finite.get, default=None)
  assert stopped == (want and (want, finite[want], want))
  assert _simulate_best(clients, tmp_path, resume=True, **options) == unbroken


def test_rounds_that_were_measured_count_where_fewer_are_from_now_on(
  federation, tmp_path
):
  """For the best model and for patience; but for the one that the run was stopped at."""
  clients, folder = federation.clients, tmp_path / "best"
  _simulate_best(clients, folder, 4)
  assert _simulate_best(clients, folder, resume=True, eval_every=5) == (3, 0.75, 3)

  def run(eval_every, stop_after=99, resume=False):
    notes = _Notes()
    settings = _settings(
      20,
      eval_every=eval_every,
      checkpoint_folder=str(tmp_path / "patience"),
      stop=stopping.StopRule(patience=3),
    )
    result = loop.simulate(
      notes,
      clients,
      settings,
      evaluate=lambda weights: {"accuracy": -weights[0]},
      should_stop=lambda: len(notes.rounds) == stop_after,
      resume=resume,
    )
    return len(result.records), result.ended_by

  assert run(1, 3) == (3, "stopped")
  assert run(4, resume=True) == (8, "patience")  # None better in rounds 2, 4 and 8.


def test_best_round_of_a_checkpoint_that_kept_none_is_not_another(federation, tmp_path):
  """As older versions wrote them: a worse round is not taken, a better one is."""
  clients = federation.clients
  _simulate_best(clients, tmp_path, 3, keep_best=None)
  assert _simulate_best(clients, tmp_path, 2, resume=True) == (3, 0.75, None)
  assert _simulate_best(clients, tmp_path, resume=True) == (6, 0.875, 6)


# --- A real process: metrics, and a break makes no difference -----------------------


def _without_seconds(records: list[dict]) -> list[dict]:
  return [{k: v for k, v in r.items() if k not in _SECONDS} for r in records]


def _run(process, federation, folder, rounds: int = 6, **options):
  settings = loop.Settings(
    rounds=rounds,
    clients_per_round=3,
    seed=4,
    checkpoint_every=2,
    checkpoint_folder=str(folder),
  )
  evaluate = evaluation.build_evaluation(
    federation.model, federation.test_x, federation.test_y
  )
  return loop.simulate(
    process, federation.clients, settings, evaluate=evaluate, **options
  )


def _assert_same_run(process, found: loop.Result, expected: loop.Result, folder):
  """Bit for bit; also what lies in the last checkpoint."""
  tree.assert_same_structure(found.state, expected.state)
  for a, b in zip(tree.flatten(found.state), tree.flatten(expected.state)):
    np.testing.assert_array_equal(a, b)
    assert np.asarray(a).dtype == np.asarray(b).dtype
  assert _without_seconds(found.records) == _without_seconds(expected.records)
  kept_in = checkpoints.client_file(str(folder))
  store = ClientStateStore(process.initialize_client(), path=kept_in)
  restored = checkpoints.restore(str(folder), process.initialize(), store)
  assert restored.round_num == len(expected.records)
  assert restored.records == found.records
  for a, b in zip(tree.flatten(restored.state), tree.flatten(expected.state)):
    np.testing.assert_array_equal(a, b)
  for place in range(6):
    [want] = expected.client_states.get([place])
    for keeper in (found.client_states, store):
      [have] = keeper.get([place])
      for a, b in zip(tree.flatten(have), tree.flatten(want)):
        np.testing.assert_array_equal(a, b)


stateful = pytest.mark.parametrize("name", ["scaffold", "fedgg", "fedadam"])


@pytest.fixture(scope="module")
def unbroken(process_of, federation, tmp_path_factory):
  """`(name) -> Result` of six rounds without a break."""
  done = {}

  def get(name: str) -> loop.Result:
    if name not in done:
      folder = tmp_path_factory.mktemp("unbroken")
      done[name] = _run(process_of(name), federation, folder)
    return done[name]

  return get


def test_runs_that_are_compared_do_something(unbroken):
  """Each round changes the model, and the clients' states differ."""
  result = unbroken("scaffold")
  losses = [r["train_loss"] for r in result.records]
  assert len(set(losses)) == 6
  states = [tree.flatten(s)[0].tobytes() for s in result.client_states.get(range(6))]
  assert len(set(states)) >= 5


@stateful
def test_run_stopped_and_resumed_is_the_unbroken_run(
  process_of, federation, unbroken, tmp_path, name
):
  """Stopped after round 3, which is no round of the interval."""
  process, asked = process_of(name), []

  def should_stop():
    asked.append(None)
    return len(asked) == 3

  first = _run(process, federation, tmp_path, should_stop=should_stop)
  assert len(first.records) == 3
  assert _without_seconds(first.records) == _without_seconds(unbroken(name).records[:3])
  resumed = _run(process, federation, tmp_path, resume=True)
  _assert_same_run(process, resumed, unbroken(name), tmp_path)


def _before_round(start):
  if start.rounds_done == 3:
    raise OSError("the disk is gone")


def _on_round(record):
  if record["round"] == 4:
    raise OSError("the disk is gone")


def _interrupted(record):
  if record["round"] == 4:
    raise KeyboardInterrupt("the disk is gone")


@pytest.mark.parametrize(
  "name, fail",
  [
    *((name, {"before_round": _before_round}) for name in ("scaffold", "fedgg")),
    ("fedadam", {"on_round": _interrupted}),
    ("scaffold", {"on_round": _on_round}),
  ],
  ids=["scaffold", "fedgg", "interrupted", "after its record"],
)
def test_run_that_failed_in_a_round_and_was_resumed_is_the_unbroken_run(
  process_of, federation, unbroken, tmp_path, name, fail
):
  """In round 4, so the checkpoint that is due is of round 2; and at once again."""
  process = process_of(name)
  for is_resumed in (False, True):
    with pytest.raises((OSError, KeyboardInterrupt), match="the disk is gone"):
      _run(process, federation, tmp_path, resume=is_resumed, **fail)
    assert checkpoints.rounds_done(str(tmp_path)) == 3
  reported = []
  resumed = _run(
    process,
    federation,
    tmp_path,
    resume=True,
    on_start=lambda records: reported.extend(r["round"] for r in records),
    on_round=lambda record: reported.append(record["round"]),
  )
  assert reported == [1, 2, 3, 4, 5, 6]
  _assert_same_run(process, resumed, unbroken(name), tmp_path)


def test_round_that_fails_after_a_checkpoint_leaves_the_one_before_it(
  process_of, federation, unbroken, tmp_path
):
  """With its clients' states, which are to go with the next checkpoint only."""
  process = process_of("fedgg")

  def fail(start):
    if start.rounds_done == 4:
      raise OSError("the disk is gone")

  with pytest.raises(OSError, match="the disk is gone"):
    _run(process, federation, tmp_path, before_round=fail)
  (tmp_path / "round_0000004" / "server.npz").unlink()
  with pytest.warns(InputWarning, match="checkpoint before is taken, round_0000002"):
    resumed = _run(process, federation, tmp_path, resume=True)
  _assert_same_run(process, resumed, unbroken("fedgg"), tmp_path)


@pytest.mark.parametrize("what", ["server", "clients"])
def test_evaluation_that_fails_leaves_the_rounds_before(
  notes, federation, tmp_path, what
):
  calls = []

  def evaluate(*arguments):
    calls.append(arguments)
    if len(calls) == 3:
      raise MemoryError("too many pictures")
    values = {"num_examples": np.ones(6, np.int64), "accuracy": np.ones(6)}
    # Numbers of NumPy's are numbers too.
    return {"accuracy": np.float32(0.5)} if what == "server" else values

  asked = {"evaluate" if what == "server" else "evaluate_clients": evaluate}
  settings = _settings(rounds=5, checkpoint_folder=str(tmp_path))
  with pytest.raises(MemoryError, match="too many pictures"):
    loop.simulate(notes, federation.clients, settings, **asked)
  assert checkpoints.rounds_done(str(tmp_path)) == 2
  resumed = loop.simulate(notes, federation.clients, settings, resume=True, **asked)
  assert len(resumed.records) == 5 and len(calls) == 6


@stateful
def test_run_that_died_while_saving_and_was_resumed_is_the_unbroken_run(
  process_of, federation, unbroken, tmp_path, monkeypatch, name
):
  """At the checkpoint of round 4; that of round 2 is left."""
  process = process_of(name)
  replace, calls = checkpoints.os.replace, []

  def die_at_second(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
      raise KeyboardInterrupt
    replace(*arguments)

  with monkeypatch.context() as patched:
    patched.setattr(checkpoints.os, "replace", die_at_second)
    with pytest.raises(KeyboardInterrupt):
      _run(process, federation, tmp_path)
  started = []
  resumed = _run(process, federation, tmp_path, resume=True, on_start=started.extend)
  assert [r["round"] for r in started] == [1, 2]
  _assert_same_run(process, resumed, unbroken(name), tmp_path)


def test_metrics_of_a_real_round(process_of, federation):
  """Examples are those of the cohort; the loss of FedSGD is that of the start."""
  settings = loop.Settings(rounds=2, clients_per_round=4, seed=2)
  result = loop.simulate(process_of("fedsgd"), federation.clients, settings)
  [crossing] = process_of("fedsgd").traffic.values()
  for round_num, record in enumerate(result.records):
    cohort = cohorts.uniform_cohort(6, 4, 2, round_num)
    assert record["num_examples"] == federation.clients.num_examples[cohort].sum()
    assert (record["num_accepted"], record["num_dropped"]) == (4, 0)
    expected = {
      f"bytes_{direction}_{part}": 4 * count
      for direction, parts in crossing._asdict().items()
      for part, count in parts.items()
    }
    expected["bytes_down"] = 4 * sum(crossing.down.values())
    expected["bytes_up"] = 4 * sum(crossing.up.values())
    assert _bytes_of(record) == expected
  assert np.isfinite(result.records[0]["train_loss"])
  assert not np.array_equal(
    result.state.variables.model[0], federation.model.initial_weights[0]
  )


@pytest.fixture(scope="module")
def alternating(federation):
  """TWAFL whose deep layers, the bias, travel in every second round."""
  return twafl.build_twafl(
    federation.model,
    twafl.TwaflHparams(rounds_in_loop=2, freq=1),
    num_clients=6,
    num_examples=int(federation.clients.num_examples.sum()),
  )


def test_kinds_of_rounds_alternate(alternating, federation):
  """A shallow round leaves the bias bit for bit, and counts no byte of it."""
  kernel, bias = federation.model.initial_weights
  kernels, biases = [kernel], [bias]

  def note(weights):
    kernels.append(np.array(weights[0]))
    biases.append(np.array(weights[1]))
    return {}

  settings = loop.Settings(rounds=4, clients_per_round=3, seed=4)
  rounds = loop.simulate(alternating, federation.clients, settings, evaluate=note).records
  moved = [not np.array_equal(a, b) for a, b in zip(kernels, kernels[1:])]
  assert moved == [True] * 4
  moved = [not np.array_equal(a, b) for a, b in zip(biases, biases[1:])]
  assert moved == [False, True, False, True]
  # 12 and 3 weights of 4 bytes, 2 hyper-parameters; a weight for each part.
  shallow = dict(
    bytes_down=3 * (48 + 8 + 4),
    bytes_down_shallow=3 * 48,
    bytes_down_deep=0,
    bytes_down_hparams=3 * 8,
    bytes_down_round_num=3 * 4,
    bytes_up=3 * (48 + 4 + 24),
    bytes_up_shallow=3 * 48,
    bytes_up_deep=0,
    bytes_up_aggregation=3 * 4,
    bytes_up_metrics=3 * 24,
  )
  full = dict(
    shallow,
    bytes_down=3 * (48 + 12 + 8 + 4),
    bytes_down_deep=3 * 12,
    bytes_up=3 * (48 + 12 + 8 + 24),
    bytes_up_deep=3 * 12,
    bytes_up_aggregation=3 * 8,
  )
  assert [_bytes_of(record) for record in rounds] == [shallow, full, shallow, full]


def test_run_stopped_between_two_kinds_of_rounds_and_resumed_is_the_unbroken_run(
  alternating, federation, tmp_path
):
  unbroken = _run(alternating, federation, tmp_path / "unbroken", rounds=4)
  folder = tmp_path / "stopped"
  first = _run(alternating, federation, folder, rounds=4, should_stop=lambda: True)
  assert len(first.records) == 1
  resumed = _run(alternating, federation, folder, rounds=4, resume=True)
  _assert_same_run(alternating, resumed, unbroken, folder)


def _too_large(federation) -> np.ndarray:
  """An input of which the first logit is infinite."""
  kernel, _ = federation.model.initial_weights
  return np.finfo(np.float32).max * np.sign(kernel[:, 0])


def test_client_with_a_number_that_is_not_finite_is_counted_as_dropped(
  process_of, federation, tmp_path
):
  spec = federation.model.example_spec
  clients = {
    name: federation.clients.examples(name, spec) for name in federation.clients.ids
  }
  x, y = clients["client 2"]
  x[0] = _too_large(federation)
  clients["client 2"] = x, y
  poisoned = client_data.write_clients(str(tmp_path), clients, spec)
  settings = loop.Settings(rounds=1, clients_per_round=6)
  [record] = loop.simulate(process_of("scaffold"), poisoned, settings).records
  assert (record["num_accepted"], record["num_dropped"]) == (5, 1)
  others = federation.clients.num_examples.sum() - len(y)
  assert record["num_examples"] == others
  assert np.isfinite(record["train_loss"])


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "twafl", "tefl", "afl"])
def test_process_of_another_population_is_refused_before_anything_is_written(
  process_of, federation, tmp_path, name
):
  """Its N would be wrong: with too small a one control variates go too far."""
  settings = loop.Settings(
    rounds=1, clients_per_round=2, held_out_clients=1, checkpoint_folder=tmp_path / "run"
  )
  n = len(federation.clients)
  said = f"built with num_clients={n}, but of the clients that train it is {n - 1}: "
  with pytest.raises(InputError, match=said):
    loop.simulate(process_of(name), federation.clients, settings)
  assert not list(tmp_path.iterdir())


def test_round_without_an_accepted_client_has_no_training_loss(
  process_of, federation, tmp_path
):
  """An average of nothing: 0 would look like a perfect fit."""
  spec = federation.model.example_spec
  x, y = federation.clients.examples("client 2", spec)
  x[0] = _too_large(federation)
  poisoned = client_data.write_clients(str(tmp_path), {"one": (x, y)}, spec)
  settings = loop.Settings(rounds=1, clients_per_round=1)
  with pytest.warns(InputWarning, match="no client's result could be used"):
    [record] = loop.simulate(process_of("fedavg"), poisoned, settings).records
  assert record["num_accepted"] == record["num_examples"] == 0
  assert np.isnan(record["train_loss"])


def test_process_of_tffs_has_no_training_loss_without_examples():
  """Its division is guarded, so that it says 0."""
  train = dict(loss=np.float32(0), num_examples=np.int64(0))
  found = measurements.of_training(dict(client_work=dict(train=train)))
  assert np.isnan(found["train_loss"]) and found["num_examples"] == 0


def test_measurements_that_are_no_numbers_are_left_out():
  """Such as TFF's samples of the clients' metrics."""
  sampled = dict(loss=[0.1, 0.2], current_round_metrics={"loss": [0.1]})
  arrays = dict(each=np.zeros(3, np.float32), of_one=np.zeros(1, np.float32))
  train = dict(sampled, accuracy=np.float32(0.5), **arrays)
  found = measurements.of_training(dict(client_work=dict(train=train)))
  assert found == {"train_accuracy": 0.5}


def test_measurements_of_aggregators_have_the_names_of_their_columns(in_process):
  """Of structures of any kind: a row's cell without a column would be lost."""
  norms = collections.namedtuple("norms", "median limit")

  @tff.tensorflow.computation
  def measure():
    pair = (tf.constant(3), tf.zeros([2]))
    of_parts = dict(model=norms(tf.constant(1.0), tf.constant(2.0)), variate=pair)
    return dict(aggregator=of_parts)

  @tff.federated_computation
  def next_fn():
    metrics = tff.federated_eval(measure, tff.SERVER)
    return RoundOutput(metrics, metrics, metrics)

  found = measurements.of_aggregators(next_fn().metrics)
  assert found == {
    "aggregator_model_median": 1.0,
    "aggregator_model_limit": 2.0,
    "aggregator_variate_0": 3,
  }
  process = types.SimpleNamespace(next_fns={"": next_fn})
  assert measurements.aggregators_columns(process) == list(found)


@pytest.mark.parametrize(
  "metrics", [(), {}, dict(client_work=()), dict(client_work=dict(eval=dict(loss=1.0)))]
)
def test_a_process_that_measures_no_training_has_no_such_columns(metrics):
  assert measurements.of_training(metrics) == {}


def test_clients_in_memory_are_the_same_clients(federation, process_of):
  process = process_of("fedavg")
  on_disk = loop.simulate(process, federation.clients, _settings(2))
  in_memory = loop.simulate(process, federation.clients.in_memory(), _settings(2))
  for value, other in zip(tree.flatten(in_memory.state), tree.flatten(on_disk.state)):
    np.testing.assert_array_equal(value, other)


def test_a_second_run_traces_nothing(federation, process_of, monkeypatch):
  process = process_of("scaffold")
  loop.simulate(process, federation.clients, _settings(2))
  traced = []
  original = tracing._call_tensorflow
  monkeypatch.setattr(
    tracing, "_call_tensorflow", lambda *a: traced.append(a) or original(*a)
  )
  with runtime.create_runtime("in_process"):
    loop.simulate(process, federation.clients, _settings(2))
  assert not traced


@pytest.mark.parametrize("fails", [5, 6])  # The last one would itself be the best.
def test_best_round_is_kept_where_a_later_round_fails(federation, tmp_path, fails):
  def on_round(record):
    if record["round"] == fails:
      raise OSError("the disk is gone")

  notes = _Notes()
  scores = [0.0, 0.25, 0.75, 0.5, 0.75, 0.875, 0.0]
  with pytest.raises(OSError, match="the disk is gone"):
    loop.simulate(
      notes,
      federation.clients,
      _settings(7, checkpoint_folder=str(tmp_path)),
      on_round=on_round,
      keep_best="score",
      evaluate=lambda weights: {"score": scores[weights[0] - 1]},
    )
  kept = checkpoints.restore(str(tmp_path), notes.initialize()).best
  assert (kept.round_num, kept.value, kept.weights[0]) == (3, 0.75, 3)
