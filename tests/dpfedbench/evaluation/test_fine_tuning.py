"""The step with the most right answers, among steps whose answers are given."""

from types import SimpleNamespace

import numpy as np

from dpfedbench.evaluation import fine_tuning


def test_first_of_equally_good_steps_is_scored(monkeypatch):
    """Of two queries, the steps have 0, 1, 1 and 0 right: the second step counts."""
    answers = [
        [[0.0, 1.0], [1.0, 0.0]],
        [[2.0, 0.0], [1.0, 0.0]],
        [[3.0, 0.0], [1.0, 0.0]],
        [[0.0, 4.0], [1.0, 0.0]],
    ]

    def take_steps(*_, after_step, **__):
        for step in range(4):
            after_step(step)

    monkeypatch.setattr(fine_tuning, "fine_tune", take_steps)
    gradients = SimpleNamespace(logits=lambda step, _: np.array([answers[step]]))
    task = SimpleNamespace(
        support_x=[None], support_y=[None], query_x=None, query_y=np.array([[0, 1]])
    )
    best = fine_tuning.best_logits(gradients, None, task, None, rng=None)
    assert best.tolist() == answers[1]
