"""The page in headless Chromium: what no reading of its source can tell. Skipped where no Chromium is installed."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from plotly.offline import get_plotlyjs
from synthetic_comparison import compare
from synthetic_run import edit, name_all, write

from fedstrata.report import build, template
from fedstrata.report.comparison.page import build_comparison

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.pages,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]
RUNS = Path(__file__).parent / "runs"
TIMEOUT = 300_000
"""Milliseconds until a page counts as never opened: nothing is timed here, and machines are busy."""
SCHEMES: dict[Literal["light", "dark"], str] = {"dark": "rgb(20, 24, 29)", "light": "rgb(255, 255, 255)"}
"""What is behind the texts of a page."""
EVIL = '<img src=x onerror="window.ran=1"></script><script>window.ran=1</script>'


FITS = """() => new Promise(done => {
  const look = left => {
    const fits = document.documentElement.scrollWidth <= innerWidth;
    if (fits || !left) done(fits); else setTimeout(look, 100, left - 1);
  };
  look(600);
})"""
"""Whether nothing is to be scrolled sideways, once the pictures have taken their new size."""


@dataclass
class Opened:
    """A page, and what went wrong in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture(scope="module", autouse=True)
def whole_pages() -> Iterator[None]:
    """The script of Plotly is in these pages, as in those of users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "get_plotlyjs", cache(get_plotlyjs))
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, timeout=TIMEOUT)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """One tab for all pages, in which a script is compiled once."""
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT)
    yield page
    page.close()


def beside_all_others(page: Path, folder: Path) -> Path:
    """Copy a page to where all pages are opened, with Plotly's script on the same line of each.

    Chromium compiles a script anew, which takes seconds, unless it knows one with this text at this place.
    """
    before, script, after = page.read_text(encoding="utf-8").partition(f"<script>{get_plotlyjs()[:100]}")
    lines = "\n" * (10_000 - before.count("\n"))
    copy = folder / "page.html"
    copy.write_text(before + lines + script + after, encoding="utf-8")
    return copy


@pytest.fixture
def opened(tab: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    listening = list[tuple[Literal["console", "pageerror", "request"], Callable[[Any], None]]]()

    def open_(
        place: Path | str,
        width: int = 1280,
        make: Callable[[Path], Path] = build,
    ) -> Opened:
        """The page that is made of a folder, or the one at an address."""
        tab.set_viewport_size({"width": width, "height": 800})
        tab.emulate_media(color_scheme="light")
        tab.mouse.move(0, 0)
        found = Opened(tab)
        listening.append(("console", lambda said: found.errors.append(said.text)))
        listening.append(("pageerror", lambda error: found.errors.append(str(error))))
        listening.append(("request", lambda asked: found.fetched.append(asked.url)))
        address = place if isinstance(place, str) else beside_all_others(make(place), shared).as_uri()
        for event, listener in listening:
            tab.on(event, listener)
        tab.goto(address)
        found.fetched.remove(address)
        return found

    shared = tmp_path_factory.getbasetemp() / "pages"
    shared.mkdir(exist_ok=True)
    yield open_
    for event, listener in listening:
        tab.remove_listener(event, listener)


def kept(name: str, tmp_path: Path) -> Path:
    """One of the committed runs, where its page can be written beside nothing else."""
    return Path(shutil.copytree(RUNS / name, tmp_path / "beside" / name))


@pytest.mark.parametrize("name", ["adacfl", "fedavg", "layercfl", "strata"])
def test_a_page_opens_without_an_error_draws_everything_and_fetches_nothing(
    name: str, opened: Open, tmp_path: Path
) -> None:
    found = opened(kept(name, tmp_path))
    page = found.page
    assert page.locator(".plot:visible").count() == page.locator(".plot .main-svg:first-child").count() > 2
    assert page.evaluate(FITS)
    page.set_viewport_size({"width": 1, "height": 1})
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(FITS)
    assert found.errors == []
    assert [url for url in found.fetched if not url.startswith(("data:", "blob:"))] == []


def test_the_slider_goes_through_the_rounds_and_the_list_through_the_layers(opened: Open, tmp_path: Path) -> None:
    found = opened(kept("strata", tmp_path))
    page = found.page
    shown = "document.getElementById('matrix').data[0].z.flat().filter(value => value !== null).length"
    assert page.locator("#slider output").inner_text() == "2"
    assert "Node 0 split into 1, 2 and 3 on linear1 in round 3." in page.locator("#outcome").inner_text()
    assert page.evaluate(shown) == 20 * 19
    page.locator("#round").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#slider output").inner_text() == "4"
    assert page.evaluate(shown) == 10 * 9 + 2 * 5 * 4  # clusters of ten, five and five
    before = page.evaluate("document.getElementById('matrix').data[0].z[0][1]")
    page.locator("#view").select_option(label="linear2, likeness")
    assert page.evaluate("document.getElementById('matrix').data[0].z[0][1]") != before
    assert found.errors == []


def test_a_click_on_a_client_shows_its_curve_and_its_sentences(opened: Open, tmp_path: Path) -> None:
    found = opened(write(tmp_path / "run", count=12))
    found.page.locator(".sortable button.client").first.click()
    name = found.page.locator(".sortable button.client").first.inner_text()
    expect(found.page.locator("#client-name")).to_have_text(f"Client {name}")
    expect(found.page.locator("#client-facts")).to_contain_text("Its accuracy is")
    expect(found.page.locator("#client-curve .scatterlayer .trace")).to_have_count(2)
    assert found.errors == []


LONG = "Universitätsklinikum Münster \N{EN DASH} Klinik für Kardiologie I, Station"


def named(folder: Path, clients: int) -> Path:
    """A run whose clients have names of 60 and more characters."""
    names = [{"id": client, "name": f"{LONG} {client:02}"} for client in range(clients)]
    (folder / "data.json").write_text(json.dumps({"clients": names}), encoding="utf-8")
    return folder


def test_a_name_anywhere_leads_to_the_client_and_back(opened: Open, tmp_path: Path) -> None:
    page = opened(named(write(tmp_path / "run", count=12), 20)).page
    first = page.locator("#in-short button.client").first
    first.click()
    expect(page.locator("#client-name")).to_have_text(f"Client {first.inner_text()}")
    expect(page.locator("#client-name")).to_be_in_viewport()
    page.locator("#client-back").click()
    expect(first).to_be_in_viewport()
    expect(first).to_be_focused()


@pytest.mark.parametrize(("clients", "width"), [(4, 390), (100, 1280)])
def test_long_names_lie_on_nothing_and_fit(clients: int, width: int, opened: Open, tmp_path: Path) -> None:
    found = opened(named(write(tmp_path / "run", count=12, n=clients), clients), width=width)
    found.page.locator("#in-short button.client").first.click()
    assert found.page.evaluate(FITS)
    assert found.errors == []


def test_a_page_can_be_printed_before_anybody_clicked(opened: Open, tmp_path: Path) -> None:
    found = opened(kept("strata", tmp_path))
    found.page.evaluate("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
    assert found.page.evaluate("[...document.querySelectorAll('details')].every(each => each.open)")
    assert found.errors == []


def test_a_pointer_over_a_picture_is_told_what_is_there(opened: Open, tmp_path: Path) -> None:
    page = opened(kept("strata", tmp_path)).page
    for plot, told in {
        "accuracy": "worst client",
        "membership": "client",
        "split-0-likeness-linear1": "clients",
    }.items():
        page.locator(f"#{plot} .nsewdrag").first.hover(position={"x": 60, "y": 60})
        expect(page.locator(f"#{plot} .hoverlayer")).to_contain_text(told, timeout=TIMEOUT)


def test_a_click_on_a_heading_sorts_by_it_and_a_second_one_the_other_way(opened: Open, tmp_path: Path) -> None:
    page = opened(kept("layercfl", tmp_path)).page
    column = "[...document.querySelectorAll('.sortable tbody tr')].map(row => parseFloat(row.cells[%d].textContent))"
    accuracies = page.evaluate(column % 1)
    assert accuracies == sorted(accuracies)
    page.locator("th button").first.click()
    assert page.evaluate(column % 0) == list(range(12))
    page.locator("th button").first.click()
    assert page.evaluate(column % 0) == list(reversed(range(12)))
    assert page.locator("th[aria-sort]").inner_text().startswith("Client")


CONTRAST = """() => {
  const parse = text => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), opacity: parts.length > 3 ? parts[3] : 1 };
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const { rgb, opacity } = parse(getComputedStyle(each).backgroundColor);
      if (opacity > 0.99) return rgb;
    }
    return null;
  };
  const poor = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden" || !element.getClientRects().length) continue;
    const { rgb } = parse(element.closest("svg") ? style.fill : style.color);
    const [low, high] = [light(rgb), light(behind(element) ?? [NaN, NaN, NaN])].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (!(ratio >= 4.5)) poor.push(`${walk.currentNode.textContent.trim()}: ${ratio}`);
  }
  return poor;
}"""


def test_every_text_stands_out_from_what_is_behind_it(opened: Open, tmp_path: Path) -> None:
    """In both schemes, which a page follows without being opened again."""
    page = opened(kept("strata", tmp_path)).page
    for scheme, background in SCHEMES.items():
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
        assert page.evaluate(CONTRAST) == [], scheme


def test_html_in_any_name_is_shown_and_never_runs(opened: Open, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=10)
    name_all(folder, EVIL)
    edit(folder / "summary.json", **dict.fromkeys(("algorithm", "dataset", "partition", "model"), EVIL))
    found = opened(folder)
    page = found.page
    page.locator("#accuracy .nsewdrag").first.hover(position={"x": 60, "y": 60})
    expect(page.locator("#accuracy .hoverlayer")).to_contain_text("<img src=", timeout=TIMEOUT)
    assert EVIL in page.locator("h1").inner_text()
    assert page.evaluate("window.ran") is None
    assert page.locator("main img").count() == 0
    assert found.errors == []
    assert found.fetched == []


def test_the_page_of_a_comparison_opens_without_an_error_and_fits(opened: Open, tmp_path: Path) -> None:
    found = opened(compare(tmp_path).folder, make=build_comparison)
    page = found.page
    assert page.locator(".plot").count() == page.locator(".plot .main-svg:first-child").count() == 3
    assert page.evaluate(FITS)
    page.locator("#accuracy-by-bytes .nsewdrag").first.hover(position={"x": 200, "y": 100})
    expect(page.locator("#accuracy-by-bytes .hoverlayer")).to_contain_text(", round ", timeout=TIMEOUT)
    assert page.locator(".pairs tbody tr").count() == 3
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(FITS)
    assert found.errors == []
    assert [url for url in found.fetched if not url.startswith(("data:", "blob:"))] == []
