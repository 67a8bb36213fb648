"""Order in which the workflow makes the results of the papers.

The first paper's page is there early, and the others are added one by one.
"""

from collections.abc import Callable, Mapping

from dpfedbench.experiments.plan import Plan
from dpfedbench.run import Run

Seconds = Callable[[str, Mapping[str, str]], float]
"""Returns the estimated seconds of a job from its rule and wildcards."""


def order_papers(plan: Plan, seconds: Seconds) -> list[str]:
    """Return the papers of a plan, each time the one with the least remaining work.

    Work that several papers need counts for the first of them.

    Args:
        plan: the plan.
        seconds: estimates the time of a job.
    """
    work = {
        paper: _work_of(plan, paper, seconds)
        for paper in dict.fromkeys(paper for paper, _ in plan.items)
    }
    finished: set[tuple[str, str]] = set()
    order: list[str] = []
    while len(order) < len(work):
        remaining = {
            paper: sum(time for job, time in jobs.items() if job not in finished)
            for paper, jobs in work.items()
            if paper not in order
        }
        following = min(remaining, key=remaining.__getitem__)
        order.append(following)
        finished.update(work[following])
    return order


def _work_of(plan: Plan, paper: str, seconds: Seconds) -> dict[tuple[str, str], float]:
    """Return the seconds of a paper's long jobs, by rule and name."""
    work: dict[tuple[str, str], float] = {}
    pending = [run for item in plan.items_of(paper) for run in item.runs.values()]
    while pending:
        run = pending.pop()
        if ("train", run.folder) in work:
            continue
        for rule in ("train", "meta_test", "account"):
            work[rule, run.folder] = seconds(rule, _wildcards(run))
        work["prepare", run.dataset] = seconds("prepare", {"dataset": run.dataset})
        pending.extend(run.references.values())
    for folder in plan.audited_runs(paper).values():
        work["audit", folder] = seconds("audit", _wildcards(plan.runs[folder]))
    for item in plan.items_of(paper):
        for folder, test in item.tests:
            wildcards = {**_wildcards(plan.runs[folder]), "test": test}
            work[f"meta_test_at {test}", folder] = seconds("meta_test_at", wildcards)
    return work


def _wildcards(run: Run) -> dict[str, str]:
    """Return the wildcards of a run's jobs."""
    names = ("method", "dataset", "task", "key", "seed")
    values = run.folder.replace("/seed", "/").split("/")
    return dict(zip(names, values, strict=True))
