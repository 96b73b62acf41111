"""Gradient inversion: the picture that a client trained on, from what the client sends.

Zhu, Liu, Han: "Deep Leakage from Gradients", NeurIPS 2019; Geiping, Bauermeister, Dröge,
Moeller: "Inverting Gradients", NeurIPS 2020; as Xu et al. (FedReg), ICLR 2022, Appendix
B.4, attack one local step on one example. The attacker minimises over pictures d

    distance(update(d), update sent) + tv_weight * TV(d)

by Adam. It knows all that is public: the received model, the algorithm and its
hyper-parameters; and, as the worst case, the label and the client's random draws but for
DP-SGD's noise [convention]. So it simulates the client's whole work on d, FedReg's pseudo
data too; their sign() passes no gradient on, so that they count as a constant shift of d.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tff_algos.client_data import Examples
from tff_algos.client_work import tree_math
from tff_algos.errors import InputError
from tff_algos.hyper_parameters import HyperParameters, hparam
from tff_algos.models.functional import Weights

if TYPE_CHECKING:
  from tff_algos.templates.stateful_process import StatefulProcess

# What a client's seed is folded with for the pictures that the attack starts from.
_START = 7

# Of Adam [paper, Kingma and Ba 2015].
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8

# The side of the window of SSIM [recalled, Wang et al. 2004].
_SSIM_WINDOW = 11

# Quoted, as TensorFlow may not be asked for anything while this is imported.
Upload = Callable[[Examples, "tf.Tensor"], Weights]


@dataclasses.dataclass(frozen=True)
class InversionHparams(HyperParameters):
  """How the attack searches."""

  distance: str = hparam(
    "l2",
    "Between updates: l2, the squared norm of the difference; or cosine, 1 - cos.",
    source="paper, FedReg Appendix B.4 (l2 on EMNIST and CT, cosine on CIFAR-10); the "
    "square: code, Zhu et al.",
    choices=("l2", "cosine"),
  )
  tv_weight: float = hparam(
    1e-8,
    "Weight of the total variation of the picture.",
    source="paper, FedReg Appendix B.4 (1e-8 with l2, 1e-6 with cosine)",
    low=0,
  )
  iterations: int = hparam(
    32_000,
    "Steps of Adam.",
    source="paper, FedReg Appendix B.4 (32,000)",
    low=1,
    high=1_000_000,
  )
  learning_rate: float = hparam(
    1.0,
    "Of Adam, at the start, in units of the picture's range.",
    source="paper, FedReg Appendix B.4 (1.0)",
    low=0,
    open_low=True,
  )
  restarts: int = hparam(
    1,
    "Searches, each from its own random picture; that with the least objective counts.",
    source="convention",
    low=1,
    high=1000,
  )


class Inverted(NamedTuple):
  """What the attack found.

  Attributes:
    picture: float32 (H, W, C), in 0..1.
    objective: What was minimised, at that picture.
  """

  picture: NDArray[np.float32]
  objective: float


def upload_of(process: StatefulProcess, variables: Any, client_state: Any) -> Upload:
  """What a client of the process sends as part "model", as a function of its examples.

  That part is what the paper attacks; FedCurv and SCAFFOLD send others beside it.

  Args:
    process: The process, built for float32 pictures in 0..1.
    variables: The server's, `state.variables`.
    client_state: The client's before the round, such as `process.initialize_client()`.

  Returns:
    `(examples, seed) -> message["model"]`, a pure function of TensorFlow that can be
    differentiated by `examples.x`.

  Raises:
    InputError: It sends different parts in different rounds, or what one client does is
      not known; or, when the result is called, it sends no part "model".
  """
  if process.client_work is None:
    raise InputError(
      "The attack needs to know what one client sends, the same parts in every round: "
      "choose an algorithm that sends its whole model."
    )
  work = process.client_work
  variables, client_state = tf.nest.map_structure(
    tf.convert_to_tensor, (variables, client_state)
  )

  def upload(examples: Examples, seed: tf.Tensor) -> Weights:
    message = work(variables, client_state, examples, seed).message
    if "model" not in message:
      raise InputError(
        'The attack is on the part "model" of what a client sends, and this algorithm\'s '
        f"send {', '.join(map(repr, message))}: choose another algorithm."
      )
    return tuple(message["model"])

  return upload


def distance(kind: str, a: Weights, b: Weights) -> tf.Tensor:
  """Between two updates, over all weights together: |a - b|^2, or 1 - cos(a, b).

  The cosine of a zero update is taken for 0.
  """
  if kind == "l2":
    difference = tree_math.subtract(a, b)
    return tree_math.dot(difference, difference)
  # Not `tree_math.norm`: a root's gradient is infinite at 0. Nor a root of the product,
  # which float32 holds for fewer updates.
  squares = tree_math.dot(a, a), tree_math.dot(b, b)
  of_a, of_b = (tf.sqrt(tf.where(square > 0, square, 1.0)) for square in squares)
  return 1 - tree_math.dot(a, b) / of_a / of_b


def total_variation(pictures: tf.Tensor) -> tf.Tensor:
  """mean |dx| + mean |dy| between neighbours, of pictures (n, H, W, C) [code]."""
  across = tf.abs(pictures[:, :, 1:] - pictures[:, :, :-1])
  down = tf.abs(pictures[:, 1:] - pictures[:, :-1])
  return tf.reduce_mean(across) + tf.reduce_mean(down)


def rate_at(step: tf.Tensor, hparams: InversionHparams) -> tf.Tensor:
  """The learning rate of step 0, 1, ...: times 0.1 at 3/8, 5/8 and 7/8 of all [paper].

  The places are the whole steps below those fractions [code, Geiping et al.].
  """
  places = [k * hparams.iterations // 8 for k in (3, 5, 7)]
  passed = tf.reduce_sum(tf.cast(step >= tf.constant(places), tf.float32))
  return hparams.learning_rate * tf.pow(0.1, passed)


def build_inversion(
  simulate: Upload, shape: tuple[int, ...], hparams: InversionHparams
) -> Callable[[Weights, Any, Any], Inverted]:
  """Makes the attack on one example's update; it is compiled at its first call.

  Args:
    simulate: What the attacker thinks a client does: `upload_of` the process; that of
      one without noise where the client adds noise, which the attacker does not know
      [derived].
    shape: Of the picture, (H, W, C), with at least two rows and columns.
    hparams: How it searches.

  Returns:
    `(sent, label, seed) -> Inverted`: what the client sent, its example's label, and its
    seed, int32 (2,), which the start is drawn from too. The same arguments give the same
    bits. A search starts at uniform noise in 0..1, and is cut to 0..1 after each step.

  Raises:
    InputError: The shape is not that of a picture.
  """
  if len(shape) != 3 or min(shape[:2]) < 2:
    raise InputError(
      f"The attack recovers pictures of at least 2 x 2 pixels (rows, columns, channels); "
      f"found examples of shape {tuple(shape)}."
    )

  def objective_of(
    x: tf.Tensor, sent: Weights, y: tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor:
    apart = distance(hparams.distance, simulate(Examples(x, y), seed), sent)
    return apart + hparams.tv_weight * total_variation(x)

  @tf.function(autograph=False)
  def search(
    sent: Weights, y: tf.Tensor, seed: tf.Tensor, start: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    def body(
      step: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, square: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
      with tf.GradientTape() as tape:
        tape.watch(x)
        objective = objective_of(x, sent, y, seed)
      gradient = tape.gradient(objective, x)
      # Of a candidate whose own gradient is 0, clipping to a norm has no derivative.
      gradient = tf.where(tf.math.is_finite(gradient), gradient, 0.0)
      mean = _BETA_1 * mean + (1 - _BETA_1) * gradient
      square = _BETA_2 * square + (1 - _BETA_2) * tf.square(gradient)
      done = tf.cast(step + 1, tf.float32)
      direction = (mean / (1 - tf.pow(_BETA_1, done))) / (
        tf.sqrt(square / (1 - tf.pow(_BETA_2, done))) + _EPSILON
      )
      x = tf.clip_by_value(x - rate_at(step, hparams) * direction, 0.0, 1.0)
      return step + 1, x, mean, square

    _, x, _, _ = tf.while_loop(
      lambda step, *_: step < hparams.iterations,
      body,
      (tf.constant(0), start, tf.zeros_like(start), tf.zeros_like(start)),
      parallel_iterations=1,
    )
    return x, objective_of(x, sent, y, seed)

  def invert(sent: Weights, label: Any, seed: Any) -> Inverted:
    sent = tuple(map(tf.convert_to_tensor, sent))
    y, seed = tf.reshape(label, [1]), tf.convert_to_tensor(seed)
    fold_in = tf.random.experimental.stateless_fold_in
    starts = [
      tf.random.stateless_uniform([1, *shape], fold_in(fold_in(seed, _START), k))
      for k in range(hparams.restarts)
    ]
    # Not by `search` itself, which warns where several attacks were made in a process.
    compiled = search.get_concrete_function(sent, y, seed, starts[0])
    found = (compiled(sent, y, seed, start) for start in starts)
    return min(
      (Inverted(x[0].numpy(), float(objective)) for x, objective in found),
      key=lambda one: (math.isnan(one.objective), one.objective),
    )

  return invert


def psnr(picture: NDArray[Any], original: NDArray[Any]) -> float:
  """10 log10(1/MSE) in dB, of pictures in 0..1; infinite where they are equal [paper]."""
  error = np.mean(np.square(np.float64(picture) - np.float64(original)))
  with np.errstate(divide="ignore"):
    return float(-10 * np.log10(error))


def ssim(picture: NDArray[Any], original: NDArray[Any]) -> float:
  """Structural similarity of pictures (H, W, C) in 0..1, -1..1 [recalled, Wang 2004].

  By TensorFlow's window of 11 pixels; the whole of smaller pictures [convention].
  """
  window = min(_SSIM_WINDOW, *original.shape[:2])
  pictures = np.float32(picture), np.float32(original)
  return float(tf.image.ssim(*pictures, max_val=1.0, filter_size=window))
