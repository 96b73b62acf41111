"""The trainer for a TFX pipeline, called as TFX calls it."""

from __future__ import annotations

import base64
import json
import types

import numpy as np
import pytest
import tensorflow as tf

from examples import serving_request, tfx_trainer


def _example(client: str, x: np.ndarray, y: int) -> bytes:
  features = {
    "client": tf.train.Feature(bytes_list=tf.train.BytesList(value=[client.encode()])),
    "inputs": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
  }
  return tf.train.Example(
    features=tf.train.Features(feature=features)
  ).SerializeToString()


def _write(path, examples) -> None:
  with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions("GZIP")) as writer:
    for example in examples:
      writer.write(_example(*example))


def _draw(seed: int, n: int):
  """A label is the sign of the inputs' sum."""
  x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
  return x, (x.sum(axis=1) > 0).astype(int)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Two files of examples, in which those of six clients are mixed."""
  folder = tmp_path_factory.mktemp("tfx")
  x, y = _draw(0, 300)
  names = [f"phone_{k % 6}" for k in range(300)]
  rows = list(zip(names, x, y))
  _write(folder / "train-0.gz", rows[:170])
  _write(folder / "train-1.gz", rows[170:])
  test_x, test_y = _draw(1, 100)
  _write(folder / "eval-0.gz", zip(["tablet"] * 100, test_x, test_y))
  arguments = types.SimpleNamespace(
    train_files=[str(folder / "train-*")],
    eval_files=[str(folder / "eval-*")],
    train_steps=20,
    serving_model_dir=str(folder / "serving"),
    custom_config={"clients_per_round": 3, "seed": 1},
  )
  tfx_trainer.run_fn(arguments)
  return arguments, tf.saved_model.load(arguments.serving_model_dir)


def test_each_client_gets_its_own_examples(trained):
  arguments, _ = trained
  x, y = _draw(0, 300)
  found = tfx_trainer.read_clients(arguments.train_files)
  assert set(found) == {f"phone_{k}" for k in range(6)}
  for k in range(6):
    own_x, own_y = found[f"phone_{k}"]
    np.testing.assert_array_equal(own_x, x[k::6])
    np.testing.assert_array_equal(own_y, y[k::6])


def test_files_without_examples_are_said(tmp_path):
  pattern = str(tmp_path / "train-*")
  with pytest.raises(ValueError, match=r"no examples in files like .*train-"):
    tfx_trainer.read_clients([pattern])
  _write(tmp_path / "train-0.gz", [])
  with pytest.raises(ValueError, match="no examples in files like"):
    tfx_trainer.read_clients([pattern])


def test_the_model_takes_serialized_examples_and_has_learned(trained):
  _, model = trained
  x, y = _draw(1, 100)
  serve = model.signatures["serving_default"]
  # Whose an example is, and its label, are not asked for.
  unlabelled = tf.train.Example()
  unlabelled.features.feature["inputs"].float_list.value.extend(x[0])
  examples = [_example("new", *pair) for pair in zip(x, y)]
  found = serve(examples=tf.constant([unlabelled.SerializeToString(), *examples]))
  classes = found["class"].numpy()
  assert classes[0] == classes[1]
  assert np.mean(classes[1:] == y) > 0.9  # Guessing gets a half.
  np.testing.assert_allclose(tf.reduce_sum(found["probabilities"], axis=1), 1, rtol=1e-5)


def test_a_serving_request_has_them_as_base_64(trained):
  _, model = trained
  x, y = _draw(1, 100)
  encoded = base64.b64encode(_example("new", x[0], y[0])).decode()
  body = json.dumps({"instances": [{"b64": encoded}]})
  [prediction] = json.loads(serving_request.answer(model, body))["predictions"]
  serve = model.signatures["serving_default"]
  expected = serve(examples=tf.constant([_example("new", x[0], y[0])]))
  assert prediction["class"] == int(expected["class"][0])
