"""`binaries/forgetting.py`: its table, its flags, and a run that is resumed."""

from __future__ import annotations

import csv
import os
import pathlib

import numpy as np
import pytest
from binaries.command_line import UsageError, parse_hparams

from binaries import experiment, forgetting_meter, forgetting_records

_HPARAMS = {
  "fedavg": dict(epochs=1),
  "fedreg": dict(epochs=1, gamma=1.0),
  "scaffold": {},
  "fedsgd": {},
  "twafl": {},
}

_ROWS = [
  forgetting_records.Row(2, "fedavg", "a", 1.0, 3.0),
  forgetting_records.Row(2, "fedreg", "a", 1.0, 1.5),
  forgetting_records.Row(4, "fedavg", "b", 0.5, 0.25),
  forgetting_records.Row(4, "fedreg", "b", 0.5, 1.0),
]


def test_table_by_hand():
  lines = forgetting_records.table(_ROWS, []).split("\n")
  assert lines[2] == "| fedavg | 0.750 | 1.625 | 0.875 | 0.875 | 50 % |"
  assert lines[3] == "| fedreg | 0.750 | 1.250 | 0.500 | 0.500 | 100 % |"
  assert lines[-1] == "2 rounds were measured, 2 to 4."
  found = [forgetting_records.FisherRow(2, "a", c) for c in (0.0, 0.5, 1.0, float("nan"))]
  assert "0.50 (median), 0.25 to 0.75" in forgetting_records.table(_ROWS, found)


def test_pictures_are_drawn_of_one_and_of_several_rounds(tmp_path):
  for rows in (_ROWS[:2], _ROWS):
    forgetting_records.draw_losses(rows, str(tmp_path / "a.png"), "x")
    forgetting_records.draw_increase(rows, [], str(tmp_path / "b.png"), "x")
  for name in ("a.png", "b.png"):
    assert (tmp_path / name).stat().st_size > 5000


def test_hparams_go_to_all_that_have_them_or_to_the_one_that_is_named():
  words = ["epochs=3", "fedreg:gamma=0.5", "batch_size=inf", "momentum=0.9"]
  assert parse_hparams(words, ["fedavg", "fedreg"]) == {
    "fedavg": dict(epochs=3, batch_size=None, momentum=0.9),
    "fedreg": dict(gamma=0.5, epochs=3, batch_size=None),
  }
  assert parse_hparams([], ["fedreg"]) == {"fedreg": {}}


@pytest.mark.parametrize(
  "word", ["epochs", "epochs=x", "gama=1", "fedprox:epochs=2", "fedavg:gamma=1"]
)
def test_hparams_that_nobody_has_are_named(word):
  with pytest.raises(UsageError, match=word):
    parse_hparams([word], ["fedavg", "fedreg"])


def _config(tmp_path, rounds):
  return experiment.make_config(
    algorithm="fedreg",
    task="digits_cnn",
    num_clients=12,
    clients_per_round=2,
    rounds=rounds,
    eval_every=2,
    hparams=_HPARAMS["fedreg"],
    run_dir=str(tmp_path / "run"),
    cache_dir=str(tmp_path / "cache"),
  )


def _measure(tmp_path, rounds, algorithms=("fedavg", "fedreg"), resume=False):
  experiment.run(
    _config(tmp_path, rounds),
    resume=resume,
    watch=lambda p: forgetting_meter.Meter(p, algorithms, _HPARAMS, fisher=True),
  )


def _read(path: pathlib.Path):
  with open(path, newline="") as f:
    return list(csv.DictReader(f))


def test_measures_goes_on_and_refuses_other_settings(tmp_path):
  _measure(tmp_path, rounds=3)
  run = tmp_path / "run"
  before = _read(run / "forgetting.csv")
  # In rounds 2 and, the last, 3: two algorithms, two clients of the round before.
  assert [(r["round"], r["algorithm"]) for r in before] == [
    (t, name) for t in "23" for name in ("fedavg", "fedavg", "fedreg", "fedreg")
  ]
  # Both are measured on the same clients and start from the same global model.
  for column in ("client", "loss_before"):
    assert [r[column] for r in before[:2]] == [r[column] for r in before[2:4]]
  found = np.array([float(r["correlation"]) for r in _read(run / "fisher.csv")])
  assert found.shape == (4,) and (np.abs(found) <= 1).all() and (found > 0).any()
  text = forgetting_records.report(str(run), "x")
  assert text + "\n" == (run / "table.md").read_text() and "| fedreg |" in text

  # A line of a round that no checkpoint holds is measured anew, not kept.
  with open(run / "forgetting.csv", "a") as f:
    f.write("4,fedavg,nobody,0.0,0.0\r\n5,fed")
  _measure(tmp_path, rounds=4, resume=True)
  after = _read(run / "forgetting.csv")
  assert after[:4] == before[:4]
  # Round 3 was measured as the last one, and is no more.
  assert [row["round"] for row in after] == ["2"] * 4 + ["4"] * 4
  assert "nobody" not in {row["client"] for row in after}

  with pytest.raises(experiment.InputError, match="other algorithms"):
    _measure(tmp_path, rounds=5, algorithms=["fedavg"], resume=True)
  assert _read(run / "forgetting.csv") == after
  (run / "metrics.csv").write_text("round,loss\none,2.5\n")
  with pytest.raises(experiment.InputError, match="no run that can be read"):
    _measure(tmp_path, rounds=5, resume=True)


@pytest.mark.parametrize(
  "name, said",
  [
    ("scaffold", "--driver=scaffold"),
    ("twafl", "^twafl: .* whole model"),
    ("fedsgd", "no local models"),
  ],
)
def test_what_cannot_be_measured_is_refused_and_nothing_is_written(tmp_path, name, said):
  with pytest.raises(experiment.InputError, match=said):
    _measure(tmp_path, rounds=2, algorithms=[name])
  assert not os.path.exists(tmp_path / "run")


def test_bad_flag_gets_one_sentence_and_nothing_is_written(fork_program, tmp_path):
  flags = ["--rounds=1", f"--run_dir={tmp_path / 'run'}"]
  done = fork_program("forgetting.py", *flags, cwd=tmp_path)
  assert done.status == 2 and done.err.count("\n") == 1
  assert "--rounds must be at least 2" in done.err
  assert not list(tmp_path.iterdir())
