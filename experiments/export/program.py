"""Takes the model of a run out of its folder, for export.py."""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple, Optional

import numpy as np

from experiments import command_line
from experiments.export import run_model, signatures
from experiments.export.formats import FORMATS
from tff_algos import durable_files
from tff_algos.errors import InputError
from tff_algos.models import to_keras

_NUM_INPUTS = 4


class Request(NamedTuple):
  """What the flags ask for.

  Attributes:
    run: The folder of a run.
    format: A name of `FORMATS`.
    out: The file or folder to write.
    best: Whether to take the best round's model, not the last.
    data_dir: Where the data are, if they are needed; None: where they were.
    cache_dir: Where client files are kept; None: where they were.
  """

  run: str
  format: str
  out: str
  best: bool
  data_dir: Optional[str]
  cache_dir: Optional[str]


def run(request: Request) -> None:
  """Writes the model, reads it again and compares.

  Raises:
    InputError: There is no model, or the format cannot hold it; nothing was written.
    RuntimeError: What was written predicts something else; it was removed.
  """
  suffix, write, read = FORMATS[request.format]
  _check_out(request.out, suffix)
  found = run_model.read(
    request.run,
    best=request.best,
    data_dir=request.data_dir,
    cache_dir=request.cache_dir,
  )
  keras_model = found.keras_model
  if isinstance(keras_model.output, (list, tuple, dict)):
    raise InputError(
      f"The model of {request.run} gives a {type(keras_model.output).__name__} of "
      "outputs, but exports are of one, the logits: take its model.keras, where there is "
      "one, or make one by tff_algos.to_keras."
    )
  last = signatures.last_activation(keras_model)
  if last and request.format != "keras":
    print(
      f"The model ends in a {last}, but is exported as if it gave logits: if its loss "
      "takes probabilities, these are what the export calls logits, its probabilities "
      "are a softmax of them, and training on a device takes another loss.",
      file=sys.stderr,
    )
  inputs = to_keras.example_inputs(keras_model, _NUM_INPUTS)
  expected = keras_model(inputs, training=False).numpy()
  above = os.path.dirname(os.path.abspath(request.out))
  with durable_files.writing(request.out):
    os.makedirs(above, exist_ok=True)
    with durable_files.unfinished_folder(above) as folder:
      unfinished = os.path.join(folder, f"model{suffix}")
      write(keras_model, unfinished)
      off = difference(read(unfinished)(inputs), expected)
      durable_files.sync_tree(unfinished)
      durable_files.replace(unfinished, request.out)
  print(
    f"{found.source} in {request.out}; read again, its logits differ by at most "
    f"{off:.1e} ({to_keras.TOLERANCE:g} is allowed)"
  )


def _check_out(out: str, suffix: str) -> None:
  if not out:
    raise InputError("--out is empty: name a file or a folder.")
  if os.path.exists(out):
    raise InputError(f"{out} is there already: choose another --out.")
  if suffix and not out.endswith(suffix):
    raise InputError(f"--out must end in {suffix} for this format; found {out}.")
  command_line.check_folder_of("--out", out)


def difference(found: np.ndarray, expected: np.ndarray) -> float:
  """The largest of two arrays of logits, as a part of the largest logit, or of 1.

  Args:
    found: Of the exported model.
    expected: Of the run's.

  Raises:
    RuntimeError: It is more than `to_keras.TOLERANCE`.
  """
  part = to_keras.difference(found, expected)
  if part == math.inf:
    raise RuntimeError(
      "The exported model has other NaN or infinite logits than the run's."
    )
  if part > to_keras.TOLERANCE:
    raise RuntimeError(
      f"The exported model's logits differ by {part:.1e} of the largest from the run's; "
      f"{to_keras.TOLERANCE:g} is allowed."
    )
  return part
