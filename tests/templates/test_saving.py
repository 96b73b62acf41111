"""Processes that are written to a file and loaded, here and in another program."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tree

import tff_algos
from tff_algos.privacy.accounting import GaussianMechanism
from tff_algos.runtimes import runtime

_SPEC = tff_algos.ExampleSpec(tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32))
_SETTINGS = tff_algos.Settings(rounds=3, clients_per_round=2, seed=1)


@pytest.fixture(scope="module", autouse=True)
def installed():
  with runtime.create_runtime():
    yield


@pytest.fixture(scope="module")
def model():
  layers = [
    tf.keras.layers.Input([3]),
    tf.keras.layers.Dense(4),
    tf.keras.layers.Dense(2),
  ]
  keras_model = tf.keras.Sequential(layers)
  tff_algos.reinitialize(keras_model, 3)
  return tff_algos.from_keras(keras_model, _SPEC)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
  draw = np.random.default_rng(0)
  data = {str(i): (draw.normal(size=(5, 3)), draw.integers(0, 2, 5)) for i in range(4)}
  return tff_algos.write_clients(str(tmp_path_factory.mktemp("clients")), data, _SPEC)


@pytest.fixture(scope="module")
def scaffold(model):
  return tff_algos.build_scaffold(model, num_clients=4)


def assert_same(found, expected):
  tree.map_structure(np.testing.assert_array_equal, found, expected)


def test_a_loaded_process_is_the_process(model, clients, tmp_path):
  """TWAFL has two kinds of rounds, memories and the library's own containers."""
  hparams = tff_algos.TwaflHparams(rounds_in_loop=2, freq=1)
  process = tff_algos.build_twafl(model, hparams, num_clients=4, num_examples=20)
  path = str(tmp_path / "twafl")
  tff_algos.save_process(process, path)
  loaded = tff_algos.load_process(path)
  assert loaded.schedule == process.schedule and len(set(loaded.schedule)) == 2
  assert list(loaded.next_fns) == list(process.next_fns)
  assert loaded.next.type_signature == process.next.type_signature
  assert loaded.traffic == process.traffic
  assert loaded.privacy is None and loaded.model is None
  expected = tff_algos.simulate(process, clients, _SETTINGS)
  found = tff_algos.simulate(loaded, clients, _SETTINGS)
  assert_same(found.state, expected.state)
  assert type(found.state) is type(expected.state)
  assert_same(found.client_states.get(range(4)), expected.client_states.get(range(4)))
  changed = loaded.set_hparams(
    found.state, {"learning_rate": 0.5, "server_learning_rate": 1.0}
  )
  assert loaded.get_hparams(changed)["learning_rate"] == 0.5


@pytest.mark.parametrize("element_spec", [None, _SPEC._asdict()], ids=["pair", "mapping"])
def test_rounds_over_data_sets_are_kept(model, tmp_path, element_spec):
  process = tff_algos.over_datasets(tff_algos.build_fed_avg(model), element_spec)
  tff_algos.save_process(process, tmp_path / "file")
  loaded = tff_algos.load_process(tmp_path / "file")
  x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  content = {"x": x, "y": np.array([0, 1, 1, 0, 1], np.int32)}
  elements = tuple(content.values()) if element_spec is None else content
  data = [tf.data.Dataset.from_tensor_slices(elements)]
  state = process.initialize()
  found, expected = (each.next(state, [()], data) for each in (loaded, process))
  assert_same(found.state, expected.state)
  assert not np.array_equal(found.state.variables.model[0], state.variables.model[0])


def test_privacy_is_kept(model, tmp_path):
  process = tff_algos.build_dp_sgd(model)
  path = tmp_path / "private"
  tff_algos.save_process(process, path)
  assert tff_algos.load_process(path).privacy == process.privacy is not None


def test_privacy_of_numpys_numbers_is_kept(model, tmp_path):
  given = GaussianMechanism(np.float32(1.5), np.int64(2), np.float64(1e-5))
  process = tff_algos.build_fed_avg(model).with_privacy(given)
  tff_algos.save_process(process, tmp_path / "private")
  assert tff_algos.load_process(tmp_path / "private").privacy == given


@pytest.mark.parametrize("num_examples", [{}, {"num_examples": np.int64(20)}])
def test_for_whom_it_was_built_is_kept(model, tmp_path, num_examples):
  build = tff_algos.build_fed_dyn if num_examples else tff_algos.build_scaffold
  process = build(model, num_clients=4, **num_examples)
  tff_algos.save_process(process, tmp_path / "file")
  loaded = tff_algos.load_process(tmp_path / "file")
  assert loaded.population == process.population == (4, num_examples.get("num_examples"))


def test_that_there_is_a_personal_model_is_kept(model, tmp_path):
  """None would have features evaluated as if they were logits."""
  process = tff_algos.build_pfedgp(model)
  path = str(tmp_path / "pfedgp")
  tff_algos.save_process(process, path)
  loaded = tff_algos.load_process(path)
  with pytest.raises(tff_algos.InputError, match=r"has a personal_model[^\n]*\.$"):
    tff_algos.build_client_evaluation(model, personal_model=loaded.personal_model)


@pytest.fixture(scope="module")
def loaded(model, tmp_path_factory):
  """Epochs to a loaded process of FedAvg."""
  folder, found = tmp_path_factory.mktemp("loaded"), {}
  for epochs in (1, 2):
    process = tff_algos.build_fed_avg(model, tff_algos.FedAvgHparams(epochs=epochs))
    tff_algos.save_process(process, folder / str(epochs))
    found[epochs] = tff_algos.load_process(folder / str(epochs))
  return found


def test_a_run_goes_on_with_a_loaded_process_of_its_own_only(
  model, loaded, clients, tmp_path
):
  """Begun with what was built or loaded, and gone on with the other."""
  built = tff_algos.build_fed_avg(model)
  for place, (begins, goes_on) in enumerate([(built, loaded[1]), (loaded[1], built)]):
    settings = dict(clients_per_round=2, checkpoint_folder=tmp_path / str(place))
    tff_algos.simulate(begins, clients, tff_algos.Settings(rounds=1, **settings))
    more = tff_algos.Settings(rounds=2, **settings)
    with pytest.raises(tff_algos.InputError, match=r"epochs=1, but .* epochs=2: resume"):
      tff_algos.simulate(loaded[2], clients, more, resume=True)
    found = tff_algos.simulate(goes_on, clients, more, resume=True)
    assert len(found.records) == 2


def test_examples_of_other_numbers_are_refused(loaded, tmp_path):
  """Its computations would take the bytes for those of the numbers that they read."""
  spec = tff_algos.ExampleSpec(tf.TensorSpec([3], tf.int32), _SPEC.y)
  other = tff_algos.write_clients(
    str(tmp_path), {c: (np.ones((5, 3), np.int32), np.zeros(5)) for c in "ab"}, spec
  )
  with pytest.raises(
    tff_algos.InputError, match=r"\[\['int32', \[3\]\], .* read with \[\["
  ):
    tff_algos.simulate(loaded[1], other, _SETTINGS)


def test_another_program_goes_on_with_it(scaffold, clients, tmp_path):
  path, result = str(tmp_path / "scaffold"), str(tmp_path / "result")
  tff_algos.save_process(scaffold, path)
  program = f"""
    import pickle
    import numpy as np
    import tff_algos

    process = tff_algos.load_process({path!r})
    clients = tff_algos.ClientDirectory({clients.folder!r})
    settings = tff_algos.Settings(rounds=3, clients_per_round=2, seed=1)
    with tff_algos.create_runtime():
      result = tff_algos.simulate(process, clients, settings)
      weights = process.get_model_weights(result.state).trainable
    with open({result!r}, "wb") as f:
      pickle.dump([np.asarray(w) for w in weights], f)
  """
  with open(tmp_path / "log", "w") as log:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, stdout=log, stderr=log, timeout=300)
  with open(result, "rb") as f:
    found = pickle.load(f)
  expected = tff_algos.simulate(scaffold, clients, _SETTINGS)
  assert_same(found, list(scaffold.get_model_weights(expected.state).trainable))


def test_what_cannot_be_imported_elsewhere_is_refused(scaffold, tmp_path, monkeypatch):
  state_class = type(scaffold.initialize())
  monkeypatch.setattr(state_class, "__module__", "__main__")
  with pytest.raises(tff_algos.InputError, match="ServerState cannot be imported"):
    tff_algos.save_process(scaffold, str(tmp_path / "process"))
  assert not list(tmp_path.iterdir())


def _change(path, **changed):
  with zipfile.ZipFile(path) as file:
    content = {name: file.read(name) for name in file.namelist()}
  manifest = json.loads(content["process.json"])
  content["process.json"] = json.dumps({**manifest, **changed}).encode()
  with zipfile.ZipFile(path, "w") as file:
    for name, data in content.items():
      file.writestr(name, data)


def test_what_is_no_process_is_not_saved(tmp_path):
  with pytest.raises(tff_algos.InputError, match="The process is a PosixPath: give"):
    tff_algos.save_process(tmp_path, tmp_path / "process")
  assert not list(tmp_path.iterdir())


def test_files_that_are_no_process_are_refused_in_one_sentence(scaffold, tmp_path):
  path = tmp_path / "process"
  path.write_text("no process")
  with pytest.raises(tff_algos.InputError, match=r"holds no process[^\n]*\.$"):
    tff_algos.load_process(str(path))
  tff_algos.save_process(scaffold, str(path))
  _change(path, tensorflow_federated="0.1")
  with pytest.raises(tff_algos.InputError, match=r"with TFF 0\.1[^\n]*\.$"):
    tff_algos.load_process(str(path))
  _change(path, format=2)
  with pytest.raises(tff_algos.InputError, match=r"tff_algos, in format 2[^\n]*\.$"):
    tff_algos.load_process(str(path))
  tff_algos.save_process(scaffold, str(path))
  with zipfile.ZipFile(path) as file:
    containers = json.loads(file.read("process.json"))["containers"]
  text = json.dumps(containers).replace(":ServerState", ":NoSuchClass")
  _change(path, containers=json.loads(text))
  with pytest.raises(
    tff_algos.InputError, match=r"needs NoSuchClass of tff_algos[^\n]*\.$"
  ):
    tff_algos.load_process(str(path))


@pytest.mark.parametrize("name", ["process.json", "initialize"])
def test_damaged_files_are_refused_in_one_sentence(scaffold, tmp_path, name):
  path = tmp_path / "process"
  tff_algos.save_process(scaffold, str(path))
  with zipfile.ZipFile(path) as file:
    # Past the header of the part, which ends with its name: in what is compressed.
    start = file.getinfo(name).header_offset + 30 + len(name)
  content = bytearray(path.read_bytes())
  content[start] |= 7  # A kind of block that there is not.
  path.write_bytes(content)
  with pytest.raises(tff_algos.InputError, match=r"holds no process[^\n]*\.$"):
    tff_algos.load_process(str(path))


def test_a_place_in_the_file_that_is_none_is_damage(scaffold, tmp_path):
  path = tmp_path / "process"
  tff_algos.save_process(scaffold, str(path))
  content = bytearray(path.read_bytes())
  content[-5] ^= 0x80  # Of where the list of parts begins.
  path.write_bytes(content)
  with pytest.raises(tff_algos.InputError, match=r"holds no process[^\n]*\.$"):
    tff_algos.load_process(str(path))


def test_what_cannot_be_written_leaves_the_file_that_is_there(
  scaffold, tmp_path, monkeypatch
):
  path = tmp_path / "process"
  tff_algos.save_process(scaffold, str(path))
  before = path.read_bytes()

  def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
  with pytest.raises(OSError, match="No space left"):
    tff_algos.save_process(scaffold, str(path))
  assert path.read_bytes() == before
  assert [p.name for p in tmp_path.iterdir()] == ["process"]
