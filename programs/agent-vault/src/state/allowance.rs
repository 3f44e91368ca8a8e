//! Allowances: money set aside in a token account, from which a delegate may pay.

use super::{seeds, BudgetLevel, LEVEL_COUNT};
use anchor_lang::prelude::*;

/// Maximum number of outstanding allowances per vault.
#[constant]
pub const MAX_OPEN_ALLOWANCES: u8 = 4;

/// Longest lifetime of an allowance, in seconds. After it, anyone may settle the allowance.
#[constant]
pub const MAX_ALLOWANCE_SECONDS: i64 = 180;

/// An allowance that is not settled yet; settling closes the account. Its money is in a separate token account. The
/// vault owns that account, and the delegate may transfer up to the granted amount from it.
///
/// The token program binds a delegate to no destination: the holder of the delegate's key decides who is paid. The
/// policy's rules judged the owner of `destination`, so their verdict holds only if the holder of that key pays this
/// account.
#[account]
pub struct Allowance {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// Bump of this address.
    pub bump: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 6],
    /// The organisation of the vault.
    pub org: Address,
    /// The vault that pays.
    pub vault: Address,
    /// The policy attached to the vault at the time of the grant.
    pub policy: Address,
    /// The intended recipient: the owner of `destination` at the time of the grant.
    pub recipient: Address,
    /// The token account to be paid.
    pub destination: Address,
    /// The key that signs the transfer.
    pub delegate: Address,
    /// The allowance's token account.
    pub tokens: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// Number of budgets in which the amount is held, in addition to the vault.
    pub level_count: u64,
    /// These budgets: the vault's own at the time of the grant, then its parent. The rest of the array is zero.
    pub levels: [BudgetLevel; LEVEL_COUNT],
    /// Reference chosen by the creator of the allowance.
    pub reference: [u8; 16],
    /// Part of the address: the vault's number of earlier allowances.
    pub counter: u64,
    /// Granted amount in micro-USDC.
    pub amount: u64,
    /// Version of `policy` at the time of the grant.
    pub policy_version: u64,
    /// Unix time of the grant.
    pub granted_at: i64,
    /// Unix time of expiry. From then on, anyone may settle the allowance; the delegate can still transfer.
    pub expires_at: i64,
}

impl Allowance {
    /// Returns the amount spent, given the amount that the delegate may still transfer. `None` means that `delegate` is
    /// no longer the token account's delegate, so the amount it could still transfer is unknown.
    ///
    /// The token program forgets a delegate when it transfers the last of its amount. The delegate can also disappear
    /// for other reasons; the whole amount then counts as spent. The balance proves nothing, because anyone may send
    /// money to the account.
    pub fn spent(&self, delegated: Option<u64>) -> u64 {
        self.amount.saturating_sub(delegated.unwrap_or(0))
    }
}

/// Returns the seeds of an allowance's address. `end` holds the vault's counter and the bump.
pub fn allowance_seeds<'a>(vault: &'a Address, end: &'a ([u8; 8], [u8; 1])) -> [&'a [u8]; 4] {
    [seeds::ALLOWANCE, vault.as_ref(), &end.0, &end.1]
}
