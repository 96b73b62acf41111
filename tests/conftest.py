"""Fixtures for all tests."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import types
import typing
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
  import programs

# Tests start many Pythons. TFF is imported in a quarter of the time where the bytecode of
# all that it imports is there; these variables would have each compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# On GPUs TensorFlow multiplies floats of 10 bits unless this, set before, forbids it.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

gc.disable()  # Until all is imported: looking for garbage takes a second of that.

# What a script starts with `&` ignores Ctrl-C, what nohup starts SIGHUP, and so does all
# that they start themselves; a handler is not passed on.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
  signal.signal(signal.SIGHUP, lambda number, frame: None)

_INDEX = "https://pypi.org/simple/tensorflow-federated/"


# Files of a few tests that take ten seconds and more. Those of many tests begin first, so
# that without this one process would wait for the other in the end.
_LONG = (
  "tests/runtimes/test_dask_faults.py",
  "tests/packaging/test_wheel.py",
  "tests/experiments/forgetting/test_meter.py",
  "tests/examples/test_federated_program.py",
  "tests/binaries/test_export.py",
  "tests/templates/test_saving.py",
  "tests/packaging/test_tensorboard.py",
)


_ALGORITHM = r"(?:p?fed[a-z]+(?:_dpsgd|_mg)?|scaffold|twafl|tefl|afl|sgd|dpsgd)"


class _Scheduling(LoadFileScheduling):
  """A file's tests go to one process; those of conformance by algorithm.

  An algorithm's name is the first of a test's parameters there, or that of the test
  begins with it; its tests, in whichever files, share the processes that `federate` has
  built. Notebooks share nothing.
  """

  def _split_scope(self, nodeid: str) -> str:
    if nodeid.startswith("tests/tutorials/test_notebooks.py"):
      return nodeid
    shared = "tests/conformance/"
    if nodeid.startswith(shared):
      test, _, parameters = nodeid.partition("[")
      name = re.search(rf"::test_({_ALGORITHM})_", test) or re.match(
        rf"({_ALGORITHM})[-\]]", parameters
      )
      if name:
        return shared + name[1]
    return super()._split_scope(nodeid)

  def schedule(self) -> None:
    super().schedule()
    for scope in _LONG:
      if scope in self.workqueue:
        self.workqueue.move_to_end(scope, last=False)


_READING_TYPES = "tensorflow_federated.python.core.impl.types.type_serialization"


def pytest_collection_finish() -> None:
  """Looking for garbage takes a tenth of all the tests' time: it is done less often.

  And other work that costs the tests time, and that they do not look at.
  """
  gc.collect()
  gc.freeze()  # What was imported is none.
  gc.set_threshold(10_000, 10, 10)
  gc.enable()
  # Closing a runtime would look for it each time: below that is done between tests.
  if runtime := sys.modules.get("tff_algos.runtimes.runtime"):
    runtime.gc = types.SimpleNamespace(collect=lambda: 0)
  # TFF reads each type of a computation at each place anew, 8 % of what building and
  # tracing a process takes: here it is read once.
  if reading := sys.modules.get(_READING_TYPES):
    reading.deserialize_type = _remembering(reading.deserialize_type)
  # Each operation keeps the lines that made it, which takes a twentieth of all the time.
  if stacks := sys.modules.get("tensorflow.python.util.tf_stack"):
    here = stacks.extract_stack()
    stacks.extract_stack = functools.wraps(stacks.extract_stack)(
      lambda stacklevel=1: here
    )
  # As Python has it from 3.12 on: TensorFlow asks for each argument of what it traces.
  typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)


def _remembering(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """The function of a protocol buffer, called once for each content."""
  found: dict[bytes, Any] = {}

  def look(proto: Any) -> Any:
    key = proto.SerializeToString()
    if key not in found:
      found[key] = read(proto)
    return found[key]

  return look


def pytest_sessionfinish(session) -> None:
  """Nor is it looked for when Python ends, which would take ten seconds."""
  gc.freeze()
  told = getattr(session.config, "workeroutput", None)
  if told is not None:
    told["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
  elif os.environ.get("CI") and max(_peaks.values(), default=0) > _MOST_MEMORY:
    session.exitstatus = pytest.ExitCode.TESTS_FAILED


# In GB, of each process of the tests. Tests that need more at once make what they need
# smaller: TensorFlow keeps what it ever had for tensors.
_MOST_MEMORY = 3
_peaks: dict[str, float] = {}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
  if peak := getattr(node, "workeroutput", {}).get("peak"):
    _peaks[node.gateway.id] = peak


def pytest_terminal_summary(terminalreporter) -> None:
  """Says what memory the processes took, which in CI fails beyond the limit."""
  taken = ", ".join(f"{name} {peak:.2f} GB" for name, peak in sorted(_peaks.items()))
  if taken:
    terminalreporter.write_line(f"peak memory (at most {_MOST_MEMORY} GB): {taken}")


# Beyond so many bytes more than after the last time, what is garbage is given back: to
# the system too, for what TensorFlow frees stays with the process.
_MOST_GARBAGE = 400 * 2**20
_held = 0


def _resident() -> int:
  pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
  return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
  global _held
  if _resident() > _held + _MOST_GARBAGE:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _held = _resident()


def pytest_xdist_make_scheduler(config, log) -> _Scheduling:
  return _Scheduling(config, log)


@pytest.fixture(scope="session")
def shared_data_dir() -> pathlib.Path:
  """The folder of real data: $TFF_ALGOS_DATA, or shared/data beside the repository."""
  root = pathlib.Path(__file__).resolve().parents[1]
  folder = pathlib.Path(os.environ.get("TFF_ALGOS_DATA") or root.parent / "shared/data")
  if not folder.is_dir():
    pytest.skip(f"no real data: {folder} is not a folder (set TFF_ALGOS_DATA)")
  return folder


@pytest.fixture(scope="session")
def in_process():
  """The in_process runtime, installed while the tests that ask for it run."""
  from tff_algos.runtimes import runtime  # Not every test needs TensorFlow.

  with runtime.create_runtime("in_process") as installed:
    yield installed


@pytest.fixture(scope="session")
def uv() -> str:
  """Where uv is."""
  found = shutil.which("uv")
  if found is None:
    pytest.skip("uv is not installed")
  return found


@pytest.fixture(scope="session")
def pypi():
  """Skips where PyPI cannot be reached, which installing and building need."""
  try:
    urllib.request.urlopen(_INDEX, timeout=20).close()
  except (urllib.error.URLError, TimeoutError) as error:
    pytest.skip(f"PyPI cannot be reached: {error}")


# --- Runs of train.py and other programs -----------------------------------------------

_HEAD = "round,train_loss,test_accuracy,seconds,num_dropped,bytes_down,bytes_up"
# No accuracy in round 2.
_ROUNDS = (
  "1,2.5,0.25,9.0,0,1000000,500000",
  "2,2.0,,1.0,0,1000000,500000",
  "3,1.5,0.75,1.0,1,1000000,2000000",
  "4,1.0,0.5,2.0,0,0,0",
)


def _write_run(
  folder: pathlib.Path,
  algorithm: str = "fedavg",
  /,
  rounds: Sequence[str] = _ROUNDS,
  head: str = _HEAD,
  **config: Any,
) -> str:
  """Writes config.json and metrics.csv; `config` has more of the former."""
  folder.mkdir(parents=True)
  flags = {"algorithm": algorithm, "task": "digits_cnn", **config.pop("flags", {})}
  (folder / "config.json").write_text(json.dumps({"flags": flags, **config}))
  (folder / "metrics.csv").write_text("\n".join([head, *rounds]) + "\n")
  return str(folder)


@pytest.fixture(scope="session")
def write_run() -> Callable[..., str]:
  """`(folder, algorithm, rounds, head, **config) -> path` of a run written by hand."""
  return _write_run


def _read_table(text: str) -> list[list[str]]:
  lines = [line for line in text.split("\n") if line.startswith("|")]
  head, rule, *rows = ([c.strip() for c in line[1:-1].split(" | ")] for line in lines)
  assert set("".join(rule)) <= {"-", ":"} and len(rule) == len(head)
  assert len(set(map(len, lines))) <= 1, "its columns are not under one another"
  assert all(len(row) == len(head) for row in rows)
  return rows


@pytest.fixture(scope="session")
def read_table() -> Callable[[str], list[list[str]]]:
  """`(text) -> rows`: the cells of the rows of the Markdown table in a text."""
  return _read_table


@pytest.fixture(scope="session")
def fork_program(tmp_path_factory) -> Iterator[programs.ForkServer]:
  """`(program, *flags, cwd, paths) -> Done`: a program of binaries/ run in a fork."""
  import programs

  server = programs.ForkServer(tmp_path_factory.mktemp("forked"))
  yield server
  server.close()


# --- Clusters ---------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> pathlib.Path:
  """A folder with ca.pem and member.pem/key, other_ca.pem and foreign.pem/key."""
  if not shutil.which("openssl"):
    pytest.skip("no openssl to make certificates with")
  folder = tmp_path_factory.mktemp("certificates")

  def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

  new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
  for ca, name in (("ca", "member"), ("other_ca", "foreign")):
    into = ["-keyout", f"{ca}.key", "-out", f"{ca}.pem"]
    openssl("req", "-x509", *new_key, "-days", "1", "-subj", f"/CN={ca}", *into)
    into = ["-keyout", f"{name}.key", "-out", f"{name}.csr"]
    openssl("req", *new_key, "-subj", f"/CN={name}", *into)
    signing = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial"]
    files = ["-in", f"{name}.csr", "-out", f"{name}.pem"]
    openssl("x509", "-req", "-days", "1", *files, *signing)
  return folder


@pytest.fixture
def named(monkeypatch) -> list[tuple[str, bool]]:
  """The names that files and folders are given from now on, and whether on the disk."""
  synced, found, fsync, replace = set(), [], os.fsync, os.replace

  def sync(handle):
    synced.add(os.readlink(f"/proc/self/fd/{handle}"))
    fsync(handle)

  def rename(source, target):
    source = os.fspath(source)
    files = {source}
    if os.path.isdir(source):
      below = os.walk(source)
      files = {os.path.join(folder, name) for folder, _, names in below for name in names}
    found.append((os.path.basename(target), files <= synced))
    replace(source, target)

  monkeypatch.setattr(os, "fsync", sync)
  monkeypatch.setattr(os, "replace", rename)
  return found
