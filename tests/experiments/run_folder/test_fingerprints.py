"""Digests of data and descriptions of models: alike where numbers are, else not."""

from __future__ import annotations

import functools
import importlib
import json
import types

import numpy as np
import pytest
import tensorflow as tf

from experiments.run_folder import fingerprints
from tasks.models import layers as layers_lib
from tff_algos import client_data
from tff_algos.models import functional, keras

_SPEC = functional.ExampleSpec(
  tf.TensorSpec([2, 2, 1], tf.uint8), tf.TensorSpec([], tf.int32)
)


def _examples(seed: int, number: int = 3):
  draw = np.random.default_rng(seed)
  x = draw.integers(256, size=(number, 2, 2, 1), dtype=np.uint8)
  return x, draw.integers(2, size=number, dtype=np.int32)


def _model(activation: str = "relu", size: int = 3):
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Input((2, 2, 1)),
      layers.Flatten(),
      layers.Dense(size, activation=activation),
      layers.Dense(2),
    ]
  )


@pytest.fixture
def load(tmp_path):
  """`(clients, test, model, folder) -> LoadedTask`, as far as it is looked at."""

  def load(clients, test=None, keras_model=None, folder="clients"):
    test_x, test_y = test or _examples(9)
    keras_model = keras_model or _model()
    path = str(tmp_path / folder)
    return types.SimpleNamespace(
      clients=client_data.write_clients(path, clients, _SPEC),
      test_x=test_x,
      test_y=test_y,
      note="",
      left_over=1,
      model=keras.from_keras(keras_model, _SPEC),
      layers=layers_lib.describe_layers(keras_model),
    )

  return load


_CLIENTS = {"a": _examples(1), "b": _examples(2, number=4)}


def test_counts_and_digests(load):
  found = fingerprints.of_data(load(_CLIENTS))
  assert {k: v for k, v in found.items() if isinstance(v, (int, str))} == found
  assert (found["clients"], found["examples"], found["left_over"]) == (2, 7, 1)
  assert found["test_examples"] == 3
  for name in ("client_files", "test_set"):
    assert len(bytes.fromhex(found[name])) == 32


def test_same_data_elsewhere_are_the_same(load):
  found = fingerprints.of_data(load(_CLIENTS))
  copied = {client: (x.copy(), y.copy()) for client, (x, y) in _CLIENTS.items()}
  assert fingerprints.of_data(load(copied, folder="elsewhere")) == found


def _one_pixel(x):
  x = x.copy()
  x[2, 1, 0, 0] ^= 1
  return x


@pytest.mark.parametrize(
  "clients",
  [
    {**_CLIENTS, "a": (_one_pixel(_CLIENTS["a"][0]), _CLIENTS["a"][1])},
    {**_CLIENTS, "a": (_CLIENTS["a"][0], 1 - _CLIENTS["a"][1])},
    {"a": _CLIENTS["b"], "b": _CLIENTS["a"]},
    {"b": _CLIENTS["b"], "a": _CLIENTS["a"]},
    {"a": _CLIENTS["a"], "c": _CLIENTS["b"]},
    {"a": tuple(part[::-1] for part in _CLIENTS["a"]), "b": _CLIENTS["b"]},
  ],
  ids=["pixel", "label", "swapped", "another order", "another name", "other places"],
)
def test_other_clients_have_another_digest_and_the_test_set_its_own(load, clients):
  before = fingerprints.of_data(load(_CLIENTS))
  after = fingerprints.of_data(load(clients, folder="other"))
  assert {name for name in before if before[name] != after[name]} == {"client_files"}


_X, _Y = _examples(9)


@pytest.mark.parametrize(
  "test",
  [
    (_one_pixel(_X), _Y),
    (_X, 1 - _Y),
    # The same bytes as another array.
    (_X.reshape(3, 4, 1, 1), _Y),
    (_X.view(np.int8), _Y),
    (_X, _Y.view(np.float32)),
  ],
  ids=["pixel", "label", "shape", "dtype", "dtype of labels"],
)
def test_another_test_set_has_another_digest_and_the_clients_their_own(load, test):
  before = fingerprints.of_data(load(_CLIENTS))
  after = fingerprints.of_data(load(_CLIENTS, test=test, folder="other"))
  assert {name for name in before if before[name] != after[name]} == {"test_set"}


def test_code_of_ones_own_is_that_of_a_partial_too(monkeypatch, tmp_path):
  """Else a run would be resumed with another loss."""
  (tmp_path / "loss_of_mine.py").write_text("def make(data, seed, rate): pass\n")
  monkeypatch.syspath_prepend(tmp_path)
  make = importlib.import_module("loss_of_mine").make
  wrapped = functools.partial(functools.partial(make, rate=1), seed=0)
  name = "loss_of_mine:make"
  found = fingerprints._of_files(name, make)
  assert fingerprints._of_files(name, wrapped) == found
  assert list(found) == ["loss_of_mine"]


def test_place_in_memory_is_no_difference(load):
  strided = np.asfortranarray(_X)
  assert not strided.flags.c_contiguous
  found = [
    fingerprints.of_data(load(_CLIENTS, test=(x, _Y), folder=name))
    for name, x in (("one", _X), ("other", strided))
  ]
  assert found[0] == found[1]


def test_model_is_its_shapes_and_layers(load):
  found = fingerprints.of_model(load(_CLIENTS))
  assert found["num_weights"] == 4 * 3 + 3 + 3 * 2 + 2
  assert found["weights"] == ["4x3", "3", "3x2", "2"]
  assert [line.partition("(")[0] for line in found["layers"]] == [
    "Flatten",
    "Dense",
    "Dense",
  ]
  # As config.json has it.
  assert json.loads(json.dumps(found)) == found


def test_model_that_is_built_again_is_the_same(load):
  """Keras counts the names of layers up."""
  first, second = _model(), _model()
  assert first.layers[1].name != second.layers[1].name
  found = [
    fingerprints.of_model(load(_CLIENTS, keras_model=model, folder=name))
    for name, model in (("one", first), ("other", second))
  ]
  assert found[0] == found[1]


@pytest.mark.parametrize(
  "options, parts",
  [
    (dict(activation="tanh"), {"layers"}),
    (dict(size=4), {"layers", "weights", "num_weights"}),
  ],
)
def test_other_model_differs_in_what_it_is(load, options, parts):
  before = fingerprints.of_model(load(_CLIENTS))
  model = _model(**options)
  after = fingerprints.of_model(load(_CLIENTS, keras_model=model, folder="other"))
  assert {name for name in before if before[name] != after[name]} == parts


def _wrapped(activation: str):
  layers = tf.keras.layers
  return [
    layers.TimeDistributed(layers.Dense(2, activation=activation)),
    layers.Bidirectional(layers.LSTM(2, activation=activation)),
    layers.RNN(layers.SimpleRNNCell(2, activation=activation)),
  ]


@pytest.mark.parametrize("kind", range(3))
def test_layers_in_layers_are_among_them(kind):
  found = [
    layers_lib.describe_layers(
      tf.keras.Sequential([tf.keras.layers.Input((3, 2)), _wrapped(activation)[kind]])
    )
    for activation in ("tanh", "relu", "tanh")
  ]
  assert found[0] != found[1] and found[0] == found[2]


def test_an_activation_that_is_a_layer_is_among_them():
  leaky = tf.keras.layers.LeakyReLU
  found = [
    layers_lib.describe_layers(_model(activation=leaky(alpha)))
    for alpha in (0.1, 0.9, 0.1)
  ]
  assert found[0] != found[1] and found[0] == found[2]


def _with_frozen(frozen: tf.keras.layers.Layer):
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.Input((2, 2, 1)),
      layers.Flatten(),
      frozen,
      layers.Dropout(0.1),
      layers.Dense(2),
    ]
  )


def _base(value: float):
  model = _with_frozen(tf.keras.layers.Dense(3, trainable=False))
  model.layers[1].set_weights([np.full((4, 3), value), np.zeros(3)])
  return model


def _adapted(value: float):
  return _with_frozen(tf.keras.layers.Normalization(mean=value, variance=1.0))


@pytest.mark.parametrize("make", [_base, _adapted])
def test_frozen_values_are_the_model_too(load, make):
  found = [
    fingerprints.of_model(load(_CLIENTS, keras_model=make(value), folder=str(i)))
    for i, value in enumerate((1.0, 2.0, 1.0))
  ]
  assert found[0]["frozen"] != found[1]["frozen"]
  assert found[0] == found[2]
  assert "frozen" not in fingerprints.of_model(load(_CLIENTS, folder="none"))
