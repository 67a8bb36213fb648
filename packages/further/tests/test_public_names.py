"""The package uses the public interface of plugins alone."""

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "src" / "further"
PUBLIC = {
    "dpfedbench.config.part": {"setting"},
    "dpfedbench.config.rules": {"Rule"},
    "dpfedbench.lazy": {"np", "torch"},
    "dpfedbench.papers.dp_fedmeta": {"DpAgr"},
    "dpfedbench.papers.federated_averaging": {"DpFedAvg", "FedAvg"},
    "dpfedbench.parts.budget": {"BudgetSettings"},
    "dpfedbench.parts.optimizers.optimizer": {"Sgd"},
    "dpfedbench.parts.server.server_step": {"Step"},
    "dpfedbench.training.client_updates.local_model": {"LocalClient", "LocalModel"},
    "dpfedbench.training.client_updates.model_difference": {
        "DifferenceUpdate",
        "ModelDifference",
    },
    "dpsum.accounting.claims": {"Claim", "one_release"},
    "dpsum.clipping": {"Constant", "PercentileOfReleases"},
    "dpsum.correlated_noise": {"Factorised"},
    "dpsum.noise": {"Gaussian"},
    "dpsum.participation": {
        "BallsAndBins",
        "MinSeparation",
        "OnePass",
        "Poisson",
        "ShuffledEpochs",
    },
    "dpsum.skellam_noise": {"Skellam"},
    "dpsum.sums": {"SumSpec"},
    "torch": {"", "nn"},
    "torch.nn": {"functional"},
}
"""Names that the package may import: methods and parts, what they are settings of, and
the sums that they declare; and torch, for a network. docs/your-method.md explains them. A name that a plugin needs
and cannot import from here is a fault of the interface.
"""
STANDARD = {"__future__", "collections.abc", "dataclasses", "typing"}


def imported_names(text: str) -> set[tuple[str, str]]:
    """Return the module and the name of each import, also of those in functions."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {(alias.name, "") for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {(module, alias.name) for alias in node.names}
    return names


def is_public(module: str, name: str) -> bool:
    return module in STANDARD | {"further"} or name in PUBLIC.get(module, ())


@pytest.mark.parametrize(
    "file", sorted(SOURCES.rglob("*.py")), ids=lambda file: file.stem
)
def test_module_imports_public_names_alone(file: Path) -> None:
    names = imported_names(file.read_text(encoding="utf-8"))
    assert not [name for name in names if not is_public(*name)]


def test_list_has_no_name_that_nothing_imports() -> None:
    files = SOURCES.rglob("*.py")
    texts = [file.read_text(encoding="utf-8") for file in files]
    imported = {name for text in texts for name in imported_names(text)}
    listed = {(module, name) for module, names in PUBLIC.items() for name in names}
    assert listed <= imported


@pytest.mark.parametrize(
    "text",
    [
        "from dpfedbench.training.rounds import Rounds",
        "from dpfedbench.run import read_run",
        "import dpfedbench.plugins",
        "def late():\n    from dpsum.mechanism import Mechanism",
        "from dpsum.noise import *",
    ],
)
def test_other_import_is_found(text: str) -> None:
    assert not all(is_public(*name) for name in imported_names(text))
