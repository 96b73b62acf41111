"""Vectorised forms of TensorFlow's stateless draws, by their generator, Philox 4x32-10.

`tf.vectorized_map` has a loop over clients for each, which takes far longer than to draw
a few numbers. These are TensorFlow's own, bit for bit.

Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, for
the generator; TensorFlow's `random_distributions.h` and `guarded_philox_random.h` for how
it is seeded and counts, and how bits become numbers [code].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_algos.runtimes import private_apis

# On a CPU more are drawn for one client after another: Philox as operations passes over
# them a hundred times, TensorFlow's once. For 128 clients these are as fast at 700.
_MOST_NUMBERS = 512

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SEEDING_KEY = (0x3EC8F720, 0x02461E29)
_LOW = 0xFFFFFFFF
# TensorFlow's numbers for it, and for a choice by device, which is it on CPUs and GPUs.
_PHILOX = (1, 3)
_DTYPES = (tf.float32, tf.int32, tf.uint32)


def _word(value: int) -> tf.Tensor:
  return tf.constant(value, tf.uint64)


def _low(words: tf.Tensor) -> tf.Tensor:
  return tf.bitwise.bitwise_and(words, _word(_LOW))


def _high(words: tf.Tensor) -> tf.Tensor:
  return tf.bitwise.right_shift(words, _word(32))


def _joined(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
  return tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, _word(32)))


# Functions, as a computation has hundreds of draws: each is one operation where it is
# traced, and not the generator's 300.
_function = functools.partial(tf.function, autograph=False)


@_function(input_signature=[tf.TensorSpec([None, None], tf.uint64)] * 6)
def _philox(
  a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor, *key: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Four words for a counter a, b, c, d of words and a key of two; all below 2**32."""
  low, half = _word(_LOW), _word(32)
  multipliers = list(map(_word, _MULTIPLIERS))
  for step in range(_ROUNDS):
    # A multiple of the round's, in place of a sum in each.
    first, second = (
      tf.bitwise.bitwise_and(k + _word(step * w), low) for k, w in zip(key, _WEYL)
    )
    left, right = multipliers[0] * a, multipliers[1] * c
    a = tf.bitwise.bitwise_xor(tf.bitwise.right_shift(right, half), b)
    c = tf.bitwise.bitwise_xor(tf.bitwise.right_shift(left, half), d)
    a, c = tf.bitwise.bitwise_xor(a, first), tf.bitwise.bitwise_xor(c, second)
    b, d = tf.bitwise.bitwise_and(right, low), tf.bitwise.bitwise_and(left, low)
  return a, b, c, d


@_function(input_signature=[tf.TensorSpec([None, 2], tf.uint64)])
def _seeded(seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Key (clients, 1) and counter (clients, 2) of each client's draw; all uint64."""
  words = [half(seeds[:, i, tf.newaxis]) for i in (0, 1) for half in (_low, _high)]
  a, b, c, d = _philox(
    *words, *(_word(value)[tf.newaxis, tf.newaxis] for value in _SEEDING_KEY)
  )
  return _joined(a, b), tf.concat([tf.zeros_like(a), _joined(c, d)], axis=1)


def _key_and_counter(pfor_input: Any) -> Any:
  # A negative seed goes to the top.
  seeds = tf.cast(pfor_input.stacked_input(0), tf.uint64)
  return [private_apis.stacked(value) for value in _seeded(seeds)]


@_function(
  input_signature=[
    tf.TensorSpec([], tf.int32),
    tf.TensorSpec([None, 1], tf.uint64),
    tf.TensorSpec([None, 2], tf.uint64),
  ]
)
def _words(count: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
  """So many words of each client's draw: uint32 (clients, count)."""
  groups = tf.cast(tf.range((count + 3) // 4), tf.uint64)
  low = counter[:, :1] + groups
  high = counter[:, 1:] + tf.cast(low < groups, tf.uint64)
  words = _philox(*(half(each) for each in (low, high, key) for half in (_low, _high)))
  drawn = tf.stack([tf.cast(word, tf.uint32) for word in words], axis=2)
  return tf.reshape(drawn, [tf.shape(key)[0], -1])[:, :count]


def _bits(shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
  """What the draws of some clients are made of: uint32 (clients, *shape)."""
  shape = tf.cast(shape, tf.int32)
  drawn = _words(tf.reduce_prod(shape), key, counter)
  return tf.reshape(drawn, tf.concat([tf.shape(key)[:1], shape], 0))


def _draws(
  pfor_input: Any,
  draw: Callable[..., tf.Tensor],
  of_bits: Callable[..., tf.Tensor],
  *,
  on_gpu: bool,
) -> Any:
  """Draws of each client: of bits where that is faster, else one client after another."""
  shape = pfor_input.unstacked_input(0)
  algorithm, dtype = pfor_input.unstacked_input(3), pfor_input.op.outputs[0].dtype
  pfor_input.stack_inputs([1, 2])
  own = pfor_input.stacked_input(1), pfor_input.stacked_input(2)

  def one_by_one() -> tf.Tensor:
    def draw_one(own: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
      key, counter = own
      return draw(shape=shape, key=key, counter=counter, alg=algorithm, dtype=dtype)

    return tf.map_fn(draw_one, own, fn_output_signature=dtype)

  if dtype not in _DTYPES or tf.get_static_value(algorithm) not in _PHILOX:
    return private_apis.stacked(one_by_one())

  def at_once() -> tf.Tensor:
    return of_bits(_bits(shape, *own), dtype)

  if on_gpu:
    return private_apis.stacked(at_once())
  is_few = tf.reduce_prod(shape) <= _MOST_NUMBERS
  return private_apis.stacked(tf.cond(is_few, at_once, one_by_one))


def _as_floats(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """In [0, 1): 23 bits behind the point of a number in [1, 2), less 1."""
  one, rest = tf.constant(127 << 23, tf.uint32), tf.constant((1 << 23) - 1, tf.uint32)
  number = tf.bitwise.bitwise_or(one, tf.bitwise.bitwise_and(bits, rest))
  return tf.bitcast(number, dtype) - 1.0


def _full_integers(pfor_input: Any, *, on_gpu: bool = False) -> Any:
  draw = tf.raw_ops.StatelessRandomUniformFullIntV2
  return _draws(pfor_input, draw, tf.bitcast, on_gpu=on_gpu)


def _uniform(pfor_input: Any, *, on_gpu: bool = False) -> Any:
  draw = tf.raw_ops.StatelessRandomUniformV2
  return _draws(pfor_input, draw, _as_floats, on_gpu=on_gpu)


#: Our form of each operation; TensorFlow has none.
FORMS: Mapping[str, Callable[[Any], Any]] = {
  "StatelessRandomGetKeyCounter": _key_and_counter,
  "StatelessRandomUniformFullIntV2": _full_integers,
  "StatelessRandomUniformV2": _uniform,
}

#: As `private_apis.forms_for_own_inputs` takes them. On a GPU a loop over clients, where
#: every operation waits for its own start, takes longer than a hundred passes.
FORMS_ON_GPU: Mapping[str, tuple[None, Callable[[Any], Any]]] = {
  "StatelessRandomUniformFullIntV2": (
    None,
    functools.partial(_full_integers, on_gpu=True),
  ),
  "StatelessRandomUniformV2": (None, functools.partial(_uniform, on_gpu=True)),
}
