//! The charge of an escrow, which may be refunded in part or in whole, and the held money of an allowance.

use super::{same_address, Allowance, Budget, Outlined, Unloaded, Vault, NONE};
use crate::{errors::VaultError, ID};
use agent_vault_policy::{Charge, Charges, Place, UnixTime, Usdc, LEVELS};
use anchor_lang::{
    bytemuck::{Pod, Zeroable},
    prelude::*,
    IdlType,
};
use core::mem::size_of;

/// Most budgets above a vault: its own and that budget's parent.
pub const LEVEL_COUNT: usize = LEVELS.len();

/// A budget at the time of a charge. The account at this address may have been closed and recreated since.
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct BudgetLevel {
    /// The budget; all zero if there was none.
    pub budget: Address,
    /// The budget's `created_version`, which identifies its ledger.
    pub created_version: u64,
}

/// The place of a charge in the ledger of a budget.
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct ChargedLevel {
    /// The budget; all zero if there was none.
    pub budget: Address,
    /// The budget's `created_version`, which identifies the charged ledger.
    pub created_version: u64,
    /// Absolute number of the charged slot in the budget's ledger.
    pub slot: u64,
    /// End of the charged calendar month in the budget's ledger.
    pub month: i64,
}

/// The places of a charge in the ledgers of a vault and of its budgets.
#[derive(Clone, Copy, IdlType)]
#[repr(C)]
pub struct Charged {
    /// Absolute number of the charged 15-minute slot in the vault's ledger.
    pub slot: u64,
    /// End of the charged calendar month in the vault's ledger.
    pub month: i64,
    /// Number of charged budgets.
    pub level_count: u64,
    /// These budgets: the vault's own at the time of the charge, then its parent. The rest of the array is zero.
    pub levels: [ChargedLevel; LEVEL_COUNT],
}

// SAFETY: repr(C), only bytes and integers, and no padding (asserted below).
unsafe impl Pod for BudgetLevel {}
unsafe impl Zeroable for BudgetLevel {}
unsafe impl Pod for ChargedLevel {}
unsafe impl Zeroable for ChargedLevel {}
unsafe impl Pod for Charged {}
unsafe impl Zeroable for Charged {}
const _: () = assert!(size_of::<BudgetLevel>() == 32 + 8);
const _: () = assert!(size_of::<ChargedLevel>() == 32 + 3 * 8);
const _: () = assert!(size_of::<Charged>() == 3 * 8 + LEVEL_COUNT * (32 + 3 * 8));

/// The budgets above a vault: its own and its budget's parent, if they exist.
pub type BudgetsMut<'a> = [Option<&'a mut Budget>; LEVEL_COUNT];

/// The given accounts of the budgets of an earlier charge. They may no longer exist.
pub type BudgetsGiven<'a> = [Option<&'a Unloaded<Budget>>; LEVEL_COUNT];

/// The budgets of an earlier charge that are still the same.
pub type BudgetsLeft = [Option<Outlined<Account<Budget>>>; LEVEL_COUNT];

/// Calls `record` for each charged budget, with its charge, and returns the number of these budgets. `record` also gets
/// the budget's address.
///
/// # Errors
/// The errors of `record`.
fn each_level(
    vault: &Vault,
    budgets: BudgetsMut,
    charges: &Charges,
    mut record: impl FnMut(usize, BudgetLevel, &mut Budget, &Charge) -> Result<()>,
) -> Result<u64> {
    let (mut count, mut address) = (0u64, vault.budget);
    for (level, (budget, charge)) in budgets.into_iter().zip(&charges.budgets).enumerate() {
        let (Some(budget), Some(charge)) = (budget, charge) else { break };
        let created_version = budget.created_version;
        record(level, BudgetLevel { budget: address, created_version }, budget, charge)?;
        address = budget.parent;
        count = count.saturating_add(1);
    }
    Ok(count)
}

impl Charged {
    /// Records authorized charges in all ledgers and returns their places.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if a sum does not fit.
    #[inline(never)]
    pub fn record(vault: &mut Vault, budgets: BudgetsMut, charges: &Charges) -> Result<Self> {
        let ledger = vault.ledger.as_policy_mut();
        ledger.charge(&charges.vault).map_err(|_| VaultError::Overflow)?;
        let Place { day_slot: slot, month_ends_at: UnixTime(month) } = ledger.place();
        let mut levels = [ChargedLevel::zeroed(); LEVEL_COUNT];
        let level_count = each_level(vault, budgets, charges, |at, level, budget, charge| {
            let BudgetLevel { budget: address, created_version } = level;
            let Place { day_slot: slot, month_ends_at: UnixTime(month) } = budget.charge(charge)?;
            if let Some(level) = levels.get_mut(at) {
                *level = ChargedLevel { budget: address, created_version, slot, month };
            }
            Ok(())
        })?;
        Ok(Charged { slot, month, level_count, levels })
    }

    /// Returns the unspent part of the charge to all ledgers. `given` are the accounts of the charged budgets, even if
    /// they no longer exist or the vault has a different one now. A budget that was closed in between gets nothing
    /// back, even if it was recreated: the recreated one has a new ledger, which was never charged.
    ///
    /// # Errors
    /// See [`same_budgets`].
    #[inline(never)]
    pub fn credit(&self, vault: &mut Vault, given: BudgetsGiven, returned: Usdc) -> Result<()> {
        let place = Place { day_slot: self.slot, month_ends_at: UnixTime(self.month) };
        vault.ledger.as_policy_mut().credit(place, returned);
        let charged = self
            .levels
            .map(|ChargedLevel { budget, created_version, .. }| BudgetLevel { budget, created_version });
        for (budget, level) in same_budgets(&charged, given)?.iter_mut().zip(&self.levels) {
            let place = Place { day_slot: level.slot, month_ends_at: UnixTime(level.month) };
            if let Some(budget) = budget {
                budget.credit(place, returned);
            }
        }
        Ok(())
    }
}

/// Loads the budgets of an earlier charge that still have the charged version. Leaves out a budget that was closed, even
/// if it was recreated. `given` are the accounts at their addresses.
///
/// # Errors
/// [`VaultError::BudgetRequired`] if the account of a budget is missing, and [`VaultError::BudgetParentRequired`] if its
/// parent's is; [`VaultError::WrongBudget`] if one is a different account.
#[inline(never)]
pub fn same_budgets(levels: &[BudgetLevel; LEVEL_COUNT], given: BudgetsGiven) -> Result<BudgetsLeft> {
    let ([budget, parent], [first, second]) = (levels, given);
    Ok([
        same_budget(budget, first, VaultError::BudgetRequired)?,
        same_budget(parent, second, VaultError::BudgetParentRequired)?,
    ])
}

#[inline(never)]
fn same_budget(
    level: &BudgetLevel,
    given: Option<&Unloaded<Budget>>,
    missing: VaultError,
) -> Result<Option<Outlined<Account<Budget>>>> {
    let Some(given) = given else {
        return if same_address(&level.budget, &NONE) { Ok(None) } else { Err(missing.into()) };
    };
    require!(same_address(&level.budget, given.address()), VaultError::WrongBudget);
    if !given.owned_by(&ID) {
        return Ok(None);
    }
    // SAFETY: `load_mut` refuses an account that is already borrowed.
    let budget = unsafe { Outlined::<Account<Budget>>::load_mut(**given) }?;
    Ok((budget.created_version == level.created_version).then_some(budget))
}

/// Holds the money of an authorized allowance in the ledgers of the vault and of its budgets. Records these budgets in
/// `levels` and returns their number.
///
/// # Errors
/// [`VaultError::Overflow`] if a sum does not fit.
#[inline(never)]
pub fn hold(
    vault: &mut Vault,
    budgets: BudgetsMut,
    charges: &Charges,
    levels: &mut [BudgetLevel; LEVEL_COUNT],
) -> Result<u64> {
    vault.ledger.as_policy_mut().hold(&charges.vault).map_err(|_| VaultError::Overflow)?;
    each_level(vault, budgets, charges, |at, level, budget, charge| {
        if let Some(recorded) = levels.get_mut(at) {
            *recorded = level;
        }
        budget.hold(charge)
    })
}

/// Releases an allowance's held money in all ledgers and records the part `spent` of it, at each ledger's own time.
/// `budgets` are the grant's that are left; see [`same_budgets`].
///
/// # Errors
/// [`VaultError::Overflow`] if a sum does not fit.
#[inline(never)]
pub fn release(
    vault: &mut Vault,
    allowance: &Allowance,
    budgets: &mut BudgetsLeft,
    clock: UnixTime,
    spent: u64,
) -> Result<()> {
    let (amount, spent) = (Usdc(allowance.amount), Usdc(spent));
    vault.ledger.as_policy_mut().release(clock, amount, spent).map_err(|_| VaultError::Overflow)?;
    for budget in budgets.iter_mut().flatten() {
        budget.release(clock, amount, spent)?;
    }
    Ok(())
}
