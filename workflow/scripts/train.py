"""Train one run, in this process or in several."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    # The work may run in a fork of the warm process (docs/clusters.md).
    with rule_job(snakemake, "train", timed=False):
        machine = snakemake.config["machine"]
        config = snakemake.input.config[0]
        processes = machine.get("processes", 1)
        files = list(snakemake.input.get("references", ()))
        arguments = {
            "data_dir": str(Path(snakemake.input.images).parent),
            "clients_dir": str(Path(snakemake.input.clients).parent),
            "run_dir": str(Path(snakemake.output.model).parent),
            "threads": snakemake.threads if processes == 1 else machine["threads"],
            "checkpoint_seconds": machine["checkpoint_seconds"],
            "device": machine["device"],
            "kernels": machine["kernels"] == "auto",
        }
        if processes > 1:
            from workflow_jobs.launch import train_together

            log = Path(snakemake.log[0])
            arguments |= {"config": str(config), "references": files}
            train_together(
                arguments,
                processes=processes,
                log=log.with_name(f"{log.stem}-processes.log"),
            )
        else:
            from dpfedbench.papers import read_run_file
            from dpfedbench.training.engine import train

            train(
                read_run_file(config),
                references={Path(path).name: Path(path) for path in files},
                **arguments,
            )
