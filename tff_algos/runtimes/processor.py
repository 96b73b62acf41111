"""The type of this machine's processor, which decides how operations round."""

from __future__ import annotations

import platform


def processor() -> str:
  """Its model's name, as Linux has it; elsewhere its architecture."""
  try:
    with open("/proc/cpuinfo", encoding="utf-8") as f:
      models = [line for line in f if line.startswith("model name")]
  except OSError:
    models = []
  return models[0].partition(":")[2].strip() if models else platform.machine()
