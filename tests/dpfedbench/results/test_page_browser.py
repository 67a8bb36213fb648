"""The page of results in a real browser: Debian's `chromium`, or what CHROMIUM names,
driven by Playwright.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dpfedbench.results.configurations import rank, read_configurations
from tests.dpfedbench.results.conftest import Site

playwright = pytest.importorskip(
    "playwright.sync_api", reason="`uv sync --group browser` installs playwright"
)
CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium here: `apt-get install chromium`, or set CHROMIUM",
)

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 800}
WIDE = {"width": 1920, "height": 1080}
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, site: Site) -> Iterator[Open]:
    """Open the page as a double click does; whatever it says to the console or asks of
    a network fails the test.
    """
    contexts, faults = [], []

    def on_request(request: Any) -> None:
        if request.url.partition("#")[
            0
        ] != site.page.as_uri() and not request.url.startswith("data:"):
            faults.append(f"request {request.url}")

    def open_page(
        viewport: dict[str, int] = DESKTOP, fragment: str = "", **settings: Any
    ) -> Any:
        contexts.append(browser.new_context(viewport=viewport, **settings))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: faults.append(f"console {message.text}"))
        tab.on("pageerror", lambda error: faults.append(f"error {error}"))
        tab.on("request", on_request)
        tab.goto(site.page.as_uri() + fragment)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def shown(tab: Any, query: str) -> list[str]:
    return [
        element.inner_text()
        for element in tab.locator(query).all()
        if element.is_visible()
    ]


def methods(tab: Any, table: str) -> list[str]:
    return shown(tab, f"#{table} tbody th")


TABLE = "tables-dp-fedmeta-table2"
VIEWPORTS = pytest.mark.parametrize(
    "viewport", [PHONE, DESKTOP, WIDE], ids=["phone", "desktop", "wide"]
)


@VIEWPORTS
def test_first_screen_answers_which_method(
    opened: Open, viewport: dict[str, int]
) -> None:
    tab = opened(viewport)
    for query in ("h1", ".question form", ".ranking tbody tr >> nth=0"):
        box = tab.locator(query).bounding_box()
        assert box["y"] + box["height"] <= viewport["height"], query
        assert box["x"] + box["width"] <= viewport["width"], query


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_follows_the_colour_scheme(opened: Open, scheme: str) -> None:
    ground = opened(color_scheme=scheme).evaluate(
        "getComputedStyle(document.body).backgroundColor"
    )
    assert (ground != "rgb(255, 255, 255)") == (scheme == "dark")


def ranked(tab: Any) -> list[list[str]]:
    """Return the text of each cell of the ranking."""
    rows = tab.locator(".ranking tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def choose_epsilon(tab: Any, exponent: float) -> None:
    tab.locator(".question input[name=epsilon]").evaluate(
        "(range, value) => { range.value = value;"
        " range.dispatchEvent(new Event('input', { bubbles: true })); }",
        exponent,
    )


def test_ranking_equals_that_in_python(opened: Open, site: Site) -> None:
    """At ε = 2, 4 and 8, of the accounts that the fixture wrote (4.887 / z, one 1.51)."""
    tab = opened()
    tab.locator(".question select[name=task]").select_option("glyphs, 5-way 1-shot")
    rows = read_configurations(site.arguments["cells"], site.folder)
    counts = []
    for exponent in (1, 2, 3):
        choose_epsilon(tab, exponent)
        expected = rank(
            rows,
            dataset="glyphs",
            task="5-way 1-shot",
            unit="client",
            epsilon=2.0**exponent,
        )
        private = expected[expected["group"] == "private"]
        ranks = [row for row in ranked(tab) if row[0].isdigit()]
        accuracies = [float(row[2].split()[0]) for row in ranks]
        assert accuracies == [round(value, 1) for value in private["accuracy"][:8]]
        counts.append(len(private))
        baselines = [row[0] for row in ranked(tab) if not row[0].isdigit()]
        assert baselines[0] == "no private data" and baselines[-1] == "not private"
    assert 1 <= counts[0] <= counts[1] < counts[2]


def test_ranking_says_where_no_configuration_keeps_the_epsilon(opened: Open) -> None:
    tab = opened()
    tab.locator(".question select[name=task]").select_option("glyphs, 5-way 1-shot")
    choose_epsilon(tab, -1)
    remark = tab.locator(".question .once").inner_text()
    # 4.887 / 4, of the configuration with four times the noise.
    assert remark.startswith(
        "No configuration keeps this ε; the least proven one is 1.22."
    )


def test_ranking_leads_to_the_row_of_its_configuration(opened: Open) -> None:
    tab = opened(reduced_motion="reduce")
    link = tab.locator(".ranking tbody a").first
    link.click()
    target = tab.locator(str(link.get_attribute("href")))
    playwright.expect(target).to_be_in_viewport()
    assert target.locator("a").first.get_attribute("href").endswith("config.yaml")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_body_never_scrolls_sideways(opened: Open, width: int) -> None:
    tab = opened({"width": width, "height": 800})
    tab.evaluate(
        "document.querySelectorAll('details').forEach((one) => one.open = true)"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("img").evaluate_all(
        "(all) => all.every((image) => image.naturalWidth > 0)"
    )


@VIEWPORTS
def test_text_in_figures_is_at_least_nine_pixels_high(
    opened: Open, viewport: dict[str, int]
) -> None:
    """Figures have 160 pixels an inch and text of 7.5 points or more."""
    images = opened(viewport).locator("figure.item img")
    scales = images.evaluate_all(
        "(all) => all.map((image) => image.width / image.naturalWidth)"
    )
    assert len(scales) == 4 and all(7.5 * 160 / 72 * scale >= 9 for scale in scales)


def test_head_sorts_up_then_down_by_mouse_and_keyboard(opened: Open) -> None:
    tab = opened()
    head = tab.locator(f"#{TABLE} thead th", has_text="published")
    column = f"#{TABLE} tbody td:nth-child(7)"

    def numbers() -> list[float]:
        return [float(text.split()[0]) for text in shown(tab, column)]

    before = numbers()
    assert head.get_attribute("aria-sort") is None
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers() == sorted(before)
    head.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers() == sorted(before, reverse=True)
    # Rows without a value stand last both ways, and one column alone is sorted.
    proven = tab.locator(f"#{TABLE} thead th", has_text="proven")
    for _ in range(2):
        proven.get_by_role("button").click()
        values = shown(tab, f"#{TABLE} tbody td:nth-child(6)")
        assert [value == "–" for value in values] == [False] * 6 + [True] * 4
    assert tab.locator(f"#{TABLE} [aria-sort]").count() == 1


def test_infinity_sorts_above_every_number(opened: Open) -> None:
    tab = opened()
    table = "#all-configurations"
    heads = tab.locator(f"{table} thead th").all_inner_texts()
    column = next(number for number, text in enumerate(heads) if "proven" in text)
    tab.locator(f"{table} thead th").nth(column).get_by_role("button").click()
    values = shown(tab, f"{table} tbody tr > :nth-child({column + 1})")
    finite = [text for text in values if text != "–"]
    assert finite[0] == "1.22" and "∞" in finite[-1]


def test_policy_stops_a_request(browser: Any, site: Site) -> None:
    """An image from outside, were it ever on the page, would not be asked for."""
    tab = browser.new_page()
    requests: list[str] = []
    tab.on("requestfinished", lambda request: requests.append(request.url))
    tab.goto(site.page.as_uri())
    violated = tab.evaluate("""() => new Promise((resolve) => {
            addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            document.body.append(Object.assign(new Image(), { src: "http://127.0.0.1:9/x.png" }));
        })""")
    assert violated == "img-src"
    assert not any(url.startswith("http") for url in requests)
    tab.close()


def test_without_a_script_all_tables_are_there(opened: Open) -> None:
    tab = opened(java_script_enabled=False)
    assert not tab.locator(".question form").is_visible()
    assert len(methods(tab, TABLE)) == 10
    assert methods(tab, "all-configurations")
    assert "needs JavaScript" in tab.locator(".question").inner_text()
