//! A budget shared by several vaults.

use super::{count_in, count_out, flag, set_value, value_if_set, write_option, Ledger};
use crate::errors::VaultError;
use agent_vault_policy as policy;
use alloc::vec::Vec;
use anchor_lang::{prelude::*, IdlType};

/// Limits on the joint spending of several vaults of an organisation, in addition to each vault's policy. Every
/// payment, escrow and allowance of an attached vault is charged to the budget in the same instruction.
#[account]
pub struct Budget {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// Bump of this address.
    pub bump: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 6],
    /// The organisation.
    pub org: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// Identifies the budget within the organisation.
    pub key: [u8; 16],
    /// The organisation's sequence at the budget's creation or last change. No two budgets of an organisation, and
    /// no two states of one budget, have the same version.
    pub version: u64,
    /// The organisation's sequence at the budget's creation. It identifies the ledger: a change keeps the ledger, while
    /// a budget that is recreated under the same key starts a new one.
    pub created_version: u64,
    /// Number of vaults attached.
    pub wallet_count: u64,
    /// Maximum micro-USDC in any 24 hours; see `flags`.
    pub max_per_day: u64,
    /// Maximum micro-USDC in a UTC calendar month; see `flags`.
    pub max_per_month: u64,
    /// Maximum payments in any hour; see `flags`.
    pub velocity_cap: u32,
    /// The limits that are set, as the bits of the policy rules of the same names: see [`flag`].
    pub flags: u32,
    /// The spending of the attached vaults over time.
    pub ledger: Ledger,
}

/// The limits of a budget as used in instructions and events. `None` means that the limit is not set.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct BudgetLimits {
    /// Maximum spending in any 24 hours, in micro-USDC.
    pub max_per_day: Option<u64>,
    /// Maximum spending in a UTC calendar month, in micro-USDC.
    pub max_per_month: Option<u64>,
    /// Maximum number of payments in any hour.
    pub velocity_cap: Option<u32>,
}

impl BudgetLimits {
    /// Appends the fields in Borsh encoding, in declaration order.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_option(out, self.max_per_day, 8);
        write_option(out, self.max_per_month, 8);
        write_option(out, self.velocity_cap.map(u64::from), 4);
    }
}

impl Budget {
    /// Returns the budget as the policy crate's type, which judges payments.
    #[inline(always)]
    pub fn as_policy(&self) -> policy::Budget<'_> {
        let limits = policy::Limits {
            max_per_day: value_if_set(self.flags, flag::MAX_PER_DAY, self.max_per_day).map(policy::Usdc),
            max_per_month: value_if_set(self.flags, flag::MAX_PER_MONTH, self.max_per_month)
                .map(policy::Usdc),
            velocity_cap: value_if_set(self.flags, flag::VELOCITY_CAP, u64::from(self.velocity_cap)),
        };
        policy::Budget { limits, ledger: self.ledger.as_policy() }
    }

    /// Replaces all limits by `limits`.
    pub fn set_limits(&mut self, limits: &BudgetLimits) {
        self.flags = 0;
        self.max_per_day = set_value(&mut self.flags, flag::MAX_PER_DAY, limits.max_per_day);
        self.max_per_month = set_value(&mut self.flags, flag::MAX_PER_MONTH, limits.max_per_month);
        self.velocity_cap = set_value(&mut self.flags, flag::VELOCITY_CAP, limits.velocity_cap);
    }

    /// Adds one attached vault to the count.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if the count exceeds 64 bits.
    pub fn attach(&mut self) -> Result<()> {
        count_in(&mut self.wallet_count)
    }

    /// Removes one attached vault from the count.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if no vault was attached.
    pub fn detach(&mut self) -> Result<()> {
        count_out(&mut self.wallet_count)
    }

    /// Records an authorized allowance and holds its amount.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
    pub fn hold(&mut self, charge: &policy::Charge) -> Result<()> {
        Ok(self.ledger.as_policy_mut().hold(charge).map_err(|_| VaultError::Overflow)?)
    }

    /// Records an authorized charge and returns its place.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
    #[inline(never)]
    pub fn charge(&mut self, charge: &policy::Charge) -> Result<policy::Place> {
        let ledger = self.ledger.as_policy_mut();
        ledger.charge(charge).map_err(|_| VaultError::Overflow)?;
        Ok(ledger.place())
    }
}
