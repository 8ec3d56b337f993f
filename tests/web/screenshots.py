"""`make screenshots`: docs/images/ of the live page, from the default run in a separate network.

The pictures show the start of the run and its change, live; then its replay, dark, and on a narrow screen.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.web.chromium import MISSING, Browser, chromium

IMAGES = Path(__file__).parents[2] / "docs" / "images"
OWN_NETWORK = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]
COLOURS = 224
START_ITERATION, CHANGE_ITERATION = 40, 75
SEEK = """
    return (async () => {
        const seek = document.getElementById('seek'), iteration = document.getElementById('iteration');
        for (let time = 0; time <= seek.max; time += 0.1) {
            seek.value = time;
            seek.dispatchEvent(new Event('input'));
            await new Promise(done => setTimeout(done, 70));
            if (+iteration.textContent >= arguments[0]) return;
        }
    })()
"""
"""Goes to the first frame of an iteration, which a short run has passed before a picture is taken."""


def main() -> int:
    """Enter a separate network first, so that no other run interferes."""
    if MISSING:
        sys.exit(f"a browser is needed: {MISSING} (apt-get install chromium chromium-driver)")
    if "inside" not in sys.argv:
        os.execvp(OWN_NETWORK[0], [*OWN_NETWORK, sys.executable, "-m", "tests.web.screenshots", "inside"])
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        os.environ["KOFN_STATE_DIR"] = f"{folder}/state"
        live(browser, Path(folder))
        replay(browser, Path(folder))
    return 0


def live(browser: Browser, folder: Path) -> None:
    kofn = started(folder / "run.log", "run", "--web", "--out", str(folder / "out"))
    browser.open(page_url(folder / "run.log"), height=1180)
    reached = f"return +document.getElementById('iteration').textContent > {CHANGE_ITERATION}"
    browser.until(lambda: browser.run(reached), "the change", timeout_s=120)
    for iteration, name in ((START_ITERATION, "live-start"), (CHANGE_ITERATION, "live-change")):
        browser.run(SEEK, iteration)
        save(browser, name)
    if kofn.wait():
        sys.exit((folder / "run.log").read_text())


def replay(browser: Browser, folder: Path) -> None:
    watch = started(folder / "watch.log", "watch", "--web", str(folder / "out"))
    try:
        for name, width, dark, part in (("replay-dark", 1400, True, 0.75), ("replay-narrow", 375, False, 0.6)):
            browser.open(page_url(folder / "watch.log"), width=width, height=1180, dark=dark)
            browser.until(lambda: browser.text("#state") == "replay of a finished run", "the end of the stream")
            browser.find("#play").click()
            if dark:
                browser.find("#trials label:nth-of-type(2)").click()
            browser.seek(part * float(browser.find("#seek").get_attribute("max") or 0))
            save(browser, name)
    finally:
        watch.terminate()
        watch.wait()


def started(log: Path, *words: str) -> "subprocess.Popen[bytes]":
    with log.open("wb") as out:
        return subprocess.Popen([Path(sys.executable).with_name("kofn"), *words], stdout=out, stderr=out)


def page_url(log: Path) -> str:
    """Wait until the command has printed the page's URL, and return it."""
    deadline = time.monotonic() + 60
    while not (found := re.search(r"page: (\S+)", log.read_text())):
        if time.monotonic() > deadline:
            sys.exit(f"no page: {log.read_text()}")
        time.sleep(0.1)
    return found[1]


def save(browser: Browser, name: str) -> None:
    """Save a picture with few colours, since it is flat; the file is a quarter as large."""
    path = IMAGES / f"{name}.png"
    time.sleep(0.3)  # a frame is drawn at most every 50 ms
    browser.picture(path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
