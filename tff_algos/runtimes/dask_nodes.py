"""The processes of a cluster on this machine; light, as each of them starts with it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import distributed


class _NoHttp:
  """Opens no port for a dashboard, which every part of a cluster has otherwise."""

  def start_http_server(self, *args: Any, **kwargs: Any) -> None:
    """Does not start it."""


class Scheduler(_NoHttp, distributed.Scheduler):
  """One without a dashboard."""


class Worker(_NoHttp, distributed.Worker):
  """One that leaves signals, and what is to be said, to the program that started it."""

  def __init__(self, *args: Any, **kwargs: Any):
    # What ends a whole group, as a terminal and batch systems do, is for the program.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
      signal.signal(number, signal.SIG_IGN)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    super().__init__(*args, **kwargs)

  async def __aexit__(self, *error: Any) -> None:
    """Ends the process, which has nothing else to do, once all of it is closed.

    Python would take TensorFlow apart first, for longer than Dask waits before it kills
    the process: whoever closes the cluster would wait for that too.
    """
    await super().__aexit__(*error)
    if error[0] is None:
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(0)
