"""Trained weights as a Keras model of stored inputs: the `Model`'s own predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.errors import InputError
from tff_algos.models import functional, keras
from tff_algos.models.to_keras import difference, to_keras

_layers = tf.keras.layers
_LABEL = tf.TensorSpec([], tf.int32)


def _model(keras_model, *shape, dtype=tf.float32, **options) -> functional.Model:
  spec = functional.ExampleSpec(tf.TensorSpec(shape, dtype), _LABEL)
  return keras.from_keras(keras_model, spec, **options)


def _trained(model: functional.Model) -> list[np.ndarray]:
  """Weights that the Keras model never had."""
  draw = np.random.default_rng(0)
  return [draw.normal(size=w.shape).astype(np.float32) for w in model.initial_weights]


def _sequential(*layers) -> tf.keras.Model:
  return tf.keras.Sequential(layers)


def _pictures():
  network = _sequential(
    _layers.Input((6, 6, 2)),
    _layers.RandomFlip(),
    _layers.Conv2D(4, 3, activation="relu"),
    _layers.GroupNormalization(2),
    _layers.Dropout(0.5),
    _layers.Flatten(),
    _layers.Dense(3),
  )
  return _model(network, 6, 6, 2, dtype=tf.uint8)


def _symbols():
  network = _sequential(
    _layers.Input((5,)),
    _layers.Embedding(9, 4),
    _layers.Bidirectional(_layers.LSTM(3)),
    _layers.Dense(3),
  )
  return _model(network, 5, dtype=tf.int32)


def _shared_and_nested():
  inner = _sequential(_layers.Input((4,)), _layers.Dense(5, "tanh"), _layers.Dense(4))
  shared, x = _layers.Dense(4, "tanh"), _layers.Input((4,))
  y = _layers.Add()([inner(shared(x)), shared(shared(x))])
  return _model(tf.keras.Model(x, _layers.Dense(3)(y)), 4)


def _frozen():
  adapted = _layers.Normalization()
  adapted.adapt(np.random.default_rng(1).normal(3, 2, (50, 4)))
  base = _layers.Dense(5, "tanh", trainable=False)
  return _model(_sequential(_layers.Input((4,)), adapted, base, _layers.Dense(3)), 4)


def _other_scale():
  scale = _layers.Rescaling(1 / 127.5, -1.0)
  network = _sequential(_layers.Input((4,)), _layers.Dense(3))
  return _model(network, 4, dtype=tf.uint8, preprocess=scale)


def _frozen_in_part():
  both, attention = (
    _layers.Bidirectional(_layers.LSTM(3)),
    _layers.MultiHeadAttention(2, 3),
  )
  x = _layers.Input((5, 4))
  network = tf.keras.Model(x, _layers.Dense(3)(both(attention(x, x))))
  both.forward_layer.trainable = attention._query_dense.trainable = False
  return _model(network, 5, 4)


def _adapted_bins():
  bins = _layers.Discretization(num_bins=4, output_mode="one_hot")
  bins.adapt(np.random.default_rng(1).normal(0, 1, (50, 1)))
  return _model(_sequential(_layers.Input((1,)), bins, _layers.Dense(3)), 1)


def _adapted_bins_before():
  bins = _layers.Discretization(num_bins=4, output_mode="one_hot")
  bins.adapt(np.random.default_rng(1).normal(0, 1, (50, 1)))
  before = _sequential(_layers.Input((1,)), bins, _layers.Rescaling(2.0))
  network = _sequential(_layers.Input((4,)), _layers.Dense(3))
  return _model(network, 1, preprocess=before)


def _layers_before():
  before = _sequential(_layers.Rescaling(2.0), _layers.Rescaling(1.0, -0.5))
  network = _sequential(_layers.Input((4,)), _layers.Dense(3))
  return _model(network, 4, preprocess=before)


_MODELS = [
  *(_pictures, _symbols, _shared_and_nested, _frozen, _frozen_in_part),
  *(_adapted_bins, _adapted_bins_before, _layers_before, _other_scale),
]


def _stored(model: functional.Model) -> np.ndarray:
  spec, draw = model.example_spec.x, np.random.default_rng(2)
  if spec.dtype.is_integer:
    limit = 256 if spec.dtype == tf.uint8 else 9
    return draw.integers(0, limit, (7, *spec.shape)).astype(spec.dtype.as_numpy_dtype)
  return draw.normal(size=(7, *spec.shape)).astype(np.float32)


@pytest.mark.parametrize("build", _MODELS)
def test_predictions_on_stored_inputs_are_the_models(build, tmp_path):
  model = build()
  weights, x = _trained(model), _stored(model)
  expected = model.predict(weights, model.preprocess(x), False, tf.constant([0, 0]))
  assert np.ptp(expected) > 0.1
  found = to_keras(model, weights)
  assert found.input_shape[1:] == model.example_spec.x.shape
  assert found.inputs[0].dtype == model.example_spec.x.dtype
  np.testing.assert_allclose(found(x, training=False), expected, rtol=1e-6, atol=1e-6)
  found.save(tmp_path / "model.keras")
  loaded = tf.keras.models.load_model(tmp_path / "model.keras")
  np.testing.assert_allclose(loaded(x, training=False), expected, rtol=1e-6, atol=1e-6)
  names = [v.name.rsplit(":", 1)[0] for v in found.trainable_variables]
  assert sorted(names) == sorted(model.weight_names)


class _Pair(_layers.Layer):
  """Two layers with statistics, in one."""

  def __init__(self, **options):
    super().__init__(**options)
    self.first = _layers.BatchNormalization()
    self.second = _layers.BatchNormalization()

  def call(self, x):
    return self.second(self.first(x, training=False), training=False)

  def get_config(self):
    return {"trainable": self.trainable}


def test_parts_of_a_frozen_layer_keep_their_own_weights():
  """Keras lists them part by part, and of a layer that is trained statistics last."""
  pair = _Pair()
  network = _sequential(_layers.Input((4,)), pair, _layers.Dense(3))
  draw = np.random.default_rng(3)
  for weight in pair.weights:
    weight.assign(draw.uniform(0.5, 2, weight.shape))
  pair.trainable = False
  model = _model(network, 4)
  weights, x = _trained(model), _stored(model)
  expected = model.predict(weights, x, False, tf.constant([0, 0]))
  found = to_keras(model, weights)
  np.testing.assert_allclose(found(x, training=False), expected, rtol=1e-5, atol=1e-6)


def test_a_layer_may_be_a_nested_models_too():
  """Without a file, as Keras does not open what it writes of such a model."""
  shared, given = _layers.Dense(4, "tanh"), _layers.Input((4,))
  inner = _sequential(_layers.Input((4,)), shared, _layers.Dense(4, "tanh"))
  outputs = _layers.Dense(3)(inner(shared(given)))
  model = _model(tf.keras.Model(given, outputs), 4)
  weights, x = _trained(model), _stored(model)
  expected = model.predict(weights, x, False, tf.constant([0, 0]))
  found = to_keras(model, weights)
  np.testing.assert_allclose(found(x, training=False), expected, rtol=1e-6, atol=1e-6)
  assert len(found.trainable_variables) == len(weights)


@pytest.mark.parametrize(
  "build",
  [
    pytest.param(build, marks=pytest.mark.thorough)
    if build in (_symbols, _frozen_in_part)
    else build
    for build in _MODELS
  ],
)
def test_the_keras_model_that_was_given_stays_as_it_was(build):
  model = build()
  given = model.keras_source.keras_model
  before = given.get_weights()
  made = to_keras(model, _trained(model))
  for weight in made.weights:
    weight.assign(tf.zeros_like(weight))
  for a, b in zip(given.get_weights(), before):
    np.testing.assert_array_equal(a, b)
  owned = {id(v) for v in given.weights}
  assert not owned & {id(v) for v in made.weights}
  assert all(layer is not model.preprocess for layer in made.layers)


def test_what_is_frozen_is_as_it_was_when_the_model_was_made():
  """`Model.predict` has it as a constant, whatever becomes of the Keras model."""
  model = _frozen()
  weights, x = _trained(model), _stored(model)
  expected = model.predict(weights, x, False, tf.constant([0, 0]))
  given = model.keras_source.keras_model
  given.set_weights([w + 1 for w in given.get_weights()])
  found = to_keras(model, weights)
  np.testing.assert_allclose(found(x, training=False), expected, rtol=1e-6, atol=1e-6)
  assert len(found.trainable_variables) == 2


class _Doubled(_layers.Layer):
  """Twice its input, plus a weight; Keras has layers for both."""

  def build(self, shape):
    self.shift = self.add_weight("shift", (1,))
    super().build(shape)

  def call(self, x):
    return 2 * x + self.shift

  def standard_layer(self, weights):
    [shift] = weights
    return _layers.Rescaling(2.0, float(shift[0])), []


class _Renamed(_layers.Dense):
  """A Dense of another name, inside another model."""

  def standard_layer(self, weights):
    return _layers.Dense.from_config(self.get_config()), weights


def test_layers_of_ones_own_are_made_standard():
  inner = _sequential(_layers.Input((4,)), _Doubled(), _Renamed(4, "tanh"))
  network = _sequential(_layers.Input((4,)), inner, _layers.Dense(3))
  model = _model(network, 4)
  weights, x = _trained(model), _stored(model)
  found = to_keras(model, weights)
  shift, kernel, bias, last_kernel, last_bias = weights
  expected = np.tanh((2 * x + shift) @ kernel + bias) @ last_kernel + last_bias
  np.testing.assert_allclose(found(x), expected, rtol=1e-5, atol=1e-6)
  classes = {type(layer) for layer in found._flatten_layers()}
  assert not classes & {_Doubled, _Renamed}


class _Built(_layers.Layer):
  def call(self, x):
    return x

  def standard_layer(self, weights):
    del weights
    return _sequential(_layers.Input((4,)), _layers.ReLU()), []


class _OfArray(_layers.Layer):
  """Keras cannot say what it is made from."""

  def __init__(self, table):
    super().__init__()
    self.table = np.asarray(table)

  def call(self, x):
    return x


class _Subclassed(tf.keras.Model):
  def __init__(self):
    super().__init__()
    self.dense = _layers.Dense(3)

  def call(self, x):
    return self.dense(x)


def _subclassed():
  network = _Subclassed()
  network.build((None, 4))
  return network


class _Opposite(tf.keras.Sequential):
  def call(self, x, training=None, mask=None):
    return -super().call(x, training=training, mask=mask)


class _OfOwnCall(tf.keras.Model):
  def __init__(self):
    x = _layers.Input((4,))
    super().__init__(x, _layers.Dense(3)(x))

  def call(self, x, training=None, mask=None):
    return -super().call(x, training=training, mask=mask)


def _named_start(shape, dtype=None):
  return tf.ones(shape, dtype)


def _not_of_layers():
  x = _layers.Input((4,))
  y = _layers.Dense(4)(x)
  outer = tf.einsum("bi,bj->bij", y, y)
  return tf.keras.Model(x, _layers.Dense(3)(_layers.Flatten()(outer)))


def _before_dense(*layers):
  return _sequential(_layers.Input((4,)), *layers, _layers.Dense(3))


@pytest.mark.filterwarnings("ignore:The `keras.initializers.serialize")
@pytest.mark.parametrize(
  "network, options, said",
  [
    (lambda: _before_dense(_OfArray(np.zeros(3))), {}, "get_config"),
    (lambda: _before_dense(_Built()), {}, "Input"),
    (_subclassed, {}, "class of its own"),
    (lambda: _Opposite([_layers.Input((4,)), _layers.Dense(3)]), {}, "class of its own"),
    (_OfOwnCall, {}, "class of its own"),
    (
      lambda: _before_dense(_Opposite([_layers.Input((4,)), _layers.Dense(4)])),
      {},
      "class of its own",
    ),
    (
      lambda: _before_dense(_layers.Dense(4, kernel_initializer=_named_start)),
      {},
      r"'sequential.*' cannot be copied \(Unknown initializer.*\): make it",
    ),
    (_not_of_layers, {}, r"'model.*' cannot be copied \("),
    (_before_dense, dict(preprocess=lambda x: 2 * x), "tf.keras.layers.Rescaling"),
  ],
)
def test_what_cannot_be_copied_is_refused_in_one_sentence(network, options, said):
  model = _model(network(), 4, **options)
  with pytest.raises(InputError, match=said) as caught:
    to_keras(model, _trained(model))
  assert "\n" not in str(caught.value)


class _Standardize(_layers.Layer):
  """Its numbers are set after it is made, as `adapt` of Keras's own does."""

  def __init__(self, **options):
    super().__init__(**options)
    self.mean = tf.constant(0.0)

  def adapt(self, x):
    self.mean = tf.constant(x.mean(axis=0))

  def call(self, x):
    return x - self.mean


class _Features(_layers.Layer):
  """Random Fourier features, drawn anew by each copy."""

  def build(self, shape):
    self.directions = tf.random.normal([shape[-1], 16])

  def call(self, x):
    return tf.cos(x @ self.directions)


class _ByNumPy(_layers.Layer):
  """What a copy does not know."""

  shift = np.float32(0)

  def call(self, x):
    return x - self.shift


def _standardized():
  layer = _Standardize()
  layer.adapt(np.float32(np.random.default_rng(1).normal(50, 9, (100, 4))))
  return layer


@pytest.mark.parametrize("make", [_standardized, _Features])
def test_tensors_that_layers_hold_are_copied(make):
  layer = make()
  model = _model(_sequential(_layers.Input((4,)), layer, _layers.Dense(3)), 4)
  weights = _trained(model)
  copied = to_keras(model, weights)
  x = tf.constant(np.random.default_rng(2).normal(size=(5, 4)), tf.float32)
  expected = model.predict(weights, x, False, tf.zeros([2], tf.int32))
  np.testing.assert_allclose(copied(x), expected, rtol=1e-5, atol=1e-6)
  if isinstance(layer, _Standardize):  # The copy is of when the model was made.
    layer.mean = tf.zeros(4)
    np.testing.assert_allclose(to_keras(model, weights)(x), expected, rtol=1e-5)


def test_a_copy_that_predicts_something_else_is_refused():
  layer = _ByNumPy()
  layer.shift = np.float32([1, 2, 3, 4])
  model = _model(_sequential(_layers.Input((4,)), layer, _layers.Dense(3)), 4)
  with pytest.raises(InputError, match=r"something else .* of _ByNumPy have all"):
    to_keras(model, _trained(model))


def _random(layer):
  return lambda x: layer(x, training=True)


def _compared(x):
  return [x, x > 0]


def _sum_of_both(labels, predictions):
  del labels
  return tf.reduce_sum(predictions[0], axis=-1)


def _half_base(trainable):
  half = dict(dtype="mixed_bfloat16", trainable=trainable)
  return _sequential(
    _layers.Input((4,)),
    *(_layers.Dense(8, "tanh", **half) for _ in range(3)),
    _layers.LayerNormalization(**half),
    _layers.Dense(3, dtype="float32"),
  )


@pytest.mark.parametrize(
  "end",
  [
    _random(_layers.Dropout(0.5)),
    _random(_layers.Dropout(1e-3)),
    _random(_layers.GaussianNoise(1.0)),
    lambda x: x * np.float32(np.inf),
    lambda x: x * np.float32(np.nan),
  ],
)
def test_models_that_draw_in_inference_or_give_no_numbers_are_copied(end):
  x = _layers.Input((4,))
  y = _layers.Dense(3)(end(_layers.Dense(16)(x)))
  model = _model(tf.keras.Model(x, y), 4)
  weights = _trained(model)
  for found, expected in zip(to_keras(model, weights).get_weights(), weights):
    np.testing.assert_array_equal(found, expected)


def test_models_of_other_outputs_are_copied():
  x = _layers.Input((4,))
  network = tf.keras.Model(x, _compared(_layers.Dense(3)(x)))
  model = _model(network, 4, loss=_sum_of_both, metrics={})
  assert len(to_keras(model, _trained(model)).outputs) == 2


@pytest.mark.parametrize("trainable", [False, True])
def test_a_copy_of_layers_in_half_precision_computes_in_float32(trainable):
  model = _model(_half_base(trainable), 4)
  weights = _trained(model)
  copied = to_keras(model, weights)
  assert {layer.compute_dtype for layer in copied.layers} == {"float32"}
  x = tf.random.stateless_normal([6, 4], [1, 2])
  expected = model.predict(weights, x, False, tf.zeros([2], tf.int32))
  found = copied(x)
  assert not np.array_equal(found, expected)
  np.testing.assert_allclose(found, expected, atol=2**-6 * np.max(np.abs(expected)))


@pytest.mark.thorough
def test_a_copy_of_cells_in_half_precision_computes_in_float32():
  cell = _layers.Bidirectional(_layers.GRU(4, dtype="mixed_bfloat16"))
  model = _model(_sequential(_layers.Input((5, 3)), cell, _layers.Dense(3)), 5, 3)
  copied = to_keras(model, _trained(model))
  kinds = {layer.compute_dtype for layer in copied._flatten_layers()}
  assert kinds == {"float32"}


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_inputs_are_not_rounded_by_a_global_policy(policy):
  """Number 4999 of an embedding is 5000, of which there is none, in half precision."""
  own = dict(dtype="float32")
  network = _sequential(
    _layers.Input((2,), dtype=tf.int32),
    _layers.Embedding(5000, 4, **own),
    _layers.Flatten(**own),
    _layers.Dense(3, **own),
  )
  model = _model(network, 2, dtype=tf.int32)
  weights, x = _trained(model), tf.constant([[4999, 4097], [0, 2049]])
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    found = to_keras(model, weights)(x)
  finally:
    tf.keras.mixed_precision.set_global_policy("float32")
  expected = model.predict(
    weights, tf.cast(x, tf.float32), False, tf.zeros([2], tf.int32)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_model_of_pure_functions_has_no_keras_model():
  model = functional.Model(
    initial_weights=(np.zeros((4, 3), np.float32),),
    weight_names=("kernel",),
    example_spec=functional.ExampleSpec(tf.TensorSpec([4]), _LABEL),
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
  )
  with pytest.raises(InputError, match="not made by from_keras"):
    to_keras(model, model.initial_weights)


def test_weights_of_another_model_are_refused():
  model = _frozen()
  for weights in (_trained(model)[:1], [w.T for w in _trained(model)]):
    with pytest.raises(InputError, match="number or shapes"):
      to_keras(model, weights)


def test_weights_in_other_lists_are_refused():
  """Of arrays of several shapes NumPy makes no array, and says so in its own words."""
  model = _model(_sequential(_layers.Input([4]), _layers.Dense(3)), 4)
  for others in ([list(model.initial_weights), []], [[1.0], [[1.0], [1.0, 2.0]]]):
    with pytest.raises(InputError, match=r"give .*\(state\)\.trainable"):
      to_keras(model, others)


@pytest.mark.parametrize("found", [[0, 1, 2], [np.inf, 1, 2], [-np.inf, 1, np.inf]])
def test_difference_is_infinite_where_one_alone_is(found):
  expected = np.float32([-np.inf, 1, 2])
  assert difference(np.float32(found), expected) == math.inf
  assert difference(expected, np.float32(found)) == math.inf


def test_difference_of_other_shapes_is_infinite():
  wide, narrow = np.ones((3, 2), np.float32), np.ones((3, 1), np.float32)
  assert difference(wide, narrow) == difference(narrow, wide) == math.inf


def test_what_is_finite_is_compared_beside_what_is_not():
  expected = np.float32([-np.inf, 1, 2])
  assert difference(expected, expected) == 0
  assert difference(np.float32([-np.inf, 1, 2.5]), expected) == 0.25


class _Without(_layers.Layer):
  """Takes classes away by logits of -inf; its get_config has not which."""

  absent = ()

  def call(self, logits):
    places = tf.range(logits.shape[-1])
    for place in self.absent:
      logits = tf.where(tf.equal(places, place), -np.inf, logits)
    return logits


def test_a_copy_that_forgets_classes_to_leave_out_is_refused():
  last = _Without()
  last.absent = (2,)
  model = _model(_sequential(_layers.Input([4]), _layers.Dense(3), last), 4)
  with pytest.raises(InputError, match=r"something else .* of _Without have all"):
    to_keras(model, model.initial_weights)


def test_a_copy_has_its_models_name():
  layers = [_layers.Input([4]), _layers.Dense(3)]
  model = _model(tf.keras.Sequential(layers, name="digits"), 4)
  assert to_keras(model, model.initial_weights).name == "digits"
