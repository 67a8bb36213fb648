"""The page of results in a real browser: Debian's `chromium`, or what CHROMIUM names,
driven by Playwright.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "viewport", [PHONE, DESKTOP, WIDE], ids=["phone", "desktop", "wide"]
)
def test_the_first_screen_holds_what_was_run_and_the_answer(
    opened: Open, viewport: dict[str, int], scheme: str
) -> None:
    tab = opened(viewport, color_scheme=scheme)
    boxes = {
        name: tab.locator(query).bounding_box()
        for name, query in {
            "title": "h1",
            "what was run": "header p",
            "answer": "#tables-answer table",
        }.items()
    }
    for name, box in boxes.items():
        assert (
            box["y"] + box["height"] <= viewport["height"]
            and box["x"] + box["width"] <= viewport["width"]
        ), name
    # There is room for five papers.
    row = tab.locator("#tables-answer tbody tr").first.bounding_box()
    assert viewport["height"] - row["y"] >= 5 * row["height"]
    # The first table does not scroll sideways, and the frontier is the first figure.
    answer = tab.locator("#tables-answer .scroll")
    assert answer.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    assert (
        tab.locator("figure").first.get_attribute("id") == "figures-dp-fedmeta-frontier"
    )
    assert "on glyphs" in tab.locator("header p").inner_text()
    dark = (
        tab.evaluate("getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_body_never_scrolls_sideways(opened: Open, width: int) -> None:
    tab = opened({"width": width, "height": 800})
    tab.evaluate(
        "document.querySelectorAll('details').forEach((element) => { element.open ="
        " true; })"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("img").evaluate_all(
        "(all) => all.every((image) => image.naturalWidth > 0)"
    )


@pytest.mark.parametrize(
    "viewport", [PHONE, DESKTOP, WIDE], ids=["phone", "desktop", "wide"]
)
def test_text_in_figures_can_be_read_at_the_size_that_is_shown(
    opened: Open, viewport: dict[str, int]
) -> None:
    """Figures have 160 pixels an inch and text of 7.5 points or more, which is to be at
    least 9 pixels high.
    """
    images = opened(viewport).locator("figure.item img")
    scales = images.evaluate_all(
        "(all) => all.map((image) => image.width / image.naturalWidth)"
    )
    assert len(scales) == 4 and all(7.5 * 160 / 72 * scale >= 9 for scale in scales)


def test_a_long_reason_is_folded_until_it_is_asked_for(opened: Open) -> None:
    tab = opened()
    reason = tab.locator("#tables-privacy td.long")
    low = reason.bounding_box()["height"]
    assert reason.count() == 1 and "same chance" not in reason.inner_text()
    reason.locator("summary").click()
    assert (
        reason.inner_text().count("same chance") >= 4
        and reason.bounding_box()["height"] > low
    )


def test_a_filter_by_method_keeps_its_rows_figures_and_runs(opened: Open) -> None:
    tab = opened()
    everything = {
        query: len(shown(tab, query))
        for query in ("tbody tr[data-facets]", "figure.item", ".run")
    }
    tab.get_by_label("Method").select_option("maml")
    assert methods(tab, TABLE) == ["Non-private MAML"] * 2
    assert (
        methods(tab, "tables-privacy") == []
        and not tab.locator("#tables-privacy").is_visible()
    )
    assert not tab.locator("#tables-answer").is_visible()
    # The frontier and Figure 2b show MAML, 4b does not; the figure of privacy cannot be
    # filtered.
    assert not tab.locator("#figures-dp-fedmeta-figure4b").is_visible()
    assert (
        tab.locator("#figures-dp-fedmeta-figure2b").is_visible()
        and tab.locator("#figures-privacy").is_visible()
    )
    # Two tasks of Table 2 in batches of 8, and Figure 2b's MAML in larger cohorts.
    assert all("MAML" in text for text in shown(tab, ".run .name"))
    assert len(shown(tab, ".run")) == 3
    said = tab.locator(".filters output").inner_text()
    assert said.startswith(
        f"3 of {everything['tbody tr[data-facets]']} rows, 3 of 4 figures, 3 of "
    )
    tab.get_by_role("button", name="Show all").click()
    playwright.expect(tab.locator(".filters output")).to_have_text(
        "everything is shown"
    )  # a moment after the click
    assert {query: len(shown(tab, query)) for query in everything} == everything


def test_filters_by_paper_data_set_and_epsilon(opened: Open) -> None:
    tab = opened()
    tab.locator("select[name=paper]").select_option("adap-dp-fl")
    assert methods(tab, TABLE) == [] and len(methods(tab, "tables-privacy")) == 1
    tab.locator("select[name=paper]").select_option("")
    tab.locator("select[name=dataset]").select_option("glyphs")
    assert len(methods(tab, "tables-privacy")) == 3
    tab.locator("select[name=dataset]").select_option("")
    # At most 2: neither 4.887, nor infinity, nor what claims nothing.
    tab.get_by_label("ε that holds, at most").fill("2")
    assert methods(tab, "tables-privacy") == ["DP-AGR\nPoisson"]
    assert methods(tab, TABLE) == []


def test_a_head_sorts_up_then_down_by_mouse_and_keyboard(opened: Open) -> None:
    tab = opened()
    head = tab.locator(f"#{TABLE} thead th", has_text="published")
    column = f"#{TABLE} tbody td:nth-child(6)"
    before = [float(text.split()[0]) for text in shown(tab, column)]
    assert head.get_attribute("aria-sort") is None
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text.split()[0]) for text in shown(tab, column)] == sorted(before)
    head.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [float(text.split()[0]) for text in shown(tab, column)] == sorted(
        before, reverse=True
    )
    # By another column: one aria-sort in the table, and rows without a value last both
    # ways.
    holds = tab.locator(f"#{TABLE} thead th", has_text="holds")
    for _ in range(2):
        holds.get_by_role("button").click()
        assert [
            text == "–" for text in shown(tab, f"#{TABLE} tbody td:nth-child(5)")
        ] == [False] * 6 + [True] * 4
    assert tab.locator(f"#{TABLE} [aria-sort]").count() == 1


def test_infinity_sorts_above_every_number(opened: Open) -> None:
    tab = opened()
    tab.locator("#tables-privacy thead th", has_text="ε holds").get_by_role(
        "button"
    ).click()
    assert shown(tab, "#tables-privacy tbody td:nth-child(6)") == [
        "1.49 to 1.51",
        "4.887",
        "4.887",
        "4.887 to ∞",
    ]


def test_a_row_leads_to_its_run_which_opens(opened: Open) -> None:
    tab = opened(reduced_motion="reduce")
    link = tab.locator(f"#{TABLE} tbody a", has_text="DP-AGR").first
    run = tab.locator(str(link.get_attribute("href")))
    assert run.get_attribute("open") is None
    link.click()
    playwright.expect(run).to_have_attribute("open", "")
    playwright.expect(run.locator("svg.history").first).to_be_in_viewport()
    assert run.locator("a", has_text="ledger.jsonl").count() == 3
    run.locator("summary", has_text="Configuration").click()
    playwright.expect(run.get_by_text("kind: percentile-of-releases")).to_be_visible()
    # Closed by hand, the same link opens it again, though the address does not change.
    run.locator("summary").first.click()
    assert run.get_attribute("open") is None
    link.click()
    playwright.expect(run).to_have_attribute("open", "")


def test_an_address_with_a_run_opens_it_and_a_link_undoes_a_filter_that_hides_its_target(
    opened: Open,
) -> None:
    anchor = (
        opened()
        .locator(f"#{TABLE} tbody a", has_text="MAML")
        .first.get_attribute("href")
    )
    tab = opened(fragment=str(anchor), reduced_motion="reduce")
    playwright.expect(tab.locator(str(anchor))).to_have_attribute("open", "")
    tab.get_by_label("Method").select_option("dp-agr")
    assert not tab.locator(str(anchor)).is_visible()
    tab.evaluate("(anchor) => { location.hash = ''; location.hash = anchor; }", anchor)
    playwright.expect(tab.locator(str(anchor))).to_be_visible()
    assert tab.get_by_label("Method").input_value() == ""


def test_the_policy_stops_a_request(browser: Any, site: Site) -> None:
    """Were there ever a link to an outside image on the page, it would not be asked
    for.
    """
    tab = browser.new_page()
    requests: list[str] = []
    tab.on("requestfinished", lambda request: requests.append(request.url))
    tab.goto(site.page.as_uri())
    violated = tab.evaluate("""() => new Promise((resolve) => {
            addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            document.body.append(Object.assign(new Image(), { src: "http://127.0.0.1:9/x.png" }));
        })""")
    assert violated == "img-src" and not any(url.startswith("http") for url in requests)
    tab.close()


def test_without_a_script_everything_is_there(opened: Open) -> None:
    tab = opened(java_script_enabled=False)
    assert not tab.locator(".filters").is_visible()
    assert len(methods(tab, TABLE)) == 10 and tab.locator(".run").first.is_visible()
