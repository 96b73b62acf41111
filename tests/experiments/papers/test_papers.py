"""The papers' tables and figures: their rows, and that every cell is a run."""

from __future__ import annotations

import math

import pytest

from experiments.config import Config, make_config, make_hparams
from experiments.papers import fedagg, fedavg, fedgg, fedreg, twafl
from experiments.tables.measures import Curve
from experiments.tables.model import Cell, Figure, Table, cells_of
from tasks import registry as tasks_registry
from tasks.datasets import shakespeare
from tff_algos.algorithms import registry as algorithms_registry

_PAPERS = {
  "fedavg": fedavg,
  "fedgg": fedgg,
  "twafl": twafl,
  "fedagg": fedagg,
  "fedreg": fedreg,
}
# Rows of the papers' tables in `numbers`, counted in the papers; FedAvg's rows have
# the two splits side by side, Table 1 two batch sizes as well.
_ROWS = {
  ("fedavg", "1_2nn"): 5 * 4,
  ("fedavg", "1_cnn"): 5 * 4,
  ("fedavg", "2_cnn"): 9 * 2,
  ("fedavg", "2_lstm"): 6 * 2,
  # Three more of CIFAR-10: the first step, and server momentum in two forms.
  ("fedgg", "1"): 3 * 4 + 3,
  ("fedgg", "2"): 3 * 4 + 3,
  ("fedgg", "1_beside"): 3 + 4,  # Ours.
  ("fedgg", "2_beside"): 3 + 4,  # Ours.
  ("fedgg", "3"): 3 * 4 + 3,
  ("fedgg", "4"): 3 * 4 + 3,
  ("twafl", "4"): 3,
  ("twafl", "5"): 2,
  ("twafl", "6"): 3 * 3,
  ("twafl", "7_mnist"): 5 * 5,
  ("twafl", "7_har"): 5 * 5,
  ("fedagg", "3"): 13 * 2 * 5,
  ("fedagg", "3_beside"): (4 * 5 + 6) * 2,  # Ours.
  ("fedagg", "5"): 13 * 5,
  ("fedagg", "6"): 6 * 2,
  ("fedreg", "1"): 3 * 6,
  ("fedreg", "2"): 2 * 6,
  ("fedreg", "3"): 3 * 6,
  ("fedreg", "4"): 4 * 5,
  ("fedreg", "4_mnist"): 5,  # Ours.
  ("fedreg", "C.1"): 4,
  ("fedreg", "C.2"): 2 * 4,
}


@pytest.fixture(scope="module")
def items():
  """Paper to its tables and its figures."""
  return {paper: module.build() for paper, module in _PAPERS.items()}


def _cells(items) -> list[tuple[str, Cell]]:
  return [
    (paper, cell)
    for paper, groups in items.items()
    for group in groups
    for item in group.values()
    for cell in cells_of(item)
  ]


def test_every_table_has_the_papers_rows(items):
  found = {
    (paper, name): len(table.rows)
    for paper, (of_paper, _) in items.items()
    for name, table in of_paper.items()
  }
  assert found == _ROWS


@pytest.mark.parametrize("paper", _PAPERS)
def test_every_cell_is_a_run_that_train_py_takes(items, paper):
  """Task and algorithm are there, and every flag is a setting or a hyper-parameter."""
  settings = set(Config.__dataclass_fields__)
  for owner, cell in _cells(items):
    if owner != paper:
      continue
    task = tasks_registry.get(cell.task)
    algorithm = algorithms_registry.get(cell.algorithm)
    given = {}
    for flag, value in cell.flags.items():
      if flag not in settings:
        common = flag in ("epochs", "batch_size", "learning_rate", "momentum")
        assert common or flag.startswith(f"{cell.algorithm}_"), (cell.name, flag)
        name = flag if common else flag[len(cell.algorithm) + 1 :]
        given[name] = None if value == "inf" else value
    make_hparams(algorithm, task, given)
    options = {k: v for k, v in cell.flags.items() if k in settings}
    make_config(cell.algorithm, cell.task, rounds=cell.rounds, **options)


def test_a_cells_name_says_all_that_it_is(items):
  """Two cells of a paper never share a folder, nor does one have two."""
  known: dict = {}
  for paper, cell in _cells(items):
    if paper == "fedavg":  # A table decides when they end; runs are gone on with.
      cell = cell._replace(rounds=0, flags={**cell.flags, "stop_at": None})
    assert known.setdefault((paper, cell.name), cell) == cell
  settings = [
    (paper, c.algorithm, c.task, c.rounds, str(sorted(c.flags.items())))
    for (paper, _), c in known.items()
  ]
  assert len(set(settings)) == len(settings)


def _tables_and_figures(items):
  for of_paper in items.values():
    tables, figures = ([*group.values()] for group in of_paper)
    yield (
      [table for table in tables if isinstance(table, Table)],
      [figure for figure in figures if isinstance(figure, Figure)],
    )


def test_a_reference_is_of_the_same_data_as_its_row(items):
  """Task, rounds and split, which a seed and clients may be of."""
  found = 0
  names = ("partition", "partition_seed", "num_clients", "clients_per_round")
  for tables, _ in _tables_and_figures(items):
    for row in (row for table in tables for row in table.rows if row.reference):
      for cell in row.cells:
        mine, its = (
          (c.task, c.rounds, [c.flags.get(name) for name in names])
          for c in (cell, row.reference)
        )
        assert mine == its, cell.name
        found += 1
  assert found > 100


def test_a_figures_numbers_of_the_paper_are_those_of_its_tables(items):
  found = 0
  for tables, figures in _tables_and_figures(items):
    printed = {
      row.cells[0].name: row.paper["best accuracy"]
      for table in tables
      for row in table.rows
      if "best accuracy" in row.paper
    }
    for panel in (panel for figure in figures for panel in figure.panels):
      for label, number in panel.paper.items():
        assert number == printed[panel.curves[label].name], (panel.title, label)
        found += 1
  assert found > 50


def test_some_settings_of_the_papers(items):
  """Read off the papers, not off the code."""
  by_name = {(paper, cell.name): cell for paper, cell in _cells(items)}
  cell = by_name["fedreg", "cifar10_uniform_resnet9_fedreg"]
  assert cell.rounds == 240
  assert cell.flags == {
    "fedreg_gamma": 0.5,
    "fedreg_pseudo_step": 0.1,
    "learning_rate": 0.1,
    "loss_epsilon": 1e-30,
  }
  # The weight 0.001 is of |w - x|^2, our mu of half of it.
  assert by_name["fedreg", "mnist_two_class_fedprox"].flags == {
    "fedprox_mu": 0.002,
    "loss_epsilon": 1e-12,
  }
  mg = by_name["fedreg", "emnist_digits_one_class_fedreg_mg"].flags
  assert mg == {
    "fedreg_mg_gamma": 0.4,
    "fedreg_mg_pseudo_step": 0.03,
    "loss_epsilon": 1e-30,
  }
  dp = by_name["fedreg", "covid_ct_cnn10_fedcurv_dpsgd"].flags
  assert dp == {
    "fedcurv_dpsgd_curvature": 0.001,
    "fedcurv_dpsgd_noise_multiplier": 0.001,
    "learning_rate": 0.001,
    "loss_epsilon": 1e-12,
  }
  cell = by_name["fedagg", "cifar10_cnn3_dir0.6_100_fedadam"]
  assert (cell.rounds, cell.flags["learning_rate"]) == (100, 0.1)
  assert cell.flags["partition"] == "dirichlet_equal:beta=0.6"
  assert cell.flags["fedadam_server_learning_rate"] == 0.001
  letters = by_name["fedagg", "emnist_letters_lenet5_iid_20_fedavg"].flags
  assert (letters["batch_size"], letters["clients_per_round"]) == (64, 20)
  cell = by_name["fedagg", "mnist_cnn_shards2_20_feddyn_server_dual_none"]
  assert cell.flags["feddyn_server_dual"] == "none"
  assert cell.flags["learning_rate"] == 0.01
  cell = by_name["twafl", "mnist_1_twafl_base_e"]
  assert (cell.rounds, cell.flags["twafl_base"]) == (200, math.e)
  fewer = by_name["twafl", "mnist_1_twafl_K10_m1"].flags
  assert (fewer["num_clients"], fewer["clients_per_round"]) == (10, 1)
  for name, target in (("7_mnist", 95), ("7_har", 90)):
    first, *_ = items["twafl"][0][name].columns
    reached = Curve([1, 2, 3], [0.89, 0.94, 0.96], [0.0] * 3, 1.0, 1.0, 1.0, "", [])
    assert first.name == f"rounds to {target} %"
    assert first.value(reached, None) == {95: 3, 90: 2}[target]
  cell = by_name["fedgg", "cifar10_lenet_augmented_beta0.1_fedgg"]
  assert (cell.rounds, cell.flags["partition"]) == (100, "dirichlet:beta=0.1,min_size=10")
  of_table = {c.name: c for c in cells_of(items["fedavg"][0]["2_cnn"])}
  cell = of_table["mnist_cnn_iid_C0.1_E5_Binf_lr0.1"]
  assert cell.flags["clients_per_round"] == 10
  assert cell.flags["batch_size"] == "inf"
  assert cell.rounds == math.ceil(1.5 * 179)
  assert cell.flags["stop_at"] == "accuracy:0.99"
  of_table = {c.name: c for c in cells_of(items["fedavg"][0]["2_lstm"])}
  cell = of_table["shakespeare_lstm_noniid_C0.1_E1_Binf_lr1.47"]
  # A tenth of the roles, to the nearest whole number.
  assert cell.flags["clients_per_round"] == (shakespeare.ROLES + 5) // 10


def test_fedregs_accuracies_are_in_percent_and_its_marks_are_shares_of_them(items):
  """0.975 is printed of SGD on MNIST of two classes."""
  table = items["fedreg"][0]["1"]
  row = table.rows[0]
  assert row.labels == ("mnist_two_classes", "sgd")
  best = row.paper["ACC, a best"]
  assert math.isclose(best, 97.5)
  curve = Curve([1, 2, 3], [0, 0, 0], [0.0] * 3, 1.0, 1.0, 1.0, "", [])
  marks = [c for c in table.columns if c.name.startswith("R") and " at " in c.name]
  assert len(marks) == 2
  for column, share in zip(marks, (0.5, 0.9)):
    mark = share * best / 100
    assert column.name == f"R{share} at {100 * mark:g} %"
    around = curve._replace(accuracy=[mark - 1e-3, mark + 1e-9, 1.0])
    assert column.value(around, None) == 2
