"""dpfedbench: a benchmark of differentially private federated meta-learning.

For notebooks: `load_runs` returns a frame with one row for each run of a results
folder, `load_cells` which runs each table and figure shows, `open_run` opens the folder
of a finished run, and `use_plugins` imports modules with methods and parts of your own.
"""

from typing import TYPE_CHECKING, Any

from dpfedbench.plugins import use as use_plugins
from dpfedbench.results.format import VERSION as __version__

if TYPE_CHECKING:
    from dpfedbench.notebook import open_run
    from dpfedbench.results.load import load_cells, load_runs
else:

    def __getattr__(name: str) -> Any:
        # Imported when it is asked for: a plan is read without torch.
        if name == "open_run":
            from dpfedbench import notebook

            return notebook.open_run
        if name in ("load_cells", "load_runs"):
            from dpfedbench.results import load

            return getattr(load, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "__version__",
    "load_cells",
    "load_runs",
    "open_run",
    "use_plugins",
]
