"""Vectorised forms where those of `tf.vectorized_map` are slow, wrong or not there.

`convolutions` has those of which it has one for some inputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf

from tff_algos.runtimes import private_apis


def _bitcast(pfor_input: Any) -> Any:
  value = tf.bitcast(pfor_input.stacked_input(0), pfor_input.get_attr("type"))
  return private_apis.stacked(value)


# Of strings of one length, as those of a batch are: for others there is no form.
def _decode_raw(pfor_input: Any) -> Any:
  value = tf.raw_ops.DecodeRaw(
    bytes=pfor_input.stacked_input(0),
    out_type=pfor_input.get_attr("out_type"),
    little_endian=pfor_input.get_attr("little_endian"),
  )
  return private_apis.stacked(value)


def _decode_padded_raw(pfor_input: Any) -> Any:
  value = tf.raw_ops.DecodePaddedRaw(
    input_bytes=pfor_input.stacked_input(0),
    fixed_length=pfor_input.unstacked_input(1),
    out_type=pfor_input.get_attr("out_type"),
    little_endian=pfor_input.get_attr("little_endian"),
  )
  return private_apis.stacked(value)


def _l2_loss(pfor_input: Any) -> Any:
  value = pfor_input.stacked_input(0)
  flat = tf.reshape(value, [tf.shape(value)[0], -1])
  return private_apis.stacked(tf.reduce_sum(flat * flat, 1) / 2)


# TensorFlow's form without axes takes that of the clients too, where it is one client.
def _squeeze(pfor_input: Any) -> Any:
  value, dimensions = pfor_input.stacked_input(0), pfor_input.get_attr("squeeze_dims")
  if dimensions:
    axes = [axis + 1 if axis >= 0 else axis for axis in dimensions]
    return private_apis.stacked(tf.squeeze(value, axes))
  shape = pfor_input.op.inputs[0].shape
  if not shape.is_fully_defined():
    raise private_apis.NoVectorisedFormError("Which axes have one element is not known.")
  kept = [size for size in shape if size != 1]
  return private_apis.stacked(tf.reshape(value, [tf.shape(value)[0], *kept]))


# TensorFlow's takes adjoints of the matrices of two clients for transposes.
def _matmul(of_tensorflow: Callable[[Any], Any]) -> Callable[[Any], Any]:
  def form(pfor_input: Any) -> Any:
    if not (pfor_input.input(0).is_stacked and pfor_input.input(1).is_stacked):
      return of_tensorflow(pfor_input)
    product = tf.matmul(
      pfor_input.stacked_input(0),
      pfor_input.stacked_input(1),
      transpose_a=pfor_input.get_attr("transpose_a"),
      transpose_b=pfor_input.get_attr("transpose_b"),
    )
    return private_apis.stacked(product)

  return form


# TensorFlow's takes all that have their channels before the rest for pictures.
def _bias_add(of_tensorflow: Callable[[Any], Any]) -> Callable[[Any], Any]:
  def form(pfor_input: Any) -> Any:
    is_behind = pfor_input.get_attr("data_format") == b"NHWC"
    if not is_behind and pfor_input.op.inputs[0].shape.rank != 4:
      raise private_apis.NoVectorisedFormError("These are no pictures.")
    return of_tensorflow(pfor_input)

  return form


# TensorFlow's pads with 0, whatever it is told.
def _pad(pfor_input: Any) -> Any:
  paddings = pfor_input.unstacked_input(1)
  of_clients = tf.zeros([1, 2], paddings.dtype)
  value = tf.pad(
    pfor_input.stacked_input(0),
    tf.concat([of_clients, paddings], 0),
    constant_values=pfor_input.unstacked_input(2),
  )
  return private_apis.stacked(value)


# TensorFlow's counts axes from behind the clients' on, and those from the end too.
def _roll(pfor_input: Any) -> Any:
  value, axes = pfor_input.stacked_input(0), pfor_input.unstacked_input(2)
  own = tf.cast(tf.rank(value), axes.dtype) - 1
  # One that is too low stays so.
  places = tf.where(axes >= 0, axes + 1, tf.where(axes < -own, axes - 1, axes))
  return private_apis.stacked(tf.roll(value, pfor_input.unstacked_input(1), places))


# TensorFlow's adds the place of a client's first segment to its ids, so that one that is
# to be dropped, or is too large, would be another client's.
def _in_own_segments(of_tensorflow: Callable[[Any], Any]) -> Callable[[Any], Any]:
  def form(pfor_input: Any) -> Any:
    pfor_input.stack_inputs([0, 1])
    ids = pfor_input.stacked_input(1)
    too_large = ids >= tf.cast(pfor_input.unstacked_input(2), ids.dtype)
    ids = tf.where(too_large, ids.dtype.max // 2, tf.where(ids < 0, ids.dtype.min, ids))
    pfor_input.inputs[1] = private_apis.stacked(ids)
    return of_tensorflow(pfor_input)

  return form


def _top_k(pfor_input: Any) -> list[Any]:
  found = tf.math.top_k(
    pfor_input.stacked_input(0),
    pfor_input.unstacked_input(1),
    sorted=pfor_input.get_attr("sorted"),
    index_type=pfor_input.get_attr("index_type"),
  )
  return [private_apis.stacked(part) for part in found]


def _transform_pictures(pfor_input: Any) -> Any:
  pfor_input.stack_inputs([0, 1])
  pictures, transforms = pfor_input.stacked_input(0), pfor_input.stacked_input(1)
  shape = tf.shape(pictures)
  # One for all pictures of a client, or one for each.
  transforms = tf.broadcast_to(transforms, [shape[0], shape[1], 8])
  found = tf.raw_ops.ImageProjectiveTransformV3(
    images=tf.reshape(pictures, tf.concat([[-1], shape[2:]], 0)),
    transforms=tf.reshape(transforms, [-1, 8]),
    output_shape=pfor_input.unstacked_input(2),
    fill_value=pfor_input.unstacked_input(3),
    interpolation=pfor_input.get_attr("interpolation").decode(),
    fill_mode=pfor_input.get_attr("fill_mode").decode(),
  )
  of_each = tf.concat([shape[:2], tf.shape(found)[1:]], 0)
  return private_apis.stacked(tf.reshape(found, of_each))


#: Our form of each operation that TensorFlow has none for.
FORMS: Mapping[str, Callable[[Any], Any]] = {
  "Bitcast": _bitcast,
  "ImageProjectiveTransformV3": _transform_pictures,
  "L2Loss": _l2_loss,
  "TopKV2": _top_k,
}

#: Forms for what differs from client to client, and only there but for those of which
#: TensorFlow's are wrong, as `private_apis.forms_for_own_inputs` takes them.
FORMS_FOR_OWN_INPUTS: Mapping[str, tuple[Optional[int], Callable[[Any], Any]]] = {
  "DecodePaddedRaw": (0, _decode_padded_raw),
  "DecodeRaw": (0, _decode_raw),
  "PadV2": (None, _pad),
  "Roll": (None, _roll),
  "Squeeze": (0, _squeeze),
  **{
    name: (None, ours(form))
    for ours, name in ((_bias_add, "BiasAdd"), (_matmul, "MatMul"))
    for form in private_apis.forms_of_tensorflow([name]).values()
  },
  **{n: (0, form) for n, form in private_apis.forms_where_all_take_the_same().items()},
  **{n: (None, form) for n, form in private_apis.forms_of_loops().items()},
  **{
    name: (None, _in_own_segments(form))
    for name, form in private_apis.forms_of_tensorflow(
      f"UnsortedSegment{name}" for name in ("Sum", "Max", "Min", "Prod")
    ).items()
  },
}
