"""Outputs that are no logits, and labels without an output, are not trained silently."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import client_data
from tff_algos.algorithms import fed_avg
from tff_algos.errors import InputError, InputWarning
from tff_algos.models import functional, keras
from tff_algos.simulation import loop

_layers = tf.keras.layers
_SPEC = functional.ExampleSpec(
  tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.int32)
)
_SEQUENCES = functional.ExampleSpec(
  tf.TensorSpec([5, 4], tf.float32), tf.TensorSpec([5], tf.int32)
)


def _dense(*last, outputs: int = 3) -> tf.keras.Model:
  return tf.keras.Sequential([_layers.Input([4]), _layers.Dense(outputs), *last])


class _Subclassed(tf.keras.Model):
  def __init__(self):
    super().__init__()
    self.last = _layers.Dense(3)

  def call(self, x):
    return tf.nn.softmax(self.last(x))


def _subclassed():
  model = _Subclassed()
  model.build((None, 4))
  return model


def _several(make) -> tf.keras.Model:
  inputs = _layers.Input([4])
  return tf.keras.Model(inputs, make(_layers.Dense(3)(inputs), _layers.Dense(2)(inputs)))


@pytest.mark.parametrize(
  "make, kind",
  [
    (lambda a, b: [a, b], "list"),
    (lambda a, b: (a, b), "tuple"),
    (lambda a, b: {"a": a, "b": b}, "dict"),
    (lambda a, b: {"a": a[:, :2] + b}, "dict"),
  ],
)
def test_several_outputs_are_refused_unless_the_loss_is_of_all(make, kind):
  said = rf"gives a {kind} of outputs, but the loss takes one tensor[^\n]*\.$"
  with pytest.raises(InputError, match=said):
    keras.from_keras(_several(make), _SPEC)
  own = keras.from_keras(
    _several(make), _SPEC, loss=lambda y, both: tf.cast(y, tf.float32)
  )
  assert own.num_weights == 5 * 5


# --- Activations of the last layer ----------------------------------------------------


@pytest.mark.parametrize(
  "build, name",
  [
    (lambda: _dense(_layers.Dense(3, activation="softmax")), "softmax"),
    (lambda: _dense(_layers.Dense(3, activation="sigmoid")), "sigmoid"),
    (lambda: _dense(_layers.Softmax()), "softmax"),
    (lambda: _dense(_layers.Activation("sigmoid")), "sigmoid"),
    (lambda: _dense(_layers.Softmax(), _layers.Dropout(0.0)), "softmax"),
    (lambda: _dense(_layers.Softmax(), _layers.Dropout(0.5)), "softmax"),
    (lambda: _dense(_layers.Softmax(), _layers.Reshape([3])), "softmax"),
    (lambda: tf.keras.Sequential([_dense(_layers.Softmax())]), "softmax"),
    (_subclassed, "softmax"),
  ],
)
def test_model_that_ends_in_probabilities_is_warned_of(build, name):
  keras_model = build()
  if not keras_model.built:
    keras_model.build((None, 4))
  with pytest.warns(InputWarning, match="taken for logits") as caught:
    keras.from_keras(keras_model, _SPEC)
  (warning,) = caught
  assert f"ends in a {name}," in str(warning.message)
  assert warning.filename == __file__


def test_sequences_that_end_in_probabilities_are_warned_of():
  last = _layers.TimeDistributed(_layers.Dense(3, activation="softmax"))
  keras_model = tf.keras.Sequential([_layers.Input([5, 4]), last])
  with pytest.warns(InputWarning, match="taken for logits"):
    keras.from_keras(keras_model, _SEQUENCES, loss=functional.sequence_cross_entropy)


def test_a_fading_loss_takes_logits_too():
  with pytest.warns(InputWarning, match="taken for logits"):
    loss = functional.FadingCrossEntropy(1e-12)
    keras.from_keras(_dense(_layers.Softmax()), _SPEC, loss=loss)


def _probability_loss(labels, probabilities):
  return tf.keras.losses.sparse_categorical_crossentropy(labels, probabilities)


@pytest.mark.parametrize(
  "build, options",
  [
    (_dense, {}),
    (lambda: _dense(_layers.Softmax(), _layers.Dense(3)), {}),
    (lambda: _dense(_layers.Activation("relu")), {}),
    (lambda: _dense(_layers.Activation(tf.nn.log_softmax)), {}),
    (lambda: _dense(_layers.Softmax()), dict(loss=_probability_loss)),
  ],
)
def test_other_models_are_not(build, options):
  with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    keras.from_keras(build(), _SPEC, **options)


# --- Labels and outputs ---------------------------------------------------------------


def test_labels_are_as_many_as_outputs():
  assert keras.from_keras(_dense(), _SPEC).labels() == range(3)
  assert keras.from_keras(_dense(outputs=1), _SPEC).labels() == range(1)


def test_sequences_have_a_label_for_nothing():
  steps = tf.keras.Sequential([_layers.Input([5, 4]), _layers.Dense(3)])
  loss = functional.sequence_cross_entropy
  assert keras.from_keras(steps, _SEQUENCES, loss=loss).labels() == range(-1, 3)


def test_labels_of_a_loss_of_ones_own_are_not_known():
  model = keras.from_keras(_dense(), _SPEC, loss=_probability_loss)
  assert model.labels() is None
  wrapped = dataclasses.replace(model, example_losses=functional.sparse_cross_entropy)
  assert wrapped.labels() == range(3)


@pytest.mark.parametrize("outputs", [2, 10])
def test_run_of_clients_with_labels_without_an_output_is_refused(
  in_process, tmp_path, outputs
):
  draw = np.random.default_rng(0)
  data = {f"c{i}": (draw.normal(size=(5, 4)), [i, 0, 1, i + 5, 0]) for i in range(5)}
  clients = client_data.write_clients(str(tmp_path), data, _SPEC)
  model = keras.from_keras(_dense(outputs=outputs), _SPEC)
  process = fed_avg.build_fed_avg(model)
  settings = loop.Settings(rounds=1, clients_per_round=2)
  if outputs == 10:
    (record,) = loop.simulate(process, clients, settings).records
    assert np.isfinite(record["train_loss"])
    return
  started = []
  with pytest.raises(InputError, match=r"'c4' .* the label 9, .* has 2 outputs"):
    loop.simulate(process, clients, settings, on_start=started.append)
  assert not started


def test_labels_are_those_of_preprocessed_examples():
  """Whose shape the model may not take as they are stored."""
  spec = _SPEC._replace(x=tf.TensorSpec([2, 2], tf.uint8))
  network = tf.keras.Sequential([_layers.Input([4]), _layers.Dense(3)])
  model = keras.from_keras(network, spec, preprocess=_layers.Flatten())
  assert model.labels() == range(3)
