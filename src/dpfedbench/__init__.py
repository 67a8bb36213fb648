"""dpfedbench: a benchmark of differentially private federated meta-learning.

For notebooks: `open_run` opens the folder of a finished run, `list_runs` lists those of a results folder.
"""

from typing import TYPE_CHECKING, Any

from dpfedbench.results_format import VERSION as __version__

if TYPE_CHECKING:
    from dpfedbench.notebook import list_runs, open_run
else:

    def __getattr__(name: str) -> Any:
        # Imported when it is asked for: a plan is read without torch.
        if name in __all__:
            from dpfedbench import notebook

            return getattr(notebook, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["__version__", "list_runs", "open_run"]
