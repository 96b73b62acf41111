"""Loading a task: its clients on disk, its model, and what cannot be used."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry
from tasks.datasets import dataset, digits
from tff_algos import client_data, partitions
from tff_algos.errors import InputError, InputWarning
from tff_algos.models import functional, keras
from tff_algos.models.functional import ExampleSpec


def _load(cache_dir, task=None, **changes) -> registry.LoadedTask:
  options = dict(
    data_dir=None,
    cache_dir=str(cache_dir),
    partition="dirichlet:beta=0.5,min_size=5",
    num_clients=12,
    partition_seed=3,
    model_seed=4,
  )
  return registry.load(task or registry.get("digits_cnn"), **{**options, **changes})


def _spec() -> ExampleSpec:
  return ExampleSpec(tf.TensorSpec([8, 8, 1], tf.uint8), tf.TensorSpec([], tf.int32))


def _files(folder) -> dict[str, int]:
  found = pathlib.Path(folder).rglob("*")
  return {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}


def test_classes_that_no_client_has_are_warned_of(tmp_path):
  """Two clients of one class each, of ten."""
  split = "twafl:min_size=20,max_size=30,min_classes=1,max_classes=1"
  with pytest.warns(InputWarning) as warned:
    loaded = _load(tmp_path, partition=split, num_clients=2)
  held = np.flatnonzero(loaded.class_counts.sum(axis=0))
  absent = [str(c) for c in range(10) if c not in held]
  best = 100 * np.isin(loaded.test_y, held).mean()
  said = f"No client has examples of class {', '.join(absent)}, so that at most "
  [told] = [str(w.message) for w in warned if w.category is InputWarning]
  assert told.startswith(said) and f"at most {best:.2f} % " in told


@pytest.mark.parametrize(
  "partition",
  ["dirichlet:beta=0.5,min_size=5", "shards", "twafl:min_size=20,max_size=30"],
)
def test_client_files_hold_exactly_the_split(tmp_path, partition):
  loaded = _load(tmp_path, partition=partition)
  data = digits.load()
  split = partitions.partition(partition, data.train_y, 12, 3)
  assert len(loaded.clients) == len(split.clients) == 12
  for client, rows in zip(loaded.clients.ids, split.clients):
    x, y = loaded.clients.examples(client, _spec())
    np.testing.assert_array_equal(x, data.train_x[rows])
    np.testing.assert_array_equal(y, data.train_y[rows])
  counts = [np.bincount(data.train_y[rows], minlength=10) for rows in split.clients]
  np.testing.assert_array_equal(loaded.class_counts, counts)
  np.testing.assert_array_equal(loaded.clients.num_examples, np.sum(counts, axis=1))
  held = np.unique(np.concatenate(split.clients))
  assert loaded.left_over == 1437 - len(held)
  np.testing.assert_array_equal(loaded.test_x, data.test_x)
  np.testing.assert_array_equal(loaded.test_y, data.test_y)
  assert loaded.note == ""
  assert loaded.model.num_weights == 13_706


def _regression(**changes) -> registry.Task:
  """Two numbers for each of the digits' pictures, by a linear model."""

  def load(data_dir, cache_dir):
    data = digits.load()
    train_y, test_y = (np.stack([y / 7, -y], axis=1) for y in (data.train_y, data.test_y))
    return data._replace(train_y=train_y, test_y=test_y, num_classes=None)

  def build(shape, num_classes):
    assert num_classes is None
    layers = [tf.keras.layers.Input(shape), tf.keras.layers.Flatten()]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(2)])

  def make_model(keras_model, spec):
    loss = tf.keras.losses.mean_squared_error
    return keras.from_keras(keras_model, spec, loss=loss, metrics={})

  row = registry.get("digits_cnn")._replace(name="regression", load_data=load)
  return row._replace(build_keras_model=build, make_model=make_model)._replace(**changes)


def test_labels_that_are_no_classes_are_stored_as_they_are(tmp_path):
  loaded = _load(tmp_path, _regression(), partition="iid")
  data = digits.load()
  split = partitions.iid(data.train_y, 12, seed=3)
  assert loaded.class_counts is None and loaded.test_y.shape == (360, 2)
  spec = loaded.model.example_spec
  assert spec.y == tf.TensorSpec([2], tf.float32)
  for client, rows in zip(loaded.clients.ids, split.clients):
    _, y = loaded.clients.examples(client, spec)
    labels = data.train_y[rows]
    np.testing.assert_array_equal(y, np.float32(np.stack([labels / 7, -labels], 1)))


def test_labels_that_are_no_classes_need_a_loss_and_a_split_of_their_own(tmp_path):
  plain = _regression(make_model=registry.Task._field_defaults["make_model"])
  with pytest.raises(InputError, match=r"^The loss does not take labels float32"):
    _load(tmp_path, plain, partition="iid")
  with pytest.raises(InputError, match="one class index per example, or choose iid"):
    _load(tmp_path, _regression())
  assert not (tmp_path / "clients").exists()


def test_client_files_are_written_once(tmp_path):
  first = _load(tmp_path)
  before = _files(tmp_path)
  again = _load(tmp_path)
  assert _files(tmp_path) == before
  assert again.clients.folder == first.clients.folder


def _cut_all(folder):
  """As a power cut leaves files that were not synced."""
  for path in folder.rglob("*.client"):
    path.write_bytes(b"")


def _flip_a_bit(folder):
  path = min(folder.rglob("*.client"))
  content = path.read_bytes()
  path.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])


_DAMAGES = {
  "emptied": _cut_all,
  "one bit is another": _flip_a_bit,
  "one is gone": lambda folder: next(folder.rglob("*.client")).unlink(),
  "no list": lambda folder: (folder / "clients.json").unlink(),
  "empty list": lambda folder: (folder / "clients.json").write_text(""),
  "another list": lambda folder: (folder / "clients.json").write_text('{"ids": ["a"]}'),
}


def test_client_files_may_be_read_by_whoever_may_read_beside_them(tmp_path):
  before = os.umask(0o022)
  try:
    _load(tmp_path)
  finally:
    os.umask(before)
  [folder] = (tmp_path / "clients").iterdir()
  assert stat.S_IMODE(folder.stat().st_mode) == 0o755


@pytest.mark.parametrize("damage", _DAMAGES)
def test_damaged_client_files_are_written_anew(tmp_path, capsys, damage):
  clients = _load(tmp_path).clients
  name = clients.ids[3]
  expected = clients.examples(name, _spec())
  [folder] = (tmp_path / "clients").iterdir()
  _DAMAGES[damage](folder)
  found = _load(tmp_path).clients
  said = capsys.readouterr().err
  assert str(folder) in said and said.count("\n") == 1
  assert said.endswith("The clients are written anew.\n")
  for a, b in zip(found.examples(name, _spec()), expected):
    np.testing.assert_array_equal(a, b)
  _load(tmp_path)
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["../../x", "a/b", "/x", "", "a\0b", "a\nb"])
def test_name_that_would_lead_out_of_the_cache_is_refused(tmp_path, name):
  task = registry.get("digits_cnn")._replace(name=name)
  with pytest.raises(InputError, match="no folder's name") as caught:
    _load(tmp_path / "cache", task)
  assert repr(name) in str(caught.value) and "\n" not in str(caught.value)
  assert list(tmp_path.iterdir()) == []


def test_anything_that_changes_the_clients_makes_another_folder(tmp_path):
  folders = [
    _load(tmp_path, **changes).clients.folder
    for changes in (
      {},
      dict(partition_seed=4),
      dict(num_clients=11),
      dict(partition="iid"),
      dict(partition="dirichlet:beta=0.6,min_size=5"),
    )
  ]
  assert len(set(folders)) == len(folders)
  assert sorted(map(os.path.basename, folders)) == sorted(
    os.listdir(tmp_path / "clients")
  )


def test_other_labels_of_the_same_inputs_make_another_folder(tmp_path):
  """An IID split does not look at them, so that nothing else would differ."""

  def load(first_label):
    task = _own_task(load_data=_with_labels(first_label))
    loaded = _load(tmp_path, task, partition="iid", num_clients=3)
    spec = loaded.model.example_spec
    return sum(loaded.clients.examples(c, spec)[1].sum() for c in loaded.clients.ids)

  assert load(1) - load(0) == 1


def test_initial_weights_are_those_of_the_model_seed_alone(tmp_path):
  def load(global_seed, **changes):
    tf.keras.utils.set_random_seed(global_seed)
    return _load(tmp_path, **changes).model.initial_weights

  first, again, other = load(1), load(2, partition_seed=9), load(1, model_seed=5)
  for a, b in zip(first, again):
    np.testing.assert_array_equal(a, b)
  kernels = [k for k, w in enumerate(first) if w.ndim > 1]
  assert len(kernels) == 4
  assert all(not np.array_equal(first[k], other[k]) for k in kernels)


@pytest.mark.parametrize("error", [OSError(28, "no space left"), KeyboardInterrupt()])
def test_failed_start_leaves_no_half_written_folder(tmp_path, monkeypatch, error):
  write = client_data.write_clients

  def fail_half_way(folder, clients, spec):
    write(folder, dict(list(clients.items())[:5]), spec)
    raise error

  with monkeypatch.context() as patched:
    patched.setattr(client_data, "write_clients", fail_half_way)
    with pytest.raises(type(error)):
      _load(tmp_path)
  assert _files(tmp_path) == {}
  assert len(_load(tmp_path).clients) == 12


def test_file_that_a_loader_lacks_is_named(tmp_path):
  def load(data_dir, cache_dir):
    return np.loadtxt(tmp_path / "absent.csv")

  task = registry.get("digits_cnn")._replace(load_data=load)
  with pytest.raises(InputError, match=r"absent\.csv not found\.$"):
    _load(tmp_path / "cache", task)


def test_file_in_the_place_of_a_folder_is_named(tmp_path):
  """No failure of the disk, after which the same command would do."""
  (tmp_path / "file").touch()
  task = registry.get("digits_cnn")._replace(
    load_data=lambda data_dir, cache_dir: (tmp_path / "file" / "inside").read_bytes()
  )
  with pytest.raises(InputError, match=r"file/inside: Not a directory\.$"):
    _load(tmp_path / "cache", task)


def test_task_without_a_model_is_refused(tmp_path):
  task = registry.get("digits_cnn")._replace(build_keras_model=None)
  with pytest.raises(InputError, match="task digits_cnn has no build_keras_model"):
    _load(tmp_path / "cache", task)


def test_what_makes_no_model_is_named(tmp_path):
  task = registry.get("digits_cnn")._replace(
    make_model=lambda keras_model, spec: keras_model
  )
  with pytest.raises(InputError, match="make_model of the task digits_cnn must return a"):
    _load(tmp_path / "cache", task)


def test_two_starts_at_once_share_what_one_wrote(tmp_path, monkeypatch):
  """Another process finishes the same folder while this one is still writing."""
  write = client_data.write_clients

  def be_overtaken(folder, clients, spec):
    with monkeypatch.context() as inner:
      inner.setattr(client_data, "write_clients", write)
      _load(tmp_path)
    write(folder, clients, spec)

  monkeypatch.setattr(client_data, "write_clients", be_overtaken)
  assert len(_load(tmp_path).clients) == 12
  assert len(os.listdir(tmp_path / "clients")) == 1


def test_files_of_another_format_are_not_taken_from_the_cache(tmp_path, monkeypatch):
  """A later version of the library must not read what an earlier one left there."""
  monkeypatch.setattr(client_data, "FORMAT", client_data.FORMAT - 1)
  old = _load(tmp_path).clients
  monkeypatch.undo()
  new = _load(tmp_path).clients
  assert old.folder != new.folder


# --- Clients that the data have -----------------------------------------------------


def _grouped_task(**changes) -> registry.Task:
  """30 examples of three users: 5, 10 and 15 in turn."""

  def load_data(data_dir, cache_dir):
    data = _own_task().load_data(data_dir, cache_dir)
    groups = np.repeat(np.array([0, 1, 2, 1, 2, 2], np.int32), 5)
    return data._replace(train_groups=groups)

  row = _own_task(load_data=load_data, partition="natural", num_clients=None)
  return row._replace(**changes)


def test_every_group_is_a_client_where_no_number_is_given(tmp_path):
  loaded = _load(tmp_path, _grouped_task(), partition="natural", num_clients=None)
  np.testing.assert_array_equal(loaded.clients.num_examples, [5, 10, 15])
  assert loaded.left_over == 0


def test_another_split_of_grouped_data_has_as_many_clients(tmp_path):
  loaded = _load(tmp_path, _grouped_task(), partition="iid", num_clients=None)
  np.testing.assert_array_equal(loaded.clients.num_examples, [10, 10, 10])


def test_fewer_clients_than_groups_leave_the_others_over(tmp_path):
  loaded = _load(tmp_path, _grouped_task(), partition="natural", num_clients=2)
  assert len(loaded.clients) == 2
  assert loaded.left_over == 30 - loaded.clients.num_examples.sum() > 0


# --- Sequences ----------------------------------------------------------------------


def _sequence_task(**changes) -> registry.Task:
  """12 training and 4 test sequences of 3 steps, some without a last label."""

  def load_data(data_dir, cache_dir):
    del data_dir, cache_dir
    draw = np.random.default_rng(1)
    x = draw.integers(1, 5, (16, 3)).astype(np.int32)
    y = draw.integers(0, 4, (16, 3)).astype(np.int32)
    y[::2, 2] = -1
    groups = np.arange(12, dtype=np.int32) % 4
    return dataset.Dataset(x[:12], y[:12], x[12:], y[12:], 4, "", groups)

  def build_keras_model(shape, num_classes):
    layers = tf.keras.layers
    return tf.keras.Sequential(
      [layers.Input(shape), layers.Embedding(5, 2), layers.Dense(num_classes)]
    )

  row = _grouped_task(load_data=load_data, build_keras_model=build_keras_model)
  return row._replace(make_model=registry.get("shakespeare_lstm").make_model, **changes)


def test_sequences_are_loaded_with_their_loss_and_metric(tmp_path):
  task = _sequence_task()
  loaded = _load(tmp_path, task, partition="natural", num_clients=None)
  data = task.load_data(None, "")
  assert loaded.model.example_spec.y == tf.TensorSpec([3], tf.int32)
  x, y = loaded.clients.examples(loaded.clients.ids[1], loaded.model.example_spec)
  assert sorted(map(tuple, x)) == sorted(map(tuple, data.train_x[1::4]))
  assert sorted(map(tuple, y)) == sorted(map(tuple, data.train_y[1::4]))
  expected = [
    np.bincount(labels[labels >= 0], minlength=4)
    for labels in (data.train_y[i::4] for i in range(4))
  ]
  np.testing.assert_array_equal(loaded.class_counts, expected)
  hits, counts = loaded.model.metrics["accuracy"](
    tf.constant(data.test_y), tf.one_hot(tf.maximum(data.test_y, 0), 4)
  )
  np.testing.assert_array_equal(counts, [2, 3, 2, 3])
  np.testing.assert_array_equal(hits, counts)


def test_model_without_a_prediction_at_each_step_is_refused(tmp_path):
  def only_last(shape, num_classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input(shape), layers.Dense(num_classes)])

  task = _sequence_task(build_keras_model=only_last)
  with pytest.raises(ValueError, match="for each class, at each step of a sequence"):
    _load(tmp_path, task, partition="natural", num_clients=None)

  def with_own_loss(keras_model, spec):
    def loss(y, predictions):
      del predictions
      return tf.reduce_sum(tf.cast(y, tf.float32), axis=-1)

    return keras.from_keras(keras_model, spec, loss=loss, metrics={})

  task = task._replace(make_model=with_own_loss)
  with pytest.raises(ValueError, match="for each class, at each of 3 steps"):
    _load(tmp_path, task, partition="natural", num_clients=None)


# --- What cannot be loaded ----------------------------------------------------------


def _own_task(**changes) -> registry.Task:
  """A task of a user's own: 30 examples of two numbers, two classes."""

  def load_data(data_dir, cache_dir):
    del data_dir, cache_dir
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    return dataset.Dataset(x[:30], y[:30], x[30:], y[30:], num_classes=2, note="a note")

  def build_keras_model(shape, num_classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input(shape), layers.Dense(num_classes)])

  row = registry.Task(
    name="own",
    description="Two numbers.",
    load_data=load_data,
    build_keras_model=build_keras_model,
    partition="iid",
    num_clients=3,
    clients_per_round=2,
    rounds=2,
    hparams={},
  )
  return row._replace(**changes)


def test_task_of_ones_own_is_loaded(tmp_path):
  loaded = _load(tmp_path, _own_task(), partition="iid", num_clients=3)
  assert loaded.note == "a note"
  assert loaded.model.example_spec.x == tf.TensorSpec([2], tf.float32)
  np.testing.assert_array_equal(loaded.clients.num_examples, [10, 10, 10])


@pytest.mark.parametrize("is_pretrained", [False, True])
def test_pretrained_weights_are_trained_on_and_frozen_ones_kept(tmp_path, is_pretrained):
  given = [np.full((2, 2), 3.0), np.full(2, 4.0), np.full((2, 2), 5.0), np.full(2, 6.0)]

  def build(shape, num_classes):
    layers = tf.keras.layers
    base, head = layers.Dense(2, trainable=False), layers.Dense(num_classes)
    keras_model = tf.keras.Sequential([layers.Input(shape), base, head])
    base.set_weights(given[:2])
    head.set_weights(given[2:])
    return keras_model

  task = _own_task(build_keras_model=build, is_pretrained=is_pretrained)
  model = _load(tmp_path, task, partition="iid", num_clients=3).model
  kernel, bias = model.initial_weights
  assert is_pretrained == np.array_equal(kernel, given[2])
  assert is_pretrained == np.array_equal(bias, given[3])
  x = np.ones((1, 2), np.float32)
  identity = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
  found = model.predict(identity, x, False, (0, 0))
  np.testing.assert_allclose(found, [[10.0, 10.0]])  # 3 + 3 + 4, as the base was given.


def _with_batch_norm(shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [layers.Input(shape), layers.BatchNormalization(), layers.Dense(num_classes)]
  )


def _with_one_output(shape, num_classes):
  del num_classes
  layers = tf.keras.layers
  return tf.keras.Sequential([layers.Input(shape), layers.Dense(1)])


def _with_labels(*labels):
  def load(data_dir, cache_dir):
    data = _own_task().load_data(data_dir, cache_dir)
    data.train_y[: len(labels)] = labels
    return data

  return load


@pytest.mark.parametrize(
  "changes, options, match",
  [
    (dict(build_keras_model=_with_batch_norm), {}, "GroupNormalization"),
    (dict(build_keras_model=_with_one_output), {}, "2 classes, but .* model gives 1 num"),
    (dict(load_data=_with_labels(0, 2)), {}, "label 2: with 2 classes"),
    (dict(load_data=_with_labels(-1)), {}, "label -1"),
    ({}, dict(partition="shards:shards_per_client=20"), "need 60 examples"),
    ({}, dict(num_clients=31), "31 clients"),
    ({}, dict(num_clients=0), "num_clients"),
    ({}, dict(num_clients=None), "do not say from whom .* give the number of clients"),
    ({}, dict(partition="natural"), "natural: these data do not say from whom"),
    ({}, dict(partition="irregular"), "irregular"),
    ({}, dict(partition="dirichlet:beta=-1"), "beta"),
  ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
  tmp_path, changes, options, match
):
  cache = tmp_path / "cache"
  options = {**dict(partition="iid", num_clients=3), **options}
  with pytest.raises(ValueError, match=match) as caught:
    _load(cache, _own_task(**changes), **options)
  assert "\n" not in str(caught.value)
  assert not cache.exists()


# --- The loss ---------------------------------------------------------------------------


def test_epsilon_is_of_the_models_loss_and_0_leaves_it_alone(tmp_path):
  plain, faded = (_load(tmp_path, loss_epsilon=e).model for e in (0.0, 1e-3))
  assert plain.example_losses is functional.sparse_cross_entropy
  assert plain.soft_targets.losses is functional.soft_cross_entropy
  assert faded.example_losses == functional.FadingCrossEntropy(1e-3)
  assert faded.soft_targets.losses == faded.example_losses.of_soft_targets
  assert faded.metrics.keys() == plain.metrics.keys()
  for a, b in zip(plain.initial_weights, faded.initial_weights):
    np.testing.assert_array_equal(a, b)


def test_mixed_precision_is_of_the_network_and_of_no_other(tmp_path):
  plain, half = (_load(tmp_path, mixed_precision=m).model for m in (False, True))
  kinds = [
    {layer.compute_dtype for layer in model.keras_source.keras_model.layers}
    for model in (plain, half)
  ]
  assert kinds == [{"float32"}, {"bfloat16"}]
  assert tf.keras.layers.Dense(1).compute_dtype == "float32"
  for a, b in zip(plain.initial_weights, half.initial_weights):
    np.testing.assert_array_equal(a, b)


def test_mixed_precision_that_changes_nothing_is_refused(tmp_path):
  layers = tf.keras.layers

  def build(shape, num_classes):
    own = dict(dtype="float32")
    flat = layers.Flatten(**own), layers.Dense(num_classes, **own)
    return tf.keras.Sequential([layers.Input(shape), *flat])

  task = registry.get("digits_cnn")._replace(build_keras_model=build)
  with pytest.raises(InputError, match="changes nothing of digits_cnn"):
    _load(tmp_path, task, mixed_precision=True)


def _own_targets(keras_model, spec):
  targets = functional.SoftTargets(tf.nn.softmax, lambda targets, logits: targets[:, 0])
  return dataclasses.replace(keras.from_keras(keras_model, spec), soft_targets=targets)


def _own_loss(keras_model, spec):
  return keras.from_keras(keras_model, spec, loss=lambda y, logits: logits[:, 0])


@pytest.mark.parametrize("make_model", [_own_targets, _own_loss])
def test_epsilon_of_another_loss_is_refused(tmp_path, make_model):
  task = registry.get("digits_cnn")._replace(make_model=make_model)
  with pytest.raises(InputError, match="the loss of digits_cnn is another"):
    _load(tmp_path, task, loss_epsilon=1e-3)


@pytest.mark.parametrize("number", [2, -1])
@pytest.mark.parametrize("split", ["train_x", "test_x"])
def test_inputs_beyond_an_embedding_are_said(tmp_path, split, number):
  """They are the task's mistake, wherever they are, and no defect of the library."""

  def build(shape, num_classes):
    layers = tf.keras.layers
    return tf.keras.Sequential(
      [
        layers.Input(shape, dtype="int32"),
        layers.Reshape([-1]),
        layers.Embedding(2, 3),
        layers.GlobalAveragePooling1D(),
        layers.Dense(num_classes),
      ]
    )

  def load(data_dir, cache_dir):
    data = digits.load()
    splits = ("train_x", "test_x")
    zeros = {name: np.zeros(getattr(data, name).shape, np.int32) for name in splits}
    zeros[split][-2, -1, 0] = number
    return data._replace(**zeros)

  task = registry.get("digits_cnn")._replace(load_data=load, build_keras_model=build)
  with pytest.raises(InputError, match=f"of 0 to below 2, but its data have {number}:"):
    _load(tmp_path, task)
