"""The page of the studio in Firefox: it loads, plays, is changed by a slider and by a choice, and complains of
nothing.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.firefox import PROGRAM, SCREEN, Firefox

from dalembert.studio.catalogue import STORIES, example

RIGHT, UP = "\ue014", "\ue013"
READY = "document.documentElement.dataset.ready"


def ask(served, path: str, body: Any = None) -> Any:
    """What the server answers to another page."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(served.url + path, data, {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(asked, timeout=120).read())


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


def do(firefox, action):
    """Does something that makes the page simulate, and waits until its answer is drawn."""
    before = firefox.value(READY)
    action()
    firefox.until(f"{READY} !== '{before}' && !document.querySelector('#view.busy')", 120)


def choose(firefox, name):
    chosen = f"const s = document.querySelector(\"select[aria-label='System']\"); s.value = '\"{name}\"';"
    do(firefox, lambda: firefox.value(f"(() => {{ {chosen} s.dispatchEvent(new Event('change')) }})()"))
    assert firefox.value("studio.request().config.system.name") == name


@pytest.mark.heavy
def test_firefox_tells_a_story_fails_drives_and_parks(firefox, served):
    firefox.open(f"{served.url}#story=cusp&step=1")
    firefox.until(f"{READY} !== undefined && !document.querySelector('#view.busy')", 120)
    assert firefox.value("document.getElementById('lesson-text').textContent")
    do(firefox, lambda: firefox.click("#lesson-next"))
    assert firefox.value("location.hash").endswith("step=2")
    firefox.click("#lesson-end")
    do(firefox, lambda: firefox.click("#fail"))
    assert firefox.value("!document.getElementById('beside').hidden"), "two panes"
    do(firefox, lambda: firefox.value("(() => { location.hash = 'none' })()"))
    choose(firefox, "car")
    firefox.click("#drive")
    firefox.until("document.documentElement.dataset.driving === 'yes'", 60)
    firefox.act("key", [{"type": "keyDown", "value": UP}])
    firefox.until("driver.rows.length > 5 && driver.rows.some(([force]) => force > 0.5)")
    firefox.act("key", [{"type": "keyUp", "value": UP}])
    do(firefox, lambda: firefox.click("#drive"))
    assert firefox.value("studio.request().controls.length") > 2
    firefox.click("#park")
    firefox.until("document.documentElement.dataset.driving === 'plan'", 60)
    firefox.until("driver.plan && driver.plan.path.length > 1", 200)
    first = firefox.value("driver.goal")
    firefox.drag("#scene", (60, -20), (90, -40), (120, -60))
    assert firefox.value("driver.goal") != first, "the goal was dragged"
    firefox.click("#park-disc")
    firefox.until("!driver.asking && driver.plan.path.length > 1 && driver.discs.length === 1", 60)
    do(firefox, lambda: firefox.click("#park-go"))
    assert firefox.value("studio.request().controls.length") == 100
    assert firefox.picture().startswith(b"\x89PNG") and firefox.complaints(served.url) == []


@pytest.mark.heavy
def test_firefox_plays_every_story_to_its_end(firefox, served):
    for story in STORIES["story"]:
        for number, step in enumerate(story["step"], 1):
            link = f"story={story['name']}&step={number}"
            do(firefox, lambda link=link: firefox.value(f"(() => {{ location.hash = '{link}' }})()"))
            assert firefox.value("document.getElementById('lesson-text').textContent") == step["text"], link
    assert firefox.complaints(served.url) == []


@pytest.mark.heavy
def test_firefox_turns_a_satellite_shares_and_follows(firefox, served):
    firefox.open(served.url)
    firefox.until(f"{READY} !== undefined && !document.querySelector('#view.busy')", 120)
    choose(firefox, "satellite")
    firefox.click("#lead")
    firefox.until("document.querySelector('#banner input') !== null")
    room = firefox.value("document.querySelector('#banner input').value").partition("follow=")[2]
    led = ask(served, f"api/follow?room={room}&after=0")
    assert led["state"]["request"]["config"]["system"]["name"] == "satellite"
    firefox.click("#park")
    firefox.until("document.documentElement.dataset.driving === 'plan'", 60)
    firefox.until("driver.plan && driver.plan.path.length > 1", 200)
    assert firefox.value("document.getElementById('park').textContent") == "Turn"
    goal, plans = firefox.value("driver.goal"), firefox.value("driver.plans")
    firefox.drag("#scene", (0, 0), (30, 10), (60, 20))
    firefox.until(f"driver.plans > {plans} && !driver.asking", 60)
    assert firefox.value("driver.goal") != goal and firefox.value("driver.plan.path.length") > 1
    watched = ask(served, f"api/follow?room={room}&after={led['number']}")["live"]
    assert watched["drive"] and watched["path"] and watched["goal"], "who follows sees the plan"
    do(firefox, lambda: firefox.click("#park-go"))
    assert firefox.value("studio.request().controls.length") == 100
    # it follows a teacher who drives a car
    state = {"request": {"config": example("car"), "frames": 60}, "playing": False, "speed": 1, "follow": False}
    room = ask(served, "api/lead", {"state": state | {"camera": None, "frame": 0}})
    lead = {"room": room["room"], "key": room["key"]}
    firefox.open(f"{served.url}?follow={room['room']}")
    firefox.until("(window.studio?.data?.inputs ?? []).length === 2", 60)
    session = ask(served, "api/drive", {"request": state["request"], **lead})["session"]
    firefox.until("document.documentElement.dataset.driving === 'watch'", 60)
    place = firefox.value("studio.scene.followed.group.position.x")
    for _ in range(8):
        ask(served, "api/drive", {"session": session, "stick": [0.0, 1.0], "steps": 20, **lead})
    firefox.until(f"studio.scene.followed.group.position.x > {place} + 0.3")
    ask(served, "api/drive", {"session": session, "end": True, **lead})
    ask(served, "api/lead", {"state": state | {"camera": None, "frame": 0}, **lead})
    firefox.until("document.documentElement.dataset.driving === ''")
    assert firefox.complaints(served.url) == []


@pytest.mark.heavy
def test_firefox_opens_one_s_own(firefox, start):
    own = start(str(Path(__file__).parents[1] / "data" / "urdf" / "differential-drive.urdf"))
    try:
        firefox.open(own.url)
        firefox.until(f"{READY} !== undefined && !document.querySelector('#view.busy')", 120)
        assert not firefox.value("document.getElementById('drive').hidden")
        assert firefox.value("studio.data.scene.parts.some(({ name }) => name === 'spoke')")
        firefox.click("#drive")
        firefox.until("document.documentElement.dataset.driving === 'yes'", 120)
        firefox.act("key", [{"type": "keyDown", "value": UP}])
        firefox.until("driver.rows.length > 5", 60)
        firefox.act("key", [{"type": "keyUp", "value": UP}])
        do(firefox, lambda: firefox.click("#drive"))
        assert firefox.value("studio.request().controls.length") > 2 and firefox.complaints(own.url) == []
    finally:
        own.process.terminate()
        own.process.wait(10)
