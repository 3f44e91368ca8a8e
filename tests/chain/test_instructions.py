"""The built program accepts what the builders build."""

import secrets
import time

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.addresses import Addresses, domain_hash
from app.chain.instructions import compute_unit_limit
from app.chain.rules import CATEGORIES, RULE_ERRORS, RULES, Rules, category_bits, category_names
from app.chain.transactions import MAX_SIZE, sign, unsigned
from app.core.identifiers import policy_key
from idl.codec import load
from tests.idl.golden import constant
from tests.support.chain import USDC, Stage


def test_rule_codes_are_the_programs_error_codes() -> None:
    codec = load()
    assert len(RULE_ERRORS) == len(RULES)
    assert [codec.error_name(6000 + code) for code in range(10)] == list(RULE_ERRORS[:10])
    assert set(RULE_ERRORS) <= set(codec.errors.values())


def test_categories_become_bits_and_names_again() -> None:
    assert category_bits(["weapons", "adult"]) == 1 << 19 | 1 << 1
    assert category_names(1 << 19 | 1 << 1) == ["adult", "weapons"]
    assert category_bits(CATEGORIES) == 2**20 - 1
    with pytest.raises(ValueError):
        category_bits(["cheese"])


def test_domains_are_one_in_upper_and_lower_case() -> None:
    assert domain_hash("Example.COM") == domain_hash("example.com")


def test_transaction_needs_every_signer_and_ignores_others() -> None:
    payer, other = Keypair(), Keypair()
    instructions = [compute_unit_limit(1000)]
    signed = sign(instructions, payer=payer, signers=[other], blockhash=Hash.default())
    assert signed.raw[0] == 1
    assert len(signed.raw) == len(unsigned(instructions, payer=payer.pubkey()))
    assert len(signed.raw) < MAX_SIZE


async def test_program_accepts_every_instruction() -> None:
    async with Stage() as stage:
        build, payer, now = stage.build, stage.payer.pubkey(), int(time.time())
        authority, operator = stage.authority.pubkey(), stage.operator.pubkey()
        # Given a policy with an allowlist of one domain and one blocked category
        key = b"k" * 16
        policy = stage.addresses.policy(stage.org, key)
        rules = Rules(max_per_tx=50 * USDC, require_co_sign=20 * USDC)
        await stage.send(
            build.create_policy(payer=payer, authority=authority, key=key, rules=rules), signers=[stage.authority]
        )
        restricted = Rules(max_per_tx=50 * USDC, require_co_sign=20 * USDC, restricted=True, blocked_categories=1 << 19)
        made, entries = await stage.fields(policy), [domain_hash("shop.example")]
        version: int = made["next_allowlist_version"]
        allowlist = stage.addresses.allowlist(policy, version)
        await stage.send(
            build.write_allowlist(
                payer=payer, writer=operator, policy=policy, version=version, offset=0, entries=entries, seal=True
            ),
            build.update_policy(
                authority=authority,
                policy=policy,
                expected_version=made["version"],
                rules=restricted,
                new_allowlist=allowlist,
                entries=entries,
            ),
            signers=[stage.authority, stage.operator],
        )
        account = await stage.chain.account(allowlist)
        assert account is not None
        assert stage.codec.decode_account(account.data).data["entries"] == [domain_hash("shop.example")]
        # and a wallet with a session authority, moved to that policy
        session = Keypair()
        vault = await stage.wallet("agent-1", funds=100 * USDC)
        await stage.send(
            build.update_wallet(
                operator=operator,
                vault=vault,
                session=(session.pubkey(), now + 600),
                policy=stage.addresses.preset(stage.org, "pol_permissive"),
                new_policy=policy,
            ),
            signers=[stage.operator],
        )
        # and a recipient registered under the domain
        await stage.send(
            build.register_recipient(
                payer=payer, signer=operator, address=stage.payee, category=0, domain="Shop.example"
            ),
            signers=[stage.operator],
        )
        # When the session authority pays with an approval
        reference = secrets.token_bytes(16)
        approval = stage.addresses.approval(vault, reference)
        approve = build.approve_payment(
            payer=payer,
            operator=operator,
            vault=vault,
            policy=policy,
            reference=reference,
            recipient=stage.payee,
            amount=30 * USDC,
            expires_at=now + 600,
        )
        await stage.send(approve, signers=[stage.operator])
        payment = build.execute_payment(
            signer=session.pubkey(),
            policy=policy,
            vault=vault,
            destination=stage.addresses.token_account(stage.payee),
            amount=30 * USDC,
            reference=secrets.token_bytes(16),
            allowlist=allowlist,
            recipient=stage.addresses.recipient(stage.org, stage.payee),
            approval=approval,
            approval_rent_receiver=payer,
        )
        await stage.send(payment, signers=[session])
        # Then it arrived, and the approval is gone
        assert await stage.chain.token_balance(stage.addresses.token_account(stage.payee)) == 30 * USDC
        assert await stage.chain.account(approval) is None
        # And the rest is accepted, too
        await stage.send(
            build.freeze_wallet(signer=operator, vault=vault, policy=policy, action="Freeze"), signers=[stage.operator]
        )
        await stage.send(
            build.freeze_wallet(
                signer=authority,
                vault=vault,
                policy=policy,
                action="Unfreeze",
                expected_sequence=(await stage.fields(vault))["frozen_sequence"],
            ),
            signers=[stage.authority],
        )
        other_reference = secrets.token_bytes(16)
        revoked = stage.addresses.approval(vault, other_reference)
        await stage.send(
            build.approve_payment(
                payer=payer,
                operator=operator,
                vault=vault,
                policy=policy,
                reference=other_reference,
                recipient=stage.payee,
                amount=1,
                expires_at=now + 600,
            ),
            build.close_approval(signer=operator, vault=vault, approval=revoked, rent_receiver=payer),
            signers=[stage.operator],
        )
        await stage.send(
            build.withdraw(operator=operator, vault=vault, amount=None, reference=secrets.token_bytes(16)),
            signers=[stage.operator],
        )
        await stage.send(
            build.close_wallet(operator=operator, vault=vault, policy=policy, rent_receiver=payer),
            signers=[stage.operator],
        )
        version = (await stage.fields(policy))["next_allowlist_version"]
        await stage.send(
            build.write_allowlist(
                payer=payer, writer=operator, policy=policy, version=version, offset=0, entries=entries, seal=False
            ),
            build.close_allowlist(authority=authority, policy=policy, version=version, rent_receiver=payer),
            signers=[stage.authority, stage.operator],
        )
        await stage.send(
            build.close_policy(
                authority=authority,
                policy=policy,
                policy_rent_receiver=payer,
                next_version=(await stage.fields(policy))["next_allowlist_version"],
                allowlist=allowlist,
                allowlist_rent_receiver=payer,
            ),
            signers=[stage.authority],
        )
        await stage.send(
            build.withdraw_reserve(
                authority=authority,
                destination=stage.addresses.token_account(stage.payee),
                amount=None,
                reference=secrets.token_bytes(16),
                expected_sequence=(await stage.fields(stage.org))["authority_sequence"],
            ),
            signers=[stage.authority],
        )
        assert await stage.chain.token_balance(build.reserve_tokens) == 0
        successor = Keypair()
        await stage.send(
            build.update_org(
                signer=authority,
                expected_sequence=(await stage.fields(stage.org))["authority_sequence"],
                pending_authority=successor.pubkey(),
                paused=True,
            ),
            signers=[stage.authority],
        )
        await stage.send(build.accept_authority(new_authority=successor.pubkey()), signers=[successor])
        org = await stage.chain.account(stage.org)
        assert org is not None
        fields = stage.codec.decode_account(org.data).data
        assert (fields["authority"], fields["paused"]) == (successor.pubkey(), 1)


@pytest.mark.proves("instruction check_payment")
async def test_check_payment_gives_the_verdict_of_every_rule() -> None:
    async with Stage() as stage:
        vault = await stage.wallet("agent-1", policy="pol_conservative", funds=100 * USDC)
        check = stage.build.check_payment(
            policy=stage.addresses.preset(stage.org, "pol_conservative"),
            vault=vault,
            amount=11 * USDC,
            recipient=stage.payee,
            co_signed=False,
        )
        raw = unsigned([check], payer=stage.payer.pubkey())
        simulation = await stage.chain.simulate(raw, replace_blockhash=True)
        assert simulation.err is None
        assert simulation.return_data is not None
        verdict = stage.codec.decode_return("PaymentCheck", simulation.return_data)
        assert not verdict["passed"]
        assert [RULES[one["rule"]] for one in verdict["rules"] if not one["passed"]] == ["max_per_tx"]


def test_addresses_are_those_of_the_seeds() -> None:
    codec = load()
    seed = [constant("POLICY"), bytes(32), policy_key("pol_locked")]
    expected = Pubkey.find_program_address(seed, codec.program_id)[0]
    assert Addresses(codec.program_id, Pubkey.default()).preset(Pubkey.default(), "pol_locked") == expected
