"""What a run leaves on disk: metrics.csv, TensorBoard events, summary and picture."""

from __future__ import annotations

import csv
import glob
import itertools
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tff_algos import durable_files
from tff_algos.simulation import stopping

if TYPE_CHECKING:
  from tff_algos.simulation.loop import Record

METRICS = "metrics.csv"
SUMMARY = "summary.json"
EVENTS = "tensorboard"


class RecordWriter:
  """Writes each round's record as it comes: a row of metrics.csv and TensorBoard events.

  Works as the `on_start` and `on_round` of `loop.simulate`: a resumed run rewrites both
  from its checkpoint, so that rounds done twice stand there once.
  """

  def __init__(self, run_dir: str, columns: Sequence[str], *, with_events: bool = True):
    """Makes a writer.

    Args:
      run_dir: The run's folder, which exists.
      columns: The columns of metrics.csv; a record may lack some of them.
      with_events: Whether there are TensorBoard events.
    """
    self._with_events = with_events
    self._run_dir, self._columns = run_dir, list(columns)
    self._csv: Any = None
    self._events: Any = None

  def start(self, records: list[Record]) -> None:
    """Opens the files and writes the rounds done before."""
    # Not at the top, so that a program which only reads records starts at once.
    import tensorflow as tf

    events = os.path.join(self._run_dir, EVENTS)
    path = os.path.join(self._run_dir, METRICS)
    if self._with_events:
      for old in glob.glob(os.path.join(glob.escape(events), "events.out.tfevents.*")):
        os.remove(old)
      self._events = tf.summary.create_file_writer(events)
    with durable_files.writing(path):
      # Closed by `close`.
      self._csv = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115
      csv.writer(self._csv).writerow(self._columns)
      self._csv.flush()  # The first round may take long, and others read the file.
    for record in records:
      self.write(record)

  def write(self, record: Record) -> None:
    """Adds one round."""
    import tensorflow as tf

    row = ["" if record.get(c) is None else record[c] for c in self._columns]
    with durable_files.writing(self._csv.name):
      csv.writer(self._csv).writerow(row)
      self._csv.flush()
    if self._events is None:
      return
    events = os.path.join(self._run_dir, EVENTS)
    step = self._events.as_default(step=record["round"])
    with durable_files.writing(events), step:
      for name, value in record.items():
        if name != "round" and value is not None:
          tf.summary.scalar(name, float(value))
      self._events.flush()

  def close(self) -> None:
    """Closes the files."""
    if self._csv is not None and not self._csv.closed:
      with durable_files.writing(self._csv.name), self._csv:
        durable_files.sync_file(self._csv)
    if self._events is not None:
      events = os.path.join(self._run_dir, EVENTS)
      with durable_files.writing(events):
        self._events.close()
        durable_files.sync_tree(events)


def read_lines(path: str) -> list[list[str]]:
  """The cells of a CSV's lines, without a last line that was cut short."""
  with open(path, newline="", encoding="utf-8") as f:
    # A last line may have all its cells and the last number lack digits. What else Python
    # takes for the end of a line, as U+2028, may be in a client's name.
    lines = f.read().split("\n")[:-1]
  return list(csv.reader(f"{line}\n" for line in lines))


def rounds_to_target(
  records: Sequence[Record], metric: str, target: float
) -> Optional[int]:
  """The first round at whose end the metric reached the target; None if none did."""
  for record in records:
    if record.get(metric) is not None and record[metric] >= target:
      reached: int = record["round"]
      return reached
  return None


def summarize(
  records: Sequence[Record], *, metric: str, target: Optional[float]
) -> dict[str, Any]:
  """The run in a few numbers, for summary.json.

  Args:
    records: One for each round.
    metric: The test metric: "test_accuracy", or "test_loss", of which less is better.
    target: Its value to reach, or None.

  Returns:
    Best and final value with their rounds, rounds to the target, median seconds of a
    round (the first, which traces, apart), bytes down and up over all clients and
    rounds, in all and by part; clients whose results were not finite, and, where that
    was recorded, who dropped out or were late.
  """
  measured = [r for r in records if r.get(metric) is not None]
  seconds = [r["seconds"] for r in records]
  best = _best(measured, metric)
  final = measured[-1] if measured else None
  name = metric.removeprefix("test_")
  summary = {
    "rounds": len(records),
    f"best_{name}": best and best[metric],
    f"best_{name}_round": best and best["round"],
    f"final_{name}": final and final[metric],
    f"final_{name}_round": final and final["round"],
    "median_seconds_per_round": statistics.median(seconds[1:] or seconds or [0.0]),
    "first_round_seconds": seconds[0] if seconds else None,
    "bytes_down": sum(r["bytes_down"] for r in records),
    "bytes_up": sum(r["bytes_up"] for r in records),
    "bytes_by_part": bytes_by_part(records),
    "clients_dropped": sum(r.get("num_dropped", 0) for r in records),
  }
  for kind in ("dropped_out", "late"):
    counts = [r[f"num_{kind}"] for r in records if f"num_{kind}" in r]
    if counts:
      summary[f"clients_{kind}"] = sum(counts)
  if target is not None:
    summary[f"target_{name}"] = target
    summary["rounds_to_target"] = rounds_to_target(records, metric, target)
  return summary


def _best(measured: Sequence[Record], metric: str) -> Optional[Record]:
  """The first round with the best value of a test metric; None if there is none."""
  # A diverged model's loss may be NaN, which compares with nothing.
  finite = [r for r in measured if math.isfinite(r[metric])]
  name = metric.removeprefix("test_")
  if not finite:
    return None
  return max(finite, key=lambda r: stopping.goodness(name, r[metric]))


def bytes_by_part(records: Sequence[Record]) -> dict[str, dict[str, int]]:
  """Direction, then part, to bytes over all clients and rounds, the most first."""
  by_part: dict[str, dict[str, int]] = {}
  for direction in ("down", "up"):
    prefix = f"bytes_{direction}_"
    names = sorted({name for r in records for name in r if name.startswith(prefix)})
    total = {n[len(prefix) :]: sum(r.get(n, 0) for r in records) for n in names}
    by_part[direction] = dict(sorted(total.items(), key=lambda item: -item[1]))
  return by_part


def write_json(path: str, content: Any) -> None:
  """Writes indented JSON, of NumPy's numbers what Python's would be."""
  with durable_files.new_file(path, "w") as f:
    json.dump(content, f, indent=2, default=np.generic.item)
    f.write("\n")


def finite(content: Any) -> Any:
  """The same with None for each number that JSON does not have, such as NaN."""
  if isinstance(content, Mapping):
    return {key: finite(value) for key, value in content.items()}
  if isinstance(content, (list, tuple)):
    return [finite(value) for value in content]
  is_number = isinstance(content, (float, np.floating))
  return None if is_number and not math.isfinite(content) else content


class _Axis(NamedTuple):
  """How a picture has a test metric."""

  scale: float
  form: str
  label: str


def _axis(metric: str) -> _Axis:
  if metric == "test_accuracy":
    return _Axis(100, "{:.2f} %", "test accuracy (%)")
  return _Axis(1, "{:.4g}", metric.replace("_", " "))


def draw_metric(
  records: Sequence[Record],
  path: str,
  *,
  metric: str,
  title: str,
  target: Optional[float] = None,
) -> None:
  """Draws a test metric, as of `summarize`, against rounds as a PNG.

  Nothing is drawn if it was never measured. A `target` is one of accuracy.
  """
  measured = [r for r in records if r.get(metric) is not None]
  if not measured:
    return
  axis = _axis(metric)
  rounds = [r["round"] for r in measured]
  values = [axis.scale * r[metric] for r in measured]
  figure = Figure(figsize=(7, 4.2), layout="constrained")
  axes = figure.add_subplot()
  axes.plot(rounds, values, color="tab:blue", marker="." if len(rounds) < 60 else "")
  if best := _best(measured, metric):
    value, place = axis.scale * best[metric], best["round"]
    label = f"best {axis.form.format(value)} in round {place}"
    axes.plot(place, value, "o", color="tab:orange", label=label)
  if target is not None:
    reached = rounds_to_target(measured, metric, target)
    when = f"reached in round {reached}" if reached else "not reached"
    label = f"target {100 * target:g} % {when}"
    axes.axhline(100 * target, color="grey", linestyle="--", linewidth=1, label=label)
  if axes.get_legend_handles_labels()[0]:
    axes.legend()  # Where it hides the least of the curve.
  axes.set_title(title).set_parse_math(False)  # A "$" is a "$".
  axes.set(xlabel="round", ylabel=axis.label)
  axes.grid(alpha=0.3)
  axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  durable_files.save_picture(figure, path)


def draw_traffic(
  records: Sequence[Record], path: str, *, metric: str, title: str
) -> None:
  """Draws a PNG: a test metric against megabytes, and the megabytes of each part.

  Parts with less than a thousandth of all bytes share a bar. Nothing is drawn if
  the metric was never measured, or nothing crossed.
  """
  axis = _axis(metric)
  measured = any(r.get(metric) is not None for r in records)
  by_part = bytes_by_part(records)
  if not measured or not any(sum(parts.values()) for parts in by_part.values()):
    return
  figure = Figure(figsize=(10, 4.2), layout="constrained")
  grid = figure.add_gridspec(1, 2, width_ratios=(3, 2))
  curve, bars = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
  sent = list(itertools.accumulate(r["bytes_down"] + r["bytes_up"] for r in records))
  points = [
    (total / 1e6, axis.scale * r[metric])
    for total, r in zip(sent, records)
    if r.get(metric) is not None
  ]
  curve.plot(*zip(*points), color="tab:blue", marker="." if len(points) < 60 else "")
  curve.set(xlabel="megabytes down and up, all clients", ylabel=axis.label)
  curve.grid(alpha=0.3)
  parts = large_parts(by_part, 1e-3 * sent[-1])
  for place, (direction, _, count) in enumerate(reversed(parts)):
    color = {"down": "tab:blue", "up": "tab:orange"}[direction]
    bars.barh(place, count / 1e6, color=color)
    bars.annotate(f" {count / 1e6:,.3g}", (count / 1e6, place), va="center")
  bars.set_yticks(range(len(parts)), [f"{d}: {p}" for d, p, _ in reversed(parts)])
  bars.set_xlim(0, 1.25 * max(count for *_, count in parts) / 1e6)
  bars.set(xlabel="megabytes")
  figure.suptitle(title).set_parse_math(False)  # A "$" is a "$".
  durable_files.save_picture(figure, path)


def large_parts(
  by_part: dict[str, dict[str, int]], least: float
) -> list[tuple[str, str, int]]:
  """(direction, part, bytes), with those of less than `least` bytes as one, "other"."""
  large: list[tuple[str, str, int]] = []
  for direction, parts in by_part.items():
    large += [(direction, p, count) for p, count in parts.items() if count >= least]
    rest = sum(count for count in parts.values() if count < least)
    if rest:
      large.append((direction, "other", rest))
  return large
