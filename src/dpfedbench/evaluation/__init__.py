"""Evaluation: tests of finished runs, and their intervals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.files import write_json


def evaluate(
    run: Any, *, data_dir: Path, model_path: Path, out_path: Path, threads: int = 1, kernels: bool = True,
    references: Mapping[str, Path] | None = None,
) -> None:  # fmt: skip
    """Test a trained model and write metrics.json: on few-shot tasks, unseen texts or, as it is, on held-out records.

    Accuracies are in percent; the interval is over tasks or records, for this one model (`evaluation.intervals`).

    Raises:
        BenchError: data or model missing or damaged.
    """
    files = {"data_dir": data_dir, "model_path": model_path}
    if run.holds == "records" and not run.pretrains:
        from dpfedbench.evaluation.held_out import record_test

        interval, found = record_test(run, **files, kernels=kernels, references=references)
    elif run.task.text is not None:
        from dpfedbench.evaluation.next_word import text_test

        interval, found = text_test(run, **files, threads=threads, kernels=kernels)
    else:
        from dpfedbench.evaluation.few_shot import meta_test

        interval, found = meta_test(run, **files, threads=threads, kernels=kernels)
    write_json(
        out_path,
        {
            "dataset": run.dataset,
            "method": run.method,
            "seed": run.seed,
            "accuracy": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            **found,
        },
    )
