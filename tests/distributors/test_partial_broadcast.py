"""The boundary between shallow and deep layers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tff_algos.distributors.partial_broadcast import PartialBroadcast
from tff_algos.models import functional, keras

_layers = tf.keras.layers


def _names(layers, shape, dtype=tf.float32) -> tuple[str, ...]:
  keras_model = tf.keras.Sequential([tf.keras.Input(shape), *layers])
  spec = functional.ExampleSpec(tf.TensorSpec(shape, dtype), tf.TensorSpec([], tf.int32))
  return keras.from_keras(keras_model, spec).weight_names


def _cnn() -> tuple[str, ...]:
  """Two convolutions and two dense layers, of a kernel and a bias each."""
  layers = [
    _layers.Conv2D(2, 3, activation="relu"),
    _layers.MaxPool2D(),
    _layers.Conv2D(3, 3, activation="relu"),
    _layers.Flatten(),
    _layers.Dense(4, activation="relu"),
    _layers.Dropout(0.5),
    _layers.Dense(3),
  ]
  return _names(layers, (12, 12, 1))


def _lstm() -> tuple[str, ...]:
  """An LSTM has kernel, recurrent kernel and bias; its layer is called "lstm"."""
  return _names([_layers.LSTM(4), _layers.Dense(5), _layers.Dense(3)], (6, 2))


def _mlp() -> tuple[str, ...]:
  return _names([_layers.Dense(5), _layers.Dense(4), _layers.Dense(3)], (7,))


# --- The default boundary ---------------------------------------------------------------


def test_deep_layers_of_a_cnn_are_those_after_the_last_convolution():
  names = _cnn()
  assert len(names) == 8
  assert PartialBroadcast(names).num_shallow == 4


def test_deep_layers_of_an_lstm_net_are_those_after_the_lstm():
  names = _lstm()
  assert len(names) == 7
  assert PartialBroadcast(names).num_shallow == 3


def test_second_half_of_an_mlp_is_deep():
  names = _mlp()
  assert len(names) == 6
  assert PartialBroadcast(names).num_shallow == 3


def test_odd_array_of_a_net_without_such_layers_is_deep():
  assert PartialBroadcast(["a/kernel", "a/bias", "b/kernel"]).num_shallow == 1


@pytest.mark.parametrize(
  "layers, shape, dtype, num_shallow",
  [
    ([_layers.GRU(3), _layers.Dense(2)], (5, 2), tf.float32, 3),
    ([_layers.SimpleRNN(3), _layers.Dense(2)], (5, 2), tf.float32, 3),
    (
      [_layers.Bidirectional(_layers.LSTM(3)), _layers.Dense(2)],
      (5, 2),
      tf.float32,
      6,
    ),
    (
      [_layers.Embedding(9, 4), _layers.GlobalAveragePooling1D(), _layers.Dense(2)],
      (5,),
      tf.int32,
      1,
    ),
    (
      # A layer between two convolutions travels with them.
      [_layers.Conv1D(4, 2), _layers.Dense(4), _layers.Conv1D(4, 2), _layers.Dense(2)],
      (9, 2),
      tf.float32,
      6,
    ),
  ],
  ids=["gru", "simple_rnn", "bidirectional", "embedding", "dense_between"],
)
def test_shallow_layers_end_with_the_last_one_that_learns_features(
  layers, shape, dtype, num_shallow
):
  model = tf.keras.Sequential([tf.keras.Input(shape, dtype=dtype), *layers])
  names = [v.name for v in model.trainable_variables]
  assert PartialBroadcast(names).num_shallow == num_shallow
  assert names[num_shallow:]
  assert all("dense" in name for name in names[num_shallow:])


def test_layers_that_learn_features_may_have_names_of_ones_own():
  names = ["Conv_1/kernel", "Conv_1/bias", "MyLSTM/kernel", "head/kernel"]
  assert PartialBroadcast(names).num_shallow == 3


# --- A boundary by name -----------------------------------------------------------------


def test_deep_from_names_the_first_deep_layer():
  names = _cnn()
  second_conv, first_dense, last_dense = (names[k].split("/")[0] for k in (2, 4, 6))
  assert PartialBroadcast(names, second_conv).num_shallow == 2
  assert PartialBroadcast(names, first_dense + "/").num_shallow == 4
  assert PartialBroadcast(names, last_dense).num_shallow == 6
  # Of several layers whose names start so it is the first one.
  assert PartialBroadcast(names, "dense").num_shallow == 4
  # A single array is a boundary too.
  assert PartialBroadcast(names, names[5]).num_shallow == 5


def test_deep_from_is_the_start_of_a_name_and_not_a_pattern():
  names = ["front/kernel", "head.1/kernel", "head21/kernel", "my_head/kernel"]
  assert PartialBroadcast(names, "head2").num_shallow == 2
  assert PartialBroadcast(names, "my_").num_shallow == 3
  for not_found in ("ead", "head.*k", "Head", "kernel"):
    with pytest.raises(ValueError, match="no weight's name starts so"):
      PartialBroadcast(names, not_found)


def test_unknown_deep_from_is_refused_with_the_names_there_are():
  with pytest.raises(ValueError) as error:
    PartialBroadcast(["conv/kernel", "dense/kernel"], "output")
  assert "'output'" in str(error.value)
  assert "conv/kernel, dense/kernel" in str(error.value)


@pytest.mark.parametrize(
  "names, deep_from",
  [
    (["conv2d/kernel", "conv2d/bias"], ""),  # All would be shallow,
    (["dense/kernel"], ""),  # and here all deep,
    (["conv2d/kernel", "dense/kernel"], "conv"),  # as here.
  ],
)
def test_refuses_that_all_layers_are_of_one_kind(names, deep_from):
  with pytest.raises(ValueError, match=r"shallow and deep layers.*deep_from") as e:
    PartialBroadcast(names, deep_from)
  assert ", ".join(names) in str(e.value)


# --- The parts --------------------------------------------------------------------------


@given(st.integers(2, 12), st.data())
def test_shallow_and_deep_are_the_whole_in_its_order(num_weights, data):
  first_deep = data.draw(st.integers(1, num_weights - 1))
  names = [f"layer{k:02}/kernel" for k in range(num_weights)]
  layers = PartialBroadcast(names, names[first_deep])
  weights = [np.full(k, k) for k in range(num_weights)]
  shallow, deep = layers.shallow(weights), layers.deep(weights)
  assert isinstance(shallow, tuple) and isinstance(deep, tuple)
  assert len(shallow) == layers.num_shallow == first_deep
  assert all(a is b for a, b in zip((*shallow, *deep), weights))
  assert len(shallow) + len(deep) == num_weights
