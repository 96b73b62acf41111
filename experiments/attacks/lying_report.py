"""Table and picture of what lying clients did, for lying_clients.py."""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments import markdown
from experiments.attacks.lies import NOBODY
from experiments.line_styles import line_style
from tff_algos import durable_files


class Run(NamedTuple):
  """A line of runs.csv.

  Attributes:
    algorithm: Its name.
    defence: The word that names it.
    attack: Likewise; `NOBODY`: nobody lied.
    seed: The run's.
    accuracy: On the test set, 0..1, the mean over the last rounds.
    lies: Messages of liars.
    dropped: Messages that were dropped, of whomever.
    rounds_all_dropped: Rounds of which no message was left.
    seconds: That it took.
  """

  algorithm: str
  defence: str
  attack: str
  seed: int
  accuracy: float
  lies: int
  dropped: int
  rounds_all_dropped: int
  seconds: float

  @property
  def key(self) -> tuple[str, str, str, int]:
    """What it is a run of."""
    return self.algorithm, self.defence, self.attack, self.seed


def write(
  out: str,
  runs: Sequence[Run],
  settings: Mapping[str, Any],
  attacks: Sequence[str],
  note: str,
) -> str:
  """Writes table.csv, accuracy.png and table.md, and gives the text of the last.

  Args:
    out: The folder.
    runs: What is shown.
    settings: Those of all runs.
    attacks: In their order, `NOBODY` too.
    note: What to say beside the numbers, "" for nothing.
  """
  what = (
    f"{settings['task']}{f' ({note})' if note else ''}, {settings['num_clients']} "
    f"clients, {settings['clients_per_round']} a round, {settings['rounds']} rounds, "
    f"{100 * settings['liars']:g} % liars"
  )
  draw(os.path.join(out, "accuracy.png"), runs, attacks, what)
  with durable_files.new_file(os.path.join(out, "table.csv"), "w", newline="") as f:
    lines = _records(runs)
    writer = csv.DictWriter(f, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
  last_rounds = min(settings["last_rounds"], settings["rounds"])
  text = (
    f"# Lying clients\n\nTask {what}.\n\n"
    f"Test accuracy in %, the mean of the last {last_rounds} rounds and of "
    "the seeds:\n\n"
    f"{_table(runs, attacks, _accuracy)}\n\n"
    "Messages that were dropped in a run, and in brackets the rounds of which none was "
    f"left:\n\n{_table(runs, attacks, _dropped)}\n"
  )
  with durable_files.new_file(os.path.join(out, "table.md"), "w") as f:
    f.write(text)
  return text


def _groups(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
  found: dict[tuple[str, str, str], list[Run]] = {}
  for run in runs:
    found.setdefault(run.key[:3], []).append(run)
  return found


def _table(runs: Sequence[Run], attacks: Sequence[str], cell: Any) -> str:
  """Rows of algorithm and defence, a column for each attack."""
  groups = _groups(runs)
  lines = []
  for algorithm, defence in dict.fromkeys((r.algorithm, r.defence) for r in runs):
    own = [groups.get((algorithm, defence, attack), []) for attack in attacks]
    # While runs are missing there may be fewer of some attacks.
    counts = sorted({len(each) for each in own})
    seeds = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else str(counts[0])
    lines.append([algorithm, defence, seeds, *map(cell, own)])
  head = ["algorithm", "defence", "seeds", *(_title(attack) for attack in attacks)]
  return markdown.table(head, lines, right=range(2, len(head)))


def _title(attack: str) -> str:
  return "nobody lies" if attack == NOBODY else attack


def _accuracy(runs: Sequence[Run]) -> str:
  return f"{100 * _mean(runs, 'accuracy'):.1f}" if runs else ""


def _dropped(runs: Sequence[Run]) -> str:
  if not runs:
    return ""
  dropped, rounds = _mean(runs, "dropped"), _mean(runs, "rounds_all_dropped")
  return f"{dropped:.0f}" + (f" ({rounds:.0f})" if rounds else "")


def _mean(runs: Sequence[Run], name: str) -> float:
  return statistics.fmean(getattr(run, name) for run in runs)


def _records(runs: Sequence[Run]) -> list[dict[str, Any]]:
  """One for each algorithm, defence and attack."""
  lines = []
  for (algorithm, defence, attack), own in _groups(runs).items():
    accuracies = [run.accuracy for run in own]
    lines.append(
      dict(
        algorithm=algorithm,
        defence=defence,
        attack=attack,
        runs=len(own),
        accuracy=f"{statistics.fmean(accuracies):.4f}",
        accuracy_min=f"{min(accuracies):.4f}",
        accuracy_max=f"{max(accuracies):.4f}",
        **{
          name: f"{_mean(own, name):.1f}"
          for name in ("lies", "dropped", "rounds_all_dropped")
        },
      )
    )
  return lines


def draw(path: str, runs: Sequence[Run], attacks: Sequence[str], what: str) -> None:
  """Draws a frame for each algorithm and attack: a bar a defence, a dot a run (PNG)."""
  groups = _groups(runs)
  pairs = {run.key[:2] for run in runs}
  algorithms = list(dict.fromkeys(run.algorithm for run in runs))
  defences = list(dict.fromkeys(run.defence for run in runs))
  height = 0.8 + (0.35 + 0.24 * len(defences)) * len(attacks)
  picture = Figure(figsize=(1.9 + 2.5 * len(algorithms), height), layout="constrained")
  frames = picture.subplots(
    len(attacks), len(algorithms), sharex=True, sharey=True, squeeze=False
  )
  for attack, line in zip(attacks, frames):
    for algorithm, axes in zip(algorithms, line):
      for place, defence in enumerate(defences):
        own = groups.get((algorithm, defence, attack))
        if (algorithm, defence) not in pairs:
          axes.text(2, place, "takes no aggregator", color="0.5", va="center", fontsize=7)
        if not own:
          continue
        mean = 100 * _mean(own, "accuracy")
        color = line_style(place)["color"]
        axes.barh(place, mean, color=color, height=0.75, alpha=0.75)
        dots = [100 * run.accuracy for run in own]
        if len(own) > 1:
          axes.plot(dots, [place] * len(dots), "k.", markersize=3)
        # Within its bar; beside one that has no room for it.
        at = 2 if min(dots) > 20 else max(dots) + 3
        axes.text(at, place, f"{mean:.1f}", va="center", fontsize=7)
      axes.set_xlim(0, 100)
      axes.grid(axis="x", alpha=0.3)
      axes.set_axisbelow(True)
    line[0].set_yticks(range(len(defences)), defences, fontsize=8)
    line[-1].yaxis.set_label_position("right")
    line[-1].set_ylabel(_title(attack), fontsize=9)
  for algorithm, top, bottom in zip(algorithms, frames[0], frames[-1]):
    top.set_title(algorithm, fontsize="medium")
    bottom.set_xlabel("test accuracy (%)")
  frames[0][0].invert_yaxis()
  picture.suptitle(what, fontsize="medium").set_parse_math(False)  # A "$" is a "$".
  durable_files.save_picture(picture, path)
