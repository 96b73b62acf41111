"""A run on the terminal: its rounds as they come, and signals that stop it."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tqdm

from experiments import command_line
from tff_algos.simulation import loop

# `timeout` signals a program and then its whole group, and `uv run` passes on what it
# gets: one signal may come several times at once.
_SAME_SIGNAL_SECONDS = 1.0


class Progress:
  """A bar on a terminal; a line a round where the output is a file; or nothing."""

  def __init__(self, rounds: int, *, quiet: bool = False):
    self._rounds, self._quiet = rounds, quiet
    self._bar: Any = None

  def start(self, done: int) -> None:
    """Begins after so many rounds."""
    self._bar = tqdm.tqdm(
      total=self._rounds,
      initial=done,
      unit="round",
      disable=self._quiet or None,  # None: where there is no terminal.
      dynamic_ncols=True,
      bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}",
      desc="round",
    )

  def update(self, record: loop.Record) -> None:
    """Shows a round."""
    text = describe(record)
    self._bar.set_postfix_str(text, refresh=False)
    self._bar.update(1)
    if self._bar.disable and not self._quiet:
      print(f"round {record['round']}: {text}", flush=True)

  def close(self) -> None:
    """Ends the bar."""
    if self._bar is not None:
      self._bar.close()


def number(metric: str, value: float) -> str:
  """A metric's value as it is printed: accuracy in percent, others as they are."""
  return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4f}"


def describe(record: loop.Record) -> str:
  """A round in a few words, each number with its name."""
  parts = []
  if "train_loss" in record:
    loss = record["train_loss"]
    is_of_nobody = math.isnan(loss) and record.get("num_accepted") == 0
    parts.append("no client's result" if is_of_nobody else f"train loss {loss:.4f}")
  tested = [k for k, v in record.items() if k.startswith("test_") and v is not None]
  for name in ["test_accuracy"] if "test_accuracy" in tested else tested:
    metric = name.removeprefix("test_")
    parts.append(f"test {metric} {number(metric, record[name])}")
  for group, what in (("client", "clients"), ("held_out", "held-out clients")):
    if f"{group}_accuracy_p50" in record:
      low, middle = (100 * record[f"{group}_accuracy_{k}"] for k in ("p10", "p50"))
      parts.append(
        f"{what}' accuracy: median {middle:.2f} %, 10th percentile {low:.2f} %"
      )
    elif f"{group}_loss_p50" in record:
      middle, high = (record[f"{group}_loss_{k}"] for k in ("p50", "p90"))
      parts.append(f"{what}' loss: median {middle:.4f}, 90th percentile {high:.4f}")
  if "learning_rate" in record:
    parts.append(f"learning rate {record['learning_rate']:.4g}")
  parts.append(f"{record['seconds']:.2f} s/round")
  too_long = record.get("num_too_long", 0)
  record = {**record, "num_dropped": record.get("num_dropped", 0) - too_long}
  for name, what in (
    ("num_dropped", "dropped as not finite"),
    ("num_too_long", "dropped for their norm"),
    ("num_dropped_out", "dropped out"),
    ("num_late", "late"),
  ):
    if record.get(name):
      parts.append(
        f"{record[name]} {'client' if record[name] == 1 else 'clients'} {what}"
      )
  return ", ".join(parts)


_outer: list[Callable[[], bool]] = []


@contextlib.contextmanager
def stopping_on_signal() -> Iterator[Callable[[], bool]]:
  """Has Ctrl-C, SIGTERM and SIGHUP end the run after its round; a second one ends it now.

  Within another it is that one: of several runs, a signal in the last round of one ends
  them all.
  """
  if _outer:
    yield _outer[-1]
    return
  stop = threading.Event()
  first = 0.0

  def handle(number: int, frame: Any) -> None:
    nonlocal first
    del number, frame
    if stop.is_set():
      if time.monotonic() - first < _SAME_SIGNAL_SECONDS:
        return
      raise KeyboardInterrupt
    first = time.monotonic()
    stop.set()
    print(
      "\nstopping after this round; once more to stop now, which may lose the rounds "
      "since the last checkpoint",
      file=sys.stderr,
    )

  _outer.append(stop.is_set)
  try:
    with command_line.handling_stops(handle):
      yield stop.is_set
  finally:
    _outer.pop()
