//! Money that a delegate may pay out.

use super::{seeds, Charged};
use anchor_lang::prelude::*;

/// Most allowances that a vault may have outstanding.
#[constant]
pub const MAX_OPEN_ALLOWANCES: u8 = 4;

/// Longest time until anyone may settle an allowance, in seconds.
#[constant]
pub const MAX_ALLOWANCE_SECONDS: i64 = 180;

/// An allowance that is not settled: settling closes the account. Its money is in a token account of its own, which is the
/// vault's, and of which the delegate may transfer exactly the amount granted.
///
/// The token program binds a delegate to no destination: who has the delegate's key decides who is paid. The rules judged
/// the owner of `destination`, and hold only as far as that key is in good hands.
#[account]
pub struct Allowance {
    /// The organisation of the vault.
    pub org: Address,
    /// The vault that pays.
    pub vault: Address,
    /// The policy attached when it was granted.
    pub policy: Address,
    /// Who is to be paid: the owner of `destination` when it was granted.
    pub recipient: Address,
    /// The token account that is to be paid.
    pub destination: Address,
    /// Signs the transfer.
    pub delegate: Address,
    /// The allowance's token account.
    pub tokens: Address,
    /// Paid the rent, gets it back.
    pub payer: Address,
    /// Where the vault's ledger and its budget's hold the charge.
    pub charged: Charged,
    /// Names the allowance to its maker.
    pub reference: [u8; 16],
    /// Part of the address: the vault's number of allowances before.
    pub counter: u64,
    /// Micro-USDC granted.
    pub amount: u64,
    /// Version of that policy when it was granted.
    pub policy_version: u64,
    /// Unix time of its making.
    pub granted_at: i64,
    /// Unix time from which anyone settles it. It stops no transfer.
    pub expires_at: i64,
    /// Bump of this address.
    pub bump: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

impl Allowance {
    /// What was spent, given how much the delegate may still transfer; nothing is known of that (`None`) once it is no longer
    /// the token account's delegate.
    ///
    /// The token program forgets a delegate with the last of what it may transfer. It can have gone for other reasons, too, and
    /// then everything counts as spent. The balance says nothing: anyone may send money.
    pub fn spent(&self, delegated: Option<u64>) -> u64 {
        self.amount.saturating_sub(delegated.unwrap_or(0))
    }
}

/// The seeds of an allowance's address. `end` is the vault's counter and the bump.
pub fn allowance_seeds<'a>(vault: &'a Address, end: &'a ([u8; 8], [u8; 1])) -> [&'a [u8]; 4] {
    [seeds::ALLOWANCE, vault.as_ref(), &end.0, &end.1]
}
