//! The first seed of each kind of account at an address derived from this program, and the seeds of the token accounts
//! of escrows and allowances. (For the seed of a Recipient account see [`super::recipient_address`].)

use anchor_lang::prelude::*;

/// Org: `org`, creator, SHA-256 of the organisation's id.
#[constant]
pub const ORG: &[u8] = b"org";
/// Policy: `policy`, org, 16-byte key.
#[constant]
pub const POLICY: &[u8] = b"policy";
/// Allowlist: `allowlist`, policy, version (u64, little endian; see `Policy::next_allowlist_version`).
#[constant]
pub const ALLOWLIST: &[u8] = b"allowlist";
/// Budget: `budget`, org, 16-byte key.
#[constant]
pub const BUDGET: &[u8] = b"budget";
/// Vault: `vault`, org, SHA-256 of the agent's id.
#[constant]
pub const VAULT: &[u8] = b"vault";
/// Approval: `approval`, vault, 16-byte reference.
#[constant]
pub const APPROVAL: &[u8] = b"approval";
/// Escrow: `escrow`, the vault that pays, the vault's escrow counter (u64, little endian).
#[constant]
pub const ESCROW: &[u8] = b"escrow";
/// Seed that derives an escrow's token account from the escrow's address: see [`super::create_seeded`].
#[constant]
pub const ESCROW_TOKENS: &[u8] = b"escrow_tokens";
/// Allowance: `allowance`, the vault that pays, the vault's allowance counter (u64, little endian).
#[constant]
pub const ALLOWANCE: &[u8] = b"allowance";
/// Seed that derives an allowance's token account from the allowance's address.
#[constant]
pub const ALLOWANCE_TOKENS: &[u8] = b"allowance_tokens";
