"""What a process of a training loads, for those that are forked: modules, and the
compiled loops that are on disk.

With them the tests whose functions these processes call.
"""

import importlib
import pkgutil

from dpfedbench import compiled, kernels
from dpfedbench.federation import engine

__all__ = ["engine"]

for _, name, _ in pkgutil.walk_packages(kernels.__path__, "dpfedbench.kernels."):
    importlib.import_module(name)
for name in ("test_checkpoint", "test_engine", "test_processes"):
    importlib.import_module(f"tests.federation.{name}")
compiled.load_all()
