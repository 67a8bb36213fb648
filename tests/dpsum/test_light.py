"""Imports of dpsum: the standard library, numpy and scipy."""

import subprocess
import sys

IMPORTS = """
import importlib, pkgutil, sys

ALLOWED = sys.stdlib_module_names | {"numpy", "scipy", "dploss", "dpsum"}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        # The standard library keeps its build settings in a module that is named by the machine.
        if name.partition(".")[0] not in ALLOWED and not name.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(f"{name} is not for dpsum", name=name)


sys.meta_path.insert(0, Refuse())
try:
    import torch
except ModuleNotFoundError as error:
    assert "not for dpsum" in str(error)
else:
    raise AssertionError("nothing was refused")

import dpsum


def modules(package):
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        yield info.name
        if info.ispkg:
            yield from modules(module)


print(*modules(dpsum))
"""


GAUSSIAN = """
import sys

import dpsum

for name in ("Mechanism", "Gaussian", "Constant", "Poisson", "Ledger", "account"):
    getattr(dpsum, name)
print(*sys.modules)
"""

WORDS_OF_OTHER_NOISE = (
    "correlated",
    "factorisations",
    "triangular",
    "skellam",
    "secure",
    "importance",
)


def printed_names(code):
    """Run code in an interpreter of its own; return the names of our packages it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name.startswith("dp")}


def test_dpsum_imports_numpy_and_scipy_alone():
    expected = {"dpsum.private_sum", "dpsum.accounting.account", "dpsum.audit.bounds"}
    assert expected <= printed_names(IMPORTS)


def test_dpsum_loads_no_file_of_other_noise_for_the_gaussian_case():
    modules = printed_names(GAUSSIAN)
    assert {"dpsum.noise", "dpsum.mechanism", "dpsum.accounting.account"} <= modules
    for word in WORDS_OF_OTHER_NOISE:
        assert not [name for name in modules if word in name]
