"""Runs that differ in nothing but their seed, as one."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Optional

from experiments.run_folder.folder import FREE_SETTINGS, completed
from experiments.run_folder.reading import Run, labels


class Repeats(NamedTuple):
  """One run, or several of which each has a seed of its own.

  Attributes:
    runs: They.
    mean: The first, with the name of all; its rounds are those that all have measured,
      its values and megabytes the means over the runs.
    deviation: Of the values after each of these rounds, the sample standard deviation;
      None for a single run.
  """

  runs: tuple[Run, ...]
  mean: Run
  deviation: Optional[list[float]]

  def with_seeds(self, name: str) -> str:
    """The name, and of how many seeds several are."""
    many = len(self.runs)
    return name if many == 1 else f"{name} ({many} seeds)"


def group(runs: Sequence[Run]) -> list[Repeats]:
  """Groups runs, in the order of the first of each group.

  Runs of a group have the same settings, hyper-parameters, data, model, own code and
  metric; those that do not say their seed, or have one of another of the group, stand
  by themselves.
  """
  found: dict[str, list[Run]] = {}
  for place, run in enumerate(runs):
    key = _settings(run) if "seed" in run.flags else str(place)
    found.setdefault(key, []).append(run)
  groups: list[Sequence[Run]] = []
  for members in found.values():
    seeds = {run.flags.get("seed") for run in members}
    common = set.intersection(*(set(run.rounds) for run in members))
    whole = len(seeds) == len(members) and common
    groups += [members] if whole else [[run] for run in members]
  names = [_name(members) for members in groups]
  again = collections.Counter(names)
  return [
    _mean(members, name if again[name] == 1 else members[0].name)
    for members, name in zip(groups, names)
  ]


def group_labels(groups: Sequence[Repeats]) -> list[str]:
  """What groups in one picture are called."""
  names = labels([repeats.mean for repeats in groups])
  return [repeats.with_seeds(name) for repeats, name in zip(groups, names)]


def _settings(run: Run) -> str:
  free = {"seed", *(name.partition(".")[2] for name in FREE_SETTINGS)}
  every = completed("flags", run.flags)
  flags = {name: value for name, value in every.items() if name not in free}
  hparams = completed("hparams", run.hparams)
  # Who is held out, and so who trains, is drawn by the seed.
  data = {name: value for name, value in run.data.items() if name != "training"}
  same = [flags, hparams, data, run.model, run.code, run.metric]
  return json.dumps(same, sort_keys=True)


def _name(runs: Sequence[Run]) -> str:
  if len(runs) == 1:
    return runs[0].name
  start = os.path.commonprefix([run.name for run in runs])  # noqa: RUF071 - any text
  name = start.rstrip("0123456789").rstrip("/_-=. ").removesuffix("seed").rstrip("/_-=. ")
  return name or str(runs[0].flags["algorithm"])


def _mean(runs: Sequence[Run], name: str) -> Repeats:
  if len(runs) == 1:
    return Repeats((runs[0],), runs[0], None)
  rounds = sorted(set.intersection(*(set(run.rounds) for run in runs)))
  places = [[run.rounds.index(t) for t in rounds] for run in runs]
  values = list(zip(*([run.values[k] for k in held] for run, held in zip(runs, places))))
  megabytes = zip(*([run.megabytes[k] for k in held] for run, held in zip(runs, places)))
  mean = dataclasses.replace(
    runs[0],
    name=name,
    rounds=rounds,
    values=[statistics.mean(each) for each in values],
    megabytes=[statistics.mean(each) for each in megabytes],
  )
  return Repeats(tuple(runs), mean, [statistics.stdev(each) for each in values])
