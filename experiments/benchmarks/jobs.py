"""What can be measured, by name; free of TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BARE, TFF = "bare", "tff"
# in_process over data sets instead of files.
DATASETS = "datasets"
# in_process with a network that computes in bfloat16.
MIXED_PRECISION = "mixed_precision"
BASELINE = "fedavg"
FEDAVG_ONLY = (BARE, TFF)


class Job(NamedTuple):
  """What one process measures: the first arguments of `frameworks.build`."""

  workload: str
  framework: str
  algorithm: str

  def __str__(self):
    return "-".join(self)


def jobs_of(workload: str, names: Sequence[str], algorithms: Sequence[str]) -> list[Job]:
  """The measurements of one workload."""
  return [
    Job(workload, framework, algorithm)
    for framework in names
    for algorithm in ([BASELINE] if framework in FEDAVG_ONLY else algorithms)
  ]
