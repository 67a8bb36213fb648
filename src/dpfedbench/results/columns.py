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
    Column("notices", "text", "remarks of the training, separated by `; `"),
)

PRIVACY = (
    Column("unit", "text", "whom ε protects: `client` or `record`; empty: not private"),
    Column("delta", "number", "δ of every ε of the row"),
    Column("adjacency", "text", "neighbouring data sets of the claimed and proven ε"),
    Column("observer", "text", "who sees the releases: `everyone` or `server`"),
    Column("epsilon_claimed", "number", "ε by the paper's own accounting"),
    Column(
        "claimed_status", "text", "`proved`, or `void` where the claim has no proof"
    ),
    Column("epsilon_proven_low", "number", "low end of the proven ε"),
    Column(
        "epsilon_proven_high",
        "number",
        "high end of the proven ε: the guarantee; infinite: no finite ε holds",
    ),
    Column("proven_status", "text", "status of the proven ε"),
    Column("proven_explanation", "text", "the argument, in a sentence"),
    Column("epsilon_replace_one", "number", "proven ε where a unit is replaced"),
    Column("epsilon_image_level", "number", "proven ε of one image"),
    Column("epsilon_tuning", "number", "proven ε of a declared search for settings"),
    Column("epsilon_audited", "number", "audited lower bound on ε"),
    Column("audit_confidence", "number", "confidence of the audited bound"),
    Column("audit_status", "text", "the bound beside the proven ε"),
    Column(
        "audited_run",
        "text",
        "run whose audit this is: runs of one mechanism share an audit",
    ),
)
"""Privacy of the run's first unit. Where a run protects a second unit, the same columns
stand again with `second_` before their names.
"""

CELLS = (
    Column("paper", "text", "experiment of the table or figure"),
    Column("item", "text", "name of the table or figure"),
    Column("series", "text", "row of the table, or curve of the figure"),
    Column("x", "number", "value of the swept setting; empty in tables"),
    Column("seed", "whole number", "seed of the run"),
    Column("run", "text", "the run, as in `runs.parquet`"),
)


def run_columns() -> list[Column]:
    """Return all columns of `runs.parquet` but those of the configuration, in order."""
    second = [
        Column(f"second_{column.name}", column.type, f"second unit: {column.meaning}")
        for column in PRIVACY
    ]
    return [*IDENTITY, *TEST, *PRIVACY, *second, *TRAINING]
