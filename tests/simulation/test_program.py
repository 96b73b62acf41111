"""TFF's federated programs on our runtimes, and ours for clients with a state."""

from __future__ import annotations

import asyncio
import copy
import datetime
import functools
import json
import pathlib
import re
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

import tff_algos
from tff_algos.runtimes import private_apis
from tff_algos.runtimes.federated_context import FederatedContext
from tff_algos.simulation.client_source import ClientSourceIterator

ROUNDS, PER_ROUND, SEED = 3, 2, 4
_BATCH = 4  # Fewer than any client has, whose seeds then count beyond rounding.
_SPEC = tff_algos.ExampleSpec(tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32))


@pytest.fixture(scope="module")
def runtime():
  with tff_algos.create_runtime() as installed:
    yield installed


@pytest.fixture
def federated(runtime):
  """The context of programs, installed."""
  context = runtime.federated_context()
  with tff.framework.get_context_stack().install(context):
    yield context


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
  draw = np.random.default_rng(0)
  data = {}
  for i in range(5):
    x = draw.normal(size=(6 + i, 3)).astype(np.float32)
    data[str(i)] = x, draw.integers(0, 2, 6 + i)
  return tff_algos.write_clients(str(tmp_path_factory.mktemp("clients")), data, _SPEC)


@pytest.fixture(scope="module")
def model(runtime):
  layers = [tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)]
  keras_model = tf.keras.Sequential(layers)
  tff_algos.reinitialize(keras_model, 3)
  return tff_algos.from_keras(keras_model, _SPEC)


@pytest.fixture(scope="module")
def fed_avg(model):
  return tff_algos.build_fed_avg(model, tff_algos.FedAvgHparams(batch_size=_BATCH))


@pytest.fixture(scope="module")
def scaffold(model):
  hparams = tff_algos.ScaffoldHparams(batch_size=_BATCH)
  return tff_algos.build_scaffold(model, hparams, num_clients=5)


@pytest.fixture(scope="module")
def simulated(runtime, clients, fed_avg, scaffold):
  """Name to what `simulate` makes of the same rounds."""
  settings = tff_algos.Settings(rounds=ROUNDS, clients_per_round=PER_ROUND, seed=SEED)
  return {
    "fed_avg": tff_algos.simulate(fed_avg, clients, settings),
    "scaffold": tff_algos.simulate(scaffold, clients, settings),
  }


def assert_same(found, expected):
  tree.map_structure(np.testing.assert_array_equal, found, expected)


class Managers:
  """What a program is given to keep and to release things."""

  def __init__(self, folder):
    self.states = tff.program.FileProgramStateManager(str(folder))
    self.models = tff.program.MemoryReleaseManager()
    self.metrics = tff.program.MemoryReleaseManager()

  def last_state(self, rounds=ROUNDS):
    return self.models.values()[f"training_checkpoint_round_{rounds}"]


class Dies(tff.program.FileProgramStateManager):
  """Ends the program in its third round, as a machine that is switched off would."""

  async def save(self, program_state, version):
    if version == 3:
      while 2 not in await self.get_versions():  # TFF's program saves beside its rounds.
        await asyncio.sleep(0.01)
      raise SystemExit
    await super().save(program_state, version)


def run_tffs(process, clients, managers, *, build_evaluation_manager=None, **changed):
  if isinstance(process, tff_algos.StatefulProcess):
    process = tff_algos.as_learning_process(process)
  options = dict(
    train_process=process,
    train_data_source=tff_algos.ClientSource(clients, SEED),
    train_per_round_clients=PER_ROUND,
    train_total_rounds=ROUNDS,
    program_state_manager=managers.states,
    model_output_manager=managers.models,
    train_metrics_manager=managers.metrics,
    evaluation_manager=None,
    evaluation_periodicity=1,
  )

  async def train():
    if build_evaluation_manager:  # Python 3.9 makes its locks for the loop that runs.
      options["evaluation_manager"] = build_evaluation_manager()
    await tff.learning.programs.train_model(**{**options, **changed})

  asyncio.run(train())


def run_ours(process, clients, managers, **changed):
  options = dict(
    train_process=process,
    train_data_source=tff_algos.ClientSource(clients, SEED),
    train_per_round_clients=PER_ROUND,
    train_total_rounds=ROUNDS,
    program_state_manager=managers.states,
    model_output_manager=managers.models,
    train_metrics_manager=managers.metrics,
  )
  asyncio.run(tff_algos.train_with_client_states(**{**options, **changed}))


CASES = [
  (run_tffs, "fed_avg"),
  pytest.param(run_ours, "fed_avg", marks=pytest.mark.thorough),
  (run_ours, "scaffold"),
]


@pytest.mark.parametrize("run, name", CASES)
def test_a_program_is_the_simulation(
  run, name, federated, clients, simulated, tmp_path, request
):
  managers = Managers(tmp_path)
  run(request.getfixturevalue(name), clients, managers)
  expected = simulated[name]
  assert_same(managers.last_state(), expected.state)
  losses = [
    m["model_metrics"]["loss"] for _, m in sorted(managers.metrics.values().items())
  ]
  assert losses == [record["train_loss"] for record in expected.records]


@pytest.mark.parametrize(
  "run", [pytest.param(run_tffs, marks=pytest.mark.thorough), run_ours]
)
def test_the_model_is_released_every_ten_rounds_and_in_the_end(
  run, federated, clients, fed_avg, tmp_path
):
  managers = Managers(tmp_path)
  run(fed_avg, clients, managers, train_total_rounds=11)
  released = {f"training_checkpoint_round_{k}" for k in (10, 11)}
  assert set(managers.models.values()) == released
  assert set(managers.metrics.values()) == set(range(1, 12))


def test_tffs_evaluation_manager_evaluates_a_rounds_model(
  federated, clients, model, fed_avg, tmp_path
):
  process = tff_algos.build_evaluation_process(model)
  released = tff.program.MemoryReleaseManager()
  manager = functools.partial(
    tff.learning.programs.EvaluationManager,
    data_source=tff_algos.ClientSource(clients),
    aggregated_metrics_manager=released,
    create_state_manager_fn=lambda name: tff.program.FileProgramStateManager(
      str(tmp_path / name)
    ),
    create_process_fn=lambda name: (process, None),
    cohort_size=len(clients),
    duration=datetime.timedelta(0),  # One round.
  )
  managers = Managers(tmp_path / "states")
  evaluated = dict(build_evaluation_manager=manager, evaluation_periodicity=ROUNDS)
  run_tffs(fed_avg, clients, managers, **evaluated)
  x, y = (
    np.concatenate(parts)
    for parts in zip(*(clients.examples(name, _SPEC) for name in clients.ids))
  )
  weights = managers.last_state().variables.model
  expected = tff_algos.build_evaluation(model, x, y)(weights)
  [(round_num, found)] = released.values().items()
  assert round_num == ROUNDS
  assert found["model_metrics"] == pytest.approx(expected, rel=1e-6)


class Holds(tff.program.FileProgramStateManager):
  """Also holds what it was given, as one that writes later would."""

  def __init__(self, folder):
    super().__init__(folder)
    self.held = {}

  async def save(self, program_state, version):
    self.held[version] = program_state
    await super().save(program_state, version)


def test_what_was_saved_stays_as_it_was(federated, clients, scaffold, tmp_path):
  manager = Holds(str(tmp_path))
  run_ours(scaffold, clients, Managers(tmp_path), program_state_manager=manager)
  for version, state in manager.held.items():
    assert state.round_num == version
    source = tff_algos.ClientSource(clients, SEED).iterator()
    for _ in range(version):
      source.select(PER_ROUND)
    assert state.data_iterator == source
  counts = [len(state.client_states.leaves) for state in manager.held.values()]
  assert counts[0] == 0 and counts[1] == PER_ROUND


@pytest.mark.parametrize("run, name", CASES)
def test_a_program_that_died_goes_on(
  run, name, federated, clients, simulated, tmp_path, request
):
  process = request.getfixturevalue(name)
  with pytest.raises(SystemExit):
    dying = Dies(str(tmp_path))
    run(process, clients, Managers(tmp_path), program_state_manager=dying)
  managers = Managers(tmp_path)
  run(process, clients, managers)
  assert set(managers.metrics.values()) == {3}
  assert_same(managers.last_state(), simulated[name].state)


@pytest.mark.parametrize("run, name", CASES)
def test_a_client_file_that_breaks_is_one_sentence_and_the_program_goes_on_when_mended(
  run, name, federated, clients, tmp_path, request, monkeypatch
):
  """It is cut before the second round, with all clients in each."""
  process = request.getfixturevalue(name)
  folder = tmp_path / "clients"
  shutil.copytree(clients.folder, folder)
  copied = tff_algos.ClientDirectory(str(folder))
  path = pathlib.Path(copied.path("3"))
  whole, source = path.read_bytes(), type(tff_algos.ClientSource(copied).iterator())
  select = source.select

  def break_and_select(self, k=None):
    if json.loads(self.to_bytes())["rounds_done"] == 1:
      path.write_bytes(whole[:-1])
    return select(self, k)

  with monkeypatch.context() as patched:
    patched.setattr(source, "select", break_and_select)
    with pytest.raises(tff_algos.InputError) as caught:
      run(process, copied, Managers(tmp_path / "a"), train_per_round_clients=5)
  told = f"The examples of client '3' cannot be read in round 2: {path} does not hold"
  assert str(caught.value).startswith(told) and "\n" not in str(caught.value)
  path.write_bytes(whole)
  states = []
  for place in "ab":
    managers = Managers(tmp_path / place)
    run(process, copied, managers, train_per_round_clients=5)
    states.append(managers.last_state())
  assert_same(*states)


def test_our_program_refuses_labels_without_an_output(federated, scaffold, tmp_path):
  data = {"a": (np.zeros((2, 3)), [0, 2])}
  clients = tff_algos.write_clients(str(tmp_path / "clients"), data, _SPEC)
  with pytest.raises(tff_algos.InputError, match=r"'a' .* has the label 2"):
    run_ours(scaffold, clients, Managers(tmp_path / "state"))


class Unwell(tff.program.MemoryReleaseManager):
  """Ends the program where it is to release what has this key."""

  def __init__(self, key):
    super().__init__()
    self._key = key

  async def release(self, value, key):
    if key == self._key:
      raise SystemExit
    await super().release(value, key)


@pytest.mark.parametrize(
  "manager, key, released_again",
  [
    ("train_metrics_manager", 2, {2, 3}),
    ("model_output_manager", f"training_checkpoint_round_{ROUNDS}", {3}),
  ],
)
def test_what_was_not_released_when_our_program_died_is_when_it_goes_on(
  federated, clients, scaffold, simulated, tmp_path, manager, key, released_again
):
  with pytest.raises(SystemExit):
    run_ours(scaffold, clients, Managers(tmp_path), **{manager: Unwell(key)})
  managers = Managers(tmp_path)
  run_ours(scaffold, clients, managers)
  losses = {
    done: metrics["model_metrics"]["loss"]
    for done, metrics in managers.metrics.values().items()
  }
  records = simulated["scaffold"].records
  assert losses == {done: records[done - 1]["train_loss"] for done in released_again}
  assert_same(managers.last_state(), simulated["scaffold"].state)


def test_our_program_that_was_at_its_end_releases_its_model(
  federated, clients, scaffold, simulated, tmp_path
):
  """As where it died between two rounds, and is to do no more of them."""
  run_ours(scaffold, clients, Managers(tmp_path))
  managers = Managers(tmp_path)
  run_ours(scaffold, clients, managers)
  assert managers.metrics.values() == {}
  assert_same(managers.last_state(), simulated["scaffold"].state)


def test_more_rounds_go_on_with_what_clients_keep(
  federated, clients, scaffold, simulated, tmp_path
):
  """Of all rounds before, however often the program was ended in between."""
  for rounds in range(1, ROUNDS + 1):
    managers = Managers(tmp_path)
    run_ours(scaffold, clients, managers, train_total_rounds=rounds)
    assert set(managers.metrics.values()) == {rounds}
  assert_same(managers.last_state(), simulated["scaffold"].state)


def test_a_program_goes_on_with_what_it_began_with_only(
  federated, clients, scaffold, tmp_path
):
  """Other numbers than asked for would come without a word."""
  run_ours(scaffold, clients, Managers(tmp_path / "state"), train_total_rounds=1)
  data = {c: clients.examples(c, _SPEC) for c in reversed(clients.ids)}
  turned = tff_algos.write_clients(str(tmp_path / "clients"), data, _SPEC)
  for source, said in (
    (tff_algos.ClientSource(clients, 5), f"the seed {SEED}, but its data source has 5:"),
    (
      tff_algos.ClientSource(turned, SEED),
      f"the clients of the digest {clients.digest()}, but its data source has ",
    ),
  ):
    managers = Managers(tmp_path / "state")
    with pytest.raises(tff_algos.InputError, match=f"began with {re.escape(said)}"):
      run_ours(scaffold, clients, managers, train_data_source=source)
    assert managers.metrics.values() == {}
  # The same folder by another name.
  link = tmp_path / "link"
  link.symlink_to(clients.folder)
  managers = Managers(tmp_path / "state")
  run_ours(scaffold, tff_algos.ClientDirectory(str(link)), managers)
  assert set(managers.metrics.values()) == {2, 3}


@pytest.mark.parametrize("run, name", CASES)
def test_a_program_goes_on_with_its_clients_wherever_they_are(
  run, name, federated, clients, simulated, tmp_path, request
):
  """A folder that was moved, and files in memory, which no other process has."""
  process = request.getfixturevalue(name)
  folder, moved = tmp_path / "clients", tmp_path / "moved"
  shutil.copytree(clients.folder, folder)
  began = tff_algos.ClientDirectory(folder)
  run(process, began, Managers(tmp_path / "state"), train_total_rounds=1)
  folder.rename(moved)
  run(
    process,
    tff_algos.ClientDirectory(moved),
    Managers(tmp_path / "state"),
    train_total_rounds=2,
  )
  in_memory = tff_algos.ClientDirectory(moved).in_memory()
  shutil.rmtree(moved)
  managers = Managers(tmp_path / "state")
  run(process, in_memory, managers)
  assert set(managers.metrics.values()) == {3}
  assert_same(managers.last_state(), simulated[name].state)


@pytest.mark.parametrize("run", [run_tffs, run_ours])
def test_a_program_whose_clients_are_gone_says_so(
  run, federated, clients, fed_avg, tmp_path
):
  folder = tmp_path / "clients"
  examples = {"a": clients.examples("4", _SPEC), "b": clients.examples("3", _SPEC)}
  other = tff_algos.write_clients(str(tmp_path / "other"), examples, _SPEC)
  began = tff_algos.write_clients(str(folder), {**examples, "c": examples["a"]}, _SPEC)
  run(fed_avg, began, Managers(tmp_path / "state"), train_total_rounds=1)
  shutil.rmtree(folder)
  with pytest.raises(FileNotFoundError, match=f"no longer in {folder}: give its data"):
    run(fed_avg, other, Managers(tmp_path / "state"))


@pytest.fixture
def begun(federated, clients, scaffold, tmp_path):
  """The folder of the state of a program that has done two rounds of SCAFFOLD."""
  run_ours(scaffold, clients, Managers(tmp_path / "state"), train_total_rounds=2)
  return tmp_path / "state"


@pytest.mark.parametrize(
  "changed, said",
  [
    (dict(epochs=2), r"epochs=1, but this one has epochs=2: "),
    (dict(learning_rate=0.01), r"learning_rate=0\.1\d*, but this one has learning_rate="),
  ],
)
def test_a_program_goes_on_with_its_hyper_parameters_only(
  clients, model, begun, changed, said
):
  hparams = tff_algos.ScaffoldHparams(batch_size=_BATCH, **changed)
  process = tff_algos.build_scaffold(model, hparams, num_clients=5)
  with pytest.raises(tff_algos.InputError, match=f"^The program began with {said}"):
    run_ours(process, clients, Managers(begun))


def _damage(folder):
  newest = max(folder.iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))
  for path in newest.rglob("*"):
    if path.is_file():
      path.write_bytes(b"")


def test_state_that_cannot_be_read_is_one_sentence(clients, fed_avg, scaffold, begun):
  said = r"^The program's newest state, of version 2, cannot be gone on with, [^\n]*\.$"
  with pytest.raises(tff_algos.InputError, match=said):
    run_ours(fed_avg, clients, Managers(begun))
  _damage(begun)
  with pytest.raises(tff_algos.InputError, match=said):
    run_ours(scaffold, clients, Managers(begun))
  shutil.rmtree(begun / "program_state_2")  # As it says.
  managers = Managers(begun)
  run_ours(scaffold, clients, managers)
  assert set(managers.metrics.values()) == {2, 3}


@pytest.mark.parametrize("run, name", CASES)
def test_a_program_does_not_go_on_with_rewritten_clients(
  run, name, federated, clients, tmp_path, request
):
  """Of the same names and numbers of examples, and other labels."""
  process, folder = request.getfixturevalue(name), tmp_path / "clients"
  data = {c: clients.examples(c, _SPEC) for c in clients.ids}
  written = tff_algos.write_clients(str(folder), data, _SPEC)
  run(process, written, Managers(tmp_path / "state"), train_total_rounds=1)
  shutil.rmtree(folder)
  other = {c: (x, 1 - np.asarray(y)) for c, (x, y) in data.items()}
  written = tff_algos.write_clients(str(folder), other, _SPEC)
  with pytest.raises(tff_algos.InputError, match="holds other clients than those that"):
    run(process, written, Managers(tmp_path / "state"))


def test_a_program_finds_its_clients_from_another_folder(
  federated, clients, fed_avg, tmp_path, monkeypatch
):
  monkeypatch.chdir(pathlib.Path(clients.folder).parent)
  relative = tff_algos.ClientDirectory(pathlib.Path(clients.folder).name)
  run_tffs(fed_avg, relative, Managers(tmp_path), train_total_rounds=1)
  monkeypatch.chdir(tmp_path)
  managers = Managers(tmp_path)
  run_tffs(fed_avg, clients, managers)
  assert set(managers.metrics.values()) == {2, 3}


@pytest.mark.parametrize(
  "changed, said",
  [
    (dict(train_process=None), "train_process must be a tff_algos.StatefulProcess; "),
    (dict(train_data_source=[1]), "train_data_source must be a tff_algos.ClientSource; "),
    (dict(train_per_round_clients=0), "train_per_round_clients must be at least 1; "),
    (dict(train_per_round_clients=6), "train_per_round_clients must be at most 5; "),
    (dict(train_total_rounds=2.5), "train_total_rounds must be a whole number; "),
    (dict(train_total_rounds=-1), "train_total_rounds must be at least 0; "),
    (
      dict(program_state_manager="folder"),
      r"program_state_manager must be a tff\.program\.ProgramStateManager; ",
    ),
    (
      dict(model_output_manager=None),
      r"model_output_manager must be a tff\.program\.ReleaseManager; ",
    ),
    (
      dict(train_metrics_manager=print),
      r"train_metrics_manager must be a tff\.program\.ReleaseManager; ",
    ),
  ],
)
def test_wrong_arguments_are_one_sentence(
  federated, clients, scaffold, tmp_path, changed, said
):
  with pytest.raises(tff_algos.InputError, match=f"^{said}found "):
    run_ours(scaffold, clients, Managers(tmp_path), **changed)


def test_client_states_that_would_not_come_back_are_refused(
  federated, clients, fed_avg, tmp_path
):
  process = fed_avg.recomposed(init_client=lambda: tf.zeros([2], tf.bfloat16))
  with pytest.raises(tff_algos.InputError, match=r"^\w+ of a client's .* bfloat16"):
    run_ours(process, clients, Managers(tmp_path))


def test_source_of_a_folders_name_is_refused():
  with pytest.raises(tff_algos.InputError, match=r"clients must be a tff_algos\.ClientD"):
    tff_algos.ClientSource("folder")


class OtherSource:
  """A source of another kind, which draws as ours does and has all that is asked."""

  def __init__(self, source):
    self.clients, self._source = source.clients, source

  def iterator(self):
    return OtherIterator(self._source.iterator())


class OtherIterator(private_apis.Serializable):
  """Knows of no folder and no seed."""

  def __init__(self, iterator):
    self._iterator = iterator
    self.next_places, self.select = iterator.next_places, iterator.select

  def to_bytes(self):
    return self._iterator.to_bytes()

  @classmethod
  def from_bytes(cls, buffer):
    return cls(ClientSourceIterator.from_bytes(buffer))

  def __deepcopy__(self, memo):
    return OtherIterator(copy.deepcopy(self._iterator))


def test_a_program_goes_on_with_a_source_of_another_kind(
  federated, clients, scaffold, simulated, tmp_path
):
  options = dict(train_data_source=OtherSource(tff_algos.ClientSource(clients, SEED)))
  run_ours(scaffold, clients, Managers(tmp_path), train_total_rounds=2, **options)
  managers = Managers(tmp_path)
  run_ours(scaffold, clients, managers, **options)
  assert_same(managers.last_state(), simulated["scaffold"].state)


def test_data_sets_by_clients_ids_feed_tffs_program(
  federated, fed_avg, clients, tmp_path
):
  """Their model is that of the clients' files, where these are given the same seeds.

  TFF's source draws its cohorts by no seed, so here all clients take part. Its source of
  data sets cannot be: its program copies sources, and that one has no copy.
  """
  examples = {c: clients.examples(c, _SPEC) for c in clients.ids}
  client_data = tff.simulation.datasets.TestClientData(
    {c: {"x": x, "y": y} for c, (x, y) in examples.items()}
  )
  over = tff_algos.over_datasets(fed_avg, client_data.element_type_structure)
  composed = tff.simulation.compose_dataset_computation_with_learning_process(
    client_data.dataset_computation, tff_algos.as_learning_process(over)
  )
  managers = Managers(tmp_path)
  run_tffs(
    composed,
    clients,
    managers,
    train_data_source=tff.program.ClientIdDataSource(list(examples)),
    train_per_round_clients=len(examples),
  )
  trained = [m["model_metrics"] for m in managers.metrics.values().values()]
  num_examples = clients.num_examples.sum()
  assert [t["num_examples"] for t in trained] == [num_examples] * ROUNDS
  state = fed_avg.initialize()
  for t in range(ROUNDS):
    inputs = [
      tff_algos.ClientInput(clients.path(c), tff_algos.dataset_seed(of_client, t))
      for c, of_client in examples.items()
    ]
    state = fed_avg.next(state, [()] * len(inputs), inputs).state
  expected = asyncio.run(tff.program.materialize_value(state))
  # The source shuffles the clients, so that their sums are rounded otherwise.
  for a, b in zip(managers.last_state().variables.model, expected.variables.model):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_programs_check_their_context(runtime, clients, scaffold, tmp_path):
  with pytest.raises(ValueError, match="FederatedContext"):
    run_ours(scaffold, clients, Managers(tmp_path))


def test_results_are_references_and_errors_come_with_them(federated, fed_avg):
  async def work():
    state = fed_avg.initialize()
    assert isinstance(state.round_num, tff.program.MaterializableValueReference)
    assert await state.round_num.get_value() == 0
    # A state that is not there yet is an argument like any other.
    output = fed_avg.next(state, [], [])
    metrics = await tff.program.materialize_value(output.metrics)
    assert metrics["client_work"]["train"]["num_accepted"] == 0
    assert await output.client_states.get_value() == []
    broken = fed_avg.next(state, [()], [tff_algos.ClientInput("/no/such", [0, 0])])
    with pytest.raises(tf.errors.NotFoundError):
      await broken.state.round_num.get_value()

  asyncio.run(work())
  # Without an event loop a result is there at once.
  assert asyncio.run(tff.program.materialize_value(fed_avg.initialize().round_num)) == 0


def test_a_leaf_no_longer_waited_for_leaves_the_others(federated, fed_avg):
  async def work():
    state = fed_avg.initialize()
    waiting = asyncio.ensure_future(state.variables.model[0].get_value())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
      await waiting
    assert await state.round_num.get_value() == 0

  asyncio.run(work())


def test_source_gives_simulates_cohorts_and_can_be_written_down(clients):
  iterator = tff_algos.ClientSource(clients, SEED).iterator()
  first, second = iterator.select(3), iterator.select(3)
  again = tff_algos.ClientSource(clients, SEED).iterator()
  assert_same(again.select(3), first)
  restored = type(again).from_bytes(again.to_bytes())
  assert restored == again
  assert_same(restored.select(3), second)
  assert restored != again
  again = type(iterator).from_bytes(iterator.to_bytes())
  assert_same(iterator.select(), again.select(5))
  assert_same(iterator.select(1), again.select(1))
  seeds = {tuple(i.seed) for i in [*first, *second]}
  assert len(seeds) == 6


def _without_checksums(folder, source):
  """A copy as versions before checksums would have written it."""
  shutil.copytree(source.folder, folder)
  [manifest] = [p for p in folder.iterdir() if p.is_file()]
  content = json.loads(manifest.read_text())
  del content["checksums"]
  manifest.write_text(json.dumps(content))
  return tff_algos.ClientDirectory(folder)


def test_older_folders_are_told_apart_by_where_they_are(clients, tmp_path):
  """Their digest is that of any with as many examples."""
  first, second = (_without_checksums(tmp_path / n, clients) for n in "ab")
  assert first.digest() == second.digest()
  began = tff_algos.ClientSource(first, SEED).iterator()
  other = tff_algos.ClientSource(second, SEED).iterator()
  found = type(began).from_bytes(began.to_bytes())
  assert found == began
  with pytest.raises(tff_algos.InputError, match=f"the clients of {first.folder}, but"):
    found.check_goes_on(other)


def test_clients_are_found_where_they_were_if_a_copy_has_gone(clients, tmp_path):
  copy_of = tmp_path / "copy"
  shutil.copytree(clients.folder, copy_of)
  began = tff_algos.ClientSource(clients, SEED).iterator()
  tff_algos.ClientSource(tff_algos.ClientDirectory(copy_of), SEED)
  shutil.rmtree(copy_of)
  assert type(began).from_bytes(began.to_bytes()) == began


def test_source_of_numpys_seed_can_be_written_down(clients):
  iterator = tff_algos.ClientSource(clients, np.int64(SEED)).iterator()
  assert iterator == tff_algos.ClientSource(clients, SEED).iterator()
  assert type(iterator).from_bytes(iterator.to_bytes()) == iterator


def test_source_refuses_other_clients_and_cohorts_too_large(clients, tmp_path):
  folder = str(tmp_path / "clients")
  examples = {"a": clients.examples("0", _SPEC)}
  iterator = tff_algos.ClientSource(
    tff_algos.write_clients(folder, examples, _SPEC)
  ).iterator()
  with pytest.raises(tff_algos.InputError, match="clients_per_round"):
    iterator.select(2)
  written = iterator.to_bytes()
  tff_algos.write_clients(folder, {"b": clients.examples("0", _SPEC)}, _SPEC)
  with pytest.raises(tff_algos.InputError, match="holds other clients"):
    type(iterator).from_bytes(written)
  with pytest.raises(tff_algos.InputError, match="seed"):
    tff_algos.ClientSource(clients, -1)


def test_who_waits_no_longer_for_a_leaf_leaves_the_others():
  is_ending = threading.Event()

  def invoke(comp, arg):
    assert is_ending.wait(30)
    return comp.type_signature.result and 5, 6

  two = tff.federated_computation(
    lambda x: (x, x), tff.FederatedType(np.int32, tff.SERVER)
  )

  async def run():
    first, second = context.invoke(two, 5)
    with pytest.raises(asyncio.TimeoutError):
      await asyncio.wait_for(first.get_value(), 0.1)
    is_ending.set()
    return await second.get_value(), await first.get_value()

  context = FederatedContext(invoke)
  assert asyncio.run(run()) == (6, 5)
