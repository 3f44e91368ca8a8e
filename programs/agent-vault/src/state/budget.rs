//! A budget that vaults share.

use super::{count_in, count_out, flag, set_value, value_if_set, write_option, Ledger};
use crate::errors::VaultError;
use agent_vault_policy as policy;
use alloc::vec::Vec;
use anchor_lang::{prelude::*, IdlType};

/// What vaults of an organisation may spend together, on top of what each one's policy lets it. Every payment of such a
/// vault is charged here in the same instruction.
#[account]
pub struct Budget {
    /// The organisation.
    pub org: Address,
    /// Paid the rent, gets it back.
    pub payer: Address,
    /// Names the budget within the organisation.
    pub key: [u8; 16],
    /// The organisation's sequence at its creation or last change. No two budgets, nor two states of one, share it.
    pub version: u64,
    /// The organisation's sequence at its creation: names its ledger, which a change keeps and a budget created anew under the
    /// same key does not have.
    pub created_version: u64,
    /// Number of vaults attached.
    pub wallet_count: u64,
    /// Micro-USDC in any 24 hours; see `flags`.
    pub max_per_day: u64,
    /// Micro-USDC in a UTC calendar month; see `flags`.
    pub max_per_month: u64,
    /// Payments in any hour; see `flags`.
    pub velocity_cap: u32,
    /// Which of the limits count, by the bits of the policy's rules of the same names: see [`flag`].
    pub flags: u32,
    /// Bump of this address.
    pub bump: u8,
    /// Zero.
    pub reserved: [u8; 7],
    /// What its vaults have spent, and when.
    pub ledger: Ledger,
}

/// The limits of a budget as instructions and events carry them. `None`: the limit is not set.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct BudgetLimits {
    /// Most that any 24 hours may hold, micro-USDC.
    pub max_per_day: Option<u64>,
    /// Most that a UTC calendar month may hold, micro-USDC.
    pub max_per_month: Option<u64>,
    /// Most payments that any hour may hold.
    pub velocity_cap: Option<u32>,
}

impl BudgetLimits {
    /// Appends the fields in Borsh, in their order.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_option(out, self.max_per_day, 8);
        write_option(out, self.max_per_month, 8);
        write_option(out, self.velocity_cap.map(u64::from), 4);
    }
}

impl Budget {
    /// The budget as the policy crate judges by it.
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

    /// Takes over `limits` whole.
    pub fn set_limits(&mut self, limits: &BudgetLimits) {
        self.flags = 0;
        self.max_per_day = set_value(&mut self.flags, flag::MAX_PER_DAY, limits.max_per_day);
        self.max_per_month = set_value(&mut self.flags, flag::MAX_PER_MONTH, limits.max_per_month);
        self.velocity_cap = set_value(&mut self.flags, flag::VELOCITY_CAP, limits.velocity_cap);
    }

    /// Counts one more vault attached.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] at the end of 64 bits.
    pub fn attach(&mut self) -> Result<()> {
        count_in(&mut self.wallet_count)
    }

    /// Counts one vault less.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] when none was attached.
    pub fn detach(&mut self) -> Result<()> {
        count_out(&mut self.wallet_count)
    }

    /// Records what was authorized, and returns where.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] when a sum does not fit.
    #[inline(never)]
    pub fn charge(&mut self, charge: &policy::Charge) -> Result<policy::Place> {
        let ledger = self.ledger.as_policy_mut();
        ledger.charge(charge).map_err(|_| VaultError::Overflow)?;
        Ok(ledger.place())
    }
}
