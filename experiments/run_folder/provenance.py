"""What made a folder of results: command, time, versions, machine, source commit."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import shutil
import subprocess
import sys
from typing import Any, Optional

_PACKAGES = ("tensorflow", "tensorflow-federated", "tensorflow-datasets", "numpy")


def session() -> dict[str, Any]:
  """The start of a program, as config.json lists it."""
  return {
    # Not the folder of the program, which others have elsewhere.
    "command": [f"binaries/{os.path.basename(sys.argv[0])}", *sys.argv[1:]],
    "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    "git_commit": git_commit(),
    "versions": versions(),
    "machine": machine(),
  }


def machine() -> dict[str, Any]:
  """Processor, cores that may be used, GPUs by name and memory of this machine."""
  import tensorflow as tf

  from tff_algos.runtimes.processor import processor

  return {
    "processor": processor(),
    "cores": len(os.sched_getaffinity(0)),
    "gpus": [
      tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
      for gpu in tf.config.list_physical_devices("GPU")
    ],
    "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
  }


def versions() -> dict[str, str]:
  """Of Python and of the packages that numbers depend on."""
  packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
  return {"python": sys.version.split()[0], **packages}


def git_commit() -> Optional[str]:
  """The commit of the source, with "+changes" where files differ from it."""
  here = os.path.dirname(os.path.abspath(__file__))
  git = shutil.which("git")
  if git is None:
    return None

  def ask(*words: str) -> str:
    done = subprocess.run([git, "-C", here, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""

  commit = ask("rev-parse", "HEAD")
  if not commit:
    return None
  changed = ask("status", "--porcelain", "--untracked-files=no")
  return commit + ("+changes" if changed else "")
