"""Settings of the CPU kernel tests: numba's own thread pool, as the CPU engine runs it."""

import os

os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")
