"""Runs an organisation in which every instruction is used, in a VM of any solders release."""

import base64
import os
from pathlib import Path
from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM, Addresses
from app.chain.rules import BudgetLimits, Rules
from idl import codec
from tests.bench.token_bytes import mint_bytes, token_account_bytes
from tests.support.present import PresentInstructions
from tests.support.runtimes import Runtime

PROGRAM = Path(os.environ.get("AGENT_VAULT_SO", Path(__file__).parents[2] / "programs" / "agent_vault.so"))
GENESIS_HASH = bytes(32)
NOW = 1_800_000_000
NEVER = 2_000_000_000
DAY_SLOT = 900
USDC = 1_000_000


class Story:
    """An organisation in which every instruction is used once, and payments under many policies."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.units: dict[str, int] = {}
        self.payer, self.authority, self.operator = Keypair(), Keypair(), Keypair()
        self.session, self.merchant = Keypair(), Keypair()
        coder = self.codec = codec.load()
        self.mint = Pubkey.new_unique()
        self.addresses = Addresses(coder.program_id, self.mint)
        self.org = self.addresses.org(self.authority.pubkey(), "acme")
        self.instructions = PresentInstructions(coder, self.addresses, self.org, self.read)
        self.destination = self.addresses.token_account(self.merchant.pubkey())
        self.time = NOW
        runtime.do("program", address=str(coder.program_id), path=str(PROGRAM))
        runtime.do("clock", time=self.time)
        runtime.do("airdrop", address=str(self.payer.pubkey()))
        runtime.account(self.mint, TOKEN_PROGRAM, mint_bytes(self.payer.pubkey()))
        runtime.account(self.destination, TOKEN_PROGRAM, token_account_bytes(self.mint, self.merchant.pubkey(), 0))

    def step(self, name: str, instruction: Instruction, *signers: Keypair) -> int:
        """Send an instruction and record the units used under its name."""
        units = self.runtime.units(self.payer, instruction, signers=signers)
        self.units[name] = units
        return units

    def transfer(self) -> int:
        """Return the units of a plain TransferChecked."""
        source = Pubkey.new_unique()
        self.runtime.account(source, TOKEN_PROGRAM, token_account_bytes(self.mint, self.payer.pubkey(), 10**9))
        data = bytes([12]) + (5).to_bytes(8, "little") + bytes([6])
        metas = [
            AccountMeta(source, is_signer=False, is_writable=True),
            AccountMeta(self.mint, is_signer=False, is_writable=False),
            AccountMeta(self.destination, is_signer=False, is_writable=True),
            AccountMeta(self.payer.pubkey(), is_signer=True, is_writable=False),
        ]
        return self.runtime.units(self.payer, Instruction(TOKEN_PROGRAM, data, metas))

    def found(self) -> None:
        """Create the organisation with a reserve, and register the merchant."""
        build = self.instructions
        operator = self.operator.pubkey()
        self.step(
            "initialize_org",
            build.initialize_org(
                payer=self.payer.pubkey(),
                creator=self.authority.pubkey(),
                org_id="acme",
                genesis_hash=GENESIS_HASH,
                operator=operator,
                arbiter=operator,
                verifier=operator,
            ),
            self.authority,
        )
        reserve = self.addresses.token_account(self.org)
        self.runtime.account(reserve, TOKEN_PROGRAM, token_account_bytes(self.mint, self.org, 10**13))
        resume = build.update_org(
            signer=self.authority.pubkey(), expected_sequence=self.fields(self.org)["authority_sequence"], paused=False
        )
        self.step("update_org", resume, self.authority)
        self.step(
            "register_recipient",
            build.register_recipient(
                payer=self.payer.pubkey(), signer=operator, address=self.merchant.pubkey(), category=7, domain=None
            ),
            self.operator,
        )

    def fields(self, address: Pubkey) -> dict[str, Any]:
        """Return the fields of an account of the program."""
        return self.codec.decode_account(self.read(address)).data

    def read(self, address: Pubkey) -> bytes:
        """Return the data of an account."""
        return base64.b64decode(self.runtime.do("read", address=str(address))["data"])

    def policy(self, name: str, rules: Rules, entries: list[bytes] | None = None) -> tuple[Pubkey, Pubkey | None]:
        """Create a policy, with an allowlist of `entries` in force if given."""
        build, key = self.instructions, name.encode().ljust(16, b"_")[:16]
        payer, authority = self.payer.pubkey(), self.authority.pubkey()
        address = self.addresses.policy(self.org, key)
        self.step(
            "create_policy", build.create_policy(payer=payer, authority=authority, key=key, rules=rules), self.authority
        )
        if entries is None:
            return address, None
        chunk, found = 20, self.fields(address)
        version = found["next_allowlist_version"]
        for offset in range(0, len(entries), chunk):
            part = sorted(entries)[offset : offset + chunk]
            self.step(
                "write_allowlist (20 entries)",
                build.write_allowlist(
                    payer=payer,
                    writer=self.operator.pubkey(),
                    policy=address,
                    version=version,
                    offset=offset,
                    entries=part,
                    seal=offset + chunk >= len(entries),
                ),
                self.operator,
            )
        allowlist = self.addresses.allowlist(address, version)
        self.step(
            "update_policy",
            build.update_policy(
                authority=authority,
                policy=address,
                expected_version=found["version"],
                rules=rules,
                new_allowlist=allowlist,
                entries=sorted(entries),
            ),
            self.authority,
        )
        return address, allowlist

    def wallet(self, agent: str, policy: Pubkey) -> Pubkey:
        """Create a vault with a session authority and fund it."""
        build, operator = self.instructions, self.operator.pubkey()
        vault = self.addresses.vault(self.org, agent)
        self.step(
            "create_wallet",
            build.create_wallet(
                payer=self.payer.pubkey(),
                operator=operator,
                agent_id=agent,
                policy=policy,
                session=(self.session.pubkey(), NEVER),
            ),
            self.operator,
        )
        self.step(
            "fund_wallet",
            build.fund_wallet(operator=operator, vault=vault, amount=1000 * USDC, reference=os.urandom(16)),
            self.operator,
        )
        return vault

    def budget(self, name: str, parent: Pubkey | None = None) -> Pubkey:
        """Create a budget that has every limit, and change it once."""
        build, key = self.instructions, name.encode().ljust(16, b"_")[:16]
        authority, limits = self.authority.pubkey(), BudgetLimits(1000 * USDC, 1000 * USDC, 10_000, 10**6 * USDC, NEVER)
        address = self.addresses.budget(self.org, key)
        create = build.create_budget(
            payer=self.payer.pubkey(), authority=authority, key=key, limits=limits, parent=parent
        )
        self.step("create_budget", create, self.authority)
        version = self.fields(address)["version"]
        update = build.update_budget(authority=authority, budget=address, expected_version=version, limits=limits)
        self.step("update_budget", update, self.authority)
        return address

    def join(self, vault: Pubkey, budget: Pubkey, parent: Pubkey | None = None) -> None:
        """Put a vault into its first budget."""
        put = self.instructions.set_wallet_budget(
            signer=self.operator.pubkey(), vault=vault, new_budget=budget, new_parent=parent
        )
        self.step("set_wallet_budget", put, self.operator)

    def pay(self, vault: Pubkey, policy: Pubkey, *, co_sign: bool = False, **optional: Any) -> int:
        """Make a payment and return the units used."""
        if co_sign:
            optional["co_signer"] = self.operator.pubkey()
        payment = self.instructions.execute_payment(
            signer=self.session.pubkey(),
            policy=policy,
            vault=vault,
            destination=self.destination,
            amount=1000,
            reference=os.urandom(16),
            **optional,
        )
        signers = (self.session, self.operator) if co_sign else (self.session,)
        return self.runtime.units(self.payer, payment, signers=signers)

    def advance(self, seconds: int) -> None:
        """Move the clock forward."""
        self.time += seconds
        self.runtime.do("clock", time=self.time)

    def worst_gap(self, vault: Pubkey, policy: Pubkey, **optional: Any) -> int:
        """Return the most units that a payment uses after gaps of 1 to 97 slots with a full ledger."""
        most = 0
        for slots in range(1, 98):
            self.advance(slots * DAY_SLOT)
            most = max(most, self.pay(vault, policy, **optional))
        return most

    def rest(self, vault: Pubkey, policy: Pubkey) -> None:
        """Use the instructions that payments do not need."""
        build, payer, operator = self.instructions, self.payer.pubkey(), self.operator.pubkey()
        reference = os.urandom(16)
        self.step(
            "approve_payment",
            build.approve_payment(
                payer=payer,
                operator=operator,
                vault=vault,
                policy=policy,
                reference=reference,
                recipient=self.merchant.pubkey(),
                amount=1000,
                expires_at=self.time + 60,
            ),
            self.operator,
        )
        approval = self.addresses.approval(vault, reference)
        self.step(
            "close_approval",
            build.close_approval(signer=operator, vault=vault, approval=approval, rent_receiver=payer),
            self.operator,
        )
        session = (self.session.pubkey(), NEVER)
        self.step("update_wallet", build.update_wallet(operator=operator, vault=vault, session=session), self.operator)
        for action in ("Freeze", "Unfreeze"):
            self.step(
                f"freeze_wallet ({action})",
                build.freeze_wallet(
                    signer=self.authority.pubkey(),
                    vault=vault,
                    policy=policy,
                    action=action,
                    expected_sequence=self.fields(vault)["frozen_sequence"],
                ),
                self.authority,
            )
        self.step(
            "withdraw", build.withdraw(operator=operator, vault=vault, amount=None, reference=reference), self.operator
        )
        self.step(
            "close_wallet",
            build.close_wallet(operator=operator, vault=vault, policy=policy, rent_receiver=payer),
            self.operator,
        )
        empty = self.budget("empty")
        close = build.close_budget(authority=self.authority.pubkey(), budget=empty, rent_receiver=payer)
        self.step("close_budget", close, self.authority)
        self.step(
            "close_policy",
            build.close_policy(
                authority=self.authority.pubkey(),
                policy=policy,
                policy_rent_receiver=payer,
                next_version=self.fields(policy)["next_allowlist_version"],
            ),
            self.authority,
        )
        self.step(
            "withdraw_reserve",
            build.withdraw_reserve(
                authority=self.authority.pubkey(),
                destination=self.destination,
                amount=1000,
                reference=reference,
                expected_sequence=self.fields(self.org)["authority_sequence"],
            ),
            self.authority,
        )
        self.step(
            "update_org (proposal)",
            build.update_org(
                signer=self.authority.pubkey(),
                expected_sequence=self.fields(self.org)["authority_sequence"],
                pending_authority=operator,
            ),
            self.authority,
        )
        self.step("accept_authority", build.accept_authority(new_authority=operator), self.operator)
