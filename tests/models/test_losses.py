"""A loss or a metric makes one number of each example, or is told not to."""

from __future__ import annotations

import operator
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tff_algos.client_work import gradients
from tff_algos.errors import InputError, InputWarning
from tff_algos.models import functional, keras
from tff_algos.simulation import client_evaluation, evaluation

_FLOAT = tf.TensorSpec([], tf.float32)
_CLASS = tf.TensorSpec([], tf.int32)


def _network(width: int) -> tf.keras.Model:
  layers = [tf.keras.layers.Input([4]), tf.keras.layers.Dense(width)]
  return tf.keras.Sequential(layers)


def _convert(width: int, y: tf.TensorSpec, **options) -> functional.Model:
  spec = functional.ExampleSpec(tf.TensorSpec([4], tf.float32), y)
  return keras.from_keras(_network(width), spec, **options)


def _squared(y, predictions):
  return (y - predictions) ** 2


@pytest.mark.parametrize(
  ("width", "y", "loss", "made"),
  [
    (
      3,
      _CLASS,
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      r"makes \(\), where",
    ),
    (1, tf.TensorSpec([1], tf.float32), _squared, r"makes \(B, 1\), where"),
    (1, _FLOAT, _squared, r"\(B,\) and predictions \(B, 1\) the loss makes \(B, B\)"),
    (3, tf.TensorSpec([3], tf.float32), _squared, r"makes \(B, 3\), where"),
    (
      3,
      tf.TensorSpec([3], tf.float32),
      lambda y, p: tf.reduce_mean(_squared(y, p), 0),
      r"makes \(3,\), where",
    ),
    (3, _CLASS, lambda y, p: None, "makes no tensor, where"),
  ],
)
def test_loss_that_is_not_one_number_of_each_example_is_refused(width, y, loss, made):
  with pytest.raises(InputError, match=made):
    _convert(width, y, loss=loss)


def test_keras_loss_without_a_reduction_is_taken():
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    model = _convert(3, _CLASS, loss=loss)
  y, logits = tf.constant([0, 2]), tf.random.stateless_normal([2, 3], [0, 1])
  own = functional.sparse_cross_entropy(y, logits)
  np.testing.assert_allclose(model.example_losses(y, logits), own, rtol=1e-6)


def test_loss_that_spreads_labels_over_predictions_is_warned_of():
  """Of (B,) and (B, 1) Keras's function makes (B,) too, each with all labels in it."""
  with pytest.warns(InputWarning, match="change with the other examples") as caught:
    _convert(1, _FLOAT, loss=tf.keras.losses.mean_squared_error)
  assert [w.filename for w in caught if w.category is InputWarning] == [__file__]
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    _convert(1, _FLOAT, loss=lambda y, p: _squared(y, p[:, 0]))
    _convert(1, tf.TensorSpec([1], tf.float32), loss=tf.keras.losses.mean_squared_error)


def test_metric_that_spreads_labels_over_predictions_is_warned_of():
  """It would be the mean distance to anybody's label."""
  absolute = tf.keras.losses.mean_absolute_error
  options = dict(loss=lambda y, p: _squared(y, p[:, 0]))
  said = "the metric 'mae' makes numbers that change with the other examples"
  with pytest.warns(InputWarning, match=said) as caught:
    _convert(1, _FLOAT, metrics=dict(mae=absolute), **options)
  assert [w.filename for w in caught if w.category is InputWarning] == [__file__]
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    own = dict(mae=lambda y, p: (tf.abs(y - p[:, 0]), tf.ones_like(y)))
    _convert(1, _FLOAT, metrics=own, **options)
    _convert(3, _CLASS, metrics=dict(own=functional.accuracy))


@pytest.mark.parametrize(
  "y",
  [
    tf.TensorSpec([], tf.uint8),
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([1], tf.int32),
    tf.TensorSpec([3], tf.float32),
  ],
)
def test_labels_that_are_no_classes_are_refused(y):
  with pytest.raises(InputError, match="numbers of classes, int32 or int64"):
    _convert(3, y)


def _silent(y, predictions):
  raise ValueError


def test_loss_or_metric_whose_error_says_nothing_is_refused_by_its_type():
  with pytest.raises(InputError, match=r"does not take labels .*\(ValueError\)"):
    _convert(3, _CLASS, loss=_silent)
  with pytest.raises(InputError, match=r"'off' does not take .*\(ValueError\)"):
    _evaluate(_convert(3, _CLASS, metrics=dict(off=_silent)))


def test_loss_of_half_precision_is_taken():
  def loss(y, predictions):
    return tf.cast(functional.sparse_cross_entropy(y, predictions), tf.bfloat16)

  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    _convert(3, _CLASS, loss=loss)


@pytest.mark.parametrize("kind", [tf.constant, tf.Variable])
def test_loss_with_a_tensor_from_outside_is_refused(kind):
  """TFF would tell of capturing an EagerTensor, when a process is made."""
  class_weights = [1.0, 2.0, 3.0]

  def weighted(own):
    return lambda y, p: tf.gather(own, y) * functional.sparse_cross_entropy(y, p)

  with pytest.raises(InputError, match=r"from outside.* make it a NumPy array"):
    _convert(3, _CLASS, loss=weighted(kind(class_weights)))
  _convert(3, _CLASS, loss=weighted(np.array(class_weights, "f")))


def test_loss_that_is_no_function_is_refused():
  with pytest.raises(InputError, match="loss= must be a function"):
    _convert(3, _CLASS, loss="mse")


def test_metrics_that_are_a_list_are_refused():
  with pytest.raises(InputError, match="metrics= must map names to functions"):
    _convert(3, _CLASS, metrics=["accuracy"])


def test_metric_by_the_losss_name_is_refused():
  with pytest.raises(InputError, match="A metric cannot be named 'loss'"):
    _convert(3, _CLASS, metrics={"loss": lambda y, predictions: predictions[:, 0]})


def _evaluate(model: functional.Model) -> None:
  y = model.example_spec.y
  x, y = np.zeros([2, 4]), np.zeros([2, *y.shape], y.dtype.as_numpy_dtype)
  evaluation.build_evaluation(model, x, y)


@pytest.mark.parametrize("build", [_evaluate, client_evaluation.build_client_evaluation])
@pytest.mark.filterwarnings("ignore:Of labels")
def test_metric_that_does_not_fit_is_refused(build):
  """Of the default the labels must be classes; of another there is one number of all."""
  multi = tf.TensorSpec([3], tf.float32)
  loss = tf.keras.losses.mean_squared_error
  with pytest.raises(InputError, match="Metric 'accuracy' does not take"):
    build(_convert(3, multi, loss=loss))
  mean = dict(off=lambda y, p: tf.reduce_mean(tf.abs(y - p)))
  with pytest.raises(InputError, match=r"metric 'off' makes \(\), where"):
    build(_convert(3, multi, loss=loss, metrics=mean))
  along = dict(off=lambda y, p: tf.reduce_mean(tf.abs(y - p), 0))
  with pytest.raises(InputError, match=r"metric 'off' makes \(3,\), where"):
    build(_convert(3, multi, loss=loss, metrics=along))
  build(_convert(3, multi, loss=loss, metrics={}))
  build(_convert(3, multi, loss=loss, metrics=dict(off=loss)))


@pytest.mark.parametrize("metric", [tf.keras.metrics.MeanAbsoluteError(), "mae"])
def test_metric_that_is_no_function_is_refused(metric):
  """One of Keras's has a state, which a pure function has not."""
  words = f"^Metric 'off' is a {type(metric).__name__}: give a function"
  with pytest.raises(InputError, match=words):
    _convert(3, tf.TensorSpec([3], tf.float32), loss=_squared, metrics=dict(off=metric))


# The second takes the mean over the examples in the place of that over the outputs.
@pytest.mark.parametrize(
  "loss, made",
  [
    (_squared, r"\(2, 2\)"),
    (lambda y, p: tf.reduce_mean((p - y[:, tf.newaxis]) ** 2, axis=0), r"\(1,\)"),
  ],
)
def test_model_of_functions_with_such_a_loss_does_not_train(loss, made):
  model = functional.Model(
    initial_weights=(np.zeros([4, 1], np.float32),),
    weight_names=("w",),
    example_spec=functional.ExampleSpec(tf.TensorSpec([4], tf.float32), _FLOAT),
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
    example_losses=loss,
  )
  weights = tuple(map(tf.constant, model.initial_weights))
  with pytest.raises(InputError, match=rf"the loss makes {made}, where"):
    gradients.batch_gradient(model, weights, tf.ones([2, 4]), tf.ones([2]), [0, 0])


def test_loss_that_is_as_long_as_the_outputs_makes_no_process():
  """Though nobody knows how long a batch will be."""
  model = functional.Model(
    initial_weights=(np.zeros([4, 3], np.float32),),
    weight_names=("w",),
    example_spec=functional.ExampleSpec(
      tf.TensorSpec([4], tf.float32), tf.TensorSpec([3], tf.float32)
    ),
    predict=lambda weights, x, training, seed: tf.matmul(x, weights[0]),
    example_losses=lambda y, p: tf.reduce_mean((y - p) ** 2, 0),
  )
  with pytest.raises(InputError, match=r"the loss makes \(3,\), where"):
    tff_algos.build_fed_avg(model)


def _zeros_alone(y, predictions):
  return tf.where(y == 0, predictions[:, 0], 0.0)


class _Gate(tf.keras.layers.Layer):
  def call(self, x):
    return tf.where(x != 0, x, 1.0)  # The line that is named.


def test_comparison_by_operator_is_refused_where_it_stands():
  """In a graph it is False for every example, and the shape would be right."""
  line = _zeros_alone.__code__.co_firstlineno + 1
  with pytest.raises(
    InputError, match=rf"The loss compares .* in .*test_losses\.py, line {line}, "
  ):
    _convert(3, _CLASS, loss=_zeros_alone)
  layers = [tf.keras.layers.Input([4]), _Gate(), tf.keras.layers.Dense(3)]
  spec = functional.ExampleSpec(tf.TensorSpec([4], tf.float32), _CLASS)
  line = _Gate.call.__code__.co_firstlineno + 1
  with pytest.raises(
    InputError, match=rf"'own' or its preprocess compares .*, line {line}, "
  ):
    keras.from_keras(tf.keras.Sequential(layers, name="own"), spec)


@tf.function
def _zeros_alone_as_tf_function(y, predictions):
  return tf.where(y == 0, predictions[:, 0], 0.0)


def _branching(y, predictions):
  return predictions[:, 0] * (1000.0 if tf.reduce_min(y) == 0 else 1.0)


def _by_function(y, predictions):
  return tf.where(operator.eq(y, 0), predictions[:, 0], 0.0)


def _each(y, predictions):
  return tf.map_fn(lambda v: tf.where(v[0] != 0, v[0], 1.0), predictions)


@pytest.mark.parametrize(
  "loss, where",
  [
    (_zeros_alone_as_tf_function, "the tf.function _zeros_alone_as_tf_function"),
    (_branching, r"\S*test_losses\.py, line \d+"),
    (_by_function, r"\S*test_losses\.py, line \d+"),
    (_each, r"\S*test_losses\.py, line \d+"),
  ],
)
def test_comparison_is_refused_wherever_it_is_made(loss, where):
  with pytest.raises(InputError, match=f"^The loss compares .* in {where}, which"):
    _convert(3, _CLASS, loss=loss)


def test_comparison_in_an_activation_is_one_sentence():
  """Which Keras would surround by the arguments of its layer."""
  spec = functional.ExampleSpec(tf.TensorSpec([4], tf.float32), _CLASS)
  dense = tf.keras.layers.Dense(3, activation=lambda x: tf.where(x == 0, 1.0, x))
  with pytest.raises(InputError, match="compares tensors") as caught:
    keras.from_keras(tf.keras.Sequential([tf.keras.Input([4]), dense]), spec)
  assert "\n" not in str(caught.value)


def test_comparison_of_other_types_is_left_to_its_author():
  """In eager mode it would fail; in a graph it asks for the same object, as by `in`."""

  def loss(y, predictions):
    assert y not in [predictions]
    return tf.reduce_sum(predictions, -1)

  _convert(3, _CLASS, loss=loss)


def test_comparison_by_function_is_taken():
  def loss(y, predictions):
    return tf.where(tf.equal(y, 0), predictions[:, 0], 0.0)

  assert _convert(3, _CLASS, loss=loss).example_losses is loss


def test_comparisons_of_kerass_own_are_taken():
  """A mask's, of which a graph as TFF's has another form."""
  layers = [
    tf.keras.layers.Input([5]),
    tf.keras.layers.Embedding(7, 3, mask_zero=True),
    tf.keras.layers.LSTM(4),
    tf.keras.layers.Dense(3),
  ]
  spec = functional.ExampleSpec(tf.TensorSpec([5], tf.int32), _CLASS)
  keras.from_keras(tf.keras.Sequential(layers), spec, preprocess=lambda x: x)


def _share_of_second(y, predictions):
  """0 / 0 of labels 0, as the precision of a class that an example is not of."""
  is_second = tf.cast(tf.equal(y, 1), tf.float32)
  return is_second * predictions[:, 0] / is_second


def _of_classes_2_and_3(y, predictions):
  """Which refuses what labels are drawn to look at it."""
  with tf.control_dependencies([tf.debugging.assert_greater(y, 1)]):
    return functional.sparse_cross_entropy(y, predictions)


@pytest.mark.parametrize("values", [_share_of_second, _of_classes_2_and_3])
def test_what_is_no_number_or_an_error_of_some_labels_is_not_warned_of(values):
  with warnings.catch_warnings():
    warnings.simplefilter("error", InputWarning)
    _convert(4, _CLASS, loss=values)
    _convert(4, _CLASS, metrics=dict(own=values))
