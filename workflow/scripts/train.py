"""Train one run, in this process or in several."""

import contextlib
import functools
from pathlib import Path

from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "train"):
        machine, after = snakemake.config["machine"], snakemake.config.get("ahead")
        processes = machine.get("processes", 1)
        config, model = snakemake.input.config[0], Path(snakemake.output.model)
        folder, clients = model.parent, Path(snakemake.input.clients).parent
        data, kernels = Path(snakemake.input.images).parent, machine["kernels"] == "auto"
        files = list(snakemake.input.get("references", ()))
        arguments = {
            "data_dir": str(data),
            "clients_dir": str(clients),
            "run_dir": str(folder),
            "threads": snakemake.threads if processes == 1 else machine["threads"],
            "checkpoint_seconds": machine["checkpoint_seconds"],
            "device": machine["device"],
            "kernels": kernels,
        }

        def meta_tests(run, references):
            """The run's own, and those that figures ask for."""
            from dpfedbench import ahead
            from dpfedbench.evaluation import evaluate

            given = {"data_dir": data, "threads": snakemake.threads, "kernels": kernels, "references": references}
            for name, test in {None: None, **after["tests"].get(run.folder, {})}.items():
                tested = run if test is None else run.tested_at(**test)
                place = folder / (f"tests/{name}.json" if name else "metrics.json")
                made_from = {"code": after["evaluation"], "test": test, "model": model}
                make = functools.partial(evaluate, tested, model_path=model, **given)
                ahead.leave(place, made_from, lambda out, make=make: make(out_path=out))

        def account(run, references):
            """The run's account."""
            from dpfedbench import ahead
            from dpfedbench.accounting.tuning import Search
            from dpfedbench.federation.accounts import account_run

            params = after["accounts"][run.folder]
            given = {"search": Search.of(params["search"]), "references": references}
            told = clients if run.accounts_images else None
            made_from = {**params, "ledger": folder / "ledger.jsonl", "training": folder / "training.json"}
            ahead.leave(
                folder / "privacy.json", made_from, lambda out: account_run(run, folder, out, clients_dir=told, **given)
            )

        if processes > 1:
            from dpfedbench.launch import train_together

            log = Path(snakemake.log[0])
            arguments |= {"config": str(config), "references": files}
            train_together(arguments, processes=processes, log=log.with_name(f"{log.stem}-processes.log"))
        else:
            from dpfedbench.federation.engine import train
            from dpfedbench.methods import read_run_file

            run, references = read_run_file(config), {Path(path).name: Path(path) for path in files}

            def then():
                """The stages after this one, where no GPU waits for them. If one fails, its own job says why."""
                if after and not snakemake.resources.get("gpu", 0):
                    for stage in (meta_tests, account):
                        with contextlib.suppress(Exception):
                            stage(run, references)

            train(run, references=references, then=then, **arguments)
