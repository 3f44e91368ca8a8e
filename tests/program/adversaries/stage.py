"""Two organisations with everything that any instruction acts on."""

from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import TOKEN_PROGRAM, domain_hash
from app.chain.allowance_instructions import OpenAllowance
from app.chain.escrow_instructions import OpenEscrow
from app.chain.rules import Rules, category_bits
from tests.support.vm import PROGRAM_ID, Vm
from tests.support.vm_allowances import ALLOWING, LONGEST, grant
from tests.support.vm_escrows import THIRTY_DAYS, Worker, decision, dispute, lock, terms, worker
from tests.support.vm_tokens import USDC, mint_data, place_token_account
from tests.support.vm_world import OPEN, Payee, VmWorld

GUARDED = Rules(
    max_per_tx=100 * USDC,
    max_per_day=1_000 * USDC,
    max_per_month=10_000 * USDC,
    velocity_cap=100,
    require_co_sign=USDC,
    expiry=2_000_000_000,
    blocked_categories=category_bits(["gambling"]),
    restricted=True,
    allow_allowances=True,
)
_CLOSE, _FREEZE, _THAW = 9, 10, 11
"""Instructions of the token program."""
APPROVED = 2 * USDC
"""Amount of the approved payment."""
MINUTE = 60
"""Shortest timeout of an escrow."""


def earlier_layout(world: VmWorld, account: Pubkey, *, cut: int = 8) -> Pubkey:
    """Give an account an earlier layout, without its last `cut` bytes, and return it.

    No account was ever created with this layout. It stands for all that the program once had.
    """
    data = world.vm.data(account)
    return world.vm.put(account, data[:8] + bytes(1) + data[9 : len(data) - cut], PROGRAM_ID)


class Party(VmWorld):
    """One of the two organisations, with objects in every state that an instruction needs."""

    def __init__(self, vm: Vm, org_id: str, mint: Pubkey) -> None:
        super().__init__(vm, org_id=org_id, mint=mint)
        self.heir = vm.key()
        self.merchant: Payee = self.payee()
        self.newcomer, self.late = Pubkey.new_unique(), vm.key()
        self.worker: Worker = worker(self)
        vm.succeed(self.org_update(pending_authority=self.heir))
        vm.succeed(self.registration(self.merchant.owner, 1, "shop.example"))
        listed = [bytes(address) for address in (self.merchant.owner, self.newcomer, self.late, self.worker.vault)]
        entries = sorted([*listed, domain_hash("other.example")])
        self.guarded = self.policy(GUARDED, entries)
        self.next_list = self.write_allowlist(self.guarded, entries)
        self.vault = self.wallet(self.guarded)
        self.company = self.budget(max_total=10_000 * USDC)
        self.team = self.budget(self.company, max_per_day=1_000 * USDC, velocity_cap=100)
        self.unused_budget, self.frozen_budget = self.budget(self.company), self.budget()
        vm.succeed(self.build.freeze_budget(signer=self.operator, budget=self.frozen_budget))
        vm.succeed(self.joining(self.vault, self.team))
        self._make_escrows()
        self._grant_allowances()
        self.pending_approval = self.approval(self.vault, self.merchant, APPROVED)
        escrow: dict[str, Any] = {"kind": "Escrow", "terms": terms(self)}
        self.escrow_approval = self.approval(self.vault, self.merchant, APPROVED, **escrow)
        self.allowance_approval = self.approval(self.vault, self.merchant, APPROVED, kind="Allowance")
        self.overdue_approval = self.approval(self.vault, self.merchant, APPROVED, expires_in=1)
        self.unused = self.policy(GUARDED)
        self.list_payer = vm.key(10**9)
        self.next_payer = vm.key(10**9)
        self._write_unused(entries, self.list_payer)
        self.update_policy(self.unused, GUARDED, new_allowlist=self.next_allowlist(self.unused))
        self._write_unused(entries, self.next_payer)
        self.fresh = self.policy()
        self.half_written = self.policy()
        vm.succeed(self.chunk(self.half_written, [bytes(32)], seal=False))
        self.capped = self.wallet(Rules(new_recipient_cap=0))
        vm.succeed(self.build.migrate(payer=self.payer, account=self.capped))
        vm.succeed(self.payment(self.capped, self.merchant, co_signer=self.operator))
        self.idle = self.wallet(self.policy(), funds=0)
        vm.succeed(self.joining(self.idle, self.team))
        self.frozen = self.wallet(self.fresh, funds=0)
        vm.succeed(self.freeze(self.frozen))
        self.expired = self.wallet(self.policy(Rules(expiry=vm.now - 1)), funds=0)
        self.archived = self.wallet(OPEN, funds=0)
        vm.succeed(
            self.build.close_wallet(
                operator=self.operator,
                vault=self.archived,
                policy=self.fields(self.archived)["policy"],
                rent_receiver=self.payer,
            )
        )
        self.fill(self.tokens_of(self.archived), self.archived, 7)
        self.earlier = earlier_layout(self, self.wallet(OPEN, funds=0))
        vm.succeed(self.org_update(authority_attaches=True))

    def _write_unused(self, entries: list[bytes], payer: Pubkey) -> None:
        """Write the next list of the policy that no vault has, at another payer's cost."""
        self.vm.succeed(
            self.build.write_allowlist(
                payer=payer,
                writer=self.operator,
                policy=self.unused,
                version=self.fields(self.unused)["next_allowlist_version"],
                offset=0,
                entries=entries,
                seal=True,
            )
        )

    def _make_escrows(self) -> None:
        """Create an escrow of each kind. The newcomer is a receiver without a token account."""
        self.rent_payer = self.vm.key(10**9)
        now = self.vm.now
        self.vm.now = now - THIRTY_DAYS
        self.undecided = self._escrow(self.worker.vault, argued=True)
        self.vm.now = now
        self.locked, self.argued = (self._escrow(self.worker.vault, argued=argued) for argued in (False, True))
        self.due = self._escrow(self.worker.vault, timeout=MINUTE)
        self.argued_by_receiver = self._escrow(self.worker.vault)
        self.vm.succeed(dispute(self, self.argued_by_receiver, self.worker.key))
        self.split, self.split_newcomers = (
            self._split_with_a_frozen_side(one) for one in (self.worker.vault, self.late)
        )
        self._token_call(_THAW, self.worker.tokens, self.mint, self.vm.fee_payer)
        self._token_call(_THAW, self.tokens_of(self.late), self.mint, self.vm.fee_payer)
        self._token_call(_CLOSE, self.tokens_of(self.late), self.payer, self.late)
        self.newcomers, self.newcomers_argued = (self._escrow(self.newcomer, argued=one) for one in (False, True))

    def _grant_allowances(self) -> None:
        """Grant an allowance of each kind."""
        self.delegate = self.vm.key()
        self.outstanding = self._allowance(self.vault, LONGEST)
        self.overdue = self._allowance(self.vault, 1)
        policy = self.policy(ALLOWING)
        self.budgetless = self.wallet(policy)
        self.outdated = self._allowance(self.budgetless, LONGEST)
        self.update_policy(policy, ALLOWING)

    def _allowance(self, vault: Pubkey, seconds: int) -> OpenAllowance:
        options = {"payer": self.rent_payer, "expires_in": seconds}
        return grant(self, vault, self.merchant, self.delegate, USDC, **options)

    def _escrow(self, receiver: Pubkey, *, argued: bool = False, timeout: int = THIRTY_DAYS) -> OpenEscrow:
        escrow = lock(self, self.vault, receiver, USDC, payer=self.rent_payer, timeout=timeout)
        if argued:
            self.vm.succeed(dispute(self, escrow))
        return escrow

    def _split_with_a_frozen_side(self, receiver: Pubkey) -> OpenEscrow:
        """Split an escrow while the receiver's token account is frozen."""
        escrow = self._escrow(receiver, argued=True)
        self.vm.succeed(self.build.create_token_account(payer=self.payer, owner=receiver))
        self._token_call(_FREEZE, self.tokens_of(receiver), self.mint, self.vm.fee_payer)
        self.vm.succeed(decision(self, escrow, USDC // 2))
        return escrow

    def _token_call(self, instruction: int, tokens: Pubkey, other: Pubkey, signer: Pubkey) -> None:
        """Freeze or thaw a token account as the mint's issuer, or close it as its owner."""
        metas = [
            AccountMeta(tokens, is_signer=False, is_writable=True),
            AccountMeta(other, is_signer=False, is_writable=instruction == _CLOSE),
            AccountMeta(signer, is_signer=True, is_writable=False),
        ]
        self.vm.succeed(Instruction(self.token_program, bytes([instruction]), metas))

    def list_of(self, policy: Pubkey) -> Pubkey:
        """Return the allowlist in force."""
        allowlist: Pubkey = self.fields(policy)["allowlist"]
        return allowlist


class AttackStage:
    """The attacked organisation, another one that an attacker may own, and an attacker's accounts."""

    def __init__(self) -> None:
        self.vm = Vm()
        mint = self.vm.put(Pubkey.new_unique(), mint_data(freeze_authority=self.vm.fee_payer), TOKEN_PROGRAM)
        self.victim = Party(self.vm, "victim", mint)
        self.other = Party(self.vm, "other", mint)
        self.vm.now += MINUTE
        self.attacker = self.vm.key(10**9)
        program = self.victim.token_program
        self.other_mint = self.vm.put(Pubkey.new_unique(), mint_data(), program)
        self.attackers_tokens = place_token_account(self.vm, mint, self.attacker)
