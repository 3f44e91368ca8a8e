//! Where money was charged that may come back: part of the accounts of escrows and allowances.

use super::{same_address, Budget, Outlined, Unloaded, Vault, NONE};
use crate::{errors::VaultError, ID};
use agent_vault_policy::{Charges, Place, UnixTime, Usdc};
use anchor_lang::{
    bytemuck::{Pod, Zeroable},
    prelude::*,
    IdlType,
};
use core::mem::size_of;

/// Where the ledgers of a vault and of its budget hold a charge.
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct Charged {
    /// The budget of the vault at that time; none (all zero): it had none.
    pub budget: Address,
    /// The budget's `created_version`, which names the ledger that it was charged to.
    pub budget_created_version: u64,
    /// Absolute number of the slot of the budget's ledger that it was charged to.
    pub budget_slot: u64,
    /// End of the calendar month of the budget's ledger that it was charged to.
    pub budget_month: i64,
    /// Absolute number of the 15-minute slot of the vault's ledger that it was charged to.
    pub slot: u64,
    /// End of the calendar month of the vault's ledger that it was charged to.
    pub month: i64,
}

// SAFETY: repr(C), only bytes and integers, and no padding (asserted below).
unsafe impl Pod for Charged {}
unsafe impl Zeroable for Charged {}
const _: () = assert!(size_of::<Charged>() == 32 + 5 * 8);

impl Charged {
    /// Records what was authorized in both ledgers, and returns where.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] when a sum does not fit.
    #[inline(never)]
    pub fn record(vault: &mut Vault, budget: Option<&mut Budget>, charges: &Charges) -> Result<Self> {
        let ledger = vault.ledger.as_policy_mut();
        ledger.charge(&charges.vault).map_err(|_| VaultError::Overflow)?;
        let place = ledger.place();
        let (created_version, shared) = match (budget, &charges.budget) {
            (Some(budget), Some(charge)) => (budget.created_version, budget.charge(charge)?),
            _ => (0, Place::default()),
        };
        Ok(Charged {
            budget: vault.budget,
            budget_created_version: created_version,
            budget_slot: shared.day_slot,
            budget_month: shared.month_ends_at.0,
            slot: place.day_slot,
            month: place.month_ends_at.0,
        })
    }

    /// Gives back to both ledgers what of the charge was not spent. `given` is the account of the budget that it was
    /// charged to, whether or not it still exists and whatever the vault's is now: one that was closed since, even if created
    /// anew, has another ledger, to which nothing was charged.
    ///
    /// # Errors
    /// [`VaultError::BudgetRequired`], [`VaultError::WrongBudget`].
    #[inline(never)]
    pub fn credit(&self, vault: &mut Vault, given: Option<&Unloaded<Budget>>, returned: Usdc) -> Result<()> {
        let place = Place { day_slot: self.slot, month_ends_at: UnixTime(self.month) };
        vault.ledger.as_policy_mut().credit(place, returned);
        let Some(given) = given else {
            require!(same_address(&self.budget, &NONE), VaultError::BudgetRequired);
            return Ok(());
        };
        require!(same_address(&self.budget, given.address()), VaultError::WrongBudget);
        if !given.owned_by(&ID) {
            return Ok(());
        }
        // SAFETY: the dispatcher has refused a second mutable reference to the account.
        let mut budget = unsafe { Outlined::<Account<Budget>>::load_mut(**given) }?;
        if budget.created_version == self.budget_created_version {
            let place = Place { day_slot: self.budget_slot, month_ends_at: UnixTime(self.budget_month) };
            budget.ledger.as_policy_mut().credit(place, returned);
        }
        Ok(())
    }
}
