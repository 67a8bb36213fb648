"""Partition without overlap: no image, and no task of a text, is at two clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.parts.partitions.task_clients import TaskClients
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.data.images import ImageDataset


class Disjoint(TaskClients):
    """Clients that share no image.

    Classes are dealt like cards, one shuffled deck after another, so that as many
    clients as possible fit.
    """

    partition: Literal["disjoint"] = "disjoint"
    takes_texts: ClassVar[bool] = True

    def check_room(self, dataset: str, *, ways: int, classes: int, each: int) -> None:
        room = classes * (each // self.examples_per_class) // ways
        if self.count > room:
            raise BenchError(
                f"clients.count is {self.count:,}, but {dataset} has images for"
                f" {room:,} clients without shared images: lower it, or set"
                f" clients.partition to {self.default_kind}"
            )

    def draw(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Deal each image to one client at most.

        Each training class is cut at random into disjoint sets of images. A deck has
        each class once. Decks follow one another, and every client takes the next
        `ways` cards. A hand that spans two decks could hold a class twice. The new deck
        is then rearranged so that its first cards differ from the cards in the hand.
        """
        rng = stream(seed, "partition")
        pool = dataset.splits["train"]
        per_class = dataset.examples_per_class
        clients = self.count
        examples = self.examples_per_class
        self.check_room(dataset.name, ways=ways, classes=len(pool), each=per_class)
        cards: list[np.ndarray] = []
        for deck in range(per_class // examples):
            order = rng.permutation(len(pool))
            held = (
                deck * len(pool)
            ) % ways  # cards of the current client from the previous deck
            if held:
                clash = np.isin(order, cards[-1][-held:])
                front = np.flatnonzero(clash[: ways - held])
                spare = (
                    ways - held + np.flatnonzero(~clash[ways - held :])[: len(front)]
                )
                order[front], order[spare] = order[spare], order[front]
            cards.append(order)
        hands = np.concatenate(cards)[: clients * ways].reshape(clients, ways)
        share = (np.arange(clients * ways) // len(pool)).reshape(clients, ways)
        cut = rng.permuted(
            np.broadcast_to(np.arange(per_class), (len(pool), per_class)), axis=1
        )
        columns = share[:, :, None] * examples + np.arange(examples)
        return pool[hands], cut[hands[:, :, None], columns]
