"""From a run's ledger to ε, as claimed and as it holds.

Requires a trained run's ledger, never the training code, and of a private run whose clients share images their
partition. Adds privacy.json to the run's folder.
"""

ACCOUNTED_WITH = digest(
    "src/dpfedbench/accounting/**/*.py",
    "src/dpfedbench/privacy/ledger.py",
    "src/dpfedbench/federation/accounts.py",
)


rule account:
    """Read the ledger under each accounting profile."""
    input:
        config=rules.configure.output,
        ledger=rules.train.output.ledger,
        training=rules.train.output.training,
        clients=partition_for_account,
        references=references_of,
    output:
        f"{RUN}/privacy.json",
    log:
        f"{RUN}/logs/account.log",
    benchmark:
        f"{RUN}/benchmark/account.tsv"
    conda:
        "../envs/dpfedbench.yaml"
    threads: 1
    resources:
        mem_mb=3000,
        runtime=60,
        gpu=0,
    params:
        search=search_of,
        claims=claims_of,
        code=ACCOUNTED_WITH,
    script:
        "../scripts/account.py"


# What training jobs need to make the stages after them ahead (`ahead.py`). No parameters of theirs: a change is no reason
# to train again.
config["ahead"] = {
    "evaluation": EVALUATED_WITH,
    "tests": {},
    "accounts": {
        folder: {
            "search": search_for(run),
            "claims": claims_for(run.method),
            "code": ACCOUNTED_WITH,
        }
        for folder, run in PLAN.runs.items()
    },
}
for folder, name in TESTS:
    config["ahead"]["tests"].setdefault(folder, {})[name] = values_of_test(folder, name)
