//! The operator's approval of one payment, escrow or allowance, given in advance.

use anchor_lang::{prelude::*, IdlType};

/// Longest lifetime of an approval, in seconds.
#[constant]
pub const MAX_APPROVAL_SECONDS: i64 = 86_400;

/// The kinds of spending. An approval is for one of them alone: consent to lock money until there is proof is not
/// consent to pay it out, and consent to a payment is not consent to hand the amount to a delegate.
#[derive(Clone, Copy, PartialEq, Eq, AnchorSerialize, AnchorDeserialize, IdlType)]
#[repr(u8)]
pub enum SpendingKind {
    /// [`crate::agent_vault::execute_payment`].
    Payment,
    /// [`crate::agent_vault::create_escrow`].
    Escrow,
    /// [`crate::agent_vault::grant_allowance`].
    Allowance,
}

/// The operator's consent to one payment, escrow or allowance with exactly this vault, recipient and amount. It
/// replaces the operator's signature until it expires, or the policy or the operator changes. It can be used once: the
/// payment, escrow or allowance closes it.
#[account]
pub struct Approval {
    /// The vault that may pay.
    pub vault: Address,
    /// The policy attached at the time of the approval. A different policy does not match, even if it has the same
    /// version.
    pub policy: Address,
    /// The operator that gave the approval. Approvals of a former operator no longer count.
    pub operator: Address,
    /// The recipient that may be paid.
    pub recipient: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// Identifies the approval within its vault; part of this account's address.
    pub reference: [u8; 16],
    /// The exact amount in micro-USDC.
    pub amount: u64,
    /// Version of `policy` at the time of the approval.
    pub policy_version: u64,
    /// Unix time of expiry. The approval no longer counts from then on.
    pub expires_at: i64,
    /// Bump of this address.
    pub bump: u8,
    /// The kind of spending approved: the code of a [`SpendingKind`].
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 6],
}
