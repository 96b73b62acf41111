"""Client files that break in a run: one sentence, no round lost, on every runtime."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tree

import tff_algos
from tff_algos import client_data
from tff_algos.errors import DamagedError, InputError
from tff_algos.simulation import checkpoints, client_evaluation, loop

_ROUNDS = 4
_EVERY_CLIENT = 6
_SECONDS = ("seconds", "evaluation_seconds", "client_evaluation_seconds")


def _out_of_range(path: pathlib.Path):
  """The last label, which the loss refuses."""
  path.write_bytes(path.read_bytes()[:-4] + np.int32(7).tobytes())


def _not_finite(path: pathlib.Path):
  """The first input, for which the client counts for nothing in its round."""
  content = path.read_bytes()
  path.write_bytes(content[:8] + np.float32(np.nan).tobytes() + content[12:])


_BREAKS = {
  "gone": (pathlib.Path.unlink, "is not there"),
  "cut": (lambda path: path.write_bytes(path.read_bytes()[:-3]), "does not hold"),
  "label out of range": (_out_of_range, "does not hold"),
  "not finite": (_not_finite, "does not hold"),
}


@pytest.fixture
def clients(federation, tmp_path) -> client_data.ClientDirectory:
  """A copy, to be broken."""
  folder = tmp_path / "clients"
  shutil.copytree(federation.clients.folder, folder)
  return client_data.ClientDirectory(str(folder))


# What its workers say of a file is in tests/runtimes/test_dask_faults.py too.
_DASK = pytest.param("dask", marks=pytest.mark.thorough)


@pytest.fixture(scope="module", params=["in_process", "local_worker", _DASK])
def runtime(request, in_process):
  """Each is installed; tests of one follow one another."""
  if request.param == "in_process":
    yield in_process
    return
  workers = {"workers": 2} if request.param == "dask" else {}
  with tff_algos.create_runtime(request.param, **workers) as installed:
    yield installed


def _run(process, clients, folder, *, per_round=_EVERY_CLIENT, **options):
  settings = loop.Settings(
    _ROUNDS, per_round, seed=2, checkpoint_every=3, checkpoint_folder=str(folder)
  )
  return loop.simulate(process, clients, settings, **options)


def _after(round_num: int, action):
  """For `on_round`: does it after a round."""
  return lambda record: action() if record["round"] == round_num else None


def _assert_same_runs(found: loop.Result, expected: loop.Result):
  """Bit for bit."""
  states = [(r.state, r.client_states.get(range(6))) for r in (found, expected)]
  for a, b in zip(*map(tree.flatten, states)):
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
  records = (
    [{k: v for k, v in record.items() if k not in _SECONDS} for record in result.records]
    for result in (found, expected)
  )
  assert next(records) == next(records)


@pytest.mark.parametrize("kind", _BREAKS)
def test_broken_in_a_run_it_is_one_sentence_and_no_round_is_lost(
  runtime, process_of, clients, tmp_path, kind
):
  """The file was read in each round before; the checkpoint that is due is of none."""
  process, folder = process_of("scaffold"), tmp_path / "checkpoints"
  path = pathlib.Path(clients.path("client 3"))
  whole, (damage, words) = path.read_bytes(), _BREAKS[kind]
  with pytest.raises(DamagedError) as caught:
    _run(process, clients, folder, on_round=_after(2, lambda: damage(path)))
  text = str(caught.value)
  told = f"The examples of client 'client 3' cannot be read in round 3: {path} {words}"
  assert text.startswith(told) and "\n" not in text
  assert checkpoints.rounds_done(str(folder)) == 2
  path.write_bytes(whole)
  resumed = _run(process, clients, folder, resume=True)
  _assert_same_runs(resumed, _run(process, clients, tmp_path / "unbroken"))


def test_label_that_a_loss_of_ones_own_refuses_is_told_with_its_client(
  runtime, federation, tmp_path
):
  """Which labels it takes is not known before."""
  model = dataclasses.replace(
    federation.model,
    example_losses=lambda y, out: tf.nn.sparse_softmax_cross_entropy_with_logits(y, out),
  )
  data = {str(i): (np.ones((3, 4)), [0, 1, 2 + 3 * (i == 2)]) for i in range(4)}
  spec = model.example_spec
  clients = client_data.write_clients(str(tmp_path / "clients"), data, spec)
  process = tff_algos.build_fed_avg(model)
  with pytest.raises(InputError) as caught:
    _run(process, clients, tmp_path / "checkpoints", per_round=4)
  told = f"'2' cannot be trained on in round 1: {clients.path('2')} has the label 5, but "
  assert f"{told}the loss takes 0..2;" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_input_that_an_embedding_lacks_is_told_with_its_client(runtime, tmp_path):
  """`preprocess` may number the inputs anew, so that it is not known before."""
  spec = tff_algos.ExampleSpec(tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int32))
  layers = [
    tf.keras.layers.Input([2], dtype=tf.int32),
    tf.keras.layers.Embedding(5, 3),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(2),
  ]
  process = tff_algos.build_fed_avg(
    tff_algos.from_keras(tf.keras.Sequential(layers), spec)
  )
  data = {str(i): ([[0, 4], [2, 3 + 2 * (i == 2)]], [0, 1]) for i in range(4)}
  clients = client_data.write_clients(str(tmp_path / "clients"), data, spec)
  with pytest.raises(InputError) as caught:
    _run(process, clients, tmp_path / "checkpoints", per_round=4)
  told = f"'2' cannot be trained on in round 1: {clients.path('2')} has the input 5, but "
  assert f"{told}the model's embedding takes 0..4;" in str(caught.value)
  assert "\n" not in str(caught.value)


def _swap(clients, one: str, other: str):
  a, b = (pathlib.Path(clients.path(client)) for client in (one, other))
  a.rename(a.with_name("x"))
  b.rename(a)
  a.with_name("x").rename(b)


@pytest.mark.parametrize("is_checked", [False, True])
def test_swapped_files_stop_the_run_before_they_are_first_read(
  in_process, process_of, federation, tmp_path, is_checked
):
  """Nothing in a round tells them apart; also where they were right at the start."""
  data = {str(i): (np.full((3, 4), i), [0, 1, 2]) for i in range(6)}
  spec = federation.model.example_spec
  clients = client_data.write_clients(str(tmp_path / "clients"), data, spec)
  cohorts = [loop.Settings(9, 1, seed=2).attendance(6, k).taking_part for k in range(9)]
  places = [place for [place] in cohorts]
  first = next(k for k in range(1, 9) if places[k] not in places[:k])
  late = clients.ids[places[first]]
  other = next(c for k, c in enumerate(clients.ids) if k not in places[: first + 1])
  if is_checked:
    clients.check_files(clients.ids)
  begun = []
  with pytest.raises(DamagedError, match=f"'{late}' .* in round {first + 1}:"):
    _run(
      process_of("fedavg"),
      clients,
      tmp_path / "checkpoints",
      per_round=1,
      before_round=begun.append,
      on_round=_after(first, lambda: _swap(clients, late, other)),
    )
  assert len(begun) == first


@pytest.mark.parametrize("every", [2, 3])
def test_client_that_is_only_evaluated_is_looked_at_before_the_round(
  in_process, federation, process_of, clients, tmp_path, every
):
  """Its file is not there when clients are evaluated again, after the last round, 4."""
  evaluate = client_evaluation.build_client_evaluation(federation.model)
  folder = str(tmp_path / "c")
  settings = loop.Settings(
    4, 2, held_out_clients=1, eval_clients_every=every, checkpoint_folder=folder
  )
  training = settings.attendance(6, 0)
  [held_out] = set(range(6)).difference(
    loop.cohorts.training_clients(6, 1, settings.seed)
  )
  assert held_out not in training.taking_part
  path = pathlib.Path(clients.path(clients.ids[held_out]))
  begun = []
  with pytest.raises(DamagedError, match=f"'client {held_out}' .* in round 4: .* not th"):
    loop.simulate(
      process_of("fedgg"),
      clients,
      settings,
      evaluate_clients=evaluate,
      before_round=begun.append,
      on_round=_after(3, path.unlink),
    )
  assert len(begun) == checkpoints.rounds_done(folder) == 3


def test_broken_while_clients_are_evaluated_it_is_told_too(
  in_process, process_of, clients, tmp_path
):
  path = pathlib.Path(clients.path("client 3"))

  def evaluate(weights, clients, ids):
    path.write_bytes(b"")
    raise tf.errors.InvalidArgumentError(None, None, "somewhere")

  with pytest.raises(DamagedError, match=r"'client 3' .* in round 1: .* does not hold"):
    _run(process_of("fedavg"), clients, tmp_path / "c", evaluate_clients=evaluate)


def test_error_that_is_no_files_stays_as_it_is(in_process, process_of, clients, tmp_path):
  error = RuntimeError("something else")

  def fail(start):
    raise error

  with pytest.raises(RuntimeError) as caught:
    _run(process_of("fedavg"), clients, tmp_path / "c", before_round=fail)
  assert caught.value is error


def test_file_that_only_a_worker_lacks_is_told_with_its_client(
  in_process, process_of, clients, tmp_path
):
  """As the runtime dask tells of it, of which this stands for a worker elsewhere."""
  path = clients.path("client 3")

  def fail(start):
    raise InputError(f"A client on the worker tls://alpha finds no readable file: {path}")

  with pytest.raises(InputError, match=r"^Client .client 3. in round 1: A client on the"):
    _run(process_of("fedavg"), clients, tmp_path / "c", before_round=fail)


def test_folder_is_not_taken_for_its_clients(process_of, clients):
  with pytest.raises(InputError, match="The clients are a str: give a ClientDirectory"):
    loop.simulate(process_of("fedavg"), clients.folder, loop.Settings(1, 1))


def _written(folder, dtype, shape=(2,)) -> client_data.ClientDirectory:
  """Two clients whose examples are of as many bytes as the model's, or not."""
  spec = tff_algos.ExampleSpec(tf.TensorSpec(shape, dtype), tf.TensorSpec([], tf.int32))
  x = np.ones((1, *shape))
  return client_data.write_clients(folder, {"a": (x, [0]), "b": (x, [1])}, spec)


@pytest.mark.parametrize("dtype, shape", [(tf.int32, (2,)), (tf.uint8, (8,))])
def test_examples_of_another_spec_are_not_read_as_other_numbers(
  in_process, tmp_path, dtype, shape
):
  own = _written(tmp_path / "own", tf.float32)
  other = _written(tmp_path / "other", dtype, shape)
  spec = tff_algos.ExampleSpec(
    tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
  )
  layers = [tf.keras.Input((2,)), tf.keras.layers.Dense(2)]
  model = tff_algos.from_keras(tf.keras.Sequential(layers), spec)
  process = tff_algos.build_fed_avg(
    model, tff_algos.FedAvgHparams(batch_size=1, learning_rate=0.1)
  )
  settings = loop.Settings(rounds=1, clients_per_round=2)
  evaluate = client_evaluation.build_client_evaluation(model)
  for clients, match in ((own, None), (other, r"other were written with .*float32")):
    for use in (
      lambda clients: loop.simulate(process, clients, settings),
      lambda clients: evaluate(model.initial_weights, clients, ["a", "b"]),
    ):
      if match is None:
        use(clients)
        continue
      with pytest.raises(InputError, match=match) as caught:
        use(clients)
      assert "\n" not in str(caught.value)
  # A folder of an older version says nothing of it.
  path = tmp_path / "own" / "clients.json"
  content = json.loads(path.read_text())
  del content["example"]
  path.write_text(json.dumps(content))
  loop.simulate(process, client_data.ClientDirectory(tmp_path / "own"), settings)
