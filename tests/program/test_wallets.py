"""Creating, changing and archiving vaults."""

from functools import partial

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM, agent_hash
from app.chain.instructions import Instructions
from app.chain.rules import Rules
from app.core.identifiers import PRESET_POLICY_IDS
from idl.codec import Event
from tests.support.vm import CODEC
from tests.support.vm_tokens import USDC, place_token_account, token_account_data
from tests.support.vm_world import GENESIS_HASH, NONE, OPEN, SESSION_ENDS, VmWorld

MANUAL = 1


def closing(world: VmWorld, vault: Pubkey, *, receiver: Pubkey | None = None) -> Instruction:
    """Return the instruction that archives a vault."""
    return world.build.close_wallet(
        operator=world.operator,
        vault=vault,
        policy=world.fields(vault)["policy"],
        rent_receiver=receiver or world.payer,
    )


def withdrawal(world: VmWorld, vault: Pubkey, amount: int | None = None) -> Instruction:
    """Return the instruction that moves money from a vault to the reserve."""
    return world.build.withdraw(operator=world.operator, vault=vault, amount=amount, reference=bytes(16))


@pytest.mark.proves("instruction create_wallet")
@pytest.mark.parametrize("with_session", [True, False])
def test_new_vault_is_empty_and_reported(world: VmWorld, with_session: bool) -> None:
    policy, vault = world.policy(), world.addresses.vault(world.org, "a")
    session = (world.session, SESSION_ENDS) if with_session else (NONE, 0)
    result = world.vm.succeed(world.wallet_creation("a", policy, session if with_session else None))
    fields = world.fields(vault)
    ledger = fields.pop("ledger")
    expected = {"org": world.org, "policy": policy, "sequence": 1, "agent_hash": agent_hash("a")}
    expected |= {"session_authority": session[0], "session_expires_at": session[1]}
    rest = {"tokens": world.tokens_of(vault), "payer": world.payer, "escrow_counter": 0, "open_escrows": 0}
    rest |= {
        "allowance_counter": 0,
        "open_allowances": 0,
        "frozen": 0,
        "frozen_sequence": 0,
        "bump": fields["bump"],
        "budget": NONE,
        "attachments": 0,
        "sessions": int(with_session),
        "approvals": 0,
    }
    assert fields == {**expected, **rest, "layout": 1}
    assert (ledger["last"], ledger["month_spent"], ledger["day"]["total"], ledger["hour"]["total"]) == (0, 0, 0, 0)
    tokens = world.tokens_of(vault)
    assert world.vm.data(tokens) == token_account_data(world.mint, vault)
    assert result.event == Event("WalletCreated", {**expected, "vault": vault, "vault_tokens": tokens})
    assert world.fields(policy)["wallet_count"] == 1


@pytest.mark.proves("instruction create_wallet")
def test_agent_has_one_vault(world: VmWorld) -> None:
    create = world.wallet_creation("a", world.policy())
    world.vm.succeed(create)
    world.vm.refuse("System:0", create)


@pytest.mark.parametrize("role", ["authority", "arbiter", "verifier", "session", "stranger"])
def test_only_the_operator_manages_vaults(world: VmWorld, role: str) -> None:
    signer, vault = getattr(world, role), world.wallet(funds=0)
    policy = world.fields(vault)["policy"]
    refuse, build = world.vm.refuse, world.build
    refuse("Unauthorized", build.create_wallet(payer=world.payer, operator=signer, agent_id="b", policy=policy))
    refuse("Unauthorized", build.update_wallet(operator=signer, vault=vault, session=(signer, SESSION_ENDS)))
    refuse("Unauthorized", build.close_wallet(operator=signer, vault=vault, policy=policy, rent_receiver=world.payer))
    refuse("Unauthorized", build.fund_wallet(operator=signer, vault=vault, amount=1, reference=bytes(16)))
    refuse("Unauthorized", build.withdraw(operator=signer, vault=vault, amount=1, reference=bytes(16)))


@pytest.mark.proves("instruction update_wallet")
def test_update_can_change_only_the_session_authority(world: VmWorld) -> None:
    vault, payee, next_session = world.wallet(), world.payee(), world.vm.key()
    policy = world.fields(vault)["policy"]
    result = world.vm.succeed(
        world.build.update_wallet(operator=world.operator, vault=vault, session=(next_session, SESSION_ENDS - 1))
    )
    expected = {"org": world.org, "vault": vault, "policy": policy, "sequence": 3}
    expected |= {"session_authority": next_session, "session_expires_at": SESSION_ENDS - 1}
    assert result.event == Event("WalletUpdated", expected)
    world.vm.refuse("Unauthorized", world.payment(vault, payee))
    world.vm.succeed(world.payment(vault, payee, signer=next_session))


@pytest.mark.proves("instruction update_wallet")
def test_update_can_change_only_the_policy(world: VmWorld) -> None:
    vault, payee, strict = world.wallet(), world.payee(), world.policy(Rules(max_per_tx=1))
    old = world.fields(vault)["policy"]
    result = world.vm.succeed(
        world.build.update_wallet(operator=world.operator, vault=vault, policy=old, new_policy=strict)
    )
    expected = {"org": world.org, "vault": vault, "policy": strict, "sequence": 3}
    expected |= {"session_authority": world.session, "session_expires_at": SESSION_ENDS}
    assert result.event == Event("WalletUpdated", expected)
    assert (world.fields(old)["wallet_count"], world.fields(strict)["wallet_count"]) == (0, 1)
    world.vm.refuse("MaxPerTxExceeded", world.payment(vault, payee))
    world.vm.refuse("WrongPolicy", world.payment(vault, payee, policy=old))


def test_policy_switches_only_from_the_attached_one_to_another(world: VmWorld) -> None:
    vault, other = world.wallet(), world.policy()
    attached = world.fields(vault)["policy"]

    def update(policy: Pubkey | None, new_policy: Pubkey | None) -> Instruction:
        return world.build.update_wallet(operator=world.operator, vault=vault, policy=policy, new_policy=new_policy)

    world.vm.refuse("PolicyRequired", update(attached, None))
    world.vm.refuse("PolicyRequired", update(None, other))
    world.vm.refuse("WrongPolicy", update(other, attached))
    world.vm.refuse("ConstraintDuplicateMutableAccount", update(attached, attached))
    world.vm.succeed(update(attached, other))


def test_zero_address_removes_the_session_authority(world: VmWorld) -> None:
    vault, payee = world.wallet(), world.payee()
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=(NONE, SESSION_ENDS)))
    fields = world.fields(vault)
    assert (fields["session_authority"], fields["session_expires_at"]) == (NONE, 0)
    world.vm.refuse("Unauthorized", world.payment(vault, payee))
    world.vm.succeed(world.payment(vault, payee, signer=world.operator))


@pytest.mark.proves(
    "instruction fund_wallet", "instruction withdraw", "instruction withdraw_reserve", "instruction close_wallet"
)
def test_archived_vault_shrinks_and_returns_the_rest_of_its_rent(world: VmWorld) -> None:
    vault = world.wallet()
    policy = world.fields(vault)["policy"]
    world.vm.succeed(withdrawal(world, vault))
    fields, size, before = world.fields(vault), len(world.vm.data(vault)), world.vm.lamports(world.payer)
    result = world.vm.succeed(closing(world, vault))
    assert result.event == Event("WalletClosed", {"org": world.org, "vault": vault, "policy": policy, "sequence": 4})
    for gone in ("ledger", "budget", "allowance_counter", "frozen_sequence", "attachments", "sessions", "approvals"):
        del fields[gone]
    ended = {"session_authority": NONE, "session_expires_at": 0}
    assert world.fields(vault) == {**fields, **ended, "sequence": 4}
    left = len(world.vm.data(vault))
    assert left < 256 < size
    assert world.vm.lamports(vault) == world.vm.rent(left)
    assert world.vm.lamports(world.payer) == before + world.vm.rent(size) - world.vm.rent(left)
    assert world.fields(policy)["wallet_count"] == 0


def test_archived_vault_can_only_withdraw(world: VmWorld) -> None:
    payee, policy, vault = world.payee(), world.policy(), world.addresses.vault(world.org, "a")
    world.vm.succeed(world.wallet_creation("a", policy))
    again = closing(world, vault)
    calls = [
        again,
        world.payment(vault, payee),
        world.funding(vault, 1),
        world.freeze(vault),
        world.build.update_wallet(operator=world.operator, vault=vault, session=(NONE, 0)),
        world.approving(vault, payee.owner, 1, world.vm.now + 60, bytes(16)),
    ]
    world.vm.succeed(again)
    for call in calls:
        world.vm.refuse("AccountDataTooSmall", call)
    # Its policy can be closed, but the agent's id is not free
    world.vm.succeed(world.policy_closing(policy))
    world.vm.refuse("System:0", world.wallet_creation("a", world.policy()))


def test_stray_deposit_to_an_archived_vault_can_be_withdrawn(world: VmWorld) -> None:
    vault = world.wallet(funds=0)
    world.vm.refuse("ZeroAmount", withdrawal(world, vault))
    world.vm.succeed(closing(world, vault))
    world.fill(world.tokens_of(vault), vault, 70)
    before = world.balance(world.reserve)
    first = world.vm.succeed(withdrawal(world, vault, 30))
    rest = world.vm.succeed(withdrawal(world, vault))
    assert (world.balance(world.tokens_of(vault)), world.balance(world.reserve)) == (0, before + 70)
    assert [(r.event.data["sequence"], r.event.data["amount"]) for r in (first, rest)] == [(3, 30), (4, 40)]
    assert world.fields(vault)["sequence"] == 4


def test_vault_with_money_or_open_escrows_cannot_be_archived(world: VmWorld) -> None:
    vault = world.wallet(funds=1)
    world.vm.refuse("WalletNotEmpty", closing(world, vault))
    world.vm.succeed(withdrawal(world, vault))
    data = bytearray(world.vm.data(vault))
    open_escrows = 8 + 4
    data[open_escrows] = 1
    world.vm.put(vault, bytes(data), CODEC.program_id)
    assert world.fields(vault)["open_escrows"] == 1
    world.vm.refuse("OpenEscrows", closing(world, vault))


def test_rent_of_an_archived_vault_cannot_go_to_anyone_else(world: VmWorld) -> None:
    vault = world.wallet(funds=0)
    for receiver in (world.operator, world.stranger):
        world.vm.refuse("WrongRentReceiver", closing(world, vault, receiver=receiver))


def test_freeze_and_pause_do_not_stop_withdrawals_and_archiving(world: VmWorld) -> None:
    vault = world.wallet()
    world.vm.succeed(world.freeze(vault))
    world.pause()
    world.vm.succeed(withdrawal(world, vault))
    world.vm.succeed(closing(world, vault))
    assert world.fields(vault)["frozen"] == MANUAL


@pytest.mark.proves(
    "instruction fund_wallet", "instruction withdraw", "instruction withdraw_reserve", "instruction close_wallet"
)
def test_withdrawal_moves_the_amount_and_reports_both_balances(world: VmWorld) -> None:
    vault = world.wallet(funds=10 * USDC)
    before, reference = world.balance(world.reserve), b"r" * 16
    result = world.vm.succeed(
        world.build.withdraw(operator=world.operator, vault=vault, amount=3 * USDC, reference=reference)
    )
    expected = {"org": world.org, "vault": vault, "sequence": 3, "amount": 3 * USDC, "reference": reference}
    expected |= {"vault_balance": 7 * USDC, "reserve_balance": before + 3 * USDC}
    assert result.event == Event("WalletWithdrawn", expected)
    assert (world.balance(world.tokens_of(vault)), world.balance(world.reserve)) == (7 * USDC, before + 3 * USDC)
    assert result.transfers == 1


def test_withdrawing_zero_or_more_than_the_balance_is_refused(world: VmWorld) -> None:
    vault = world.wallet(funds=5)
    world.vm.refuse("InsufficientBalance", withdrawal(world, vault, 6))
    world.vm.refuse("ZeroAmount", withdrawal(world, vault, 0))
    world.vm.succeed(withdrawal(world, vault, 5))


def test_withdrawal_does_not_credit_the_limits(world: VmWorld) -> None:
    vault, payee = world.wallet(Rules(max_per_day=USDC)), world.payee()
    world.vm.succeed(world.payment(vault, payee))
    world.vm.succeed(withdrawal(world, vault, USDC))
    world.vm.refuse("MaxPerDayExceeded", world.payment(vault, payee, 1))


def test_session_authority_signs_until_it_expires(world: VmWorld) -> None:
    vault, payee, ends = world.wallet(), world.payee(), world.vm.now + 100
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=(world.session, ends)))
    world.vm.now = ends - 1
    world.vm.succeed(world.payment(vault, payee))
    world.vm.now = ends
    world.vm.refuse("SessionExpired", world.payment(vault, payee))
    world.vm.succeed(world.payment(vault, payee, signer=world.operator))
    # A clock that steps back does not revive it
    world.vm.now = ends - 1
    world.vm.refuse("SessionExpired", world.payment(vault, payee))


def test_vault_can_be_created_if_its_token_account_exists(world: VmWorld) -> None:
    vault = world.addresses.vault(world.org, "a")
    world.vm.succeed(world.build.create_token_account(payer=world.payer, owner=vault))
    world.fill(world.tokens_of(vault), vault, 5)
    world.vm.succeed(world.wallet_creation("a", world.policy()))
    assert world.balance(world.tokens_of(vault)) == 5


@pytest.mark.parametrize(
    "fault",
    [
        {"delegate": Pubkey.new_unique()},
        {"close_authority": Pubkey.new_unique()},
        {"frozen": True},
    ],
)
def test_token_account_that_others_control_is_not_adopted(world: VmWorld, fault: dict[str, Pubkey | bool]) -> None:
    vault = world.addresses.vault(world.org, "a")
    data = token_account_data(world.mint, vault, **fault)  # type: ignore[arg-type]
    world.vm.put(world.tokens_of(vault), data, world.token_program)
    world.vm.refuse("UnusableTokenAccount", world.wallet_creation("a", world.policy()))


def test_existing_token_account_of_another_owner_is_refused(world: VmWorld) -> None:
    vault = world.addresses.vault(world.org, "a")
    place_token_account(world.vm, world.mint, world.stranger, at=world.tokens_of(vault))
    world.vm.refuse("AssociatedToken:0", world.wallet_creation("a", world.policy()))


@pytest.mark.parametrize("lamports", [1, 10**6, 10**10])
def test_lamports_sent_ahead_do_not_block_new_accounts(world: VmWorld, lamports: int) -> None:
    vault, key, payee = world.addresses.vault(world.org, "a"), b"k" * 16, world.payee()
    policy, reference = world.addresses.policy(world.org, key), b"r" * 16
    prepared = [
        vault,
        world.tokens_of(vault),
        policy,
        world.addresses.allowlist(policy, world.fields(world.org)["sequence"] + 1),
        world.addresses.approval(vault, reference),
        world.addresses.recipient(world.org, payee.owner),
    ]
    for address in prepared:
        world.vm.put(address, b"", SYSTEM_PROGRAM, lamports)
    build = world.build
    world.vm.succeed(build.create_policy(payer=world.payer, authority=world.authority, key=key, rules=OPEN))
    world.vm.succeed(world.chunk(policy, [bytes(32)]))
    world.vm.succeed(world.wallet_creation("a", policy))
    world.vm.succeed(world.approving(vault, payee.owner, 1, world.vm.now + 60, reference))
    world.vm.succeed(world.registration(payee.owner))
    for address in prepared:
        assert world.vm.lamports(address) == max(lamports, world.vm.rent(len(world.vm.data(address))))


def test_lamports_sent_ahead_do_not_block_a_new_organisation(world: VmWorld) -> None:
    other = world.vm.key()
    org = world.addresses.org(other, "prepared")
    presets = [world.addresses.preset(org, identifier) for identifier in PRESET_POLICY_IDS]
    for address in (org, world.tokens_of(org), *presets):
        world.vm.put(address, b"", SYSTEM_PROGRAM, 1)
    result = world.vm.succeed(
        Instructions(CODEC, world.addresses, org).initialize_org(
            payer=world.payer,
            creator=other,
            org_id="prepared",
            genesis_hash=GENESIS_HASH,
            operator=other,
            arbiter=other,
            verifier=other,
        )
    )
    assert len(result.events) == 5


def test_operator_attaches_no_policy_where_only_the_authority_does(world: VmWorld) -> None:
    # Given an organisation with the flag
    vault, old, other = world.wallet(), world.policy(), world.policy()
    attached = world.fields(vault)["policy"]
    world.vm.succeed(world.org_update(authority_attaches=True))
    move = partial(world.build.update_wallet, operator=world.operator, vault=vault, policy=attached, new_policy=other)
    create = partial(
        world.build.create_wallet, payer=world.payer, operator=world.operator, agent_id="flagged", policy=old
    )
    # Then the operator alone neither makes a vault nor attaches a policy, and only the authority helps
    for call in (move, create):
        world.vm.refuse("AuthorityRequired", call())
        for role in ("operator", "arbiter", "session", "stranger"):
            world.vm.refuse("Unauthorized", call(authority=getattr(world, role)))
        world.vm.succeed(call(authority=world.authority))
    # It still rotates sessions
    world.vm.succeed(world.build.update_wallet(operator=world.operator, vault=vault, session=(world.session, 0)))


def test_authority_alone_attaches_no_policy(world: VmWorld) -> None:
    vault, other = world.wallet(), world.policy()
    world.vm.succeed(world.org_update(authority_attaches=True))
    alone = world.build.update_wallet(
        operator=world.authority,
        vault=vault,
        policy=world.fields(vault)["policy"],
        new_policy=other,
        authority=world.authority,
    )
    world.vm.refuse("Unauthorized", alone)
