"""Vectorised forms of convolutions whose filters differ from client to client.

`tf.vectorized_map` has a form for one filter that all share. With a filter for each
client all windows of its pictures, unfolded, times its filter are one product of a batch
of matrices. That takes more memory than a convolution, and more time on a CPU; a GPU gets
work that fills it, where the pictures of one client's step do not [derived].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos.runtimes import private_apis


class _Side(NamedTuple):
  """A convolution along one of its two sides.

  Attributes:
    size: Of the picture, an int32 scalar: it may be known only when it runs.
    window: Of the filter.
    stride: From a window to the next.
    dilation: From a place of a window to the next.
    before: Zeros before the picture.
    after: Zeros behind it.
  """

  size: Any
  window: int
  stride: int
  dilation: int
  before: Any = 0
  after: Any = 0

  @property
  def reach(self) -> int:
    """From a window's first place to its last."""
    return (self.window - 1) * self.dilation

  def padded(self) -> _Side:
    """With the zeros of the padding "SAME"."""
    windows = -(-self.size // self.stride)
    zeros = tf.maximum(0, (windows - 1) * self.stride + self.reach + 1 - self.size)
    return self._replace(before=zeros // 2, after=zeros - zeros // 2)


def is_known(attributes: Mapping[str, Any]) -> bool:
  """Whether a convolution with these attributes, of a GraphDef, has its form here."""
  is_nhwc: bool = attributes["data_format"].s == b"NHWC"
  return is_nhwc and attributes["padding"].s != b"EXPLICIT"


def _sides_of(
  pfor_input: Any, pictures: tf.TensorShape, filters: tf.TensorShape, sizes: tf.Tensor
) -> list[_Side]:
  """Both sides.

  Args:
    pfor_input: The operation.
    pictures: The shape of a client's pictures, of which the channels are known.
    filters: The shape of its filter.
    sizes: int32 (2,), height and width of the pictures.
  """
  if not filters.is_fully_defined() or pictures[3] != filters[2]:
    raise private_apis.NoVectorisedFormError(
      f"Filters {filters} of pictures {pictures} are not known, or in groups."
    )
  strides, dilations = pfor_input.get_attr("strides"), pfor_input.get_attr("dilations")
  sides = [
    _Side(size, filters[axis - 1], strides[axis], dilations[axis])
    for axis, size in zip((1, 2), tf.unstack(sizes))
  ]
  is_same = pfor_input.get_attr("padding") == b"SAME"
  return [side.padded() if is_same else side for side in sides]


def _flat(stacked: tf.Tensor) -> tf.Tensor:
  """(clients, B, height, width, channels) as pictures (clients * B, ...)."""
  return tf.reshape(stacked, tf.concat([[-1], tf.shape(stacked)[2:]], 0))


def _windows(pictures: tf.Tensor, sides: list[_Side]) -> tf.Tensor:
  """All windows of pictures (P, ...): (P, down, right, height * width * channels)."""
  zeros = [[side.before, side.after] for side in sides]
  return tf.image.extract_patches(
    tf.pad(pictures, [[0, 0], *zeros, [0, 0]]),
    [1, *(side.window for side in sides), 1],
    [1, *(side.stride for side in sides), 1],
    [1, *(side.dilation for side in sides), 1],
    "VALID",
  )


def _products(windows: tf.Tensor, filters: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
  """Of all windows of each client with its filter: (clients, B, down, right, out)."""
  clients, *window, out = tf.unstack(tf.shape(filters), num=5)
  places = tf.reduce_prod(window)
  found = tf.matmul(
    tf.reshape(windows, [clients, -1, places]),
    tf.reshape(filters, [clients, places, out]),
  )
  down, right = tf.unstack(tf.shape(windows)[1:3])
  return tf.reshape(found, [clients, batch, down, right, out])


def _convolve(pfor_input: Any) -> Any:
  pictures, filters = (tensor.shape for tensor in pfor_input.op.inputs)
  pfor_input.stack_inputs([0, 1])
  values, weights = pfor_input.stacked_input(0), pfor_input.stacked_input(1)
  sides = _sides_of(pfor_input, pictures, filters, tf.shape(values)[2:4])
  windows = _windows(_flat(values), sides)
  return private_apis.stacked(_products(windows, weights, tf.shape(values)[1]))


def _filter_gradient(pfor_input: Any) -> Any:
  pictures, filters = pfor_input.op.inputs[0].shape, pfor_input.op.outputs[0].shape
  pfor_input.stack_inputs([0, 2])
  values, gradient = pfor_input.stacked_input(0), pfor_input.stacked_input(2)
  sides = _sides_of(pfor_input, pictures, filters, tf.shape(values)[2:4])
  height, width, channels, out = filters
  clients = tf.shape(values)[0]
  found = tf.matmul(
    tf.reshape(_windows(_flat(values), sides), [clients, -1, height * width * channels]),
    tf.reshape(gradient, [clients, -1, out]),
    transpose_a=True,
  )
  return private_apis.stacked(tf.reshape(found, [clients, *filters]))


def _picture_gradient(pfor_input: Any) -> Any:
  """A convolution too, of the gradient, spread by the strides, with turned filters."""
  pictures, filters = pfor_input.op.outputs[0].shape, pfor_input.op.inputs[1].shape
  sizes = pfor_input.unstacked_input(0)[1:3]
  sides = _sides_of(pfor_input, pictures, filters, sizes)
  pfor_input.stack_inputs([1, 2])
  weights, gradient = pfor_input.stacked_input(1), pfor_input.stacked_input(2)
  spread, turned = _spread(_flat(gradient), sides), []
  for side, size in zip(sides, tf.unstack(tf.shape(spread)[1:3])):
    before = side.reach - side.before
    after = side.size + side.reach - before - size
    turned.append(side._replace(size=size, stride=1, before=before, after=after))
  around = tf.transpose(tf.reverse(weights, [1, 2]), [0, 1, 2, 4, 3])
  windows = _windows(spread, turned)
  return private_apis.stacked(_products(windows, around, tf.shape(gradient)[1]))


def _spread(pictures: tf.Tensor, sides: list[_Side]) -> tf.Tensor:
  """Pictures with zeros between their values, so many as a stride passes over."""
  _, height, width, channels = tf.unstack(tf.shape(pictures), num=4)
  down, right = (side.stride for side in sides)
  zeros = [[0, 0], [0, 0], [0, down - 1], [0, 0], [0, right - 1], [0, 0]]
  apart = tf.pad(tf.reshape(pictures, [-1, height, 1, width, 1, channels]), zeros)
  spread = tf.reshape(apart, [-1, height * down, width * right, channels])
  return spread[:, : (height - 1) * down + 1, : (width - 1) * right + 1]


#: For an operation the input that TensorFlow's form takes only as one for all, and ours.
FORMS: Mapping[str, tuple[int, Callable[[Any], Any]]] = {
  "Conv2D": (1, _convolve),
  "Conv2DBackpropFilter": (0, _filter_gradient),
  "Conv2DBackpropInput": (1, _picture_gradient),
}
