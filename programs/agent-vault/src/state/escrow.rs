//! Money that waits for the completion of a task.

use super::{seeds, Charged};
use agent_vault_policy::{escrow as policy, UnixTime, Usdc};
use anchor_lang::prelude::*;

/// Most escrows that a vault may have open.
#[constant]
pub const MAX_OPEN_ESCROWS: u32 = 64;

/// The kinds of proof, as codes; an escrow accepts a set of them, bit `1 << code` for each.
pub mod proof {
    use anchor_lang::prelude::*;

    /// A party shows the hash of the output.
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

/// An escrow that is not settled: settling closes the account, once both sides have their share. Its money is in a token
/// account of its own.
#[account]
pub struct Escrow {
    /// The organisation of the vault that pays.
    pub org: Address,
    /// The vault that pays.
    pub vault: Address,
    /// Who is paid on completion: a vault of the organisation, or any other address.
    pub receiver: Address,
    /// The receiver's associated token account.
    pub receiver_tokens: Address,
    /// The escrow's token account.
    pub tokens: Address,
    /// Paid the rent, gets it back.
    pub payer: Address,
    /// Signs completion proofs of the kind `webhook_callback`: the organisation's verifier when the escrow was made.
    pub verifier: Address,
    /// Decides a dispute: the organisation's arbiter when the escrow was made.
    pub arbiter: Address,
    /// Raised the dispute; all zero: nobody.
    pub disputed_by: Address,
    /// SHA-256 of the task's description.
    pub task_hash: [u8; 32],
    /// SHA-256 of what the output's hash must be; see `has_output_commitment`.
    pub output_commitment: [u8; 32],
    /// Names the escrow to its maker.
    pub reference: [u8; 16],
    /// Part of the address: the vault's number of escrows before.
    pub counter: u64,
    /// Micro-USDC locked.
    pub amount: u64,
    /// Unix time of its making.
    pub created_at: i64,
    /// Unix time from which it is refunded instead of completed.
    pub deadline: i64,
    /// Unix time of the dispute; zero: none.
    pub disputed_at: i64,
    /// Of a decided escrow, the receiver's share in micro-USDC.
    pub released: u64,
    /// Where the vault's ledger and its budget's hold the charge.
    pub charged: Charged,
    /// Accepted kinds of proof: see [`proof`].
    pub proof_kinds: u8,
    /// One when `output_commitment` counts.
    pub has_output_commitment: u8,
    /// One when the receiver is a vault: then its session authority acts for it.
    pub receiver_is_vault: u8,
    /// Bump of this address.
    pub bump: u8,
    /// One when the dispute is the receiver's.
    pub disputed_by_receiver: u8,
    /// How the arbiter decided, as in the event; zero while undecided. A decided escrow is still here because a side could
    /// not be paid.
    pub outcome: u8,
    /// One when the receiver's share waits to be collected.
    pub receiver_owed: u8,
    /// One when the vault's share waits to be collected.
    pub vault_owed: u8,
    /// Sides that have raised a dispute, withdrawn or not: bit 1 the requester, bit 2 the receiver. Each may once.
    pub raised: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

impl Escrow {
    /// The escrow as the policy crate judges it.
    pub fn as_policy(&self) -> policy::Escrow {
        policy::Escrow {
            amount: Usdc(self.amount),
            deadline: UnixTime(self.deadline),
            disputed_at: (self.disputed_at != 0).then_some(UnixTime(self.disputed_at)),
            raised: self.raised,
            decided: self.outcome != 0,
        }
    }

    /// The seeds that sign for this escrow's tokens. `end` is counter and bump: see [`Escrow::seed_end`].
    pub fn signer_seeds<'a>(&'a self, end: &'a ([u8; 8], [u8; 1])) -> [&'a [u8]; 4] {
        [seeds::ESCROW, self.vault.as_ref(), &end.0, &end.1]
    }

    /// Counter and bump as seeds.
    pub fn seed_end(&self) -> ([u8; 8], [u8; 1]) {
        (self.counter.to_le_bytes(), [self.bump])
    }
}
