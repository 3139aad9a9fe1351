"""The page of `doubly serve` in a browser: as a person with a mouse, a small screen, dark mode or only a keyboard."""

import threading
import time

import pytest
import uvicorn

from chromium import CONTRAST, Browser, needs_axe, needs_chromium
from doubly.serve.app import app
from doubly.serve.run import address, bound
from test_serve import folder, image, mixed, table  # noqa: F401

pytestmark = needs_chromium

STARTING = 120  # seconds, on a machine that is busy
ANSWERED = "document.querySelector('#{view} .status').textContent.startsWith('By 3 samples')"
PICTURES = """return [...document.querySelectorAll('#completions canvas, #expected canvas, #certainty canvas')]
    .map((canvas) => canvas.toDataURL()).join()"""
KEYS = {"tab": "\ue004", "space": "\ue00d", "right": "\ue014", "down": "\ue015", "shift": "\ue008", "end": "\ue010"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.driver.quit()


@pytest.fixture(scope="module")
def pages(image, mixed):  # noqa: F811
    """A server for each model, in a thread."""
    started = []
    for served in (image, mixed):
        served.warm_up()
        listening = bound("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(app(served), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        started.append((server, thread, address(listening)))
    deadline = time.monotonic() + STARTING
    while not all(server.started for server, *_ in started):
        alive = all(thread.is_alive() for _, thread, _ in started)
        assert alive and time.monotonic() < deadline, "a server has not started"  # noqa: PT018
        time.sleep(0.01)
    yield {"image": started[0][2], "table": started[1][2]}
    for server, thread, _ in started:
        server.should_exit = True
        thread.join(STARTING)


def opened_page(browser: Browser, pages: dict[str, str], view: str, width: int = 1400, dark: bool = False) -> None:
    browser.size(width, dark)
    browser.driver.get(pages[view])
    browser.wait(ANSWERED.format(view=view))
    browser.wait("document.querySelector('#one-completions').children.length > 0")
    browser.wait("document.querySelector('#drawn').children.length > 0")


def answered(browser: Browser, view: str, change: str, *args: object) -> None:
    """Change something and wait for the answer of all samples."""
    browser.run(f"document.querySelector('#{view} .status').textContent = ''")
    browser.run(change, *args)
    browser.wait(ANSWERED.format(view=view))


@pytest.mark.parametrize("view", ["image", "table"])
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_whole_readable_and_not_too_wide(browser, pages, view, width, dark):
    opened_page(browser, pages, view, width, dark)
    assert browser.errors() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(CONTRAST) == []
    back = browser.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(back) < 150) == dark
    small = (
        "return [...document.querySelectorAll('button, select, input[type=range]')].filter((e) => e.checkVisibility()"
    )
    assert browser.run(f"{small} && e.getBoundingClientRect().height < 24).length") == 0


@needs_axe
@pytest.mark.parametrize("view", ["image", "table"])
def test_axe_finds_nothing_serious(browser, pages, view):
    opened_page(browser, pages, view)
    assert browser.axe() == []


def test_erasing_with_the_mouse_changes_the_completions(browser, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    opened_page(browser, pages, "image")
    erased = "return document.querySelector('#editor').getAttribute('aria-label')"
    assert "8 of 16 pixels erased" in browser.run(erased)
    before = browser.run(PICTURES)
    browser.run("document.querySelector('#image .status').textContent = ''")
    editor = browser.driver.find_element(By.ID, "editor")
    cell = editor.size["width"] / 4
    drag = ActionChains(browser.driver).move_to_element_with_offset(editor, -1.5 * cell, -1.5 * cell)
    drag.click_and_hold().move_by_offset(3 * cell, 0).release().perform()  # along the top line
    browser.wait(ANSWERED.format(view="image"))
    assert "12 of 16 pixels erased" in browser.run(erased)
    assert browser.run(PICTURES) != before
    answered(browser, "image", "document.querySelector('#next').click()")
    assert "Picture 2 of" in browser.run(erased)
    browser.run("document.querySelector('#restore').click()")
    browser.wait("document.querySelector('#image .status').textContent === 'Nothing is erased.'")
    assert browser.run(PICTURES) == ""
    assert browser.errors() == []


def test_the_keyboard_alone_suffices_for_pictures(browser, pages):
    opened_page(browser, pages, "image")
    visited = []
    for _ in range(30):
        browser.press(KEYS["tab"])
        visited.append(browser.run("return document.activeElement.id || document.activeElement.name"))
        if visited[-1] == "editor":
            break
    assert visited == ["previous", "next", "editor"]
    browser.press(KEYS["right"], " ")  # the second pixel of the top line
    assert browser.run("return document.querySelector('#cursor').textContent") == "line 1, column 2: erased"
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).key_down(KEYS["shift"]).send_keys(KEYS["right"]).key_up(KEYS["shift"]).perform()
    assert "10 of 16" in browser.run("return document.activeElement.getAttribute('aria-label')")
    browser.press(" ")  # and back again
    assert "9 of 16" in browser.run("return document.activeElement.getAttribute('aria-label')")
    for _ in range(20):
        browser.press(KEYS["tab"])
        visited.append(browser.run("return document.activeElement.id || document.activeElement.name"))
    assert {"tool", "brush", "lower", "right", "all", "restore", "which", "again"} <= set(visited)


@pytest.mark.parametrize("view", ["image", "table"])
def test_the_slider_goes_through_the_samples(browser, pages, view):
    opened_page(browser, pages, view)
    shown = """return [...document.querySelectorAll('#one-draws canvas')].map((each) => each.toDataURL()).join()
        + document.querySelector('#one-draws').textContent"""
    before = browser.run(shown)
    browser.run("document.querySelector('#which').focus()")
    browser.press(KEYS["end"])
    assert browser.run("return document.querySelector('#which-now').textContent") == "3 of 3"
    browser.wait(f"(() => {{ {shown} }})() !== {before!r}")
    assert browser.errors() == []


def test_blank_cells_are_completed_and_edits_change_them(browser, pages):
    opened_page(browser, pages, "table")
    answers = (
        "return [...document.querySelectorAll('.field')].map((field) => field.querySelector('.answer').textContent)"
    )
    first = browser.run(answers)
    assert first[3].count("certainty") == 1  # size, a number
    click = "document.querySelectorAll('.field')[0].querySelector('input[type=checkbox]').click()"
    answered(browser, "table", click)
    both = browser.run(answers)
    assert all(level in both[0] for level in ("red", "blue", "dark red"))
    assert browser.run("return document.querySelector('#cell-0').disabled")
    edit = """const field = document.querySelector('#cell-1'); field.selectedIndex = (field.selectedIndex + 2) % 4;
        field.dispatchEvent(new Event('change'))"""
    answered(browser, "table", edit)
    assert browser.run(answers) != both
    assert browser.errors() == []


def test_a_table_is_sent_and_comes_back_completed(browser, pages, tmp_path):
    from selenium.webdriver.common.by import By

    opened_page(browser, pages, "table")
    browser.run("document.querySelector('#send').click()")
    browser.wait("document.querySelector('#file-status').textContent.startsWith('Choose')")
    (tmp_path / "bad.csv").write_text("kind\nred\n")
    (tmp_path / "t.csv").write_text(table(n=6, seed=2, missing=0.4))
    browser.driver.find_element(By.ID, "csv").send_keys(str(tmp_path / "bad.csv"))
    browser.run("document.querySelector('#send').click()")
    browser.wait("document.querySelector('#file-status').textContent.includes('has no column')")
    assert browser.run("return document.querySelector('#download').hidden")
    assert any("400" in line for line in browser.errors())
    browser.driver.find_element(By.ID, "csv").send_keys(str(tmp_path / "t.csv"))
    browser.run("document.querySelector('#send').click()")
    browser.wait("!document.querySelector('#download').hidden")
    link = "document.querySelector('#download')"
    assert browser.run(f"return {link}.download") == "t-completed.csv"
    # the policy lets nobody fetch what was made here, not even us: it is for saving
    assert "cells completed" in browser.run("return document.querySelector('#file-status').textContent")
    assert browser.errors() == []
