"""The page of the studio in Firefox: it loads, plays, is changed by a slider and by a choice, and complains of
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser.firefox import PROGRAM, SCREEN, Firefox

RIGHT = "\ue014"


@pytest.fixture(scope="module")
def firefox(tmp_path_factory) -> Iterator[Firefox]:
    if PROGRAM is None or SCREEN is None:
        pytest.skip("no Firefox, or no screen for it: `apt-get install firefox-esr xvfb` as root on Debian")
    running = Firefox(tmp_path_factory.mktemp("firefox"))
    yield running
    running.quit()


@pytest.mark.heavy
def test_firefox_shows_and_changes_the_motion(firefox, served):
    firefox.open(served.url)
    firefox.until("document.documentElement.dataset.ready !== undefined")
    firefox.until(f"studio.player.frame > {firefox.value('studio.player.frame')} + 5")
    assert firefox.value("studio.scene.drawn") > 1 and firefox.value("document.getElementById('problem').hidden")
    # WebGL draws: the middle of the scene is not one colour
    drawn = "(() => { studio.scene.draw(); const c = document.createElement('canvas'); c.width = c.height = 64;"
    drawn += " const k = c.getContext('2d'); k.drawImage(document.getElementById('scene'), 0, 0, 64, 64);"
    drawn += " return new Set(new Uint32Array(k.getImageData(0, 0, 64, 64).data.buffer)).size })()"
    assert firefox.value(drawn) > 20, f"Firefox {firefox.version} draws nothing"
    energy = "Array.from(studio.data.plots[0].curves[0].y).join()"
    before, ready = firefox.value(energy), firefox.value("document.documentElement.dataset.ready")
    firefox.press("input[aria-label='a, slider']", RIGHT)
    firefox.until(f"document.documentElement.dataset.ready !== '{ready}'")
    assert firefox.value(energy) != before and firefox.value("studio.request().config.system.a") > 0.3
    ready = firefox.value("document.documentElement.dataset.ready")
    firefox.press("select[aria-label='System']", "N")
    firefox.until("studio.request().config.system.name === 'nonholonomic-particle'")
    firefox.until(f"document.documentElement.dataset.ready !== '{ready}' && !document.querySelector('#view.busy')")
    assert firefox.value("document.activeElement.getAttribute('aria-label')") == "System", (
        "the keyboard stays where it was"
    )
    firefox.press("#plots .plot:first-child select", "Energy")
    assert firefox.value("document.querySelector('#plots .plot:first-child select').value") == "Energy"
    assert firefox.picture().startswith(b"\x89PNG")
    assert firefox.complaints(served.url) == []


@pytest.mark.heavy
def test_firefox_tells_a_story_fails_drives_and_parks(firefox, served):
    ready = "document.documentElement.dataset.ready"

    def after(action):
        before = firefox.value(ready)
        action()
        firefox.until(f"{ready} !== '{before}' && !document.querySelector('#view.busy')", 120)

    firefox.open(f"{served.url}#story=cusp&step=1")
    firefox.until(f"{ready} !== undefined && !document.querySelector('#view.busy')", 120)
    assert firefox.value("document.getElementById('lesson-text').textContent")
    after(lambda: firefox.click("#lesson-next"))
    assert firefox.value("location.hash").endswith("step=2")
    firefox.click("#lesson-end")
    after(lambda: firefox.click("#fail"))
    assert firefox.value("!document.getElementById('beside').hidden"), "two panes"
    after(lambda: firefox.value("(() => { location.hash = 'none' })()"))
    choose = "const s = document.querySelector(\"select[aria-label='System']\"); s.value = '\"car\"';"
    after(lambda: firefox.value(f"(() => {{ {choose} s.dispatchEvent(new Event('change')) }})()"))
    assert firefox.value("studio.request().config.system.name") == "car"
    firefox.click("#drive")
    firefox.until("document.documentElement.dataset.driving === 'yes'", 60)
    firefox.value("dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowUp', bubbles: true }))")
    firefox.until("driver.rows.length > 5 && driver.rows.some(([force]) => force > 0.5)")
    after(lambda: firefox.click("#drive"))
    assert firefox.value("studio.request().controls.length") > 2
    firefox.click("#park")
    firefox.until("document.documentElement.dataset.driving === 'plan'", 60)
    firefox.value("(() => { driver.aim([4, 0.5, 0]) })()")
    firefox.until("driver.plan && driver.plan.path.length > 1", 200)
    after(lambda: firefox.click("#park-go"))
    assert firefox.value("studio.request().controls.length") == 100
    assert firefox.picture().startswith(b"\x89PNG") and firefox.complaints(served.url) == []
