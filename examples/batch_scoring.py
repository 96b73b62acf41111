"""Scores many inputs with an exported model, batch by batch.

  python examples/batch_scoring.py served/digits/1 inputs.npy scores.csv

The model is what `binaries/export.py --format=saved_model` writes, and `inputs.npy` holds
inputs as the model's data are stored, such as uint8 pictures (n, 8, 8, 1). Nothing but
TensorFlow and NumPy is needed, so the file can be copied to where the scoring is done.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def score(
  model: Any, inputs: np.ndarray, batch_size: int = 256
) -> Iterator[tuple[int, float]]:
  """The class of each input and its probability.

  Args:
    model: What `tf.saved_model.load` gives; it must be kept while this is used.
    inputs: (n, ...) of the model's dtype; also one that is mapped from a file.
    batch_size: How many are in memory at once.

  Raises:
    ValueError: The model takes another dtype or shape, or an input is not finite; this
      is said at once, before any is scored.
  """
  serve = model.signatures["serving_default"]
  [spec] = serve.structured_input_signature[1].values()
  is_dtype = inputs.dtype == spec.dtype.as_numpy_dtype
  if not is_dtype or not spec.shape.is_compatible_with(inputs.shape):
    # A cast would make all pictures in 0..1 black; some wrong shapes TensorFlow scores,
    # at others it ends the process.
    raise ValueError(
      f"The model takes inputs as they are stored, {spec.dtype.name} "
      f"{tuple(spec.shape)}, not {inputs.dtype} {inputs.shape}."
    )
  if spec.dtype.is_floating:
    for start, batch in _batches(inputs, batch_size):
      is_finite = np.isfinite(batch).all(axis=tuple(range(1, batch.ndim)))
      if not is_finite.all():
        row = start + int(is_finite.argmin())
        raise ValueError(f"Row {row} of the inputs has a number that is NaN or infinite.")
  return _score(serve, inputs, batch_size)


def _batches(inputs: np.ndarray, batch_size: int) -> Iterator[tuple[int, np.ndarray]]:
  for start in range(0, len(inputs), batch_size):
    yield start, np.asarray(inputs[start : start + batch_size])


def _score(
  serve: Any, inputs: np.ndarray, batch_size: int
) -> Iterator[tuple[int, float]]:
  for _, batch in _batches(inputs, batch_size):
    found = serve(inputs=tf.constant(batch))
    likeliest = tf.reduce_max(found["probabilities"], axis=-1)
    yield from zip(found["class"].numpy().tolist(), likeliest.numpy().tolist())


def _read(path: str) -> np.ndarray:
  try:
    inputs = np.load(path, mmap_mode="r")
  except (EOFError, ValueError):
    inputs = None
  if not isinstance(inputs, np.ndarray):
    raise ValueError(f"{path} is no array of numbers: give what numpy.save writes.")
  return inputs


def main(argv: Sequence[str]) -> None:
  """Scores a file of inputs into a CSV."""
  parser = argparse.ArgumentParser(description="Scores a file of inputs into a CSV.")
  parser.add_argument("model", help="the folder of a SavedModel")
  parser.add_argument("inputs", help="a .npy")
  parser.add_argument("out", help="the CSV")
  args = parser.parse_args(argv)
  try:
    model = tf.saved_model.load(args.model)
    scores = score(model, _read(args.inputs))
  except (OSError, ValueError) as error:
    sys.exit(str(error))
  with open(args.out, "w", newline="", encoding="utf-8") as f:
    writer = csv.writer(f)
    writer.writerow(["row", "class", "probability"])
    writer.writerows((row, *found) for row, found in enumerate(scores))


if __name__ == "__main__":
  main(sys.argv[1:])
