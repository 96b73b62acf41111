"""Structures of arrays as .npz files, in which each array has a name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import IO, Any, Optional

import numpy as np
import tree

from tff_algos.errors import InputError
from tff_algos.models.functional import Model

# What `np.savez` calls its own argument.
_TAKEN = "file"


def check_dtypes(value: Any, what: str) -> None:
  """Raises `InputError` where a leaf is of a dtype that these files do not hold.

  Text is held that stays as long as it is, as TFF's names of DP's events do.
  """
  for name, leaf in zip(leaf_names(value), tree.flatten(value)):
    dtype = np.asarray(leaf).dtype
    if dtype.kind not in "biufcSU":  # Such as bfloat16, or strings of several lengths.
      raise InputError(
        f"{name} of {what} is of dtype {dtype}, which checkpoints do not hold: keep it "
        "as another, such as float32, or simulate without a checkpoint_folder."
      )


def save_structure(file: IO[bytes], value: Any, model: Optional[Model] = None) -> None:
  """Writes the leaves of a structure, in their order, under the names of `leaf_names`."""
  np.savez(file, **dict(zip(leaf_names(value, model), tree.flatten(value))))


def load_structure(
  content: IO[bytes], like: Any, what: str, types: Optional[Any] = None
) -> Any:
  """Reads what `save_structure` wrote, by the leaves' order.

  Args:
    content: The file.
    like: A value of the same structure.
    what: Its name, for an error.
    types: The same structure of leaves with a `shape`, None for an axis whose length may
      change; None: all are as long as those of `like`.

  Raises:
    InputError: The file holds other shapes or dtypes than `like`.
  """
  with np.load(content) as file:
    leaves = [file[name] for name in file.files]
  expected = tree.flatten(like)
  typed = expected if types is None else tree.flatten(types)
  shapes = [np.shape(leaf) if types is None else leaf.shape for leaf in typed]
  if len(leaves) != len(expected) or not all(
    leaf.dtype == np.asarray(other).dtype and _fits(leaf.shape, shape)
    for leaf, other, shape in zip(leaves, expected, shapes)
  ):
    raise InputError(
      f"{what} holds other arrays than this run's model and algorithm have: it belongs "
      "to another run, or is of another version of tff_algos."
    )
  return tree.unflatten_as(like, leaves)


def _fits(shape: Sequence[int], allowed: Sequence[Optional[int]]) -> bool:
  return len(shape) == len(allowed) and all(
    limit in (None, size) for size, limit in zip(shape, allowed)
  )


def leaf_names(value: Any, model: Optional[Model] = None) -> list[str]:
  """A name for each leaf: its place in the structure, such as "aggregator/model/0".

  Args:
    value: The structure.
    model: The model whose weights it holds. Arrays that are as many as its weights, of
      their shapes, have the weights' names, such as "variables/model/dense/kernel".

  Returns:
    Names in the order of `tree.flatten`, no two alike.
  """
  shapes, weights = [], []
  if model is not None:
    shapes = [tuple(w.shape) for w in model.initial_weights]
    weights = list(model.weight_names)
  names: list[str] = []
  leaves = tree.flatten_with_path(value)
  for parent, group in itertools.groupby(leaves, key=lambda pair: pair[0][:-1]):
    together = list(group)
    ends = [str(path[-1]) if path else "value" for path, _ in together]
    if [np.shape(leaf) for _, leaf in together] == shapes:
      ends = weights
    names += ["/".join([*map(str, parent), end]) for end in ends]
  taken = {_TAKEN}
  for place, name in enumerate(names):
    if name in taken:
      names[place] = next(
        other for k in itertools.count(1) if (other := f"{name}_{k}") not in taken
      )
    taken.add(names[place])
  return names
