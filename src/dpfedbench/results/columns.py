"""The columns of `runs.parquet` and `cells.parquet`: the data dictionary.

`docs/results-format.md` is made from these lists. Every configuration value is a further
column of `runs.parquet`, named by its path, such as `noise.multiplier`.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a frame: its name, the type of its values, and what they mean."""

    name: str
    type: str
    meaning: str


IDENTITY = (
    Column("run", "text", "folder of the run below `results/runs/`"),
    Column("paper", "text", "experiment that the method belongs to; empty: none"),
    Column("method", "text", "name of the method"),
    Column("dataset", "text", "name of the data set"),
    Column("task_name", "text", "task of a client, e.g. `5way-1shot` or `10class`"),
    Column("key", "text", "ten hexadecimal digits that follow from the configuration"),
    Column("seed", "whole number", "seed of all random streams of the run"),
)
"""Which run a row is of. They come first in `runs.parquet`."""

TEST = (
    Column("accuracy", "number, percent", "mean accuracy of the test"),
    Column("accuracy_low", "number, percent", "low end of its 95 % interval"),
    Column("accuracy_high", "number, percent", "high end of its 95 % interval"),
    Column("test_unit", "text", "what was tested: `task` or `record`"),
    Column("test_count", "whole number", "number of tested tasks or records"),
    Column(
        "task_accuracies",
        "list of numbers",
        "accuracy on each test task, in percent; equal positions of two runs are the"
        " same task; not in the CSV",
    ),
    Column(
        "validation_accuracy",
        "number, percent",
        "mean accuracy on validation tasks of the checkpoints that were tested",
    ),
)

TRAINING = (
    Column("rounds_planned", "whole number", "rounds that the configuration asks for"),
    Column("rounds_run", "whole number", "rounds that were run"),
    Column("stopped_by", "text", "what ended training: `rounds` or the budget"),
    Column(
        "noise_multiplier",
        "number",
        "noise multiplier z that ran; where the budget fixes it, the one found",
    ),
    Column("parameters", "whole number", "trained weights of the model"),
    Column(
        "seconds",
        "number",
        "duration of training; empty where it would tell of secret cohorts",
    ),
    Column("milliseconds_per_client", "number", "training time for each client"),
    Column("milliseconds_per_record", "number", "training time for each record"),
    Column("device", "text", "`cpu` or `cuda`"),
    Column("machine", "text", "processor"),
    Column("threads", "whole number", "threads of the training"),
    Column("processes", "whole number", "processes of the training"),
    Column("gradients", "text", "code that computed the gradients"),
    Column("method_version", "text", "version of the method"),
    Column("versions", "text", "versions of the libraries that trained"),
    Column("notices", "text", "remarks of the training, separated by ` | `"),
)

PRIVACY = (
    Column("unit", "text", "whom ε protects: `client` or `record`; empty: not private"),
    Column("delta", "number", "δ of every ε of the row"),
    Column("adjacency", "text", "neighbouring data sets of the claimed and proven ε"),
    Column("observer", "text", "who sees the releases: `everyone` or `server`"),
    Column("epsilon_claimed_low", "number", "low end of ε by the paper's accounting"),
    Column("epsilon_claimed", "number", "ε by the paper's own accounting, high end"),
    Column(
        "claimed_status", "text", "`proved`, or `void` where the claim has no proof"
    ),
    Column(
        "claimed_explanation", "text", "the paper's argument, or why there is no claim"
    ),
    Column("epsilon_proven_low", "number", "low end of the proven ε"),
    Column(
        "epsilon_proven_high",
        "number",
        "high end of the proven ε: the guarantee; infinite: no finite ε holds",
    ),
    Column("proven_status", "text", "status of the proven ε"),
    Column("proven_explanation", "text", "the argument, or why there is no proven ε"),
    Column(
        "accounted_multiplier",
        "number",
        "least noise multiplier of the releases that the paper counts",
    ),
    Column("epsilon_replace_one", "number", "proven ε where a unit is replaced"),
    Column("epsilon_image_level", "number", "proven ε of one image"),
    Column("image_level_explanation", "text", "the argument for one image"),
    Column("epsilon_tuning", "number", "proven ε of a declared search for settings"),
    Column("epsilon_audited", "number", "audited lower bound on ε"),
    Column("audit_confidence", "number", "confidence of the audited bound"),
    Column("audit_status", "text", "the bound beside the proven ε"),
    Column("audit_method", "text", "how the bound was computed"),
    Column("audit_reason", "text", "what limits the audit"),
    Column(
        "audit_chance",
        "number",
        "probability that correct code has a bound as high as this one",
    ),
    Column(
        "epsilon_ideal_audit",
        "number",
        "bound that the best attacker reaches in half of all audits of this size",
    ),
    Column("epsilon_proven_at_audit", "number", "proven ε at the δ of the audit"),
    Column(
        "audit_saw_another_mechanism",
        "truth value",
        "whether the audited code ran another mechanism than the ledger's",
    ),
    Column(
        "audited_run",
        "text",
        "run whose audit this is: runs of one mechanism share an audit",
    ),
)
"""Privacy of the run's first unit. Where a run protects a second unit, or the same from
another observer, the same columns stand again with a prefix before their names.
"""
UNIT_PREFIXES = ("", "second_", "third_")

CELLS = (
    Column("paper", "text", "experiment of the table or figure"),
    Column("item", "text", "name of the table or figure"),
    Column(
        "kind",
        "text",
        "`table`, `time-table`, `sweep`, `history`, `frontier` or `account`",
    ),
    Column("cell", "whole number", "number of the cell in its table or figure"),
    Column("series", "text", "row of the table, or curve of the figure"),
    Column("label", "text", "what a figure calls the series"),
    Column("variant", "text", "what a table calls the variant of the method"),
    Column("repairs", "text", "series of the same table whose claim this one repairs"),
    Column("x", "number", "value of the swept setting; empty in tables"),
    Column("seed", "whole number", "seed of the run"),
    Column("run", "text", "the run, as in `runs.parquet`"),
    Column("audited_run", "text", "run whose audit stands for it"),
    Column("method", "text", "name of the method"),
    Column("title", "text", "name of the method for readers"),
    Column("private", "truth value", "whether the method claims privacy"),
    Column("dataset", "text", "data set that was measured"),
    Column("published_dataset", "text", "data set of the paper"),
    Column("task", "text", "task of a client, for readers"),
    Column("tested", "text", "task of the test, for readers"),
    Column("test", "text", "name of a test other than the run's own; empty: its own"),
    Column(
        "mismatch",
        "text",
        "why the value may not be compared with the published one; empty: it may",
    ),
    Column("searched", "whole number", "runs that a search compares; 0: no search"),
    Column("start", "text", "origin of the first weights; empty: random"),
    Column(
        "configured_multiplier",
        "number",
        "configured noise multiplier; empty where the budget fixes it",
    ),
    Column("accuracy", "number, percent", "mean accuracy of the cell's test"),
    Column("accuracy_low", "number, percent", "low end of its 95 % interval"),
    Column("accuracy_high", "number, percent", "high end of its 95 % interval"),
    Column("test_unit", "text", "what was tested: `task` or `record`"),
    Column("test_count", "whole number", "number of tested tasks or records"),
    Column("task_accuracies", "list of numbers", "accuracy on each test task"),
)


def run_columns() -> list[Column]:
    """Return all columns of `runs.parquet` but those of the configuration, in order."""
    further = [
        Column(f"{prefix}{column.name}", column.type, column.meaning)
        for prefix in UNIT_PREFIXES[1:]
        for column in PRIVACY
    ]
    return [*IDENTITY, *TEST, *PRIVACY, *further, *TRAINING]
