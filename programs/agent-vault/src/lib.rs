//! Vaults from which AI agents pay USDC, each guarded by a policy that this program enforces.
//!
//! An organisation ([`state::Org`]) holds a reserve and has roles. Each agent has a vault ([`state::Vault`]) with one
//! policy ([`state::Policy`]) attached. Money leaves a vault for third parties only through
//! [`agent_vault::execute_payment`], [`agent_vault::create_escrow`] and [`agent_vault::grant_allowance`]. The policy
//! crate judges all three. Every other way out of a vault leads into the reserve, and only the authority can withdraw
//! from the reserve.
#![cfg_attr(not(test), no_std)]
#![allow(unexpected_cfgs)] // the framework's macros check for features that this crate does not define
#![allow(clippy::too_many_arguments)] // an instruction has its arguments one by one

extern crate alloc;

use anchor_lang::prelude::*;

#[cfg(any(target_os = "solana", test))]
#[cfg_attr(test, allow(dead_code, clippy::arithmetic_side_effects, clippy::cast_possible_truncation))]
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
    /// - `args`: The organisation's id, roles and settings.
    pub fn initialize_org(ctx: &mut Context<InitializeOrg>, args: OrgSettings, _end: End) -> Result<()> {
        initialize_org::handler(ctx, args)
    }

    /// Changes roles, settings or the pause of an organisation, or proposes the next authority. Except for a pure
    /// pause, the call must name the organisation's current `authority_sequence`. Each change increments that number,
    /// so a change that was signed but not sent becomes invalid once another change has been made.
    /// - `changes`: The fields to change; `None` keeps a value.
    /// - `expected_sequence`: The organisation's `authority_sequence`; not needed for a pure pause.
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
    /// - `expected_sequence`: The organisation's `authority_sequence`.
    pub fn accept_authority(
        ctx: &mut Context<AcceptAuthority>,
        expected_sequence: u64,
        _end: End,
    ) -> Result<()> {
        accept_authority::handler(ctx, expected_sequence)
    }

    /// Creates a policy.
    /// - `key`: Identifies the policy within the organisation; part of its address.
    /// - `rules`: The rules.
    /// - `expected_sequence`: The organisation's `authority_sequence`.
    pub fn create_policy(
        ctx: &mut Context<CreatePolicy>,
        key: [u8; 16],
        rules: PolicyRules,
        expected_sequence: u64,
        _end: End,
    ) -> Result<()> {
        create_policy::handler(ctx, key, rules, expected_sequence)
    }

    /// Replaces the rules of a policy for all attached vaults simultaneously. It can also put a sealed allowlist in
    /// force if the list's entries match the given digest.
    /// - `expected_version`: Version of the policy that the change starts from.
    /// - `rules`: The new rules; those left out are no longer set.
    /// - `digest`: Number and SHA-256 of the entries of the allowlist to put in force; `None` keeps or drops the list.
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
    /// - `expected_version`: Version of the policy.
    pub fn close_policy(ctx: &mut Context<ClosePolicy>, expected_version: u64, _end: End) -> Result<()> {
        close_policy::handler(ctx, expected_version)
    }

    /// Writes a chunk of a policy's next allowlist. The last chunk can seal the list.
    /// - `offset`: Number of entries before this chunk.
    /// - `entries`: The entries, sorted: addresses, or twice hashed domains.
    /// - `seal`: True for the last chunk.
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

    /// Creates a budget that several vaults can share. A parent budget, if given, is charged for the same payments. The
    /// parent cannot be changed later.
    /// - `key`: Identifies the budget within the organisation; part of its address.
    /// - `limits`: The limits.
    /// - `expected_sequence`: The organisation's `authority_sequence`.
    /// - `parent_version`: Version of the parent; `None` if the budget has no parent.
    pub fn create_budget(
        ctx: &mut Context<CreateBudget>,
        key: [u8; 16],
        limits: BudgetLimits,
        expected_sequence: u64,
        parent_version: Option<u64>,
        _end: End,
    ) -> Result<()> {
        create_budget::handler(ctx, key, limits, expected_sequence, parent_version)
    }

    /// Replaces the limits of a budget for all attached vaults simultaneously. Spending before the change still counts.
    /// - `expected_version`: Version of the budget that the change starts from.
    /// - `limits`: The new limits; those left out are no longer set.
    pub fn update_budget(
        ctx: &mut Context<UpdateBudget>,
        expected_version: u64,
        limits: BudgetLimits,
        _end: End,
    ) -> Result<()> {
        update_budget::handler(ctx, expected_version, limits)
    }

    /// Closes a budget without attached vaults and without child budgets.
    /// - `expected_version`: Version of the budget.
    pub fn close_budget(ctx: &mut Context<CloseBudget>, expected_version: u64, _end: End) -> Result<()> {
        close_budget::handler(ctx, expected_version)
    }

    /// Freezes a budget: neither its vaults nor the vaults of its child budgets make payments. The operator or the
    /// authority signs.
    pub fn freeze_budget(ctx: &mut Context<FreezeBudget>, _end: End) -> Result<()> {
        freeze_budget::freeze(ctx)
    }

    /// Unfreezes a budget. The authority signs and names the freeze.
    /// - `expected_sequence`: The budget's `frozen_sequence`.
    pub fn unfreeze_budget(ctx: &mut Context<FreezeBudget>, expected_sequence: u64, _end: End) -> Result<()> {
        freeze_budget::unfreeze(ctx, expected_sequence)
    }

    /// Attaches a vault to a budget, moves it to a different one, or detaches it. The operator signs if the vault has
    /// no budget, the authority otherwise. A vault cannot leave a frozen budget.
    /// - `expected_attachments`: The vault's present number of attachments.
    /// - `budget_version`: Version of the new budget; `None` to detach the vault.
    /// - `parent_version`: Version of the new budget's parent; `None` if there is none.
    pub fn set_wallet_budget(
        ctx: &mut Context<SetWalletBudget>,
        expected_attachments: u64,
        budget_version: Option<u64>,
        parent_version: Option<u64>,
        _end: End,
    ) -> Result<()> {
        set_wallet_budget::handler(ctx, expected_attachments, budget_version, parent_version)
    }

    /// Creates an agent's vault and its token account.
    /// - `agent_hash`: SHA-256 of the agent's id; part of the vault's address.
    /// - `session`: The session authority and its expiry; `None` if only the operator signs.
    /// - `policy_version`: Version of the vault's policy.
    pub fn create_wallet(
        ctx: &mut Context<CreateWallet>,
        agent_hash: [u8; 32],
        session: Option<Session>,
        policy_version: u64,
        _end: End,
    ) -> Result<()> {
        create_wallet::handler(ctx, agent_hash, session, policy_version)
    }

    /// Sets a vault's session authority, its policy, or both. Spending before the change still counts.
    /// - `session_change`: The new session authority with its expiry; `None` keeps the present one.
    /// - `policy_change`: The new policy's version; `None` keeps the present policy.
    pub fn update_wallet(
        ctx: &mut Context<UpdateWallet>,
        session_change: Option<SessionChange>,
        policy_change: Option<PolicyChange>,
        _end: End,
    ) -> Result<()> {
        update_wallet::handler(ctx, session_change, policy_change)
    }

    /// Freezes or unfreezes a vault. A call that unfreezes must name the sequence number of the freeze. Anyone may
    /// freeze a vault with an expired policy.
    /// - `action`: Freeze, unfreeze, or freeze because the policy has expired.
    /// - `expected_sequence`: Number of the freeze to lift; only for an unfreeze.
    pub fn freeze_wallet(
        ctx: &mut Context<FreezeWallet>,
        action: FreezeAction,
        expected_sequence: Option<u64>,
        _end: End,
    ) -> Result<()> {
        freeze_wallet::handler(ctx, action, expected_sequence)
    }

    /// Archives an empty vault permanently and ends its session.
    /// - `expected_sequence`: The vault's sequence.
    pub fn close_wallet(ctx: &mut Context<CloseWallet>, expected_sequence: u64, _end: End) -> Result<()> {
        close_wallet::handler(ctx, expected_sequence)
    }

    /// Moves USDC from the reserve into a vault. With `only_below`, the call fails unless the vault holds less than
    /// that many micro-USDC.
    /// - `amount`: Amount in micro-USDC.
    /// - `reference`: Reference for the event, chosen by the client.
    /// - `only_below`: Fail unless the vault holds less than this many micro-USDC.
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
    /// - `amount`: Amount in micro-USDC; `None` for the whole balance.
    /// - `reference`: Reference for the event, chosen by the client.
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
    /// - `amount`: Amount in micro-USDC; `None` for the whole balance.
    /// - `reference`: Reference for the event, chosen by the client.
    /// - `expected_sequence`: The organisation's `authority_sequence`.
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
    /// - `address`: The address that may be paid: the owner of a token account.
    /// - `domain_digest`: SHA-256 of the lower-case domain; `None` if no domain is attested.
    /// - `category`: Category code.
    /// - `replaces`: Sequence of the present registration; zero if there is none.
    pub fn register_recipient(
        ctx: &mut Context<RegisterRecipient>,
        address: Address,
        domain_digest: Option<[u8; 32]>,
        category: u8,
        replaces: u64,
        _end: End,
    ) -> Result<()> {
        register_recipient::handler(ctx, address, domain_digest, category, replaces)
    }

    /// Approves one payment, escrow or allowance with exactly this recipient and amount, in advance, under the policy
    /// in this version. For an escrow, `terms` is the hash of its other terms; otherwise it is all zero.
    /// - `reference`: Identifies the approval within its vault; part of its address.
    /// - `recipient`: The recipient that may be paid.
    /// - `amount`: The exact amount in micro-USDC.
    /// - `expires_at`: Unix time of expiry, at most 24 hours ahead.
    /// - `kind`: The kind of spending that is approved.
    /// - `terms`: Hash of an escrow's other terms; all zero for a payment or an allowance.
    /// - `policy_version`: Version of the policy.
    /// - `expected_approvals`: Present number of approvals given for the vault, so that a kept copy of this instruction
    ///   cannot renew an approval that was used or withdrawn.
    pub fn approve_payment(
        ctx: &mut Context<ApprovePayment>,
        reference: [u8; 16],
        recipient: Address,
        amount: u64,
        expires_at: i64,
        kind: SpendingKind,
        terms: [u8; 32],
        policy_version: u64,
        expected_approvals: u64,
        _end: End,
    ) -> Result<()> {
        approve_payment::handler(
            ctx,
            reference,
            recipient,
            amount,
            expires_at,
            kind,
            terms,
            policy_version,
            expected_approvals,
        )
    }

    /// Declares a payee unknown, so that `new_recipient_cap` applies to it again. The operator signs.
    /// - `address`: The payee: the owner of the paid token account.
    /// - `first_paid`: Unix time of its first payment, which names the payee's entry: a copy kept for later fails once
    ///   the payee has a new entry.
    pub fn forget_payee(
        ctx: &mut Context<ForgetPayee>,
        address: Address,
        first_paid: i64,
        _end: End,
    ) -> Result<()> {
        forget_payee::handler(ctx, address, first_paid)
    }

    /// Withdraws an unused approval. Anyone may close an expired one.
    pub fn close_approval(ctx: &mut Context<CloseApproval>, _end: End) -> Result<()> {
        close_approval::handler(ctx)
    }

    /// Pays from a vault if its policy allows it.
    /// - `amount`: Amount in micro-USDC.
    /// - `reference`: Reference for the event, chosen by the client.
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
    /// - `terms`: The terms of the escrow.
    /// - `bump`: Bump of the escrow's address.
    pub fn create_escrow(
        ctx: &mut Context<CreateEscrow>,
        terms: EscrowTerms,
        bump: u8,
        _end: End,
    ) -> Result<()> {
        create_escrow::handler(ctx, &terms, bump)
    }

    /// Releases an escrow to its receiver, given a proof of completion before the deadline.
    /// - `kind`: Code of the kind of proof.
    /// - `output_hash`: Hash of the output.
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
    /// - `reason_hash`: SHA-256 of the reason, for the event.
    /// - `evidence_hash`: Hash of the evidence, for the event; all zero if there is none.
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
    /// - `expected_sequence`: The escrow's `dispute_sequence`.
    pub fn withdraw_dispute(
        ctx: &mut Context<DisputeEscrow>,
        expected_sequence: u64,
        _end: End,
    ) -> Result<()> {
        withdraw_dispute::handler(ctx, expected_sequence)
    }

    /// Divides a disputed escrow by its arbiter's decision: `released` micro-USDC for the receiver, the rest for the
    /// vault.
    /// - `released`: The receiver's share in micro-USDC.
    /// - `expected_sequence`: The escrow's `dispute_sequence`.
    pub fn resolve_dispute(
        ctx: &mut Context<SettleEscrow>,
        released: u64,
        expected_sequence: u64,
        _end: End,
    ) -> Result<()> {
        resolve_dispute::handler(ctx, released, expected_sequence)
    }

    /// Pays each share that stayed in a split escrow and can be paid now. Anyone may call it.
    pub fn collect_escrow(ctx: &mut Context<SettleEscrow>, _end: End) -> Result<()> {
        collect_escrow::handler(ctx)
    }

    /// Sets money of a vault aside, so that a delegate can pay it out with a plain transfer. The vault's policy must
    /// allow allowances and a payment of that amount to the owner of `destination`. The operator signs every grant.
    /// `bump` is the bump of the allowance's address.
    /// - `amount`: Amount in micro-USDC.
    /// - `reference`: Reference for the event, chosen by the client.
    /// - `expires_at`: Unix time of expiry, at most 180 seconds ahead.
    /// - `bump`: Bump of the allowance's address.
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
    /// while the vault, a charged budget or the organisation is stopped, and if the vault's policy was replaced or
    /// changed.
    pub fn settle_allowance(ctx: &mut Context<SettleAllowance>, _end: End) -> Result<()> {
        settle_allowance::handler(ctx)
    }

    /// Enlarges an account of an earlier layout to the current one; the new fields are zero. Adds to a vault the lists of
    /// payees that `new_recipient_cap` needs. Anyone may call it. Other instructions refuse accounts that do not have
    /// the current layout.
    pub fn migrate(ctx: &mut Context<Migrate>, _end: End) -> Result<()> {
        migrate::handler(ctx)
    }

    /// Returns the verdict of every rule on a payment, and of every other check that the payment makes. Counts
    /// `outstanding_count` outstanding payments, `outstanding_amount` in total, as if they were already paid. Changes
    /// nothing; meant to be simulated.
    /// - `amount`: Amount in micro-USDC.
    /// - `recipient`: The recipient: the owner of the token account that would be paid.
    /// - `co_signed`: True if the session authority signs, and the operator also signs or has approved.
    /// - `outstanding_amount`: Total of the outstanding payments in micro-USDC.
    /// - `outstanding_count`: Number of the outstanding payments.
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
