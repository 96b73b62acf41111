"""What is given to a builder in the place of a model, or of hyper-parameters."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tff_algos.errors import InputError
from tff_algos.models import functional


def _model() -> functional.Model:
  return functional.Model(
    initial_weights=(np.zeros([2, 3], np.float32),),
    weight_names=("kernel",),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)
    ),
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
  )


def test_keras_model_is_refused_and_from_keras_named():
  layers = [tf.keras.layers.Input([2]), tf.keras.layers.Dense(3)]
  with pytest.raises(
    InputError, match=r"model is a Sequential: .* tff_algos\.from_keras"
  ):
    tff_algos.build_fed_avg(tf.keras.Sequential(layers))


@pytest.mark.parametrize("hparams", [tff_algos.FedAvgHparams, {"epochs": 2}, None])
def test_other_than_hyper_parameters_is_refused(hparams):
  with pytest.raises(InputError, match=r"^hparams must be .*; found "):
    tff_algos.build_fed_avg(_model(), hparams)
