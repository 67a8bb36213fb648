"""The report of a checked command: verdict, paragraph, and values for JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpwatch.check.pitfalls import PITFALLS
from dpwatch.check.text_search import findings_of

FORMAT = "dpwatch check"
VERSION = 1

PROVEN = "proven"
LOOK = "look"
NOT_AS_CLAIMED = "not as claimed"
NOTHING_PROVEN = "nothing proven"
NOTHING_WATCHED = "nothing watched"

_ROUNDING = 1e-3
"""Share by which a claim may be below the proven low end: printed digits."""

_BRACKET = 0.02
"""Share by which a claim may be below the proven high end: the width of its bracket."""

_LIBRARIES = {
    "opacus": "Opacus",
    "flwr": "Flower",
    "pfl": "pfl-research",
    "jax_privacy": "JAX Privacy",
}
"""Names of the libraries, where they are not those of their modules."""

_NOT_SEEN = {
    "dpsum": ("whether the code does what the lines of its own ledger say",),
    "opacus": (
        "gradients that reach the model without the private optimiser",
        "several copies of a record in the data",
        "a criterion whose reduction is not loss_reduction, except in the script's text",
        "who reads the console and the log files",
    ),
    "flwr": (
        "what a client sends by another way than its reply",
        "evaluation on the server by evaluate_fn",
        "whether anybody learns the cohorts (taken as secret unless --cohorts known)",
    ),
    "pfl": (
        "data that reaches the model outside the backend",
        "whether anybody learns the cohorts (taken as secret unless --cohorts known)",
    ),
    "jax_privacy": (
        "a release without the privatizer, such as a loss or another auxiliary output",
        "records that are mixed before the clipped function, except in the script's text",
        "whether the indices of a batch are those of its examples",
    ),
}
"""Parts of a run that the watch of a library does not see."""

_ALWAYS_NOT_SEEN = (
    "a choice of settings by trying them on the same data",
    "rounding of floating-point numbers",
    "the quality and secrecy of the random seed",
)


def read_observations(folder: Path) -> list[dict[str, Any]]:
    """Return the observations of all processes (`hooks`), process by process."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("[0-9]*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def report(
    observations: Sequence[Mapping[str, Any]],
    *,
    command: Sequence[str],
    exit_code: int,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the report of a command, as values for JSON.

    Args:
        observations: see `hooks`.
        command: the command's words.
        exit_code: its exit code.
        settings: see `hooks.Session`.
    """
    watched = _watched(observations)
    refused = [
        {key: item[key] for key in ("library", "text")}
        for item in observations
        if item["kind"] in ("refused", "fault")
    ]
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "command": list(command),
        "exit_code": exit_code,
        "delta": _delta(observations, settings),
        "watched": watched,
        "refused": _distinct(refused),
        "claims": _distinct(
            {key: item[key] for key in ("library", "epsilon", "delta")}
            for item in observations
            if item["kind"] == "claim"
        ),
        "findings": _findings(observations),
        "not_seen": _not_seen(observations, watched),
        "processes": sum(item["kind"] == "started" for item in observations),
    }
    content["verdict"], content["why"] = verdict(content)
    content["paragraph"] = paragraph(content)
    return content


def _watched(observations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the watches with their accounts; of a client's local watches, the worst."""
    accounts = {
        item["ledger"]: item for item in observations if item["kind"] == "account"
    }
    watched = []
    for item in observations:
        if item["kind"] != "watched":
            continue
        values = {key: item[key] for key in ("library", "version", "ledger")}
        account = accounts.get(item["ledger"])
        if account is None:
            values |= {
                "releases": 0,
                "reasons": {},
                "no_account": "its process ended without a report",
                "not_audited": "its process ended without a report",
            }
        else:
            values |= {
                key: account[key] for key in account if key not in ("kind", "library")
            }
        watched.append(values)
    return watched


def _delta(
    observations: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    if settings["delta"] is not None:
        return {"value": settings["delta"], "from": "--delta"}
    claimed_deltas = [item["delta"] for item in observations if item["kind"] == "claim"]
    if claimed_deltas:
        return {"value": claimed_deltas[-1], "from": "the script"}
    return {"value": 1e-5, "from": "no source: the script states none"}


def _findings(observations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    findings = [
        {key: item[key] for key in ("pitfall", "place", "text")} | {"seen": "run"}
        for item in observations
        if item["kind"] == "finding"
    ]
    paths = {item["path"] for item in observations if item["kind"] == "source"}
    for path in sorted(paths):
        for finding in findings_of(path):
            findings.append(dataclasses.asdict(finding) | {"seen": "text"})
    return _distinct(findings)


def _not_seen(
    observations: Sequence[Mapping[str, Any]], watched: Sequence[Mapping[str, Any]]
) -> list[str]:
    lines: list[str] = []
    for library in dict.fromkeys(item["library"] for item in watched):
        lines += _NOT_SEEN.get(library, ())
    for item in observations:
        if item["kind"] == "optimizer":
            lines.append(
                f"{item['steps']:,} steps of {item['name']}, an optimiser without noise"
                " of its own: what it trained is private only if its gradients are of"
                " private releases or of public data"
            )
        elif item["kind"] == "plain":
            lines.append(
                f"Flower's {item['name']}, a strategy without differential privacy: each"
                " client's guarantee is its own"
            )
        elif item["kind"] == "missing":
            lines.append(
                f"a process of {item['python']}, which has no dpwatch ({item['text']})"
            )
    return list(dict.fromkeys([*lines, *_ALWAYS_NOT_SEEN]))


def verdict(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return the verdict of a report, and why.

    - "proven": each watched training has a finite proven epsilon, its claim is not
      below that by more than the width of a bracket (`_BRACKET`), and no pitfall was
      found.
    - "look": the same, but something looks like a pitfall, in the text or in the run.
    - "not as claimed": the claim is below what is proven, or the audit refutes the
      declared noise.
    - "nothing proven": of a watched or refused training no finite epsilon is proven.
    - "nothing watched": no hook saw a private release.
    """
    if not content["watched"] and not content["refused"]:
        return NOTHING_WATCHED, (
            "nothing was watched: no hook saw a private release; mark each release with"
            " dpsum.Release"
        )
    nothing = [_why_nothing(item) for item in content["watched"]]
    nothing += [item["text"] for item in content["refused"]]
    nothing = [why for why in nothing if why]
    if nothing:
        return NOTHING_PROVEN, "; ".join(dict.fromkeys(nothing))
    reasons = [_why_not_as_claimed(item) for item in content["watched"]]
    reasons = [why for why in reasons if why]
    if reasons:
        return NOT_AS_CLAIMED, "; ".join(dict.fromkeys(reasons))
    if content["findings"]:
        titles = dict.fromkeys(PITFALLS[f["pitfall"]] for f in content["findings"])
        return LOOK, f"looks like a pitfall: {', '.join(titles)}"
    return PROVEN, (
        "a finite epsilon is proven for the neighbouring data that the text names, and no"
        f" claim is more than {_BRACKET:.0%} below it"
    )


def _profile(item: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    profile = item.get("account", {}).get("profiles", {}).get(name)
    return None if profile is None else dict(profile)


def _why_nothing(item: Mapping[str, Any]) -> str:
    if "no_account" in item:
        return str(item["no_account"])
    proven = _profile(item, "proven")
    if proven is None:
        reasons = item["account"].get("reasons", {})
        return str(reasons.get("proven", "no profile of the account is proven"))
    if proven["epsilon_high"] != "inf":
        return ""
    if item["reasons"]:
        return "; ".join(
            f"{reason} (in {count:,} of {item['releases']:,} releases)"
            for reason, count in item["reasons"].items()
        )
    return str(proven["explanation"])


def _why_not_as_claimed(item: Mapping[str, Any]) -> str:
    proven = _profile(item, "proven")
    if proven is None:
        return ""
    audit = item.get("audit")
    if audit is not None and audit["refuted"]:
        return f"the audit refutes the declared noise: {audit['status']}"
    claimed = _profile(item, "claimed")
    if claimed is not None:
        if claimed["adjacency"] == "replace-one":
            # A claim is compared with the proven ends of its own adjacency.
            proven = _profile(item, "replace_one") or proven
        value = float(claimed["epsilon_high"])
        low = float(proven["epsilon_low"])
        high = float(proven["epsilon_high"])
        if value < low * (1 - _ROUNDING):
            return (
                f"claimed is epsilon {value:.4g}, but the exact one is at least"
                f" {low:.4g} ({claimed['explanation']})"
            )
        if value < high * (1 - _BRACKET):
            return (
                f"claimed is epsilon {value:.4g}, but no more than {high:.4g} is proven"
                f" ({claimed['explanation']})"
            )
    return ""


def paragraph(content: Mapping[str, Any]) -> str:
    """Return the report in plain English, for one who has not seen the script."""
    sentences = []
    for item in content["watched"]:
        sentences.append(_training(item))
    if not content["watched"]:
        sentences.append(content["why"][0].upper() + content["why"][1:] + ".")
        for claim in content["claims"]:
            library = _LIBRARIES.get(claim["library"], claim["library"])
            sentences.append(
                f"The script gets epsilon {claim['epsilon']:.4g} at delta"
                f" {claim['delta']:g} from {library}'s accountant."
            )
    if content["exit_code"]:
        sentences.append(
            f"The script itself ended with exit code {content['exit_code']}; this is of"
            " what ran before."
        )
    return " ".join(sentences)


def _training(item: Mapping[str, Any]) -> str:
    name = f"{_LIBRARIES.get(item['library'], item['library'])} {item['version']}"
    why_not = _why_nothing(item)
    count = f"{item['releases']:,} noisy sum{'' if item['releases'] == 1 else 's'}"
    if "account" not in item or why_not:
        text = f"{name} released {count}; nothing finite is proven, since {why_not}."
        claimed = _profile(item, "claimed")
        if claimed is not None:
            text += f" Claimed is epsilon {_number(claimed['epsilon_high'])}."
        return text
    return f"{name} released {count}. {item['statement']}"


def assumptions(item: Mapping[str, Any]) -> list[str]:
    """Return what a reader of a watched training's account has to believe."""
    lines = []
    proven = _profile(item, "proven")
    if proven is not None:
        lines.append(str(proven["explanation"]))
    lines += item.get("account", {}).get("notices", [])
    if item.get("assumes_rounds"):
        lines.append("the number of rounds was not chosen by looking at the data")
    return lines


def lines_of(content: Mapping[str, Any], width: int = 100) -> list[str]:
    """Return the report as lines of text."""
    head = f"dpwatch check: {content['verdict']}: {content['why']}"
    lines = textwrap.wrap(head, width)
    lines += ["", *textwrap.wrap(content["paragraph"], width)]
    beliefs = [line for item in content["watched"] for line in assumptions(item)]
    sections = {
        "The reader has to believe": beliefs,
        "Pitfalls (in the text: look there)": [
            f"{PITFALLS[finding['pitfall']]}, {finding['place']}: {finding['text']}"
            for finding in content["findings"]
        ],
        "Not watched": [item["text"] for item in content["refused"]],
        "Not seen": content["not_seen"],
    }
    for title, entries in sections.items():
        if not entries:
            continue
        lines += ["", f"{title}:"]
        for entry in dict.fromkeys(entries):
            lines += textwrap.wrap(
                entry, width, initial_indent="- ", subsequent_indent="  "
            )
    return lines


def _number(value: Any) -> str:
    return "infinity" if value == "inf" else f"{float(value):.4g}"


def _distinct(items: Any) -> list[dict[str, Any]]:
    distinct: dict[str, dict[str, Any]] = {}
    for item in items:
        distinct.setdefault(json.dumps(item, sort_keys=True), dict(item))
    return list(distinct.values())
