"""Settings of the tests: one thread, and the sources also in processes of tests."""

import os
from pathlib import Path

SOURCES = str(Path(__file__).resolve().parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [SOURCES, os.environ.get("PYTHONPATH")])
)
# With several threads MKL may divide a sum differently.
os.environ.setdefault("OMP_NUM_THREADS", "1")
