"""Evaluation: tests of finished runs, and their intervals."""

from collections.abc import Mapping
from pathlib import Path

from dpfedbench.evaluation.few_shot import meta_test
from dpfedbench.evaluation.held_out import record_test
from dpfedbench.evaluation.next_word import text_test
from dpfedbench.run import Run


def evaluate(
    run: Run,
    *,
    data_dir: Path,
    model_path: Path,
    out_path: Path,
    threads: int = 1,
    kernels: bool = True,
    references: Mapping[str, Path] | None = None,
) -> None:
    """Test a trained model and write metrics.json.

    The test is on few-shot tasks, on unseen texts or, without adaptation, on held-out
    records.

    Raises:
        BenchError: data or model are missing or damaged.
    """
    if run.client_data == "records" and not run.pretrains:
        record_test(
            run,
            data_dir=data_dir,
            model_path=model_path,
            out_path=out_path,
            kernels=kernels,
            references=references,
        )
        return
    test = meta_test if run.task.text is None else text_test
    test(
        run,
        data_dir=data_dir,
        model_path=model_path,
        out_path=out_path,
        threads=threads,
        kernels=kernels,
    )
