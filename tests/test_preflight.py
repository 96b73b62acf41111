"""A machine that cannot run TFF is told in one sentence, before TensorFlow loads."""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import warnings

import pytest

from tff_algos import preflight

try:
  import tomllib
except ImportError:  # Before Python 3.11; pytest brings it then.
  import tomli as tomllib

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TRAIN = _ROOT / "binaries/train.py"
_GLIBC = ("glibc", "2.36")
# The project is installed, and nothing that it needs.
_ALONE = {"PYTHONPATH": str(_ROOT)}


@pytest.fixture
def broken(monkeypatch):
  """`(name of a function of preflight)`: makes it find a problem."""

  def install(sentence):
    monkeypatch.setattr(preflight, "find_problem", lambda: sentence)

  return install


def _run(*command, **environment) -> subprocess.CompletedProcess:
  """Runs a program as a user does, away from the folder of the project."""
  inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
  return subprocess.run(
    ["/usr/bin/env", f"--chdir={_ROOT.anchor}", *(str(word) for word in command)],
    env={**inherited, **environment},
    stdin=subprocess.DEVNULL,
    # So that Python 3.9 does not fork, of which gRPC may tell on the copy's stderr.
    close_fds=False,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def _is_one_sentence(text: str) -> bool:
  return bool(re.fullmatch(r"[A-Z][^\n]*[^\n.]\.", text)) and ". " not in text


def _assert_refuses(done: subprocess.CompletedProcess, *parts: str) -> None:
  """It ended with status 2 after one sentence that has these parts, and nothing else."""
  assert done.returncode == 2, done.stderr
  assert done.stdout == ""
  assert done.stderr.endswith("\n")
  assert _is_one_sentence(done.stderr[:-1]), done.stderr
  for part in parts:
    assert part in done.stderr


# --- Sentences ----------------------------------------------------------------------


def test_this_machine_has_no_problem():
  assert preflight.find_problem() == ""


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 11)])
def test_pythons_that_the_project_allows(version):
  assert preflight._python_problem(version) == ""


@pytest.mark.parametrize("version", [(3, 8), (3, 12), (3, 13), (4, 0)])
def test_other_pythons_are_told(version):
  problem = preflight._python_problem(version)
  assert _is_one_sentence(problem)
  assert f"This is Python {version[0]}.{version[1]}" in problem
  assert "3.9 to 3.11" in problem


def test_pythons_are_those_of_the_project():
  project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
  low, high = preflight._PYTHON
  wanted = f">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
  assert project["project"]["requires-python"] == wanted


@pytest.mark.parametrize("version", ["2.31", "2.36", "2.39.9000", "3.0"])
def test_glibc_that_is_new_enough(version):
  assert preflight._platform_problem("linux", "x86_64", ("glibc", version)) == ""


@pytest.mark.parametrize("version", ["2.17", "2.30", "2.30.9000"])
def test_old_glibc_is_told(version):
  problem = preflight._platform_problem("linux", "x86_64", ("glibc", version))
  assert _is_one_sentence(problem)
  assert f"glibc {version}" in problem
  assert "2.31 or newer" in problem


@pytest.mark.parametrize("libc", [("", ""), ("musl", "1.2.4"), ("libc", "")])
def test_another_c_library_is_told(libc):
  problem = preflight._platform_problem("linux", "x86_64", libc)
  assert _is_one_sentence(problem)
  assert "needs glibc 2.31" in problem
  assert libc[0] in problem


@pytest.mark.parametrize(
  "system, machine", [("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]
)
def test_another_platform_is_told(system, machine):
  problem = preflight._platform_problem(system, machine, _GLIBC)
  assert _is_one_sentence(problem)
  assert f"{system} on {machine}" in problem


def test_oldest_glibc_is_that_of_the_wheels():
  """The name of TFF's one wheel has it."""
  lock = tomllib.loads((_ROOT / "uv.lock").read_text(encoding="utf-8"))
  [tff] = [p for p in lock["package"] if p["name"] == "tensorflow-federated"]
  [wheel] = [w["url"] for w in tff["wheels"] if "x86_64" in w["url"]]
  [tag] = re.findall(r"manylinux_(\d+)_(\d+)_x86_64", wheel)
  assert tuple(map(int, tag)) == preflight._GLIBC


def test_processor_without_avx_is_told():
  problem = preflight._processor_problem(frozenset({"fpu", "sse4_2"}))
  assert _is_one_sentence(problem)
  assert "no AVX" in problem


@pytest.mark.parametrize("flags", [{"fpu", "avx"}, set()])
def test_processor_with_avx_or_unknown_is_none(flags):
  assert preflight._processor_problem(frozenset(flags)) == ""


@pytest.mark.parametrize("module, package", sorted(preflight._PACKAGES.items()))
@pytest.mark.parametrize("is_empty_folder", [False, True])
def test_missing_package_is_told(monkeypatch, module, package, is_empty_folder):
  find = preflight.importlib.util.find_spec
  nothing = importlib.machinery.ModuleSpec(module, None) if is_empty_folder else None
  monkeypatch.setattr(
    preflight.importlib.util,
    "find_spec",
    lambda name: nothing if name == module else find(name),
  )
  problem = preflight.find_problem()
  assert _is_one_sentence(problem)
  assert f"The package {package} is not installed" in problem
  assert "uv sync" in problem
  assert "requirements.txt" in problem


@pytest.mark.parametrize("is_there", [False, True])
def test_missing_worker_is_told(monkeypatch, tmp_path, is_there):
  worker = tmp_path / "tensorflow_federated/data/worker_binary"
  worker.parent.mkdir(parents=True)
  origin = str(tmp_path / "tensorflow_federated/__init__.py")
  if is_there:  # But not executable.
    worker.write_bytes(b"")
    worker.chmod(0o644)
  find = preflight.importlib.util.find_spec
  elsewhere = importlib.machinery.ModuleSpec("tensorflow_federated", None, origin=origin)
  monkeypatch.setattr(
    preflight.importlib.util,
    "find_spec",
    lambda name: elsewhere if name == "tensorflow_federated" else find(name),
  )
  problem = preflight.find_problem()
  assert _is_one_sentence(problem)
  assert f"missing or not executable at {worker}" in problem
  worker.write_bytes(b"")
  worker.chmod(0o755)
  assert preflight.find_problem() == ""


@pytest.mark.parametrize(
  "name, value, part",
  [
    ("sys.version_info", (3, 12, 0), "Python 3.12"),
    ("sys.platform", "darwin", "This is darwin"),
    ("platform.machine", lambda: "aarch64", "on aarch64"),
    ("platform.libc_ver", lambda: ("", ""), "C library is not glibc"),
    ("platform.libc_ver", lambda: ("glibc", "2.28"), "glibc 2.28"),
    ("_read_cpu_flags", lambda: frozenset({"sse"}), "no AVX"),
  ],
)
def test_each_check_is_made(monkeypatch, name, value, part):
  with monkeypatch.context() as patch:
    patch.setattr(f"tff_algos.preflight.{name}", value)
    problem = preflight.find_problem()
  assert part in problem


# --- What a program does --------------------------------------------------------------


def test_problem_ends_the_program_with_its_sentence(broken, capsys):
  broken("This cannot run here: do that.")
  with pytest.raises(SystemExit) as caught:
    preflight.check_and_quiet(["train.py"])
  assert caught.value.code == 2
  captured = capsys.readouterr()
  assert captured.err == "This cannot run here: do that.\n"
  assert captured.out == ""


@pytest.mark.parametrize(
  "words", [[], ["--list"], ["--verbosity=1"], ["--verbosity", "1"]]
)
def test_tensorflow_is_silenced_unless_messages_are_wanted(broken, monkeypatch, words):
  broken("")
  for name in ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY", "TF_ENABLE_ONEDNN_OPTS"):
    monkeypatch.setenv(name, "")  # So that its end is undone too.
    monkeypatch.delenv(name)
  with warnings.catch_warnings():
    preflight.check_and_quiet(["train.py", *words])
  is_silent = "TF_CPP_MIN_LOG_LEVEL" in os.environ
  assert is_silent == ("GRPC_VERBOSITY" in os.environ)
  assert is_silent == (not any("verbosity" in word for word in words))


def test_what_the_user_set_is_kept(broken, monkeypatch):
  broken("")
  monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
  monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
  monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
  with warnings.catch_warnings():
    preflight.check_and_quiet(["train.py"])
  assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1"
  assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
  assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "0"


@pytest.mark.thorough
@pytest.mark.parametrize("wanted", [True, False])
def test_tensorflow_has_onednn_on_every_processor_but_where_the_user_has_not(wanted):
  code = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r})\n"
    "from tff_algos import preflight\n"
    "preflight.check_and_quiet([])\n"
    "from tensorflow.python.util import _pywrap_util_port\n"
    "print(_pywrap_util_port.IsMklEnabled())\n"
  )
  kept = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
  done = subprocess.run(
    [sys.executable, "-c", code],
    env=kept if wanted else {**kept, "TF_ENABLE_ONEDNN_OPTS": "0"},
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  )
  assert done.stdout == f"{wanted}\n"


# --- What is imported ---------------------------------------------------------------


def _imported_by(code: str) -> set[str]:
  """Modules that a fresh Python has imported after running a piece of code."""
  done = _run(
    sys.executable,
    "-c",
    f"import json, sys; sys.path.insert(0, {str(_ROOT)!r})\n{code}\n"
    "json.dump(sorted(sys.modules), sys.stderr)",
  )
  assert done.returncode == 0, done.stderr
  return set(json.loads(done.stderr))


@pytest.mark.parametrize(
  "code",
  [
    "import tff_algos",
    "from tff_algos import preflight; assert preflight.find_problem() == ''",
    "import tff_algos; dir(tff_algos)",
  ],
)
def test_start_imports_no_tensorflow(code):
  assert not {"tensorflow", "tensorflow_federated", "numpy"} & _imported_by(code)


def test_preflight_imports_the_standard_library_alone():
  """And before it the package what finds its names, if that is there."""
  for path, more in (
    ("tff_algos/preflight.py", set()),
    ("tff_algos/__init__.py", {"lazy_loader"}),
  ):
    names = set()
    for node in ast.walk(ast.parse((_ROOT / path).read_text(encoding="utf-8"))):
      if isinstance(node, ast.Import):
        names |= {alias.name for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        names.add(node.module)
    assert names - more <= {
      "__future__",
      "atexit",
      "collections.abc",
      "contextlib",
      "gc",
      "importlib",
      "importlib.machinery",
      "importlib.util",
      "os",
      "platform",
      "signal",
      "subprocess",
      "sys",
      "threading",
      "types",
      "typing",
      "warnings",
    }


def test_list_prints_no_message_and_imports_no_tensorflow():
  done = _run(sys.executable, _TRAIN, "--list")
  assert done.returncode == 0
  assert done.stderr == ""
  assert "fedgg" in done.stdout
  assert "digits_cnn" in done.stdout
  imported = _imported_by(
    "import runpy\n"
    f"sys.argv = [{str(_TRAIN)!r}, '--list']\n"
    "try:\n"
    "  runpy.run_path(sys.argv[0], run_name='__main__')\n"
    "except SystemExit as end:\n"
    "  assert not end.code\n"
  )
  assert "absl" in imported
  # The two alone may stand there, put off.
  loaded = {"tensorflow.python", "tensorflow_federated.python", "jax", "matplotlib"}
  assert not loaded & imported


# Each in a fork, as programs define flags of the same names.
_SHOW_ALL_HELP = """
import glob, os, runpy
from tff_algos import preflight
preflight.check_and_quiet([])
from experiments import training_flags
found = {}
for program in sorted(glob.glob(os.path.join(sys.path[0], "binaries", "*.py"))):
  read, write = os.pipe()
  if os.fork() == 0:
    sys.argv, sys.stdout = [program, "--help"], open(os.devnull, "w")
    try:
      runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
      if not end.code:
        os.write(write, " ".join(slow & set(sys.modules)).encode() or b"nothing")
    os._exit(0)
  os.close(write)
  with os.fdopen(read) as said:
    found[os.path.basename(program)] = said.read()
print(json.dumps(found))
"""


def test_help_of_no_program_imports_tensorflow():
  slow = {"tensorflow.python", "tensorflow_federated.python", "jax"}
  lines = f"import json, sys; sys.path.insert(0, {str(_ROOT)!r}); slow = {slow!r}\n"
  done = _run(sys.executable, "-c", lines + _SHOW_ALL_HELP)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert len(found) > 15 and set(found.values()) == {"nothing"}, (found, done.stderr)


_READ_ALL_ROWS = """
from tff_algos import preflight
preflight.defer_tensorflow()
import dataclasses
from tff_algos import hyper_parameters
from tff_algos.algorithms import registry
rows = registry.ALGORITHMS.values()
assert len(rows) > 20
for row in rows:
  assert row.name and row.description and row.source and row.builder.__doc__
  for field in dataclasses.fields(row.hparams_class()):
    assert field.metadata["help"] and hyper_parameters.range_text(field)
"""


def test_all_algorithms_can_be_listed_without_loading_tensorflow():
  """Nor what else takes long, such as the library for epsilon."""
  done = _run(
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(_ROOT)!r})\n{_READ_ALL_ROWS}"
    "print(*sys.modules, sep='\\n')",
  )
  assert done.returncode == 0, done.stderr
  imported = set(done.stdout.split())
  slow = {
    "tensorflow",
    "tensorflow_federated",
    "scipy",
    "dp_accounting",
    "jax",
    "sklearn",
  }
  # The two are there, but nothing of them has run.
  assert slow & imported == {"tensorflow", "tensorflow_federated"}
  assert not [name for name in imported if name.startswith("tensorflow.")]


def test_tensorflow_that_was_put_off_runs_as_ever(tmp_path):
  """Keras too, some of which TensorFlow itself imports late."""
  code = f"""
import sys; sys.path.insert(0, {str(_ROOT)!r})
{_READ_ALL_ROWS}
import numpy as np
import tensorflow as tf
import tff_algos
assert "tensorflow.python" not in sys.modules
spec = tff_algos.ExampleSpec(tf.TensorSpec([3]), tf.TensorSpec([], tf.int32))
assert "tensorflow.python" in sys.modules and tf is sys.modules["tensorflow"]
assert type(tf) is type(sys)
examples = np.eye(3, dtype=np.float32), np.arange(3, dtype=np.int32)
data = dict(one=examples, other=examples)
clients = tff_algos.write_clients({str(tmp_path)!r}, data, spec)
layers = [tf.keras.layers.Input([3]), tf.keras.layers.Dense(3)]
model = tff_algos.from_keras(tf.keras.Sequential(layers), spec)
hparams = tff_algos.FedAvgHparams(epochs=40, learning_rate=1.0)
process = registry.get("fedavg").builder(model, hparams)
with tff_algos.create_runtime():
  settings = tff_algos.Settings(rounds=3, clients_per_round=2)
  print(tff_algos.simulate(process, clients, settings).records[-1]["train_loss"])
# What their imports leave out is there for whoever asks.
assert not {{"tensorflow_probability.python", "jax", "jaxlib"}} & set(sys.modules)
from tensorflow.lite.python import util
import tensorflow_federated as tff
assert "jax" not in sys.modules
# As TensorFlow Lite's converter calls it.
text = util._xla_computation(lambda x: x + 1, backend="cpu")(np.float32(2)).as_hlo_text()
assert "f32[]" in text and "add(" in text
add_one = tff.jax.computation(lambda x: x + 1, np.int32)
assert str(add_one.type_signature) == "(int32 -> int32)"
import tensorflow_probability as tfp
assert abs(tfp.distributions.Normal(0.0, 2.0).prob(0.0) - 0.19947) < 1e-5
"""
  done = _run(sys.executable, "-c", code)
  assert done.returncode == 0, done.stderr
  assert float(done.stdout) < 0.1


def test_what_is_imported_already_is_not_put_off():
  code = f"""
import sys, types; sys.path.insert(0, {str(_ROOT)!r})
from tff_algos import preflight
sys.modules["tensorflow"] = mine = types.ModuleType("tensorflow")
preflight.defer_tensorflow()
assert sys.modules["tensorflow"] is mine
"""
  done = _run(
    sys.executable, "-c", f"import sys; sys.path.insert(0, {str(_ROOT)!r})\n{code}"
  )
  assert done.returncode == 0, done.stderr


# --- Broken environments --------------------------------------------------------------


def _programs() -> list[pathlib.Path]:
  marker = '\nif __name__ == "__main__":'
  found = sorted((_ROOT / "binaries").glob("*.py"))
  return [path for path in found if marker in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("program", _programs(), ids=lambda path: path.name)
def test_program_without_its_packages_says_so(program):
  # -S: Python without the packages that are installed in it.
  done = _run(sys.executable, "-S", program, **_ALONE)
  _assert_refuses(done, "The package tensorflow is not installed", "uv sync")


def _other_pythons() -> list[str]:
  """Pythons of this machine that are too old or too new, one for each version."""
  pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
  found = {}
  for minor in (8, 12, 13, 14):
    installed = sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3"))
    for path in [*installed, shutil.which(f"python3.{minor}")]:
      if path and _run(path, "-c", "").returncode == 0:
        found[minor] = str(path)
  return list(found.values())


def test_program_under_another_python_says_so():
  pythons = _other_pythons()
  if not pythons:
    pytest.skip("this machine has no Python 3.8, nor 3.12 or newer")
  for python in pythons:
    for program in _programs():
      _assert_refuses(_run(python, program, **_ALONE), "This is Python 3.", "3.9 to 3.11")


def test_program_under_a_newer_python_is_refused_before_anything_else():
  # The version is feigned, for machines that have no other Python.
  code = f"""
import runpy, sys
sys.version_info = (3, 12, 0, "final", 0)
sys.argv = [{str(_TRAIN)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
  done = _run(sys.executable, "-S", "-c", code, **_ALONE)
  _assert_refuses(done, "This is Python 3.12")


def test_checkout_that_is_not_installed_is_told_by_python():
  """Programs do not look for the project: `uv sync` installs it where it is."""
  done = _run(sys.executable, "-S", _TRAIN)
  assert (done.returncode, done.stdout) == (1, "")
  assert done.stderr.endswith("ModuleNotFoundError: No module named 'tff_algos'\n")
