"""Keeps the states of clients between the rounds they take part in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree

from tff_algos.errors import InputError


class ClientStateStore:
  """The clients' states in memory, saved to disk one file for each that changed.

  Only clients that took part hold a state; the others have the initial one.
  """

  def __init__(self, initial_state: Any):
    """Makes a store in which every client has the initial state.

    Args:
      initial_state: What `process.initialize_client()` returned.
    """
    self._initial = initial_state
    self._states: dict[int, Any] = {}
    self._saved: dict[int, str] = {}

  def get(self, places: Sequence[int]) -> list[Any]:
    """The states of some clients, by their places."""
    return [self._states.get(place, self._initial) for place in places]

  def put(self, places: Sequence[int], states: Sequence[Any]) -> None:
    """Replaces the states of some clients, in the order of `places`."""
    if not tree.flatten(self._initial):
      return
    for place, state in zip(places, states):
      self._states[place] = state
      self._saved.pop(place, None)

  def save(self, folder: str, tag: str) -> dict[int, str]:
    """Writes the states that changed since the last save; older files stay.

    Args:
      folder: Where the files go; made if it does not exist.
      tag: Part of the new files' names; must differ from save to save.

    Returns:
      Place to file name, for every client that has a state.
    """
    os.makedirs(folder, exist_ok=True)
    for place, state in self._states.items():
      if place not in self._saved:
        name = f"{place:07d}-{tag}.npz"
        np.savez(os.path.join(folder, name), *tree.flatten(state))
        self._saved[place] = name
    return dict(self._saved)

  def restore(self, folder: str, files: Mapping[int, str]) -> None:
    """Takes over what `save` returned and wrote."""
    self._saved = dict(files)
    self._states = {
      place: load_structure(os.path.join(folder, name), self._initial)
      for place, name in files.items()
    }


def load_structure(path: str, like: Any) -> Any:
  """Reads leaves written by `np.savez(path, *tree.flatten(value))`.

  Args:
    path: The file.
    like: A value of the same structure.

  Raises:
    InputError: The file holds other shapes or dtypes than `like`.
  """
  with np.load(path) as file:
    leaves = [file[name] for name in file.files]
  expected = tree.flatten(like)
  found = [(v.dtype, v.shape) for v in leaves]
  if found != [(np.asarray(v).dtype, np.shape(v)) for v in expected]:
    raise InputError(
      f"{path} holds other arrays than this run's model and algorithm have: it belongs "
      "to another run."
    )
  return tree.unflatten_as(like, leaves)
