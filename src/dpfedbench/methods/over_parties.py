"""What methods have in common whose parties hold records and keep one model
(`client_updates.summed_steps`).
"""

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.server_step import Average
from dpsum.sums import Sum


class OverParties(Method):
    """Each party takes sums over lots of its records, and all step along the sums' sum;
    the last sum is the model.
    """

    defaults = {
        "clients": {"partition": "fragments"},
        "participation": {"kind": "poisson-lots"},
        "server": {"kind": "average"},
    }

    participation: PoissonLots = PoissonLots()
    server: Average = Average()

    def check(self) -> None:
        super().check()
        for name, step in self.client_update.steps.items():
            if self.private and step.cut is not None:
                raise BenchError(
                    f"client_update: cut is {step.cut:g} for {name}, which is for runs"
                    " that claim no privacy: set it to null, the clipping rule has the"
                    " threshold"
                )
        for sum_ in self.own_sums():
            if sum_.clipping is not None and sum_.clipping.moves:
                raise BenchError(
                    f"clipping.kind is {sum_.clipping.kind} for {sum_.name}, so its"
                    " threshold would follow one party's releases, and the ledger"
                    " would show it to everyone; everyone's account covers only the"
                    " sum over parties: take constant"
                )

    def server_sum(self) -> Sum:
        return Sum(name="model", unit="record", observer="everyone")
