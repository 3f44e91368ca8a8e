//! The operator's approval of one payment, escrow or allowance, given in advance.

use alloc::vec::Vec;
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

/// The operator's consent to one payment, escrow or allowance with exactly this vault, recipient and amount, and for an
/// escrow with exactly these terms. It replaces the operator's signature until it expires, or the policy or the
/// operator changes. It can be used once: the payment, escrow or allowance closes it.
#[account]
pub struct Approval {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// Bump of this address.
    pub bump: u8,
    /// The kind of spending approved: the code of a [`SpendingKind`].
    pub kind: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 5],
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
    /// Hash of the escrow's terms: see [`terms_hash`]. All zero for a payment or an allowance.
    pub terms: [u8; 32],
    /// Identifies the approval within its vault; part of this account's address.
    pub reference: [u8; 16],
    /// The exact amount in micro-USDC.
    pub amount: u64,
    /// Version of `policy` at the time of the approval.
    pub policy_version: u64,
    /// Unix time of expiry. The approval no longer counts from then on.
    pub expires_at: i64,
}

/// Hashes the terms of an escrow beyond recipient and amount, so that an approval covers them: the hash of the task,
/// the output commitment (all zero if there is none), the accepted kinds of proof, the timeout in seconds, and the
/// organisation's verifier and arbiter.
pub fn terms_hash(
    task_hash: &[u8; 32],
    output_commitment: Option<&[u8; 32]>,
    proof_kinds: u8,
    timeout: u32,
    verifier: &Address,
    arbiter: &Address,
) -> [u8; 32] {
    let mut terms = Vec::with_capacity(134);
    terms.extend_from_slice(task_hash);
    terms.push(u8::from(output_commitment.is_some()));
    terms.extend_from_slice(output_commitment.unwrap_or(&[0; 32]));
    terms.push(proof_kinds);
    terms.extend_from_slice(&timeout.to_le_bytes());
    terms.extend_from_slice(verifier.as_ref());
    terms.extend_from_slice(arbiter.as_ref());
    sha256(&terms)
}
