"""Search of a script's text for the critical pitfalls of DP training (`pitfalls`).

It reads the syntax tree and runs nothing. A text shows what looks like a pitfall and not
that it is one, so that a finding asks for a look. It may miss pitfalls: what is proven
follows from the watches alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dpwatch.check.pitfalls import Finding

_MAKE_PRIVATE = {"make_private", "make_private_with_epsilon"}
_NOISE = {
    "randn",
    "randn_like",
    "normal",
    "normal_",
    "standard_normal",
    "gaussian_privatizer",
    "matrix_factorization_privatizer",
}
_GRADIENTS = {"grad", "grad_sample", "summed_grad"}
_SAVERS = {"save", "dump", "dumps", "savez", "savetxt", "write_text", "write_bytes"}
_SAVERS |= {"to_csv", "to_json"}
_LOGS = {"print", "info", "warning", "debug", "log", "add_scalar", "log_metrics"}
_LOGS |= {"add_scalars", "set_postfix", "set_description", "log_metric", "write"}
_RANDOM_STATES = {"get_rng_state", "getstate", "get_state", "bit_generator"}
_BATCH_NORMS = {
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "SyncBatchNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "BatchNormalization",
}
_SIZES = {"len", "size", "numel", "sum"}
_FINITE_TESTS = {"isnan", "isfinite", "isinf"}
_EVENTS = {"dpsgd_event", "PoissonSampledDpEvent", "compute_rdp", "RDPAccountant"}


def findings_of(path: Path | str) -> list[Finding]:
    """Return the findings in a Python file, in the order of its lines.

    A file that cannot be parsed has none.
    """
    path = Path(path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    file = _File(tree)
    findings = [
        (line, Finding(pitfall, f"{path.name}:{line}", text))
        for pitfall, rule in _RULES.items()
        for line, text in rule(file)
    ]
    return [
        finding for _, finding in sorted(dict.fromkeys(findings), key=lambda f: f[0])
    ]


class _File:
    """A parsed file, with the facts that several rules need.

    Attributes:
        tree: the syntax tree.
        calls: all calls in it.
        names: all identifiers, attributes and imported modules.
        scopes: the module's own statements, and each function.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.calls = list(_calls(ast.walk(tree)))
        self.names = set(_names(tree))
        self.scopes: list[ast.AST] = [tree]
        self.scopes += [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]

    @property
    def is_private(self) -> bool:
        """Whether the file draws noise or calls a private library."""
        return bool(self.names & (_NOISE | _MAKE_PRIVATE | {"jax_privacy"}))

    @property
    def uses_opacus(self) -> bool:
        return bool(self.names & _MAKE_PRIVATE)


_Matches = Iterator[tuple[int, str]]


def _division(file: _File) -> _Matches:
    """Division of a private sum by the realised number of records."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Attribute) and target.attr == "expected_batch_size"
            for target in node.targets
        ):
            yield (
                node.lineno,
                "expected_batch_size is set: the release must be divided by a public"
                " number",
            )
    for call in file.calls:
        divisor = _keyword(call, "normalize_by")
        if divisor is not None and _is_realised_size(divisor):
            yield (
                call.lineno,
                "normalize_by is the realised size of a batch: give the expected one",
            )
    yield from _reductions(file)
    if not file.is_private:
        return
    for scope in file.scopes:
        gradients = _derived(scope, _mentions_gradient)
        for node in _nodes_of(scope):
            for value, divisor in _divisions(node):
                if _is_realised_size(divisor) and _uses(value, gradients):
                    yield (
                        value.lineno,
                        "a sum of gradients is divided by the realised size of a batch:"
                        " divide by a public number, after the noise",
                    )


def _reductions(file: _File) -> _Matches:
    """A loss whose reduction is not the one that Opacus is told."""
    if not file.uses_opacus:
        return
    losses = set()
    loss_reductions = set()
    line = 0
    for call in file.calls:
        reduction = _text(_keyword(call, "reduction"))
        if reduction in ("sum", "mean"):
            losses.add(reduction)
            line = call.lineno
        if _called(call) in _MAKE_PRIVATE:
            loss_reductions.add(_text(_keyword(call, "loss_reduction")) or "mean")
            line = line or call.lineno
    if (losses or {"mean"}) & loss_reductions:
        return
    if "DPLossFastGradientClipping" in file.names:
        return
    yield (
        line,
        f"the loss has reduction {'/'.join(sorted(losses or {'mean'}))}, but Opacus's"
        f" loss_reduction is {'/'.join(sorted(loss_reductions))}: gradients of records are scaled by"
        " the batch's size",
    )


def _sensitivity(file: _File) -> _Matches:
    """Noise that is not calibrated to the sensitivity of what is released."""
    for scope in file.scopes:
        calibrated = _derived(scope, _mentions_sensitivity)
        for call in _calls(_nodes_of(scope)):
            stddev = _keyword(call, "stddev")
            name = _called(call)
            if (
                name.endswith("privatizer")
                and stddev is not None
                and not _uses(stddev, calibrated, _mentions_sensitivity)
            ):
                yield (
                    call.lineno,
                    "stddev does not follow from sensitivity() of the clipped gradient",
                )
            if name == "clip_grad_norm_" and file.is_private and not file.uses_opacus:
                yield (
                    call.lineno,
                    "clip_grad_norm_ clips the gradient of a batch, or one tensor, and"
                    " not each record's whole gradient",
                )


def _mismatch(file: _File) -> _Matches:
    """Accounting for Poisson samples of batches that are not."""
    for call in file.calls:
        if _has_option(call, "poisson_sampling", value=False):
            yield (
                call.lineno,
                "poisson_sampling=False: Opacus's epsilon is of Poisson samples",
            )
    if not file.names & _EVENTS or file.uses_opacus:
        return
    if file.names & {"batch_selection", "CyclicPoissonSampling", "batch_iterator"}:
        return
    for call in file.calls:
        is_shuffle = _called(call) in ("permutation", "randperm", "shuffle")
        if is_shuffle or _has_option(call, "shuffle", value=True):
            yield (
                call.lineno,
                "the batches are of a shuffled list, but the accountant takes them for"
                " Poisson samples",
            )


def _metadata(file: _File) -> _Matches:
    """Saved values that follow the data: their number, indices, random states."""
    if not file.is_private:
        return
    for scope in file.scopes:
        private = _derived(scope, _mentions_metadata)
        for call in _calls(_nodes_of(scope)):
            if _called(call) in _SAVERS and any(
                _uses(argument, private, _mentions_metadata)
                for argument in _arguments(call)
            ):
                yield (
                    call.lineno,
                    "the number of records, their indices or a random state is saved"
                    " beside the model: each follows the private data or undoes the"
                    " noise",
                )


def _relation(file: _File) -> _Matches:
    """Sensitivity under one adjacency, and accounting under another."""
    sensitivities = set()
    accountants = set()
    line = 0
    for call in file.calls:
        name = _called(call)
        doubled = any(
            _has_attribute(argument, {"REPLACE_ONE"}) for argument in _arguments(call)
        )
        if name == "sensitivity":
            sensitivities.add(doubled)
        elif (
            "Accountant" in name
            or "PrivacyConfig" in name
            or name == "calibrate_dp_mechanism"
        ):
            accountants.add(doubled)
            line = call.lineno
    if sensitivities and accountants and sensitivities != accountants:
        yield (
            line,
            "the sensitivity is taken for another adjacency than the account"
            " (replace-one has twice the sensitivity of the others)",
        )


def _empty(file: _File) -> _Matches:
    """Steps that are left out for an empty batch, or for a value that is not finite."""
    if not file.is_private:
        return
    for call in file.calls:
        if _has_option(call, "nan_safe", value=False):
            yield (
                call.lineno,
                "nan_safe=False: one record's gradient can make the sum not finite",
            )
    for node in ast.walk(file.tree):
        if not isinstance(node, (ast.For, ast.While)):
            continue
        for test in ast.walk(node):
            if not isinstance(test, ast.If) or not any(
                isinstance(step, (ast.Continue, ast.Break)) for step in test.body
            ):
                continue
            if _is_empty_test(test.test) or _calls_one_of(test.test, _FINITE_TESTS):
                yield (
                    test.lineno,
                    "a step is left out for an empty batch or a value that is not"
                    " finite, which tells about the records",
                )


def _accumulation(file: _File) -> _Matches:
    """Noise that is drawn once, or from one key, for several releases."""
    for loop in ast.walk(file.tree):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        inside = _assigned(loop)
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and _drops_noise_state(node):
                yield (
                    node.lineno,
                    "the new noise state is dropped, so that each release of the loop"
                    " has the same noise",
                )
            if not isinstance(node, ast.Call) or _called(node) not in _NOISE:
                continue
            key = node.args[0] if node.args else _keyword(node, "key")
            if (
                isinstance(key, ast.Name)
                and key.id not in inside
                and ("key" in key.id or "rng" in key.id)
            ):
                yield (
                    node.lineno,
                    f"each pass of the loop draws its noise from one key ({key.id})",
                )
    for scope in file.scopes:
        yield from _reused_noise(scope)


def _reused_noise(scope: ast.AST) -> _Matches:
    drawn = {}
    for statement in getattr(scope, "body", []):
        if isinstance(statement, ast.Assign) and _calls_one_of(
            statement.value, _NOISE - {"gaussian_privatizer"}
        ):
            for name in _target_names(statement):
                drawn[name] = statement.lineno
        if isinstance(statement, (ast.For, ast.While)):
            inside = _assigned(statement)
            for node in ast.walk(statement):
                if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(
                    node.op, ast.Add
                ):
                    for name in _names_used(node):
                        if name in drawn and name not in inside:
                            yield (
                                node.lineno,
                                f"the noise of line {drawn[name]} is added in each pass"
                                " of the loop",
                            )


def _mixing(file: _File) -> _Matches:
    """Operations that mix the records of a batch."""
    if not file.is_private:
        return
    for call in file.calls:
        if _called(call) in _BATCH_NORMS and not file.uses_opacus:
            yield (
                call.lineno,
                f"{_called(call)} takes statistics over the records of a batch",
            )
    for node in ast.walk(file.tree):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Sub)
            and isinstance(node.left, ast.Name)
            and _is_batch_mean(node.right, node.left.id)
        ):
            yield (
                node.lineno,
                "the mean over the records of a batch is subtracted from each record",
            )


def _auxiliary(file: _File) -> _Matches:
    """Losses of private batches that are printed, logged or saved without noise."""
    shown = _LOGS | _SAVERS
    returned: dict[str, set[int]] = {}
    for scope in file.scopes:
        sources = _losses(scope)
        if sources and isinstance(scope, ast.FunctionDef):
            losses = _derived(scope, start=sources)
            returned[scope.name] = _returned_positions(scope, losses)
    for scope in file.scopes:
        start = _losses(scope) | _received(scope, returned)
        if not start:
            continue
        losses = _derived(scope, start=start)
        for call in _calls(_nodes_of(scope)):
            if _called(call) in shown and any(
                _uses(argument, losses) for argument in _arguments(call)
            ):
                yield (
                    call.lineno,
                    "a loss or another value of private batches is shown without noise:"
                    " no epsilon covers it",
                )


_RULES: dict[str, Callable[[_File], _Matches]] = {
    "division-by-batch-size": _division,
    "sensitivity-alignment": _sensitivity,
    "accounting-mismatch": _mismatch,
    "private-metadata": _metadata,
    "neighboring-relation": _relation,
    "empty-or-not-finite": _empty,
    "gradient-accumulation": _accumulation,
    "cross-example-operations": _mixing,
    "auxiliary-information": _auxiliary,
}
"""Search for each critical pitfall; it yields lines and texts."""


# Facts of nodes


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (getattr(node, "module", None) or "").split(".")
            for alias in node.names:
                yield from alias.name.split(".")


def _names_used(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (node for node in nodes if isinstance(node, ast.Call))


def _calls_one_of(node: ast.AST, names: set[str]) -> bool:
    return any(_called(call) in names for call in _calls(ast.walk(node)))


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((item.value for item in node.keywords if item.arg == name), None)


def _has_option(call: ast.Call, name: str, *, value: bool) -> bool:
    option = _keyword(call, name)
    return isinstance(option, ast.Constant) and option.value is value


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(item.value for item in node.keywords)]


def _text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of functions within it."""
    pending: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield node
        pending += ast.iter_child_nodes(node)


def _target_names(node: ast.AST) -> set[str]:
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return {
        name for target in targets if target is not None for name in _names_used(target)
    }


def _assigned(loop: ast.AST) -> set[str]:
    return {name for node in ast.walk(loop) for name in _target_names(node)}


def _uses(
    node: ast.AST,
    names: Iterable[str],
    mentions: Callable[[ast.AST], bool] = lambda node: False,
) -> bool:
    return mentions(node) or bool(_names_used(node) & set(names))


def _derived(
    scope: ast.AST,
    mentions: Callable[[ast.AST], bool] = lambda node: False,
    start: Iterable[str] = (),
) -> set[str]:
    """Return the names that hold a value derived from a source in this scope.

    Args:
        scope: the module or a function.
        mentions: whether an expression is a source.
        start: names that are sources.
    """
    derived = set(start)
    statements = [
        node
        for node in _nodes_of(scope)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For))
        or (isinstance(node, ast.Call) and _called(node) in ("append", "extend"))
    ]
    while True:
        before = len(derived)
        for node in statements:
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and any(
                    _uses(argument, derived, mentions) for argument in node.args
                ):
                    derived |= _names_used(node.func.value)
                continue
            value = node.iter if isinstance(node, ast.For) else node.value
            if value is not None and _uses(value, derived, mentions):
                derived |= _target_names(node)
        if len(derived) == before:
            return derived


def _mentions_gradient(node: ast.AST) -> bool:
    called = [_called(call).lower() for call in _calls(ast.walk(node))]
    return _has_attribute(node, _GRADIENTS) or any(
        "grad" in name or "clip" in name for name in called
    )


def _mentions_sensitivity(node: ast.AST) -> bool:
    return _has_attribute(node, {"sensitivity", "l2_norm_bound"})


def _has_attribute(node: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(part, ast.Attribute) and part.attr in names
        for part in ast.walk(node)
    )


def _mentions_metadata(node: ast.AST) -> bool:
    counts_data = any(
        _called(call) == "len" and call.args and _is_data(call.args[0])
        for call in _calls(ast.walk(node))
    )
    return (
        counts_data
        or _calls_one_of(node, _RANDOM_STATES)
        or bool(_names_used(node) & {"indices", "noise_state"})
    )


def _is_data(node: ast.AST) -> bool:
    words = [name.lower() for name in _names(node)]
    return any(word in name for name in words for word in ("data", "train", "records"))


def _is_realised_size(node: ast.AST) -> bool:
    """Whether an expression is the size of an object of the data, not a constant."""
    return _calls_one_of(node, _SIZES) or _has_attribute(node, {"shape"})


def _divisions(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield node.left, node.right
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        yield node.target, node.value
    elif isinstance(node, ast.Call) and _called(node) in ("div", "div_", "divide"):
        if isinstance(node.func, ast.Attribute) and node.args:
            yield node.func.value, node.args[0]
    elif (
        isinstance(node, ast.Call)
        and _called(node) in ("tree_map", "map")
        and node.args
        and isinstance(node.args[0], ast.Lambda)
    ):
        body = node.args[0].body
        if isinstance(body, ast.BinOp) and isinstance(body.op, ast.Div):
            for argument in node.args[1:]:
                yield argument, body.right


def _is_empty_test(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, ast.Call) and _is_realised_size(test.operand)
    if not isinstance(test, ast.Compare) or len(test.comparators) != 1:
        return False
    constant = test.comparators[0]
    return (
        isinstance(constant, ast.Constant)
        and constant.value in (0, 1)
        and _is_realised_size(test.left)
    )


def _drops_noise_state(node: ast.Assign) -> bool:
    """Whether `noisy, _ = privatizer.update(...)` forgets the new state."""
    if not isinstance(node.value, ast.Call) or _called(node.value) != "update":
        return False
    function = node.value.func
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value).lower()
    if "privat" not in owner and "noise" not in owner:
        return False
    return any(
        isinstance(target, ast.Tuple)
        and isinstance(target.elts[-1], ast.Name)
        and target.elts[-1].id.startswith("_")
        for target in node.targets
    )


def _is_batch_mean(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call) or _called(node) != "mean":
        return False
    over_records = any(
        isinstance(value, ast.Constant) and value.value == 0
        for value in _arguments(node)
    )
    return over_records and name in _names_used(node)


def _losses(scope: ast.AST) -> set[str]:
    """Return the names of losses that are differentiated in this scope."""
    losses = set()
    for node in _nodes_of(scope):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "backward"
        ):
            losses |= _names_used(node.func.value)
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if "grad" in _called(node.value).lower():
            for target in node.targets:
                if isinstance(target, ast.Tuple) and len(target.elts) > 1:
                    losses |= _auxiliary_names(_called(node.value), target)
    return losses


def _auxiliary_names(called: str, target: ast.Tuple) -> set[str]:
    """Return the names of the outputs beside the gradient.

    `value_and_grad` returns the value first, and `clipped_grad` the gradient.
    """
    outputs = target.elts[:1] if "value_and" in called else target.elts[1:]
    return {
        name
        for output in outputs
        for name in _names_used(output)
        if not name.startswith("_")
    }


def _returned_positions(function: ast.FunctionDef, losses: set[str]) -> set[int]:
    """Return the positions of losses in what a function returns; -1: the whole."""
    positions = set()
    for node in _nodes_of(function):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        if isinstance(node.value, ast.Tuple):
            for position, value in enumerate(node.value.elts):
                if _uses(value, losses):
                    positions.add(position)
        elif _uses(node.value, losses):
            positions.add(-1)
    return positions


def _received(scope: ast.AST, returned: dict[str, set[int]]) -> set[str]:
    """Return the names that take a loss from a function of this file."""
    names = set()
    for node in _nodes_of(scope):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        positions = returned.get(_called(node.value), set())
        for target in node.targets:
            if -1 in positions:
                names |= _names_used(target)
            elif isinstance(target, ast.Tuple):
                for position in positions:
                    if 0 <= position < len(target.elts):
                        names |= _names_used(target.elts[position])
    return names
