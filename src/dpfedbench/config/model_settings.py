"""Base of the networks' settings. The networks are in `dpfedbench.models.zoo`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dpfedbench.config.part import Part


class ModelSettings(Part):
    """Network; see `models.zoo`."""

    package: ClassVar[str] = "dpfedbench.models.zoo"
    by_record: ClassVar[str] = "model.normalisation to record"
    """Setting under which no record's gradient depends on another record."""

    @property
    def record_level(self) -> bool:
        """Whether a record may have a gradient of its own.

        It is false where the settings alone imply that records are mixed.
        """
        return True

    @property
    def text(self) -> str:
        """Hash of the network's source file, where that is a plugin's; else empty."""
        return ""

    def resolved(self, files: Mapping[str, Path]) -> ModelSettings:
        """Return the network without references, given the files of `Run.references`.

        Raises:
            BenchError: a file is missing or damaged.
        """
        return self

    def without_references(self) -> ModelSettings:
        """Return a network of the same size that needs no file of another run.

        It answers questions about the size before these files exist.
        """
        return self

    def prepared(self, records: Any, public: Any = None) -> Any:
        """Return the network's inputs for records [n, ...]; by default the records.

        The inputs are a fixed map of each record separately.

        Args:
            records: the records as in the data set.
            public: records of the public validation split [m, ...], the only other data
                that the map may depend on.
        """
        return records

    def made_once(self, run: Any) -> dict[str, Any] | None:
        """Return plain values that `prepared` depends on besides the records.

        One job then computes the inputs for all runs. None: every run computes them
        itself.
        """
        return None

    def net(self, *, input_shape: tuple[int, ...], outputs: int) -> Any:
        """Return the model, a `models.net.Net`.

        Args:
            input_shape: shape of a prepared record.
            outputs: number of logits of a record.

        Raises:
            BenchError: the network does not fit such records.
        """
        raise NotImplementedError
