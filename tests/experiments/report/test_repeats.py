"""Which runs are repeats of one another, and their means by hand."""

from __future__ import annotations

import pytest

from experiments.report import comparison
from experiments.report.repeats import group
from experiments.run_folder.reading import read_run

_FIRST = ("1,1,0.2,1,0,1000000,0", "2,1,0.6,1,0,1000000,0")
_SECOND = ("1,1,0.4,1,0,3000000,0", "2,1,0.8,1,0,1000000,0", "3,1,0.7,1,0,1000000,0")


def _run(write_run, folder, name, rounds=_FIRST, hparams=(), **flags):
  flags = {"run_dir": name, "rounds": len(rounds), **flags}
  folder = folder / name
  return read_run(write_run(folder, rounds=rounds, flags=flags, hparams=dict(hparams)))


def test_runs_of_other_seeds_are_one_row_of_mean_and_deviation(
  write_run, read_table, tmp_path
):
  runs = [
    _run(write_run, tmp_path, "a_seed0", _FIRST, seed=0),
    _run(write_run, tmp_path, "a_seed1", _SECOND, seed=1),
  ]
  # Best 60 and 80, final 60 and 70: deviations 20 and 10 over sqrt 2. 2 and 5 MB.
  row = ["a (2 seeds)", "70.00 ± 14.14 %", "65.00 ± 7.07 %", "2 to 3", "3.50 ± 2.12"]
  assert read_table(comparison.table(runs, None)) == [row]
  # At 0.6 after the rounds 2 and 2, 2 and 4 MB; at 0.7 after one's round 2.
  assert read_table(comparison.table(runs, 0.6)) == [[*row, "2.0 ± 0.0", "3.00 ± 1.41"]]
  assert read_table(comparison.table(runs, 0.7)) == [[*row, "2.0 (1 of 2)", "4.00"]]
  assert read_table(comparison.table(runs, 0.9)) == [[*row, "not reached", ""]]


def test_their_curve_is_the_mean_after_rounds_that_all_have(write_run, tmp_path):
  runs = [
    _run(write_run, tmp_path, "a_seed0", _FIRST, seed=0),
    _run(write_run, tmp_path, "a_seed1", _SECOND, seed=1),
  ]
  [repeats] = group(runs)
  assert repeats.mean.rounds == [1, 2]
  assert repeats.mean.values == pytest.approx([30, 70])
  assert repeats.mean.megabytes == pytest.approx([2, 3])
  assert repeats.deviation == pytest.approx([200**0.5, 200**0.5])


def test_megabytes_of_their_mean_are_those_of_its_rounds(write_run, tmp_path):
  """The one has not measured round 1, so that the means are of rounds 2 and 3."""
  later = ("1,1,,1,0,1000000,0", "2,1,0.6,1,0,1000000,0", "3,1,0.8,1,0,1000000,0")
  runs = [
    _run(write_run, tmp_path, "a_seed0", later, seed=0),
    _run(write_run, tmp_path, "a_seed1", _SECOND, seed=1),
  ]
  [repeats] = group(runs)
  assert repeats.mean.rounds == [2, 3]
  assert repeats.mean.megabytes == pytest.approx([3, 4])  # 2 and 3, 4 and 5.


def test_a_run_of_an_older_version_repeats_one_that_names_more(write_run, tmp_path):
  """What it does not name it did not do; FedDyn's dual was the mean."""
  old = _run(write_run, tmp_path, "a_seed0", seed=0)
  new = dict(dropout=0.0, mixed_precision=False, aggregator=None)
  dual = {"server_dual": "mean"}
  found = group([old, _run(write_run, tmp_path, "a_seed1", seed=1, hparams=dual, **new)])
  assert [r.mean.name for r in found] == ["a"]
  other = [dict(mixed_precision=True), dict(hparams={"server_dual": "sum"})]
  for k, given in enumerate(other, 2):
    run = _run(write_run, tmp_path, f"b_seed{k}", seed=k, **given)
    assert len(group([old, run])) == 2


@pytest.mark.parametrize(
  "other",
  [
    dict(seed=1, dropout=0.5),
    dict(seed=1, hparams={"mu": 2}),
    dict(seed=0),  # The same run again is no repeat.
  ],
)
def test_other_runs_stand_by_themselves(write_run, tmp_path, other):
  given = dict(dropout=0.0, hparams={"mu": 1}, seed=0)
  first = _run(write_run, tmp_path, "a", **given)
  second = _run(write_run, tmp_path, "b", **{**given, **other})
  assert [r.mean.name for r in group([first, second])] == ["a", "b"]
  assert [r.deviation for r in group([first, second])] == [None, None]


def test_runs_of_other_models_stand_by_themselves(write_run, tmp_path):
  """A task of one's own may have changed between the seeds."""
  runs = [
    read_run(write_run(tmp_path / layer, flags=dict(seed=k), model={"layers": [layer]}))
    for k, layer in enumerate(("relu", "tanh"))
  ]
  assert len(group(runs)) == 2


@pytest.mark.parametrize("heading", ["algorithm", "task"])
def test_runs_of_other_own_code_stand_by_themselves(write_run, tmp_path, heading):
  runs = [
    read_run(write_run(tmp_path / code, flags=dict(seed=k), **{heading: {"mine": code}}))
    for k, code in enumerate("ab")
  ]
  assert len(group(runs)) == 2


def test_clients_that_the_seed_holds_out_do_not_matter(write_run, tmp_path):
  runs = []
  for seed in range(2):
    data = {"clients": 5, "training": {"num_clients": 3, "num_examples": 30 + seed}}
    folder = write_run(tmp_path / f"seed{seed}", flags=dict(seed=seed), data=data)
    runs.append(read_run(folder))
  assert len(group(runs)) == 1


def test_settings_that_change_no_number_do_not_matter(write_run, tmp_path):
  first = _run(write_run, tmp_path, "x/seed0", seed=0, threads=1)
  second = _run(write_run, tmp_path, "x/seed1", seed=1, threads=2)
  assert len(group([first, second])) == 1


def test_groups_without_a_name_of_their_own_are_told_apart(write_run, tmp_path):
  runs = [
    _run(write_run, tmp_path, name, seed=k % 2, dropout=0.5 * (k // 2))
    for k, name in enumerate(("p", "q", "r", "s"))
  ]
  assert [each.mean.name for each in group(runs)] == ["p", "r"]
