//! The allowlist of a policy: sorted entries after a header.

use anchor_lang::{accounts::Slab, prelude::*, IdlType};

/// An address, or the SHA-256 of the SHA-256 of a lower-case domain.
pub type Entry = [u8; 32];

/// Maximum number of entries in one list.
#[constant]
pub const MAX_ENTRIES: u32 = 1_000;

/// Header of an allowlist. The number of entries (u32, little endian) and the entries follow it: 32 bytes each, sorted
/// in ascending order as byte strings. An entry is the address of a recipient, or the SHA-256 of the SHA-256 of a
/// lower-case domain, which permits every recipient with an attestation of that domain in effect. A list is written in
/// chunks, sealed, and only then put in force, so a policy never exposes a half-edited list.
#[account]
pub struct Allowlist {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// One if the list is complete. A sealed list cannot be written to any more.
    pub sealed: u8,
    /// Bump of this address.
    pub bump: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 5],
    /// The policy that the list belongs to.
    pub policy: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// Version of the list, which is part of this account's address.
    pub version: u64,
}

/// The authority's consent to a list that the operator may have written, given when it puts the list in force.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct AllowlistDigest {
    /// Number of entries.
    pub count: u32,
    /// SHA-256 of the concatenated entries.
    pub hash: [u8; 32],
}

impl AllowlistDigest {
    /// Returns true if `entries` are the ones that the authority agreed to.
    pub fn is_of(&self, entries: &[Entry]) -> bool {
        entries.len() == self.count as usize && sha256(entries.as_flattened()) == self.hash
    }
}

/// An allowlist including its entries.
pub type AllowlistAccount = Slab<Allowlist, Entry>;
