"""The table of tasks, and those of a user's own."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
import subprocess
import sys
import textwrap
import traceback

import numpy as np
import pytest

from tasks import registry
from tff_algos import partitions
from tff_algos.algorithms import registry as algorithms_registry
from tff_algos.client_work.local_sgd import WeightedLocalSgd
from tff_algos.errors import InputError

every_task = pytest.mark.parametrize("name", registry.TASKS)
# Clients as the data have them: a role, a source or a user each, as the papers count.
_GROUPS = {"shakespeare": 1146, "covid": 32, "landmarks": 1262}

# Training examples of the originals, by what the tasks' names begin with. TFDS has fewer
# of EMNIST's letters than the 124,800 that FedAgg counts.
_TRAIN = {
  "digits": 1437,
  "mnist": 60_000,
  "emnist_digits": 240_000,
  "emnist_letters": 88_800,
  "svhn": 73_257,
  "cifar10": 50_000,
  "cifar100": 50_000,
  "har": 7352,
}


# --- The rows -----------------------------------------------------------------------


def test_rows_are_found_by_their_names():
  for name, row in registry.TASKS.items():
    assert registry.get(name) is row
    assert row.name == name


@pytest.mark.parametrize(
  "name, expected",
  [
    # E, B, learning rate and momentum: FedGG, Section 4.1; a public reproduction of
    # TWAFL; FedAgg, Section VII and Table IV.
    ("svhn_mlp", (5, 64, 0.01, 0.9)),
    ("cifar100_vgg16", (5, 64, 0.01, 0.9)),
    ("mnist_cnn_twafl", (5, 10, 0.01, 0.5)),
    ("har_lstm", (5, 10, 0.01, 0.5)),
    ("emnist_letters_lenet5", (3, 64, 0.1, 0.0)),
  ],
)
def test_local_training_is_that_of_the_papers(name, expected):
  hparams = registry.TASKS[name].hparams
  names = ("epochs", "batch_size", "learning_rate", "momentum")
  assert tuple(hparams[n] for n in names) == expected


@every_task
def test_defaults_are_possible(name):
  row = registry.TASKS[name]
  num_clients = row.num_clients or _GROUPS[name.split("_")[0]]
  assert 1 <= row.clients_per_round <= num_clients
  assert row.rounds >= 1
  assert row.target_accuracy is None or 0 < row.target_accuracy < 1
  assert row.description
  assert "\n" not in row.description


@functools.cache
def _default_sizes(name: str) -> list[int]:
  row = registry.TASKS[name]
  if row.num_clients is None:
    assert row.partition == "natural"
    return []
  data = next(key for key in _TRAIN if name.startswith(f"{key}_"))
  labels = np.arange(_TRAIN[data]) % 10
  split = partitions.partition(row.partition, labels, row.num_clients, 0)
  return list(map(len, split.clients))


@every_task
def test_default_split_gives_every_client_examples(name):
  sizes = _default_sizes(name)
  assert len(sizes) == (registry.TASKS[name].num_clients or 0)
  assert min(sizes, default=1) >= 1


@pytest.mark.parametrize(
  "name, size",
  [
    ("emnist_digits_one_class", 24),
    ("cifar10_uniform_resnet9", 5),
    ("cifar10_one_class_resnet9", 5),
    ("cifar100_resnet9", 1),
    ("cifar100_vit", 1),
  ],
)
def test_default_split_has_the_sizes_of_fedreg(name, size):
  """Section 4.1."""
  assert set(_default_sizes(name)) == {size}


@every_task
@pytest.mark.parametrize("algorithm", algorithms_registry.ALGORITHMS)
def test_default_hyper_parameters_are_taken_by_every_algorithm(name, algorithm):
  cls = algorithms_registry.get(algorithm).hparams_class
  given = registry.TASKS[name].hparams
  assert set(given) >= {"epochs", "batch_size", "learning_rate", "momentum"}
  WeightedLocalSgd(**given)
  cls(**{k: v for k, v in given.items() if k in cls.__dataclass_fields__})


@pytest.mark.parametrize(
  "name, nearest",
  [
    ("digits", "digits_cnn"),
    ("mnist_lin", "mnist_linear"),
    ("cifar_lenet", "cifar10_lenet"),
  ],
)
def test_unknown_name_gets_the_nearest(name, nearest):
  with pytest.raises(ValueError, match=f"no task '{name}': did you mean '{nearest}'"):
    registry.get(name)


# --- Tasks of a user's own by their names -------------------------------------------


@pytest.fixture
def own_folder(tmp_path, monkeypatch) -> pathlib.Path:
  """The folder one is in, with modules of tasks; Python does not look there yet."""
  sources = {
    "tasks_of_mine": """
      from tasks import registry

      def load_data(data_dir, cache_dir):
        import numbers_of_mine
        return numbers_of_mine.ANSWER

      linear = registry.get("mnist_linear")._replace(name="mine")
      own_data = linear._replace(load_data=load_data)
      not_a_task = 7
    """,
    "numbers_of_mine": "ANSWER = 42",
    "broken_import": "import no_such_module",
    "broken_name": "task = undefined_name",
    "broken_syntax": "task = (",
    "broken_lines": "raise RuntimeError('first line.\\n  second line.')",
    "broken_task": "from tasks import registry; registry.get('digits')",
    "numpy": "raise RuntimeError('a file here hides a library')",
  }
  folder = tmp_path / "mine"
  folder.mkdir()
  for name, source in sources.items():
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
  monkeypatch.chdir(folder)
  monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", ".")])
  yield folder
  for name in set(sources) - {"numpy"}:
    sys.modules.pop(name, None)


def test_task_of_ones_own_is_found_by_module_and_attribute(own_folder):
  row = registry.get("tasks_of_mine:linear")
  assert row == registry.get("mnist_linear")._replace(name="mine")


def test_task_of_ones_own_may_import_more_when_it_is_loaded(own_folder, monkeypatch):
  row = registry.get("tasks_of_mine:own_data")
  monkeypatch.chdir(own_folder.parent)
  assert row.load_data(None, "") == 42


def test_files_in_the_folder_one_is_in_hide_no_library(own_folder, monkeypatch):
  monkeypatch.delitem(sys.modules, "numpy")
  registry.get("tasks_of_mine:linear")
  assert not importlib.util.find_spec("numpy").origin.startswith(str(own_folder))


@pytest.mark.parametrize(
  "name, reason",
  [
    (
      "tasks_of_mine:nothing",
      r"\S+/mine/tasks_of_mine\.py has no 'nothing': name a task",
    ),
    ("no_such_module:task", "there is no module 'no_such_module' in /.*/mine, and none"),
    ("no_such_package.tasks:mine", "there is no module 'no_such_package' in /"),
    ("broken_import:task", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("broken_name:task", "NameError: name 'undefined_name' is not defined"),
    ("broken_syntax:task", r"SyntaxError: .*broken_syntax\.py, line 1"),
    ("broken_lines:task", r"RuntimeError: first line\. second line"),
    ("broken_task:task", "InputError: There is no task 'digits': did you mean"),
    ("tasks_of_mine:", "give a module name and a task's"),
    (":linear", "give a module name and a task's"),
    (".tasks_of_mine:linear", "give a module name and a task's"),
  ],
)
def test_name_that_leads_to_no_task_is_refused(own_folder, name, reason):
  with pytest.raises(InputError) as caught:
    registry.get(name)
  refused = f"The task {name!r} cannot be imported: "
  assert re.fullmatch(rf"{re.escape(refused)}{reason}.*(?<!\.)\.", str(caught.value))


def test_misspelled_hyper_parameter_of_a_task_is_refused(own_folder):
  (own_folder / "misspelled.py").write_text(
    "from tasks import registry\n"
    "row = registry.get('digits_cnn')\n"
    "good = row._replace(hparams={'my_own': 3, 'learning_rate': 0.1})\n"
    "task = row._replace(hparams={'lerning_rate': 0.1})\n"
  )
  assert registry.get("misspelled:good").hparams["my_own"] == 3
  said = "has the hyper-parameter 'lerning_rate', .* did you mean 'learning_rate'"
  with pytest.raises(InputError, match=said):
    registry.get("misspelled:task")


@pytest.mark.parametrize(
  "change, said",
  [
    ("load_data=lambda data_dir: None", "load_data of .* of two arguments"),
    ("build_keras_model=5", "build_keras_model of .*; found 5"),
    ("make_model=lambda model: model", "make_model of .* of two arguments"),
    ("name=5", "name of .* must be a text; found 5"),
    ("partition=None", "partition of .* must be a text, such as 'iid'"),
    ("hparams=None", "hparams of .* must be a dict of hyper-parameters"),
    ("clients_per_round=None", "clients_per_round of .* must be a whole number"),
    ("num_clients=2", r"clients_per_round of .* is \d+, more than its num_clients, 2"),
    ("rounds=0", "rounds of .* must be at least 1"),
    ("target_accuracy='0.9'", "target_accuracy of .* must be a number"),
  ],
)
def test_wrong_part_of_a_task_is_named(own_folder, change, said):
  name = f"wrong_part_{change.partition('=')[0]}"
  (own_folder / f"{name}.py").write_text(
    f"from tasks import registry\ntask = registry.get('digits_cnn')._replace({change})\n"
  )
  with pytest.raises(InputError, match=said):
    registry.get(f"{name}:task")


def test_what_is_no_task_is_refused(own_folder):
  with pytest.raises(InputError, match=r"is a int; .* must be a tasks\.registry\.Task"):
    registry.get("tasks_of_mine:not_a_task")


def test_error_in_a_module_of_ones_own_keeps_its_traceback(own_folder):
  with pytest.raises(InputError) as caught:
    registry.get("broken_name:task")
  cause = caught.value.__cause__
  assert isinstance(cause, NameError)
  last = traceback.extract_tb(cause.__traceback__)[-1]
  assert (pathlib.Path(last.filename).name, last.lineno) == ("broken_name.py", 1)


def test_the_table_is_read_without_tensorflow():
  code = """
    import sys
    from tasks import registry
    assert registry.get("cifar100_vit").rounds == 100
    for name in ("tensorflow", "tensorflow_datasets", "tensorflow_federated", "sklearn"):
      assert name not in sys.modules, name
  """
  subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
