"""What is measured before the rounds of a run, and how a folder is gone on with."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import types

import numpy as np
import pytest

from experiments import preparation, runner
from experiments.config import make_config
from experiments.forgetting import meter, program
from experiments.forgetting import records as meter_records
from experiments.forgetting.asked import Asked
from tff_algos.diagnostics import fisher, forgetting
from tff_algos.errors import InputError
from tff_algos.simulation import cohorts

_HPARAMS = {
  "fedavg": dict(epochs=1),
  "fedreg": dict(epochs=1, gamma=1.0, pseudo_steps=2),
  "scaffold": {},
  "fedsgd": {},
  "twafl": {},
}


def _once(function, key=lambda *args: None):
  """The function, called once for each key of its arguments."""
  made = {}

  def call(*args):
    if key(*args) not in made:
      made[key(*args)] = function(*args)
    return made[key(*args)]

  return call


@pytest.fixture(scope="module", autouse=True)
def built_once():
  """All runs here are of one task and its model: each part of them is built once.

  That one built anew goes on the same, tests/binaries says.
  """
  build = _once(
    preparation.build, lambda config, loaded, hparams, _: (config.algorithm, hparams)
  )
  parts = [
    (preparation, "load", _once(preparation.load)),
    *((module, "build", build) for module in (preparation, meter)),
    (forgetting, "build_forgetting", _once(forgetting.build_forgetting)),
    (
      *(forgetting, "build_local_models"),
      _once(forgetting.build_local_models, lambda model, process: process),
    ),
    (fisher, "build_fisher", _once(fisher.build_fisher)),
    (
      *(fisher, "build_pseudo_fisher"),
      _once(fisher.build_pseudo_fisher, lambda model, hparams: hparams),
    ),
  ]
  with pytest.MonkeyPatch.context() as patched:
    for part in parts:
      patched.setattr(*part)
    yield


def _measure(tmp_path, rounds, algorithms=("fedavg", "fedreg"), resume=False):
  asked = Asked(
    driver="fedreg",
    algorithms=algorithms,
    hparams=_HPARAMS,
    fisher=True,
    settings=dict(
      task="own_tasks:good",
      num_clients=12,
      clients_per_round=2,
      rounds=rounds,
      eval_every=2,
      run_dir=str(tmp_path / "run"),
      cache_dir=str(tmp_path / "cache"),
    ),
    held={},
  )
  assert program.run(asked, resume=resume) is False


def test_run_with_a_schedule_is_refused(tmp_path):
  """Its rounds train at other rates than the local models that would be measured."""
  config = make_config(
    "fedavg",
    "own_tasks:good",
    num_clients=12,
    clients_per_round=2,
    rounds=3,
    learning_rate_schedule="step:every=1,factor=0.5",
    run_dir=str(tmp_path / "run"),
    cache_dir=str(tmp_path / "cache"),
  )
  prepared = preparation.prepare(config)
  with pytest.raises(InputError, match="this run has a learning_rate_schedule"):
    meter.Meter(prepared, ["fedavg"], _HPARAMS, fisher=False)


def _read(path: pathlib.Path):
  with open(path, newline="") as f:
    return list(csv.DictReader(f))


def _killed(folder, title):
  raise KeyboardInterrupt


def test_measures_goes_on_and_refuses_other_settings(
  read_table, capsys, monkeypatch, tmp_path
):
  _measure(tmp_path, rounds=3)
  run = tmp_path / "run"
  before = _read(run / "forgetting.csv")
  # In rounds 2 and, the last, 3: two algorithms, two clients of the round before.
  assert [(r["round"], r["algorithm"]) for r in before] == [
    (t, name) for t in "23" for name in ("fedavg", "fedavg", "fedreg", "fedreg")
  ]
  for t in (2, 3):
    places = cohorts.uniform_cohort(12, 2, seed=0, round_num=t - 2)
    clients = [r["client"] for r in before if r["round"] == str(t)]
    assert clients == 2 * [f"client_{place}" for place in places]
  # Both are measured on the same clients and start from the same global model.
  for column in ("client", "loss_before"):
    assert [r[column] for r in before[:2]] == [r[column] for r in before[2:4]]
  found = np.array([float(r["correlation"]) for r in _read(run / "fisher.csv")])
  assert found.shape == (4,) and (np.abs(found) <= 1).all() and (found > 0).any()
  assert capsys.readouterr().out.endswith((run / "table.md").read_text())
  assert [row[0] for row in read_table((run / "table.md").read_text())] == [
    "fedavg",
    "fedreg",
  ]

  # A line of a round that no checkpoint holds is measured anew, not kept.
  with open(run / "forgetting.csv", "a") as f:
    f.write("4,fedavg,nobody,0.0,0.0\r\n5,fed")
  (run / "metrics.csv").write_text("round,loss\none,2.5\n")
  # A folder whose last rounds are not reported yet is not whole.
  with monkeypatch.context() as patched:
    patched.setattr(meter_records, "report", _killed)
    with pytest.raises(KeyboardInterrupt):
      _measure(tmp_path, rounds=4, resume=True)
    assert not (run / "table.md").exists()
  _measure(tmp_path, rounds=4, resume=True)
  assert "Rounds measured: 2, 2 to 4." in (run / "table.md").read_text()
  assert [row["round"] for row in _read(run / "metrics.csv")] == list("1234")
  after = _read(run / "forgetting.csv")
  assert after[:4] == before[:4]
  # Round 3 was measured as the last one, and is no more.
  assert [row["round"] for row in after] == ["2"] * 4 + ["4"] * 4
  assert "nobody" not in {row["client"] for row in after}

  with pytest.raises(InputError, match=r"algorithms\.fedreg={.*}, not None"):
    _measure(tmp_path, rounds=5, algorithms=["fedavg"], resume=True)
  assert _read(run / "forgetting.csv") == after


@pytest.mark.parametrize("this, last", [(3, range(1, 3)), (15, range(5, 15))])
def test_pseudo_data_are_compared_with_the_ten_rounds_before(this, last):
  """The clients of these, and not of the round itself [paper, B.3]."""
  measured = object.__new__(meter.Meter)
  measured._cohort = lambda t: [f"client of {t}"]
  measured._clients = types.SimpleNamespace(path=str)
  variables = types.SimpleNamespace(model=None)
  start = types.SimpleNamespace(
    state=types.SimpleNamespace(variables=variables), client_inputs=["own"]
  )
  asked = []

  def correlate(model, client_input, paths):
    asked.extend(paths)
    return 0.5

  [row] = measured._correlation_rows(this, start, correlate)
  assert sorted(asked) == sorted(f"client of {t}" for t in last)
  assert (row.round, row.client) == (this, f"client of {this}")


def test_what_was_measured_is_not_lost(tmp_path):
  _measure(tmp_path, rounds=4)
  run = tmp_path / "run"

  # By train.py, which measures nothing.
  held = json.loads((run / "config.json").read_text())["flags"]
  kept = {name: held[name] for name in ("run_dir", "cache_dir", "hparams", "eval_every")}
  kept.update(num_clients=12, clients_per_round=2)
  config = make_config("fedreg", "own_tasks:good", rounds=5, **kept)
  before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
  with pytest.raises(InputError, match=r"holds a run of forgetting\.py, whose measurem"):
    runner.run(config, resume=True)

  for name, lines, said in (
    ("forgetting.csv", 4, "4 rounds, but forgetting.csv lacks measurements of round 2: "),
    ("forgetting.csv", 5, "4 rounds, but forgetting.csv lacks measurements of round 4: "),
    ("forgetting.csv", 8, "4 rounds, but forgetting.csv lacks measurements of round 4: "),
    ("fisher.csv", 1, "4 rounds, but fisher.csv lacks measurements of round 2: measure"),
    ("fisher.csv", 4, "4 rounds, but fisher.csv lacks measurements of round 4: measure"),
  ):
    whole = (run / name).read_bytes()
    (run / name).write_bytes(b"".join(whole.splitlines(keepends=True)[:lines]))
    with pytest.raises(InputError, match=said):
      _measure(tmp_path, rounds=6, resume=True)
    (run / name).write_bytes(b"round,x\n1,2\n")
    with pytest.raises(InputError, match="holds a line that forgetting"):
      _measure(tmp_path, rounds=6, resume=True)
    (run / name).write_bytes(whole)
  for path, content in before.items():
    assert path.read_bytes() == content, path


@pytest.mark.thorough
def test_fewer_rounds_may_be_asked_for_than_were_begun(tmp_path):
  """Where it was stopped is the last round then, which was not due before."""
  _measure(tmp_path, rounds=3)
  run = tmp_path / "run"
  kept = {}
  for name in ("forgetting.csv", "fisher.csv"):
    lines = (run / name).read_bytes().splitlines(keepends=True)
    kept[name] = [line for line in lines if not line.startswith(b"3,")]
    assert len(kept[name]) < len(lines)
    (run / name).write_bytes(b"".join(kept[name]))
  _measure(tmp_path, rounds=3, resume=True)
  for name, lines in kept.items():
    assert (run / name).read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
  "name, said",
  [
    ("scaffold", "--driver=scaffold"),
    ("twafl", "^twafl: .* whole model"),
    ("fedsgd", "no local models"),
  ],
)
def test_what_cannot_be_measured_is_refused_and_nothing_is_written(tmp_path, name, said):
  with pytest.raises(InputError, match=said):
    _measure(tmp_path, rounds=2, algorithms=[name])
  assert not os.path.exists(tmp_path / "run")


def test_defect_while_it_is_built_is_not_the_users(monkeypatch, tmp_path):
  def broken(*args):
    raise ValueError("operands could not be broadcast")

  monkeypatch.setattr(forgetting, "build_local_models", broken)
  with pytest.raises(ValueError, match="broadcast") as caught:
    _measure(tmp_path, rounds=2)
  assert not isinstance(caught.value, InputError)
