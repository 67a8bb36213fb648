"""Architecture search: from a finished search to the cells that it found.

Requires a trained run whose network searches for cells. Adds genotype.json and cells.txt to its folder. Both are
post-processing of released weights.
"""


rule genotype:
    """Derive the cells that a search found from its released weights."""
    input:
        config=rules.configure.output,
        images=rules.prepare.output.images,
        model=rules.train.output.model,
    output:
        genotype=f"{RUN}/genotype.json",
        text=f"{RUN}/cells.txt",
    log:
        f"{RUN}/logs/genotype.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1500,
        runtime=10,
        gpu=0,
    params:
        code=code_of("genotype"),
    script:
        "../scripts/genotype.py"
