"""Train one run."""

import contextlib
import functools
from pathlib import Path

from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "train"):
        from dpfedbench import ahead
        from dpfedbench.accounting.tuning import Search
        from dpfedbench.evaluation import evaluate
        from dpfedbench.federation.accounts import account_run
        from dpfedbench.federation.engine import train
        from dpfedbench.methods import read_run_file

        machine, after = snakemake.config["machine"], snakemake.config.get("ahead")
        run, model = read_run_file(snakemake.input.config[0]), Path(snakemake.output.model)
        folder, clients = model.parent, Path(snakemake.input.clients).parent
        references = {Path(path).name: Path(path) for path in snakemake.input.get("references", ())}
        given = {
            "data_dir": Path(snakemake.input.images).parent,
            "threads": snakemake.threads,
            "kernels": machine["kernels"] == "auto",
            "references": references,
        }

        def meta_tests():
            """The run's own, and those that figures ask for."""
            for name, test in {None: None, **after["tests"].get(run.folder, {})}.items():
                tested = run if test is None else run.tested_at(**test)
                place = folder / (f"tests/{name}.json" if name else "metrics.json")
                made_from = {"code": after["evaluation"], "test": test, "model": model}
                make = functools.partial(evaluate, tested, model_path=model, **given)
                ahead.leave(place, made_from, lambda out, make=make: make(out_path=out))

        def account():
            """The run's account."""
            told = clients if run.accounts_images else None
            params = after["accounts"][run.folder]
            made_from = {**params, "ledger": folder / "ledger.jsonl", "training": folder / "training.json"}
            ahead.leave(
                folder / "privacy.json",
                made_from,
                lambda out: account_run(
                    run, folder, out, clients_dir=told, search=Search.of(params["search"]), references=references
                ),
            )

        def then():
            """The stages after this one, where no GPU waits for them. If one fails, its own job says why."""
            if after and not snakemake.resources.get("gpu", 0):
                for stage in (meta_tests, account):
                    with contextlib.suppress(Exception):
                        stage()

        train(
            run,
            clients_dir=clients,
            run_dir=folder,
            checkpoint_seconds=machine["checkpoint_seconds"],
            device=machine["device"],
            then=then,
            **given,
        )
