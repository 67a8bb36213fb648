"""dpfedbench: a benchmark of differentially private federated meta-learning.

For notebooks: `open_run` opens the folder of a finished run, `list_runs` lists those of
a results folder, `use_code` names a folder of methods and parts of one's own.
"""

import sys
from typing import TYPE_CHECKING, Any

from dpfedbench import own_code
from dpfedbench.own_code import use as use_code
from dpfedbench.results_format import VERSION as __version__

own_code.install()
own_code.extend(sys.modules[__name__])

if TYPE_CHECKING:
    from dpfedbench.notebook import list_runs, open_run
else:

    def __getattr__(name: str) -> Any:
        # Imported when it is asked for: a plan is read without torch.
        if name in ("list_runs", "open_run"):
            from dpfedbench import notebook

            return getattr(notebook, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["__version__", "list_runs", "open_run", "use_code"]
