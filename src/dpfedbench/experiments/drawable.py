"""Checks that matplotlib can draw the texts of tables and figures."""

from collections.abc import Iterator

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Figure, Table
from dpfedbench.settings.words import shown


def texts(spec: Table | Figure) -> Iterator[tuple[str, str]]:
    """What matplotlib may have to set, by its key."""
    yield "title", spec.title
    curves = dict((spec.curves if isinstance(spec, Figure) else None) or {})
    if isinstance(spec, Figure):
        yield from (
            ("x.label", spec.x.label),
            ("y.label", spec.y.label),
            ("x.symbol", spec.x.symbol or ""),
        )
    for name, series in spec.series.items():
        if series is not None:
            yield from (
                (f"series.{name}.label", series.label or ""),
                (f"series.{name}.variant", series.variant),
            )
            curves |= series.curves or {}
    yield from (
        (f"curves.{name}.label", curve.label or "") for name, curve in curves.items()
    )


def check_drawable(text: str, where: str) -> None:
    """Refuse a text whose LaTeX matplotlib cannot set; matplotlib is loaded where there
    is a $ only.

    Raises:
        BenchError: names the key.
    """
    if text.replace(r"\$", "").count("$") < 2:
        return
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(text)
    except ValueError as error:
        raise BenchError(
            f"{where} is {shown(text)}, but matplotlib cannot draw its LaTeX"
            f" ({str(error).splitlines()[-1]}): correct "
            "it, "
            r"or write \$ for a dollar sign"
        ) from error
