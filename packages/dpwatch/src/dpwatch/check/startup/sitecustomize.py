"""Start of the hooks of `dpwatch check` in each Python process of its command.

Python imports this file at its start, since `check` puts its folder first on
PYTHONPATH. A `sitecustomize` of the environment itself is imported afterwards.
"""

import atexit
import importlib
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    folder = os.environ.get("DPWATCH_CHECK")
    if not folder:
        return
    try:
        from dpwatch.check import hooks
    except ImportError as error:
        path = os.path.join(folder, f"{os.getpid()}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            line = {"kind": "missing", "python": sys.executable, "text": str(error)}
            file.write(json.dumps(line) + "\n")
        return
    atexit.register(hooks.install(folder).finish)


_start()
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
_this_module = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ImportError:
    if _this_module is not None:
        sys.modules["sitecustomize"] = _this_module
