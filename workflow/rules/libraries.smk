"""What other libraries claim and what is proven: runs of the real libraries, and their table.

No part of what is made by default: a library that is not installed here is taken from a package index. Makes
results/libraries/LIBRARY.json for each file of workflow/scripts/libraries/, and the table of those that are chosen.
"""

for LIBRARY, SOURCE in LIBRARIES.items():
    OWN_ENVIRONMENT = ROOT / f"workflow/envs/{LIBRARY}.yaml"
    # One without an environment of its own is among the project's packages.
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
    """Put the libraries' rows into one table."""
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
