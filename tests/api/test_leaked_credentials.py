"""Plays the thief of each credential in the guide "Leaked keys", who has nothing else."""

import base64
import hmac
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.sysvar import CLOCK, RENT
from sqlalchemy import select, update

from app.access.auth import decode_token
from app.access.keyring import KeyRing
from app.chain.escrow_instructions import PROOF_KINDS, OpenEscrow, attestation
from app.chain.rules import Rules
from app.chain.transactions import sign
from app.core.identifiers import new_key, new_reference
from app.core.paths import program_file
from app.core.signers import Signer
from app.server.application import operations
from app.store.attempts import table as attempts
from app.store.escrows import escrow
from app.store.idempotency import table as idempotency
from app.store.keys import table as api_keys
from app.store.webhooks import table as webhooks
from app.submission.plan import with_random_compute_limit
from tests.support.escrows import Agent, agent
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Takes an idempotency key, but only reads.
_EXPORT = ("POST", "/v1/transactions/export")
_HASH = f"sha256:{'0' * 64}"
_UPGRADEABLE_LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
_UPGRADE = bytes([3, 0, 0, 0])


def _changes() -> set[tuple[str, str]]:
    """Method and path of every operation that changes something."""
    return {
        (method, route.path)
        for route in operations
        for method in (route.methods or set()) - {"HEAD"}
        if route.endpoint.__dict__["declared"].repeats
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
        self.build = world.build

    async def sends(self, instructions: Sequence[Instruction], *signers: Signer) -> str | None:
        """Send a transaction, and return the program's name of the error that it fails with."""
        world = self.world
        await world.localnet.airdrop(self.payer.pubkey(), 10**9)
        blockhash = await world.service.chain.blockhash(fresh=True)
        signed = sign(
            with_random_compute_limit(instructions), payer=self.payer, signers=signers, blockhash=blockhash.hash
        )
        await world.service.chain.send(signed.raw)
        status = await world.service.chain.confirm(signed.signature, timeout=5)
        assert status is not None
        if status.err is None:
            return None
        return world.service.codec.error_name(status.custom_error or 0) or str(status.err)

    async def pays(
        self, wallet: Json, key: Signer, amount: int, to: str, *, co_signer: Signer | None = None
    ) -> str | None:
        """Pay so many USDC directly from a vault, signed by a key."""
        found = self.world.wallet_record(wallet["wallet_id"])
        payment = self.build.execute_payment(
            signer=key.pubkey(),
            policy=Pubkey.from_string(found.policy.address),
            vault=Pubkey.from_string(found.vault),
            destination=self.world.service.addresses.token_account(Pubkey.from_string(to)),
            amount=amount * 10**6,
            reference=new_reference(),
            co_signer=co_signer.pubkey() if co_signer else None,
        )
        return await self.sends([payment], key, *([co_signer] if co_signer else []))

    async def decides(self, escrow: OpenEscrow, arbiter: Signer) -> str | None:
        """Refund a disputed escrow."""
        decision = self.build.resolve_dispute(escrow, payer=self.payer.pubkey(), arbiter=arbiter.pubkey(), released=0)
        return await self.sends([decision], arbiter)

    async def proves(self, escrow: OpenEscrow, task_hash: str, verifier: Signer) -> str | None:
        """Complete an escrow as its verifier."""
        kind, output = PROOF_KINDS.index("webhook_callback"), bytes(32)
        task = bytes.fromhex(task_hash.removeprefix("sha256:"))
        message = self.build.attested_message(
            self.world.service.identity.genesis_bytes, escrow.address, kind, task, output
        )
        proof = attestation(verifier.pubkey(), bytes(verifier.sign_message(message)), message)
        completion = self.build.complete_escrow(escrow, payer=self.payer.pubkey(), kind=kind, output_hash=output)
        return await self.sends([proof, completion])

    async def upgrades(self, key: Signer) -> str | None:
        """Replace the program as its upgrade authority would, by the upgradeable loader."""
        program, thief = self.world.service.codec.program_id, self.payer.pubkey()
        data, _ = Pubkey.find_program_address([bytes(program)], _UPGRADEABLE_LOADER)
        accounts = [
            *(
                AccountMeta(one, is_signer=False, is_writable=True)
                for one in (data, program, Keypair().pubkey(), thief)
            ),
            *(AccountMeta(one, is_signer=False, is_writable=False) for one in (RENT, CLOCK)),
            AccountMeta(key.pubkey(), is_signer=True, is_writable=False),
        ]
        return await self.sends([Instruction(_UPGRADEABLE_LOADER, _UPGRADE, accounts)], key)

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
            self.build.withdraw_reserve(
                authority=me,
                destination=destination,
                amount=None,
                reference=new_reference(),
                expected_sequence=(await self.world.fields(self.world.org))["authority_sequence"],
            ),
            self.build.create_policy(payer=self.payer.pubkey(), authority=me, key=new_key(), rules=Rules()),
            await self.world.org_update(me, operator_daily_limit=2**63),
            await self.world.org_update(me, operator=self.payer.pubkey()),
        ]


def _open_escrow(world: ServiceWorld, escrow_id: str) -> OpenEscrow:
    found = world.service.db.read_now(lambda conn: escrow(conn, world.org, escrow_id))
    assert found is not None
    return OpenEscrow(*map(Pubkey.from_string, (found.address, found.vault, found.receiver, found.payer)))


async def _reserve(world: ServiceWorld) -> int:
    return await world.service.chain.token_balance(world.build.reserve_tokens) or 0


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
    allowances = f"/v1/wallets/{one.id}/allowances"
    paid = {"walletId": one.id, "url": "http://127.0.0.1:9/", "maxAmount": "1"}
    bodies: dict[tuple[str, str], tuple[str, Json]] = {
        ("POST", "/v1/payments"): ("/v1/payments", {"walletId": one.id, **payment}),
        ("POST", "/v1/wallets/{wallet_id}/pay"): (f"/v1/wallets/{one.id}/pay", payment),
        ("POST", "/v1/wallets/{wallet_id}/rotate-token"): (f"/v1/wallets/{one.id}/rotate-token", {}),
        ("POST", "/v1/x402/fetch"): ("/v1/x402/fetch", paid),
        ("POST", "/v1/x402/payments"): ("/v1/x402/payments", {**paid, "paymentRequired": {}}),
        ("POST", "/v1/paid-requests/fetch"): ("/v1/paid-requests/fetch", paid),
        ("POST", "/v1/paid-requests/payments"): ("/v1/paid-requests/payments", {**paid, "paymentRequired": {}}),
        ("POST", "/v1/payments/a2a"): ("/v1/payments/a2a", terms),
        ("POST", "/v1/payments/a2a/{escrow_id}/complete"): (f"{path}/complete", proof),
        ("POST", "/v1/payments/a2a/{escrow_id}/dispute"): (f"{path}/dispute", {"reason": "Late"}),
        ("POST", "/v1/payments/a2a/{escrow_id}/dispute/withdraw"): (f"{path}/dispute/withdraw", {}),
        ("POST", "/v1/wallets/{wallet_id}/allowances/{allowance_id}/settle"): (f"{allowances}/alw_none/settle", {}),
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


async def test_answer_of_a_rotation_needs_its_api_key_and_its_idempotency_key(world: ServiceWorld) -> None:
    one, other, name = await agent(world), await agent(world), {"Idempotency-Key": "9fd6a1c04b"}
    path = f"/v1/wallets/{one.id}/rotate-token"
    first = await one.ok("POST", path, {}, headers=name)

    # With both, a thief gets the answer without a token; with one of them, nothing
    assert await world.ok("POST", path, {}, key=one.key, headers=name) == first
    guessed = await world.call("POST", path, {}, key=one.key, headers={"Idempotency-Key": "guessed"})
    error_of(guessed, 401, "session_token_invalid")
    error_of(await world.call("POST", path, {}, key=other.key, headers=name), 403, "insufficient_permissions")
    second = world.key("agent", one.id)
    refused = await world.call("POST", path, {}, key=second, headers=name)
    assert refused.status_code in {401, 409}, refused.text
    assert first["session_token"] not in refused.text


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

        # It writes no policies, makes no keys, removes no people, changes no settings or clock, and decides no disputes
        left = await _permitted(world, key, wallet["wallet_id"])
        config = "/v1/(policies|budgets|keys|people|signed-transactions|organization(/key-restrictions)?$)"
        for method, place in _changes() - left:
            assert re.match(f"{config}|/v1/payments/a2a/{{escrow_id}}/resolve|/v1/test/clock", place), (method, place)
        # Of a budget, it changes only the status, to frozen.
        assert [place for place in left if re.match(config, place[1])] == [("PATCH", "/v1/budgets/{budget_id}")]

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


async def test_api_key_of_an_admin_is_worth_the_reserve_with_the_authority(tmp_path: Path) -> None:
    async with ServiceWorld(tmp_path) as world:
        # Given a frozen vault, and an admin's key alone
        frozen, to = await world.wallet(), await world.payee()
        await world.ok("PATCH", f"/v1/wallets/{frozen['wallet_id']}", {"status": "frozen"}, key=world.key("operator"))

        # Then it makes a policy without rules, and pays the reserve out through a vault of its own
        policy = await world.policy()
        mine = await world.wallet(policy["policy_id"], funds=None)
        reserve = await _reserve(world)
        amount = f"{reserve // 10**6}"
        await world.ok("POST", f"/v1/wallets/{mine['wallet_id']}/fund", {"amount": amount})
        assert (await world.pay(mine, to, amount)).status_code == 200
        await world.ok("PATCH", f"/v1/wallets/{frozen['wallet_id']}", {"status": "active"})
        assert (await world.pay(frozen, to, "100")).status_code == 200
        assert (await world.balance(to), await _reserve(world)) == (reserve + 100_000_000, 0)


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


async def test_operator_key_is_worth_the_vaults_and_its_sessions_outlive_it(own_world: ServiceWorld) -> None:
    # Given the operator's key, and a vault whose policy asks for a co-signature above 1 USDC
    world = own_world
    policy = await world.policy(requireCoSign="1")
    wallet, to, thief = await world.wallet(policy["policy_id"]), await world.payee(), _Thief(world)
    operator, session, vault = world.service.signers.operator, Keypair(), Pubkey.from_string(wallet["chain_address"])

    # Then the thief makes itself the session authority, and co-signs its own payments
    named = thief.build.update_wallet(operator=operator.pubkey(), vault=vault, session=(session.pubkey(), 2**40))
    assert await thief.sends([named], operator) is None
    assert await thief.pays(wallet, session, 40, to) == "CoSignRequired"
    assert await thief.pays(wallet, session, 40, to, co_signer=operator) is None

    # When the authority replaces the operator
    authority, successor = world.service.signers.require_authority(), Keypair()
    replaced = await world.org_update(authority.pubkey(), operator=successor.pubkey())
    assert await thief.sends([replaced], authority) is None

    # Then the old key does nothing, but the session that it named pays until it is rotated
    refused = [await thief.sends([step], operator) for step in thief.as_operator(wallet, operator)]
    assert set(refused) == {"Unauthorized"}
    assert await thief.pays(wallet, session, 40, to, co_signer=operator) == "Unauthorized"
    assert await thief.pays(wallet, session, 1, to) is None
    fresh = thief.build.update_wallet(operator=successor.pubkey(), vault=vault, session=(Keypair().pubkey(), 2**40))
    assert await thief.sends([fresh], successor) is None
    assert await thief.pays(wallet, session, 1, to) == "Unauthorized"
    assert await world.balance(to) == 41_000_000


async def test_authority_key_is_worth_everything_in_the_organisation(own_world: ServiceWorld) -> None:
    # Given the authority's key, a reserve, and a frozen vault with money
    world = own_world
    wallet, to, thief = await world.wallet(), await world.payee(), _Thief(world)
    everything = await _reserve(world) + 100_000_000
    await world.ok("PATCH", f"/v1/wallets/{wallet['wallet_id']}", {"status": "frozen"})
    authority, vault = world.service.signers.require_authority(), Pubkey.from_string(wallet["chain_address"])
    me, tokens = authority.pubkey(), world.service.addresses.token_account(Pubkey.from_string(to))

    # Then the thief becomes the operator, empties vault and reserve, and leaves the old operator nothing to do
    takes_office = await world.org_update(me, operator=me, operator_daily_limit=2**63)
    takeover = [
        takes_office,
        thief.build.withdraw(operator=me, vault=vault, amount=None, reference=new_reference()),
        thief.build.withdraw_reserve(
            authority=me,
            destination=tokens,
            amount=None,
            reference=new_reference(),
            expected_sequence=(await world.fields(world.org))["authority_sequence"] + 1,
        ),
    ]
    assert [await thief.sends([step], authority) for step in takeover] == [None, None, None]
    assert (await world.balance(to), await _reserve(world)) == (everything, 0)
    operator = world.service.signers.operator
    assert {await thief.sends([step], operator) for step in thief.as_operator(wallet, operator)} == {"Unauthorized"}


async def test_fee_payer_key_is_worth_its_sol(own_world: ServiceWorld) -> None:
    world = own_world
    wallet, to, thief, key = await world.wallet(), await world.payee(), _Thief(world), world.service.signers.fee_payer
    account = await world.service.chain.account(key.pubkey())
    assert account is not None
    before = await world.accounts(*world.vault_accounts(wallet))

    taken = TransferParams(from_pubkey=key.pubkey(), to_pubkey=thief.payer.pubkey(), lamports=account.lamports)
    assert await thief.sends([transfer(taken)], key) is None

    # Then the service pays for nothing until somebody sends it SOL, and all money is where it was
    error_of(await world.pay(wallet, to, "1"), 503, "fee_payer_insufficient")
    assert await world.accounts(*world.vault_accounts(wallet)) == before
    await world.localnet.airdrop(key.pubkey(), account.lamports)
    assert (await world.pay(wallet, to, "1")).status_code == 200


async def test_verifier_and_arbiter_are_worth_the_escrows_that_name_them(own_world: ServiceWorld) -> None:
    # Given an escrow made under a verifier and arbiter, and one made after both were replaced
    world = own_world
    paying, receiving, thief = await agent(world), await agent(world, funds=None), _Thief(world)
    old = world.service.signers.require_arbiter()
    first, disputed = await paying.lock(receiving), await paying.lock(receiving)
    authority, successor = world.service.signers.require_authority(), Keypair().pubkey()
    roles = await world.org_update(authority.pubkey(), arbiter=successor, verifier=successor)
    assert await thief.sends([roles], authority) is None
    later = await paying.lock(receiving)
    for one in (disputed, later):
        await paying.ok("POST", f"/v1/payments/a2a/{one['escrow_id']}/dispute", {"reason": "Late"})
    fresh = await paying.lock(receiving)

    # Then the keys prove and decide the first ones only, and only for their two sides
    assert await thief.proves(_open_escrow(world, fresh["escrow_id"]), fresh["task_hash"], old) == "InvalidProof"
    assert await thief.decides(_open_escrow(world, later["escrow_id"]), old) == "Unauthorized"
    assert await thief.proves(_open_escrow(world, first["escrow_id"]), first["task_hash"], old) is None
    assert await thief.decides(_open_escrow(world, disputed["escrow_id"]), old) is None
    await world.catch_up()
    assert (await paying.balance(), await receiving.balance()) == ("70.00", "10.00")


async def test_nobody_upgrades_the_program_of_the_embedded_chain(world: ServiceWorld) -> None:
    # Given every key that there is
    thief, signers = _Thief(world), world.service.signers
    keys = [signers.require_authority(), signers.operator, signers.fee_payer, signers.require_arbiter()]

    refused = [await thief.upgrades(key) for key in [*keys, world.localnet.faucet, thief.payer]]

    # Then none replaces it: it has a loader without upgrades, and is the committed file
    assert None not in refused
    program = await world.service.chain.account(world.service.codec.program_id)
    assert program is not None
    assert str(program.owner).startswith("BPFLoader2")
    assert program.data == program_file().read_bytes()


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
    accounts = _open_escrow(world, locked["escrow_id"])
    assert await thief.decides(accounts, key) == ("EscrowNotDisputed" if role == "arbiter" else "Unauthorized")
    assert await world.accounts(*world.vault_accounts(one.wallet)) == before
    await one.ok("POST", f"/v1/payments/a2a/{locked['escrow_id']}/dispute", {"reason": "Late"})
    assert await thief.decides(accounts, key) == (None if role == "arbiter" else "Unauthorized")


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


async def _with_secrets(world: ServiceWorld) -> list[tuple[str, str, Json]]:
    """Requests, each under an idempotency key, whose answers hold secrets."""
    one = await agent(world)
    kept = await world.ok("POST", "/v1/keys", {"role": "viewer"})
    hook = {"url": "https://example.com/hook", "events": ["*"]}
    made = await world.ok("POST", "/v1/webhooks", hook)
    return [
        ("POST", "/v1/keys", {"role": "admin"}),
        ("POST", f"/v1/keys/{kept['key_id']}/rotate", {"overlapSeconds": 3600}),
        ("POST", f"/v1/wallets/{one.id}/rotate-token", {}),
        ("POST", "/v1/webhooks", hook),
        ("POST", f"/v1/webhooks/{made['webhook_id']}/rotate-secret", {}),
    ]


def _dump(world: ServiceWorld) -> list[tuple[object, ...]]:
    """Keys, webhooks and transactions that the service has stored."""
    queries = (
        select(api_keys.c.key_id, api_keys.c.digest, api_keys.c.revoked_at).where(api_keys.c.name != "thief"),
        select(webhooks.c.webhook_id, webhooks.c.secret),
        select(attempts.c.tx_id),
    )
    return world.service.db.read_now(lambda conn: [tuple(row) for query in queries for row in conn.execute(query)])


@pytest.mark.proves("Idempotency: Answers with secrets")
async def test_whole_disk_opens_no_stored_answer(own_world: ServiceWorld) -> None:
    # Given answers with secrets, stored under an admin's key
    world = own_world
    requests = await _with_secrets(world)
    answers = [
        await world.ok(*request, headers={"Idempotency-Key": f"secret {number}"})
        for number, request in enumerate(requests)
    ]
    before = _dump(world)

    # When a thief who has the whole disk makes a key of their own, and asks for the answers again
    ring, folder = world.service.part(KeyRing), world.settings.data_dir
    mine = ring.create(org=world.org, role="admin", wallet_id=None, name="thief", live=False)

    async def asks() -> None:
        for number, request in enumerate(requests):
            refused = await world.call(*request, key=mine, headers={"Idempotency-Key": f"secret {number}"})
            assert "nother API key" in error_of(refused, 409, "idempotency_conflict")["message"]
        assert _dump(world) == before

    # Then the service refuses, also when the records are changed to name the thief's key
    await asks()
    sealed = idempotency.c.sealed_for.is_not(None)
    owners = update(idempotency).where(sealed)
    await world.service.db.write(lambda conn: conn.execute(owners.values(sealed_for=ring.digest(mine))) and None)
    await asks()

    # Then nothing that is on the disk opens them
    secret = bytes.fromhex((folder / "keys" / "service-secret").read_text())
    with_secrets = select(idempotency.c.key, idempotency.c.org, idempotency.c.response).where(sealed)
    stored = world.service.db.read_now(lambda conn: conn.execute(with_secrets).all())
    digests = world.service.db.read_now(lambda conn: conn.execute(select(api_keys.c.digest)).scalars().all())
    derived = [hmac.digest(secret, purpose, "sha256") for purpose in (b"", b"secret answers", b"api keys")]
    texts = [secret, secret.hex().encode(), *derived, *(one.encode() for one in digests), *map(bytes.fromhex, digests)]
    assert len(stored) == len(requests)
    for key, org, response in stored:
        for text in texts:
            info = b"agent-vault secret answer\0" + f"{org} {key}".encode()
            expanded = HKDFExpand(SHA256(), 32, info).derive(text)
            for tried in (text[:32].ljust(32, b"\0"), expanded):
                with pytest.raises(InvalidToken):
                    Fernet(base64.urlsafe_b64encode(tried)).decrypt(response.encode())

    # Then the key that asked gets them still
    restored = owners.values(sealed_for=ring.digest(world.keys["admin"]))
    await world.service.db.write(lambda conn: conn.execute(restored) and None)
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        assert await world.ok(*request, headers={"Idempotency-Key": f"secret {number}"}) == answer


async def test_whole_disk_gives_webhook_secrets_but_no_session_or_api_key(own_world: ServiceWorld) -> None:
    world = own_world
    one = await agent(world)
    hook = await world.ok("POST", "/v1/webhooks", {"url": "https://example.com/hook", "events": ["*"]})

    folder = world.settings.data_dir
    stored = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    for credential in (world.keys["admin"], one.key, one.session):
        assert credential.encode() not in stored
    assert bytes(decode_token(one.session).secret()) not in stored

    # The service signs with a webhook's secret, so what is on the disk opens it.
    secret = bytes.fromhex((folder / "keys" / "service-secret").read_text())
    cipher = Fernet(base64.urlsafe_b64encode(hmac.digest(secret, b"webhook secrets", "sha256")))
    encrypted = world.service.db.read_now(lambda conn: conn.execute(select(webhooks.c.secret)).scalar_one())
    assert cipher.decrypt(encrypted.encode()).decode() == hook["signing_secret"]
