"""Public functions say in one sentence which argument is of another kind."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

import tff_algos

_NO_NUMBERS = ("x", None, True, [], {}, object())
_NO_WHOLE_NUMBERS = (*_NO_NUMBERS, 1.5, -1, math.nan)
_ANYTHING = ("x", None, 3, [], object())

_SPEC = tff_algos.ExampleSpec(tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.int32))


@pytest.fixture(scope="module")
def process(in_process):
  layers = [tf.keras.layers.Input([3]), tf.keras.layers.Dense(2)]
  model = tff_algos.from_keras(tf.keras.Sequential(layers), _SPEC)
  return tff_algos.build_fed_avg(model)


def _assert_refused(call, name: str, **wrong):
  with pytest.raises(tff_algos.InputError) as caught:
    call(**wrong)
  said = str(caught.value)
  assert name in said and "\n" not in said


@pytest.mark.parametrize("value", _ANYTHING)
@pytest.mark.parametrize(
  "call",
  [
    tff_algos.as_learning_process,
    tff_algos.device_form,
    tff_algos.on_device_next,
    tff_algos.over_datasets,
  ],
)
def test_what_is_no_process(call, value):
  _assert_refused(call, f"The process is a {type(value).__name__}", process=value)


@pytest.mark.parametrize("value", _NO_WHOLE_NUMBERS)
@pytest.mark.parametrize("call", [tff_algos.device_form, tff_algos.on_device_next])
def test_rounds_done_that_are_none(process, call, value):
  _assert_refused(call, "rounds_done", process=process, rounds_done=value)


@pytest.mark.parametrize("value", _NO_WHOLE_NUMBERS)
def test_seeds_rounds_and_places_that_are_none(value):
  known = dict(seed=0, round_num=0, place=0)
  for name in known:
    _assert_refused(tff_algos.client_seed, name, **{**known, name: value})
  of_files = dict(examples=([[1.0]], [0]), seed=0, round_num=0)
  for name in ("seed", "round_num"):
    _assert_refused(tff_algos.dataset_seed, name, **{**of_files, name: value})


@pytest.mark.parametrize("value", _NO_NUMBERS)
def test_numbers_that_are_none(process, value):
  known = dict(noise_multiplier=1.0, num_releases=3, delta=1e-5)
  for name in known:
    _assert_refused(tff_algos.epsilon, name, **{**known, name: value})
  _assert_refused(tff_algos.trimmed_mean_factory, "share", share=value)
  if value is not None:
    _assert_refused(process.recomposed, "norm_limit", norm_limit=value)


@pytest.mark.parametrize("value", _ANYTHING)
def test_models_and_steps_that_are_none(process, value):
  _assert_refused(tff_algos.keras_weights, "Keras model", keras_model=value)
  build, model = tff_algos.build_client_evaluation, process.model
  _assert_refused(tff_algos.build_evaluation_process, "model", model=value)
  if value is not None:
    _assert_refused(build, "personalization", model=model, personalization=value)
  if value != 3:
    _assert_refused(build, "seed", model=model, seed=value)
