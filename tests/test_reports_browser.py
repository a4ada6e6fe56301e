"""The report's page in a real browser: what its script does, and that it fits a telephone."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chromium import Tab, browser_tab
from reports_study import TOUR, full_study

from reports.pages.page import write_report

_ROWS = """[...document.querySelectorAll("#table .pane:first-of-type table")[0].tBodies[0].rows]
    .filter(row => !row.classList.contains("group")).map(row => row.cells[0].querySelector("a").textContent)"""
_HEADS = """[...document.querySelectorAll("#table .pane:first-of-type table")[0].tHead.rows[1].cells]"""
_DIFFERENCE = f"""{_HEADS}.find(cell => cell.dataset.name.startsWith("Δ BLEU"))"""
_ROW = """[...document.querySelectorAll("#table .pane:first-of-type tbody tr")]
    .find(row => row.cells[0].querySelector("a")?.textContent === "A.h1")"""
_OPEN = "document.getElementById('trail').matches(':popover-open')"
_CHARACTER: dict[str, dict[str, Any]] = {"Enter": {"text": "\r"}, "Escape": {"windowsVirtualKeyCode": 27}}
_SHORT_PAPER = """document.head.append(Object.assign(document.createElement("style"),
    { textContent: "@media print { @page { size: 297mm 90mm; } }" }))"""
_SHOWN = """[...document.querySelectorAll("#table .pane")]
    .filter(pane => getComputedStyle(pane).display !== "none")
    .map(pane => pane.querySelector(".caption").textContent)"""
_WIDER = """[...document.querySelectorAll("body *")]
    .filter(one => !one.closest(".scroll, .said, .skip, svg") && one.getBoundingClientRect().right > innerWidth + 1)
    .map(one => one.tagName + "." + one.className)"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was to be seen of one page, in one browser: starting it takes longer than looking."""
    path = tmp_path_factory.mktemp("studies") / "s"
    states = {("A.h1", 2): ("failed", "out of memory")}
    page = write_report(full_study(path, only=TOUR, seeds=(1, 2, 3), states=states).path)
    return asyncio.run(_look(page))


async def _look(page: Path) -> dict[str, Any]:
    async with browser_tab() as tab:
        await tab.size(1280, 900)
        await tab.open(page.as_uri())
        seen: dict[str, Any] = {"written": await tab.value(_ROWS)}
        for press in ("first", "second", "third"):
            await tab.value(f'{_DIFFERENCE}.querySelector("button").click()')
            seen[press] = await _sorted(tab)
        seen["tables"] = [await tab.value(_SHOWN)]
        await tab.value("""document.querySelectorAll('#table input[name="budget"]')[1].click()""")
        seen["tables"].append(await tab.value(_SHOWN))
        seen |= {"trail": await _trail(tab), "closed": not await tab.value(_OPEN)}
        await tab.value("location.hash = '#row-A.h1'")
        await tab.value("new Promise(done => setTimeout(done, 100))")
        seen["row opened"] = await tab.value("document.getElementById('row-A.h1').open")
        await tab.value("document.querySelectorAll('details').forEach(one => one.open = true)")
        for width in (1280, 390):
            await tab.size(width, 844)
            seen[f"wide {width}"] = await tab.value("document.documentElement.scrollWidth")
            seen[f"wider {width}"] = await tab.value(_WIDER)
        await tab.value(_SHORT_PAPER)
        printed = await tab.call("Page.printToPDF", preferCSSPageSize=True)
        return seen | {"errors": tab.errors, "printed": base64.b64decode(printed["data"])}


async def _trail(tab: Tab) -> dict[str, Any]:
    """By keys alone from the name of a row to what its difference to base comes from, and out again."""
    await tab.value("document.querySelectorAll('#table input[name=\"budget\"]')[0].click()")
    await tab.value(f"{_ROW}.querySelector('a').focus()")
    column = await tab.value(f"{_HEADS}.indexOf({_DIFFERENCE})")
    reached = f"[document.activeElement.cellIndex, document.activeElement.closest('tr') === {_ROW}]"
    for _ in range(column):
        await _press(tab, "ArrowRight")
        if (place := await tab.value(reached)) == [column, True]:
            break
    await _press(tab, "Enter")
    trail = {
        "place": place,
        "open": await tab.value(_OPEN),
        "text": await tab.value("document.getElementById('trail').innerText"),
        "links": await tab.value("[...document.querySelectorAll('#trail a')].map(one => one.getAttribute('href'))"),
        "focus": await tab.value("document.activeElement.closest('#trail') !== null"),
    }
    await _press(tab, "Escape")
    return trail | {"column": column}


async def _press(tab: Tab, key: str) -> None:
    await tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **_CHARACTER.get(key, {}))
    await tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)


async def _sorted(tab: Tab) -> dict[str, Any]:
    return {
        "rows": await tab.value(_ROWS),
        "sorted": await tab.value(f'{_HEADS}.map(cell => cell.getAttribute("aria-sort")).filter(Boolean)'),
        "own": await tab.value(f'{_DIFFERENCE}.getAttribute("aria-sort")'),
    }


@pytest.mark.slow
def test_a_heading_sorts_both_ways_and_back_and_says_so(seen: dict[str, Any]) -> None:
    down, up, back = seen["first"], seen["second"], seen["third"]
    assert (down["own"], up["own"], back["own"]) == ("descending", "ascending", None)
    assert (down["sorted"], up["sorted"], back["sorted"]) == (["descending"], ["ascending"], [])
    # The made-up effects in tests/reports_study.py; base has no difference to itself and so comes last both ways.
    rows = {"best": "D.dropout-0", "worst": "positions.none"}
    assert (down["rows"][0], down["rows"][-2:]) == (rows["best"], [rows["worst"], "base"])
    assert (up["rows"][0], up["rows"][-2:]) == (rows["worst"], [rows["best"], "base"])
    assert back["rows"] == seen["written"]
    assert sorted(down["rows"]) == sorted(seen["written"]) == sorted(TOUR)


@pytest.mark.slow
def test_the_budget_switch_shows_another_table_in_place_of_the_first(seen: dict[str, Any]) -> None:
    (first,), (second,) = seen["tables"]
    assert "Read off the learning curves" in second
    assert "Read off the learning curves" not in first


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_part_of_the_page_is_wider_than_the_window(seen: dict[str, Any], width: int) -> None:
    assert seen[f"wide {width}"] <= width
    assert seen[f"wider {width}"] == []


@pytest.mark.slow
def test_the_browser_has_nothing_to_complain_of(seen: dict[str, Any]) -> None:
    assert seen["errors"] == []


@pytest.mark.slow
def test_a_number_leads_by_keys_alone_to_the_runs_that_it_comes_from(seen: dict[str, Any]) -> None:
    trail = seen["trail"]
    assert trail["place"] == [trail["column"], True]
    assert (trail["open"], trail["focus"], seen["closed"], seen["row opened"]) == (True, True, True, True)
    assert "A.h1 Δ BLEU" in trail["text"]
    assert "from 4 runs:" in trail["text"]  # its seeds 1 and 3 and base's; seed 2 failed
    directories = [link for link in trail["links"] if link.startswith("../runs/")]
    assert sorted(name.rpartition("-")[0] for name in directories) == [
        f"../runs/{row}-s{seed}" for row in ("A.h1", "base") for seed in (1, 3)
    ]
    assert {link for link in trail["links"] if link.startswith("#")} == {"#row-A.h1", "#row-base"}


@pytest.mark.slow
def test_a_table_over_several_sheets_of_paper_has_its_headings_on_each(seen: dict[str, Any]) -> None:
    assert shutil.which("pdftotext"), "this test reads what was printed (Debian: apt-get install poppler-utils)"
    command = ["pdftotext", "-layout", "-", "-"]
    text = subprocess.run(command, input=seen["printed"], capture_output=True, check=True).stdout.decode()
    sheets = [sheet for sheet in text.split("\f") if "changed from base" in sheet]
    assert len(sheets) > 1
    assert [sheet for sheet in sheets if "PPL" not in sheet or "seeds" not in sheet] == []
    assert "Rows compared at whole budget; the page on screen" in " ".join(text.split())
