"""Write the cells of the genotype that a search found."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "genotype"):
        from dpfedbench.evaluation.found_cells import write_cells
        from dpfedbench.papers import read_run_file

        write_cells(
            read_run_file(snakemake.input.config[0]),
            data_dir=Path(snakemake.input.images).parent,
            model_path=Path(snakemake.input.model),
            genotype_path=Path(snakemake.output.genotype),
            text_path=Path(snakemake.output.text),
        )
