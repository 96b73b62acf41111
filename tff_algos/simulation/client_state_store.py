"""Keeps the states of clients between the rounds they take part in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tree

from tff_algos.models.functional import Model
from tff_algos.simulation.array_files import load_structure, save_structure


class ClientStateStore:
  """The clients' states in memory, saved to disk one file for each that changed.

  Only clients that took part hold a state; the others have the initial one.
  """

  def __init__(self, initial_state: Any, model: Optional[Model] = None):
    """Makes a store in which every client has the initial state.

    Args:
      initial_state: What `process.initialize_client()` returned.
      model: The model that is trained, whose weights' names saved states have.
    """
    self._initial, self._model = initial_state, model
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
        save_structure(os.path.join(folder, name), state, self._model)
        self._saved[place] = name
    return dict(self._saved)

  def restore(self, folder: str, files: Mapping[int, str]) -> None:
    """Takes over what `save` returned and wrote."""
    self._saved = dict(files)
    self._states = {
      place: load_structure(os.path.join(folder, name), self._initial)
      for place, name in files.items()
    }
