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
- "plain": a Flower strategy without differential privacy ran;
- "source": a file of the script's own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HOOKS = {
    "dpsum.ledger": "dpsum_hooks:hook_ledgers",
    "opacus.privacy_engine": "opacus_hooks:hook_engine",
    "torch.optim.optimizer": "torch_hooks:hook_steps",
    "flwr.serverapp.strategy.strategy": "flower_hooks:hook_strategies",
    "flwr.clientapp.mod.localdp_mod": "flower_hooks:hook_local_mods",
    "flwr.server.strategy.dp_fixed_clipping": "flower_hooks:refuse_former",
    "flwr.server.strategy.dp_adaptive_clipping": "flower_hooks:refuse_former",
    "flwr.server.strategy.dpfedavg_fixed": "flower_hooks:refuse_former",
    "flwr.server.strategy.dpfedavg_adaptive": "flower_hooks:refuse_former",
    "jax_privacy.accounting.calibrate": "jax_hooks:hook_training_calibrations",
    "jax_privacy.batch_selection": "jax_hooks:hook_selections",
    "jax_privacy.clipping": "jax_hooks:hook_clipping",
    "jax_privacy.noise_addition": "jax_hooks:hook_privatizers",
    "dp_accounting.mechanism_calibration": "jax_hooks:hook_calibration",
    "dp_accounting.pld.pld_privacy_accountant": "jax_hooks:hook_accountants",
    "dp_accounting.rdp.rdp_privacy_accountant": "jax_hooks:hook_accountants",
    "pfl.algorithm.base": "pfl_hooks:hook_algorithm",
    "pfl.data.sampling": "pfl_hooks:hook_sampler",
}
"""Module of a library, and the function here that puts hooks into it. The function
takes the module and the session.
"""

_NOT_OF_SCRIPT = ("dpwatch", "dpsum", "dploss", "sitecustomize")


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
        self._script = _existing(sys.argv[0] if sys.argv else None)
        self._deltas: list[float] = []
        self._is_over = False
        self._count = 0
        self.say("started", command=sys.argv or [sys.executable])

    def say(self, kind: str, **values: Any) -> None:
        """Append an observation."""
        path = self.folder / f"{os.getpid()}.jsonl"
        line = json.dumps({"kind": kind, **values}, default=str)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def attempt(self, library: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a function of a hook returns.

        Its error is an observation, not the script's, and the result is then None.
        """
        try:
            return function(*args)
        except Exception as error:
            self.say("refused", library=library, text=_message(error))
            return None

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
        self.say("watched", library=library, version=_version(library), ledger=name)

    def claim(self, library: str, epsilon: float, delta: float) -> None:
        """Note an epsilon that the script, and not the account, got from its library."""
        if self._is_over:
            return
        self._deltas.append(float(delta))
        self.say("claim", library=library, epsilon=float(epsilon), delta=float(delta))

    def delta(self) -> tuple[float, str]:
        """Return delta of the accounts, and a sentence that says where it is from."""
        if self.settings["delta"] is not None:
            return float(self.settings["delta"]), "Delta was given to the check."
        if self._deltas:
            return self._deltas[-1], "Delta is the script's own."
        return 1e-5, "The script states no delta: this one is the check's default."

    def finish(self) -> None:
        """Write the accounts, at the end of the process."""
        if os.getpid() != self._process:
            return
        self._is_over = True
        for end in self.at_end:
            self.attempt("dpwatch", end)
        for library, name, watch in self.watches:
            self.attempt(library, self._finish_watch, library, name, watch)
        for path in script_files(self._script):
            self.say("source", path=str(path))

    def _finish_watch(self, library: str, name: str, watch: Any) -> None:
        from dpwatch.check.accounts import account_of_watch

        values = account_of_watch(watch, *self.delta(), self.settings)
        self.say("account", library=library, ledger=name, **values)


def script_files(script: Path | None = None) -> list[Path]:
    """Return the files of imported modules that belong to the script itself.

    These are the script, and the modules below its folder or the working folder that are
    not of an installed package.

    Args:
        script: the file that Python runs; None: a module or a text. Python forgets it
            before the end of the process.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    script = script or _existing(getattr(main, "origin", None))
    roots = {Path.cwd().resolve()}
    files = set()
    if script is not None:
        roots.add(script.parent)
        files.add(script)
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for name, module in list(sys.modules.items()):
        path = _existing(getattr(module, "__file__", None))
        if path is None or name.partition(".")[0] in _NOT_OF_SCRIPT:
            continue
        is_library = any(path.is_relative_to(Path(root)) for root in libraries)
        if not is_library and any(path.is_relative_to(root) for root in roots):
            files.add(path)
    return sorted(files)


def _existing(file: Any) -> Path | None:
    """Return the path of a Python file that exists."""
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    is_installed = "site-packages" in path.parts or not path.is_file()
    return None if is_installed else path


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

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            _hook(module, self._session)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def _hook(module: ModuleType, session: Session) -> None:
    name = module.__name__
    put_hooks = pkgutil.resolve_name(f"dpwatch.check.{HOOKS[name]}")
    session.attempt(name.partition(".")[0], put_hooks, module, session)


def install(folder: Path | str) -> Session:
    """Install the hooks in this process; what they see is written to the folder."""
    session = Session(folder)
    for name in HOOKS:
        if name in sys.modules:
            _hook(sys.modules[name], session)
    sys.meta_path.insert(0, _Finder(session))
    return session


def _message(error: BaseException) -> str:
    return " ".join(f"{error}".split()) or type(error).__name__


def _version(library: str) -> str:
    try:
        from importlib.metadata import version

        return version(library)
    except ModuleNotFoundError:
        return ""
