"""What the README says is what the project does."""

from __future__ import annotations

import json
import pathlib
import re

from tff_algos.algorithms import registry

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_ROWS = re.findall(
  r"^\| (\w+) \| `(\w+)` \| (.*?) \| (.*?) \| (.*?) ?\|$", _README, re.MULTILINE
)
# The settings by the letters of the table.
_SETTINGS = {
  "A": "fedgg/runs/cifar10_lenet_augmented_beta0.1_",
  "B": "fedreg/runs/mnist_two_class_",
  "C": "fedagg/runs/mnist_cnn_shards2_20_",
  "D": "twafl/runs/mnist_1_",
  "E": "twafl/runs/har_1_",
}

# Of FedAvgM no run has its default momentum.
_CELLS = {"fedavgm": "fedavgm_0.5_nesterov"}


def test_the_table_of_algorithms_is_the_registry():
  assert [row[:4] for row in _ROWS] == [
    (row.name, row.builder.__name__, row.description, row.source)
    for row in registry.ALGORITHMS.values()
  ]


def test_what_was_measured_is_what_the_runs_say():
  """All runs of the five settings, each by its best accuracy."""
  said = {
    (name, setting): float(number)
    for name, *_, measured in _ROWS
    for setting, number in re.findall(r"([A-E]) ([\d.]+)", measured)
  }
  kept = {}
  for setting, start in _SETTINGS.items():
    for name in registry.ALGORITHMS:
      cell = _CELLS.get(name, name)
      summary = _ROOT / f"results/{start}{cell}/seed0/summary.json"
      if summary.exists():
        kept[name, setting] = json.loads(summary.read_text())["best_accuracy"]
  assert said.keys() == kept.keys()
  for key, number in said.items():
    assert abs(number - 100 * kept[key]) < 0.0501, key


def test_every_setting_is_explained():
  assert re.findall(r"\*\*([A-E])\*\* ", _README) == list(_SETTINGS)
