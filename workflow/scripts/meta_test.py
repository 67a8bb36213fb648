"""Test a model on unseen classes, or on the test records of its data set."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "meta-test"):
        from dpfedbench.evaluation import evaluate
        from dpfedbench.papers import read_run_file

        run = read_run_file(snakemake.input.config[0])
        test = snakemake.params.get("test")
        evaluate(
            run.tested_at(**test) if test else run,
            data_dir=Path(snakemake.input.images).parent,
            model_path=Path(snakemake.input.model),
            out_path=Path(snakemake.output[0]),
            threads=snakemake.threads,
            kernels=snakemake.config["machine"]["kernels"] == "auto",
            references={
                Path(path).name: Path(path)
                for path in snakemake.input.get("references", ())
            },
        )
