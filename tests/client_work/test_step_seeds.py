"""Seeds of steps: of all of a seed's bits, and each one's own."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

from tff_algos.client_work import step_seeds

_MOST = 2**31 - 1


def _as_words(seed: tf.Tensor) -> tuple[int, ...]:
  assert seed.dtype == tf.int32 and seed.shape == [2]
  return tuple(seed.numpy().tolist())


def test_seeds_that_tensorflow_folds_into_one_stay_two():
  """As they must where equal noise would do harm."""
  seeds = [tf.constant(seed) for seed in ([0, 8026], [0, 122985])]
  one, other = (_as_words(tf.random.experimental.stateless_fold_in(s, 3)) for s in seeds)
  assert one == other
  for fold in (step_seeds.fold_in, step_seeds.of_step):
    one, other = (_as_words(fold(seed, 3)) for seed in seeds)
    assert one != other


def test_every_number_has_a_seed_of_its_own():
  """Up to the ends of int32, and of a tensor as of a number."""
  seed, numbers = tf.constant([-5, _MOST]), [*range(50), -1, -50, _MOST, -_MOST - 1]
  for fold in (step_seeds.fold_in, step_seeds.of_step):
    found = [_as_words(fold(seed, number)) for number in numbers]
    assert len(set(found)) == len(numbers)
    assert found == [_as_words(fold(seed, tf.constant(n))) for n in numbers]


def test_steps_are_folded_with_their_number_after_what_they_are():
  """A step of one client is not another number's draw of the same client."""
  seed = tf.constant([1, 2])
  steps = {_as_words(step_seeds.of_step(seed, n)) for n in range(10)}
  assert not steps & {_as_words(step_seeds.fold_in(seed, n)) for n in range(10)}


def test_every_bit_of_a_seed_changes_about_half_of_the_bits():
  """Of 64 * 64 even draws the sum is within 5 deviations, sqrt(64 * 64) / 2 each."""
  rng = np.random.default_rng(0)
  start = rng.integers(-(2**31), 2**31, 2).astype(np.int32)

  def bits(seed):
    folded = step_seeds.fold_in(tf.constant(seed), 4).numpy()
    return np.unpackbits(folded.view(np.uint8))

  changed = 0
  for word, bit in itertools.product(range(2), range(32)):
    seed = start.view(np.uint32).copy()
    seed[word] ^= np.uint32(1 << bit)
    changed += int(np.sum(bits(seed.view(np.int32)) != bits(start)))
  assert abs(changed - 64 * 64 / 2) < 5 * 64 / 2
