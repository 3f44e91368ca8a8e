//! A budget shared by several vaults.

use super::{count_in, count_out, flag, set_value, value_if_set, write_option, Ledger, Outlined, NONE};
use crate::errors::VaultError;
use agent_vault_policy as policy;
use alloc::vec::Vec;
use anchor_lang::{address_eq, prelude::*, IdlType};

/// Limits on the joint spending of several vaults of an organisation, in addition to each vault's policy. Every
/// payment, escrow and allowance of an attached vault is charged to the budget in the same instruction.
#[account]
pub struct Budget {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// Bump of this address.
    pub bump: u8,
    /// One if the budget is frozen.
    pub frozen: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 5],
    /// The organisation.
    pub org: Address,
    /// The budget that this one belongs to, fixed at creation; all zero if there is none. A parent has no parent itself.
    pub parent: Address,
    /// Payer of the rent, refunded on closing.
    pub payer: Address,
    /// Identifies the budget within the organisation.
    pub key: [u8; 16],
    /// The organisation's sequence at the budget's creation or last change. No two budgets of an organisation, and
    /// no two states of one budget, have the same version.
    pub version: u64,
    /// The organisation's sequence at the budget's creation. This number identifies the ledger: new limits keep the
    /// ledger, while a budget that is recreated under the same key starts a new ledger.
    pub created_version: u64,
    /// The organisation's sequence when the budget was frozen or unfrozen last; zero if it never was. An unfreeze must
    /// name this number.
    pub frozen_sequence: u64,
    /// Number of vaults attached.
    pub wallet_count: u64,
    /// Number of budgets that have this one as their parent.
    pub budget_count: u64,
    /// Maximum micro-USDC in any 24 hours; see `flags`.
    pub max_per_day: u64,
    /// Maximum micro-USDC in a UTC calendar month; see `flags`.
    pub max_per_month: u64,
    /// Maximum micro-USDC in the budget's life; see `flags`.
    pub max_total: u64,
    /// Unix time of expiry; see `flags`.
    pub expires_at: i64,
    /// Maximum payments in any hour; see `flags`.
    pub velocity_cap: u32,
    /// The limits that are set. Each limit uses the bit of the corresponding policy rule: see [`flag`].
    pub flags: u32,
    /// Micro-USDC spent in the budget's life, without held money.
    pub total_spent: u64,
    /// The spending over time of the attached vaults, and of the vaults of budgets that have this one as their parent.
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
    /// Maximum spending in the budget's life, in micro-USDC.
    pub max_total: Option<u64>,
    /// Unix time of expiry. Later payments are refused.
    pub expires_at: Option<i64>,
}

impl BudgetLimits {
    /// Appends the fields in Borsh encoding, in declaration order.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_option(out, self.max_per_day, 8);
        write_option(out, self.max_per_month, 8);
        write_option(out, self.velocity_cap.map(u64::from), 4);
        write_option(out, self.max_total, 8);
        write_option(out, self.expires_at.map(i64::cast_unsigned), 8);
    }
}

impl policy::AsBudget for Budget {
    #[inline(always)]
    fn as_budget(&self) -> policy::Budget<'_> {
        let expires_at = self.expiry();
        let limits = policy::Limits {
            max_per_day: value_if_set(self.flags, flag::MAX_PER_DAY, self.max_per_day).map(policy::Usdc),
            max_per_month: value_if_set(self.flags, flag::MAX_PER_MONTH, self.max_per_month)
                .map(policy::Usdc),
            velocity_cap: value_if_set(self.flags, flag::VELOCITY_CAP, u64::from(self.velocity_cap)),
            max_total: value_if_set(self.flags, flag::MAX_TOTAL, self.max_total).map(policy::Usdc),
            expires_at,
        };
        policy::Budget {
            limits,
            frozen: self.is_frozen(),
            total_spent: policy::Usdc(self.total_spent),
            ledger: self.ledger.as_policy(),
        }
    }
}

impl Budget {
    /// Returns the last second that accepts payments, if the budget has an end.
    #[inline(always)]
    pub fn expiry(&self) -> Option<policy::UnixTime> {
        value_if_set(self.flags, flag::EXPIRY, self.expires_at).map(policy::UnixTime)
    }

    /// Returns true if the budget is frozen. Then neither its vaults nor those of its child budgets can pay.
    #[inline(always)]
    pub fn is_frozen(&self) -> bool {
        self.frozen != 0
    }

    /// Replaces all limits by `limits`.
    pub fn set_limits(&mut self, limits: &BudgetLimits) {
        self.flags = 0;
        self.max_per_day = set_value(&mut self.flags, flag::MAX_PER_DAY, limits.max_per_day);
        self.max_per_month = set_value(&mut self.flags, flag::MAX_PER_MONTH, limits.max_per_month);
        self.velocity_cap = set_value(&mut self.flags, flag::VELOCITY_CAP, limits.velocity_cap);
        self.max_total = set_value(&mut self.flags, flag::MAX_TOTAL, limits.max_total);
        self.expires_at = set_value(&mut self.flags, flag::EXPIRY, limits.expires_at);
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

    /// Adds one to the number of budgets that have this one as their parent.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if the count exceeds 64 bits.
    pub fn adopt(&mut self) -> Result<()> {
        count_in(&mut self.budget_count)
    }

    /// Subtracts one from the number of budgets that have this one as their parent.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if this budget was no parent.
    pub fn release_child(&mut self) -> Result<()> {
        count_out(&mut self.budget_count)
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
        self.count_spent(charge.amount)?;
        let ledger = self.ledger.as_policy_mut();
        ledger.charge(charge).map_err(|_| VaultError::Overflow)?;
        Ok(ledger.place())
    }

    /// Ends the hold of an allowance's `amount` and records the part `spent` of it.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
    pub fn release(
        &mut self,
        clock: policy::UnixTime,
        amount: policy::Usdc,
        spent: policy::Usdc,
    ) -> Result<()> {
        self.count_spent(spent)?;
        Ok(self.ledger.as_policy_mut().release(clock, amount, spent).map_err(|_| VaultError::Overflow)?)
    }

    /// Takes `returned` back, a part of the amount charged at `place`. The total never drops below zero.
    pub fn credit(&mut self, place: policy::Place, returned: policy::Usdc) {
        self.total_spent = self.total_spent.saturating_sub(returned.0);
        self.ledger.as_policy_mut().credit(place, returned);
    }

    #[inline(always)]
    fn count_spent(&mut self, amount: policy::Usdc) -> Result<()> {
        self.total_spent = self.total_spent.checked_add(amount.0).ok_or(VaultError::Overflow)?;
        Ok(())
    }
}

/// Checks that `parent` is the account of the budget's parent, or missing if there is none.
///
/// # Errors
/// [`VaultError::BudgetParentRequired`] if the budget has a parent and `parent` is missing; [`VaultError::WrongBudget`]
/// if `parent` is a different account.
#[inline(always)]
pub fn check_parent(budget: Option<&Budget>, parent: Option<&Outlined<Account<Budget>>>) -> Result<()> {
    let expected = budget.map_or(&NONE, |budget| &budget.parent);
    let Some(parent) = parent else {
        require!(address_eq(expected, &NONE), VaultError::BudgetParentRequired);
        return Ok(());
    };
    require!(address_eq(expected, parent.address()), VaultError::WrongBudget);
    Ok(())
}
