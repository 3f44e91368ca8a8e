"""Exports: a file of transactions, requested, polled and downloaded by a link."""

import asyncio
import csv
import hashlib
import io
import itertools
import json
import stat
import threading
import time
from collections.abc import Awaitable
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis.strategies import text
from sqlalchemy import update
from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from app.core.actors import Actor
from app.core.timestamps import now_ms
from app.exports import service as exports_service
from app.exports.exporter import Exporter
from app.exports.layout import CHAIN_FIELDS, COLUMNS, SCOPE_COLUMN, is_formula, neutralise, restore
from app.exports.links import DownloadLinks
from app.store.exports import count_rows, exports
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

_START = "/v1/transactions/export"


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one key have the exports of all tests."""
    monkeypatch.setattr(exports_service, "MAX_LIVE", 1_000)


def _poll(export: Json) -> str:
    return f"/v1/transactions/exports/{export['export_id']}"


async def _finished(world: ServiceWorld, export: Json, **options: Any) -> Json:
    """The export once it is written."""
    async with asyncio.timeout(30):
        while (found := await world.ok("GET", _poll(export), **options))["status"] == "processing":  # noqa: ASYNC110 - asks over HTTP
            await asyncio.sleep(0.02)
    return found


async def _file(world: ServiceWorld, form: str = "json", **body: Any) -> httpx.Response:
    options = {"key": body.pop("key")} if "key" in body else {}
    made = await world.ok("POST", _START, {"format": form, **body}, **options)
    ready = await _finished(world, made, **options)
    response = await world.client.get(ready["download_url"])
    assert response.status_code == 200, response.text
    return response


async def _rows(world: ServiceWorld, **body: Any) -> list[Json]:
    return list((await _file(world, **body)).json()["transactions"])


async def _paid(world: ServiceWorld, memo: str | None = None, amount: str = "1") -> Json:
    """A wallet that was funded and has paid once."""
    wallet = await world.wallet()
    await world.pay(wallet, await world.payee(), amount, body={"memo": memo})
    return wallet


@pytest.mark.proves("GET /v1/transactions/exports", "GET /v1/transactions/exports(limit, cursor)")
async def test_exports_are_listed_newest_first(own_world: ServiceWorld) -> None:
    world = own_world
    mine, other = await _paid(world), await _paid(world)
    agent = world.key("agent", mine["wallet_id"])
    made = [
        await world.ok("POST", _START, {"format": "csv", "walletId": one["wallet_id"]}) for one in (mine, other, mine)
    ]
    listed = (await world.ok("GET", "/v1/transactions/exports"))["data"]
    assert sorted(one["export_id"] for one in listed) == sorted(one["export_id"] for one in made)
    assert listed == sorted(listed, key=lambda one: (one["created_at"], one["export_id"]), reverse=True)
    first = await world.ok("GET", "/v1/transactions/exports?limit=2")
    assert [one["export_id"] for one in first["data"]] == [one["export_id"] for one in listed[:2]]
    rest = await world.ok("GET", f"/v1/transactions/exports?limit=2&cursor={first['next_cursor']}")
    assert [one["export_id"] for one in rest["data"]] == [listed[2]["export_id"]]
    own = (await world.ok("GET", "/v1/transactions/exports", key=agent))["data"]
    assert {one["wallet_id"] for one in own} == {mine["wallet_id"]}
    theirs = world.key("viewer", org=await world.organisation("elsewhere"))
    assert (await world.ok("GET", "/v1/transactions/exports", key=theirs))["data"] == []


@pytest.mark.proves(
    "POST /v1/transactions/export",
    "GET /v1/transactions/exports/{export_id}",
    "Exports: new to processing",
    "Exports: processing to ready",
    "Export(status, format, wallet_id, from, to, rows, download_url)",
)
async def test_export_is_processing_and_then_ready(world: ServiceWorld) -> None:
    wallet = await _paid(world)
    held = asyncio.Event()
    world.line.hold = lambda method: held.wait() if method == "getSlot" else None

    made = await world.ok("POST", _START, {"format": "csv", "walletId": wallet["wallet_id"]})
    world.line.hold = lambda _method: None
    held.set()
    ready = await _finished(world, made)

    assert made["export_id"].startswith("exp_")
    assert (made["status"], made["download_url"], made["rows"]) == ("processing", None, None)
    assert made["estimated_ready_at"] > made["created_at"]
    assert (ready["status"], ready["rows"], ready["failure_reason"]) == ("ready", 2, None)
    assert ready["expires_at"] > ready["estimated_ready_at"] >= made["created_at"]
    same = ("export_id", "id", "format", "wallet_id", "from", "to", "created_at")
    assert {name: ready[name] for name in same} == {name: made[name] for name in same}


async def test_rows_are_those_of_the_list_with_their_places_on_the_chain(world: ServiceWorld) -> None:
    wallet = await _paid(world, "Order 7")
    await world.pay(wallet, await world.payee(), "5000")
    listed = await world.ok("GET", f"/v1/transactions?walletId={wallet['wallet_id']}&limit=100")

    rows = await _rows(world, walletId=wallet["wallet_id"])

    shown = [{name: row[name] for name in row if name not in {"x402", "refusals"}} for row in listed["data"]]
    assert shown[0]["violation"].pop("budget_id") is None
    assert [{name: row[name] for name in row if name not in CHAIN_FIELDS} for row in rows] == shown
    blocked, paid, funded = rows
    assert (blocked["status"], blocked["instruction_index"], blocked["inner_index"]) == ("blocked", None, None)
    assert (paid["recipient_address"], paid["inner_index"]) == (paid["recipient"], 1)
    assert (funded["recipient_address"], funded["type"]) == (wallet["chain_address"], "funding")


@pytest.mark.proves("POST /v1/transactions/export", "CreateExport(format)")
async def test_csv_says_the_same_as_json(world: ServiceWorld) -> None:
    wallet = await _paid(world, 'Said "yes",\nthen left')
    await world.pay(wallet, await world.payee(), "5000")
    rows = await _rows(world, walletId=wallet["wallet_id"])

    response = await _file(world, "csv", walletId=wallet["wallet_id"])

    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    head, *lines = csv.reader(io.StringIO(response.text, newline=""))
    assert head[:-1] == list(COLUMNS)
    assert json.loads(head[-1].removeprefix(SCOPE_COLUMN))["rows"] == len(lines) == 3
    for row, line in zip(rows, lines, strict=True):
        cells = dict(zip(head, line, strict=True))
        violation = row.pop("violation") or {}
        row |= {f"violation_{name}": violation.get(name) for name in ("rule", "limit", "attempted")}
        row["paid_request_protocol"] = row.pop("paid_request")
        texts = {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in row.items()}
        assert {name: "" if row[name] is None else text for name, text in texts.items()} == dict([*cells.items()][:-1])


@pytest.mark.proves("Export(manifest_url)", "GET /v1/transactions/exports/{export_id}/manifest")
async def test_accounting_file_has_the_movements_of_a_vault(world: ServiceWorld) -> None:
    payee, budget = await world.payee(), await world.ok("POST", "/v1/budgets", {"name": "Ads", "maxPerDay": "900"})
    await world.ok("PUT", "/v1/recipients/shop.example", {"address": payee, "category": "marketplace"})
    body = {"label": "=Sales", "tags": ["ads", "north eu"], "budgetId": budget["budget_id"]}
    wallet = await world.wallet(**body)
    await world.pay(wallet, payee, "2", body={"memo": "Order 7"})
    await world.pay(wallet, payee, "5000")
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/withdraw", {"amount": "1.5"})
    made = await world.ok("POST", _START, {"format": "accounting", "walletId": wallet["wallet_id"]})
    ready = await _finished(world, made)

    content = (await world.client.get(ready["download_url"])).content
    manifest = (await world.client.get(ready["manifest_url"])).json()

    withdrawn, paid, funded = csv.DictReader(io.StringIO(content.decode(), newline=""))
    assert manifest["sha256"] == hashlib.sha256(content).hexdigest()
    assert (manifest["export"]["wallet_id"], manifest["export"]["rows"]) == (wallet["wallet_id"], 3)
    assert (paid["vault"], paid["agent"], paid["tags"]) == ("'=Sales", wallet["agent_id"], "ads, north eu")
    assert (paid["budget"], paid["category"], paid["memo"]) == ("Ads", "marketplace", "Order 7")
    assert (paid["counterparty_name"], paid["counterparty_address"]) == ("shop.example", payee)
    assert (paid["debit"], paid["credit"], paid["fee"], paid["status"]) == ("2.00", "", "0.00", "confirmed")
    assert (withdrawn["debit"], withdrawn["counterparty_name"]) == ("1.50", "Reserve")
    assert (funded["credit"], funded["debit"], funded["counterparty_name"]) == ("100.00", "", "Reserve")
    left = Decimal(funded["credit"]) - Decimal(paid["debit"]) - Decimal(withdrawn["debit"])
    assert left == Decimal((await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["usdc_balance"])
    listed = await world.ok("GET", f"/v1/transactions/{paid['reference']}")
    assert f"{paid['date']}T{paid['time']}" == listed["timestamp"]


async def test_only_accounting_files_have_a_manifest(world: ServiceWorld) -> None:
    wallet = await _paid(world)
    ready = await _finished(world, await world.ok("POST", _START, {"format": "csv", "walletId": wallet["wallet_id"]}))
    assert ready["manifest_url"] is None
    refused = await world.client.get(ready["download_url"].replace("/download?", "/manifest?"))
    error_of(refused, 404, "export_not_found")


@pytest.mark.proves("CreateExport(walletId)")
async def test_file_states_its_scope(world: ServiceWorld) -> None:
    wallet = await _paid(world)

    body = {"walletId": wallet["wallet_id"], "from": "2026-01-01", "to": "2099-01-01T00:00:00Z"}
    scope = (await _file(world, **body)).json()["export"]

    assert (scope["org"], scope["program_id"]) == (world.org, str(world.service.codec.program_id))
    assert (scope["wallet_id"], scope["vault"]) == (wallet["wallet_id"], wallet["chain_address"])
    assert (scope["from"], scope["to"]) == ("2026-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z")
    assert scope["rows"] == 2
    assert scope["slot"] > 0


@pytest.mark.proves("CreateExport(from, to)", "Export(format, wallet_id, from, to)")
async def test_range_includes_its_beginning_and_not_its_end(world: ServiceWorld) -> None:
    wallet = await _paid(world)
    paid, funded = await _rows(world, walletId=wallet["wallet_id"])

    async def within(**range_: str) -> list[str]:
        return [row["tx_id"] for row in await _rows(world, walletId=wallet["wallet_id"], **range_)]

    assert await within(**{"from": paid["timestamp"]}) == [paid["tx_id"]]
    assert await within(to=paid["timestamp"]) == [funded["tx_id"]]
    assert await within(**{"from": "2020-01-01", "to": "2020-01-02"}) == []


async def test_formulas_are_guarded_in_csv_and_unchanged_in_json(world: ServiceWorld) -> None:
    wallet = await world.wallet()
    memos = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'=1", "'quoted'", "plain"]  # noqa: RUF001
    to = await world.payee()
    for memo in memos:
        await world.pay(wallet, to, "1", body={"memo": memo})

    response = await _file(world, "csv", walletId=wallet["wallet_id"])

    cells = [row["memo"] for row in csv.DictReader(io.StringIO(response.text, newline=""))][-2::-1]
    assert [cell[0] for cell in cells] == ["'"] * (len(memos) - 1) + ["p"]
    assert [restore(cell) for cell in cells] == memos
    assert [restore(neutralise(memo)) for memo in memos] == memos
    rows = await _rows(world, walletId=wallet["wallet_id"])
    assert [row["memo"] for row in rows][-2::-1] == memos


async def test_no_cell_is_a_formula_where_semicolons_or_tabs_separate_cells(world: ServiceWorld) -> None:
    wallet, to = await world.wallet(), await world.payee()
    memos = [
        'hi;=HYPERLINK("http://evil");',
        "1;2;-3",
        ";;+1",
        'a;"=1+1',
        'a;""=1+1',
        "a\t@SUM(A1)",
        "a\n=1\r\n-1",
        "a;'=1",
        ";\t=1",
        "a;b,=1",
    ]
    for memo in memos:
        await world.pay(wallet, to, "1", body={"memo": memo})

    content = (await _file(world, "csv", walletId=wallet["wallet_id"])).text

    rows = content.split("\r\n", 1)[1]
    for separator in ";\t":
        cells = [cell for line in csv.reader(rows.splitlines(keepends=True), delimiter=separator) for cell in line]
        assert [cell for cell in cells if cell.startswith(tuple("=+-@"))] == []
    commas = [row["memo"] for row in csv.DictReader(io.StringIO(content, newline=""))][-2::-1]
    assert [restore(cell) for cell in commas] == memos


_UNSEEN = (
    " ",
    "\u00a0",
    "\u2009",
    "\u202f",
    "\u3000",
    "\u200b",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\ufe0f",
    "\U000e0020",
)


@pytest.mark.parametrize("unseen", [*_UNSEEN, "".join(_UNSEEN), "\t\u00a0 "], ids=ascii)
async def test_formula_behind_unseen_characters_is_guarded(unseen: str) -> None:
    for formula in ("=1+1", "+1", "-1", "@SUM(A1)", "＝1", "\t=1"):  # noqa: RUF001
        for memo in (f"{unseen}{formula}", f"a;{unseen}{formula}", f"a\n{unseen}{formula}", f"'{unseen}{formula}"):
            guarded = neutralise(memo)
            assert restore(guarded) == memo
            assert restore(neutralise(guarded)) == guarded
            assert not is_formula(guarded)
            for separator in ";\t":
                cells = [cell for line in csv.reader(io.StringIO(guarded), delimiter=separator) for cell in line]
                assert [cell for cell in cells if cell.strip("".join(_UNSEEN)).startswith(tuple("=+-@＝"))] == []  # noqa: RUF001
    for plain in (f"{unseen}paid", f"a{unseen}=1", f"{unseen}1-2"):
        assert neutralise(plain) == plain or "\t" in unseen


@given(memo=text(alphabet=" \t\r\n;'\"=+-@a\u00a0\u200b\ufeff", max_size=12))
async def test_guards_are_removed_exactly(memo: str) -> None:
    assert restore(neutralise(memo)) == memo
    assert not is_formula(neutralise(memo))


async def test_guarding_of_long_memos_takes_no_time() -> None:
    began = time.perf_counter()
    for memo in ("\n" * 512, "; " * 256, ";" + " " * 511, " " * 512, "\u200b;" * 256):
        restore(neutralise(memo))
    assert time.perf_counter() - began < 0.1


@pytest.mark.proves("CreateExport(bom)", "Export(bom)")
async def test_csv_begins_with_a_byte_order_mark_on_request_only(world: ServiceWorld) -> None:
    wallet = await _paid(world, "Grüße")
    options = {"walletId": wallet["wallet_id"]}

    plain, marked = [(await _file(world, "csv", bom=bom, **options)).content for bom in (False, True)]

    assert plain.startswith(b'"tx_id"')
    assert marked.startswith(b'\xef\xbb\xbf"tx_id"')
    head, *rows = csv.reader(io.StringIO(marked.decode("utf-8-sig"), newline=""))
    assert head[:-1] == list(COLUMNS)
    assert rows == list(csv.reader(io.StringIO(plain.decode(), newline="")))[1:]
    made = await world.ok("POST", _START, {"format": "csv", "bom": True, **options})
    assert made["bom"] is (await _finished(world, made))["bom"] is True


@pytest.mark.proves("CreateExport(bom)")
async def test_byte_order_mark_is_refused_in_json(world: ServiceWorld) -> None:
    error = error_of(await world.call("POST", _START, {"format": "json", "bom": True}), 400, "invalid_request")
    assert error["message"].startswith("bom: must be false")
    assert (await world.ok("POST", _START, {"format": "json", "bom": False}))["bom"] is False
    error_of(await world.call("POST", _START, {"format": "csv", "bom": "true"}), 400, "invalid_request")


async def test_files_are_complete_and_readable_by_their_owner_only(world: ServiceWorld) -> None:
    await _file(world)

    folder = world.settings.data_dir / "exports"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name != "lock"}
    assert set(files.values()) == {0o600}
    assert ".part" not in files


@pytest.mark.proves("GET /v1/transactions/exports/{export_id}/download", "Export(download_url)")
async def test_link_downloads_the_file_without_a_key(world: ServiceWorld) -> None:
    made = await world.ok("POST", _START, {"format": "json"})
    ready = await _finished(world, made)
    assert ready["download_url"].startswith(f"{world.settings.base_url()}{_poll(made)}/download?")

    response = await world.client.get(ready["download_url"])

    name = f"transactions-{made['export_id']}.json"
    assert response.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "private, no-store"
    part = await world.client.get(ready["download_url"], headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, response.content[:10])


@pytest.mark.proves("error range_not_satisfiable")
@pytest.mark.parametrize("range_", ["bytes=abc", "bytes=5-1", "bytes", "bytes="])
async def test_malformed_range_is_refused(world: ServiceWorld, range_: str) -> None:
    url = (await _finished(world, await world.ok("POST", _START, {"format": "json"})))["download_url"]

    response = await world.client.get(url, headers={"Range": range_})

    error_of(response, 416, "range_not_satisfiable")
    assert "content-range" not in response.headers


@pytest.mark.proves("error range_not_satisfiable")
async def test_range_in_an_unknown_unit_is_ignored(world: ServiceWorld) -> None:
    url = (await _finished(world, await world.ok("POST", _START, {"format": "json"})))["download_url"]
    whole = await world.client.get(url)

    response = await world.client.get(url, headers={"Range": "items=0-1"})

    assert (response.status_code, response.content) == (200, whole.content)
    assert "content-range" not in response.headers


@pytest.mark.proves("error range_not_satisfiable")
@pytest.mark.parametrize("range_", ["bytes=99999999-", "bytes=0-9,99999999-"])
async def test_range_that_the_file_does_not_have_is_refused_with_its_size(world: ServiceWorld, range_: str) -> None:
    url = (await _finished(world, await world.ok("POST", _START, {"format": "json"})))["download_url"]
    whole = await world.client.get(url)

    response = await world.client.get(url, headers={"Range": range_})

    error_of(response, 416, "range_not_satisfiable")
    assert response.headers["content-range"] == f"bytes */{len(whole.content)}"


@pytest.mark.proves("GET /v1/transactions/exports/{export_id}/download")
@pytest.mark.parametrize(
    ("range_", "expected"),
    [("bytes=3-", slice(3, None)), ("bytes=-7", slice(-7, None)), ("bytes=2-99999999", slice(2, None))],
)
async def test_rest_of_a_file_can_be_fetched(world: ServiceWorld, range_: str, expected: slice) -> None:
    url = (await _finished(world, await world.ok("POST", _START, {"format": "csv"})))["download_url"]
    whole = await world.client.get(url)

    headers = {"Range": range_, "If-Range": whole.headers["etag"]}
    part = await world.client.get(url, headers=headers)
    other = await world.client.get(url, headers=headers | {"If-Range": '"another"'})

    assert (part.status_code, part.content) == (206, whole.content[expected])
    assert (other.status_code, other.content) == (200, whole.content)


async def test_head_of_a_download_has_its_size(world: ServiceWorld) -> None:
    url = (await _finished(world, await world.ok("POST", _START, {"format": "json"})))["download_url"]
    whole = await world.client.get(url)

    head = await world.client.head(url)

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.sqlite("an export's content is in the database there")
async def test_file_that_is_removed_while_it_is_sent_arrives_whole(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.ok("POST", _START, {"format": "json"})
    url = (await _finished(world, made))["download_url"]
    whole = await world.client.get(url)
    file = world.settings.data_dir / "exports" / f"{made['export_id']}.json"
    serve = FileResponse.__call__

    async def remove_once_begun(self: FileResponse, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_remove(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                file.unlink(missing_ok=True)

        await serve(self, scope, receive, send_and_remove)

    monkeypatch.setattr(FileResponse, "chunk_size", 16)
    monkeypatch.setattr(FileResponse, "__call__", remove_once_begun)
    during = await world.client.get(url)
    monkeypatch.undo()
    after = await world.client.get(url)

    assert (during.status_code, during.content) == (200, whole.content)
    error_of(after, 404, "export_not_found")


@pytest.mark.proves("GET /v1/transactions/exports/{export_id}/download", "error download_link_invalid")
async def test_altered_and_expired_links_are_refused(world: ServiceWorld) -> None:
    made, other = [await world.ok("POST", _START, {"format": "json"}) for _ in range(2)]
    url = (await _finished(world, made))["download_url"]
    await _finished(world, other)
    query = {name: value for name, [value] in parse_qs(urlsplit(url).query).items()}
    place = f"{_poll(made)}/download"
    until = now_ms() // 1000 - 1
    old = world.service.part(DownloadLinks).make(made["export_id"], Actor.parse(query["by"]), until=until)
    altered = [
        place,
        f"{place}?{urlencode(query | {'expires': str(int(query['expires']) + 1)})}",
        f"{place}?{urlencode(query | {'signature': query['signature'][:-1] + 'g'})}",
        f"{place}?{urlencode(query | {'by': 'system:x'})}",
        f"{place}?{urlencode(query | {'signature': 'é'})}",
        f"{place}?{urlencode(query | {'expires': 'soon'})}",
        f"{_poll(other)}/download?{urlencode(query)}",
        old,
    ]

    for link in altered:
        error_of(await world.client.get(link), 403, "download_link_invalid")


@pytest.mark.proves("GET /v1/transactions/exports/{export_id}", "Exports: ready to expired", "Export(expires_at)")
async def test_expired_export_has_no_link_and_no_file(world: ServiceWorld) -> None:
    made = await world.ok("POST", _START, {"format": "csv"})
    url = (await _finished(world, made))["download_url"]
    over = update(exports).where(exports.c.export_id == made["export_id"]).values(expires_at=now_ms() - 1)
    await world.service.db.write(lambda conn: conn.execute(over))

    shown = await world.ok("GET", _poll(made))
    await world.service.part(Exporter).tick()

    assert (shown["status"], shown["download_url"]) == ("expired", None)
    assert (await world.ok("GET", _poll(made)))["status"] == "expired"
    error_of(await world.client.get(url), 404, "export_not_found")
    assert not list((world.settings.data_dir / "exports").glob(f"{made['export_id']}*"))


@pytest.mark.proves("Exports: processing to ready", "event export.ready")
async def test_event_says_once_that_the_export_is_ready(world: ServiceWorld) -> None:
    wallet = await _paid(world)
    made = await world.ok("POST", _START, {"format": "csv", "walletId": wallet["wallet_id"]})
    ready = await _finished(world, made)

    events = (await world.ok("GET", f"/v1/events?event=export.ready&walletId={wallet['wallet_id']}"))["data"]

    [event] = events
    assert event["severity"] == "info"
    assert (event["export_id"], event["rows"], event["format"]) == (made["export_id"], 2, "csv")
    assert event["expires_at"] == ready["expires_at"]
    assert "signature=" not in json.dumps(event)


async def test_agent_exports_and_sees_only_its_own_wallet(world: ServiceWorld) -> None:
    own, other = await _paid(world), await _paid(world)
    key = world.key("agent", own["wallet_id"])

    rows = await _rows(world, key=key)
    foreign = [await world.ok("POST", _START, {"format": "json", **body}) for body in ({}, {"walletId": other["id"]})]

    assert {row["wallet_id"] for row in rows} == {own["wallet_id"]}
    for export in foreign:
        error_of(await world.call("GET", _poll(export), key=key), 404, "export_not_found")
    named = {"format": "json", "walletId": other["wallet_id"]}
    error_of(await world.call("POST", _START, named, key=key), 403, "insufficient_permissions")


@pytest.mark.proves("error export_not_found")
async def test_viewer_may_export_and_other_organisations_see_nothing(world: ServiceWorld) -> None:
    await _paid(world)
    made = await world.ok("POST", _START, {"format": "json"}, key=world.key("viewer"))
    stranger = world.key("admin", org=await world.organisation("other"))

    assert (await _finished(world, made, key=world.key("viewer")))["status"] == "ready"
    error_of(await world.call("GET", _poll(made), key=stranger), 404, "export_not_found")
    error_of(await world.call("GET", "/v1/transactions/exports/exp_unknown"), 404, "export_not_found")
    assert await _rows(world, key=stranger) == []


@pytest.mark.proves("CreateExport(format)")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_request"),
        ({"format": "xml"}, 400, "invalid_request"),
        ({"format": "csv", "from": "yesterday"}, 400, "invalid_request"),
        ({"format": "csv", "from": "2026-02-01", "to": "2026-01-01"}, 400, "invalid_request"),
        ({"format": "csv", "from": "2026-01-01", "to": "2026-01-01"}, 400, "invalid_request"),
        ({"format": "csv", "status": "confirmed"}, 400, "invalid_request"),
        ({"format": "csv", "walletId": "wal_1111111111111111"}, 404, "wallet_not_found"),
    ],
)
async def test_malformed_request_is_refused(world: ServiceWorld, body: Json, status: int, code: str) -> None:
    error_of(await world.call("POST", _START, body), status, code)


async def test_repetition_under_a_key_starts_no_second_export(world: ServiceWorld) -> None:
    body = {"format": "json", "idempotencyKey": "export"}

    first, again = [await world.ok("POST", _START, body) for _ in range(2)]

    assert first == again


@pytest.mark.proves("Exports: processing to failed", "Export(failure_reason)")
async def test_unwritable_file_fails_its_export_and_no_other(own_world: ServiceWorld) -> None:
    world = own_world
    broken, whole = await _held(world, 2)
    (world.settings.data_dir / "exports" / f"{broken['export_id']}.csv.part").mkdir()
    world.line.mend()
    await world.service.part(Exporter).tick()

    failed = await world.ok("GET", _poll(broken))
    assert (failed["status"], failed["download_url"]) == ("failed", None)
    assert failed["failure_reason"] == "The file could not be written."
    assert (await world.ok("GET", _poll(whole)))["status"] == "ready"


@pytest.mark.proves("error too_many_exports", "Limits: Exports of an organisation")
async def test_unfinished_exports_of_an_organisation_are_limited(own_world: ServiceWorld) -> None:
    await _held(own_world, 20)

    error_of(await own_world.call("POST", _START, {"format": "csv"}), 422, "too_many_exports")


@pytest.mark.proves("Limits: Exports of an organisation")
async def test_key_may_have_a_quarter_of_the_exports(own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = own_world
    viewer, other = world.key("viewer"), world.key("viewer")
    monkeypatch.setattr(exports_service, "MAX_LIVE", 8)
    for _ in range(2):
        await _finished(world, await world.ok("POST", _START, {"format": "csv"}, key=viewer))

    refused = await world.call("POST", _START, {"format": "csv"}, key=viewer)

    assert "The API key or person" in error_of(refused, 422, "too_many_exports")["message"]
    assert 0 < int(refused.headers["retry-after"]) <= world.settings.export_lifetime
    for key in (world.key("admin"), other):
        await world.ok("POST", _START, {"format": "csv"}, key=key)


@pytest.mark.proves("Limits: Exports of an organisation")
async def test_agents_key_exports_few_transactions_at_a_time(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    wallet = await _paid(world)
    key = world.key("agent", wallet["wallet_id"])
    first = await _finished(world, await world.ok("POST", _START, {"format": "csv"}, key=key), key=key)
    monkeypatch.setattr(exports_service, "MAX_ROWS_OF_AGENT", first["rows"])

    error_of(await world.call("POST", _START, {"format": "csv"}, key=key), 422, "too_many_exports")
    await world.ok("POST", _START, {"format": "csv"})


@pytest.mark.proves("error too_many_exports", "Limits: Exports of an organisation")
@pytest.mark.parametrize(("role", "limit"), [("agent", "MAX_ROWS_OF_AGENT"), ("viewer", "MAX_ROWS")])
async def test_first_export_of_a_key_is_limited_too(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, role: str, limit: str
) -> None:
    world = own_world
    wallet = await _paid(world)
    key = world.key("viewer") if role == "viewer" else world.key("agent", wallet["wallet_id"])
    body = {"format": "csv", "walletId": wallet["wallet_id"]}
    monkeypatch.setattr(exports_service, limit, 1)

    refused = await world.call("POST", _START, body, key=key)

    assert "Export shorter periods." in error_of(refused, 422, "too_many_exports")["message"]
    assert "retry-after" not in refused.headers
    empty = await world.ok("POST", _START, {**body, "from": "2020-01-01", "to": "2020-01-02"}, key=key)
    assert (await _finished(world, empty, key=key))["rows"] == 0


@pytest.mark.proves("Limits: Exports of an organisation")
async def test_key_may_have_a_quarter_of_the_unfinished_exports(own_world: ServiceWorld) -> None:
    viewer = own_world.key("viewer")
    await _held(own_world, 5, key=viewer)

    error_of(await own_world.call("POST", _START, {"format": "csv"}, key=viewer), 422, "too_many_exports")
    await own_world.ok("POST", _START, {"format": "csv"})


async def test_rows_are_counted_for_one_export_at_a_time_not_for_refused_ones(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, go_on = own_world, threading.Event()
    keys = [world.key("viewer") for _ in range(23)]
    await _held(world, 1)
    counted, at_once, most = 0, 0, 0

    def slowly(*args: Any) -> int:
        nonlocal counted, at_once, most
        counted, at_once = counted + 1, at_once + 1
        most = max(most, at_once)
        go_on.wait(10)
        at_once -= 1
        return count_rows(*args)

    monkeypatch.setattr(exports_service, "count_rows", slowly)
    made = [asyncio.create_task(world.call("POST", _START, {"format": "csv"}, key=key)) for key in keys]
    refused = [await one for one in itertools.islice(asyncio.as_completed(made), 3)]
    go_on.set()
    answers = await asyncio.gather(*made)

    for one in refused:
        error_of(one, 429, "rate_limited")
        assert int(one.headers["retry-after"]) > 0
    error_of(next(one for one in answers if one.status_code == 422), 422, "too_many_exports")
    assert sorted(one.status_code for one in answers) == [200] * 19 + [422] + [429] * 3
    assert (counted, most) == (19, 1)


@pytest.mark.proves("error too_many_exports", "Limits: Exports of an organisation")
async def test_unexpired_exports_of_an_organisation_are_limited(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    keys = [world.key("viewer") for _ in range(4)]
    monkeypatch.setattr(exports_service, "MAX_LIVE", 4)
    made = [await world.ok("POST", _START, {"format": "csv"}, key=key) for key in keys]
    [first, *_] = [await _finished(world, one) for one in made]

    with monkeypatch.context() as uncounted:
        uncounted.setattr(exports_service, "count_rows", None)
        refused = await world.call("POST", _START, {"format": "csv"}, key=world.key("viewer"))
    error_of(refused, 422, "too_many_exports")
    other = world.key("admin", org=await world.organisation("other"))
    await world.ok("POST", _START, {"format": "csv"}, key=other)
    await _end(world, first)
    again = await world.ok("POST", _START, {"format": "csv"})

    assert 0 < int(refused.headers["retry-after"]) <= world.settings.export_lifetime
    assert again["status"] == "processing"


@pytest.mark.proves("Limits: Exports of an organisation")
async def test_transactions_in_the_exports_of_an_organisation_are_limited(
    own_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = own_world
    wallet = await _paid(world)
    mine = {"format": "csv", "walletId": wallet["wallet_id"]}
    alone = await _finished(world, await world.ok("POST", _START, mine))
    monkeypatch.setattr(exports_service, "MAX_ROWS", 4 * alone["rows"])

    refused = await world.call("POST", _START, mine)
    await _end(world, alone)

    error_of(refused, 422, "too_many_exports")
    assert int(refused.headers["retry-after"]) > 0
    await world.ok("POST", _START, mine)
    error_of(await world.call("POST", _START, mine), 422, "too_many_exports")


async def _end(world: ServiceWorld, export: Json) -> None:
    """Let an export expire."""
    over = update(exports).where(exports.c.export_id == export["export_id"]).values(expires_at=now_ms() - 1)
    await world.service.db.write(lambda conn: conn.execute(over))
    await world.service.part(Exporter).tick()
    assert (await world.ok("GET", _poll(export)))["status"] == "expired"


async def test_unfinished_export_is_finished_after_a_restart(own_world: ServiceWorld) -> None:
    world = own_world
    await _paid(world)
    [made] = await _held(world, 1)

    await world.restart(lose_requests=lambda _method: False)

    ready = await _finished(world, made)
    assert (ready["status"], ready["rows"]) == ("ready", 2)
    assert len((await world.ok("GET", "/v1/events?event=export.ready"))["data"]) == 1


@pytest.mark.sqlite("exports are claimed by rows there")
async def test_two_processes_on_a_folder_do_not_write_the_same_export(own_world: ServiceWorld) -> None:
    world = own_world
    [made] = await _held(world, 1)
    world.line.mend()
    service = world.service

    def nobody() -> Awaitable[int]:
        raise AssertionError("the export was begun")

    other = Exporter(
        db=service.db,
        folder=world.settings.data_dir / "exports",
        program_id="",
        lifetime=60,
        show=lambda *_row: {},
        catch_up=nobody,
    )

    assert await other.tick() == 0
    assert await service.part(Exporter).tick() == 1
    assert (await world.ok("GET", _poll(made)))["status"] == "ready"


async def _held(world: ServiceWorld, count: int, key: str | None = None) -> list[Json]:
    """Exports that wait because the chain does not answer, each of a key of its own or all of the given one."""
    await world.service.part(Exporter).tick()
    world.line.lose_requests = lambda method: method == "getSlot"
    keys = [key or world.key("viewer") for _ in range(count)]
    return [await world.ok("POST", _START, {"format": "csv"}, key=one) for one in keys]
