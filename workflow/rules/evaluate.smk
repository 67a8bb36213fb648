"""Evaluation: from a meta-model to its accuracy on tasks of unseen classes.

Requires a trained run. Adds metrics.json to its folder, and tests/ with further meta-tests that a figure requests.
"""


rule meta_test:
    """Adapt the meta-model to each meta-test task, and measure its accuracy on the task's query examples."""
    input:
        config=rules.configure.output,
        images=rules.prepare.output.images,
        data=[rules.prepare.output.classes, rules.prepare.output.summary],
        model=rules.train.output.model,
        references=PLANNED.made_for,
    output:
        f"{RUN}/metrics.json",
    log:
        f"{RUN}/logs/meta_test.log",
    conda:
        "../envs/dpfedbench.yaml"
    threads: MACHINE.threads
    resources:
        mem_mb=3000,
        runtime=240,
        gpu=0,
    params:
        code=code_of("meta_test"),
    script:
        "../scripts/meta_test.py"


use rule meta_test as meta_test_at with:
    output:
        f"{RUN}/tests/{{test}}.json",
    log:
        f"{RUN}/logs/meta_test-{{test}}.log",
    params:
        code=code_of("meta_test"),
        test=PLANNED.test_of,
