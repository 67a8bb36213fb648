"""The threads of a training."""

import torch

from dpfedbench.models.choose import Choice
from dpfedbench.models.threads import Workers


def test_threads_products_take_no_threads_of_their_own():
    """torch has a number of threads for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        choice = Choice("none", lambda: None, "cpu")
        with Workers(choice, lambda _: None, threads=2).running() as pool:
            counts = list(pool.map(lambda _: torch.get_num_threads(), range(4)))
            assert [*counts, torch.get_num_threads()] == [1] * 5
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
