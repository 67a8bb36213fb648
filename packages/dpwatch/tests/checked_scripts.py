"""Planted pitfalls, and checks of scripts.

`check_script` checks in a forked process, which has imported the libraries already.
"""

import contextlib
import json
import os
import runpy
import sys
import warnings
from pathlib import Path

from dpwatch.check import command, hooks
from dpwatch.check.pitfalls import PITFALLS as TITLES
from dpwatch.check.report import read_observations, report

PITFALLS = Path(__file__).with_name("pitfalls")
# What a check says of each planted pitfall: the verdict, and words of the reason.
PLANTED = {
    "opacus/division_by_batch_size": ("nothing proven", "expected_batch_size"),
    "opacus/loss_reduction": ("look", "Division by batch size"),
    "opacus/sensitivity_alignment": ("not as claimed", "claimed is epsilon"),
    "opacus/half_the_noise": ("nothing proven", "its noise is less"),
    "opacus/accounting_mismatch": ("not as claimed", "claimed is epsilon"),
    "opacus/private_metadata": ("look", "Public vs. private metadata"),
    "opacus/empty_batches": ("nothing proven", "an empty batch"),
    "opacus/not_finite": ("nothing proven", "not finite"),
    "opacus/gradient_accumulation": ("nothing proven", "several Poisson batches"),
    "opacus/noise_used_again": ("nothing proven", "was used before"),
    "opacus/cross_example_operations": ("look", "Cross-example operations"),
    "opacus/auxiliary_information": ("look", "Auxiliary information"),
    "flower/division_by_batch_size": ("look", "Division by batch size"),
    "flower/sensitivity_alignment": ("nothing proven", "weighted by"),
    "flower/not_finite": ("nothing proven", "not finite"),
    "flower/auxiliary_information": ("nothing proven", "without noise"),
    "jax/division_by_batch_size": ("nothing proven", "not the clipped sum"),
    "jax/sensitivity_alignment": ("not as claimed", "claimed is epsilon"),
    "jax/accounting_mismatch": ("nothing proven", "no batch selection"),
    "jax/private_metadata": ("look", "Public vs. private metadata"),
    "jax/neighboring_relation": ("not as claimed", "replace-one adjacency"),
    "jax/empty_or_not_finite": ("look", "non-finite gradients"),
    "jax/gradient_accumulation": ("nothing proven", "noise state was used before"),
    "jax/cross_example_operations": ("look", "Cross-example operations"),
    "jax/auxiliary_information": ("look", "Auxiliary information"),
    "torch/sensitivity_alignment": ("nothing watched", "Sensitivity alignment"),
    "torch/division_by_batch_size": ("nothing watched", "Division by batch size"),
    "torch/gradient_accumulation": ("nothing watched", "Gradient accumulation"),
}


# Scripts whose name is not that of their pitfall.
OTHER_NAMES = {
    "loss_reduction": "division-by-batch-size",
    "half_the_noise": "sensitivity-alignment",
    "empty_batches": "empty-or-not-finite",
    "not_finite": "empty-or-not-finite",
    "noise_used_again": "gradient-accumulation",
}


def pitfall_of(name):
    stem = name.partition("/")[2]
    return OTHER_NAMES.get(stem, stem.replace("_", "-"))


def titles(report):
    return ", ".join(TITLES[finding["pitfall"]] for finding in report["findings"])


def check_script(path, folder, *arguments, **settings):
    """Run a script under the hooks, in a fork of this process; return its report."""
    settings = command.default_settings() | {"audit_calls": 0} | settings
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _run(path, folder, arguments)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return report(
        read_observations(folder),
        command=[str(path), *arguments],
        exit_code=os.waitstatus_to_exitcode(status),
        settings=settings,
    )


def _run(path, folder, arguments):
    os.chdir(folder)
    sys.argv = [str(path), *arguments]
    warnings.resetwarnings()  # those of pytest are errors
    warnings.simplefilter("ignore")
    session = hooks.install(folder)
    code = 0
    with (
        Path("output.txt").open("w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            print(repr(error))
            code = 1
        session.finish()
    return code
