"""dpfedbench: a benchmark of differentially private federated meta-learning.

For notebooks: `load_runs` returns a frame with one row for each run of a results
folder, `load_cells` which runs each table and figure shows, `load_configurations` one
row for each configuration, and `rank` orders these at a given ε. `open_run` opens the
folder of a finished run, and `use_plugins` imports modules with methods and parts of
your own.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpfedbench.plugins import use as use_plugins
from dpfedbench.results_format import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from dpfedbench.notebook import open_run
    from dpfedbench.results.configurations import load_configurations, rank
    from dpfedbench.results.load import load_cells, load_runs
else:
    _MODULES = {
        "open_run": "dpfedbench.notebook",
        "load_cells": "dpfedbench.results.load",
        "load_runs": "dpfedbench.results.load",
        "load_configurations": "dpfedbench.results.configurations",
        "rank": "dpfedbench.results.configurations",
    }

    def __getattr__(name: str) -> Any:
        # Imported when it is asked for: a plan is read without torch.
        if name in _MODULES:
            return getattr(importlib.import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "__version__",
    "load_cells",
    "load_configurations",
    "load_runs",
    "open_run",
    "rank",
    "use_plugins",
]
