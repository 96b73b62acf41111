"""How far FedReg moves clients of one class from the start, by how pictures are shifted.

    PYTHONPATH=.:results/fedreg/cifar10 python results/fedreg/cifar10/shifts.py DATA_DIR

From the initial weights ten clients, each of five pictures of one class, take 20 steps by
FedReg's formulas in three ways: `apart`, as in its authors' program, where pseudo data
are of pictures that were shifted and mirrored once, and each step's examples are so
anew; `together`, where a step's examples and pseudo data are shifted and mirrored alike,
as by layers of the network; and `none`. `shifts.csv` gets a row for each client and way:
the length of its update, and of the one without going back.
"""

from __future__ import annotations

import csv
import pathlib
import sys

import authors_pictures
import numpy as np
import tensorflow as tf

from tasks.models import augmentation, resnet
from tff_algos.algorithms import fed_reg
from tff_algos.client_work import tree_math

RATE, GAMMA, STEP, PSEUDO_STEPS, EPOCHS, CLIENTS, SIZE = 0.05, 0.5, 0.1, 10, 20, 10, 5
BLACK = augmentation.CIFAR10.black
TINY = 1e-30


def _shifted(random: np.random.Generator, *pictures: np.ndarray) -> list[np.ndarray]:
  """Each picture shifted by up to four pixels and perhaps mirrored, in all alike."""
  draws = [(*random.integers(0, 9, 2), random.integers(2)) for _ in range(SIZE)]

  def of(picture: np.ndarray, top: int, left: int, mirror: int) -> np.ndarray:
    large = np.broadcast_to(BLACK, (40, 40, 3)).astype(np.float32).copy()
    large[4:36, 4:36] = picture
    cut = large[top : top + 32, left : left + 32]
    return cut[:, ::-1] if mirror else cut

  return [np.stack([of(p, *d) for p, d in zip(each, draws)]) for each in pictures]


def main(data_dir: str) -> None:
  """Trains the clients and writes the table beside this file."""
  tf.keras.utils.set_random_seed(0)
  network = resnet.resnet9((32, 32, 3), 10)
  weights = network.trainable_weights
  start = [np.array(w) for w in weights]
  data = authors_pictures.ONE_CLASS.load_data(data_dir, str(pathlib.Path.home()))
  random = np.random.default_rng(0)

  def loss_of(x: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    probabilities = tf.nn.softmax(network(x))
    return tf.reduce_mean(-tf.reduce_sum(targets * tf.math.log(probabilities + TINY), 1))

  @tf.function(autograph=False)
  def by_weights(x: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      loss = loss_of(x, targets)
    return tape.gradient(loss, weights)

  @tf.function(autograph=False)
  def by_pictures(x: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = loss_of(x, targets)
    return tape.gradient(loss, x)

  def gradient(share: float, now: list[np.ndarray], x: np.ndarray, targets: np.ndarray):
    for weight, first, last in zip(weights, start, now):
      weight.assign(first + share * (last - first))
    return [g.numpy() for g in by_weights(x, targets)]

  def moved(x: np.ndarray, targets: np.ndarray, step: float) -> np.ndarray:
    for weight, first in zip(weights, start):
      weight.assign(first)
    low, high = x.min(), x.max()
    for _ in range(PSEUDO_STEPS):
      x = np.clip(x + step * np.sign(by_pictures(tf.constant(x), targets)), low, high)
    return x

  def update(x: np.ndarray, y: np.ndarray, way: str, goes_back: bool) -> float:
    [base] = _shifted(random, x) if way == "apart" else [x]
    pseudo, perturbed = (moved(base, y, step) for step in (STEP, STEP / 100))
    targets = tf.nn.softmax(network(pseudo)).numpy()
    now = list(start)
    for _ in range(EPOCHS):
      examples, one, other = x, pseudo, perturbed
      if way == "apart":
        [examples] = _shifted(random, x)
      elif way == "together":
        examples, one, other = _shifted(random, x, pseudo, perturbed)
      now = [w - RATE * g for w, g in zip(now, gradient(GAMMA, now, examples, y))]
      if not goes_back:
        continue
      g_s, g_p = gradient(0.5, now, one, targets), gradient(0.5, now, other, y)
      drift = [w - first for w, first in zip(now, start)]
      w_s, w_p = (float(w) for w in fed_reg.regularize(drift, g_s, g_p))
      now = [w - w_s * s - w_p * p for w, s, p in zip(now, g_s, g_p)]
    drift = [w - first for w, first in zip(now, start)]
    return float(tree_math.dot(drift, drift)) ** 0.5

  rows = []
  for client in range(CLIENTS):
    own = random.choice(np.flatnonzero(data.train_y == client), SIZE, replace=False)
    x, y = data.train_x[own], np.eye(10, dtype=np.float32)[data.train_y[own]]
    for way in ("apart", "together", "none"):
      lengths = [update(x, y, way, goes_back) for goes_back in (True, False)]
      row = {"client": client, "way": way}
      row |= {"update": f"{lengths[0]:.4g}", "not_going_back": f"{lengths[1]:.4g}"}
      rows.append(row)
      print(row, flush=True)
  path = pathlib.Path(__file__).with_name("shifts.csv")
  with path.open("w", newline="", encoding="utf-8") as file:
    table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


if __name__ == "__main__":
  if len(sys.argv) != 2:
    sys.exit("shifts.py takes one argument, the folder of CIFAR-10's pictures.")
  main(sys.argv[1])
