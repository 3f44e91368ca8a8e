"""The README's security table: what a credential is worth to a thief who has it and nothing else."""

import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.access.auth import decode_token
from app.chain.escrow_instructions import OpenEscrow
from app.chain.rules import Rules
from app.chain.transactions import sign
from app.core.identifiers import new_policy_key, new_reference
from app.core.signers import Signer
from app.server.application import operations
from app.store.escrows import escrow
from app.submission.plan import distinct
from tests.support.escrows import Agent, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Takes an idempotency key, but only reads.
_EXPORT = ("POST", "/v1/transactions/export")
_HASH = f"sha256:{'0' * 64}"


def _changes() -> set[tuple[str, str]]:
    """Method and path of every operation that changes something."""
    return {
        (method, route.path)
        for route in operations
        for method in (route.methods or set()) - {"HEAD"}
        if route.endpoint.__dict__["headers"].repeats
    }


async def _permitted(world: ServiceWorld, key: str, wallet: str) -> set[tuple[str, str]]:
    """The changes that this key's role does not rule out, whatever else they need; nothing is changed."""
    found = set()
    for method, path in _changes():
        # No operation takes this parameter, so that none that is permitted does anything.
        asked = re.sub(r"{\w+}", "unknown", path.replace("{wallet_id}", wallet)) + "?leaked=1"
        response = await world.call(method, asked, key=key)
        if response.status_code == 403:
            error_of(response, 403, "insufficient_permissions")
        else:
            error_of(response, 400, "invalid_request")
            found.add((method, path))
    return found


class _Thief:
    """Someone with keys and SOL of their own, who goes past the service."""

    def __init__(self, world: ServiceWorld) -> None:
        self.world, self.payer = world, Keypair()
        self.build = world.service.instructions(world.org)

    async def sends(self, instructions: Sequence[Instruction], *signers: Signer) -> str | None:
        """Send a transaction, and return the program's name of the error that it fails with."""
        world = self.world
        await world.localnet.airdrop(self.payer.pubkey(), 10**9)
        blockhash = await world.service.chain.blockhash(fresh=True)
        signed = sign(distinct(instructions), payer=self.payer, signers=signers, blockhash=blockhash.hash)
        await world.service.chain.send(signed.raw)
        status = await world.service.chain.confirm(signed.signature, timeout=5)
        assert status is not None
        if status.err is None:
            return None
        return world.service.codec.error_name(status.custom_error or 0) or str(status.err)

    async def pays(self, wallet: Json, key: Signer, amount: int, to: str) -> str | None:
        """Pay so many USDC directly from a vault, signed by a key."""
        found = self.world.wallet_record(wallet["wallet_id"])
        payment = self.build.execute_payment(
            signer=key.pubkey(),
            policy=Pubkey.from_string(found.policy.address),
            vault=Pubkey.from_string(found.vault),
            destination=self.world.service.addresses.token_account(Pubkey.from_string(to)),
            amount=amount * 10**6,
            reference=new_reference(),
        )
        return await self.sends([payment], key)

    def as_operator(self, wallet: Json, key: Signer) -> list[Instruction]:
        """What only the operator may do to a vault, tried with another key."""
        found, me = self.world.wallet_record(wallet["wallet_id"]), key.pubkey()
        vault, policy = Pubkey.from_string(found.vault), Pubkey.from_string(found.policy.address)
        return [
            self.build.update_wallet(operator=me, vault=vault, session=(self.payer.pubkey(), 2**40)),
            self.build.freeze_wallet(signer=me, vault=vault, policy=policy, action="Freeze"),
            self.build.withdraw(operator=me, vault=vault, amount=None, reference=new_reference()),
        ]

    async def as_authority(self, key: Signer) -> list[Instruction]:
        """What only the authority may do to an organisation, tried with another key."""
        me, to = key.pubkey(), Pubkey.from_string(await self.world.payee())
        destination = self.world.service.addresses.token_account(to)
        return [
            self.build.withdraw_reserve(authority=me, destination=destination, amount=None, reference=new_reference()),
            self.build.create_policy(payer=self.payer.pubkey(), authority=me, key=new_policy_key(), rules=Rules()),
            self.build.update_org(signer=me, operator_daily_limit=2**63),
            self.build.update_org(signer=me, operator=self.payer.pubkey()),
        ]


async def _reserve(world: ServiceWorld) -> int:
    return await world.service.chain.token_balance(world.service.instructions(world.org).reserve_tokens) or 0


async def test_session_token_is_worth_the_caps_until_it_ends(world: ServiceWorld) -> None:
    # Given the session token of a vault with 100 USDC, and no API key
    policy = await world.policy(maxPerTx="5", maxPerDay="9", requireCoSign="4.5")
    one, to, thief = await agent(world, policy["policy_id"]), await world.payee(), _Thief(world)
    key = decode_token(one.session)

    # Then it pays within the caps and below the co-sign threshold, and does nothing else
    assert await thief.pays(one.wallet, key, 6, to) == "MaxPerTxExceeded"
    assert await thief.pays(one.wallet, key, 5, to) == "CoSignRequired"
    assert [await thief.pays(one.wallet, key, 4, to) for _ in range(3)] == [None, None, "MaxPerDayExceeded"]
    refused = [await thief.sends([step], key) for step in thief.as_operator(one.wallet, key)]
    refused += [await thief.sends([step], key) for step in await thief.as_authority(key)]
    assert set(refused) == {"Unauthorized"}
    headers = {"Authorization": f"Bearer {one.session}", "Session-Token": one.session}
    rotation = await world.client.post(f"/v1/wallets/{one.id}/rotate-token", headers=headers)
    error_of(rotation, 401, "authentication_failed")

    # When an operator rotates it, it pays nothing any more
    await world.session(one.wallet)
    assert await thief.pays(one.wallet, key, 1, to) == "Unauthorized"
    assert await world.balance(to) == 8_000_000


async def test_api_key_of_an_agent_is_worth_reads_of_its_vault(world: ServiceWorld) -> None:
    # Given the API key of an agent whose vault has money, a session and an escrow
    one, other, to = await agent(world), await agent(world), await world.payee()
    locked = await one.lock(other)
    accounts = world.vault_accounts(one.wallet)
    before = await world.accounts(*accounts)

    # Then its role leaves these changes
    left = await _permitted(world, one.key, one.id)
    payment = {"to": to, "amount": "1", "currency": "USDC"}
    proof, path = {"proofType": "output_hash", "proof": _HASH}, f"/v1/payments/a2a/{locked['escrow_id']}"
    terms = {"fromWallet": one.id, "toWallet": other.id, "taskDescription": "Work", "amount": "1", "currency": "USDC"}
    bodies: dict[tuple[str, str], tuple[str, Json]] = {
        ("POST", "/v1/payments"): ("/v1/payments", {"walletId": one.id, **payment}),
        ("POST", "/v1/wallets/{wallet_id}/pay"): (f"/v1/wallets/{one.id}/pay", payment),
        ("POST", "/v1/wallets/{wallet_id}/rotate-token"): (f"/v1/wallets/{one.id}/rotate-token", {}),
        ("POST", "/v1/payments/a2a"): ("/v1/payments/a2a", terms),
        ("POST", "/v1/payments/a2a/{escrow_id}/complete"): (f"{path}/complete", proof),
        ("POST", "/v1/payments/a2a/{escrow_id}/dispute"): (f"{path}/dispute", {"reason": "Late"}),
    }
    assert left == {*bodies, _EXPORT}

    # And each of them needs the session token
    for place, body in bodies.values():
        error_of(await world.call("POST", place, body, key=one.key), 401, "session_token_invalid")
        guessed = await world.call("POST", place, body, key=one.key, headers={"Session-Token": other.session})
        error_of(guessed, 401, "session_token_invalid")
    assert await world.accounts(*accounts) == before

    # And it reads its own vault, not another
    await world.ok("GET", f"/v1/wallets/{one.id}", key=one.key)
    error_of(await world.call("GET", f"/v1/wallets/{other.id}", key=one.key), 403, "insufficient_permissions")


async def test_api_key_and_session_token_together_end_with_the_grant(own_world: ServiceWorld) -> None:
    # Given both credentials of an agent, whose session an operator granted for ten minutes
    world = own_world
    wallet, to = await world.wallet(), await world.payee()
    path = f"/v1/wallets/{wallet['wallet_id']}/rotate-token"
    granted = await world.ok("POST", path, {"ttlSeconds": 600}, key=world.key("operator"))
    one = Agent(world, wallet, world.key("agent", wallet["wallet_id"]), granted["session_token"])

    # When the thief rotates as often and as long as possible
    for _ in range(3):
        answer = await one.ok("POST", path, {"ttlSeconds": 2_592_000})
        one.session = answer["session_token"]

    # Then the session ends when the operator said, on the chain as well
    assert answer["expires_at"] == granted["expires_at"]
    assert await _Thief(world).pays(wallet, decode_token(one.session), 1, to) is None
    world.clock.ahead += 601
    assert await _Thief(world).pays(wallet, decode_token(one.session), 1, to) == "SessionExpired"


async def test_api_key_of_a_viewer_changes_nothing_and_reads_no_secret(world: ServiceWorld) -> None:
    key, one = world.key("viewer"), await agent(world)
    await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/hook", "events": ["*"]})

    assert await _permitted(world, key, one.id) == {_EXPORT}

    for route in operations:
        if "GET" in (route.methods or ()) and "{" not in route.path:
            text = (await world.call("GET", route.path, key=key)).text
            assert not re.search(r"avs_|avk_|whsec_", text), route.path
    error_of(await world.call("GET", "/v1/keys", key=key), 403, "insufficient_permissions")


async def test_api_key_of_an_operator_is_worth_what_the_operator_may(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path, operator_daily_limit="10.00") as world:
        key, wallet, reserve = world.key("operator"), await world.wallet(funds=None), await _reserve(world)
        path = f"/v1/wallets/{wallet['wallet_id']}"

        # It writes no policies, makes no keys and decides no disputes
        left = await _permitted(world, key, wallet["wallet_id"])
        for method, place in _changes() - left:
            assert re.match(r"/v1/(policies|keys)|/v1/payments/a2a/{escrow_id}/resolve", place), (method, place)
        assert not any(re.match("/v1/(policies|keys)", place) for _, place in left)

        # It moves no more out of the reserve than the limit of a day, and lifts no freeze
        await world.ok("POST", f"{path}/fund", {"amount": "10"}, key=key)
        error_of(await world.call("POST", f"{path}/fund", {"amount": "0.01"}, key=key), 422, "operator_limit_exceeded")
        assert await _reserve(world) == reserve - 10_000_000
        await world.ok("PATCH", path, {"status": "frozen"}, key=key)
        unfrozen = await world.call("PATCH", path, {"status": "active"}, key=key)
        error_of(unfrozen, 403, "insufficient_permissions")


async def test_api_key_of_an_admin_needs_the_authoritys_key_here(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        one, other = await agent(world), await agent(world)
        locked, policy = await one.lock(other), await world.policy()
        await one.ok("POST", f"/v1/payments/a2a/{locked['escrow_id']}/dispute", {"reason": "Late"})
        await world.ok("PATCH", f"/v1/wallets/{one.id}", {"status": "frozen"})
        for name in ("authority", "arbiter"):
            (tmp_path / "keys" / f"{name}.json").unlink()
        await world.restart()

        requests: list[tuple[str, str, Any]] = [
            ("POST", "/v1/policies", {"name": "Wide"}),
            ("PATCH", f"/v1/policies/{policy['policy_id']}", {"maxPerTx": "9"}),
            ("PATCH", f"/v1/wallets/{one.id}", {"status": "active"}),
            ("POST", f"/v1/payments/a2a/{locked['escrow_id']}/resolve", {"decision": "release"}),
        ]
        for method, path, body in requests:
            error_of(await world.call(method, path, body), 503, "authority_offline")


async def test_operator_key_moves_the_reserve_nowhere_and_writes_no_policy(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path, operator_daily_limit="10.00") as world:
        wallet, thief, operator = await world.wallet(funds=None), _Thief(world), world.service.signers.operator
        found, reserve = world.wallet_record(wallet["wallet_id"]), await _reserve(world)

        refused = [await thief.sends([step], operator) for step in await thief.as_authority(operator)]
        assert set(refused) == {"Unauthorized"}
        funding = [
            thief.build.fund_wallet(
                operator=operator.pubkey(),
                vault=Pubkey.from_string(found.vault),
                amount=amount,
                reference=new_reference(),
            )
            for amount in (10_000_001, 10_000_000, 1)
        ]
        assert [await thief.sends([one], operator) for one in funding] == [
            "OperatorLimitExceeded",
            None,
            "OperatorLimitExceeded",
        ]
        assert await _reserve(world) == reserve - 10_000_000


@pytest.mark.parametrize("role", ["fee_payer", "arbiter"])
async def test_fee_payer_and_arbiter_are_nobody_elsewhere(world: ServiceWorld, role: str) -> None:
    one, other, to, thief = await agent(world), await agent(world), await world.payee(), _Thief(world)
    locked = await one.lock(other)
    key = getattr(world.service.signers, role)
    before = await world.accounts(*world.vault_accounts(one.wallet))

    steps = [*thief.as_operator(one.wallet, key), *await thief.as_authority(key)]
    assert {await thief.sends([step], key) for step in steps} == {"Unauthorized"}
    assert await thief.pays(one.wallet, key, 1, to) == "Unauthorized"

    # An escrow that nobody disputes is decided by nobody, and a disputed one only by its arbiter.
    found = world.service.db.read_now(lambda conn: escrow(conn, world.org, locked["escrow_id"]))
    assert found is not None
    accounts = OpenEscrow(*map(Pubkey.from_string, (found.address, found.vault, found.receiver, found.payer)))
    decision = thief.build.resolve_dispute(accounts, payer=thief.payer.pubkey(), arbiter=key.pubkey(), released=0)
    assert await thief.sends([decision], key) == ("EscrowNotDisputed" if role == "arbiter" else "Unauthorized")
    assert await world.accounts(*world.vault_accounts(one.wallet)) == before
    await one.ok("POST", f"/v1/payments/a2a/{locked['escrow_id']}/dispute", {"reason": "Late"})
    assert await thief.sends([decision], key) == (None if role == "arbiter" else "Unauthorized")


async def test_database_alone_holds_no_credential(world: ServiceWorld) -> None:
    one = await agent(world)
    headers = {"Idempotency-Key": f"secrets {one.id}"}
    key = (await world.ok("POST", "/v1/keys", {"role": "admin"}, headers=headers))["key"]
    path = f"/v1/wallets/{one.id}/rotate-token"
    token = (await world.ok("POST", path, {}, headers={"Idempotency-Key": f"token {one.id}"}))["session_token"]
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/hook", "events": ["*"]})

    folder = world.settings.data_dir
    stored = b"".join(file.read_bytes() for file in folder.rglob("*.db*"))
    for secret in (key, one.key, token, one.session, hook["signing_secret"]):
        assert secret.encode() not in stored
    for session in (token, one.session):
        assert bytes(decode_token(session).secret()) not in stored
    for file in (folder / "keys").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
