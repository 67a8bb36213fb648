"""Evaluation: tests of finished runs, and their intervals."""

from collections.abc import Mapping
from pathlib import Path

from dpfedbench.method import Method


def evaluate(
    run: Method, *, data_dir: Path, model_path: Path, out_path: Path, threads: int = 1, kernels: bool = True,
    references: Mapping[str, Path] | None = None,
) -> None:  # fmt: skip
    """Test a trained model and write metrics.json: on few-shot tasks, unseen texts or, as it is, on held-out records.

    Raises:
        BenchError: data or model missing or damaged.
    """
    if run.holds == "records" and not run.pretrains:
        from dpfedbench.evaluation.held_out import record_test

        record_test(
            run, data_dir=data_dir, model_path=model_path, out_path=out_path, kernels=kernels, references=references
        )
        return
    if run.task.text is not None:
        from dpfedbench.evaluation.next_word import text_test

        text_test(run, data_dir=data_dir, model_path=model_path, out_path=out_path, threads=threads, kernels=kernels)
        return
    from dpfedbench.evaluation.few_shot import meta_test

    meta_test(run, data_dir=data_dir, model_path=model_path, out_path=out_path, threads=threads, kernels=kernels)
