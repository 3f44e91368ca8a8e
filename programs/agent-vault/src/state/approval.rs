//! The operator's approval of one payment, escrow or allowance, made before it.

use anchor_lang::{prelude::*, IdlType};

/// Longest time that an approval lives, in seconds.
#[constant]
pub const MAX_APPROVAL_SECONDS: i64 = 86_400;

/// The ways out of a vault, each with an approval of its own kind: who agrees to lock money until there is proof has not
/// agreed to pay it out, and who agrees to a payment has not agreed to hand its sum to a delegate.
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

/// Stands for the operator's signature on one payment, escrow or allowance of exactly this vault, recipient and amount,
/// under the policy as it is. Used once: what it was for closes it.
#[account]
pub struct Approval {
    /// The vault that may pay.
    pub vault: Address,
    /// The policy attached when it was approved: another one, even of the same version, is not meant.
    pub policy: Address,
    /// The operator that approved: what a former operator approved no longer counts.
    pub operator: Address,
    /// Who may be paid.
    pub recipient: Address,
    /// Paid the rent, gets it back.
    pub payer: Address,
    /// Names the approval.
    pub reference: [u8; 16],
    /// Exactly this many micro-USDC.
    pub amount: u64,
    /// Version of that policy when it was approved.
    pub policy_version: u64,
    /// Unix time from which it no longer counts.
    pub expires_at: i64,
    /// Bump of this address.
    pub bump: u8,
    /// What it is for: the code of a [`SpendingKind`].
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 6],
}
