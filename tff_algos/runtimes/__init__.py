"""What runs TFF computations; `runtime.create_runtime` makes one by its name."""

from __future__ import annotations

DESCRIPTIONS = {
  "in_process": "TFF computations interpreted in this Python process (default).",
  "local_worker": "TFF's own C++ worker, in a process of its own on this machine.",
  "dask": "in_process on the workers of a Dask cluster, here or on other machines.",
}
