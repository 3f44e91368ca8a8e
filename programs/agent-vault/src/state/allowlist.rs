//! The allowlist of a policy: sorted entries behind a header.

use anchor_lang::{accounts::Slab, prelude::*, IdlType};

/// An address, or the SHA-256 of the SHA-256 of a lower-case domain.
pub type Entry = [u8; 32];

/// Most entries of one list.
#[constant]
pub const MAX_ENTRIES: u32 = 1_000;

/// Header of an allowlist. Behind it: the number of entries (u32, little endian) and the entries of 32 bytes each,
/// sorted ascending as byte strings. Written in chunks, sealed, and only then put in force, so a policy never shows a
/// half-edited list.
#[account]
pub struct Allowlist {
    /// The policy it is for.
    pub policy: Address,
    /// Paid the rent, gets it back.
    pub payer: Address,
    /// Part of the address.
    pub version: u64,
    /// One when complete: then nothing is written to it any more.
    pub sealed: u8,
    /// Bump of this address.
    pub bump: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

/// What the authority agrees to when it puts a list in force that the operator may have written.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct AllowlistDigest {
    /// Number of entries.
    pub count: u32,
    /// SHA-256 of the entries, one after the other.
    pub hash: [u8; 32],
}

impl AllowlistDigest {
    /// Whether these are the entries that were agreed to.
    pub fn is_of(&self, entries: &[Entry]) -> bool {
        entries.len() == self.count as usize && sha256(entries.as_flattened()) == self.hash
    }
}

/// An allowlist with its entries.
pub type AllowlistAccount = Slab<Allowlist, Entry>;
