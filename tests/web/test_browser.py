"""The page in a browser: its content, by mouse and by keyboard, light and dark, wide and narrow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from kofn.web.reader import RunReader
from kofn.web.server import PageServer
from tests.own_network import own_network
from tests.web.chromium import MISSING, Browser, chromium
from tests.web.lab import recorded
from tests.web.test_timeline import take_lines

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=f"needs a browser: {MISSING}")]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Isolate the network: Chromium aborts loading (ERR_NETWORK_CHANGED) when an interface comes or goes."""
    with own_network():
        yield


@pytest.fixture(scope="module")
def browser(alone: None) -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def url(alone: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = recorded(tmp_path_factory.mktemp("browser") / "run")
    with PageServer(RunReader(folder.path, over=lambda: True)) as server:
        yield server.url


@pytest.fixture
def page(browser: Browser, url: str) -> Browser:
    """Return a page with a replay, paused at 10 s of the second trial."""
    browser.messages()
    open_paused(browser, url)
    return browser


def open_paused(browser: Browser, url: str, *, width: int = 1400, dark: bool = False) -> None:
    browser.open(url, width=width, dark=dark)
    browser.until(lambda: browser.text("#state") == "replay of a finished run", "the end of the stream")
    browser.find("#trials label:nth-of-type(2)").click()
    browser.until(lambda: browser.run("return document.querySelectorAll('#trials input')[1].checked"), "the choice")
    if browser.find("#play").get_attribute("aria-label") == "Pause":
        browser.find("#play").click()
    browser.seek(10)
    browser.until(lambda: browser.text("#clock").startswith("10.0 /"), "the seek")
    browser.until(lambda: shown_iteration(browser) > 100, "a frame")


def shown_iteration(browser: Browser) -> int:
    """Return the iteration number on the page, 0 if there is none."""
    text = browser.text("#iteration")
    return int(text) if text.isdecimal() else 0


@pytest.mark.slow
def test_page_shows_the_runs_numbers(page: Browser) -> None:
    assert page.driver.title == "kofn: default"
    assert page.text("#k") == "4 of 4"
    assert "target 95" in page.text("#accuracy")
    assert page.text("#topology").count("↑ 1.0 ↓ 2.0") == 4
    assert "P4 switch sums 4 of 4" in page.text("#topology")
    assert "1 of 2 slots closed. Not in every slot: worker 3." in page.text("#slots-words")
    rows = [row.text for row in page.driver.find_elements("css selector", "#workers tbody tr")]
    assert len(rows) == 4
    assert all("in time" in row for row in rows)
    assert page.driver.current_url.endswith("/"), "the address must not have the token any more"


def test_drawings_are_not_empty(page: Browser) -> None:
    script = """
        const data = canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return [...document.querySelectorAll('canvas')].map(canvas => [canvas.id, data(canvas).some(value => value)]);
    """
    drawn = page.run(script)
    assert len(drawn) == 1 + 2 * 4 + 1 + 4, "slots, lanes and intervals, their axis, and charts must be drawn"
    assert all(inked for _, inked in drawn), drawn


def test_events_come_and_go_with_the_time(page: Browser) -> None:
    page.find("#trials label:nth-of-type(1)").click()
    page.seek(1.4)
    page.until(lambda: "worker-2 killed at iteration 40" in page.text("#events"), "the event")
    assert page.text("#events").splitlines()[-1] == "k is 3, was 4: less to wait for"
    page.until(lambda: "killed" in page.text("#topology"), "the worker's state")
    page.seek(0)
    page.until(lambda: page.text("#events") == "Nothing has happened yet.", "the time before")


def test_replay_plays_at_the_chosen_speed(page: Browser) -> None:
    """It is played and paused within the page: a slow browser would otherwise play on to the end."""
    page.find("#speed").send_keys("4")
    script = """
        const done = arguments[0], play = document.getElementById('play'), from = performance.now();
        const clock = () => parseFloat(document.getElementById('clock').textContent);
        const look = () => {
            if (clock() < 12) return requestAnimationFrame(look);
            play.click();
            done([clock(), (performance.now() - from) / 1000]);
        };
        play.click();
        requestAnimationFrame(look);
    """
    stopped, took_s = page.driver.execute_async_script(script)
    assert stopped - 10 <= 4 * took_s + 1.1, (
        "the replay must not be faster than chosen; a frame before the click lasts at most 1 s"
    )
    assert took_s > 0.2, "the replay must take some time"
    page.find("#back").click()
    page.until(lambda: float(page.text("#clock").split()[0]) < stopped, "a step back")


def test_replay_continues_with_the_next_trial(page: Browser) -> None:
    page.find("#trials label:nth-of-type(1)").click()
    page.seek(1000)
    page.find("#play").click()
    page.until(lambda: page.run("return document.querySelectorAll('#trials input')[1].checked"), "the next trial")


def test_keyboard_suffices(page: Browser) -> None:
    """Tab reaches every control, each control has a name and a visible focus, and keys work like the mouse."""
    page.find("h1").click()  # Tab starts here
    reached = []
    for _ in range(14):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.append(
            page.run(
                "const e = document.activeElement, box = e.type === 'radio' ? e.nextElementSibling : e;"
                "return [e.id || e.name || e.className, getComputedStyle(box).outlineStyle]"
            )
        )
        if reached[-1][0] == "speed":
            break
    assert [name for name, _ in reached] == ["trial", "scroll", "events", "play", "back", "forth", "seek", "speed"]
    assert {outline for _, outline in reached} == {"solid"}
    page.find("#seek").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.text("#clock").startswith("10.1 /"), "a step of the slider")
    page.run("document.activeElement.blur()")
    ActionChains(page.driver).send_keys(" ").perform()
    page.until(lambda: page.find("#play").get_attribute("aria-label") == "Pause", "playing")
    ActionChains(page.driver).send_keys(" ").perform()
    page.until(lambda: page.find("#play").get_attribute("aria-label") == "Play", "the pause")
    page.find("#trials input[value='1']").send_keys(Keys.ARROW_LEFT)
    page.until(lambda: page.run("return document.querySelectorAll('#trials input')[0].checked"), "the first trial")
    assert page.text("#clock").startswith("0.0 /")


def test_replay_begins_with_the_first_trial(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until(lambda: browser.text("#state") == "replay of a finished run", "the end of the stream")
    assert browser.run("return document.querySelectorAll('#trials input')[0].checked")
    assert browser.find("#play").get_attribute("aria-label") == "Pause", "the replay must play"


def test_controls_have_names_for_screen_readers(page: Browser) -> None:
    unnamed = """
        return [...document.querySelectorAll('button, select, input, canvas, svg#topology, section')].filter(element =>
            !(element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') || element.closest('label')
              || element.innerText || element.closest('[aria-hidden]') || element.closest('.uplot')))
            .map(element => element.outerHTML)
    """
    assert page.run(unnamed) == []
    assert page.find("#events").get_attribute("aria-live") == "polite"
    assert "worker 3 sends 1.0 and receives 2.0 Mbit/s" in (page.find("#topology").get_attribute("aria-label") or "")


@pytest.mark.parametrize("width", [375, 768, 1400])
def test_page_fits_the_window(browser: Browser, url: str, width: int) -> None:
    """No element sticks out of the window or of its panel, and the controls are visible."""
    open_paused(browser, url, width=width)
    assert browser.run("return document.documentElement.scrollWidth") == width
    out = """
        return [...document.querySelectorAll('section *, header *, footer *')].filter(element => {
            const box = element.getBoundingClientRect();
            return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5) && !element.closest('.scroll');
        }).map(element => element.outerHTML.slice(0, 200))
    """
    assert browser.run(out) == []
    assert browser.run("return document.getElementById('play').getBoundingClientRect().bottom <= innerHeight")


def test_text_is_legible_in_light_and_dark(browser: Browser, url: str) -> None:
    """The contrast is at least 4.5 (WCAG 2, level AA)."""
    papers = []
    for dark in (False, True):
        open_paused(browser, url, dark=dark)
        papers.append(browser.run("return getComputedStyle(document.documentElement).backgroundColor"))
        for selector in ("h2", "h2 small", "dd", "dt", "#events", ".key", "#clock", "#slots-words"):
            ink = browser.run("return getComputedStyle(document.querySelector(arguments[0])).color", selector)
            panel = browser.run("return getComputedStyle(document.querySelector('section')).backgroundColor")
            assert contrast(ink, panel) >= 4.5, (selector, dark)
    assert luminance(papers[0]) > 0.8
    assert luminance(papers[1]) < 0.1


def luminance(colour: str) -> float:
    """Return the relative luminance of "rgb(r, g, b)" (WCAG 2)."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_motion_is_reduced_on_request(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.prefer(motion="reduce")
    browser.driver.refresh()
    browser.until(lambda: browser.text("#state") == "replay of a finished run", "the end of the stream")
    assert browser.find("#play").get_attribute("aria-label") == "Play"
    assert browser.text("#clock").startswith("0.0 /")


def test_page_follows_an_active_run(browser: Browser, tmp_path: Path) -> None:
    """It follows into the next trial. A step back stops following, and Live resumes it."""
    folder = recorded(tmp_path / "whole")
    growing = recorded(tmp_path / "growing").path
    lines = take_lines(growing, folder)
    over, clock = False, lines[0][0]
    with PageServer(RunReader(growing, over=lambda: over, clock=lambda: clock)) as server:
        browser.open(server.url)
        half = next(at for at, (_, path, _) in enumerate(lines) if "all" in path.parts)
        clock = grow(lines[: half // 2])
        browser.until(lambda: browser.text("#state") == "live", "following")
        browser.until(lambda: shown_iteration(browser) > 50, "an iteration")
        browser.find("#back").click()
        assert browser.find("#live").get_attribute("aria-pressed") == "false"
        browser.find("#live").click()
        assert browser.find("#live").get_attribute("aria-pressed") == "true"
        clock = grow(lines[half // 2 :])
        browser.until(lambda: browser.run("return document.querySelectorAll('#trials input')[1].checked"), "the next")
        over = True
        browser.until(lambda: "the run is over" in browser.text("#state"), "its end")
        assert not browser.find("#live").is_displayed()
        assert browser.text("#iteration") == "200"


def grow(lines: list[tuple[float, Path, str]]) -> float:
    """Append lines to their files and return the latest time."""
    for _, path, line in lines:
        with path.open("a") as file:
            file.write(line)
    return lines[-1][0] + 1.0


def test_page_loads_nothing_from_elsewhere(page: Browser) -> None:
    """The console is silent, so the policy was not violated; every file comes from the server."""
    assert page.messages() == []
    origin = page.run("return location.origin")
    loaded = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(loaded) > 10
    assert all(name.startswith(f"{origin}/") for name in loaded)


def test_lost_file_is_loaded_again(browser: Browser, url: str) -> None:
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/store.js"]})
    browser.open(url)
    kind = "return performance.getEntriesByType('navigation')[0].type"
    browser.until(lambda: browser.run(kind) == "reload", "another try")
    assert browser.run("return document.getElementById('state').textContent") == ""
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    browser.until(lambda: browser.text("#state") == "replay of a finished run", "the end of the stream")


@pytest.mark.slow
def test_page_without_the_token_is_refused(browser: Browser, url: str) -> None:
    browser.driver.delete_all_cookies()
    browser.open(url.partition("?")[0])
    assert "403" in browser.text("body")
