"""Scores many inputs with an exported model, batch by batch.

  python examples/batch_scoring.py served/digits/1 inputs.npy scores.csv

The model is what `binaries/export.py --format=saved_model` writes, and `inputs.npy` holds
inputs as the model's data are stored, such as uint8 pictures (n, 8, 8, 1). Nothing but
TensorFlow and NumPy is needed, so the file can be copied to where the scoring is done.
"""

from __future__ import annotations

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
    ValueError: The model takes another dtype.
  """
  serve = model.signatures["serving_default"]
  [spec] = serve.structured_input_signature[1].values()
  if inputs.dtype != spec.dtype.as_numpy_dtype:
    # A cast would make all pictures in 0..1 black.
    raise ValueError(
      f"The model takes inputs as they are stored, {spec.dtype.name}, not {inputs.dtype}."
    )
  for start in range(0, len(inputs), batch_size):
    batch = tf.constant(np.asarray(inputs[start : start + batch_size]))
    found = serve(inputs=batch)
    likeliest = tf.reduce_max(found["probabilities"], axis=-1)
    yield from zip(found["class"].numpy().tolist(), likeliest.numpy().tolist())


def main(argv: Sequence[str]) -> None:
  """Scores a file of inputs into a CSV."""
  model_path, inputs_path, out = argv
  model = tf.saved_model.load(model_path)
  inputs = np.load(inputs_path, mmap_mode="r")
  with open(out, "w", newline="", encoding="utf-8") as f:
    writer = csv.writer(f)
    writer.writerow(["row", "class", "probability"])
    writer.writerows((row, *found) for row, found in enumerate(score(model, inputs)))


if __name__ == "__main__":
  main(sys.argv[1:])
