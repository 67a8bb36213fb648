"""The threads of a training."""

import torch

from dpfedbench.models.threads import Threads


def test_threads_products_take_no_threads_of_their_own():
    """torch has a number of threads for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Threads(2, list).running() as pool:
            counts = list(pool.map(lambda _: torch.get_num_threads(), range(4)))
            assert [*counts, torch.get_num_threads()] == [1] * 5
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
