"""Several runs of `train.py` in one table and one picture."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Optional

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
from experiments.run_folder.reading import Run
from experiments.tables.measures import deviation
from tff_algos import durable_files


def table(
  runs: Sequence[Run], target: Optional[float], last: Optional[int] = None
) -> str:
  """The runs as a Markdown table, repeats in one row.

  Args:
    runs: What to show.
    target: The test accuracy whose first round it gives, 0..1; None for none.
    last: Of how many rounds at a run's end it gives the mean test accuracy; None for
      none. Each run has `last_accuracies` then.
  """
  head = ["run", "best accuracy", "final", "rounds", "megabytes"]
  if target is not None:
    head += [f"rounds to {100 * target:g} %", "megabytes to it"]
  groups = group(runs)
  rows = [_line(each, target) for each in groups]
  if last is not None:
    head.append(f"mean of the last {last} rounds")
    for row, each in zip(rows, groups):
      means = [statistics.mean(last_accuracies(run, last)) for run in each.runs]
      row.append(f"{_spread(means, '.2f')} %")
  return markdown.table(head, rows)


def last_accuracies(run: Run, last: int) -> list[float]:
  """In percent, those measured in its last rounds; [] where it has not so many."""
  first = len(run.records) - last
  return [a for t, a in zip(run.rounds, run.accuracy) if 0 <= first < t]


def _line(repeats: Repeats, target: Optional[float]) -> list[str]:
  """A row: of several runs mean and sample standard deviation."""
  summaries = [run.summarize() for run in repeats.runs]
  best = [100 * s["best_accuracy"] for s in summaries if s["best_accuracy"] is not None]
  final = [100 * s["final_accuracy"] for s in summaries]
  megabytes = [(s["bytes_down"] + s["bytes_up"]) / 1e6 for s in summaries]
  in_round = ""
  if len(repeats.runs) == 1:
    in_round = f" (round {summaries[0]['best_accuracy_round']})"
  done = sorted({s["rounds"] for s in summaries})
  line = [
    repeats.with_seeds(repeats.mean.name),
    f"{_spread(best, '.2f')} %{in_round}",
    f"{_spread(final, '.2f')} %",
    f"{done[0]} to {done[-1]}" if len(done) > 1 else str(done[0]),
    _spread(megabytes, markdown.three_digits(statistics.mean(megabytes))),
  ]
  if target is not None:
    found = [
      (run.rounds[first], run.megabytes[first])
      for run in repeats.runs
      for first in [k for k, a in enumerate(run.accuracy) if a >= 100 * target][:1]
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


def _spread(values: Sequence[float], form: str) -> str:
  """A number, or the mean of several and their deviation."""
  if not values:
    return "nan"
  text = f"{statistics.mean(values):{form}}"
  spread = deviation(values)
  return text if spread is None else f"{text} ± {spread:{form}}"


def draw(runs: Sequence[Run], path: str, title: str, smooth: int = 1) -> None:
  """Draws four panels as a PNG, repeats as their mean with a band of a deviation.

  Args:
    runs: What to draw.
    path: The file.
    title: Of the picture.
    smooth: The measured rounds of a running mean, drawn over accuracy; 1 for none.
  """
  groups = group(runs)
  figure = Figure(figsize=(18, 4.17), layout="constrained")
  by_round, closer, bytes_by_round, by_bytes = figure.subplots(1, 4, squeeze=False)[0]
  # What the legend takes, and what the closer look shows.
  handles, lines = [], []
  for place, repeats in enumerate(groups):
    mean = repeats.mean
    style = line_style(place)
    accuracy = mean.accuracy
    if smooth > 1:
      faint = {**style, "linewidth": 0.6, "alpha": 0.35}
      for axes, places in ((by_round, mean.rounds), (by_bytes, mean.megabytes)):
        axes.plot(places, accuracy, **faint)
      accuracy = running_mean(accuracy, smooth)
    handles += by_round.plot(mean.rounds, accuracy, **style)
    closer.plot(mean.rounds, accuracy, **style)
    lines.append((mean.rounds, accuracy))
    bytes_by_round.plot(mean.rounds, mean.megabytes, **style)
    by_bytes.plot(mean.megabytes, accuracy, **style)
    if repeats.deviation is not None:
      low = [a - d for a, d in zip(mean.accuracy, repeats.deviation)]
      high = [a + d for a, d in zip(mean.accuracy, repeats.deviation)]
      band = band_style(place, len(groups))
      by_round.fill_between(mean.rounds, low, high, **band)
      closer.fill_between(mean.rounds, low, high, **band)
      by_bytes.fill_between(mean.megabytes, low, high, **band)
  look_closer(closer, lines)
  of_rounds = f", mean of {smooth} rounds" if smooth > 1 else ""
  by_round.set(xlabel="round", ylabel=f"test accuracy (%){of_rounds}")
  closer.set(xlabel="round", ylabel=f"the same, closer{of_rounds}")
  bytes_by_round.set(xlabel="round", ylabel="megabytes down and up, all clients")
  by_bytes.set(
    xlabel="megabytes down and up, all clients",
    ylabel=f"test accuracy (%){of_rounds}",
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
