"""Opacus at the settings of its MNIST example."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "opacus"


def runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a run with Poisson sampling of the batches, and one without."""
    import torch
    from opacus import PrivacyEngine

    from dpwatch.adapters.opacus import watch

    torch.set_num_threads(1)
    epochs = 10
    data = torch.utils.data.TensorDataset(
        torch.randn(60_000, 4), torch.randint(0, 2, (60_000,))
    )

    def run(*, poisson: bool, **texts: str) -> dict[str, Any]:
        engine = PrivacyEngine()
        model = torch.nn.Linear(4, 2)
        loss = torch.nn.CrossEntropyLoss()
        module, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=64, shuffle=True),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        watched = watch(
            engine,
            module,
            optimizer,
            loader,
            epochs=epochs,
            ledger=folder / f"{poisson}.jsonl",
        )
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss(module(inputs), labels).backward()
                optimizer.step()
        return {
            "watched": watched,
            "delta": 1e-5,
            "audit": poisson,
            "what": f"Opacus, poisson_sampling={poisson}",
            "source": (
                "examples/mnist.py: batches of 64 of 60,000 images, noise multiplier"
                " 1.0, threshold 1.0, 10 epochs"
            ),
        } | texts

    yield run(
        poisson=True,
        why=(
            "Right where the number of records is public: the batches are Poisson"
            " samples, and the accountant allows itself an error of 0.01. For"
            " add-or-remove it is void: the divisor follows the number of records."
        ),
    )
    yield run(
        poisson=False,
        why=(
            "With poisson_sampling=False the loader shuffles the data and cuts each"
            " epoch into batches, but the accountant still assumes Poisson samples."
            " What is proved for shuffled batches is one Gaussian release per epoch."
        ),
        quote=(
            "Setting ``False`` will leave provided data_loader unchanged. Technically"
            " this doesn't fit the assumptions made by privacy accounting mechanism,"
            " but it can be a good approximation when using Poisson sampling is"
            " unfeasible."
        ),
    )
