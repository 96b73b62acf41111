"""Runs a notebook's cells with an older Python, where its own is too new for tff_algos.

TensorFlow Federated 0.87 needs Python 3.9 to 3.11, and Colab's is newer. The first cell
of each notebook here tries to import tff_algos, and where that fails, calls `start()`. By
uv it makes the environment of the checkout that this file lies in, with a Python that
fits, and starts a second Jupyter kernel there. From then on the notebook's own kernel
hands it every cell, and shows what it prints, draws and raises in the cell's place.

This file runs with the newer Python: it needs IPython and jupyter_client, which every
Jupyter kernel has, and nothing else. Completion and `?` still ask the notebook's own
kernel, which knows none of the names that the cells have made.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from IPython import get_ipython
from IPython.display import clear_output, publish_display_data
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_NAME = "tff_algos"
_MAGIC = "tff_algos_cell"
# What the notebook's own Python sets for itself.
_FOREIGN = ("MPLBACKEND", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
_SECONDS_TO_START = 120
# How often in a row nothing comes, of 0.2 s each, until a cell that was answered is done.
_SILENCE = 25


def start() -> None:
  """Makes the environment, starts a kernel in it and hands it all cells from now on.

  Raises:
    RuntimeError: The environment cannot be made; the message has what uv said.
  """
  environment = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
  with tempfile.TemporaryDirectory() as folder:
    print("Making an environment with an older Python: minutes the first time.")
    _install(folder, environment)
    specs = KernelSpecManager(kernel_dirs=[os.path.join(folder, "share/jupyter/kernels")])
    manager = KernelManager(kernel_name=_NAME, kernel_spec_manager=specs)
    manager.start_kernel(env=environment)
  atexit.register(manager.shutdown_kernel, now=True)
  client = manager.client()
  client.start_channels()
  client.wait_for_ready(timeout=_SECONDS_TO_START)

  def run_cell(line: str, cell: str) -> None:
    _run(cell, manager, client)

  shell = get_ipython()
  shell.register_magic_function(run_cell, "cell", _MAGIC)
  shell.input_transformers_cleanup.insert(0, _hand_over)
  print("From the next cell on, all cells run there.")


def _install(folder: str, environment: dict[str, str]) -> None:
  """Has uv make the locked environment, and describe its kernel in a folder."""
  uv = ["uv"]
  if shutil.which("uv") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    uv = [sys.executable, "-m", "uv"]
  done = subprocess.run(
    [
      *(*uv, "run", "--frozen", "--no-default-groups", "--group=tutorials"),
      *("python", "-m", "ipykernel", "install", f"--prefix={folder}", f"--name={_NAME}"),
    ],
    cwd=_CHECKOUT,
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise RuntimeError(f"uv could not make an environment for tff_algos:\n{done.stderr}")


def _hand_over(lines: list[str]) -> list[str]:
  """A cell as IPython sees it before anything else: put under our own magic."""
  return [f"%%{_MAGIC}\n", *lines] if any(map(str.strip, lines)) else lines


class CellError(Exception):
  """What a cell raised in the other kernel, shown as it was shown there."""

  def __init__(self, name: str, value: str, traceback: list[str]):
    super().__init__(f"{name}: {value}")
    self._traceback = traceback

  def _render_traceback_(self) -> list[str]:  # IPython asks for it.
    return self._traceback


def _run(code: str, manager: KernelManager, client) -> None:
  """Runs a cell in the other kernel and shows what comes of it as it comes.

  Raises:
    CellError: The cell raised something.
    RuntimeError: The other kernel has ended.
  """
  error, has_replied, silence, done = None, False, 0, 0
  with _noted_interrupts() as interrupts:
    # Not before: an interrupt would end this and leave the cell to run on.
    cell = client.execute(code, allow_stdin=False)
    while True:
      # One that comes as the cell begins to wait is seen by Python when it has waited.
      if len(interrupts) > done or (done and silence % 10 == 9):
        done = len(interrupts)
        manager.interrupt_kernel()  # What the cell then raises comes as its error.
      try:
        message = client.get_iopub_msg(timeout=0.2)
      except queue.Empty:
        if not manager.is_alive():
          raise RuntimeError(
            "The kernel that ran the cells has ended: restart the notebook's kernel."
          ) from None
        has_replied = has_replied or _has_replied(client, cell)
        silence += 1
        if has_replied and silence > _SILENCE:
          break  # Where an interrupt cut off the message that it is done.
        continue
      silence = 0
      if message["parent_header"].get("msg_id") != cell:
        continue
      kind, content = message["msg_type"], message["content"]
      if kind == "error":
        error = CellError(content["ename"], content["evalue"], content["traceback"])
      elif kind == "status" and content["execution_state"] == "idle":
        break
      else:
        _show(kind, content)
  if error is not None:
    raise error


def _has_replied(client, cell: str) -> bool:
  """Whether the other kernel has answered the request to run a cell."""
  try:
    while client.get_shell_msg(timeout=0)["parent_header"].get("msg_id") != cell:
      pass
  except queue.Empty:
    return False
  return True


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
  """A list that interrupts are put in; one raised could lose the message waited for."""
  noted: list[int] = []
  before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
  try:
    yield noted
  finally:
    signal.signal(signal.SIGINT, before)


def _show(kind: str, content: dict) -> None:
  """Shows one output in the notebook."""
  if kind == "stream":
    stream = sys.stdout if content["name"] == "stdout" else sys.stderr
    stream.write(content["text"])
    stream.flush()
  elif kind in ("display_data", "execute_result", "update_display_data"):
    publish_display_data(
      content["data"],
      content["metadata"],
      transient=content.get("transient"),
      update=kind == "update_display_data",
    )
  elif kind == "clear_output":
    clear_output(wait=content["wait"])
