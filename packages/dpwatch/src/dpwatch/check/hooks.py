"""Hooks in a process of a checked command: watches begin where a library is called.

This module imports the standard library only, since every Python process of the command
loads it. A library's hooks are loaded when the script imports the library.

Each process appends its observations to `PID.jsonl` in the folder of the check, one JSON
object a line. Its `kind` is:

- "started": the process began;
- "watched": a watch began; "account": its account at the end of the process;
- "refused": a call that no watch takes, and why;
- "fault": a watch ended early, and why;
- "finding": a pitfall that was seen as the script ran;
- "claim": an epsilon that the script got from its library;
- "optimizer": steps of a torch optimiser that no watch saw;
- "source": a file of the script's own.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HOOKS = {
    "opacus.privacy_engine": "opacus_hooks",
    "torch.optim.optimizer": "torch_hooks",
    "flwr.serverapp.strategy.strategy": "flower_hooks",
    "flwr.clientapp.mod.localdp_mod": "flower_hooks",
    "flwr.server.strategy.dp_fixed_clipping": "flower_hooks",
    "flwr.server.strategy.dp_adaptive_clipping": "flower_hooks",
    "flwr.server.strategy.dpfedavg_fixed": "flower_hooks",
    "flwr.server.strategy.dpfedavg_adaptive": "flower_hooks",
    "pfl.algorithm.base": "pfl_hooks",
    "pfl.data.sampling": "pfl_hooks",
}
"""Module of a library, and the module here that puts hooks into it."""


class Session:
    """Observations of this process.

    Args:
        folder: folder of the check, with `settings.json`.

    Attributes:
        settings: options of the command: `delta` (None: the script's own),
            `units_public`, `metrics`, `cohorts` and `audit_calls`.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        text = (self.folder / "settings.json").read_text(encoding="utf-8")
        self.settings: dict[str, Any] = json.loads(text)
        self.watches: list[tuple[str, str, Any]] = []
        self.at_end: list[Callable[[], None]] = []
        self._process = os.getpid()
        self._deltas: list[float] = []
        self._count = 0
        self.say("started", command=sys.argv or [sys.executable])

    def say(self, kind: str, **values: Any) -> None:
        """Append an observation."""
        path = self.folder / f"{os.getpid()}.jsonl"
        line = json.dumps({"kind": kind, **values}, default=str)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def attempt(self, library: str, function: Callable[..., None], *args: Any) -> None:
        """Call a function of a hook; its error is an observation, not the script's."""
        try:
            function(*args)
        except Exception as error:
            self.say("refused", library=library, text=_message(error))

    def ledger(self, library: str) -> Path:
        """Return the path of a new ledger."""
        self._count += 1
        return self.folder / f"{library}-{os.getpid()}-{self._count}.jsonl"

    def add(self, library: str, watch: Any) -> None:
        """Take a watch, which then never ends the script by an error."""
        name = watch.path.name
        watch.on_fault = lambda error: self.say(
            "fault", library=library, ledger=name, text=_message(error)
        )
        self.watches.append((library, name, watch))
        self.say(
            "watched", library=library, version=_version(library), ledger=name
        )

    def claim(self, library: str, epsilon: float, delta: float) -> None:
        """Note an epsilon that the script got from its library."""
        self._deltas.append(float(delta))
        self.say("claim", library=library, epsilon=float(epsilon), delta=float(delta))

    @property
    def delta(self) -> float:
        """Delta of the accounts: the command's, else the script's last, else 1e-5."""
        if self.settings["delta"] is not None:
            return float(self.settings["delta"])
        return self._deltas[-1] if self._deltas else 1e-5

    def finish(self) -> None:
        """Write the accounts, at the end of the process."""
        if os.getpid() != self._process:
            return
        for end in self.at_end:
            self.attempt("dpwatch", end)
        for library, name, watch in self.watches:
            self.attempt(library, self._finish_watch, library, name, watch)
        for path in own_files():
            self.say("source", path=str(path))

    def _finish_watch(self, library: str, name: str, watch: Any) -> None:
        from dpwatch.check.accounts import account_of_watch

        values = account_of_watch(watch, self.delta, self.settings)
        self.say("account", library=library, ledger=name, **values)


def own_files() -> list[Path]:
    """Return the files of imported modules that belong to the script itself.

    These are the main module, and the modules below its folder or the working folder
    that are not installed packages.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    roots = {Path.cwd().resolve()}
    if main:
        roots.add(Path(main).resolve().parent)
    installed = [Path(path).resolve() for path in sysconfig.get_paths().values()]
    files = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        is_main = name == "__main__"
        is_installed = "site-packages" in path.parts or any(
            path.is_relative_to(folder) for folder in installed
        )
        is_below = any(path.is_relative_to(root) for root in roots)
        if is_main or (is_below and not is_installed and not _is_own(name)):
            files.add(path)
    return sorted(path for path in files if path.exists() and not _is_console(path))


def _is_own(name: str) -> bool:
    return name.partition(".")[0] in ("dpwatch", "dpsum", "dploss", "sitecustomize")


def _is_console(path: Path) -> bool:
    return path.suffix != ".py" or "site-packages" in path.parts


class _Finder(MetaPathFinder):
    """Finder that runs a library's hooks after one of its modules was imported."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._searched: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in HOOKS or fullname in self._searched:
            return None
        self._searched.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searched.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module
        session = self._session

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            hooks = importlib.import_module(f"dpwatch.check.{HOOKS[fullname]}")
            library = fullname.partition(".")[0]
            session.attempt(library, hooks.install, module, session)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def install(folder: Path | str) -> None:
    """Install the hooks in this process; what they see is written to the folder."""
    session = Session(folder)
    sys.meta_path.insert(0, _Finder(session))
    atexit.register(session.finish)


def _message(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


def _version(library: str) -> str:
    try:
        from importlib.metadata import version

        return version(library)
    except ModuleNotFoundError:
        return ""
