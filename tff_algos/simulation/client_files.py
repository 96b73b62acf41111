"""Client files that a run cannot read: found before a round, or told of its error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from tff_algos import client_arrays
from tff_algos.client_data import ClientDirectory
from tff_algos.errors import InputError
from tff_algos.models.functional import Model


class _Refused(NamedTuple):
  """What TensorFlow says, on a CPU, of a number of the examples that it cannot use."""

  message: re.Pattern[str]
  part: int  # 0: x, 1: y.
  what: str
  taker: str
  advice: str


_REFUSED = (
  # On a GPU the loss is NaN.
  _Refused(
    re.compile(
      r"label value of (-?\d+) which is outside the valid range of \[(-?\d+), (-?\d+)\)"
    ),
    1,
    "label",
    "the loss",
    "give the model's last layer one output for each class, or number the labels from 0",
  ),
  # On a GPU it has a row of zeros.
  _Refused(
    re.compile(r"indices\[[\d,]*\] = (-?\d+) is not in \[(\d+), (\d+)\)"),
    0,
    "input",
    "the model's embedding",
    "give it an input_dim above the largest input, or number the inputs from 0",
  ),
)


class ClientFiles:
  """The files of a run's clients."""

  def __init__(
    self,
    clients: ClientDirectory,
    model: Optional[Model],
    takes: Optional[list[list[Any]]],
  ):
    """Looks at the examples and their labels, as far as it is known which it takes.

    Args:
      clients: All clients.
      model: What is trained; None where this is not known.
      takes: Dtypes and shapes of the examples that are read; None: not known.

    Raises:
      InputError: They are no `ClientDirectory`, their examples are others than the
        model's, or one has a label for which the model has no output.
    """
    if not isinstance(clients, ClientDirectory):
      raise InputError(
        f"The clients are a {type(clients).__name__}: give a ClientDirectory, which "
        "tff_algos.ClientDirectory makes of their folder."
      )
    if takes is not None:
      client_arrays.check_example(clients, takes)
    labels = model.labels() if model else None
    if labels is not None:
      clients.check_labels(labels)
    self._clients, self._model = clients, model
    self._read: set[str] = set()

  @contextlib.contextmanager
  def read_in(self, round_num: int, clients: Sequence[str]) -> Iterator[None]:
    """Within this some clients' files are read in a round, counted from 1.

    A file is looked at before it is first read; and all are where the round fails, as it
    does in another way on each runtime.

    Raises:
      DamagedError: A file does not hold what was written to it.
      InputError: A worker has no such file; or a client has a label that the loss does
        not take, or an input for which an embedding has no row.
    """
    when = f" in round {round_num}"
    self._clients.check_files([c for c in clients if c not in self._read], when)
    self._read.update(clients)
    try:
      yield
    except Exception as error:
      self._clients.check_files(clients, when, again=True)
      self._check_numbers(str(error), clients, when)
      if isinstance(error, InputError):
        for client in clients:
          if self._clients.path(client) in str(error):
            raise InputError(f"Client {client!r}{when}: {error}") from error
      raise

  def _check_numbers(self, message: str, clients: Sequence[str], when: str) -> None:
    """Raises `InputError` if a label or an input was refused: whose it is."""
    for refused in _REFUSED:
      found = refused.message.search(message)
      if found is None or self._model is None:
        continue
      number, low, high = map(int, found.groups())
      for client in clients:
        examples = self._clients.examples(client, self._model.example_spec)
        if number in examples[refused.part]:
          raise InputError(
            f"The examples of client {client!r} cannot be trained on{when}: "
            f"{self._clients.path(client)} has the {refused.what} {number}, but "
            f"{refused.taker} takes {low}..{high - 1}; {refused.advice}."
          )
