"""Recurrent networks for sequences; all return logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_layers = tf.keras.layers


class BlockLSTM(tf.keras.layers.LSTM):
  """Keras's LSTM with default settings, as one operation for the whole sequence.

  Weights, their order and their initializers are those of `tf.keras.layers.LSTM`; inputs
  (B, steps, channels) float32. It takes no mask and no initial state.
  """

  # A local step on 10 windows of 128 readings by LSTM 20 and LSTM 10 takes 3 ms. Keras's
  # loop takes 24 ms with either `implementation`; unrolled it takes 18 ms, but 20 s more
  # to trace and start, and that again for each place where a gradient is taken.

  def __init__(self, units: int, return_sequences: bool = False):
    # The operation knows no bfloat16.
    super().__init__(units, return_sequences=return_sequences, dtype="float32")

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Gives (B, steps, units) if `return_sequences`, else the last step's (B, units)."""
    x = tf.transpose(inputs, [1, 0, 2])
    zeros = tf.zeros([tf.shape(x)[1], self.units])
    no_peephole = tf.zeros([self.units])
    # Not BlockLSTMV2: TensorFlow 2.14 gives that one V1's gradient, which is a wrong one
    # because their gates have different orders.
    h = tf.raw_ops.BlockLSTM(
      seq_len_max=tf.shape(x, tf.int64)[0],
      x=x,
      cs_prev=zeros,
      h_prev=zeros,
      w=_reorder_gates(tf.concat([self.cell.kernel, self.cell.recurrent_kernel], 0)),
      wci=no_peephole,
      wcf=no_peephole,
      wco=no_peephole,
      b=_reorder_gates(self.cell.bias),
      forget_bias=0.0,  # Keras has it in the bias.
      cell_clip=-1.0,
      use_peephole=False,
    ).h
    h = tf.ensure_shape(h, [inputs.shape[1], None, self.units])
    return tf.transpose(h, [1, 0, 2]) if self.return_sequences else h[-1]

  def standard_layer(self, weights: list[Any]) -> tuple[tf.keras.layers.Layer, list[Any]]:
    """Keras's layer, for `tff_algos.to_keras`."""
    return tf.keras.layers.LSTM.from_config(self.get_config()), weights


def _reorder_gates(weights: tf.Tensor) -> tf.Tensor:
  """From Keras's input, forget, cell, output to the operation's order."""
  i, f, c, o = tf.split(weights, 4, axis=-1)
  return tf.concat([i, c, f, o], axis=-1)


def har_lstm(
  shape: tuple[int, ...], num_classes: int, sizes: tuple[int, int] = (20, 10)
) -> tf.keras.Model:
  """Two LSTMs and a dense layer of 128 for windows (128, 9) [paper, TWAFL IV-B2].

  Args:
    shape: Steps and channels of a float32 window.
    num_classes: The number of logits.
    sizes: The units of the first and of the second LSTM; 20 and 10 give 5,822 weights on
      UCI HAR, 25 and 25 12,702, 100 and 100 138,102.
  """
  first, second = sizes
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      BlockLSTM(first, return_sequences=True),
      BlockLSTM(second),
      _layers.Dense(128, "relu"),
      _layers.Dense(num_classes),
    ]
  )


def character_lstm(
  shape: tuple[int, ...], num_classes: int, embedding: int = 8, units: int = 256
) -> tf.keras.Model:
  """An embedding, two LSTMs and a dense layer at each step [paper, McMahan et al.].

  Predicts each character's successor: symbols (B, steps) -> logits (B, steps, classes).
  With 90 symbols it has 820,522 weights; the paper prints 866,578, which no plain LSTM of
  these sizes has.

  Args:
    shape: The number of steps.
    num_classes: The number of symbols, 0 (padding, at a line's end only) included.
    embedding: The size of a symbol's vector.
    units: The units of each LSTM.
  """
  return tf.keras.Sequential(
    [
      _layers.Input(shape),
      _layers.Embedding(num_classes, embedding),
      # A local step on 10 lines takes 0.14 s of one core with these, 0.27 s with
      # BlockLSTM, whose operation adds up the gradient of its weights step by step.
      _layers.LSTM(units, return_sequences=True),
      _layers.LSTM(units, return_sequences=True),
      _layers.Dense(num_classes),
    ]
  )
