"""What dpsum stands on: the standard library, numpy and scipy."""

import subprocess
import sys

IMPORTS = """
import importlib, pkgutil, sys

ALLOWED = sys.stdlib_module_names | {"numpy", "scipy", "dpsum"}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        # The standard library keeps how it was built in a module that is named by the machine.
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
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(found.name)
        yield found.name
        if found.ispkg:
            yield from modules(module)


print(*modules(dpsum))
"""


def test_every_module_is_imported_with_numpy_and_scipy_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {
        "dpsum.private_sum",
        "dpsum.accounting.account",
        "dpsum.audit.bounds",
    } <= set(done.stdout.split())


GAUSSIAN = """
import sys

import dpsum

for name in ("Mechanism", "Gaussian", "Constant", "Poisson", "Ledger", "account"):
    getattr(dpsum, name)
print(*sorted(name for name in sys.modules if name.startswith("dpsum")))
"""


def test_the_gaussian_case_needs_no_file_of_correlated_or_skellam_noise() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GAUSSIAN], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"dpsum.noise", "dpsum.mechanism", "dpsum.accounting.account"} <= loaded
    others = {
        "dpsum.correlated_noise",
        "dpsum.factorisations",
        "dpsum.triangular",
        "dpsum.skellam_noise",
        "dpsum.secure",
        "dpsum.accounting.importance_sampling",
        "dpsum.accounting.analyses.correlated",
        "dpsum.accounting.analyses.correlated_balls_and_bins",
        "dpsum.accounting.analyses.skellam",
    }
    assert not loaded & others
