"""Other libraries: runs of Opacus, Flower and others, and the table of their claimed and proven ε.

The default target leaves this out, because libraries that are missing are installed from a package index. Makes
results/libraries/LIBRARY.json for each file of workflow/scripts/libraries/, and the table of the selected libraries.
"""

for LIBRARY, SOURCE in LIBRARIES.items():
    OWN_ENVIRONMENT = ROOT / f"workflow/envs/{LIBRARY}.yaml"
    # A library without an environment file is one of the project's own requirements.
    ENVIRONMENT = str(
        OWN_ENVIRONMENT
        if OWN_ENVIRONMENT.exists()
        else ROOT / "workflow/envs/dpfedbench.yaml"
    )

    rule:
        name:
            f"library_{LIBRARY}"
        output:
            f"results/libraries/{LIBRARY}.json",
        log:
            f"results/libraries/logs/{LIBRARY}.log",
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=4000,
            runtime=60,
            gpu=0,
        params:
            library=LIBRARY,
            environment=Path(ENVIRONMENT).name,
            code=code_of(
                "library",
                SOURCE,
                ROOT / "workflow/scripts/rows.py",
                *([OWN_ENVIRONMENT] if OWN_ENVIRONMENT.exists() else []),
            ),
        script:
            "../scripts/library.py"


rule libraries_table:
    """Combine the rows of the selected libraries into one table."""
    input:
        [f"results/libraries/{library}.json" for library in LIBRARIES_CHOSEN],
    output:
        csv=report(
            f"{REPORT}/tables/libraries.csv",
            caption="../report/libraries.rst",
            category="Privacy",
            labels={
                "name": "libraries",
                "title": "What libraries claim and what is proven",
            },
        ),
        markdown=f"{REPORT}/tables/libraries.md",
    log:
        f"{REPORT}/tables/logs/libraries.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
        gpu=0,
    params:
        code=code_of("libraries_table"),
    script:
        "../scripts/libraries_table.py"
