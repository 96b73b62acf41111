"""The examples that use an exported model: many inputs at once, a server's requests."""

from __future__ import annotations

import base64
import csv
import json

import numpy as np
import pytest
import tensorflow as tf

from examples import batch_scoring, serving_request
from experiments.export import formats


@pytest.fixture(scope="module")
def keras_model() -> tf.keras.Model:
  """Of raw pixels, as a run leaves it."""
  tf.keras.utils.set_random_seed(2)
  layers = tf.keras.layers
  inputs = tf.keras.Input((4, 4, 1), dtype=tf.uint8, name="inputs")
  x = layers.Flatten()(layers.Rescaling(1 / 255)(inputs))
  return tf.keras.Model(inputs, layers.Dense(3)(x))


@pytest.fixture(scope="module")
def path(keras_model, tmp_path_factory) -> str:
  path = str(tmp_path_factory.mktemp("served") / "1")
  formats.FORMATS["saved_model"].write(keras_model, path)
  return path


@pytest.fixture(scope="module")
def model(path):
  return tf.saved_model.load(path)


@pytest.fixture(scope="module")
def pictures() -> np.ndarray:
  return np.random.default_rng(0).integers(0, 256, (300, 4, 4, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def probabilities(keras_model, pictures) -> np.ndarray:
  logits = keras_model.predict(pictures, verbose=0).astype(np.float64)
  return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_every_input_is_scored_in_its_order(path, pictures, probabilities, tmp_path):
  """300 inputs are a whole batch and a part of one."""
  np.save(tmp_path / "inputs.npy", pictures)
  out = tmp_path / "scores.csv"
  batch_scoring.main([path, str(tmp_path / "inputs.npy"), str(out)])
  with open(out, newline="") as f:
    rows = list(csv.DictReader(f))
  assert [int(row["row"]) for row in rows] == list(range(300))
  expected = probabilities.argmax(axis=1)
  assert [int(row["class"]) for row in rows] == expected.tolist()
  found = [float(row["probability"]) for row in rows]
  np.testing.assert_allclose(found, probabilities.max(axis=1), rtol=1e-5)
  assert len(set(expected)) > 1


@pytest.mark.parametrize(
  "change, found",
  [
    (lambda x: x / 255, "float64 (300, 4, 4, 1)"),
    (lambda x: x[0], "uint8 (4, 4, 1)"),  # Convolutions would end the process.
    (lambda x: x[:, :2], "uint8 (300, 2, 4, 1)"),
  ],
)
def test_inputs_of_another_signature_are_refused(path, pictures, tmp_path, change, found):
  np.save(tmp_path / "inputs.npy", change(pictures))
  out = tmp_path / "scores.csv"
  with pytest.raises(SystemExit) as refused:
    batch_scoring.main([path, str(tmp_path / "inputs.npy"), str(out)])
  takes = "The model takes inputs as they are stored, uint8 (None, 4, 4, 1)"
  assert refused.value.code == f"{takes}, not {found}."
  assert not out.exists()


@pytest.fixture(scope="module")
def mean_path(tmp_path_factory) -> str:
  """Of windows of floats, which the network takes whatever their length."""
  layers = tf.keras.layers
  inputs = tf.keras.Input((6, 2), name="inputs")
  outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(inputs))
  path = str(tmp_path_factory.mktemp("means") / "1")
  formats.FORMATS["saved_model"].write(tf.keras.Model(inputs, outputs), path)
  return path


@pytest.mark.parametrize(
  "value, length, said",
  [
    (np.nan, 6, "Row 299 of the inputs has a number that is NaN or infinite."),
    (np.inf, 6, "Row 299 of the inputs has a number that is NaN or infinite."),
    (0.0, 5, "float32 (None, 6, 2), not float32 (300, 5, 2)."),
  ],
)
def test_windows_that_are_no_inputs_are_refused(mean_path, tmp_path, value, length, said):
  windows = np.zeros([300, length, 2], np.float32)
  windows[299, 1, 1] = value
  np.save(tmp_path / "inputs.npy", windows)
  out = tmp_path / "scores.csv"
  with pytest.raises(SystemExit) as refused:
    batch_scoring.main([mean_path, str(tmp_path / "inputs.npy"), str(out)])
  assert refused.value.code.endswith(said)
  assert not out.exists()


@pytest.mark.parametrize("example", [batch_scoring, serving_request])
def test_without_arguments_the_usage_is_said(example, capsys):
  with pytest.raises(SystemExit) as refused:
    example.main([])
  assert refused.value.code == 2
  said = capsys.readouterr().err
  assert said.startswith("usage: ")
  assert "required: model" in said


@pytest.mark.parametrize(
  "example, rest", [(batch_scoring, ["inputs.npy", "out"]), (serving_request, [])]
)
def test_a_model_that_is_not_there_is_named(example, rest, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit, match=r"^SavedModel .*none"):
    example.main(["none", *rest])
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["none", "empty", "text", "several"])
def test_a_file_that_is_no_array_is_named(kind, path, tmp_path):
  given = tmp_path / "inputs"
  if kind == "several":
    with given.open("wb") as file:
      np.savez(file, inputs=np.zeros(3))
  elif kind != "none":
    given.write_text("" if kind == "empty" else "1,2,3")
  said = "No such file.*inputs" if kind == "none" else "inputs is no array of numbers: "
  with pytest.raises(SystemExit, match=said):
    batch_scoring.main([path, str(given), str(tmp_path / "out")])
  assert not (tmp_path / "out").exists()


def _answer(model, request) -> dict:
  return json.loads(serving_request.answer(model, json.dumps(request)))


@pytest.mark.parametrize("is_named", [True, False])
def test_a_request_is_answered_by_rows(model, pictures, probabilities, is_named):
  instances = [{"inputs": x} if is_named else x for x in pictures[:2].tolist()]
  found = _answer(model, {"instances": instances})
  assert list(found) == ["predictions"]
  assert len(found["predictions"]) == 2
  for prediction, expected in zip(found["predictions"], probabilities):
    assert set(prediction) == {"logits", "probabilities", "class"}
    assert prediction["class"] == expected.argmax()
    np.testing.assert_allclose(prediction["probabilities"], expected, rtol=1e-5)


@pytest.mark.parametrize(
  "request_, said",
  [
    ({}, '"instances"'),
    ({"instances": []}, "at least one"),
    ([1], '"instances"'),
    ({"instances": [[1, 2]]}, r"uint8 (4, 4, 1); found one of shape (2,)"),
    ({"instances": [np.full((4, 4, 1), 0.5).tolist()]}, "0.5 is no uint8"),
    ({"instances": [np.full((4, 4, 1), 256).tolist()]}, "256 is no uint8"),
    ({"instances": [[[["a"]] * 4] * 4]}, "uint8"),
    ({"instances": [1], "signature_name": "other"}, "no signature 'other'"),
  ],
)
def test_a_wrong_request_is_answered_by_an_error(model, request_, said):
  found = _answer(model, request_)
  assert list(found) == ["error"]
  assert said in found["error"]


def test_what_is_no_json_is_answered_by_an_error(model):
  assert "error" in json.loads(serving_request.answer(model, "{"))


def test_bytes_and_a_single_output(tmp_path):
  """A signature of strings with one output, whose values stand by themselves."""
  module = tf.Module()
  spec = tf.TensorSpec([None], tf.string, name="examples")
  length = tf.function(lambda examples: {"length": tf.strings.length(examples)})
  serve = length.get_concrete_function(spec)
  tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": serve})
  model = tf.saved_model.load(str(tmp_path))
  raw = base64.b64encode(b"\xff\x00\x01").decode()
  instances = [{"b64": raw}, "four", {"examples": {"b64": raw}}]
  assert _answer(model, {"instances": instances}) == {"predictions": [3, 4, 3]}
  assert "error" in _answer(model, {"instances": [{"b64": "no base 64!"}]})
