"""Measure a model on unseen classes, or on the test part of its records."""

from pathlib import Path

from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "meta-test"):
        from dpfedbench import ahead

        model, out = Path(snakemake.input.model), Path(snakemake.output[0])
        code, test = (snakemake.params.get(name) for name in ("code", "test"))
        if not ahead.take(out, {"code": code, "test": test, "model": model}):
            from dpfedbench.evaluation import evaluate
            from dpfedbench.methods import read_run_file

            run = read_run_file(snakemake.input.config[0])
            evaluate(
                run.tested_at(**test) if test else run,
                data_dir=Path(snakemake.input.images).parent,
                model_path=model,
                out_path=out,
                threads=snakemake.threads,
                kernels=snakemake.config["machine"]["kernels"] == "auto",
                references={Path(path).name: Path(path) for path in snakemake.input.get("references", ())},
            )
