"""Checks in seconds what would otherwise end in a crash or an endless wait.

Imports nothing but the standard library, so that it can run before TensorFlow does.
TensorFlow ends with an illegal instruction on a processor without AVX, and TFF waits
without end for a worker that cannot start.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import platform
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Optional

_PYTHON = ((3, 9), (3, 11))
# The tag of TFF's one wheel is manylinux_2_31_x86_64.
_GLIBC = (2, 31)
_PACKAGES = {
  "tensorflow": "tensorflow",
  "tensorflow_federated": "tensorflow-federated",
  "tensorflow_datasets": "tensorflow-datasets",
  "absl": "absl-py",
  "numpy": "numpy",
  "jax": "jax",
  "jaxlib": "jaxlib",
  "lazy_loader": "lazy-loader",
  "matplotlib": "matplotlib",
  "scipy": "scipy",
  "sklearn": "scikit-learn",
  "tqdm": "tqdm",
}
_INSTALL = (
  "install with `pip install uv && uv sync`, or with "
  "`pip install --no-deps -r requirements.txt`"
)


def find_problem() -> str:
  """One sentence on why TFF cannot run here; "" where it can."""
  return (
    _python_problem(sys.version_info[:2])
    or _platform_problem(sys.platform, platform.machine(), platform.libc_ver())
    or _processor_problem(_read_cpu_flags())
    or _package_problem()
  )


def _python_problem(version: tuple[int, int]) -> str:
  low, high = _PYTHON
  if low <= version <= high:
    return ""
  return (
    f"This is Python {version[0]}.{version[1]}, and TensorFlow Federated 0.87 needs "
    f"{low[0]}.{low[1]} to {high[0]}.{high[1]}: choose another, for example with "
    "`uv run --python 3.11 ...`."
  )


def _platform_problem(system: str, machine: str, libc: tuple[str, str]) -> str:
  if system != "linux" or machine != "x86_64":
    return (
      f"This is {system} on {machine}, and TensorFlow Federated 0.87 has wheels for "
      "Linux on x86_64 only: use such a machine or a container."
    )
  name, version = libc
  if name != "glibc":
    return (
      f"This system's C library is {name or 'not glibc'}, and TensorFlow needs glibc "
      f"{_GLIBC[0]}.{_GLIBC[1]} or newer: use Debian, Ubuntu or another such system."
    )
  if tuple(int(part) for part in version.split(".")[:2]) < _GLIBC:
    return (
      f"This system has glibc {version}, and TensorFlow Federated needs "
      f"{_GLIBC[0]}.{_GLIBC[1]} or newer: use a newer system, such as Debian 11 or "
      "Ubuntu 20.04."
    )
  return ""


def _read_cpu_flags() -> frozenset[str]:
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as f:
      lines = [line for line in f if line.startswith("flags")]
  except OSError:
    return frozenset()
  return frozenset(lines[0].split()) if lines else frozenset()


def _processor_problem(flags: frozenset[str]) -> str:
  if flags and "avx" not in flags:
    return (
      "This processor (or its emulation) has no AVX, without which TensorFlow ends "
      "with an illegal instruction: use another machine, or let the virtual machine "
      "pass AVX."
    )
  return ""


def _package_problem() -> str:
  folders = {}
  for module, package in _PACKAGES.items():
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin:  # No origin: an empty folder of that name.
      return f"The package {package} is not installed: {_INSTALL}."
    folders[module] = os.path.dirname(spec.origin)
  worker = os.path.join(folders["tensorflow_federated"], "data", "worker_binary")
  if not os.access(worker, os.X_OK):
    return f"TFF's worker is missing or not executable at {worker}: {_INSTALL}."
  return ""


_SLOW = ("tensorflow", "tensorflow_federated")
# What TFF imports for its discrete Gaussian noise alone.
_SELDOM_USED = ("tensorflow_probability",)
# The one part of TFF that imports JAX.
_TFF_JAX = "tensorflow_federated.python.core.environments.jax"


def defer_tensorflow() -> None:
  """Puts off importing TensorFlow and TFF until something of them is asked for.

  From here on `import tensorflow as tf` costs nothing, so that a program can list the
  algorithms and their hyper-parameters at once; and their imports leave out TensorFlow
  Probability and JAX. What is imported already stays so.
  """
  for name in (*_SLOW, *_SELDOM_USED):
    if name not in sys.modules:
      _defer(importlib.util.find_spec(name))


def _defer(spec: Optional[importlib.machinery.ModuleSpec]) -> None:
  if spec is not None:
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Deferred
    del module.__path__  # So that importing a submodule asks for it.
    sys.modules[spec.name] = module


@contextlib.contextmanager
def _jax_put_off(package: importlib.machinery.ModuleSpec) -> Iterator[None]:
  """Within it TensorFlow and TFF can be imported without JAX."""
  if package.name == "tensorflow_federated":
    *parents, _ = _TFF_JAX.split(".")[1:]
    folders = package.submodule_search_locations or []
    find = importlib.machinery.PathFinder.find_spec
    _defer(find(_TFF_JAX, [os.path.join(folder, *parents) for folder in folders]))
  if package.name != "tensorflow" or "jax" in sys.modules:
    yield
    return
  # TensorFlow Lite takes a function of it while it is imported, and seldom calls it.
  stand_in = types.ModuleType("jax")
  vars(stand_in)["xla_computation"] = _xla_computation
  sys.modules["jax"] = stand_in
  try:
    yield
  finally:
    del sys.modules["jax"]


def _xla_computation(*args: Any, **options: Any) -> Any:
  return importlib.import_module("jax").xla_computation(*args, **options)


class _Deferred(types.ModuleType):
  """A module that runs when it is first asked for an attribute that it has not got.

  Not one of `importlib.util.LazyLoader`, which runs when it is asked for any: an import
  statement asks for `__spec__`.
  """

  _lock = threading.RLock()
  _is_running = False

  def __getattr__(self, name: str) -> Any:
    with _Deferred._lock:  # Other threads wait until all is there.
      if type(self) is _Deferred:
        if self._is_running:
          raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        self.load()
    return getattr(self, name)

  def load(self) -> None:
    """Runs the module, which is a plain one from then on."""
    spec = self.__spec__
    assert spec is not None and spec.loader is not None
    with _Deferred._lock:
      self._is_running = True
      self.__path__ = spec.submodule_search_locations or []
      with _jax_put_off(spec):
        spec.loader.exec_module(self)
      del self._is_running
      self.__class__ = types.ModuleType  # type: ignore[assignment]


def asks_for_messages(argv: Sequence[str]) -> bool:
  """Whether the command line holds `--verbosity`."""
  return any(word.lstrip("-").startswith("verbosity") for word in argv)


def quiet(argv: Sequence[str]) -> None:
  """Silences TensorFlow, CUDA and Python warnings unless `--verbosity` is in `argv`."""
  if asks_for_messages(argv):
    return
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("GRPC_VERBOSITY", "NONE")
  warnings.filterwarnings("ignore")


def prefer_onednn() -> None:
  """Has TensorFlow take oneDNN on every processor, unless the environment says otherwise.

  By itself it does so only on those with instructions for neural networks: AVX-512 VNNI
  or BF16, AVX-VNNI, AMX. On others too a step of a CNN takes half the time by it.
  """
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def check_and_quiet(argv: Sequence[str]) -> None:
  """What every program calls first, before anything imports TensorFlow.

  TensorFlow and TFF are deferred, so that flags are checked before they are loaded.

  Args:
    argv: The command line.

  Raises:
    SystemExit: With status 2, after one sentence on standard error, where TFF cannot
      run.
  """
  problem = find_problem()
  if problem:
    print(problem, file=sys.stderr)
    raise SystemExit(2)
  quiet(argv)
  prefer_onednn()
  defer_tensorflow()
