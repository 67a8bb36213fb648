"""Run a script with fixed seeds, and print a digest of all that it trained.

    python training_digest.py SCRIPT [ARGUMENT ...]
    dpwatch check -- python training_digest.py SCRIPT [ARGUMENT ...]

The two digests are equal if watching changes no bit of the training. A digest is of all
parameters after each step of a torch optimiser, and of the arrays that the script's
function `main`, or its module, has at the end.
"""

import hashlib
import importlib.util
import os
import random
import runpy
import sys
from types import CodeType, FrameType
from typing import Any

import numpy as np

SEED = 1


class Digest:
    """A SHA-256 digest of arrays, with the number of arrays in it."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.arrays = 0

    def add(self, value: Any) -> None:
        """Add the arrays of a value: an array, a module of torch, or a container."""
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                self.add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.add(item)
        elif hasattr(value, "state_dict") and hasattr(value, "parameters"):
            self.add(value.state_dict())
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            self._add_array(value)

    def _add_array(self, value: Any) -> None:
        try:
            array = np.asarray(value.detach().cpu() if _is_torch(value) else value)
        except TypeError:  # random keys of jax
            return
        self._sha.update(f"{array.dtype} {array.shape}".encode())
        self._sha.update(array.tobytes())
        self.arrays += 1

    def text(self) -> str:
        """Return the digest and the number of arrays."""
        return f"{self._sha.hexdigest()[:16]} of {self.arrays:,} arrays"


def main(script: str, *arguments: str) -> None:
    """Run a script and print the digest, also where the script fails."""
    digest = Digest()
    _seed()
    _hash_steps(digest)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    sys.setprofile(_at_return_of_main(os.path.abspath(script), digest))
    try:
        digest.add(runpy.run_path(script, run_name="__main__"))
    finally:
        sys.setprofile(None)
        print(f"training digest: {digest.text()}", flush=True)


def _seed() -> None:
    """Fix the seeds that a script may leave to the machine."""
    random.seed(SEED)
    np.random.seed(SEED)
    new_generator = np.random.default_rng

    def default_rng(seed: Any = None) -> np.random.Generator:
        return new_generator(SEED if seed is None else seed)

    np.random.default_rng = default_rng
    if _has_torch():
        import torch

        torch.manual_seed(SEED)


def _hash_steps(digest: Digest) -> None:
    """Add all parameters after each step of a torch optimiser."""
    if not _has_torch():
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def add(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            digest.add(group["params"])

    register_optimizer_step_post_hook(add)


def _has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def _at_return_of_main(script: str, digest: Digest) -> Any:
    """Return a profiler that adds the arrays of the script's `main` at its end."""

    def is_main(code: CodeType) -> bool:
        return code.co_name == "main" and os.path.abspath(code.co_filename) == script

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and is_main(frame.f_code):
            digest.add(dict(frame.f_locals))

    return profile


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


if __name__ == "__main__":
    main(*sys.argv[1:])
