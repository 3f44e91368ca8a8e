//! Declares a payee unknown.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, PayeeForgotten},
    instructions::clock,
    state::{payee_key, payees_of, same_address, Org, Outlined, Vault},
};
use agent_vault_policy::UnixTime;
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `forget_payee`.
    #[derive(Accounts)]
    pub struct ForgetPayee {
        /// The organisation's operator.
        #[account(address = org.operator @ VaultError::Unauthorized)]
        pub operator: Signer,
        /// The organisation.
        pub org: Outlined<Account<Org>>,
        /// The vault.
        #[account(mut, constraint = same_address(&vault.org, org.address()) @ VaultError::WrongOrg)]
        pub vault: Outlined<Account<Vault>>,
    }
}

/// See [`crate::agent_vault::forget_payee`].
///
/// # Errors
/// [`VaultError::PayeeListsRequired`] if the vault has no lists of payees; [`VaultError::PayeeUnknown`] if the payee is
/// a stranger or was never paid; [`VaultError::SequenceMismatch`] if its first payment was not at `first_paid`.
pub fn handler(ctx: &mut Context<ForgetPayee>, address: Address, first_paid: i64) -> Result<()> {
    let ForgetPayee { operator, vault, .. } = &mut ctx.accounts;
    // SAFETY: the account holds the vault, which the instruction writes, and its fields end before the lists.
    let payees = unsafe { payees_of(*vault.account()) }?;
    let now = vault.ledger.as_policy().time(clock()?);
    let forgotten = payees.forget(payee_key(&address), now).ok_or(VaultError::PayeeUnknown)?;
    require!(forgotten == UnixTime(first_paid), VaultError::SequenceMismatch);
    let event = PayeeForgotten {
        org: vault.org,
        vault: *vault.address(),
        address,
        signer: *operator.address(),
        sequence: vault.next_sequence()?,
    };
    emit_event!(ctx, event);
    Ok(())
}
