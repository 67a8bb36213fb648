"""Hooks in pfl-research: a watch of the backend from `FederatedAlgorithm.run` on."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session

_USERS = "_dpwatch_users"


def hook_algorithm(module: ModuleType, session: Session) -> None:
    """Watch each simulation."""
    algorithm = module.FederatedAlgorithm
    run = algorithm.run

    @functools.wraps(run)
    def watched(
        self: Any, algorithm_params: Any, backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        session.attempt("pfl", _begin, session, algorithm_params, backend)
        return run(self, algorithm_params, backend, *args, **kwargs)

    algorithm.run = watched


def hook_sampler(module: ModuleType, session: Session) -> None:
    """Note the number of users of samplers in turn."""
    sampler = module.MinimizeReuseUserSampler
    create = sampler.__init__

    @functools.wraps(create)
    def created(self: Any, user_ids: Any) -> None:
        create(self, user_ids)
        if hasattr(user_ids, "__len__"):
            setattr(self, _USERS, len(user_ids))

    sampler.__init__ = created


def _begin(session: Session, parameters: Any, backend: Any) -> None:
    from pfl.hyperparam import get_param_value

    from dpwatch.adapters.pfl import BackendWatch

    training = backend._training_dataset
    watch = BackendWatch(
        backend,
        session.ledger("pfl"),
        rounds=int(get_param_value(parameters.central_num_iterations)),
        users=getattr(getattr(training, "user_sampler", None), _USERS, None),
        cohorts=session.settings["cohorts"],
        metrics=session.settings["metrics"],
    )
    session.add("pfl", watch)
    accountant = getattr(watch.gaussian, "privacy_accountant", None)
    if accountant is not None:
        session.claim("pfl", accountant.epsilon, accountant.delta)
