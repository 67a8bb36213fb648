"""Imports of a training process, loaded before it forks: modules, and the
compiled loops that are on disk.

With them the tests whose functions these processes call.
"""

import importlib
import pkgutil

import dpkernels
from dpfedbench.training import engine
from dpkernels import compiled

__all__ = ["engine"]

for _, name, _ in pkgutil.walk_packages(dpkernels.__path__, "dpkernels."):
    importlib.import_module(name)
for name in ("test_checkpoint", "test_processes", "test_restart"):
    importlib.import_module(f"tests.dpfedbench.training.{name}")
compiled.load_all()
