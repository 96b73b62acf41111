"""Several runs of `train.py` in one table and one picture."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Optional

from matplotlib.figure import Figure

from experiments import markdown
from experiments.curves import (
  add_legend_below,
  look_closer,
  mark_logarithms,
  mark_rounds,
  running_mean,
)
from experiments.line_styles import band_style, line_style
from experiments.report.repeats import Repeats, group, group_labels
from experiments.run_folder.reading import Run, is_accuracy
from experiments.tables.measures import deviation
from tff_algos import durable_files
from tff_algos.errors import InputError


class Measure(NamedTuple):
  """What runs are compared by.

  Attributes:
    columns: Of metrics.csv; of each run the first that it has a number in.
    is_accuracy: Whether they are shares, else numbers of any size.
    less_is_better: Whether the best is the least.
  """

  columns: tuple[str, ...]
  is_accuracy: bool
  less_is_better: bool

  @property
  def of_accuracy(self) -> bool:
    """Whether the best is the highest accuracy."""
    return self.is_accuracy and not self.less_is_better

  @property
  def words(self) -> str:
    """What it is called."""
    return " or ".join(self.columns) if self != BY_ACCURACY else "test accuracy"

  def of(self, run: Run) -> Run:
    """The run with its values of the first column that has some; it may have none."""
    found = [run.of_metric(column) for column in self.columns]
    return next((each for each in found if each.rounds), found[0])


def parse_measure(metrics: Sequence[str]) -> Measure:
  """Reads what `--metric` names.

  Args:
    metrics: Columns of metrics.csv; "-" before one says that less of it is better, as it
      is of every loss.

  Raises:
    InputError: It is none, or they are of several kinds.
  """
  kinds = {
    (is_accuracy(metric), metric.startswith("-") or "loss" in metric)
    for metric in metrics
  }
  if len(kinds) != 1 or not all(metric.removeprefix("-") for metric in metrics):
    raise InputError(
      f"metric is {','.join(metrics)!r}: give one column of metrics.csv, such as "
      "test_loss, or several that are all accuracies, all losses or the like."
    )
  return Measure(tuple(m.removeprefix("-") for m in metrics), *kinds.pop())


BY_ACCURACY = parse_measure(["test_accuracy"])


def table(
  runs: Sequence[Run],
  target: Optional[float],
  last: Optional[int] = None,
  measure: Measure = BY_ACCURACY,
) -> str:
  """The runs as a Markdown table, repeats in one row.

  Args:
    runs: What to show, as `measure.of` gives them.
    target: The accuracy whose first round it gives, 0..1; None for none.
    last: Of how many rounds at a run's end it gives the mean; None for none. Each run
      has `last_values` then.
    measure: What they are compared by.
  """
  best = "best accuracy" if measure.of_accuracy else "best"
  head = ["run", best, "final", "rounds", "megabytes"]
  if target is not None:
    head += [f"rounds to {100 * target:g} %", "megabytes to it"]
  groups = group(runs)
  rows = [_line(each, target, measure) for each in groups]
  if last is not None:
    head.append(f"mean of the last {last} rounds")
    for row, each in zip(rows, groups):
      means = [statistics.mean(last_values(run, last)) for run in each.runs]
      row.append(_value(means, measure))
  if measure != BY_ACCURACY:
    head.append("by")
    for row, each in zip(rows, groups):
      row.append(each.mean.metric)
  return markdown.table(head, rows)


def last_values(run: Run, last: int) -> list[float]:
  """Those measured in its last rounds; [] where it has not so many."""
  first = len(run.records) - last
  return [a for t, a in zip(run.rounds, run.values) if 0 <= first < t]


def _line(repeats: Repeats, target: Optional[float], measure: Measure) -> list[str]:
  """A row: of several runs mean and sample standard deviation."""
  summaries = [run.summarize() for run in repeats.runs]
  choose = min if measure.less_is_better else max
  best = [choose(run.values) for run in repeats.runs]
  megabytes = [(s["bytes_down"] + s["bytes_up"]) / 1e6 for s in summaries]
  in_round = ""
  if len(repeats.runs) == 1:
    [run] = repeats.runs
    in_round = f" (round {run.rounds[run.values.index(best[0])]})"
  done = sorted({s["rounds"] for s in summaries})
  line = [
    repeats.with_seeds(repeats.mean.name),
    _value(best, measure) + in_round,
    _value([_final(run) for run in repeats.runs], measure),
    f"{done[0]} to {done[-1]}" if len(done) > 1 else str(done[0]),
    _spread(megabytes, markdown.three_digits(statistics.mean(megabytes))),
  ]
  if target is not None:
    found = [
      (run.rounds[first], run.megabytes[first])
      for run in repeats.runs
      for first in [k for k, a in enumerate(run.values) if a >= 100 * target][:1]
    ]
    if not found:
      return [*line, "not reached", ""]
    rounds, to_it = (list(column) for column in zip(*found))
    missing = len(found) < len(repeats.runs)
    count = f" ({len(found)} of {len(repeats.runs)})" if missing else ""
    digits = ".0f" if len(repeats.runs) == 1 else ".1f"
    line += [
      _spread(rounds, digits) + count,
      _spread(to_it, markdown.three_digits(statistics.mean(to_it))),
    ]
  return line


def _final(run: Run) -> float:
  """What was measured last, which need not be finite."""
  values = [r[run.metric] for r in run.records if run.metric in r]
  return (100.0 if is_accuracy(run.metric) else 1.0) * values[-1]


def _value(values: Sequence[float], measure: Measure) -> str:
  return f"{_spread(values, '.2f')} %" if measure.is_accuracy else _spread(values, ".4g")


def _spread(values: Sequence[float], form: str) -> str:
  """A number, or the mean of several and their deviation."""
  text = f"{statistics.mean(values):{form}}"
  spread = deviation(values)
  return text if spread is None else f"{text} ± {spread:{form}}"


def draw(
  runs: Sequence[Run],
  path: str,
  title: str,
  smooth: int = 1,
  measure: Measure = BY_ACCURACY,
) -> None:
  """Draws four panels as a PNG, repeats as their mean with a band of a deviation.

  Args:
    runs: What to draw, as `measure.of` gives them.
    path: The file.
    title: Of the picture.
    smooth: The measured rounds of a running mean, drawn over the values; 1 for none.
    measure: What they are compared by.
  """
  groups = group(runs)
  figure = Figure(figsize=(18, 4.17), layout="constrained")
  by_round, closer, bytes_by_round, by_bytes = figure.subplots(1, 4, squeeze=False)[0]
  # What the legend takes, and what the closer look shows.
  handles, lines = [], []
  for place, repeats in enumerate(groups):
    mean = repeats.mean
    style = line_style(place)
    if len(mean.rounds) == 1:  # Of one point there is no line.
      style = {**style, "marker": "o"}
    values = mean.values
    if smooth > 1:
      faint = {**style, "linewidth": 0.6, "alpha": 0.35}
      for axes, places in ((by_round, mean.rounds), (by_bytes, mean.megabytes)):
        axes.plot(places, values, **faint)
      values = running_mean(values, smooth)
    handles += by_round.plot(mean.rounds, values, **style)
    closer.plot(mean.rounds, values, **style)
    lines.append((mean.rounds, values))
    bytes_by_round.plot(mean.rounds, mean.megabytes, **style)
    by_bytes.plot(mean.megabytes, values, **style)
    if repeats.deviation is not None:
      low = [a - d for a, d in zip(mean.values, repeats.deviation)]
      high = [a + d for a, d in zip(mean.values, repeats.deviation)]
      band = band_style(place, len(groups))
      by_round.fill_between(mean.rounds, low, high, **band)
      closer.fill_between(mean.rounds, low, high, **band)
      by_bytes.fill_between(mean.megabytes, low, high, **band)
  look_closer(closer, lines, is_accuracy=measure.is_accuracy)
  of_rounds = f", mean of {smooth} rounds" if smooth > 1 else ""
  named = measure.columns[0].replace("_", " ")
  if len(measure.columns) > 1:  # The table says which it is of each run.
    named = "accuracy" if measure.is_accuracy else "measure"
  if measure.is_accuracy:
    named += " (%)"
  by_round.set(xlabel="round", ylabel=named + of_rounds)
  closer.set(xlabel="round", ylabel=f"the same, closer{of_rounds}")
  bytes_by_round.set(xlabel="round", ylabel="megabytes down and up, all clients")
  by_bytes.set(
    xlabel="megabytes down and up, all clients",
    ylabel=named + of_rounds,
    xscale="log",
  )
  for axes in (by_round, closer, bytes_by_round):
    mark_rounds(axes, max(t for rounds, _ in lines for t in rounds))
  mark_logarithms(by_bytes)
  for axes in (by_round, closer, bytes_by_round, by_bytes):
    axes.grid(alpha=0.3)
  add_legend_below(figure, handles, group_labels(groups))
  figure.suptitle(title).set_parse_math(False)  # A "$" is a "$".
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  durable_files.save_picture(figure, path)
