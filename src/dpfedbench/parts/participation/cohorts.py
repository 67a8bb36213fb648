"""Cohorts of clients: in blocks of a shuffled list, or drawn at random. How each is
drawn: `dpsum.participation`.
"""

from typing import Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.settings.run import Run
from dpsum import participation


class Cohorts(Participation):
    """Base of the ways to draw cohorts for which there is an account: private sums over
    clients take these.
    """


class OnePass(Cohorts):
    """Disjoint blocks of a shuffled list: no client takes part twice (DP-FedMeta's
    one-pass training; DP-MAML).

    An observer may know the blocks: shuffling is not counted upon. Then each client is
    in one Gaussian release.
    """

    kind: Literal["one-pass"] = "one-pass"
    planned = participation.OnePass
    once = known = correlated = blocks = True


class BallsAndBins(Cohorts):
    """One pass in secret rounds: each client draws one out of T (Chua et al.,
    Balls-and-Bins Sampling, 2024).

    The cohort's size varies and is private, and the denominator is N/T.
    """

    kind: Literal["balls-and-bins"] = "balls-and-bins"
    planned = participation.BallsAndBins
    once = correlated = blocks = True

    def check(self, run: Run) -> None:
        count = run.clients.count
        if (
            self.rounds
            and count % self.cohort == 0
            and self.cohort * self.rounds != count
        ):
            raise BenchError(
                "participation.cohort x participation.rounds is"
                f" {self.cohort * self.rounds}, but balls-and-bins needs the {count}"
                f" clients of clients.count exactly: try {count // self.cohort} rounds"
            )
        super().check(run)


class MinSeparation(Cohorts):
    """Blocks of a list that was shuffled once, gone through again and again: a client
    comes each N/L rounds.

    An observer may know the blocks. A client's rounds lie apart (b-min-sep), so that
    correlated noise is accounted for over all of them.
    """

    kind: Literal["min-separation"] = "min-separation"
    planned = participation.RepeatedPasses
    known = correlated = blocks = True

    def apart(self, clients: int) -> tuple[int, int]:
        separation = max(clients // self.cohort, 1)
        return separation, max(-(-self.rounds // separation), 1)


class ShuffledEpochs(Cohorts):
    """Blocks of a shuffled list; when it is at its end it is shuffled anew. A client is
    in one block of each epoch.

    An observer may know the blocks: a client is in as many Gaussian releases as epochs
    were begun.
    """

    kind: Literal["shuffled-epochs"] = "shuffled-epochs"
    planned = participation.ShuffledEpochs
    known = blocks = True


class Passes(Participation):
    """Blocks as of shuffled epochs, for methods that claim nothing of a client (Li et
    al. 2020: visits per task).

    There is no analysis for it: of a private sum over it no epsilon is printed.
    """

    kind: Literal["passes"] = "passes"
    planned = participation.Passes
    blocks = True


class Poisson(Cohorts):
    """In each round each client takes part with probability L/N, apart from all
    others.
    """

    kind: Literal["poisson"] = "poisson"
    planned = participation.Poisson
    independent = True


class FixedSize(Cohorts):
    """In each round L of the N clients, every such set with the same chance, drawn anew
    and in secret.

    Most simulators draw so.
    """

    kind: Literal["fixed-size"] = "fixed-size"
    planned = participation.FixedSize
