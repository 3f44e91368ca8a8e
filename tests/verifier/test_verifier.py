"""The offline verifier accepts an honest export and finds every way to falsify one."""

import asyncio
import base64
import csv
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.errors import RpcError
from app.chain.transport import AsgiTransport
from app.commands.main import main
from app.core.identifiers import ESCROW_EVENT_INNER_INDEX, transaction_id
from app.core.timestamps import iso_ms, now_ms
from app.exports.accounting import COLUMNS as BOOKS
from app.exports.exporter import Exporter
from app.exports.layout import COLUMNS
from app.submission.recovery import Recovery
from app.verifier.document import UnreadableError
from app.verifier.history import IncompleteError
from app.verifier.verify import VerificationReport, verify
from idl.transactions import OPTIONS, message_hash
from tests.support.escrows import Agent, agent, of, shows_output
from tests.support.exports import export
from tests.support.processes import free_ports
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parents[2]

Change = Callable[[list[Json]], object]


@dataclass
class Story:
    """An organisation in which everything has happened once, and its export."""

    world: ServiceWorld
    payer: Agent
    payee: Agent
    folder: Path
    document: Json

    def row(self, type_: str, status: str = "confirmed") -> Json:
        """The only, or newest, row of a type and status."""
        return next(row for row in self.document["transactions"] if (row["type"], row["status"]) == (type_, status))

    def changed(self, change: Change, scope: Json | None = None) -> Path:
        """The export after somebody's changes to its rows and its scope."""
        document = json.loads(json.dumps(self.document))
        change(document["transactions"])
        document["export"] |= {"rows": len(document["transactions"])} | (scope or {})
        path = self.folder / "changed.json"
        path.write_text(json.dumps(document))
        return path

    async def check(
        self, path: Path, program_id: Pubkey | None = None, manifest: Path | None = None
    ) -> VerificationReport:
        return await verify(path, AsgiTransport(self.world.localnet.rpc_app), program_id, manifest)

    async def books(self, **cells: str) -> tuple[Path, Path]:
        """An accounting file and its manifest. The first row with a debit gets these cells, and the manifest fits."""
        path, manifest = self.folder / "books.csv", self.folder / "books.json"
        await export(self.world, path, manifest, format="accounting")
        with path.open(newline="") as handle:
            rows = list(csv.DictReader(handle))
        next(row for row in rows if row["debit"]).update(cells)
        with path.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, BOOKS, quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(rows)
        stated = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(stated | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))
        return path, manifest


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="story")
async def _story(world: ServiceWorld, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Story]:
    # A test names the slot before the first payment's, so that must not be slot 0.
    await world.later(1)
    policy = await world.policy(maxPerTx="50", requireCoSign="40")
    payer, payee = await agent(world, policy["policy_id"]), await agent(world, funds=None)
    to = await world.payee()
    await world.ok("PUT", "/v1/recipients/shop.example", {"address": to})
    await payer.ok("POST", "/v1/payments", {"walletId": payer.id, "to": to, "amount": "5", "currency": "USDC"})
    operator = {"walletId": payer.id, "to": "shop.example", "amount": "45", "currency": "USDC", "memo": "Invoice 7"}
    co_signed = {"Session-Token": payer.session}
    await world.ok("POST", "/v1/payments", operator, headers=co_signed)
    await world.call("POST", "/v1/payments", operator | {"amount": "51"}, headers=co_signed)
    # The rest lands in later slots.
    await world.later(1)
    await world.ok("POST", f"/v1/wallets/{payer.id}/withdraw", {"amount": "1"})
    released = await payer.lock(payee, "3")
    await payee.ok("POST", of(released, "complete"), shows_output())
    disputed = await payer.lock(payee, "4")
    await payer.ok("POST", of(disputed, "dispute"), {"reason": "No answer"})
    await world.ok("POST", of(disputed, "resolve"), {"decision": "split", "releasedAmount": "1"})
    # Lamports at the next escrow's address move its event to another place than the one in the id of its lock.
    address = world.service.addresses.escrow(Pubkey.from_string(payer.vault), 2)
    await world.localnet.airdrop(address, 1_000_000)
    await payer.lock(payee, "2")
    batch = {"allocations": [{"walletId": one.id, "amount": "1"} for one in (payer, payee)]}
    await world.ok("POST", "/v1/wallets/fund-batch", batch)
    # Rows of the export's last slot may be missing.
    await world.later(1)
    folder = tmp_path_factory.mktemp("exports")
    document = json.loads((await export(world, folder / "all.json", format="json")).read_text())
    yield Story(world, payer, payee, folder, document)


def _without(row: Json) -> Change:
    return lambda rows: rows.remove(row)


def _with(row: Json, **fields: Any) -> Change:
    """Change a row."""
    return lambda rows: rows[rows.index(row)].update(fields)


def _only_up_to(slot: int, kept: Json, **fields: Any) -> Change:
    """Drop what landed after a slot, except for one row, and change that row."""

    def change(rows: list[Json]) -> None:
        rows[:] = [row for row in rows if row == kept or (row["on_chain_slot"] or 0) <= slot]
        rows[rows.index(kept)].update(fields)

    return change


async def test_honest_export_of_everything_is_verified(story: Story) -> None:
    for form, bom in (("csv", False), ("csv", True), ("json", False)):
        path = await export(story.world, story.folder / f"honest-{bom}.{form}", format=form, bom=bom)

        report = await story.check(path)

        assert report.problems == report.unsure == []
        types = {row["type"] for row in story.document["transactions"]}
        assert {"payment", "funding", "withdrawal", "a2a_send", "escrow_lock"} <= types
        assert {"a2a_receive", "escrow_release", "escrow_refund"} <= types
        assert report.verified == len(story.document["transactions"]) - 1


async def test_honest_accounting_file_is_verified_with_its_manifest(story: Story) -> None:
    path, manifest = story.folder / "kept.csv", story.folder / "kept.json"
    await export(story.world, path, manifest, format="accounting", bom=True)

    report = await story.check(path, manifest=manifest)

    moved = [one for one in story.document["transactions"] if not one["type"].startswith("a2a")]
    assert report.problems == report.unsure == []
    assert report.verified == len([one for one in moved if one["status"] == "confirmed"])


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({"debit": "900.00"}, "amount is 900.00 in the export"),
        ({"debit": "", "credit": "2.00"}, "amount is empty in the export"),
        ({"credit": "2.00"}, "amount is empty in the export"),
        ({"counterparty_address": "11111111111111111111111111111111"}, "recipient_address is 1111111"),
        ({"date": "2020-01-01"}, "timestamp is 2020-01-01"),
        ({"vault_id": "wal_other"}, "wallet_id is wal_other"),
        ({"signature": "none"}, "tx_signature is none"),
        ({"reference": "tx_none"}, "added: "),
    ],
)
async def test_changed_cell_of_an_accounting_file_is_found(story: Story, cells: dict[str, str], problem: str) -> None:
    path, manifest = await story.books(**cells)

    report = await story.check(path, manifest=manifest)

    assert any(problem in one for one in report.problems), report.problems


async def test_accounting_file_is_refused_without_its_own_manifest(story: Story) -> None:
    path, manifest = await story.books()
    other = story.folder / "other.json"
    other.write_text(manifest.read_text().replace('"sha256": "', '"sha256": "0'))
    for given, reason in ((None, "--manifest"), (other, "was changed"), (path, "not one of an accounting file")):
        with pytest.raises(UnreadableError, match=reason):
            await story.check(path, manifest=given)


async def test_id_is_derived_from_the_place_that_the_export_names(story: Story) -> None:
    lock, mirror = story.row("escrow_lock"), story.row("a2a_send")

    assert lock["tx_signature"] == mirror["tx_signature"]
    found = await story.world.service.chain.call("getTransaction", [lock["tx_signature"], OPTIONS])
    landed = base64.b64decode(found["transaction"][0])
    assert lock["inner_index"] == ESCROW_EVENT_INNER_INDEX < mirror["inner_index"]
    for row in (lock, mirror):
        place = row["instruction_index"], row["inner_index"]
        assert transaction_id(message_hash(landed), *place, row["type"]) == row["tx_id"]


async def test_refused_payments_memos_and_names_are_off_chain(story: Story) -> None:
    report = await story.check(story.changed(lambda _rows: None))

    blocked = story.row("payment", "blocked")
    assert report.off_chain == [f"{blocked['tx_id']}: blocked payment of 51.00 USDC"]
    assert (report.unverified["memos"], report.unverified["names of recipients"]) == (1, 1)
    assert "1 row off-chain. Nothing in them is verified." in report.lines()


@pytest.mark.parametrize(
    ("type_", "fields"),
    [
        ("payment", {"amount": "6.00"}),
        ("payment", {"recipient_address": "11111111111111111111111111111111"}),
        ("payment", {"type": "withdrawal"}),
        ("payment", {"wallet_id": "wal_1111111111111111"}),
        ("payment", {"policy_id": "pol_moderate"}),
        ("payment", {"policy_id": None}),
        ("payment", {"status": "failed"}),
        ("payment", {"currency": "EURC"}),
        ("payment", {"on_chain_slot": 10**9}),
        ("payment", {"policy_triggered": False}),
        ("payment", {"agent_attestation_hash": "sha256:00"}),
        ("payment", {"inner_index": 7}),
        ("payment", {"instruction_index": None}),
        ("payment", {"id": "tx_1111111111111111"}),
        ("payment", {"timestamp": "2026-01-01T00:00:00.000Z"}),
        ("funding", {"recipient": "11111111111111111111111111111111"}),
        ("withdrawal", {"amount": "0.99"}),
        ("escrow_lock", {"type": "payment"}),
        ("a2a_send", {"amount": "3.000001"}),
        ("escrow_release", {"wallet_id": "wal_1111111111111111"}),
        ("escrow_refund", {"policy_id": "pol_moderate"}),
    ],
)
async def test_changed_field_is_found(story: Story, type_: str, fields: Json) -> None:
    row = story.row(type_)

    report = await story.check(story.changed(_with(row, **fields)))

    [name] = fields
    [problem] = report.problems
    assert problem.startswith(f"{row['tx_id']}: {name} is ")
    assert report.verified == len(story.document["transactions"]) - 2


async def test_removed_row_of_every_type_is_found(story: Story) -> None:
    for row in story.document["transactions"]:
        report = await story.check(story.changed(_without(row)))

        if row["status"] == "blocked":
            assert report.problems == []
            continue
        [problem] = report.problems
        assert problem.startswith(f"missing: {row['type']} of {row['amount']} USDC, {row['wallet_id']}")
        assert row["tx_signature"] in problem


async def test_removed_off_chain_row_is_found_by_the_number_of_rows(story: Story) -> None:
    count = len(story.document["transactions"])

    report = await story.check(story.changed(_without(story.row("payment", "blocked")), {"rows": count}))

    assert report.problems == [f"the export has {count - 1} rows and claims to have {count}"]


async def test_added_rows_are_found(story: Story) -> None:
    row = story.row("payment")
    invented = row | {"tx_id": "tx_1111111111111111", "id": "tx_1111111111111111"}

    added = await story.check(story.changed(lambda rows: rows.append(invented)))
    twice = await story.check(story.changed(lambda rows: rows.append(row)))

    assert added.problems == [f"tx_1111111111111111: added: payment of {row['amount']} is not on the chain"]
    assert twice.problems == [f"{row['tx_id']} is in the export more than once"]


async def test_lowered_slot_hides_no_missing_row_before_others(story: Story) -> None:
    row = story.row("payment")
    lowered = {"slot": row["on_chain_slot"] - 1}

    report = await story.check(story.changed(_without(row), lowered))

    [missing] = [one for one in report.problems if one.startswith("missing: ")]
    assert row["tx_signature"] in missing
    newest = story.row("funding")
    late = f"{newest['tx_id']}: landed in slot {newest['on_chain_slot']}, after the export's last, {lowered['slot']}"
    assert late in report.problems


async def test_rows_that_landed_long_before_the_export_are_missing_at_any_slot(story: Story) -> None:
    confirmed = [row for row in story.document["transactions"] if row["status"] == "confirmed"]

    older = await story.check(story.changed(lambda rows: rows.clear(), {"slot": 0}))
    false = await story.check(
        story.changed(lambda rows: rows.clear(), {"slot": 0, "generated_at": "2099-01-01T00:00:00.000Z"})
    )

    assert (older.problems, older.verified) == ([], 0)
    # More may have landed in the last slot after the service looked.
    assert older.later + len(older.unsure) >= len(confirmed)
    end = "further rows of the chain landed after slot 0, the export's last."
    assert any(line.endswith(end) for line in older.lines())
    assert len(false.problems) >= len(confirmed)
    assert all(problem.startswith("missing: ") for problem in false.problems)


@pytest.mark.parametrize("status", ["pending", "failed", "blocked"])
async def test_confirmed_row_under_another_status_is_never_off_chain(story: Story, status: str) -> None:
    rows = story.document["transactions"]
    first, newest = story.row("payment"), max(rows, key=lambda row: row["on_chain_slot"] or 0)
    lowered = {"slot": newest["on_chain_slot"]}

    within = await story.check(story.changed(_with(first, status=status)))
    beyond = await story.check(story.changed(_only_up_to(lowered["slot"], newest, status=status), lowered))
    false = {"status": status, "amount": "900000.00"}
    altered = await story.check(story.changed(_only_up_to(lowered["slot"], newest, **false), lowered))

    assert within.problems == [f"{first['tx_id']}: status is {status} in the export, confirmed on the chain"]
    said = [f"{newest['tx_id']}: {status}, confirmed on the chain in slot {newest['on_chain_slot']}"]
    assert (beyond.problems, beyond.landed) == ([], said)
    assert f"LANDED    {said[0]}" in beyond.lines()
    assert altered.landed == said
    assert altered.problems == [
        f"{newest['tx_id']}: amount is 900000.00 in the export, {newest['amount']} on the chain"
    ]
    for report in (within, beyond, altered):
        assert not any(row["tx_id"] in one for row in (first, newest) for one in report.off_chain)


async def test_confirmed_row_has_no_violation(story: Story) -> None:
    row = story.row("payment")
    violation = {"rule": "max_per_tx", "limit": "1.00", "attempted": "5.00"}

    report = await story.check(story.changed(_with(row, violation=violation)))

    shown = [f"violation_{name} is {value} in the export, empty on the chain" for name, value in violation.items()]
    assert report.problems == [f"{row['tx_id']}: {one}" for one in shown]


async def test_export_that_ends_after_the_nodes_last_slot_gives_no_verdict(story: Story) -> None:
    with pytest.raises(IncompleteError, match="the node is at slot"):
        await story.check(story.changed(lambda _rows: None, {"slot": 10**9}))


async def test_export_made_while_payments_arrive_ends_before_them(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    before = (await world.pay(wallet, to, "1")).json()
    began: list[str] = []
    exporter = world.service.part(Exporter)
    catch_up = exporter._catch_up

    async def then_pay() -> int:
        began.append(iso_ms(now_ms()))
        slot = await catch_up()
        await world.later(1)
        assert (await world.pay(wallet, to, "2")).json()["on_chain_slot"] > slot
        return slot

    exporter._catch_up = then_pay
    for form in ("csv", "json"):
        path = await export(world, tmp_path / f"busy.{form}", format=form, walletId=wallet["wallet_id"])
        report = await verify(path, AsgiTransport(world.localnet.rpc_app))

        assert (report.problems, report.off_chain) == ([], [])
        text = path.read_text()
        assert before["tx_id"] in text
        assert report.scope.generated_at <= began[-1]
        assert (report.unsure, report.later) == ([], 1)


async def test_pending_payment_that_landed_after_the_export_is_reported(
    own_world: ServiceWorld, tmp_path: Path
) -> None:
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    world.line.lose_requests = lambda method: method == "sendTransaction"
    await world.pay(wallet, to, "1")
    world.line.mend()
    path = await export(world, tmp_path / "pending.json", format="json")
    [pending] = [row for row in json.loads(path.read_text())["transactions"] if row["status"] == "pending"]
    before = await verify(path, AsgiTransport(world.localnet.rpc_app))

    await world.later(1)
    await world.service.part(Recovery).recover()
    after = await verify(path, AsgiTransport(world.localnet.rpc_app))

    assert (before.problems, before.landed) == ([], [])
    assert [one.partition(":")[0] for one in before.off_chain] == [pending["tx_id"]]
    assert (after.problems, after.off_chain) == ([], [])
    [landed] = after.landed
    assert landed.startswith(f"{pending['tx_id']}: pending, confirmed on the chain in slot ")


async def test_row_of_another_organisation_is_an_added_row(story: Story) -> None:
    world = story.world
    key = world.key("admin", org=await world.organisation("other"))
    body = {"agentId": "a", "label": "A", "policyId": "pol_permissive"}
    wallet = await world.ok("POST", "/v1/wallets", body, key=key)
    await world.ok("POST", f"/v1/wallets/{wallet['wallet_id']}/fund", {"amount": "1"}, key=key)
    made = await world.ok("POST", "/v1/transactions/export", {"format": "json"}, key=key)
    await world.service.part(Exporter).tick()
    url = (await world.ok("GET", f"/v1/transactions/exports/{made['export_id']}", key=key))["download_url"]
    [foreign] = (await world.client.get(url)).json()["transactions"]

    report = await story.check(story.changed(lambda rows: rows.append(foreign)))

    assert report.problems == [f"{foreign['tx_id']}: added: funding of 1.00 is not on the chain"]


async def test_export_of_a_wallet_holds_all_of_the_wallet_and_nothing_else(story: Story) -> None:
    path = await export(story.world, story.folder / "wallet.json", format="json", walletId=story.payee.id)
    document = json.loads(path.read_text())

    assert (await story.check(path)).problems == []
    assert {row["type"] for row in document["transactions"]} == {"a2a_receive", "escrow_release", "funding"}
    [*_, last] = document["transactions"]
    for rows in (document["transactions"][:-1], [*document["transactions"], story.row("payment")]):
        path.write_text(json.dumps({"export": document["export"] | {"rows": len(rows)}, "transactions": rows}))
        assert len((await story.check(path)).problems) == 1, last


async def test_only_a_row_near_the_end_of_the_range_may_be_missing(story: Story) -> None:
    rows = story.document["transactions"]
    first = min(row["timestamp"] for row in rows)
    path = await export(story.world, story.folder / "from.json", format="json", **{"from": first})
    whole = await story.check(path)
    early = await story.check(story.changed(_without(rows[-1]), {"from": first}))
    within = await story.check(story.changed(_without(rows[-1]), {"from": "2020-01-01T00:00:00Z"}))
    outside = await story.check(story.changed(lambda _rows: None, {"to": "2020-01-01T00:00:00Z"}))

    assert (whole.problems, whole.unsure) == ([], [])
    assert (early.problems, len(early.unsure)) == ([], 1)
    assert (len(within.problems), within.unsure) == (1, [])
    assert len([one for one in outside.problems if "is not in the export's range" in one]) == len(rows)


async def test_what_landed_after_the_export_is_not_missing(story: Story) -> None:
    path = story.changed(lambda _rows: None)
    await story.world.ok("POST", f"/v1/wallets/{story.payer.id}/fund", {"amount": "1"})

    report = await story.check(path)

    assert report.problems == []


async def test_the_program_that_the_file_names_is_not_trusted(story: Story) -> None:
    foreign = "11111111111111111111111111111111"

    report = await story.check(story.changed(lambda _rows: None, {"program_id": foreign}))

    own = story.world.service.codec.program_id
    assert report.problems == [f"the export is about the program {foreign}, not {own}"]
    with pytest.raises(IncompleteError):
        await story.check(story.changed(lambda _rows: None, {"program_id": foreign}), Pubkey.from_string(foreign))


async def test_history_that_the_node_has_pruned_gives_no_verdict(story: Story) -> None:
    through = AsgiTransport(story.world.localnet.rpc_app)

    async def forgetful(body: bytes) -> bytes:
        request, answer = json.loads(body), json.loads(await through(body))
        if request["method"] == "getSignaturesForAddress":
            answer["result"] = [] if "before" in request["params"][1] else answer["result"][:5]
        return json.dumps(answer).encode()

    with pytest.raises(IncompleteError, match="is too short"):
        await verify(story.changed(lambda _rows: None), forgetful)


@pytest.mark.parametrize("part", ["innerInstructions", "postTokenBalances", "err"])
async def test_part_that_the_node_left_out_gives_no_verdict(story: Story, part: str) -> None:
    through = AsgiTransport(story.world.localnet.rpc_app)

    async def without(body: bytes) -> bytes:
        request, answer = json.loads(body), json.loads(await through(body))
        if request["method"] == "getTransaction":
            del answer["result"]["meta"][part]
        return json.dumps(answer).encode()

    with pytest.raises(IncompleteError, match=part):
        await verify(story.changed(lambda _rows: None), without)


async def test_node_that_is_behind_the_export_gives_no_verdict(story: Story) -> None:
    through = AsgiTransport(story.world.localnet.rpc_app)

    async def behind(body: bytes) -> bytes:
        request = json.loads(body)
        if request["method"] == "getSignaturesForAddress":
            assert request["params"][1]["minContextSlot"] == story.document["export"]["slot"]
            error = {"code": -32016, "message": "Minimum context slot has not been reached"}
            return json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()
        return await through(body)

    with pytest.raises(RpcError, match="Minimum context slot"):
        await verify(story.changed(lambda _rows: None), behind)


async def test_node_that_returns_short_pages_is_read_to_the_end(story: Story) -> None:
    through = AsgiTransport(story.world.localnet.rpc_app)

    async def sparing(body: bytes) -> bytes:
        return await through(body.replace(b'"limit":1000', b'"limit":3'))

    report = await verify(story.changed(lambda _rows: None), sparing)

    assert report.problems == []
    assert report.verified == len(story.document["transactions"]) - 1


async def test_verifier_does_not_load_the_service() -> None:
    code = "import sys, app.verifier.verify; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_ROOT)  # noqa: ASYNC221

    loaded = done.stdout.split()
    assert "app.verifier.rows" in loaded
    foreign = (
        "app.store",
        "app.submission.context",
        "app.projection",
        "app.projection.projector",
        "indexer",
        "sqlalchemy",
    )
    assert [name for name in loaded if name.startswith(foreign)] == []


async def test_damaged_or_foreign_files_are_refused(story: Story) -> None:
    whole = (await export(story.world, story.folder / "whole.csv", format="csv")).read_text()
    text = json.dumps(story.document)
    broken = [
        whole.partition("\n")[2],
        whole.replace("amount", "sum", 1),
        whole + '"tx_1"\r\n',
        text[: len(text) // 2],
        text[:-1],
        text + "1",
        text.replace('"slot"', '"shot"', 1),
        text.replace('"slot": ', '"slot": -', 1),
        text.replace('"slot": ', '"slot": 0.', 1),
        text.replace('"slot": ', '"slot": 1, "slot": ', 1),
        text.replace('"from": null', '"from_": null', 1),
        text.replace('"generated_at": "', '"generated_at": "-', 1),
        text.replace('"amount": ', '"amount": "999.00", "amount": ', 1),
        text.replace('"amount": ', '"sum": "999.00", "amount": ', 1),
        text.replace('"rule": ', '"rules": "all", "rule": ', 1),
        text.replace('"rule": ', '"rule": "none", "rule": ', 1),
        text.replace('"violation": null', '"violation": {}', 1),
        text.replace('"violation": null', '"violation": false', 1),
        text.replace('"policy_triggered": false', '"policy_triggered": "false"', 1),
        text.replace('"inner_index": 1', '"inner_index": true', 1),
        text.replace('"memo": null', '"memo": 7', 1),
        whole.replace('""slot"":', '""slot"":1,""slot"":', 1),
        whole.replace('"Invoice 7"', '"=Invoice"', 1),
        "",
        "{}",
    ]
    for content in broken:
        assert content not in {whole, text}
        path = story.folder / "broken"
        path.write_text(content)
        with pytest.raises(UnreadableError):
            await story.check(path)


async def test_csv_row_is_checked_like_one_in_json(story: Story) -> None:
    path = await export(story.world, story.folder / "changed.csv", format="csv")
    with path.open(newline="") as handle:
        lines = list(csv.reader(handle))
    amount = COLUMNS.index("amount")
    index = next(number for number, line in enumerate(lines) if story.row("withdrawal")["tx_id"] in line)
    lines[index][amount] = "900.00"
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows(lines)

    report = await story.check(path)

    tx_id = story.row("withdrawal")["tx_id"]
    assert report.problems == [f"{tx_id}: amount is 900.00 in the export, 1.00 on the chain"]


async def test_command_exits_with_1_on_a_difference_and_2_when_undecided(story: Story) -> None:
    _, port = free_ports()

    async def run(path: Path, *options: str) -> Result:
        command = ["verify", str(path), "--rpc-url", f"http://127.0.0.1:{port}", *options]
        return await asyncio.to_thread(CliRunner().invoke, main, command)

    async with story.world.localnet.serving("127.0.0.1", port):
        honest = await run(await export(story.world, story.folder / "command.csv", format="csv"))
        false = await run(story.changed(_with(story.row("payment"), amount="1.00\x1b[2J\u05d0")))
        unreadable = await run(Path(__file__))
        wrong = await run(story.changed(lambda _rows: None), "--program-id", "nonsense")

    assert (honest.exit_code, false.exit_code, unreadable.exit_code, wrong.exit_code) == (0, 1, 2, 2)
    assert wrong.output == "Error: --program-id: must be an address in base58\n"
    assert "verified against the chain, 0 differences." in honest.output
    assert "verified against the chain, 1 difference." in false.output
    claims, _, facts = false.output.partition("Facts, provided that the node is honest:")
    assert ("OFF-CHAIN tx_" in claims, "OFF-CHAIN" in facts, "DIFFERENT" in claims) == (True, False, False)
    assert f"organisation  {story.world.org}" in honest.output
    assert "amount is 1.00\\x1b[2J\\u05d0 in the export, 45.00 on the chain" in false.output


async def test_allowances_are_verified_as_payments_and_what_came_back(own_world: ServiceWorld, tmp_path: Path) -> None:
    world = own_world
    await world.later(1)
    policy = await world.policy(allowAllowances=True)
    payer, to = await agent(world, policy["policy_id"]), await world.payee()
    path = f"/v1/wallets/{payer.id}/allowances"
    body = {"amount": "3", "destination": to, "delegate": str(Keypair().pubkey())}
    made = await world.ok("POST", path, body, headers={"Session-Token": payer.session})
    await world.ok("POST", f"{path}/{made['allowance_id']}/settle", {})
    await world.later(1)

    file = await export(world, tmp_path / "all.json", format="json")
    rows = json.loads(file.read_text())["transactions"]
    report = await verify(file, AsgiTransport(world.localnet.rpc_app))

    assert report.problems == report.unsure == []
    assert {"payment", "escrow_refund"} <= {row["type"] for row in rows}
    assert report.verified == len(rows)
