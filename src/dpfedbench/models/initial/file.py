"""Initial weights from a file of the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.initial_weights import Initial
from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.files import sha256

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.run import Run


class FileInitial(Initial):
    """The first member of a model file in the format of runs (model.safetensors).

    The configuration pins the file's bytes.
    """

    kind: Literal["file"] = "file"
    path: str = setting(pattern=r"\S", doc="path from where the workflow is called")
    sha256: str = setting(
        pattern="^[0-9a-f]{64}$",
        doc="SHA-256 of the file, so that other weights are another run",
    )
    source: str = setting(
        pattern=r"\S", doc="for readers: what the weights were trained on"
    )
    public: bool = setting(
        False,
        doc=(
            "false: the weights come from private data without an account, and no"
            " finite epsilon is proven"
        ),
    )

    @property
    def label(self) -> str:
        return f"from weights of {self.source}"

    def without_account(
        self, dataset: str, references: Mapping[str, Run]
    ) -> tuple[str, ...]:
        if self.public:
            return ()
        return (
            f"training starts from weights of {self.source}, which no account covers",
        )

    def public_for(self, run: Run) -> bool:
        return self.public

    def weights(self, net: Any, **_: Any) -> np.ndarray:
        from dpfedbench.models.members import load_members

        path = Path(self.path)
        try:
            digest = sha256(path)
        except OSError as error:
            raise BenchError(
                f"initial.path is {path}, which cannot be read ({error.strerror}): give"
                " a file"
            ) from error
        if digest != self.sha256:
            raise BenchError(
                f"initial.path is {path}, and its SHA-256 is {digest}, but"
                f" initial.sha256 is {self.sha256}: take the file with that checksum,"
                " or correct initial.sha256"
            )
        return load_members(path, net)[0]

    def notices(self, run: Run) -> tuple[str, ...]:
        if not self.public:
            return ()
        return (f"training starts from weights of {self.source}, declared public",)
