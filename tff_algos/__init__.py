"""Federated-learning algorithms as TensorFlow Federated processes.

The public names are those of `__init__.pyi`. They are imported when they are first used:
`import tff_algos` alone loads neither TensorFlow nor TFF, so that `tff_algos.preflight`
can run before them.
"""

from __future__ import annotations

try:
  import lazy_loader
except ModuleNotFoundError:  # Where packages are missing, `preflight` says which.
  pass
else:
  __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
