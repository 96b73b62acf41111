"""Federated-learning algorithms as TensorFlow Federated processes.

The public names are those of `__init__.pyi`. They are imported when they are first used:
`import tff_algos` alone loads neither TensorFlow nor TFF, so that `tff_algos.preflight`
can run before them.
"""

from __future__ import annotations

import atexit
import gc
import signal
import subprocess
import sys
import types

try:
  import lazy_loader
except ModuleNotFoundError:  # Where packages are missing, `preflight` says which.
  pass
else:
  __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


_WORKER = "worker_binary"  # TFF's.


@atexit.register
def _end_tffs_own_runtime() -> None:
  # TFF leaves that to the garbage collector, which comes too late: it prints a traceback,
  # and a worker outlives the program.
  tff = sys.modules.get("tensorflow_federated")
  if type(tff) is not types.ModuleType:
    return  # It was not imported, or put off and never looked at.
  is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
  for found in gc.get_objects():
    if type(found) is tff.framework.RemoteExecutorGrpcStub:
      # gRPC tells it of the worker's end in a thread that it starts for that, and Python
      # crashes where a thread starts while it ends (CPython's issue 104690).
      found._channel._unsubscribe_all()
    elif is_deaf and type(found) is subprocess.Popen and _WORKER in str(found.args):
      # As what a script starts with `&` is, and its children: TFF's worker would not
      # heed the SIGINT that is to end it, and TFF would wait for ever.
      found.kill()
  tff.test.set_no_default_context()
  gc.collect()
