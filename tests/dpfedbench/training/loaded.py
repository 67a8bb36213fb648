"""Imports of a training process, loaded before it forks: modules with the functions that
tests call in it, and the compiled loops that are on disk.
"""

import importlib
import pkgutil

import dpkernels
from dpkernels import compiled

for _, name, _ in pkgutil.walk_packages(dpkernels.__path__, "dpkernels."):
    importlib.import_module(name)
for name in ("test_processes", "test_restart"):
    importlib.import_module(f"tests.dpfedbench.training.{name}")
compiled.load_all()
