"""Measure a meta-model on unseen classes."""

from pathlib import Path

from dpfedbench.config import RunConfig
from dpfedbench.evaluation.meta_test import meta_test
from dpfedbench.jobs import job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "meta-test"):
        config, test = RunConfig.from_yaml(snakemake.input.config[0]), snakemake.params.get("test")
        meta_test(
            config.tested_at(**test) if test else config,
            data_dir=Path(snakemake.input.images).parent,
            model_path=Path(snakemake.input.model),
            out_path=Path(snakemake.output[0]),
            threads=snakemake.threads,
        )
