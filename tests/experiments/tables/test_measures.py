"""The numbers that the papers take from curves, worked out by hand."""

from __future__ import annotations

import math

import pytest

from experiments.run_folder.reading import read_run
from experiments.tables import measures
from experiments.tables.model import Column
from experiments.tables.values import shown, value_of


def _curve(*accuracy: float, rounds=None, round_bytes=1.0, round_seconds=1.0):
  return measures.Curve(
    rounds=list(rounds or range(1, len(accuracy) + 1)),
    accuracy=list(accuracy),
    loss=[0.0] * len(accuracy),
    round_bytes=round_bytes,
    round_seconds=round_seconds,
    seconds=0.0,
    note="",
    machines=[],
  )


def test_best_and_final():
  curve = _curve(0.2, 0.9, 0.7)
  assert measures.best(curve) == 0.9
  assert measures.final(curve) == 0.7
  assert measures.best(_curve(math.nan, 0.1)) == 0.1


def test_first_round_at_counts_the_rounds_that_were_evaluated():
  curve = _curve(0.2, 0.6, 0.5, 0.9, rounds=[10, 20, 30, 40])
  assert measures.first_round_at(curve, 0.6) == 20
  assert measures.first_round_at(curve, 0.61) == 40
  assert measures.first_round_at(curve, 0.91) is None
  assert measures.rounds_to(0.6)(curve, None) == 20


@pytest.mark.parametrize(
  "accuracy, expected",
  [
    # From (1, 0.2) to (2, 0.6): 0.5 at three quarters of the way.
    ((0.2, 0.6), 1.75),
    # Of a fall only the best before it counts: from (3, 0.4) to (4, 0.6).
    ((0.4, 0.1, 0.2, 0.6), 3.5),
    ((0.5, 0.9), 1.0),
    ((0.7, 0.9), 1.0),
    ((0.4, 0.5), 2.0),
    ((0.1, 0.4), None),
    # From (1, 0.4) to (3, 0.6), as round 2 was not measured.
    ((0.4, math.nan, 0.6), 2.0),
    ((math.nan, 0.5), 2.0),
  ],
)
def test_interpolated_rounds(accuracy, expected):
  found = measures.interpolated_rounds_to(0.5)(_curve(*accuracy), None)
  assert found is None if expected is None else math.isclose(found, expected)


def test_interpolation_is_linear_between_distant_rounds():
  curve = _curve(0.0, 1.0, rounds=[10, 20])
  for target in (0.1, 0.25, 0.99):
    found = measures.interpolated_rounds_to(target)(curve, None)
    assert math.isclose(found, 10 + 10 * target)


def test_rounds_to_a_share_of_the_references_best():
  reference = _curve(0.3, 0.8, 0.7)
  curve = _curve(0.3, 0.5, 0.75, 0.8)
  r = [measures.rounds_to_share_of_best(a)(curve, reference) for a in (0.5, 0.9, 1.0)]
  assert r == [2, 3, 4]
  assert measures.rounds_to_share_of_best(1.0)(_curve(0.79), reference) is None
  assert measures.rounds_to_share_of_best(0.5)(curve, None) is None


def test_rounds_to_fedavgs_last_accuracy_and_speedup():
  # FedAvg has its last accuracy before, and still counts with all its rounds.
  fedavg = _curve(0.5, 0.6, 0.4, 0.5)
  fast, never = _curve(0.1, 0.5, 0.6, 0.7), _curve(0.1, 0.2, 0.3, 0.4)
  assert measures.rounds_to_final_of_reference(fedavg, fedavg) == 4
  assert measures.speedup(fedavg, fedavg) == 1
  assert measures.rounds_to_final_of_reference(fast, fedavg) == 2
  assert measures.speedup(fast, fedavg) == 2
  assert measures.speedup(never, fedavg) is None


def test_communication_cost_is_bytes_to_the_target_over_the_references():
  reference = _curve(0.1, 0.5, 0.95, round_bytes=100.0)
  curve = _curve(0.1, 0.95, 0.95, round_bytes=250.0)
  cost = measures.relative_cost(0.95)
  assert cost(reference, reference) == 1
  assert math.isclose(cost(curve, reference), 2 * 250 / (3 * 100))
  assert cost(_curve(0.1), reference) is None
  assert cost(curve, _curve(0.1)) is None


def test_seconds_over_the_references():
  slow, fast = _curve(0.1, round_seconds=3.0), _curve(0.1, round_seconds=2.0)
  assert measures.relative_seconds(slow, fast) == 1.5
  assert measures.relative_seconds(slow, None) is None


def test_what_is_left_is_of_the_rounds_that_all_have():
  first = _curve(0.1, 0.2, 0.3, rounds=[1, 2, 3])._replace(loss=[3.0, 2.0, 1.0])
  second = _curve(0.4, 0.5, rounds=[2, 4])._replace(loss=[7.0, 6.0])
  found = measures.at_common_rounds([first, second])
  assert [(c.rounds, c.accuracy, c.loss) for c in found] == [
    ([2], [0.2], [2.0]),
    ([2], [0.4], [7.0]),
  ]


def test_clients_are_shown_at_the_rounds_that_all_runs_have_asked_them():
  first = _curve(0.1)._replace(clients=[0.1, 0.2, 0.3], client_rounds=[1, 2, 3])
  second = _curve(0.1)._replace(clients=[0.4, 0.5], client_rounds=[2, 4])
  for curves in ([first, second], [second, first]):
    found = measures.at_common_rounds(curves)
    assert [c.client_rounds for c in found] == [[2], [2]]
    assert sorted(c.clients for c in found) == [[0.2], [0.4]]


def test_first_rounds_of_a_run(write_run, tmp_path):
  """The rounds written by hand: accuracies 0.25, none, 0.75, 0.5."""
  data = {"note": "JPEG"}
  machine = {"processor": "Abacus", "cores": 2}
  run = read_run(write_run(tmp_path / "a", data=data, machine=machine))
  curve = measures.first_rounds(run, 3)
  assert (curve.rounds, curve.accuracy) == ([1, 3], [0.25, 0.75])
  assert math.isclose(curve.round_bytes, (1.5e6 + 1.5e6 + 3e6) / 3)
  # The first round traces: the median is of the others.
  assert (curve.round_seconds, curve.seconds) == (1.0, 11.0)
  assert measures.first_rounds(run, 2).round_seconds == 1.0
  assert (curve.note, curve.machines) == ("JPEG", ["Abacus, 2 cores"])
  assert measures.first_rounds(run, 4).rounds == [1, 3, 4]
  assert measures.first_rounds(run, 5) is None


def test_run_of_a_model_without_accuracy_has_its_losses(write_run, tmp_path):
  head = (
    "round,train_loss,test_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
  )
  rounds = ["1,2,0.5,,1,0,5,5", "2,1,,,1,0,5,5", "3,1,0.25,,1,0,5,5", "4,1,nan,,1,0,5,5"]
  run = read_run(write_run(tmp_path / "a", head=head, rounds=rounds))
  curve = measures.first_rounds(run, 4)
  assert (curve.rounds, curve.loss[:2]) == ([1, 3, 4], [0.5, 0.25])
  assert measures.least_loss(curve) == 0.25
  assert measures.best(curve) is measures.final(curve) is None
  assert not measures.has_accuracy([curve])
  assert measures.least_loss(_curve()) is None


def test_seconds_of_a_run_are_of_its_evaluations_too(write_run, tmp_path):
  head = "round,test_accuracy,seconds,evaluation_seconds,bytes_down,bytes_up"
  rounds = ["1,0.5,9.0,4.0,10,10", "2,,1.0,,10,10", "3,0.5,2.0,3.0,10,10"]
  run = read_run(write_run(tmp_path / "a", head=head, rounds=rounds))
  curve = measures.first_rounds(run, 3)
  assert curve.seconds == (9 + 1 + 2) + (4 + 3)
  assert curve.round_seconds == 1.5
  assert measures.first_rounds(run, 2).seconds == (9 + 1) + 4


def test_seconds_of_a_run_are_of_its_evaluations_on_clients_too(write_run, tmp_path):
  head = "round,test_accuracy,seconds,evaluation_seconds,client_evaluation_seconds,"
  head += "bytes_down,bytes_up"
  rounds = ["1,0.5,9.0,4.0,,10,10", "2,,1.0,,5.0,10,10"]
  run = read_run(write_run(tmp_path / "a", head=head, rounds=rounds))
  assert measures.first_rounds(run, 2).seconds == (9 + 1) + 4 + 5


@pytest.mark.parametrize(
  "gpus, expected",
  [
    (0, ""),
    (2, ", 2 GPUs"),
    ([], ""),
    (["Babbage 1", "Babbage 2"], ", Babbage 1, Babbage 2"),
  ],
)
def test_the_machine_of_a_run(write_run, tmp_path, gpus, expected):
  """Runs said how many GPUs there were before they said which."""
  machine = {"processor": "Abacus", "cores": 2, "gpus": gpus}
  run = read_run(write_run(tmp_path / "a", machine=machine))
  assert measures.first_rounds(run, 1).machines == [f"Abacus, 2 cores{expected}"]


@pytest.mark.parametrize(
  "flags, gpu",
  [
    ({}, ", Babbage"),
    ({"devices": ["GPU:0"]}, ", Babbage"),
    ({"devices": ["CPU:0"]}, ""),
    ({"runtime": "local_worker"}, ""),
    ({"runtime": "dask"}, ", Babbage"),
  ],
)
def test_the_machines_of_a_run_are_those_of_all_sessions(write_run, tmp_path, flags, gpu):
  """A GPU counts where it was used: TFF's worker sees none."""
  machines = [{"processor": "Abacus", "cores": 2, "gpus": ["Babbage"]}]
  machines.append({"processor": "Quipu", "cores": 1, "gpus": []})
  sessions = [{"machine": machine} for machine in machines]
  run = read_run(write_run(tmp_path / "a", flags=flags, sessions=sessions))
  found = measures.first_rounds(run, 1).machines
  assert found == [f"Abacus, 2 cores{gpu}", "Quipu, 1 core"]


def test_run_without_test_accuracies_has_those_of_clients(write_run, tmp_path):
  head = "round,test_loss,test_accuracy,client_accuracy_p50,seconds,num_dropped"
  rounds = ["1,,,0.75,1.0,0,10,10", "2,,,,1.0,0,10,10", "3,,,0.5,1.0,0,10,10"]
  folder = write_run(tmp_path / "a", head=f"{head},bytes_down,bytes_up", rounds=rounds)
  curve = measures.first_rounds(read_run(folder), 3)
  assert (curve.rounds, curve.accuracy, curve.clients) == ([], [], [0.75, 0.5])
  assert measures.best(curve) is None and measures.final(curve) is None
  assert measures.best_of_clients(curve) == 0.75
  column = Column("ACC", measures.best, "%", 1)
  assert shown(value_of(column, [(curve, None)]), column) == "not measured"


def test_clients_without_values_are_not_the_best():
  empty = {name: [] for name in ("rounds", "accuracy", "loss", "machines")}
  numbers = dict(round_bytes=1.0, round_seconds=1.0, seconds=0.0, note="")
  curve = measures.Curve(**empty, **numbers, clients=[math.nan, 0.3, 0.2])
  assert measures.best_of_clients(curve) == 0.3


def test_rounds_before_the_first_that_was_measured_are_no_curve(write_run, tmp_path):
  rounds = ["1,1.0,,1.0,0,5,5", "2,1.0,,1.0,0,5,5", "3,1.0,0.5,1.0,0,5,5"]
  run = read_run(write_run(tmp_path / "a", rounds=rounds))
  assert measures.first_rounds(run, 2) is None
  assert measures.first_rounds(run, 3).accuracy == [0.5]
