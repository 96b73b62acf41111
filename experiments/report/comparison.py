"""Several runs of `train.py` in one table and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from matplotlib.figure import Figure

from experiments import markdown
from experiments.run_folder.reading import Run, labels


def table(runs: Sequence[Run], target: Optional[float]) -> str:
  """The runs as a Markdown table; `target` is in 0..1, or None."""
  head = ["run", "best accuracy", "final", "rounds", "megabytes"]
  if target is not None:
    head += [f"rounds to {100 * target:g} %", "megabytes to it"]
  lines = []
  for run in runs:
    summary = run.summarize()
    megabytes = (summary["bytes_down"] + summary["bytes_up"]) / 1e6
    line = [
      run.name,
      f"{100 * summary['best_accuracy']:.2f} % (round {summary['best_accuracy_round']})",
      f"{100 * summary['final_accuracy']:.2f} %",
      str(summary["rounds"]),
      f"{megabytes:,.0f}",
    ]
    if target is not None:
      reached = [a >= 100 * target for a in run.accuracy]
      if any(reached):
        first = reached.index(True)
        line += [str(run.rounds[first]), f"{run.megabytes[first]:,.0f}"]
      else:
        line += ["not reached", ""]
    lines.append(line)
  return markdown.table(head, lines)


def draw(runs: Sequence[Run], path: str, title: str) -> None:
  """Draws the three panels as a PNG."""
  names = labels(runs)
  # About 150 characters fit into the picture's width; a name has a line before it.
  columns = max(1, 150 // (max(map(len, names)) + 6))
  height = 4.4 + 0.23 * ((len(names) - 1) // columns)
  figure = Figure(figsize=(14, height), layout="constrained")
  grid = figure.add_gridspec(1, 3)
  by_round, bytes_by_round, by_bytes = (figure.add_subplot(grid[k]) for k in range(3))
  for run in runs:
    by_round.plot(run.rounds, run.accuracy, linewidth=1.2)
    bytes_by_round.plot(run.rounds, run.megabytes, linewidth=1.2)
    by_bytes.plot(run.megabytes, run.accuracy, linewidth=1.2)
  by_round.set(xlabel="round", ylabel="test accuracy (%)")
  bytes_by_round.set(xlabel="round", ylabel="megabytes down and up, all clients")
  by_bytes.set(
    xlabel="megabytes down and up, all clients", ylabel="test accuracy (%)", xscale="log"
  )
  for axes in (by_round, bytes_by_round, by_bytes):
    axes.grid(alpha=0.3)
  # Named, as a label that begins with "_" is left out else.
  legend = figure.legend(
    by_round.get_lines(), names, loc="outside lower center", ncols=columns
  )
  for text in (*legend.get_texts(), figure.suptitle(title)):
    text.set_parse_math(False)  # A "$" is a "$".
  figure.savefig(path, dpi=120)
