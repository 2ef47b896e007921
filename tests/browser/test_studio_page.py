"""The page of the studio in a real browser: it loads, plays, simulates, compares, explains, recovers and is
taken away.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from browser.conftest import Tab, opened_tab
from scipy.spatial.transform import Rotation

import dalembert
from dalembert.simulation import simulate
from dalembert.studio import requests
from dalembert.studio.requests import StudioInput

PAGE = Path(dalembert.__file__).parent / "studio" / "page"
ENERGY = "Array.from(studio.data.plots[0].curves[0].y)"


def test_the_first_picture_comes_soon_and_moves(playing_tab, served):
    """Issue: within 3 s of the command on two quiet cores. The figure is printed; a busy machine does not fail the
    test.
    """
    playing_tab.open(served.url)
    seconds = time.perf_counter() - served.began
    print(f"\nfirst picture {seconds:.1f} s after the command ({served.announced - served.began:.1f} s to the address)")
    assert playing_tab.page.locator("#title").inner_text()
    assert playing_tab.page.locator("#why").inner_text()
    early = playing_tab.page.locator("#view").screenshot()
    playing_tab.until(f"studio.player.frame > {playing_tab.value('studio.player.frame')} + 5")
    assert playing_tab.value("studio.scene.drawn") > 1
    assert playing_tab.page.locator("#view").screenshot() != early
    assert seconds < 60


def test_a_slider_changes_the_motion_and_the_energy_plot(shared_tab):
    tab = shared_tab
    tab.value("studio.player.seek(0)")
    energy, picture = tab.value(ENERGY), tab.settle_plots()
    path = tab.value("Array.from(studio.data.scene.parts.find(p => p.shape.kind === 'trace').shape.points)")
    tab.after(lambda: tab.page.get_by_label("a, slider", exact=True).fill("300"))
    assert float(tab.number("a").input_value()) == tab.value("studio.request().config.system.a") == 0.5
    assert tab.value(ENERGY) != energy
    assert tab.settle_plots() != picture
    assert tab.value("Array.from(studio.data.scene.parts.find(p => p.shape.kind === 'trace').shape.points)") != path


def test_a_system_is_chosen_and_two_methods_compared(shared_tab):
    tab = shared_tab
    tab.after(lambda: tab.choose("System", "nonholonomic-particle"))
    assert tab.value("studio.request().config.system.name") == "nonholonomic-particle"
    assert "particle" in tab.page.locator("#title").inner_text().lower()
    if tab.value("studio.data.runs.length") == 1:
        tab.after(lambda: tab.choose("Compare with", "runge-kutta"))
    assert tab.page.locator("#claims .run").count() == 2
    assert {curve["run"] for curve in tab.value("studio.data.plots[0].curves.map(c => ({run: c.run}))")} == {0, 1}
    tab.page.locator("#claims .run-name").nth(1).click()
    assert tab.page.locator("#claims .run-name").nth(1).get_attribute("aria-pressed") == "false"
    tab.after(lambda: tab.choose("System", "chaplygin-sleigh"))
    assert "come apart" in tab.page.locator("#verdict").inner_text(), "one that goes on opens where they differ too"
    assert "runge-kutta is nearer to the true one" in tab.page.locator("#verdict").inner_text()
    tab.after(lambda: tab.choose("Compare with", "nothing"))
    assert tab.page.locator("#claims .run").count() == 1


def test_a_story_is_clicked_through_and_its_link_opens_it(shared_tab):
    tab = shared_tab
    tab.page.locator("#stories summary").click()
    tab.after(lambda: tab.page.get_by_role("button", name="The sleigh that turns round").click())
    assert (
        tab.page.url.endswith("#story=cusp&step=1") and "launched backwards" in tab.page.locator("#lesson").inner_text()
    )
    tab.after(lambda: tab.page.locator("#lesson-next").click())
    tab.after(lambda: tab.page.keyboard.press("PageDown"))
    assert tab.page.url.endswith("#story=cusp&step=3") and tab.value("studio.request().config.system.a") == 0
    tab.after(lambda: tab.value("{ location.hash = 'story=cusp&step=5' }"))
    assert tab.page.locator("#lesson-dots [aria-current]").inner_text() == "5"
    assert tab.value("studio.request().config.run.steps") == 600
    assert tab.page.locator("#plots select").first.input_value() == "Yaw rate"
    tab.page.locator("#lesson-next").click()
    assert not tab.page.locator("#lesson").is_visible() and "story=" not in tab.page.url
    tab.page.locator("#plots select").first.select_option("Forward velocity")  # as the other tests find it
    tab.after(lambda: tab.value("{ location.hash = 'story=cusp&step=2' }"))
    tab.after(lambda: tab.number("a").fill("0.6"))
    assert tab.page.locator("#lesson").is_visible(), "a slider belongs to the story"
    tab.after(lambda: tab.choose("System", "unicycle"))
    assert not tab.page.locator("#lesson").is_visible(), "no story is told of another system than its own"


@pytest.mark.parametrize("width", [1100, 360])
def test_menus_open_inside_the_page(shared_tab, width):
    shared_tab.page.set_viewport_size({"width": width, "height": 700})
    for menu in ("#stories", "#take-away"):
        shared_tab.page.locator(f"{menu} summary").click()
        box = shared_tab.page.locator(f"{menu} .items").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, (menu, box)
        shared_tab.page.locator(f"{menu} summary").click()


def test_make_it_fail_is_one_button(shared_tab):
    """Two panes, one clock and one camera; the button takes it back."""
    tab = shared_tab
    before = tab.value("studio.request().config.run")
    tab.after(lambda: tab.page.locator("#fail").click())
    assert tab.page.locator("#beside").is_visible() and tab.page.locator(".pane-name:visible").count() == 2
    assert "come apart" in tab.page.locator("#verdict").inner_text()
    tab.value("studio.player.seek(studio.player.last / 2)")
    assert tab.value("studio.scene.frame === studio.beside.frame && studio.scene.frame > 0")
    tab.value("studio.scene.zoom(1.3)")
    tab.until("studio.scene.camera.position.distanceTo(studio.beside.camera.position) < 1e-6")
    tab.after(lambda: tab.page.locator("#fail").click())
    assert tab.value("studio.request().config.run") == before and not tab.page.locator("#beside").is_visible()


def test_a_car_is_driven_with_keys_and_the_stick(shared_tab):
    """What was driven is replayed: the page holds its controls, and `simulate` with them ends where the page
    saw the car last, to the last bit of the float32 that it gets (all bits: tests/studio/test_drive.py).
    """
    tab = shared_tab
    tab.after(lambda: tab.choose("System", "car"))
    tab.page.locator("#drive").click()
    tab.page.wait_for_selector("html[data-driving=yes]", timeout=60_000)
    told = tab.page.locator("#side").inner_text()
    assert told == "The plots come when the drive ends.", "what nobody drove has no plots"
    assert not tab.page.locator("#plots .plot-area").first.is_visible()
    tab.value(
        "{ const { scene } = studio; scene.receive = (pose) => { globalThis.seen = pose; "
        "Object.getPrototypeOf(scene).receive.call(scene, pose) }; 0 }"
    )
    tab.page.keyboard.down("ArrowUp")
    tab.until("globalThis.driver.rows.some(([force]) => force > 0.5)")
    tab.page.keyboard.up("ArrowUp")
    box = tab.page.locator("#stick").bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
    tab.until("globalThis.driver.rows.some(([, torque]) => torque > 0.5)")
    tab.page.mouse.up()
    tab.after(lambda: tab.page.locator("#drive").click())
    assert tab.value("studio.request().controls.length") == tab.value("studio.request().config.run.steps") > 2
    assert tab.value("studio.data.runs[0].steps") == tab.value("studio.request().controls.length")
    assert tab.page.locator("#plots .plot-area").first.is_visible() and not tab.page.locator("#later").is_visible()
    tab.value("{ delete studio.scene.receive; 0 }")
    request, pose = tab.value("studio.request()"), tab.value("globalThis.seen")
    (job,), _ = requests.jobs_of(request, StudioInput())
    run = simulate(job.system, job.integrator, job.state, **job.run, controls=np.array(request["controls"]))
    place = np.asarray(run.last.g[0])[:2, 2].astype(np.float32).tolist()
    assert place[0] > 0 and any(position and position[:2] == place for _, position, _ in pose), (place, pose)
    tab.after(lambda: tab.choose("System", "chaplygin-sleigh"))
    assert tab.value("studio.request().controls === undefined")


def test_who_drives_takes_the_steps_of_the_example(shared_tab):
    """Also where a method was just made to fail with large ones; and what was said of an earlier drive goes."""
    tab = shared_tab
    tab.after(lambda: tab.choose("System", "car"))
    step = tab.value("studio.request().config.run.step")
    tab.after(lambda: tab.page.locator("#fail").click())
    assert tab.value("studio.request().config.run.step") > 10 * step
    tab.value("{ document.getElementById('status').textContent = 'It stopped: no solution' }")
    tab.page.locator("#drive").click()
    tab.page.wait_for_selector("html[data-driving=yes]", timeout=60_000)
    assert tab.value("driver.stepSize") == step and not tab.page.locator("#status").inner_text()
    assert not tab.page.locator("#legend").is_visible(), "of arrows that are not drawn"
    tab.after(lambda: tab.page.locator("#drive").click())


@pytest.mark.heavy
def test_all_of_what_is_driven_is_in_the_picture(tab, served):
    """The tower of a robot on a ball is eight times as high as the ball that the camera follows."""
    tab.open(served.url)
    tab.after(lambda: tab.choose("System", "ball-robot"))
    tab.page.locator("#drive").click()
    tab.page.wait_for_selector("html[data-driving=yes]", timeout=200_000)
    ends = tab.value(
        "(() => { const { min, max } = studio.scene.bodies(); studio.scene.camera.updateMatrixWorld();"
        " return [min, max].map((point) => point.clone().project(studio.scene.camera).toArray().slice(0, 2)) })()"
    )
    assert np.abs(ends).max() < 1, ends
    tab.after(lambda: tab.page.locator("#drive").click())


def test_a_single_tick_at_zero_has_a_label(shared_tab):
    """Its digits were no number: the plot of a motion of one state ended in an error, in silence."""
    label = "import('/page/plot.js').then(({ tickLabel }) => tickLabel(%s, { log: false, ticks: %s }))"
    found = [shared_tab.value(label % each) for each in (("0", "[0]"), ("2", "[2]"), ("1.00002", "[1, 1.00002]"))]
    assert found == ["0", "2", "1.00002"]


def test_only_what_has_plans_offers_to_park(shared_tab):
    shared_tab.after(lambda: shared_tab.choose("System", "bicycle"))
    assert shared_tab.page.locator("#drive").is_visible() and not shared_tab.page.locator("#park").is_visible()
    shared_tab.after(lambda: shared_tab.choose("System", "unicycle"))
    assert shared_tab.page.locator("#park").is_visible()


def test_a_drive_that_takes_long_to_begin_is_told_and_given_up(shared_tab):
    tab = shared_tab
    tab.after(lambda: tab.choose("System", "unicycle"))
    tab.page.route("**/api/drive", lambda route: None)  # which is never answered
    tab.page.locator("#drive").click()
    tab.page.wait_for_selector("#waiting:visible", timeout=10_000)
    tab.page.locator("#cancel").click()
    tab.until("driver.beginning === null && document.getElementById('waiting').hidden")
    tab.page.locator("#drive").click()
    tab.until("driver.beginning !== null")
    tab.after(lambda: tab.choose("System", "chaplygin-sleigh"))
    assert tab.value("driver.beginning === null && !driver.session"), "another system is not driven by that"
    tab.page.unroute("**/api/drive")
    assert all("net::" in line for line in tab.complaints)
    tab.complaints.clear()


@pytest.mark.heavy
def test_a_goal_is_pulled_on_the_floor_and_driven_to(shared_tab):
    tab = shared_tab
    tab.after(lambda: tab.choose("System", "unicycle"))
    tab.page.locator("#park").click()
    tab.page.wait_for_selector("html[data-driving=plan]", timeout=60_000)
    box = tab.page.locator("#scene").bounding_box()
    tab.page.mouse.move(box["x"] + 0.62 * box["width"], box["y"] + 0.4 * box["height"])
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.35 * box["height"])
    tab.until("driver.plan && driver.plan.path.length > 1", 90)
    tab.until("driver.answered === driver.goal")
    tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    tab.value(
        "(() => { const made = WebGL2RenderingContext.prototype, link = made.linkProgram; globalThis.linked = 0;"
        " made.linkProgram = function (...given) { linked += 1; return link.apply(this, given) } })()"
    )
    tab.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.45 * box["height"])
    tab.until("driver.answered === driver.goal")
    tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert tab.value("linked") == 0, "a shader is not compiled anew for every plan"
    tab.page.mouse.up()
    x, y, angle = tab.value("driver.goal")
    assert "effort" in tab.page.locator("#park-text").inner_text()
    tab.after(lambda: tab.page.locator("#park-go").click())
    points = tab.value("Array.from(studio.data.scene.parts.find(p => p.shape.kind === 'trace').shape.points)")
    assert abs(points[-3] - x) < 0.05 and abs(points[-2] - y) < 0.05, (points[-3:], x, y, angle)
    tab.after(lambda: tab.choose("System", "chaplygin-sleigh"))


def test_a_bad_value_explains_itself_in_place(shared_tab):
    tab = shared_tab
    shown = tab.value("studio.data.title")
    problem = tab.page.locator("[data-place='system.mass'] .problem")
    tab.number("mass").fill("heavy")
    assert "“heavy” is not a number" in problem.inner_text()
    tab.number("mass").fill("-1")
    tab.page.wait_for_selector("[data-place='system.mass'] .problem:has-text('mass')", timeout=20_000)
    assert "-1" in problem.inner_text()
    assert tab.value("studio.data.title") == shown, "the last good picture stays"
    tab.after(lambda: tab.number("mass").fill("2"))
    assert not problem.is_visible()
    tab.after(lambda: tab.number("step h").fill("40"))
    assert "could not start: no solution: the step is too large" in tab.page.locator("#failure").inner_text()
    # The browser itself notes an answer 400; the page adds nothing.
    assert all("400" in line for line in tab.complaints)
    tab.complaints.clear()


def test_a_lost_connection_recovers(shared_tab):
    tab = shared_tab
    tab.page.context.set_offline(True)
    before = tab.shows()
    tab.number("a").fill("0.7")
    tab.page.wait_for_selector("#banner:visible", timeout=10_000)
    assert tab.value("studio.data.scene.parts.length") > 0, "the picture stays"
    tab.page.context.set_offline(False)
    tab.page.wait_for_selector(f"html:not([data-ready='{before}'])", timeout=30_000)
    assert not tab.page.locator("#banner").is_visible()
    assert tab.value("studio.data.config").count("0.7")
    assert all("net::" in line for line in tab.complaints)
    tab.complaints.clear()


def test_keys_and_the_address(shared_tab):
    tab = shared_tab
    tab.value("studio.player.seek(0)")
    tab.page.locator("#scene").focus()
    tab.page.keyboard.press("ArrowRight")
    assert tab.value("studio.player.frame") == 1
    tab.page.keyboard.press("End")
    assert tab.value("studio.player.frame") == tab.value("studio.player.last")
    tab.page.keyboard.press(" ")
    assert tab.page.locator("#play").get_attribute("aria-label") == "Pause"
    tab.page.keyboard.press(" ")
    drawn = tab.value("studio.scene.drawn")
    tab.page.wait_for_timeout(300)
    assert tab.value("studio.scene.drawn") - drawn <= 1, "a still picture is not drawn again"
    tab.after(lambda: tab.number("a").fill("0.55"))
    tab.page.reload()
    tab.page.wait_for_selector("html[data-ready]", timeout=60_000)
    assert tab.number("a").input_value() == "0.55"


def test_what_to_try_is_one_click(shared_tab):
    """Why does the sleigh turn? The text says it, and a click on a = 0 takes the lever away: the path becomes
    a circle.
    """
    tab = shared_tab
    tab.after(lambda: tab.page.locator("#tries .try").filter(has_text="a = 0").first.click())
    assert tab.number("a").input_value() == "0"
    points = "Array.from(studio.data.scene.parts.find(p => p.shape.kind === 'trace').shape.points)"
    x, y = tab.value(points)[0::3], tab.value(points)[1::3]
    turn = [
        (x1 - x0) * (y2 - y1) - (y1 - y0) * (x2 - x1)
        for x0, y0, x1, y1, x2, y2 in zip(x, y, x[1:], y[1:], x[2:], y[2:], strict=False)
    ]
    assert max(turn) < 1.01 * min(turn) if turn[0] > 0 else min(turn) > 1.01 * max(turn), "the path turns evenly"
    tab.after(lambda: tab.page.get_by_role("button", name="as it was").click())
    assert tab.number("a").input_value() == "0.3"


@pytest.mark.heavy
def test_a_plot_is_chosen_and_remembered_in_its_tab(shared_tab):
    tab = shared_tab
    assert tab.page.locator("#plots .plot").count() == 2, "the motion, and what is kept"
    choice = tab.page.locator("#plots select").first
    assert choice.input_value() == "Forward velocity"
    picture = tab.settle_plots()
    choice.select_option("Yaw rate")
    assert tab.value("studio.plots[0].data.y") == "w, rad/s" and tab.settle_plots() != picture
    tab.page.locator("select[aria-label='Compare with']").focus()
    tab.after(lambda: tab.choose("Compare with", "runge-kutta"))
    assert tab.value("document.activeElement.getAttribute('aria-label')") == "Compare with", (
        "the keyboard stays where it was"
    )
    assert choice.input_value() == "Yaw rate"
    tab.page.reload()
    tab.page.wait_for_selector("html[data-ready]", timeout=60_000)
    assert tab.page.locator("#plots select").first.input_value() == "Yaw rate"
    assert tab.page.locator("#plots select").nth(1).input_value() == "Energy error"
    assert tab.value("studio.data.scene.parts.filter(p => p.name === 'cusp').length") == 2


def test_an_export_opens_from_a_file_and_plays(shared_tab, tmp_path: Path):
    tab = shared_tab
    tab.page.locator("#take-away summary").click()
    with tab.page.expect_download(timeout=60_000) as download:
        tab.page.get_by_role("button", name="Page that plays offline").click()
    file = tmp_path / "sleigh.html"
    download.value.save_as(file)
    tab.page.context.set_offline(True)
    tab.open(file.as_uri())
    assert not tab.page.locator("#panel").is_visible()
    tab.page.locator("#play").click()
    tab.until(f"studio.player.frame > {tab.value('studio.player.frame')}")
    assert tab.page.locator("#plots .plot").count() >= 1
    tab.page.set_viewport_size({"width": 390, "height": 800})
    assert tab.value("document.documentElement.scrollWidth") <= 390, "a small screen scrolls downwards only"


def test_data_never_become_code():
    """The page makes elements; it never parses data as HTML or runs them."""
    for file in PAGE.glob("*.js"):
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in file.read_text(), file.name


@pytest.mark.heavy
def test_tabs_do_not_disturb_each_other(tab, served):
    other = type(tab)(tab.page.context.new_page()).open(served.url)
    tab.open(served.url)
    tab.after(lambda: tab.number("a").fill("0.9"))
    other.after(lambda: other.number("a").fill("-0.4"))
    assert tab.value("studio.request().config.system.a") == 0.9
    assert other.value("studio.request().config.system.a") == -0.4
    assert other.complaints == []


@pytest.mark.heavy
def test_every_story_is_played_to_its_end(tab, served):
    tab.open(served.url)
    for name, steps in tab.value(
        "fetch('api/catalogue').then(a => a.json()).then(c => c.stories.map(s => [s.name, s.steps.length]))"
    ):
        for step in range(1, steps + 1):
            tab.after(lambda: tab.value(f"{{ location.hash = 'story={name}&step={step}' }}"))
            assert not tab.page.locator("#problem").is_visible(), f"{name}, {step}"
            assert tab.page.locator("#lesson-text").inner_text() and tab.value("studio.scene.parts.length") > 0
        tab.page.locator("#lesson-next").click()
        assert not tab.page.locator("#lesson").is_visible(), name


@pytest.mark.heavy
def test_every_system_is_drawn(tab, served):
    tab.open(served.url)
    for system in tab.value(
        "fetch('api/catalogue').then(answer => answer.json()).then(found => found.systems.map(s => s.name))"
    ):
        if system != tab.value("studio.request().config.system.name"):
            tab.after(lambda: tab.choose("System", system))
        assert not tab.page.locator("#problem").is_visible(), f"{system}: {tab.page.locator('#problem').inner_text()}"
        assert tab.value("studio.scene.parts.length") > 0
        assert tab.page.locator("#why").inner_text(), f"{system} does not say what to look at"


@pytest.mark.heavy
def test_a_server_that_ends_and_comes_back(tab, start):
    studio = start()
    tab.open(studio.url)
    studio.process.terminate()
    studio.process.wait(10)
    before = tab.shows()
    tab.number("a").fill("0.7")
    tab.page.wait_for_selector("#banner:visible", timeout=10_000)
    again = start(port=int(studio.url.rstrip("/").rpartition(":")[2]))
    tab.page.wait_for_selector(f"html:not([data-ready='{before}'])", timeout=60_000)
    again.process.terminate()
    again.process.wait(10)
    assert not tab.page.locator("#banner").is_visible()
    assert all("net::" in line for line in tab.complaints)
    tab.complaints.clear()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("Configuration", b"["),
        ("Data (NetCDF)", b"\x89HDF"),
        ("Plots (PNG)", b"\x89PNG"),
        ("Picture of this view", b"\x89PNG"),
        ("Moving picture", b"GIF8"),
    ],
)
def test_what_is_taken_away(tab, served, tmp_path: Path, name: str, begins: bytes):
    tab.open(served.url)
    tab.page.locator("#take-away summary").click()
    with tab.page.expect_download(timeout=120_000) as download:
        tab.page.locator("#take-away-items button").filter(has_text=name).click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    content = file.read_bytes()
    assert content.lstrip(b"# abcdefghijklmnopqrstuvwxyz\n").startswith(begins) or content.startswith(begins)
    assert len(content) > 50


PAD = "{{ navigator.getGamepads = () => [{{ axes: [{x}, {y}] }}] }}"


@pytest.mark.heavy
def test_a_finger_and_a_gamepad_drive(browser, served):
    """A finger pulls the stick of the page, and a gamepad that the browser tells of says the same as keys."""
    context = browser.new_context(viewport={"width": 900, "height": 700}, has_touch=True, reduced_motion="reduce")
    tab = Tab(context.new_page()).open(served.url)
    tab.after(lambda: tab.choose("System", "car"))
    tab.page.locator("#drive").tap()
    tab.page.wait_for_selector("html[data-driving='yes']")
    box = tab.page.locator("#stick").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    fingers = tab.page.context.new_cdp_session(tab.page)
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchMove", [{"x": x - 40, "y": y - 50}])):
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    tab.until("driver.rows.some(([force, torque]) => force > 0.5 && torque > 0.3)")
    assert tab.value("getComputedStyle(document.getElementById('stick')).touchAction") == "none"
    fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    tab.until("driver.wanted().every(x => x === 0)")
    tab.value(PAD.format(x=0.9, y=0.8))  # to the right and back
    assert tab.value("driver.wanted()") == [0.9, -0.8]
    tab.until("driver.rows.some(([force, torque]) => force < -0.5 && torque < -0.3)")
    tab.value(PAD.format(x=0.05, y=-0.05))
    assert tab.value("driver.wanted()") == [0, 0], "a stick that does not quite come back says nothing"
    tab.after(lambda: tab.page.locator("#drive").tap())
    assert tab.complaints == []
    context.close()


@pytest.mark.heavy
def test_the_car_is_parked_around_an_obstacle(tab, served):
    tab.open(served.url)
    tab.after(lambda: tab.choose("System", "car"))
    tab.page.locator("#park").click()
    tab.page.wait_for_selector("html[data-driving='plan']")
    tab.value("driver.aim([4, 0.5, 0])")
    tab.until("driver.plan && driver.plan.path.length > 1", 200)
    straight = tab.value("driver.plan.path")
    tab.page.locator("#park-disc").click()
    tab.until("driver.answered === driver.goal && driver.plan.path.length > 1", 200)
    around = tab.value("driver.plan.path")
    (x, y, radius), *_ = tab.value("driver.discs")
    assert around != straight and min((a - x) ** 2 + (b - y) ** 2 for a, b in around) > radius**2
    tab.value("driver.aim([4, 0.4, 0])")  # another plan is being made when the button is pressed
    tab.after(lambda: tab.value("{ driver.driveThere() }"))
    assert tab.value("studio.request().controls.length") == 100
    assert tab.value("studio.request().config.run.step") == pytest.approx(tab.value("driver.plan.step"))
    points = tab.value("Array.from(studio.data.scene.parts.find(p => p.shape.kind === 'trace').shape.points)")
    assert np.allclose(points[-3:-1], [4, 0.4], atol=0.05), "the replay ends at the goal"


@pytest.mark.heavy
def test_what_a_joint_steers_is_driven_and_parked_and_a_plan_that_takes_long_is_given_up(tab, served):
    """The first plan is compiled: the page says for how long, and "Cancel" ends it with its session."""
    tab.open(served.url)
    tab.after(lambda: tab.choose("System", "ackermann-car"))
    tab.page.locator("#drive").click()
    tab.page.wait_for_selector("html[data-driving='yes']", timeout=60_000)
    tab.page.keyboard.down("ArrowRight")
    tab.until("driver.rows.some(([, torque]) => torque < -1)")
    tab.page.keyboard.up("ArrowRight")
    tab.after(lambda: tab.page.locator("#drive").click())
    tab.page.locator("#park").click()
    tab.page.wait_for_selector("#park-busy:not([hidden])", timeout=60_000)
    assert "Planning" in tab.page.locator("#park-seconds").inner_text()
    tab.after(lambda: tab.page.locator("#park-cancel").click())
    assert tab.value("document.documentElement.dataset.driving") == ""
    assert not tab.page.locator("#park-busy").is_visible()
    tab.page.locator("#park").click()
    tab.page.wait_for_selector("html[data-driving='plan']", timeout=60_000)
    tab.until("driver.plan && driver.plan.path.length > 1", 280)
    x, y, _ = tab.value("driver.goal")
    assert "effort" in tab.page.locator("#park-text").inner_text() and tab.value("driver.plan.planned.length") == 100
    tab.after(lambda: tab.page.locator("#park-go").click())
    run = tab.value("studio.request()")
    assert len(run["controls"]) == 100 and tab.value("studio.data.runs[0].status") == "ok"
    (job,), _ = requests.jobs_of(run, StudioInput())
    end = simulate(job.system, job.integrator, job.state, **job.run, controls=np.array(run["controls"])).last
    assert np.allclose(np.asarray(end.g[0])[:2, 2], [x, y], atol=0.1)


@pytest.mark.heavy
def test_a_satellite_is_turned_by_hand_by_keys_and_by_the_plan(tab, served):
    """A ghost is dragged; the plan is that of `da.plan` for the same problem; a push is brought back."""
    tab.open(served.url)
    tab.after(lambda: tab.choose("System", "satellite"))
    assert tab.page.locator("#park").inner_text() == "Turn"
    tab.page.locator("#park").click()
    tab.page.wait_for_selector("html[data-driving='plan']", timeout=60_000)
    assert not tab.page.locator("#park-disc").is_visible()
    tab.until("driver.plan", 300)
    first = tab.value("driver.goal")
    box = tab.page.locator("#scene").bounding_box()
    x, y = box["x"] + 0.7 * box["width"], box["y"] + 0.4 * box["height"]
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    for k in range(1, 9):
        tab.page.mouse.move(x + 10 * k, y - 6 * k)
    tab.page.mouse.up()
    tab.until("driver.plan && driver.answered === driver.goal", 90)
    dragged = tab.value("driver.goal")
    assert abs(np.dot(dragged, first)) < 0.999, "turned by more than 5 degrees"
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft", "Shift+ArrowRight"):
        tab.page.keyboard.press(key)
    tab.until("driver.answered === driver.goal")
    goal, found = tab.value("driver.goal"), tab.value("driver.plan")
    assert goal != dragged and len(found["planned"]) == 100
    assert tab.value("studio.scene.aimed.quaternion.toArray()") == pytest.approx(goal)
    satellite, turn = dalembert.models.satellite(), Rotation.from_quat(goal).as_matrix()
    asked = {"start": np.eye(3), "goal": satellite.state(turn, np.zeros(3)), "duration": 100 * found["step"]}
    same = dalembert.plan(satellite, **asked, steps=100, cost=lambda t, g, xi, u: u @ u).check()
    assert float(same.cost) == pytest.approx(found["cost"], rel=1e-5)
    assert np.allclose(same.controls, found["planned"], atol=1e-4)
    before = tab.shows()
    tab.page.locator("#park-go").click()
    tab.until("driver.rows.length > 5", 60)
    tab.page.locator("#park-push").click()
    tab.page.wait_for_selector(f"html:not([data-ready='{before}'])", timeout=90_000)
    controls = np.array(tab.value("studio.request().controls"))
    assert controls.shape == (100, 3) and np.abs(controls - found["planned"]).max() > 1, "it was pushed"
    end = tab.value("Array.from(studio.data.scene.parts.find(p => p.name === 'satellite').rotation.slice(-4))")
    assert abs(np.dot(end, goal)) > 0.9999, (end, goal)


@pytest.mark.heavy
def test_one_s_own_robot_opens_and_is_driven(tab, start):
    studio = start(str(Path(__file__).parents[1] / "data" / "urdf" / "differential-drive.urdf"))
    tab.open(studio.url)
    assert tab.page.locator("#title").inner_text() == "robot"  # as the file calls it
    tab.page.locator("#drive").click()
    tab.page.wait_for_selector("html[data-driving='yes']", timeout=60_000)
    tab.page.keyboard.down("ArrowUp")
    tab.until("driver.rows.length > 20")
    tab.page.keyboard.up("ArrowUp")
    tab.after(lambda: tab.page.locator("#drive").click())
    assert tab.value("studio.request().controls.flat().some(u => u > 0)")
    tab.page.locator("#park").click()  # its wheels alone steer it
    tab.until("driver.plan && driver.plan.path.length > 1", 200)
    studio.process.terminate()
    studio.process.wait(10)


def test_shadows_labels_scale_and_the_ghost_of_the_setting_before(shared_tab):
    tab = shared_tab
    assert tab.value("typeof studio.scene.shadows") == "function"
    assert "squares of" in tab.page.locator("#floor-scale").inner_text()
    sprites = "(() => { let n = 0; studio.scene.scene.traverse(o => { n += o.isSprite ? 1 : 0 }); return n })()"
    assert tab.value(sprites) >= 2, "arrows have their names beside them"
    tab.page.wait_for_timeout(1300)
    tab.after(lambda: tab.number("a").fill("0.6"))
    assert tab.value("studio.ghost.length") == 1
    assert "before the change" in tab.page.locator("#legend").inner_text()


NAMED_ARROWS = """(() => {
  const names = ["momentum about the contact", "velocity of the point opposite", "push of the ground",
    "velocity", "angular velocity"];
  const parts = names.map((name, k) => ({ name, run: 0, colour: "#aa5500", shape: { kind: "arrow",
    from: [0, 0, 0], to: [0.4 * Math.cos(0.1 * k + TURN), 0, 0.4 * Math.sin(0.1 * k + TURN)], width: 0.01 } }));
  const { scene } = studio;
  scene.show({ parts, ground: null, camera: { position: [0, -4, 0], target: [0, 0, 0], exact: true } },
    { reset: true });
  scene.render();
  const found = [];
  const onScreen = (object) => object.getWorldPosition(new THREE.Vector3()).project(scene.camera);
  scene.scene.traverseVisible((object) => {
    if (!object.isSprite) return;
    const tall = Math.tan(scene.camera.fov * Math.PI / 360);
    const [wide, high] = [object.scale.x / tall / scene.camera.aspect, object.scale.y / tall];
    const [tip, start] = [onScreen(object), onScreen(object.parent)];
    found.push({ start: [start.x, start.y], tip: [tip.x, tip.y],
      low: [tip.x - object.center.x * wide, tip.y - object.center.y * high],
      size: [wide, high] });
  });
  return found;
})()"""


@pytest.mark.parametrize("turn", [-0.2, 1.4, 3.0, 4.5])
def test_names_of_arrows_cover_neither_each_other_nor_their_own_arrows(shared_tab, turn):
    """Five arrows in a fan; the name of the one drawn first is where its arrow points to."""
    words = shared_tab.value(NAMED_ARROWS.replace("TURN", str(turn)))
    assert len(words) == 5
    boxes = [(np.array(word["low"]), np.add(word["low"], word["size"])) for word in words]
    for k, (low, high) in enumerate(boxes):
        for other_low, other_high in boxes[:k]:
            assert (low >= other_high).any() or (high <= other_low).any(), (turn, k)
    first, (low, high) = words[0], boxes[0]
    for part in np.linspace(0.0, 0.9, 30):
        point = (1 - part) * np.array(first["start"]) + part * np.array(first["tip"])
        assert (point < low).any() or (point > high).any(), (turn, part)


@pytest.mark.heavy
def test_a_teacher_is_followed_in_another_tab(tab, browser, served):
    """The same story step, settings, time and speed; who follows has no controls, and sees that the teacher went."""
    tab.open(served.url)
    tab.page.locator("#lead").click()
    link = tab.page.locator("#banner input").input_value()
    with opened_tab(browser, "reduce") as other:
        other.open(link)
        assert not other.page.locator("#panel").is_visible() and not other.page.locator("#lead").is_visible()
        tab.after(lambda: tab.number("a").fill("0.45"))
        other.until("studio.request().config.system.a === 0.45")
        other.until("studio.data.scene.parts.length > 0 && !document.getElementById('view').classList.contains('busy')")
        tab.value("studio.player.seek(77)")
        other.until("studio.player.frame === 77")
        tab.value("location.hash = 'story=cusp&step=2'")
        other.until("document.documentElement.dataset.story === 'cusp'")
        other.until("document.getElementById('lesson').getAttribute('aria-label').includes('step 2')")
        tab.until("!document.getElementById('view').classList.contains('busy')")
        assert other.value("studio.request()") == tab.value("studio.request()")
        tab.value("studio.scene.look([5, -6, 7, 0, 0, 0])")
        other.until("Math.abs(studio.scene.camera.position.z - 7) < 1e-3")
        tab.value("{ studio.player.speed = 2; studio.player.play() }")
        other.until("studio.player.playing && studio.player.speed === 2")


@pytest.mark.heavy
def test_who_follows_sees_driving_and_plans_live(tab, browser, served):
    tab.open(served.url)
    tab.after(lambda: tab.choose("System", "car"))
    tab.page.locator("#lead").click()
    link = tab.page.locator("#banner input").input_value()
    with opened_tab(browser, "reduce") as other:
        other.open(link)
        tab.page.locator("#drive").click()
        tab.page.wait_for_selector("html[data-driving=yes]", timeout=60_000)
        other.page.wait_for_selector("html[data-driving=watch]", timeout=60_000)
        place = "studio.scene.followed.group.position.x"
        before = other.value(place)
        tab.page.keyboard.down("ArrowUp")
        other.until(f"{place} > {before} + 0.3")
        assert tab.value("driver.session !== null"), "it is still driven"
        assert not other.page.locator("#stick").is_visible() and other.value("studio.scene.follow")
        tab.page.keyboard.up("ArrowUp")
        tab.after(lambda: tab.page.locator("#drive").click())
        other.until("(studio.request().controls ?? []).length > 2 && document.documentElement.dataset.driving === ''")
        other.until("!document.getElementById('view').classList.contains('busy') && studio.data.time.length > 2")
        tab.page.locator("#park").click()
        tab.page.wait_for_selector("html[data-driving=plan]", timeout=60_000)
        tab.page.locator("#park-disc").click()
        tab.until("driver.plan && driver.plan.path.length > 1", 200)
        other.until("studio.scene.planned && studio.scene.planned.children.length > 1")
        other.until("studio.scene.discs.children.length === 2")
        tab.page.locator("#drive").click()
        other.until("document.documentElement.dataset.driving === '' && !studio.scene.planned")


@pytest.mark.heavy
def test_slow_pictures_are_made_simpler_and_a_picture_at_rest_is_whole(tab, served):
    """While pictures come slowly the floor loses its surface, then points; what plays is drawn in every frame."""
    tab.open(served.url)
    tab.value(
        "{ for (let k = 0; k < 40; k++) { studio.scene.drawnAt -= 60; studio.setFrame(k); studio.scene.draw() } }"
    )
    assert tab.value("studio.scene.level") == 3 and tab.value("studio.scene.ratio") < 1
    assert not tab.value("studio.scene.ground.children[0].visible")
    tab.until("studio.scene.ground.children[0].visible && studio.scene.ratio >= 1")
    count = tab.value("studio.scene.drawn")
    frames = tab.value(
        "new Promise(done => { const from = studio.scene.drawn; let n = 0; studio.player.play();"
        " const tick = () => (n += 1) > 12 ? done(studio.scene.drawn - from) : requestAnimationFrame(tick);"
        " requestAnimationFrame(tick) })"
    )
    tab.value("studio.player.pause()")
    assert count > 40 and frames >= 10, "a picture in every frame of the browser, not in every second one"


@pytest.mark.heavy
def test_the_default_scene_is_drawn_thirty_times_a_second(playing_tab, served):
    """Issue: at least 30 frames a second with software rendering. A busy machine prints fewer, and is not failed."""
    playing_tab.open(served.url)
    playing_tab.page.wait_for_timeout(500)
    count, begin = playing_tab.value("studio.scene.drawn"), time.perf_counter()
    playing_tab.page.wait_for_timeout(4000)
    rate = (playing_tab.value("studio.scene.drawn") - count) / (time.perf_counter() - begin)
    milliseconds = playing_tab.value(
        "(() => { const t = performance.now(); for (let k = 0; k < 30; k++) { studio.setFrame(k); studio.scene.draw() }"
        " return (performance.now() - t) / 30 })()"
    )
    print(f"\n{rate:.1f} pictures a second while it plays; {milliseconds:.1f} ms for one")
    assert rate > 5
