//! Escrows: money locked until a task is completed.

use super::{seeds, Charged};
use agent_vault_policy::{escrow as policy, UnixTime, Usdc};
use anchor_lang::prelude::*;

/// Maximum number of open escrows per vault.
#[constant]
pub const MAX_OPEN_ESCROWS: u32 = 64;

/// The kinds of proof, as codes. An escrow accepts a set of kinds, with bit `1 << code` for each.
pub mod proof {
    use anchor_lang::prelude::*;

    /// A party presents the hash of the output.
    #[constant]
    pub const OUTPUT_HASH: u8 = 0;
    /// The receiver signs the hash of the output.
    #[constant]
    pub const SIGNED_ATTESTATION: u8 = 1;
    /// The escrow's verifier signs the hash of the output.
    #[constant]
    pub const WEBHOOK_CALLBACK: u8 = 2;
    /// The set of all kinds.
    pub const ALL: u8 = 0b111;
}

/// An escrow that is not settled yet; settling closes the account once both sides have their share. Its money is in a
/// separate token account.
#[account]
pub struct Escrow {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// Accepted kinds of proof: see [`proof`].
    pub proof_kinds: u8,
    /// One if `output_commitment` is set.
    pub has_output_commitment: u8,
    /// One if the receiver is a vault. Its session authority then acts for it.
    pub receiver_is_vault: u8,
    /// Bump of this address.
    pub bump: u8,
    /// One if the receiver raised the dispute.
    pub disputed_by_receiver: u8,
    /// The arbiter's decision, with the outcome codes of the event `EscrowSettled`; zero if the escrow is not decided.
    /// A decided escrow still exists only if a side could not be paid.
    pub outcome: u8,
    /// One if the receiver's share is still to be collected.
    pub receiver_owed: u8,
    /// One if the vault's share is still to be collected.
    pub vault_owed: u8,
    /// The sides that have raised a dispute, withdrawn or not: 1 for the requester, 2 for the receiver, 3 for both.
    /// Each may do so once.
    pub raised: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 6],
    /// The organisation of the vault that pays.
    pub org: Address,
    /// The vault that pays.
    pub vault: Address,
    /// The address paid on completion: a vault of the organisation, or any other address.
    pub receiver: Address,
    /// The receiver's associated token account.
    pub receiver_tokens: Address,
    /// The escrow's token account.
    pub tokens: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// The key that signs completion proofs of the kind `webhook_callback`: the organisation's verifier when the escrow
    /// was created.
    pub verifier: Address,
    /// The key that decides a dispute: the organisation's arbiter when the escrow was created.
    pub arbiter: Address,
    /// The signer that raised the dispute; all zero if there is none.
    pub disputed_by: Address,
    /// SHA-256 of the task's description.
    pub task_hash: [u8; 32],
    /// SHA-256 of the output hash that completion requires; see `has_output_commitment`.
    pub output_commitment: [u8; 32],
    /// Reference chosen by the creator of the escrow.
    pub reference: [u8; 16],
    /// Part of the address: the vault's number of earlier escrows.
    pub counter: u64,
    /// Locked amount in micro-USDC.
    pub amount: u64,
    /// Unix time of creation.
    pub created_at: i64,
    /// Deadline as Unix time. From then on, the escrow can be refunded but no longer completed. A dispute stops the
    /// clock: its withdrawal moves the deadline by the time that the dispute lasted.
    pub deadline: i64,
    /// Unix time of the dispute; zero if there is none.
    pub disputed_at: i64,
    /// The vault's sequence at the last dispute, which a decision or withdrawal must name. Zero if there was none.
    pub dispute_sequence: u64,
    /// The receiver's share of a decided escrow, in micro-USDC.
    pub released: u64,
    /// The places of the charge in the ledgers of the vault and of its budgets.
    pub charged: Charged,
}

impl Escrow {
    /// Returns the escrow in the form that the policy crate judges.
    pub fn as_policy(&self) -> policy::Escrow {
        policy::Escrow {
            amount: Usdc(self.amount),
            deadline: UnixTime(self.deadline),
            disputed_at: (self.disputed_at != 0).then_some(UnixTime(self.disputed_at)),
            raised: self.raised,
            decided: self.outcome != 0,
        }
    }

    /// Returns the seeds that sign for this escrow's tokens. `end` holds counter and bump: see [`Escrow::seed_end`].
    pub fn signer_seeds<'a>(&'a self, end: &'a ([u8; 8], [u8; 1])) -> [&'a [u8]; 4] {
        [seeds::ESCROW, self.vault.as_ref(), &end.0, &end.1]
    }

    /// Returns counter and bump as seeds.
    pub fn seed_end(&self) -> ([u8; 8], [u8; 1]) {
        (self.counter.to_le_bytes(), [self.bump])
    }
}
