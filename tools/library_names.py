"""Count the lines and names of the same jobs here, in jax_privacy and in pfl-research.

    uv run python tools/library_names.py --jax-privacy CHECKOUT --pfl CHECKOUT

`JOBS` lists the definitions that do each job. Lines are lines of code: no blank lines,
comments, docstrings or imports. Names are the distinct identifiers that the definitions
take from elsewhere in their library, or from a privacy library below it:

- imported and global names,
- attributes of objects, and members of base classes that are used or overridden,
- parameters of overridden methods, and keywords of calls,
- keys of mappings that the definitions read and do not write themselves.

Names of Python, numpy, torch and jax are left out, and those of optax too without
`--optax`. `--names` prints the names that are counted.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import enum
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Members = dict[str, set[str]]
"""Parameters of each member of a class; none of an attribute."""


Sources = Mapping[str, str]
"""Definitions by file: top-level names, or `Class.member`, with spaces between."""

JAX_NOISE = "jax_privacy/noise_addition.py"
OUR_NOISE = "dpsum/correlated_noise.py"
OUR_ACCOUNTANT = "dpsum/accounting/analyses/poisson.py"
OUR_PAPER = "dpfedbench/papers/federated_averaging.py"
FURTHER = "../packages/further/src/further"
OUR_FEDPROX = f"{FURTHER}/fedprox.py"
PFL_ALGORITHM = "pfl/algorithm/federated_averaging.py"
PFL_FEDPROX = {
    "pfl/algorithm/fedprox.py": "FedProxParams FedProx",
    "pfl/internal/bridge/pytorch/proximal.py": (
        "_proximal_train_step PyTorchFedProxBridge"
    ),
}

JOBS: Mapping[str, Mapping[str, Sources]] = {
    "Gaussian noise, with the clipping of contributions": {
        "here": {
            "dpsum/noise.py": "Noise.multiplier Noise.standard Gaussian",
            "dpsum/private_sum.py": "add_rows clip double PrivateSum",
        },
        "jax_privacy": {
            JAX_NOISE: (
                "matrix_factorization_privatizer gaussian_privatizer _iid_normal_noise"
                " _streaming_matrix_factorization_privatizer"
            ),
            "jax_privacy/clipping.py": "clip_pytree",
        },
        "pfl": {
            "pfl/privacy/gaussian_mechanism.py": "get_noise_stddev GaussianMechanism",
            "pfl/privacy/privacy_mechanism.py": "NormClipping",
        },
    },
    "another noise: correlated over rounds by a matrix": {
        "here": {OUR_NOISE: "Factorised"},
        "here, draws alone": {
            OUR_NOISE: (
                "Factorised.mechanism Factorised.combines Factorised.standard"
                " Factorised.inverse"
            )
        },
        "jax_privacy": {
            JAX_NOISE: (
                "_compute_loop_bounds _gaussian_linear_combination"
                " _dense_matrix_factorization_privatizer"
            )
        },
        "pfl": {
            "pfl/privacy/ftrl_mechanism.py": (
                "ForwardSubstitution BandedMatrixFactorizationMechanism"
            )
        },
    },
    "accountant: Gaussian noise, Poisson sampling": {
        "here": {OUR_ACCOUNTANT: "PoissonAccountant"},
        "here, epsilon alone": {
            OUR_ACCOUNTANT: (
                "PoissonAccountant.pair PoissonAccountant.explanation"
                " PoissonAccountant.ends_of"
            )
        },
        "jax_privacy": {
            "jax_privacy/accounting.py": (
                "_validate_poisson_args _gaussian_event dpsgd_event"
            )
        },
        "pfl": {"pfl/privacy/privacy_accountant.py": "RDPPrivacyAccountant"},
    },
    "algorithm: FedProx": {
        "here": {
            "dpfedbench/training/client_updates/model_difference.py": (
                "DifferenceUpdate ModelDifference"
            ),
            OUR_PAPER: "DpFedAvg",
            OUR_FEDPROX: "Proximal",
        },
        "pfl": {PFL_ALGORITHM: "FederatedAveraging", **PFL_FEDPROX},
    },
    "algorithm: FedProx, given federated averaging": {
        "here": {OUR_FEDPROX: "Proximal"},
        "pfl": PFL_FEDPROX,
    },
}

FOREIGN = {*sys.stdlib_module_names, "numpy", "scipy", "torch", "jax"}
LAZY = {"dpsum.lazy", "dpfedbench.lazy"}
"""Our modules that pass numpy and torch on."""

TAG = "kind"
"""Our name of a part in a configuration, which no base class declares."""

BASIC = (str, list, dict, tuple, int, float, np.ndarray, np.random.Generator, enum.Enum)
"""Types whose members are not names of a library."""


def definitions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    """Yield the functions, classes and variables that a body defines, by name."""
    for node in body:
        match node:
            case ast.If(body=inner):
                yield from definitions(inner)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node


def parameters(node: ast.AST) -> set[str]:
    """Return the names of a function's parameters; none of another definition."""
    if not isinstance(node, ast.FunctionDef):
        return set()
    arguments = node.args
    all_arguments = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {argument.arg for argument in all_arguments} - {"self", "cls"}


def members_of(class_: ast.ClassDef) -> Members:
    """Return the members of a class, with those that its methods set on `self`."""
    members = {name: parameters(node) for name, node in definitions(class_.body)}
    for node in ast.walk(class_):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                members.setdefault(name, set())
    return members


def root_of(node: ast.AST) -> str:
    """Return the name at the start of a chain of attributes, calls and subscripts."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def first_line(node: Definition) -> int:
    """Return the number of a definition's first line, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def lines_of(node: Definition) -> set[int]:
    """Return the numbers of a definition's lines without those of docstrings."""
    numbers = set(range(first_line(node), (node.end_lineno or 0) + 1))
    for inner in ast.walk(node):
        match inner:
            case ast.Expr(value=ast.Constant(value=str())):
                numbers -= set(range(inner.lineno, (inner.end_lineno or 0) + 1))
    return numbers


class Library:
    """Files of a library, and all of its classes by name."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        self.root = root
        self.classes: dict[str, list[ast.ClassDef]] = {}
        for package in packages:
            for path in sorted((root / package).rglob("*.py")):
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.ClassDef):
                        self.classes.setdefault(node.name, []).append(node)

    def inherited(self, class_: ast.ClassDef, selected: set[str]) -> Members:
        """Return the members of a class's bases, without those of selected bases."""
        inherited: Members = {}
        for base in class_.bases:
            name = root_of(base)
            for node in self.classes.get(name, []):
                if node is class_:
                    continue
                members = self.inherited(node, selected)
                if name not in selected:
                    members |= members_of(node)
                for member, arguments in members.items():
                    inherited[member] = inherited.get(member, set()) | arguments
        return inherited


class Module:
    """One file of a library: its definitions, and where its names come from.

    Attributes:
        definitions: functions, classes and variables that it defines.
        imported: original name of each name that it imports from a library.
        foreign: names of Python, numpy, torch and jax.
        basic: members of their types.
    """

    def __init__(self, text: str, foreign_packages: set[str]) -> None:
        tree = ast.parse(text)
        self.text = text.splitlines()
        self.definitions = dict(definitions(tree.body))
        self.imported: dict[str, str] = {}
        self.foreign = set(dir(builtins)) - {"super"}
        types = list(BASIC)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for alias in node.names:
                name = alias.asname or alias.name
                package = alias.name
                is_relative = False
                if isinstance(node, ast.ImportFrom):
                    package = node.module or ""
                    is_relative = node.level > 0
                first, *_ = package.split(".")
                if is_relative or not (first in foreign_packages or package in LAZY):
                    self.imported[name] = alias.name
                    continue
                self.foreign.add(name.split(".")[0])
                if "torch" in (first, name):
                    types.append(torch.Tensor)
        self.basic = {member for type_ in types for member in dir(type_)} | {"value"}


class Count:
    """Lines of code and names of a job in one library.

    Attributes:
        lines: number of lines.
        names: names from elsewhere.
        places: file, first and last line, and name of each definition.
    """

    def __init__(
        self, library: Library, sources: Sources, foreign: set[str] = FOREIGN
    ) -> None:
        self.library = library
        self.lines = 0
        self.names = set[str]()
        self.places: list[str] = []
        self._keywords = set[str]()
        self._keys_read = set[str]()
        self._keys_written = set[str]()
        self._own_members = set[str]()
        self._selected = {
            name.split(".")[0] for names in sources.values() for name in names.split()
        }
        for path, names in sources.items():
            text = (library.root / path).read_text(encoding="utf-8")
            self._add_file(path, names.split(), Module(text, foreign))
        # A keyword that the definitions read as a key is theirs.
        chosen = self._keys_read & self._keywords
        self.names |= (self._keywords | self._keys_read) - chosen - self._keys_written
        self.names -= self._own_members

    def _add_file(self, path: str, names: Sequence[str], module: Module) -> None:
        numbers = set[int]()
        for name in names:
            outer, _, member = name.partition(".")
            node = module.definitions[outer]
            lines = lines_of(node)
            if isinstance(node, ast.ClassDef):
                self._add_class(node, module, member)
                if member:
                    header = set(range(first_line(node), node.body[0].lineno))
                    node = dict(definitions(node.body))[member]
                    lines = lines_of(node)
                    numbers |= header
            self.places.append(f"{path}:{min(lines)}-{max(lines)} {name}")
            numbers |= lines
            self._add_names(node, module)
        for number in numbers:
            line = module.text[number - 1].strip()
            self.lines += bool(line) and not line.startswith("#")

    def _add_class(self, class_: ast.ClassDef, module: Module, member: str) -> None:
        """Add the base classes, and the inherited names that the class overrides."""
        inherited = self.library.inherited(class_, self._selected)
        members = members_of(class_)
        self._own_members |= set(members) - set(inherited) - {TAG}
        overriding = {member} if member else set(members)
        if TAG in overriding:
            self.names.add(TAG)
        for name in overriding & set(inherited):
            if not name.startswith("__"):
                self.names |= {name} | (members[name] & inherited[name])
        for name, node in definitions(class_.body):
            value = getattr(node, "value", None)
            if isinstance(value, ast.Dict) and name in overriding:
                keys = [key for key in value.keys if isinstance(key, ast.Constant)]
                self.names |= {str(key.value) for key in keys}
        for base in class_.bases:
            self._add_names(base, module)

    def _add_names(self, node: ast.AST, module: Module) -> None:
        nodes = list(ast.walk(node))
        owners = {
            id(inner.value) for inner in nodes if isinstance(inner, ast.Attribute)
        }
        for inner in nodes:
            match inner:
                case ast.Name(id=name):
                    original = module.imported.get(name, name)
                    # A module counts by the attributes that are taken from it.
                    is_module = original.islower() and id(inner) in owners
                    is_elsewhere = name in module.imported or name in module.definitions
                    if is_elsewhere and not is_module and name not in self._selected:
                        self.names.add(original)
                case ast.Attribute(value=owner, attr=name):
                    if self._is_from_library(owner, name, module):
                        self.names.add(name)
                case ast.Call():
                    self._add_call(inner, module)
                case ast.Subscript(value=ast.Name(id="Literal")):
                    continue
                case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=context):
                    if isinstance(context, ast.Store):
                        self._keys_written.add(key)
                    else:
                        self._keys_read.add(key)

    def _is_from_library(self, owner: ast.AST, name: str, module: Module) -> bool:
        if name.startswith("__") or root_of(owner) in module.foreign:
            return False
        is_self = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
        return is_self or name not in module.basic

    def _add_call(self, call: ast.Call, module: Module) -> None:
        match call.func:
            case ast.Attribute(attr="get"):
                match call.args:
                    case [ast.Constant(value=str(key)), *_]:
                        self._keys_read.add(key)
                return
            case ast.Attribute(value=ast.Name(id="dataclasses"), attr="replace"):
                is_library = True
            case ast.Attribute(value=owner, attr=name):
                is_library = self._is_from_library(owner, name, module)
                is_library |= root_of(owner) == "super"
            case ast.Name(id=name):
                is_library = name in module.imported or name in module.definitions
                is_library &= name not in self._selected
            case _:
                is_library = False
        if is_library:
            self._keywords |= {key.arg for key in call.keywords if key.arg}


def our_library() -> Library:
    """Return the library of this checkout."""
    sources = Path(__file__).parents[1] / "src"
    return Library(sources, ["dpsum", "dpfedbench", FURTHER])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="lines and names of the same jobs")
    parser.add_argument("--jax-privacy", type=Path, required=True)
    parser.add_argument("--pfl", type=Path, required=True)
    parser.add_argument("--optax", action="store_true", help="count names of optax too")
    parser.add_argument("--names", action="store_true", help="print places and names")
    arguments = parser.parse_args()
    foreign = set(FOREIGN)
    if not arguments.optax:
        foreign.add("optax")
    ours = our_library()
    libraries = {
        "jax_privacy": Library(arguments.jax_privacy, ["jax_privacy"]),
        "pfl": Library(arguments.pfl, ["pfl"]),
    }
    print("| job | library | lines | names |")
    print("|---|---|---|---|")
    for job, by_library in JOBS.items():
        for name, sources in by_library.items():
            count = Count(libraries.get(name, ours), sources, foreign)
            print(f"| {job} | {name} | {count.lines} | {len(count.names)} |")
            if arguments.names:
                print(*count.places, sorted(count.names), sep="\n  ")


if __name__ == "__main__":
    main()
