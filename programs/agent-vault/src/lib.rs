//! Vaults from which AI agents pay USDC, each guarded by a policy that this program enforces.
//!
//! An organisation ([`state::Org`]) holds a reserve and has roles. Each agent has a vault ([`state::Vault`]) with one
//! policy ([`state::Policy`]) attached. Money leaves a vault for third parties only through
//! [`agent_vault::execute_payment`], [`agent_vault::create_escrow`] and [`agent_vault::grant_allowance`]. The policy
//! crate judges all three. Every other way out of a vault leads into the reserve, and only the authority can withdraw
//! from the reserve.
#![cfg_attr(not(test), no_std)]
#![allow(unexpected_cfgs)] // the framework's macros check for features that this crate does not define

extern crate alloc;

use anchor_lang::prelude::*;

#[cfg(target_os = "solana")]
mod entrypoint;
pub mod errors;
pub mod events;
pub mod instructions;
mod invoke;
mod security;
pub mod state;
pub mod token;

use instructions::*;
use state::{AllowlistDigest, BudgetLimits, PolicyRules, Session, SpendingKind};

declare_id!("AgentVau1tPo1icyGuardedSpending111111111111");

/// The program's instructions.
#[program]
pub mod agent_vault {
    use super::*;

    /// Creates an organisation with its reserve and the four presets. The creator becomes its authority.
    pub fn initialize_org(ctx: &mut Context<InitializeOrg>, args: OrgSettings, _end: End) -> Result<()> {
        initialize_org::handler(ctx, args)
    }

    /// Changes roles, settings or the pause of an organisation, or proposes the next authority. Except for a pure
    /// pause, the call must name the organisation's current `authority_sequence`. Each change increments that number,
    /// so a signed but unsent change that names it becomes invalid with the next one.
    pub fn update_org(
        ctx: &mut Context<UpdateOrg>,
        changes: OrgChanges,
        expected_sequence: Option<u64>,
        _end: End,
    ) -> Result<()> {
        update_org::handler(ctx, changes, expected_sequence)
    }

    /// Passes the authority's role to the proposed authority, which signs this call. A mistyped address cannot sign, so
    /// a typing error cannot leave the organisation without an authority.
    pub fn accept_authority(ctx: &mut Context<AcceptAuthority>, _end: End) -> Result<()> {
        accept_authority::handler(ctx)
    }

    /// Creates a policy.
    pub fn create_policy(
        ctx: &mut Context<CreatePolicy>,
        key: [u8; 16],
        rules: PolicyRules,
        _end: End,
    ) -> Result<()> {
        create_policy::handler(ctx, key, rules)
    }

    /// Replaces the rules of a policy for all attached vaults simultaneously. It can also put a sealed allowlist in
    /// force if the list's entries match the given digest.
    pub fn update_policy(
        ctx: &mut Context<UpdatePolicy>,
        expected_version: u64,
        rules: PolicyRules,
        digest: Option<AllowlistDigest>,
        _end: End,
    ) -> Result<()> {
        update_policy::handler(ctx, expected_version, rules, digest)
    }

    /// Closes a policy without attached vaults, together with its allowlist and, if any chunk of it has been written,
    /// its next allowlist.
    pub fn close_policy(ctx: &mut Context<ClosePolicy>, _end: End) -> Result<()> {
        close_policy::handler(ctx)
    }

    /// Writes a chunk of a policy's next allowlist. The last chunk can seal the list.
    pub fn write_allowlist(
        ctx: &mut Context<WriteAllowlist>,
        offset: u32,
        entries: alloc::vec::Vec<[u8; 32]>,
        seal: bool,
        _end: End,
    ) -> Result<()> {
        write_allowlist::handler(ctx, offset, entries, seal)
    }

    /// Discards a policy's next allowlist. That list's version is never used again.
    pub fn close_allowlist(ctx: &mut Context<CloseAllowlist>, _end: End) -> Result<()> {
        close_allowlist::handler(ctx)
    }

    /// Creates a budget that several vaults can share.
    pub fn create_budget(
        ctx: &mut Context<CreateBudget>,
        key: [u8; 16],
        limits: BudgetLimits,
        _end: End,
    ) -> Result<()> {
        create_budget::handler(ctx, key, limits)
    }

    /// Replaces the limits of a budget for all attached vaults simultaneously. Spending before the change still counts.
    pub fn update_budget(
        ctx: &mut Context<UpdateBudget>,
        expected_version: u64,
        limits: BudgetLimits,
        _end: End,
    ) -> Result<()> {
        update_budget::handler(ctx, expected_version, limits)
    }

    /// Closes a budget without attached vaults.
    pub fn close_budget(ctx: &mut Context<CloseBudget>, _end: End) -> Result<()> {
        close_budget::handler(ctx)
    }

    /// Attaches a vault to a budget, moves it to a different one, or detaches it. The operator signs if the vault has
    /// no budget, the authority otherwise.
    pub fn set_wallet_budget(ctx: &mut Context<SetWalletBudget>, _end: End) -> Result<()> {
        set_wallet_budget::handler(ctx)
    }

    /// Creates an agent's vault and its token account.
    pub fn create_wallet(
        ctx: &mut Context<CreateWallet>,
        agent_hash: [u8; 32],
        session: Option<Session>,
        _end: End,
    ) -> Result<()> {
        create_wallet::handler(ctx, agent_hash, session)
    }

    /// Sets a vault's session authority, its policy, or both. Spending before the change still counts.
    pub fn update_wallet(ctx: &mut Context<UpdateWallet>, session: Option<Session>, _end: End) -> Result<()> {
        update_wallet::handler(ctx, session)
    }

    /// Freezes or unfreezes a vault. A call that unfreezes must name the sequence number of the freeze. Anyone may
    /// freeze a vault with an expired policy.
    pub fn freeze_wallet(
        ctx: &mut Context<FreezeWallet>,
        action: FreezeAction,
        expected_sequence: Option<u64>,
        _end: End,
    ) -> Result<()> {
        freeze_wallet::handler(ctx, action, expected_sequence)
    }

    /// Archives an empty vault permanently.
    pub fn close_wallet(ctx: &mut Context<CloseWallet>, _end: End) -> Result<()> {
        close_wallet::handler(ctx)
    }

    /// Moves USDC from the reserve into a vault. With `only_below`, the call fails unless the vault holds less than
    /// that many micro-USDC.
    pub fn fund_wallet(
        ctx: &mut Context<FundWallet>,
        amount: u64,
        reference: [u8; 16],
        only_below: Option<u64>,
        _end: End,
    ) -> Result<()> {
        fund_wallet::handler(ctx, amount, reference, only_below)
    }

    /// Moves USDC from a live or archived vault into the reserve. Without an amount, moves the whole balance.
    pub fn withdraw(
        ctx: &mut Context<Withdraw>,
        amount: Option<u64>,
        reference: [u8; 16],
        _end: End,
    ) -> Result<()> {
        withdraw::handler(ctx, amount, reference)
    }

    /// Moves USDC out of the reserve. Without an amount, moves the whole balance. The call must name the organisation's
    /// `authority_sequence`.
    pub fn withdraw_reserve(
        ctx: &mut Context<WithdrawReserve>,
        amount: Option<u64>,
        reference: [u8; 16],
        expected_sequence: u64,
        _end: End,
    ) -> Result<()> {
        withdraw_reserve::handler(ctx, amount, reference, expected_sequence)
    }

    /// Attests the category and domain of an address that may be paid. `domain_digest` is the SHA-256 of the lower-case
    /// domain. The Recipient account and allowlists contain the SHA-256 of that digest.
    pub fn register_recipient(
        ctx: &mut Context<RegisterRecipient>,
        address: Address,
        domain_digest: Option<[u8; 32]>,
        category: u8,
        _end: End,
    ) -> Result<()> {
        register_recipient::handler(ctx, address, domain_digest, category)
    }

    /// Approves one payment, escrow or allowance with exactly this recipient and amount, in advance.
    pub fn approve_payment(
        ctx: &mut Context<ApprovePayment>,
        reference: [u8; 16],
        recipient: Address,
        amount: u64,
        expires_at: i64,
        kind: SpendingKind,
        _end: End,
    ) -> Result<()> {
        approve_payment::handler(ctx, reference, recipient, amount, expires_at, kind)
    }

    /// Withdraws an unused approval. Anyone may close an expired one.
    pub fn close_approval(ctx: &mut Context<CloseApproval>, _end: End) -> Result<()> {
        close_approval::handler(ctx)
    }

    /// Pays from a vault if its policy allows it.
    pub fn execute_payment(
        ctx: &mut Context<ExecutePayment>,
        amount: u64,
        reference: [u8; 16],
        _end: End,
    ) -> Result<()> {
        execute_payment::handler(&mut ctx.accounts, amount, &reference)
    }

    /// Locks money of a vault for a task if the vault's policy allows a payment of that amount to the receiver. `bump`
    /// is the bump of the escrow's address; passing it avoids a search.
    pub fn create_escrow(
        ctx: &mut Context<CreateEscrow>,
        terms: EscrowTerms,
        bump: u8,
        _end: End,
    ) -> Result<()> {
        create_escrow::handler(ctx, &terms, bump)
    }

    /// Releases an escrow to its receiver, given a proof of completion before the deadline.
    pub fn complete_escrow(
        ctx: &mut Context<SettleEscrow>,
        kind: u8,
        output_hash: [u8; 32],
        _end: End,
    ) -> Result<()> {
        complete_escrow::handler(ctx, kind, output_hash)
    }

    /// Refunds an escrow to the vault once its deadline has passed, or once a dispute has been undecided for 30 days.
    /// Anyone may call it.
    pub fn refund_escrow(ctx: &mut Context<SettleEscrow>, _end: End) -> Result<()> {
        refund_escrow::handler(ctx)
    }

    /// Stops an escrow's deadline until the arbiter decides or the dispute is withdrawn. Once a dispute has been
    /// undecided for 30 days, anyone may refund the escrow. Either party may call this before the deadline, but each
    /// side only once in the escrow's life.
    pub fn dispute_escrow(
        ctx: &mut Context<DisputeEscrow>,
        reason_hash: [u8; 32],
        evidence_hash: [u8; 32],
        _end: End,
    ) -> Result<()> {
        dispute_escrow::handler(ctx, reason_hash, evidence_hash)
    }

    /// Resumes the deadline of a disputed escrow. The signer that raised the dispute may call it while it acts for its
    /// side. The operator may too, if the side that raised it is a vault.
    pub fn withdraw_dispute(ctx: &mut Context<DisputeEscrow>, _end: End) -> Result<()> {
        withdraw_dispute::handler(ctx)
    }

    /// Divides a disputed escrow by its arbiter's decision: `released` micro-USDC for the receiver, the rest for the
    /// vault.
    pub fn resolve_dispute(ctx: &mut Context<SettleEscrow>, released: u64, _end: End) -> Result<()> {
        resolve_dispute::handler(ctx, released)
    }

    /// Pays each share that stayed in a split escrow and can be paid now. Anyone may call it.
    pub fn collect_escrow(ctx: &mut Context<SettleEscrow>, _end: End) -> Result<()> {
        collect_escrow::handler(ctx)
    }

    /// Sets money of a vault aside, so that a delegate can pay it out with a plain transfer. The vault's policy must
    /// allow allowances and a payment of that amount to the owner of `destination`. The operator signs every grant.
    /// `bump` is the bump of the allowance's address.
    pub fn grant_allowance(
        ctx: &mut Context<GrantAllowance>,
        amount: u64,
        reference: [u8; 16],
        expires_at: i64,
        bump: u8,
        _end: End,
    ) -> Result<()> {
        grant_allowance::handler(ctx, amount, reference, expires_at, bump)
    }

    /// Takes back the amount that an allowance's delegate has not paid out, and closes the allowance. The operator, the
    /// session authority and the authority may call it at any time. Anyone may call it once the allowance has expired,
    /// while the vault is frozen or the organisation is paused, and if the vault's policy was replaced or changed.
    pub fn settle_allowance(ctx: &mut Context<SettleAllowance>, _end: End) -> Result<()> {
        settle_allowance::handler(ctx)
    }

    /// Returns the verdict of every rule on a payment. Counts `outstanding_count` outstanding payments,
    /// `outstanding_amount` in total, as if they were already paid. Changes nothing; meant to be simulated.
    pub fn check_payment(
        ctx: &mut Context<CheckPayment>,
        amount: u64,
        recipient: Address,
        co_signed: bool,
        outstanding_amount: u64,
        outstanding_count: u32,
        _end: End,
    ) -> Result<PaymentCheck> {
        let outstanding = Outstanding { amount: outstanding_amount, count: outstanding_count };
        check_payment::handler(ctx, amount, recipient, co_signed, &outstanding)
    }
}
