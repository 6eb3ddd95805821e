"""The page in a real Chromium: each view, hostile messages, keys, outages of the server, many nodes."""

from __future__ import annotations

import json
import shutil
import threading
from datetime import datetime, timedelta
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import kgray
from tests.doors.browser import ENDS_MS, LAUNCH, NO_WEBGL, ROOT, Tab, skip_where_missing
from tests.doors.chat_server import ChatServer, Say
from tests.doors.served import serving
from tests.waiting import HANGS_S

skip_where_missing()

from playwright.sync_api import sync_playwright  # noqa: E402 - where it is installed

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
READY = ".graph[data-ready=yes]"
HOSTILE = [
    {
        "id": "h1",
        "speaker": "Mallory",
        "text": "I work at <script>window.hacked=1</script> Ltd.",
        "at": "2026-01-01",
    },
    {
        "id": "h2",
        "speaker": "<img src=x onerror=window.hacked=2>",
        "text": "I live in Berlin.",
        "at": "2026-01-02",
    },
    {
        "id": "h3",
        "speaker": "Dana",
        "text": "I live in \u202eתל אביב\u202c 😀👩‍👩‍👧. I work at Acme 🚀.",
        "at": "2026-01-03",
    },
    {
        "id": "h4",
        "speaker": "Lena",
        "text": "I work at Beta Labs. " + "blah <b>bold</b> " * 6000,
        "at": "2026-01-04",
    },
]
TRIPLES = [
    {"source": "Zed", "relation": "KNOWS", "target": '"><script>hacked=3</script>', "text": "<i>Zed</i>"},
]  # fmt: skip


def rows(start, count, nodes):
    """Yield triples between `nodes` names; each begins a day after the previous."""
    day = datetime(2020, 1, 1)  # noqa: DTZ001 - a day alone is written
    for i in range(start, start + count):
        source, target = f"Node {i % nodes}", f"Node {(i * 7 + 1 + i // nodes) % nodes}"
        if source != target:
            begin = day + timedelta(days=i % 1500)
            row = {"source": source, "relation": "KNOWS", "target": target, "valid_at": f"{begin:%Y-%m-%d}"}
            yield row | ({"invalid_at": f"{begin + timedelta(days=200):%Y-%m-%d}"} if i % 3 == 0 else {})


def filled(folder):
    """Make a folder with the team's chat, hostile messages, and 200 nodes."""
    with kgray.open(folder, create=True) as memory:
        lines = (ROOT / "examples" / "team.jsonl").read_text(encoding="utf-8").splitlines()
        memory.add_many([json.loads(line) for line in lines])
        hostile = [*HOSTILE, {"id": "h5", "kind": "triples", "triples": TRIPLES, "at": "2026-01-05"}]
        memory.add_many([{**row, "group": "hostile"} for row in hostile])
        memory.add_many([{"group": "many", "kind": "triples", "triples": list(rows(0, 400, 200))}])
        memory.communities.refresh(["team"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "data"
    filled(path)
    return path


@pytest.fixture(scope="module")
def served(folder):
    with serving(folder) as server:
        yield server


@pytest.fixture(scope="module")
def driver(served):  # the server first: after this an event loop runs in this thread
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="module")
def chromium(driver):
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=LAUNCH)
    yield browser
    browser.close()


@pytest.fixture
def tab(chromium, served):
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    new_tab = Tab(context, served.url)
    yield new_tab
    context.close()
    assert new_tab.faults == []


def fact_of(served, text, group="team"):
    graph = served.client().get(f"/v1/groups/{group}/graph", params={"limit": 500, "most_facts": 2000}).json()
    return next(fact for fact in graph["facts"] if fact["text"] == text)


# ------------------------------------------------------------------------------ 1 and 2: explore, time


def test_a_name_is_completed_and_its_neighbourhood_drawn(tab):
    page = tab.open("group=team", READY)
    assert "of 46 entities" in page.inner_text(".count")
    page.keyboard.press("/")
    page.keyboard.type("ali")
    page.wait_for_selector("#completions li")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".entity.brief h2:has-text('Alice Nguyen')")
    page.wait_for_selector(f"{READY}[data-nodes='10']")
    assert "centre=" in page.url
    assert tab.violations() == []


@pytest.mark.slow  # test_cli_read has explanations by default
def test_a_search_explains_its_results_and_the_hits_that_the_time_filter_removed(tab):
    page = tab.open("group=team&as_of=2026-06-01&q=" + quote("Where does Alice Nguyen work?"), ".hits li")
    first = page.inner_text(".hits li >> nth=0")
    assert "Brightwater" in first
    page.click(".hits li >> nth=0 >> summary")
    assert "rank" in page.inner_text(".hits li >> nth=0 >> small")
    page.click(".hidden-hits > summary")
    assert "Lumen Systems" in page.inner_text(".hidden-hits ol")


def test_the_slider_filters_in_the_browser_and_steps_to_changes(tab):
    page = tab.open("group=team&centre=Alice%20Nguyen", READY)
    requests = []
    page.on("request", lambda request: "/v1/" in request.url and requests.append(request.url))
    edge_count = int(page.get_attribute(".graph", "data-edges"))
    page.keyboard.press("[")
    tab.wait_until("document.querySelector('.track output').textContent !== 'today'")
    moment = page.inner_text(".track output")
    page.evaluate("""() => { const slider = document.querySelector('.track input');
        slider.value = 1; slider.dispatchEvent(new Event('input', {bubbles: true})); }""")
    tab.wait_until(f"document.querySelector('.track output').textContent !== '{moment}'")
    tab.wait_until(f"Number(document.querySelector('.graph').dataset.edges) < {edge_count}")
    tab.wait_until("location.hash.includes('as_of=')")
    assert requests == []
    page.keyboard.press("0")
    tab.wait_until("document.querySelector('.track output').textContent === 'today'")
    tab.wait_until(f"Number(document.querySelector('.graph').dataset.edges) === {edge_count}")
    page.keyboard.press(" ")
    page.wait_for_selector("button[aria-label=Pause]")
    page.keyboard.press(" ")
    page.wait_for_selector("button[aria-label=Play]")


@pytest.mark.slow  # test_recipes sends known_at by every door by default
def test_known_at_is_requested_from_the_server_and_marked_as_past(tab, served):
    commits = served.client().get("/v1/groups/team/changes", params={"limit": 1000}).json()["commits"]
    page = tab.open(f"group=team&known_at={quote(commits[5]['at'])}", READY)
    assert "A past view" in page.inner_text("p.past")
    assert int(page.get_attribute(".graph", "data-nodes")) < 46
    page.click("text=Back to now")
    page.wait_for_selector("p.past", state="detached")


@pytest.mark.slow  # test_http_exploring compares them by default
def test_two_moments_are_compared(tab):
    page = tab.open("group=team&view=compare&from=2025-10-01&to=2026-06-01", ".fact[data-mark=opened]")
    assert "Alice Nguyen works at Brightwater" in page.inner_text("[data-mark=opened] .facts")
    assert "Alice Nguyen works at Lumen Systems" in page.inner_text("section[data-mark=ended] .facts")
    page.wait_for_selector(READY)


# ------------------------------------------------------------------------------ 3: reasons and corrections


def test_the_reason_for_a_fact_marks_the_words_of_a_message(tab, served):
    fact = fact_of(served, "Alice Nguyen works at Lumen Systems")
    page = tab.open(f"group=team&centre=Alice%20Nguyen&fact={fact['id']}", ".why mark")
    assert page.inner_text("[data-role=evidence] mark") == "Lumen Systems"
    assert page.inner_text("[data-role=end] mark") == "Harbor Analytics"
    assert page.locator("[data-role=around]").count() > 2
    assert tab.violations() == []


@pytest.mark.slow  # by default a retraction has a preview
def test_an_end_is_previewed_added_and_undone(tab, served):
    fact = fact_of(served, "Dana Levy lives in Oslo")
    page = tab.open(f"group=team&fact={fact['id']}", ".why mark")
    page.click("text=End it…")
    page.fill("input[name=answer]", "2026-06-01")
    page.click("text=Look ahead")
    page.wait_for_selector(".changes li[data-op=change]")
    assert "Dana Levy lives in Oslo" in page.inner_text(".changes")
    page.click("dialog .main")
    page.wait_for_selector(".notice[data-shown] button")
    ended = fact_of(served, "Dana Levy lives in Oslo")
    assert ended["invalid_at"].startswith("2026-06-01")
    log = served.client().get("/v1/groups/team/episodes", params={"limit": 1000}).json()["episodes"]
    assert log[-1]["source"] == "page"
    page.click(".notice button")
    page.wait_for_selector(".notice:has-text('Taken back.')")
    assert fact_of(served, "Dana Levy lives in Oslo")["invalid_at"] is None


def test_a_message_is_retracted_with_a_preview_and_restored(tab, served):
    fact = fact_of(served, "Greta Lind lives in Stockholm")
    page = tab.open(f"group=team&fact={fact['id']}", ".why mark")
    page.click("text=Retract…")
    page.wait_for_selector(".changes li[data-op=remove]")
    page.click("dialog .main")
    page.wait_for_selector(".notice[data-shown] button")
    page.click(".notice button")
    page.wait_for_selector(".notice:has-text('Taken back.')")
    assert fact_of(served, "Greta Lind lives in Stockholm")


# ------------------------------------------------------------------------------ 4 to 7: the other views


@pytest.mark.slow  # test_http_exploring has its facts and their ends by default
def test_an_entity_has_a_timeline_with_the_ends_of_its_facts(tab, served):
    alice = fact_of(served, "Alice Nguyen works at Lumen Systems")["source_id"]
    page = tab.open(f"group=team&view=entity&entity={alice}", ".bars li")
    assert "works at" in page.inner_text(".bars")
    page.click("text=Look for duplicates")
    page.wait_for_selector(".pairs li")
    page.click(".pairs button >> nth=0")
    page.wait_for_selector(".changes li, dialog .quiet:has-text('No fact')")
    page.keyboard.press("Escape")
    page.click(".bars .ended >> nth=0")
    page.wait_for_selector("blockquote")


@pytest.mark.slow  # test_http has contexts by default, and the page an answer
def test_a_question_shows_the_context_with_its_tokens(tab):
    page = tab.open("group=team&view=ask", "textarea")
    page.fill("textarea", "Where does Alice work?")
    page.click(".ask .main")
    page.wait_for_selector(".context")
    assert "tokens" in page.inner_text(".ask")
    assert "Brightwater" in page.inner_text(".context")


@pytest.mark.slow  # test_ask_served has the stream of an answer by default
def test_an_answer_of_a_model_is_shown_while_it_is_written(chromium, folder, tmp_path):
    has_come = threading.Event()

    def pieces():
        yield "At Brightwater"
        yield " "
        assert has_come.wait(HANGS_S)
        yield "[1]."

    model = ChatServer(lambda _: Say(pieces=pieces()))
    copy = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns("*.lock"))
    settings = {"model_backend": "openai", "model_base_url": model.url, "model_name": "m"}
    with serving(copy, settings=settings) as server:
        context = chromium.new_context()
        tab = Tab(context, server.url)
        page = tab.open("group=team&view=ask", "textarea")
        page.fill("textarea", "Where does Alice work?")
        page.click(".ask .main")
        page.wait_for_selector(".answer[aria-busy=true]:has-text('At Brightwater')")
        assert page.locator(".sources li").count() == 0
        has_come.set()
        page.wait_for_selector(".answer[aria-busy=false]:has-text('At Brightwater [1].')")
        source = page.locator(".sources a >> nth=0")
        assert "[1]" in source.inner_text()
        source.click()
        page.wait_for_selector(".why mark, blockquote, .entity")
        context.close()
        assert tab.faults == []
    model.close()


@pytest.mark.slow  # test_http has streamed backfills by default
def test_ingestion_is_live_and_a_file_is_reported_row_by_row(tab, served, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "I work at Gamma.", "speaker": "Ida"}\n{"text": 7}\n', encoding="utf-8")
    page = tab.open("group=uploads&view=ingestion", ".groups td")
    page.set_input_files("input[type=file]", str(file))
    page.wait_for_selector("text=1 accepted, 0 known already, 1 refused")
    tab.wait_until(
        "[...document.querySelectorAll('.groups tr')].some((row) => /uploads/.test(row.textContent))"
    )


@pytest.mark.slow  # the graph is drawn by default, and test_http_exploring has the communities
def test_communities_are_listed_and_drawn(tab):
    page = tab.open("group=team&view=communities", ".cards a")
    cards = page.locator(".cards a").count()
    page.click(".cards a >> nth=0")
    page.wait_for_selector(".community .neighbours a")
    page.click("text=As a graph")
    page.wait_for_selector(READY)
    assert int(page.get_attribute(".graph", "data-nodes")) == cards


# ------------------------------------------------------------------------------ 8: access, hostile texts


def test_hostile_messages_are_shown_as_text(tab, served):
    page = tab.open("group=hostile&table=yes", "tbody tr")
    page.evaluate("window.hacked = 0")
    for fact in served.client().get("/v1/groups/hostile/graph").json()["facts"]:
        page.evaluate(f"location.hash = '#group=hostile&table=yes&fact={fact['id']}'")
        page.wait_for_selector(".why .talk")
        tab.wait_until(f"document.querySelector('.statement')?.textContent === {json.dumps(fact['text'])}")
    page.evaluate("location.hash = '#group=hostile&q=Berlin'")
    page.wait_for_selector(".hits li")
    page.wait_for_selector(READY)
    assert page.evaluate("window.hacked") == 0
    assert page.evaluate("document.querySelectorAll('main script, main img, main b b').length") == 0


@pytest.mark.slow  # by default marks are in texts of plain letters
def test_marks_count_characters_not_code_units(tab, served):
    fact = fact_of(served, "Dana works at Acme", "hostile")
    page = tab.open(f"group=hostile&fact={fact['id']}", ".why mark")
    assert page.inner_text(".why mark >> nth=0").startswith("Acme")


def test_headers_forbid_foreign_content(served):
    answer = served.client().get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert served.client().get("/page/..%2Fmain.js").status_code == 404


def test_no_key_expired_key_and_a_key_that_only_reads(chromium, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns("*.lock"))
    with serving(copy) as server:
        reader, expired = server.key("team", "read"), server.key("team", "read", rate=1000)
        context = chromium.new_context()
        tab = Tab(context, server.url)
        page = tab.open("", "dialog .fault")
        assert "asks for a key" in page.inner_text("dialog")
        page.fill("input[name=key]", "kg_wrong_key")
        page.click("dialog .main")
        page.wait_for_selector("dialog .fault:has-text('a valid key is needed')")
        page.fill("input[name=key]", reader)
        page.click("dialog .main")
        page.wait_for_selector(READY)
        assert page.evaluate(
            "[localStorage.getItem('kgray-key'), sessionStorage.getItem('kgray-key') !== null]"
        ) == [None, True]
        assert page.locator(".group option").count() == 1
        client = server.client(reader)
        fact = client.get("/v1/groups/team/graph").json()["facts"][0]["id"]
        page.evaluate(f"location.hash = '#group=team&fact={fact}'")
        page.wait_for_selector(".why .talk")
        assert page.locator("text=Retract…").count() == page.locator("text=It was never so…").count() == 0
        server.memory.admin.access.revoke(reader.split("_")[1])
        server.door.guard.refresh()
        page.evaluate("location.hash = '#group=team&view=communities'")
        page.wait_for_selector("dialog .fault")
        page.fill("input[name=key]", expired)
        page.click("dialog .main")
        page.wait_for_selector(".communities")
        context.close()
        assert tab.faults == []


@pytest.mark.slow  # the other tests of the page have a server without outages
def test_the_page_waits_for_an_absent_server(chromium, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "data", ignore=shutil.ignore_patterns("*.lock"))
    with serving(copy) as server:
        context = chromium.new_context()
        tab = Tab(context, server.url)
        page = tab.open("group=team", READY)
        tab.away = True
        context.set_offline(True)
        page.evaluate("location.hash = '#group=team&view=communities'")
        page.wait_for_selector(".gone")
        context.set_offline(False)
        page.wait_for_selector(".gone", state="detached")
        page.wait_for_selector(".cards a")
        context.close()


# ------------------------------------------------------------------------------ 9 and 10: links, form


@pytest.mark.slow  # every test opens a state by a link
def test_a_link_restores_the_view_and_the_view_is_saved_as_png_and_svg(tab):
    page = tab.open("group=team&centre=Alice%20Nguyen", READY)
    page.evaluate("location.hash = '#group=team&centre=Bruno%20Keller'")
    tab.wait_until("!/\\b10\\b.*entities/.test(document.querySelector('.count').textContent)")
    page.go_back()
    tab.wait_until("/\\b10\\b of/.test(document.querySelector('.count').textContent)")
    page.wait_for_selector(READY)
    for name, begin in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        if not page.locator("text=Save as PNG").is_visible():
            page.click("summary:has-text('More')")
        with page.expect_download() as download:
            page.click(f"text=Save as {name}")
        content = open(download.value.path(), "rb").read()  # noqa: PTH123, SIM115 - a temporary path
        assert content.startswith(begin)
        assert len(content) > 2000


@pytest.mark.slow  # by default axe-core looks at a light and wide page
@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 360)])
def test_dark_and_narrow_pages_are_accessible(chromium, served, scheme, width):
    context = chromium.new_context(viewport={"width": width, "height": 740}, color_scheme=scheme)
    tab = Tab(context, served.url)
    page = tab.open("group=team&centre=Alice%20Nguyen&q=Alice", READY)
    page.wait_for_selector(".hits li")
    assert tab.violations() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("?")
    page.wait_for_selector(".keys-list")
    assert tab.violations() == []
    context.close()
    assert tab.faults == []


@pytest.mark.slow  # by default the browser has WebGL
def test_without_webgl_the_table_shows_the_same_facts(driver, served):
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=NO_WEBGL)
    tab = Tab(browser.new_context(), served.url)
    page = tab.open("group=team&centre=Alice%20Nguyen", ".table[data-rows='9']")
    assert "no WebGL" in page.inner_text(".table")
    page.focus("tbody a.row >> nth=0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".why .talk")
    browser.close()
    assert tab.faults == []


@pytest.mark.slow  # test_no_key_expired_key_and_a_key_that_only_reads types by default
def test_all_controls_are_reached_and_left_by_keyboard(tab):
    page, focus = tab.open("group=team", READY), "document.activeElement"
    press = page.keyboard.press
    stops = []
    for _ in range(27):
        press("Tab")
        assert (
            page.evaluate(f"{focus}.matches(':focus-visible') && getComputedStyle({focus}).outlineStyle")
            == "solid"
        )
        stops.append(page.evaluate(f"{focus}.getAttribute('aria-label') || {focus}.textContent.trim()"))
    assert stops[0] == "To the content"
    assert [
        stops.index(name) for name in ("Search", "Explore", "Filter", "Show all", "Play", "Today")
    ] == sorted(stops.index(name) for name in ("Search", "Explore", "Filter", "Show all", "Play", "Today"))
    press("/")
    assert page.evaluate(f"{focus}.type") == "search"
    press("Escape")
    press("?")
    page.wait_for_selector("dialog[open] .keys-list")
    press("Escape")
    page.wait_for_selector("dialog", state="detached")
    moment = "document.querySelector('.track output').textContent"
    press("[")
    tab.wait_until(f"{moment} !== 'today'")
    press("]")
    tab.wait_until(f"{moment} === 'today'")
    press("t")
    page.wait_for_selector("tbody a.row")
    page.focus(".menu summary")
    press("Enter")
    page.wait_for_selector(".menu[open]")
    press("Escape")
    assert page.locator(".menu[open]").count() == 0
    assert page.evaluate(f"{focus}.localName") == "summary"
    page.focus(".table")
    for _ in range(8):  # the heads of six columns, the subject, the relation
        press("Tab")
    press("ArrowDown")
    row = page.evaluate(f"{focus}.getAttribute('href')")
    press("Enter")
    page.wait_for_selector(".why .talk")
    tab.wait_until(f"{focus}.className === 'panel'")
    press("Tab")
    assert page.evaluate(f"{focus}.getAttribute('aria-label')") == "Close"
    press("Escape")
    page.wait_for_selector(".why", state="detached")
    tab.wait_until(f"{focus}.getAttribute('href') === {json.dumps(row)}")
    for key, view in (
        ("2", "compare"),
        ("3", "ask"),
        ("4", "communities"),
        ("5", "ingestion"),
        ("1", "explore"),
    ):
        press(key)
        page.wait_for_selector(f"main[data-view={view}]")
    press(" ")
    page.wait_for_selector("button[aria-label=Pause]")
    press(" ")
    page.wait_for_selector("button[aria-label=Play]")


@pytest.mark.slow  # by default the screen is wide
def test_labels_are_complete_on_a_narrow_screen(chromium, served):
    context = chromium.new_context(viewport={"width": 360, "height": 740}, reduced_motion="reduce")
    tab = Tab(context, served.url)
    drawn = """() => { const old = CanvasRenderingContext2D.prototype.fillText; window.labels = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
            if (this.canvas.closest('.graph') && this.getTransform().b === 0)
                window.labels.push([text, x, x + this.measureText(text).width]);
            return old.call(this, text, x, y); }; }"""
    context.add_init_script(f"({drawn})()")
    page = tab.open("group=team&centre=Alice%20Nguyen", READY)
    tab.wait_until("window.labels.length > 5")
    labels = page.evaluate("window.labels")
    assert [text for text, start, end in labels if start < 0 or end > 360] == []
    tab.open("group=team&table=yes", "tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
    assert tab.faults == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "wait"),
    [
        ("view=compare&from=2025-10-01&to=2026-06-01", ".fact[data-mark=opened]"),
        ("view=ask", "textarea"),
        ("view=ingestion", ".groups td"),
        ("view=communities", ".cards a"),
        ("table=yes", "tbody tr"),
    ],
)
def test_every_view_is_accessible(tab, state, wait):
    tab.open(f"group=team&{state}", wait)
    assert tab.violations() == []


@pytest.mark.slow  # by default another test steps through a smaller graph
def test_a_step_of_the_slider_shows_the_facts_of_the_moment(tab, served):
    graph = served.client().get("/v1/groups/many/graph", params={"limit": 200, "most_facts": 2000}).json()
    page = tab.open("group=many&as_of=2021-01-01", f"{READY}[data-nodes='200']")
    for moment in ("2022-06-01", "2020-03-01", "2023-09-01", "2021-01-02"):
        page.evaluate("(at) => (location.hash = `#group=many&as_of=${at}`)", moment)
        begun = {(f["source_id"], f["target_id"]) for f in graph["facts"] if f["valid_at"][:10] <= moment}
        tab.wait_until(f"document.querySelector('.graph').dataset.edges === '{len(begun)}'")
    for _ in range(3):
        page.keyboard.press("]")
    tab.wait_until("document.querySelector('.graph').dataset.step > 0")


@pytest.mark.slow  # the reason for a fact is shown by default
def test_dates_that_no_message_states_are_marked(tab, served):
    facts = served.client().get("/v1/groups/team/graph").json()["facts"]
    inferred = next(fact for fact in facts if fact["inferred"] == ["valid_at"] and fact["target_id"])
    stated = next(fact for fact in facts if not fact["inferred"] and fact["valid_at"])
    page = tab.open("group=team&table=yes", "tbody tr")
    starts = "(id) => document.querySelector(`a.row[href*='${id}']`).closest('tr').children[3].textContent"
    assert page.evaluate(starts, inferred["id"]).startswith("≈")
    assert not page.evaluate(starts, stated["id"]).startswith("≈")
    tab.open(f"group=team&view=entity&entity={inferred['source_id']}", ".bars li")
    assert page.locator(".bars path.inferred").count() > 0
    assert "≈" in page.inner_text(".bars")
    tab.open(f"group=team&fact={inferred['id']}", ".spans .tag:has-text('start inferred')")


@pytest.mark.slow
def test_200_nodes_are_drawn_and_a_step_of_the_slider_is_quick(tab):
    page = tab.open("group=many", f"{READY}[data-nodes='200']")
    page.keyboard.press("[")
    tab.wait_until("document.querySelector('.graph').dataset.step > 0")
    assert float(page.get_attribute(".graph", "data-step")) < 500  # far below on a quiet machine


@pytest.mark.slow
def test_2000_nodes_are_drawn_with_a_note_about_more(chromium, tmp_path):
    def fill():
        with kgray.open(tmp_path / "data", create=True) as memory:
            every = [list(rows(start, 100, 2200)) for start in range(0, 4400, 100)]
            memory.add_many([{"group": "many", "kind": "triples", "triples": some} for some in every])

    filling = threading.Thread(target=fill)  # an event loop runs in this thread
    filling.start()
    filling.join()
    with serving(tmp_path / "data") as server:
        context = chromium.new_context()
        tab = Tab(context, server.url)
        tab.page.set_default_timeout(8 * ENDS_MS)
        page = tab.open("group=many&limit=2000&overview=no", f"{READY}[data-nodes='2000']")
        assert "Showing 2,000 of 2,200" in page.inner_text(".count")
        page.keyboard.press("[")
        tab.wait_until("document.querySelector('.graph').dataset.step > 0")
        context.close()
        assert tab.faults == []
