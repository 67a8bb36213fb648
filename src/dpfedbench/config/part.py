"""Base classes of settings: sections that validate themselves, and parts, which are
sections with a behaviour.

A section of a configuration is a `Settings` class, whose fields are its keys. A `Part`
is one of several alternatives at the same key; its `kind` selects it. All alternatives
(all clipping rules, for instance) are a family: a base class without `kind`, whose
`package` names the package that holds the family's modules. A new module there adds a
part.

Every fault is a `BenchError` of one line with the full name of the key.
"""

import typing
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Never, Self

import pydantic

from dpfedbench import plugins
from dpfedbench.config.breach import Breach
from dpfedbench.config.kinds import kind_of as kind_of
from dpfedbench.config.kinds import kinds_of as kinds_of
from dpfedbench.config.messages import describe
from dpfedbench.config.rules import Rule
from dpfedbench.config.schema import KeyedModel, differing_values
from dpfedbench.config.schema import plain as plain
from dpfedbench.config.schema import setting as setting
from dpfedbench.errors import BenchError

# A key with the name of an attribute of its base would be ignored.
warnings.filterwarnings("error", "Field name .* shadows an attribute", UserWarning)


class Settings(KeyedModel):
    """Immutable section of a configuration, without unknown keys and invalid values.

    Text is read as a number, truth value or null where the key expects one, because
    `--config` and YAML (1e-6) pass text. 1 and 1.0 are one value, and a truth value is
    not a number.

    Raises:
        BenchError: an unknown or missing key, or a value out of bounds.
    """

    def __init__(self, **values: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self)
        except pydantic.ValidationError as error:
            raise BenchError(describe(error, values, "")) from None

    # Tells pydantic that it may create an instance without calling this method.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def plain(self) -> dict[str, Any]:
        """Return the plain values of all keys, as in config.yaml.

        `read` creates an equal instance from them.
        """
        return plain(self)

    def identity(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, and all parts' kinds."""
        return differing_values(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values at some keys, which are validated.

        Raises:
            BenchError: a value is out of bounds.
        """
        return type(self)(
            **{key: getattr(self, key) for key in type(self).model_fields} | changes
        )


class Section(Settings):
    """Section of a run.

    `rules` are those between this section and the rest of the run; a class adds its own
    to those of its bases.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()

    def references(self, run: Never) -> Mapping[str, Any]:
        """Return the other runs whose files this section needs, by the file's name.

        This class does not know the class of runs, so that the parameter has no type
        here. An override declares the type `Run`.
        """
        return {}

    def notices(self, run: Never) -> tuple[str, ...]:
        """Return the notices that this section adds to a private run's results."""
        return ()

    @property
    def unaccounted_releases(self) -> tuple[str, ...]:
        """Reasons why a value that this section computed from private data before
        training is a release without an accounting event.
        """
        return ()

    def breaches(self, run: Never) -> tuple[Breach, ...]:
        """Return the steps of this section that no account of the run covers.

        A run with a breach is refused, unless it repeats a paper's released code
        (`Run.reading`).
        """
        return ()


class Part(Section):
    """One of several alternatives at a key of a configuration.

    A family's base names the package of the family's modules as `package`. A part has a
    field `kind`, for instance `kind: Literal["constant"] = "constant"`; a family may
    name that key otherwise (`tag`). `default_kind` is the kind where it is missing.
    """

    package: ClassVar[str] = ""
    tag: ClassVar[str] = "kind"
    default_kind: ClassVar[str] = ""
    if typing.TYPE_CHECKING:
        kind: str


@plugins.cached
def states(cls: Any, name: str) -> bool:
    """Return whether the class of a section, here or in `dpsum`, states a method that
    `Section` leaves empty.
    """
    empty = getattr(Section, name)
    return getattr(cls, name, empty) is not empty
