//! One instruction per file: first its accounts, with as many checks as possible in attributes, then its handler.

pub mod accept_authority;
pub mod approve_payment;
pub mod check_payment;
pub mod close_allowlist;
pub mod close_approval;
pub mod close_budget;
pub mod close_policy;
pub mod close_wallet;
pub mod collect_escrow;
pub mod complete_escrow;
pub mod create_budget;
pub mod create_escrow;
pub mod create_policy;
pub mod create_wallet;
pub mod dispute_escrow;
pub mod execute_payment;
pub mod forget_payee;
pub mod freeze_budget;
pub mod freeze_wallet;
pub mod fund_wallet;
pub mod grant_allowance;
pub mod initialize_org;
pub mod migrate;
pub mod refund_escrow;
pub mod register_recipient;
pub mod resolve_dispute;
pub mod set_wallet_budget;
pub mod settle_allowance;
pub mod update_budget;
pub mod update_org;
pub mod update_policy;
pub mod update_wallet;
pub mod withdraw;
pub mod withdraw_dispute;
pub mod withdraw_reserve;
pub mod write_allowlist;

mod attestation;
mod end;
mod parties;
mod recipient_standing;
mod set_aside;
mod settle_escrow;
mod spending;

// The framework's macros generate code next to each accounts struct, but look for it at the root of the crate.
#[allow(ambiguous_glob_reexports)]
pub use {
    accept_authority::*, approve_payment::*, check_payment::*, close_allowlist::*, close_approval::*,
    close_budget::*, close_policy::*, close_wallet::*, create_budget::*, create_escrow::*, create_policy::*,
    create_wallet::*, dispute_escrow::*, execute_payment::*, forget_payee::*, freeze_budget::*,
    freeze_wallet::*, fund_wallet::*, grant_allowance::*, initialize_org::*, migrate::*,
    register_recipient::*, set_wallet_budget::*, settle_allowance::*, settle_escrow::*, update_budget::*,
    update_org::*, update_policy::*, update_wallet::*, withdraw::*, withdraw_reserve::*, write_allowlist::*,
};

pub use end::End;

use agent_vault_policy::UnixTime;
use anchor_lang::prelude::*;

/// Returns the cluster's time.
///
/// # Errors
/// Fails if the runtime has no clock.
#[inline(always)]
pub fn clock() -> Result<UnixTime> {
    Ok(UnixTime(Clock::get()?.unix_timestamp))
}
