//! The charge of an escrow, which may be refunded in part or in whole, and the held money of an allowance.

use super::{same_address, Allowance, Budget, Ledger, Outlined, Unloaded, Vault, NONE};
use crate::{errors::VaultError, ID};
use agent_vault_policy::{Charges, Place, UnixTime, Usdc};
use anchor_lang::{
    bytemuck::{Pod, Zeroable},
    prelude::*,
    IdlType,
};
use core::mem::size_of;

/// The places of a charge in the ledgers of a vault and of its budget.
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct Charged {
    /// The vault's budget at the time of the charge; all zero if the vault had none.
    pub budget: Address,
    /// The budget's `created_version`, which identifies the charged ledger.
    pub budget_created_version: u64,
    /// Absolute number of the charged slot in the budget's ledger.
    pub budget_slot: u64,
    /// End of the charged calendar month in the budget's ledger.
    pub budget_month: i64,
    /// Absolute number of the charged 15-minute slot in the vault's ledger.
    pub slot: u64,
    /// End of the charged calendar month in the vault's ledger.
    pub month: i64,
}

// SAFETY: repr(C), only bytes and integers, and no padding (asserted below).
unsafe impl Pod for Charged {}
unsafe impl Zeroable for Charged {}
const _: () = assert!(size_of::<Charged>() == 32 + 5 * 8);

impl Charged {
    /// Records authorized charges in both ledgers and returns their places.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
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

    /// Returns the unspent part of the charge to both ledgers. `given` is the account of the charged budget, even if
    /// that budget no longer exists or the vault has a different one now. A budget that was closed in between gets
    /// nothing back, even if it was recreated: the recreated one has a new ledger, which was never charged.
    ///
    /// # Errors
    /// See [`same_budget`].
    #[inline(never)]
    pub fn credit(&self, vault: &mut Vault, given: Option<&Unloaded<Budget>>, returned: Usdc) -> Result<()> {
        let place = Place { day_slot: self.slot, month_ends_at: UnixTime(self.month) };
        vault.ledger.as_policy_mut().credit(place, returned);
        if let Some(mut budget) = same_budget(&self.budget, self.budget_created_version, given)? {
            let place = Place { day_slot: self.budget_slot, month_ends_at: UnixTime(self.budget_month) };
            budget.ledger.as_policy_mut().credit(place, returned);
        }
        Ok(())
    }
}

/// Loads the budget at `address` if it is still the one created in `version`. Returns `None` if there was none, or if
/// it was closed, even if it was recreated. `given` is the account at that address.
///
/// # Errors
/// [`VaultError::BudgetRequired`] if there was a budget and `given` is missing; [`VaultError::WrongBudget`] if `given`
/// is a different account.
#[inline(never)]
fn same_budget(
    address: &Address,
    version: u64,
    given: Option<&Unloaded<Budget>>,
) -> Result<Option<Outlined<Account<Budget>>>> {
    let Some(given) = given else {
        require!(same_address(address, &NONE), VaultError::BudgetRequired);
        return Ok(None);
    };
    require!(same_address(address, given.address()), VaultError::WrongBudget);
    if !given.owned_by(&ID) {
        return Ok(None);
    }
    // SAFETY: `load_mut` refuses an account that is already borrowed.
    let budget = unsafe { Outlined::<Account<Budget>>::load_mut(**given) }?;
    Ok((budget.created_version == version).then_some(budget))
}

/// Holds the money of an authorized allowance in the ledgers of the vault and of its budget. Returns the budget's
/// `created_version`, which identifies its ledger; zero without a budget.
///
/// # Errors
/// [`VaultError::Overflow`] if a sum does not fit.
#[inline(never)]
pub fn hold(vault: &mut Vault, budget: Option<&mut Budget>, charges: &Charges) -> Result<u64> {
    vault.ledger.as_policy_mut().hold(&charges.vault).map_err(|_| VaultError::Overflow)?;
    let (Some(budget), Some(charge)) = (budget, &charges.budget) else {
        return Ok(0);
    };
    budget.hold(charge)?;
    Ok(budget.created_version)
}

/// Releases an allowance's held money in both ledgers and records the part `spent` of it, at each ledger's own time.
/// `given` is the account of the budget at the time of the grant; see [`same_budget`].
///
/// # Errors
/// The errors of [`same_budget`]; [`VaultError::Overflow`] if a sum does not fit.
#[inline(never)]
pub fn release(
    vault: &mut Vault,
    allowance: &Allowance,
    given: Option<&Unloaded<Budget>>,
    clock: UnixTime,
    spent: u64,
) -> Result<()> {
    let release = |ledger: &mut Ledger| {
        let (amount, spent) = (Usdc(allowance.amount), Usdc(spent));
        ledger.as_policy_mut().release(clock, amount, spent).map_err(|_| VaultError::Overflow)
    };
    release(&mut vault.ledger)?;
    if let Some(mut budget) = same_budget(&allowance.budget, allowance.budget_created_version, given)? {
        release(&mut budget.ledger)?;
    }
    Ok(())
}
