"""A page with the statement of an account and its curves: one HTML file, no network.

The page says no more than is proven. Each point (epsilon, delta) of the high end bounds
the trade-off of every attack: with a false positive rate x, the false negative rate is
at least max(0, 1 - delta - e^epsilon x, e^-epsilon (1 - delta - x)) (Wasserman and Zhou
2010; Dong, Roth and Su 2022). The curve is the greatest of these lower bounds over all
points. Therefore

- the advantage (true positive rate less false positive rate) of any attack on the
  membership of one unit is at most the delta at epsilon 0, or the least
  (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) over the points (Kairouz, Oh and
  Viswanath 2015), and
- the true positive rate at 1 % false positives is at most one less the curve at 1 %.

Where the account is more than one accountant's (several units, draws or earlier runs,
noise that follows a loss), the curve is of the one point that the account has, and the
page says so.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from dpsum.accounting import analyses
from dpsum.accounting.account import Account
from dpsum.accounting.statement import all_accounts, statement_parts
from dpsum.ledger import Release

FALSE_POSITIVES = 0.01
"""The false positive rate at which the page states the true positive rate."""

Points = tuple[np.ndarray, np.ndarray]
"""Epsilons and proven deltas, float64 [n] each."""

_RATES = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 200)])
_WIDTH = 460
_HEIGHT = 300
_MARGIN = 50

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --accent: #2a6fb0; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 64rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: 12rem minmax(0, 1fr); gap: .5rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
.curves { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1rem; }
figure { margin: 0; } svg { width: 100%; height: auto; }
svg text { font-size: 13px; fill: currentColor; }
svg .axis { stroke: currentColor; fill: none; } svg .grid { stroke: var(--line); fill: none; }
svg .curve { stroke: var(--accent); stroke-width: 2.5; fill: none; }
svg .chance { stroke: currentColor; stroke-dasharray: 5 5; opacity: .6; fill: none; }
figcaption { font-size: .9rem; }
.numbers { font-size: 1.1rem; }
@media (max-width: 44rem) {
  dl, .curves { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: .5rem; }
}
"""


def proven_points(
    account: Account, releases: Sequence[Release] | None
) -> tuple[Points, bool] | None:
    """Return points (epsilon, delta) that are proven, and whether they are a curve.

    Args:
        account: account of one unit and observer.
        releases: its ledger; None: it is not at hand.

    Returns:
        None where no finite epsilon is proven. Otherwise epsilons and deltas; without a
        curve there is one point, that of the account.
    """
    proven = account.profiles.get("proven")
    if proven is None or math.isinf(proven.epsilon_high):
        return None
    point = np.array([proven.epsilon_high]), np.array([proven.delta])
    if releases is None or not _is_simple(account, releases):
        return point, False
    accountant = analyses.of(releases)
    curve = accountant.curve(accountant.read(releases))
    deltas = np.maximum(curve.present, curve.absent)
    epsilons = np.append(curve.epsilons, proven.epsilon_high)
    deltas = np.append(deltas, proven.delta)
    order = np.argsort(epsilons, kind="stable")
    # A smaller epsilon's delta is valid at every larger epsilon.
    return (epsilons[order], np.minimum.accumulate(deltas[order])), True


def _is_simple(account: Account, releases: Sequence[Release]) -> bool:
    """Return whether one accountant's curve is of all releases and this account."""
    proven = account.profiles["proven"]
    first = releases[0]
    samplers = {(event.mechanism, event.sampler["kind"]) for event in releases}
    draws = {event.sampler.draw for event in releases}
    parts = {event.part for event in releases}
    return (
        not account.also
        and len(samplers) == len(draws) == len(parts) == 1
        and proven.status == "proved"
        and proven.unit == first.unit
        and proven.observer == first.observer
        and not any(event.follows_loss for event in releases)
        and not analyses.of(releases).within_task
    )


def false_negatives(points: Points, rates: np.ndarray) -> np.ndarray:
    """Return a lower bound on the false negative rate of any attack, float64 [m].

    Args:
        points: epsilons and deltas, [n] each.
        rates: false positive rates, float64 [m].
    """
    epsilons, deltas = (values[:, None] for values in points)
    steep = 1 - deltas - np.exp(np.minimum(epsilons, 700.0)) * rates
    flat = np.exp(-epsilons) * (1 - deltas - rates)
    return np.maximum(np.maximum(steep, flat).max(axis=0), 0.0)


def largest_advantage(points: Points) -> float:
    """Return an upper bound on the true positive less the false positive rate."""
    epsilons, deltas = points
    half = np.tanh(epsilons / 2)
    return float(np.minimum(half + deltas * (1 - half), 1.0).min())


def statement_page(
    account: Account,
    *,
    releases: Sequence[Release] | None = None,
    **remarks: str | None,
) -> str:
    """Return the statement and its curves as an HTML page.

    Args:
        account: the account.
        releases: the ledger that it was computed from; None: the curves are those of
            the account's epsilon alone.
        remarks: as in `Account.statement`.
    """
    sections = []
    accounts = all_accounts(account)
    for number, part in enumerate(accounts):
        rows = []
        for heading, text in statement_parts(part, **remarks).items():
            rows.append(f"<dt>{html.escape(heading)}</dt><dd>{html.escape(text)}</dd>")
        title = ""
        if len(accounts) > 1:
            title = f"<h2>Guarantee {number + 1} of {len(accounts)}</h2>"
        sections.append(f"{title}<dl>{''.join(rows)}</dl>{_curves(part, releases)}")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Privacy statement</title><style>{_STYLE}</style></head><body>"
        f"<h1>Privacy statement</h1>{''.join(sections)}</body></html>\n"
    )


def _curves(account: Account, releases: Sequence[Release] | None) -> str:
    proven = proven_points(account, releases)
    if proven is None:
        return "<p>No finite epsilon is proven, so there is no curve.</p>"
    points, is_curve = proven
    caught = 1 - float(false_negatives(points, np.array([FALSE_POSITIVES]))[0])
    advantage = _percent_up(largest_advantage(points))
    numbers = (
        f'<p class="numbers">An attack that tells whether one {account.unit} took part'
        f" has an advantage of at most {advantage} (true less false positive rate). At"
        f" 1 % false positives it finds at most {_percent_up(caught)} of the true"
        " ones.</p>"
    )
    caveat = ""
    if not is_curve:
        caveat = (
            "<p>Only epsilon at one delta is known of this account. The curves are what"
            " follows from that one point; the mechanism itself may be better.</p>"
        )
    figures = []
    if is_curve:
        figures.append(_delta_figure(points))
    figures.append(_trade_off_figure(points))
    return f'{numbers}{caveat}<div class="curves">{"".join(figures)}</div>'


def _percent_up(share: float) -> str:
    return f"{math.ceil(share * 1000 - 1e-9) / 10:.4g} %"


def _delta_figure(points: Points) -> str:
    epsilons, deltas = points
    shown = deltas >= 1e-10
    right = float(epsilons[shown].max()) or 1.0
    path = [
        (epsilon / right, -math.log10(delta) / 10)
        for epsilon, delta in zip(epsilons[shown], deltas[shown], strict=True)
    ]
    xs = [(step / 4, f"{right * step / 4:.3g}") for step in range(5)]
    ys = [(power / 10, f"{10.0**-power:g}") for power in range(0, 11, 2)]
    caption = (
        "Delta over epsilon: the mechanism is (epsilon, delta)-differentially private at"
        " each point on the curve and above it."
    )
    return _figure(path, xs, ys, "epsilon", "delta", caption)


def _trade_off_figure(points: Points) -> str:
    missed = false_negatives(points, _RATES)
    path = list(zip(_RATES, 1 - missed, strict=True))
    ticks = [(step / 4, f"{step / 4:g}") for step in range(5)]
    heights = [(1 - x, text) for x, text in ticks]
    caption = (
        "Trade-off: with each false positive rate, no attack has a lower false negative"
        " rate than the curve. The dashed line is guessing."
    )
    labels = "false positive rate", "false negative rate"
    return _figure(path, ticks, heights, *labels, caption, guessing=True)


def _figure(
    path: Sequence[tuple[float, float]],
    xs: Sequence[tuple[float, str]],
    ys: Sequence[tuple[float, str]],
    x_label: str,
    y_label: str,
    caption: str,
    *,
    guessing: bool = False,
) -> str:
    """Return a figure with one curve.

    Args:
        path: points of the curve from the left and from the top, as shares of 1.
        xs, ys: ticks, as shares of the axes, with their text.
        x_label, y_label: names of the axes.
        caption: text below, which is also the figure's description.
        guessing: whether to draw the falling diagonal.
    """

    def svg_point(x: float, y: float) -> str:
        inner_width = _WIDTH - _MARGIN - 20
        inner_height = _HEIGHT - _MARGIN - 25
        return f"{_MARGIN + 10 + x * inner_width:.1f},{25 + y * inner_height:.1f}"

    parts = []
    for x, text in xs:
        left, top = svg_point(x, 1).split(",")
        parts.append(f'<path class="grid" d="M{svg_point(x, 0)}L{svg_point(x, 1)}"/>')
        parts.append(
            f'<text x="{left}" y="{float(top) + 18}" text-anchor="middle">{text}</text>'
        )
    for y, text in ys:
        left, top = svg_point(0, y).split(",")
        parts.append(f'<path class="grid" d="M{svg_point(0, y)}L{svg_point(1, y)}"/>')
        parts.append(
            f'<text x="{float(left) - 6}" y="{float(top) + 4}"'
            f' text-anchor="end">{text}</text>'
        )
    if guessing:
        parts.append(f'<path class="chance" d="M{svg_point(0, 0)}L{svg_point(1, 1)}"/>')
    drawn = "L".join(svg_point(x, y) for x, y in path)
    parts.append(
        f'<path class="axis" d="M{svg_point(0, 0)}L{svg_point(0, 1)}L{svg_point(1, 1)}"/>'
    )
    parts.append(f'<path class="curve" d="M{drawn}"/>')
    parts.append(f'<text x="4" y="14">{y_label}</text>')
    middle, _ = svg_point(0.5, 1).split(",")
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{x_label}</text>'
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{html.escape(caption)}">{"".join(parts)}</svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
