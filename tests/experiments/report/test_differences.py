"""Runs beside the first with their seed, by numbers written by hand."""

from __future__ import annotations

import pytest

from experiments.report import comparison, differences
from experiments.run_folder.reading import read_run
from tff_algos.errors import InputError

_HEAD = "round,test_accuracy,test_loss,seconds,num_dropped,bytes_down,bytes_up"


@pytest.fixture
def run_of(write_run, tmp_path):
  """`(algorithm, seed, accuracies) -> Run`; None where a round was not evaluated."""

  def make(algorithm, seed, accuracies, metric="test_accuracy"):
    rounds = [
      f"{t},{'' if a is None else a},{'' if a is None else 1 - a},1,0,5,5"
      for t, a in enumerate(accuracies, start=1)
    ]
    folder = tmp_path / f"{algorithm}{seed}"
    flags = {"seed": seed}
    write_run(folder, algorithm, rounds=rounds, head=_HEAD, flags=flags)
    return read_run(str(folder)).of_metric(metric)

  return make


def _rows(read_table, runs, *words, measure=comparison.BY_ACCURACY):
  text = differences.table(runs, differences.parse_rounds(words), measure)
  return text.splitlines()[0], read_table(text)


def test_each_is_less_the_first_with_its_seed(run_of, read_table):
  runs = [
    run_of("fedavg", 0, [0.25, 0.5, 0.75, 0.5]),
    run_of("fedavg", 1, [0.125, 0.125, 0.125, 0.125]),
    run_of("fedgg", 1, [0.25, 0.25, 0.5, 0.125]),
    run_of("fedgg", 0, [0.125, 0.625, 0.75, 0.25]),
    run_of("fedprox", 0, [0.25, 0.5, 0.75, 0.5]),
  ]
  said, rows = _rows(read_table, runs, "all", "2-3", "4-4")
  assert said == "Less fedavg with the same seed: test accuracy, in points, means."
  assert rows == [
    # 12.5, 12.5, 37.5 and 0 points.
    ["fedgg1", "3", "1", "0", "+15.62", "+25.00", "+0.00"],
    # -12.5, 12.5, 0 and -25 points.
    ["fedgg0", "1", "1", "2", "-6.25", "+6.25", "-25.00"],
    ["fedprox0", "0", "4", "0", "+0.00", "+0.00", "+0.00"],
  ]


def test_rounds_count_that_both_have_measured(run_of, read_table):
  runs = [
    run_of("fedavg", 0, [0.5, None, 0.5]),
    run_of("fedgg", 0, [0.75, 0.75, 0.25, 0.75]),
  ]
  _, rows = _rows(read_table, runs, "all", "2-9")
  assert rows == [["fedgg0", "1", "0", "1", "+0.00", "-25.00"]]
  with pytest.raises(InputError, match="no values in rounds 4 to 9 of both"):
    _rows(read_table, runs, "4-9")


def test_losses_are_no_points(run_of, read_table):
  runs = [run_of(name, 0, [a], "test_loss") for name, a in (("a", 0.5), ("b", 0.25))]
  measure = comparison.parse_measure(["test_loss"])
  said, rows = _rows(read_table, runs, "all", measure=measure)
  assert said.endswith("test_loss, means.") and rows[0][4] == "+0.25"


def test_what_is_not_comparable_is_a_sentence(run_of, read_table):
  one, again = run_of("fedavg", 0, [0.5]), run_of("fedavg", 1, [0.5])
  with pytest.raises(InputError, match="of two settings and more"):
    _rows(read_table, [one, again], "all")
  with pytest.raises(InputError, match=r"same seed: .*fedgg1 has 1, and fedavg0 no s"):
    _rows(read_table, [one, run_of("fedgg", 1, [0.5])], "all")


@pytest.mark.parametrize("wrong", ["", "every", "3-2", "0-2", "1-", "all,,2-3", "1-2-3"])
def test_rounds_are_all_or_a_first_and_a_last(wrong):
  words = wrong.split(",") if wrong else []
  with pytest.raises(InputError, match=f"differences is {wrong!r}: give all, or rounds"):
    differences.parse_rounds(words)
