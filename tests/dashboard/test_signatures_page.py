"""The page of signatures: where the authority's key is elsewhere, changes wait there to be signed."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner
from playwright.async_api import Browser, Page, expect
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.nonces import advance
from app.chain.transactions import unsigned
from app.commands.main import main
from app.core.signers import read_key
from idl.transactions import parse
from tests.api.test_signed_transactions import Hardened
from tests.dashboard.browsing import Crafted, Served, findings, forget_step_up, log, overflow, refusals, sign_in
from tests.support.http import served
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_WALLET = (Path(__file__).parent / "wallet.js").read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hardened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hardened]:
    folder = tmp_path_factory.mktemp("hardened")
    async with ServiceWorld(folder) as world:
        key = folder / "keys" / "authority.json"
        authority = read_key(key)
        key.rename(folder / "elsewhere.json")
        await world.restart()
        yield Hardened(world, authority)


@pytest_asyncio.fixture(scope="module", loop_scope="session", name="place")
async def _place(hardened: Hardened, browser: Browser) -> AsyncIterator[Served]:
    async with served(hardened.world) as base:
        yield Served(hardened.world, browser, base.replace("127.0.0.1", "localhost") + "/dashboard")


async def _frozen(world: ServiceWorld, label: str) -> Json:
    wallet = await world.wallet(label=label, funds=None)
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    return wallet


async def _status(world: ServiceWorld, wallet: Json) -> str:
    return str((await world.ok("GET", f"/v1/wallets/{wallet['wallet_id']}"))["status"])


async def _unfreeze(place: Served, page: Page, wallet: Json) -> None:
    await page.goto(f"{place.base}/vaults/{wallet['wallet_id']}")
    await page.get_by_role("button", name="Unfreeze").click()
    await page.get_by_text("The change waits for the authority's signature").wait_for()


@pytest.mark.proves("GET /dashboard/signatures", "GET /dashboard/signatures/{tx_id}/file", "POST /dashboard/signatures")
async def test_change_is_downloaded_signed_and_uploaded(place: Served, tmp_path: Path) -> None:
    world, folder = place.world, place.world.settings.data_dir
    wallet = await _frozen(world, "Signed by file")
    async with place.visit("admin") as page:
        await page.goto(f"{place.base}/signatures")
        await page.get_by_text("No changes are waiting. This service runs without the authority's key").wait_for()
        await _unfreeze(place, page, wallet)
        await page.get_by_text("Unfreeze wallet of Signed by file").wait_for()
        await expect(page.get_by_text("There is no wallet for Solana in this browser.")).to_be_visible()
        assert await findings(page) == []
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Download").click()
        unsigned, signed = tmp_path / "unsigned.json", tmp_path / "signed.json"
        await (await download.value).save_as(unsigned)

        await page.get_by_label("Signed file").set_input_files(unsigned)
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("must have a valid signature of").wait_for()
        assert await _status(world, wallet) == "frozen"
        options = ["--keypair", str(folder / "elsewhere.json"), "--out", str(signed), "--yes"]
        made = CliRunner().invoke(main, ["sign", str(unsigned), *options])
        assert made.exit_code == 0, made.output
        await page.get_by_label("Signed file").set_input_files(signed)
        await page.wait_for_function("document.getElementById('transaction').value.length > 100")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("The transaction was sent and is confirmed.").wait_for()
    assert await _status(world, wallet) != "frozen"
    assert log(world, "signed_transaction.send")[0].actor.type == "person"
    assert place.violations == []


@pytest.mark.proves("POST /dashboard/signatures")
async def test_wallet_in_the_browser_signs(place: Served, hardened: Hardened) -> None:
    world = place.world
    wallet = await _frozen(world, "Signed by wallet")
    async with place.visit("admin", viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        await _wallets(page, hardened.authority)
        await _unfreeze(place, page, wallet)
        await page.get_by_role("button", name="Sign with Test wallet").wait_for()
        await expect(page.get_by_text("There is no wallet for Solana in this browser.")).to_be_hidden()
        await expect(page.get_by_role("button", name="Sign with Unable")).to_have_count(0)
        assert await findings(page) == []
        assert await overflow(page) <= 0

        await page.get_by_role("button", name="Sign with Stranger").click()
        await page.get_by_text("Stranger does not offer the account").wait_for()
        await page.get_by_role("button", name="Sign with Meddler").click()
        await page.get_by_text("Meddler changed the transaction").wait_for()
        await page.get_by_role("button", name="Sign with Refuser").click()
        await page.get_by_text("The user said no.").wait_for()
        assert await _status(world, wallet) == "frozen"
        await page.get_by_role("button", name="Sign with Test wallet").click()
        await page.get_by_text("The transaction was sent and is confirmed.").wait_for()
    assert await _status(world, wallet) != "frozen"
    assert place.violations == []


async def _wallets(page: Page, authority: Keypair) -> None:
    """Put wallets of ours into a browser: one with the authority's key, and some that do not serve."""
    keys = {"seed": base64.b64encode(authority.secret()).decode(), "address": str(authority.pubkey())}
    await page.add_init_script(f"const KEYS = {json.dumps(keys)};\n{_WALLET}")


@pytest.mark.proves("POST /dashboard/signatures/{tx_id}/withdraw")
async def test_change_is_withdrawn_and_sending_waits_for_a_step_up(hardened: Hardened) -> None:
    world = hardened.world
    kept = await _frozen(world, "Kept frozen")
    asked = await hardened.asked("PATCH", f"/v1/wallets/{kept['wallet_id']}", {"status": "active"})
    admin = Crafted(world, sign_in(world, "admin"))
    csrf = await admin.csrf()
    forget_step_up(world)
    answer = await admin.post("/dashboard/signatures", {"transaction": hardened.signed(asked)}, csrf=csrf)
    assert answer.status_code == 403
    assert "Confirm that it is you" in answer.text
    answer = await admin.post(f"/dashboard/signatures/{asked['id']}/withdraw", csrf=csrf)
    assert answer.headers["location"].endswith("/signatures?done=signature-withdrawn")
    assert asked["id"] not in await hardened.awaiting_signature()
    assert log(world, "signed_transaction.withdraw")[0].actor.type == "person"
    fresh = Crafted(world, sign_in(world, "admin"))
    for typed in (hardened.signed(asked), "%%%", '{"other": 1}', "[" * 2_000):
        answer = await fresh.post("/dashboard/signatures", {"transaction": typed})
        assert answer.status_code in {400, 422}
        assert "notice bad" in answer.text or "says wrong" in answer.text
    assert (await fresh.client.get(f"/dashboard/signatures/{asked['id']}/file")).status_code == 404


async def test_rows_of_the_database_change_no_fact_and_offer_no_wallet(hardened: Hardened) -> None:
    # Given a transaction that pays a thief under the name of an unfreeze
    world, thief = hardened.world, Keypair().pubkey()
    wallet = await _frozen(world, "Named by a row")
    asked = await hardened.asked("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "active"})
    honest = parse(base64.b64decode(asked["transaction"]))
    build, authority = world.build, hardened.authority.pubkey()
    theft = build.withdraw_reserve(
        authority=authority, destination=thief, amount=None, reference=bytes(16), expected_sequence=0
    )
    steps = [advance(Pubkey.from_string(asked["nonce_account"]), authority), theft]
    forged = unsigned(steps, payer=honest.signers[0], blockhash=honest.blockhash)
    text = f"UPDATE attempts SET raw = x'{forged.hex()}' WHERE tx_id = '{asked['id']}'"
    await world.service.db.write(lambda conn: conn.exec_driver_sql(text))

    shown = (await Crafted(world, sign_in(world, "admin")).client.get("/dashboard/signatures")).text

    article = shown.partition(f'aria-labelledby="{asked["id"]}"')[2].partition("</article>")[0]
    facts, _, unproved_claims = article.partition("Claims of the service, not proved")
    assert "Withdraw from the reserve (withdraw_reserve)" in facts
    assert f"destination: {thief}, owner not proved" in facts
    assert "amount: everything" in facts
    assert "Named by a row" not in facts
    assert "Unfreeze wallet of" in unproved_claims
    assert "Named by a row" in unproved_claims
    assert base64.b64encode(forged).decode() not in shown
    await world.ok("DELETE", f"/v1/signed-transactions/{asked['id']}", {})


async def test_only_admins_see_and_send_signatures(hardened: Hardened) -> None:
    world = hardened.world
    wallet = await _frozen(world, "Frozen for good")
    asked = await hardened.asked("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "active"})
    signed = {"transaction": hardened.signed(asked)}
    viewer, operator = (Crafted(world, sign_in(world, role)) for role in ("viewer", "operator"))
    stranger = Crafted(world, sign_in(world, "admin", org=str(Keypair().pubkey())))
    for who, status in ((viewer, 403), (operator, 403), (stranger, 404)):
        for path in (f"/dashboard/signatures/{asked['id']}/withdraw", "/dashboard/signatures"):
            assert (await who.post(path, signed)).status_code == status
        assert (await who.client.get(f"/dashboard/signatures/{asked['id']}/file")).status_code == status
    assert "POST /dashboard/signatures" in {place for _, place in await refusals(world)}
    assert ">Signatures<" not in (await viewer.client.get("/dashboard")).text
    assert asked["id"] in await hardened.awaiting_signature()
    assert await _status(world, wallet) == "frozen"
