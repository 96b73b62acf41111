"""Exported models, read as others read them: what they predict, and how they train."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from experiments.export import formats, keras_files, program, run_model, signatures
from tasks.models import group_norm
from tff_algos.errors import InputError
from tff_algos.models import to_keras as of_keras

_layers = tf.keras.layers


def _pictures() -> tf.keras.Model:
  """As `to_keras` makes it of a task's: raw pixels, own weights, a drop-out."""
  inputs = tf.keras.Input((6, 6, 2), dtype=tf.uint8, name="inputs")
  x = _layers.Rescaling(1 / 255)(inputs)
  x = _layers.Conv2D(4, 3, activation="relu", bias_initializer="normal")(x)
  x = _layers.GroupNormalization(2)(x)
  x = _layers.Dropout(0.0)(_layers.Flatten()(x))
  return tf.keras.Model(inputs, _layers.Dense(3, bias_initializer="normal")(x))


def _sequences() -> tf.keras.Model:
  """A label at each step. Wide weights, so that what a state leaves behind would show."""
  wide = dict(recurrent_initializer=tf.keras.initializers.Orthogonal(2.0))
  inputs = tf.keras.Input((5,), dtype=tf.int32, name="inputs")
  x = _layers.Embedding(9, 4, embeddings_initializer="normal")(inputs)
  x = _layers.LSTM(6, return_sequences=True, **wide)(x * 10)
  return tf.keras.Model(inputs, _layers.Dense(3)(x))


@dataclasses.dataclass
class Case:
  """A model, stored inputs, and its logits for them by Keras."""

  keras_model: tf.keras.Model
  inputs: np.ndarray
  logits: np.ndarray
  folder: str

  def write(self, name: str) -> str:
    suffix, write, _ = formats.FORMATS[name]
    path = f"{self.folder}/{name}{suffix}"
    write(self.keras_model, path)
    return path


@pytest.fixture(scope="module", params=[_pictures, _sequences])
def case(request, tmp_path_factory) -> Case:
  tf.keras.utils.set_random_seed(1)
  keras_model = request.param()
  inputs = of_keras.example_inputs(keras_model, 4)
  logits = keras_model(inputs, training=False).numpy()
  assert np.ptp(logits, axis=0).max() > 0.1
  return Case(keras_model, inputs, logits, str(tmp_path_factory.mktemp("out")))


def _assert_classes(found: dict, logits: np.ndarray):
  """All that a signature gives, worked out of the logits."""
  assert set(found) == {"logits", "probabilities", "class"}
  powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
  probabilities = powers / powers.sum(axis=-1, keepdims=True)
  np.testing.assert_allclose(found["logits"], logits, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-5)
  np.testing.assert_array_equal(found["class"], logits.argmax(axis=-1))


def test_saved_model_takes_stored_inputs_and_any_number_of_them(case):
  loaded = tf.saved_model.load(case.write("saved_model"))
  assert list(loaded.signatures) == ["serving_default"]
  serve = loaded.signatures["serving_default"]
  [inputs] = serve.structured_input_signature[1].values()
  assert (inputs.name, inputs.dtype) == ("inputs", case.inputs.dtype)
  _assert_classes(serve(inputs=tf.constant(case.inputs)), case.logits)
  _assert_classes(serve(inputs=tf.constant(case.inputs[2:3])), case.logits[2:3])


def test_lite_file_has_no_operation_of_tensorflow_and_no_memory(case):
  """Predictions are the same again, and do not depend on those before."""
  path = case.write("tflite")
  interpreter = tf.lite.Interpreter(path)
  run = interpreter.get_signature_runner("serving_default")
  for _ in range(2):
    for k in (0, 3, 1):
      found = run(inputs=case.inputs[k : k + 1])
      _assert_classes(found, case.logits[k : k + 1])
  read = formats.FORMATS["tflite"].read(path)
  np.testing.assert_allclose(read(case.inputs), case.logits, rtol=1e-4, atol=1e-5)
  with open(path, "rb") as f:
    assert b"Flex" not in f.read()


@pytest.fixture(scope="module")
def trainer(case) -> tf.lite.Interpreter:
  return tf.lite.Interpreter(case.write("tflite_training"))


def _labels(case: Case) -> np.ndarray:
  labels = np.random.default_rng(0).integers(0, 3, case.logits.shape[:-1])
  labels = labels.astype(np.int32)
  if labels.ndim > 1:
    labels[0, 3:] = -1  # The line is shorter.
  return labels


def _loss(case: Case, labels: np.ndarray, logits) -> tf.Tensor:
  """The mean over examples of the mean over their labelled steps."""
  is_labelled = tf.cast(labels >= 0, tf.float32)
  chosen = tf.one_hot(labels, 3)  # All 0 where there is none.
  losses = -tf.reduce_sum(chosen * tf.nn.log_softmax(logits), axis=-1)
  if labels.ndim > 1:
    losses = tf.reduce_sum(losses, -1) / tf.reduce_sum(is_labelled, -1)
  return tf.reduce_mean(losses)


def test_a_step_on_the_device_is_plain_sgd(case, trainer, tmp_path):
  infer = trainer.get_signature_runner("infer")
  _assert_classes(infer(inputs=case.inputs), case.logits)
  place = {"checkpoint_path": np.array(f"{tmp_path}/begun", np.bytes_)}
  trainer.get_signature_runner("save")(**place)

  labels, rate = _labels(case), np.float32(0.3)
  train = trainer.get_signature_runner("train")
  loss = train(inputs=case.inputs, labels=labels, learning_rate=rate)["loss"]
  network = tf.keras.models.clone_model(case.keras_model)
  network.set_weights(case.keras_model.get_weights())
  with tf.GradientTape() as tape:
    value = _loss(case, labels, network(case.inputs, training=True))
  assert loss == pytest.approx(float(value), rel=1e-4)
  variables = network.trainable_variables
  for variable, gradient in zip(variables, tape.gradient(value, variables)):
    variable.assign_sub(rate * tf.convert_to_tensor(gradient))
  expected = network(case.inputs, training=False).numpy()
  assert np.abs(expected - case.logits).max() > 1e-2
  found = infer(inputs=case.inputs)["logits"]
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)

  # What was saved before the step comes back in it, and in one that is new.
  new = tf.lite.Interpreter(f"{case.folder}/tflite_training.tflite")
  for interpreter in (trainer, new):
    interpreter.get_signature_runner("restore")(**place)
    run = interpreter.get_signature_runner("infer")
    _assert_classes(run(inputs=case.inputs), case.logits)


def test_what_is_trained_can_be_restored_elsewhere(case, trainer, tmp_path):
  train = trainer.get_signature_runner("train")
  options = dict(labels=_labels(case), learning_rate=np.float32(0.1))
  losses = [float(train(inputs=case.inputs, **options)["loss"]) for _ in range(5)]
  assert losses[-1] < losses[0]
  trained = trainer.get_signature_runner("infer")(inputs=case.inputs)["logits"]
  assert np.abs(trained - case.logits).max() > 1e-2
  place = {"checkpoint_path": np.array(f"{tmp_path}/trained", np.bytes_)}
  saved = trainer.get_signature_runner("save")(**place)
  assert saved["num_arrays"] == len(case.keras_model.weights)
  new = tf.lite.Interpreter(f"{case.folder}/tflite_training.tflite")
  new.get_signature_runner("restore")(**place)
  found = new.get_signature_runner("infer")(inputs=case.inputs)["logits"]
  np.testing.assert_array_equal(found, trained)


def test_every_weight_comes_back_also_frozen_ones_and_those_of_equal_names(tmp_path):
  inner = tf.keras.Sequential([_layers.Input([4]), _layers.Dense(4, name="same")])
  first = _layers.Dense(4, name="same", trainable=False)
  network = tf.keras.Sequential([_layers.Input([4]), first, inner, _layers.Dense(3)])
  draw = np.random.default_rng(0)
  network.set_weights([draw.normal(size=w.shape) for w in network.get_weights()])
  before, made = network.get_weights(), signatures.training(network).signatures
  place = tf.constant(f"{tmp_path}/weights")
  assert made["save"](place)["num_arrays"] == 6
  network.set_weights([np.zeros_like(w) for w in before])
  assert made["restore"](place)["num_arrays"] == 6
  for found, expected in zip(network.get_weights(), before):
    np.testing.assert_array_equal(found, expected)


def test_dropout_is_at_work_in_a_step_on_the_device_and_in_no_prediction():
  """With a rate of 0 nothing else could change from call to call."""
  network = tf.keras.Sequential(
    [_layers.Input([20]), _layers.Dropout(0.5), _layers.Dense(3)]
  )
  inputs, labels = tf.ones([4, 20]), tf.zeros([4], tf.int32)
  made = signatures.training(network).signatures
  losses, logits = set(), set()
  for _ in range(5):
    losses.add(float(made["train"](inputs, labels, 0.0)["loss"]))
    logits.add(made["infer"](inputs)["logits"].numpy().tobytes())
  assert len(losses) > 1 and len(logits) == 1


@pytest.mark.parametrize("name", formats.FORMATS)
def test_the_check_reads_what_was_written(case, name):
  read = formats.FORMATS[name].read(case.write(name))
  np.testing.assert_allclose(read(case.inputs), case.logits, rtol=1e-4, atol=1e-5)


def _normalizing(layer, *shape: int) -> tf.keras.Model:
  """Its weights are not those that it begins with."""
  network = tf.keras.Sequential([_layers.Input(shape), layer, _layers.Flatten()])
  draw = np.random.default_rng(0)
  network.set_weights([draw.normal(size=w.shape) for w in network.get_weights()])
  return network


@pytest.mark.parametrize(
  "layer, shape, name",
  [
    (lambda: _layers.LayerNormalization(axis=[1, 2]), (6, 4), "saved_model"),
    (lambda: _layers.GroupNormalization(2, center=False), (4, 4, 6), "tflite"),
    (lambda: _layers.GroupNormalization(3, scale=False), (4, 4, 6), "tflite"),
    (lambda: _layers.GroupNormalization(3, scale=False), (4, 4, 6), "tflite_training"),
  ],
)
def test_normalization_of_any_kind_is_exported(layer, shape, name, tmp_path):
  network = _normalizing(layer(), *shape)
  inputs = of_keras.example_inputs(network, 5)
  expected = network(inputs).numpy()
  suffix, write, read = formats.FORMATS[name]
  path = str(tmp_path / f"model{suffix}")
  write(network, path)
  for number in (5, 1):
    found = read(path)(inputs[:number])
    np.testing.assert_allclose(found, expected[:number], rtol=1e-4, atol=1e-5)


def test_model_that_lite_takes_and_cannot_run_is_refused(monkeypatch, tmp_path):
  network = _normalizing(_layers.GroupNormalization(2, axis=1), 4, 4, 6)
  model = run_model.RunModel(network, "a run")
  monkeypatch.setattr(run_model, "read", lambda run, **options: model)
  out = str(tmp_path / "out.tflite")
  with pytest.raises(InputError, match="choose --format=saved_model, not one of Lite's"):
    program.run(program.Request("run", "tflite", out, False, None, None))
  assert list(tmp_path.iterdir()) == []


# --- Keras files ------------------------------------------------------------------------


def _square(x):
  return x * x


@pytest.mark.parametrize(
  "layer, name",
  [
    (lambda: group_norm.GroupNorm(1), "GroupNorm"),
    (lambda: _layers.Dense(2, _square), "function"),
    (lambda: tf.keras.Sequential([_layers.Dense(2, _square)]), "function"),
    (lambda: _layers.TimeDistributed(_layers.Dense(2, _square)), "function"),
    (lambda: _layers.Lambda(lambda x: 2 * x), "Lambda"),
  ],
)
def test_what_keras_alone_cannot_open_is_refused(layer, name, tmp_path):
  network = tf.keras.Sequential([_layers.Input((4, 4, 2)), layer()])
  with pytest.raises(InputError, match=f"holds {name}, which is none of Keras's own"):
    keras_files.save(network, str(tmp_path / "model.keras"))
  assert list(tmp_path.iterdir()) == []


def test_functions_and_operations_that_keras_knows_are_saved(tmp_path):
  x = tf.keras.Input((4,))
  y = tf.nn.gelu(_layers.Dense(4, "swish")(x), approximate=True) + x[:, :1]
  network = tf.keras.Model(x, _layers.Dense(2, kernel_initializer="he_normal")(y))
  path = str(tmp_path / "model.keras")
  keras_files.save(network, path)
  assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]
  inputs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
  found = tf.keras.models.load_model(path)(inputs)
  np.testing.assert_allclose(found, network(inputs), rtol=1e-6)


@pytest.mark.parametrize("name", formats.FORMATS)
@pytest.mark.parametrize("kind", [list, dict])
def test_several_outputs_are_refused(name, kind, monkeypatch, tmp_path):
  x = _layers.Input([4])
  outputs = [_layers.Dense(3)(x), _layers.Dense(3)(x)]
  given = outputs if kind is list else {"a": outputs[0]}
  read = run_model.RunModel(tf.keras.Model(x, given), "a run")
  monkeypatch.setattr(run_model, "read", lambda run, **options: read)
  out = str(tmp_path / f"out{formats.FORMATS[name].suffix}")
  with pytest.raises(InputError, match=f"of run gives a {kind.__name__} of outputs"):
    program.run(program.Request("run", name, out, False, None, None))
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
  "ends, found",
  [
    ([_layers.Dense(3)], ""),
    ([_layers.Dense(3, activation="softmax")], "softmax"),
    ([_layers.Dense(1, activation="sigmoid"), _layers.Reshape([1])], "sigmoid"),
    ([_layers.Dense(3), _layers.Softmax(), _layers.Dropout(0.5)], "softmax"),
  ],
)
def test_exports_of_probabilities_are_spoken_of(
  ends, found, monkeypatch, tmp_path, capsys
):
  keras_model = tf.keras.Sequential([_layers.Input([4]), *ends])
  assert signatures.last_activation(keras_model) == found
  read = run_model.RunModel(keras_model, "a run")
  monkeypatch.setattr(run_model, "read", lambda run, **options: read)
  for name, is_told in (("keras", False), ("saved_model", found)):
    out = str(tmp_path / f"out{formats.FORMATS[name].suffix}")
    program.run(program.Request("run", name, out, False, None, None))
    said = capsys.readouterr().err
    assert (f"The model ends in a {found}, but" in said) if is_told else not said


# --- The comparison ---------------------------------------------------------------------


def test_a_difference_is_measured_in_the_largest_logit():
  expected = np.float32([[20.0, -4.0], [0.0, 1.0]])
  off = np.float32([[0.0, 1e-3], [0.0, 0.0]])
  found = program.difference(expected + off, expected)
  assert found == pytest.approx(1e-3 / 20, rel=1e-3)
  with pytest.raises(RuntimeError, match="differ by"):
    program.difference(expected + 3 * off, expected)
  for other in (np.nan, np.inf):
    with pytest.raises(RuntimeError, match="NaN or infinite logits"):
      program.difference(np.where(off > 0, other, expected), expected)
  nowhere = np.full_like(expected, np.nan)
  assert program.difference(nowhere, nowhere) == 0


def test_example_inputs_are_what_a_model_takes(case):
  inputs = of_keras.example_inputs(case.keras_model, 50)
  assert inputs.shape == (50, *case.inputs.shape[1:])
  assert inputs.dtype == case.inputs.dtype
  assert (inputs.min(), inputs.max()) == ((0, 255) if inputs.ndim == 4 else (0, 8))
  np.testing.assert_array_equal(of_keras.example_inputs(case.keras_model, 50), inputs)


def test_example_inputs_are_symbols_that_every_embedding_has():
  inputs = tf.keras.Input((5,), dtype=tf.int32)
  both = [_layers.Embedding(number, 3)(inputs) for number in (9, 4)]
  keras_model = tf.keras.Model(inputs, _layers.Dense(2)(_layers.Add()(both)))
  found = of_keras.example_inputs(keras_model, 50)
  assert (found.min(), found.max()) == (0, 3)


def test_of_one_output_no_class_is_said_and_none_is_trained():
  network = tf.keras.Sequential([_layers.Input([4]), _layers.Dense(1)])
  predict = signatures.predicting(network).signatures[signatures.SERVING]
  assert list(predict(tf.zeros([2, 4]))) == ["logits"]
  with pytest.raises(InputError, match=r"^The model has one output"):
    signatures.training(network)


# --- On the disk before they have their names -------------------------------------------


def _network():
  return tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(3)])


def test_keras_file_is_on_the_disk_before_it_has_its_name(named, tmp_path):
  keras_files.save(_network(), str(tmp_path / "model.keras"))
  assert ("model.keras", True) in named


@pytest.mark.parametrize("name, out", [("saved_model", "out"), ("tflite", "m.tflite")])
def test_export_is_on_the_disk_before_it_has_its_name(
  named, monkeypatch, tmp_path, name, out
):
  model = run_model.RunModel(_network(), "a run")
  monkeypatch.setattr(run_model, "read", lambda run, **options: model)
  program.run(program.Request("run", name, str(tmp_path / out), False, None, None))
  assert (out, True) in named
