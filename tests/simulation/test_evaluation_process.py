"""Federated evaluation: the means over the examples of all clients together."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tff_algos.errors import InputError
from tff_algos.models import batch_sizes
from tff_algos.simulation import evaluation

_COHORTS = [0, 3, 5], [3, 1]


def _off(y, logits):
  """A metric of totals and counts: of labels above 0 alone."""
  counts = tf.cast(y > 0, tf.float32)
  return counts * tf.reduce_sum(logits, axis=1), counts


@pytest.fixture(scope="module")
def model(federation):
  return dataclasses.replace(
    federation.model,
    metrics=OrderedDict(federation.model.metrics, off=_off),
    preprocess=lambda x: 0.5 * x + 1.0,
  )


@pytest.fixture(scope="module")
def weights(model):
  rng = np.random.default_rng(5)
  return tuple(rng.normal(size=w.shape).astype(np.float32) for w in model.initial_weights)


@pytest.fixture(scope="module")
def examples(federation, model):
  clients = federation.clients
  return [clients.examples(name, model.example_spec) for name in clients.ids]


@pytest.fixture(scope="module")
def expected(model, weights, examples):
  """`(places) -> means` over all examples of these clients."""

  def means(places):
    x, y = (np.concatenate(parts) for parts in zip(*(examples[k] for k in places)))
    return evaluation.build_evaluation(model, x, y)(weights)

  return means


def _begin(process, weights):
  state = process.initialize()
  given = process.get_model_weights(state)._replace(trainable=weights)
  return process.set_model_weights(state, given)


def _assert_evaluated(process, weights, data_of, expected):
  """Two rounds, the second of which has a client of the first again."""
  state, all_places = _begin(process, weights), []
  for places in _COHORTS:
    state, metrics = process.next(state, [data_of(k) for k in places])
    all_places += places
    found = metrics["client_work"]["eval"]
    assert list(found["current_round_metrics"]) == ["loss", "accuracy", "off"]
    for name, over in (("current_round", places), ("total_rounds", all_places)):
      assert found[f"{name}_metrics"] == pytest.approx(expected(over), rel=1e-6)
  for left, given in zip(process.get_model_weights(state).trainable, weights):
    np.testing.assert_array_equal(left, given)


def test_means_are_of_all_examples_of_the_clients_files(
  federation, model, weights, expected
):
  source = tff_algos.ClientSource(federation.clients)
  inputs = source.iterator().select()
  by_path = {given.path: given for given in inputs}
  paths = [federation.clients.path(name) for name in federation.clients.ids]
  process = tff_algos.build_evaluation_process(model)
  _assert_evaluated(process, weights, lambda k: by_path[paths[k]], expected)


@pytest.mark.parametrize("kind", ["pairs", "batches of mappings"])
def test_means_are_of_all_examples_of_data_sets(model, weights, examples, expected, kind):
  def data_of(place):
    x, y = examples[place]
    if kind == "pairs":
      return tf.data.Dataset.from_tensor_slices((x, y))
    return tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).batch(2)

  process = tff_algos.build_evaluation_process(model, data_of(0).element_spec)
  _assert_evaluated(process, weights, data_of, expected)
  state = _begin(process, weights)

  # One without examples counts for nothing, and of nobody's there is no mean.
  nothing = data_of(0).take(0)
  for data, places in (([nothing, data_of(2)], [2]), ([nothing], None)):
    found = process.next(state, data).metrics["client_work"]["eval"]
    means = found["current_round_metrics"]
    if places:
      assert means == pytest.approx(expected(places), rel=1e-6)
    else:
      assert all(np.isnan(value) for value in means.values())


@pytest.mark.parametrize("kind", ["files", "data sets"])
def test_large_examples_meet_the_model_few_at_a_time(
  monkeypatch, federation, model, weights, examples, expected, kind
):
  means = expected([2])
  monkeypatch.setattr(batch_sizes, "_PREDICTED", 2 * examples[2][0][0].size)

  def predict(weights, x, training, seed):
    with tf.control_dependencies([tf.debugging.assert_less_equal(tf.shape(x)[0], 2)]):
      return model.predict(weights, tf.identity(x), training, seed)

  cautious = dataclasses.replace(model, predict=predict)
  assert len(examples[2][1]) > 2
  if kind == "files":
    process = tff_algos.build_evaluation_process(cautious)
    path = federation.clients.path(federation.clients.ids[2])
    data = tff_algos.ClientInput(path, tff_algos.client_seed(0, 1, 0))
  else:
    data = tf.data.Dataset.from_tensor_slices(examples[2])
    process = tff_algos.build_evaluation_process(cautious, data.element_spec)
  found = process.next(_begin(process, weights), [data]).metrics["client_work"]["eval"]
  assert found["current_round_metrics"] == pytest.approx(means, rel=1e-6)


def test_label_that_the_model_has_no_output_for_fails(model, weights, examples):
  x, y = examples[0]
  data = tf.data.Dataset.from_tensor_slices((x, np.full_like(y, 3)))
  process = tff_algos.build_evaluation_process(model, data.element_spec)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"not among 0\.\.2"):
    process.next(_begin(process, weights), [data])


def test_metric_of_another_shape_is_refused(model):
  wrong = dataclasses.replace(model, metrics={"all": lambda y, logits: logits})
  with pytest.raises(InputError, match="metric 'all' makes"):
    tff_algos.build_evaluation_process(wrong)


def test_other_elements_are_refused(model):
  with pytest.raises(InputError, match=r"^The elements of the clients' data sets are"):
    tff_algos.build_evaluation_process(model, tf.TensorSpec([4], tf.float32))


def test_label_in_a_file_that_the_model_has_no_output_for_fails(model, weights, tmp_path):
  y = np.int32([0, 1, 2, 3])
  data = {"one": (np.zeros((4, 4), np.float32), y)}
  clients = tff_algos.write_clients(str(tmp_path), data, model.example_spec)
  process = tff_algos.build_evaluation_process(model)
  inputs = tff_algos.ClientSource(clients).iterator().select()
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"not among 0\.\.2"):
    process.next(_begin(process, weights), inputs)
