//! Closes a policy.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, PolicyClosed},
    state::{check_version, same_address, seeds, AllowlistAccount, Org, Outlined, Policy, Unloaded, NONE},
    ID,
};
use anchor_lang::{find_and_verify_program_address, prelude::*};

with_event_accounts! {
    /// Accounts of `close_policy`.
    #[derive(Accounts)]
    pub struct ClosePolicy {
        /// The organisation's authority.
        #[account(address = org.authority @ VaultError::Unauthorized)]
        pub authority: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The policy.
        #[account(mut,
            constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg,
            constraint = policy.immutable == 0 @ VaultError::PolicyImmutable,
            constraint = policy.wallet_count == 0 @ VaultError::PolicyInUse)]
        pub policy: Outlined<Account<Policy>>,
        /// Payer of the policy's rent, refunded here.
        #[account(mut, constraint = same_address(&policy.payer, policy_rent_receiver.address()) @ VaultError::WrongRentReceiver, unsafe(dup))]
        pub policy_rent_receiver: UncheckedAccount,
        /// The allowlist in force.
        #[account(mut)]
        pub allowlist: Option<Outlined<AllowlistAccount>>,
        /// Payer of that list's rent, refunded here.
        #[account(mut, unsafe(dup))]
        pub allowlist_rent_receiver: Option<UncheckedAccount>,
        /// The policy's next allowlist, whether written or not. Any written part is closed too. The address is checked
        /// in the handler.
        #[account(mut)]
        #[cfg_attr(feature = "idl-build", account(seeds = [seeds::ALLOWLIST, policy.address().as_ref(), &policy.next_allowlist_version.to_le_bytes()], bump))]
        pub next_allowlist: Unloaded<AllowlistAccount>,
        /// Payer of the next list's rent, refunded here.
        #[account(mut, unsafe(dup))]
        pub next_rent_receiver: Option<UncheckedAccount>,
    }
}

/// Closes an allowlist and refunds its rent to the payer.
///
/// # Errors
/// [`VaultError::RentReceiverRequired`] if `receiver` is missing; [`VaultError::WrongRentReceiver`] if it did not pay
/// the list's rent.
pub fn close_list(list: &mut Outlined<AllowlistAccount>, receiver: Option<&UncheckedAccount>) -> Result<()> {
    let receiver = receiver.ok_or(VaultError::RentReceiverRequired)?;
    require!(same_address(&list.payer, receiver.address()), VaultError::WrongRentReceiver);
    list.close(*receiver.account())
}

/// See [`crate::agent_vault::close_policy`].
///
/// # Errors
/// [`VaultError::VersionMismatch`] if the policy is no longer at `expected_version`;
/// [`VaultError::PolicyInUse`] if vaults are attached; [`VaultError::PolicyImmutable`] for a preset;
/// [`VaultError::AllowlistRequired`] if the policy has an allowlist that is not among the accounts;
/// [`VaultError::WrongAllowlist`] if a given list is not the one in force or the next one; the errors of
/// [`close_list`].
pub fn handler(ctx: &mut Context<ClosePolicy>, expected_version: u64) -> Result<()> {
    let ClosePolicy {
        org,
        policy,
        policy_rent_receiver,
        allowlist,
        allowlist_rent_receiver,
        next_allowlist,
        next_rent_receiver,
        ..
    } = &mut ctx.accounts;
    check_version(expected_version, policy.version)?;
    match allowlist {
        None => {
            require!(same_address(&policy.allowlist, &NONE), VaultError::AllowlistRequired);
        }
        Some(list) => {
            require!(same_address(list.address(), &policy.allowlist), VaultError::WrongAllowlist);
            close_list(list, allowlist_rent_receiver.as_ref())?;
        }
    }
    // Close the staged list too: it belongs to the policy, and its rent would be lost if it outlived the policy.
    let version = policy.next_allowlist_version.to_le_bytes();
    let seeds: [&[u8]; 3] = [seeds::ALLOWLIST, policy.address().as_ref(), &version];
    find_and_verify_program_address(&seeds, &ID, next_allowlist.address())
        .map_err(|_| VaultError::WrongAllowlist)?;
    if next_allowlist.owned_by(&ID) {
        // SAFETY: the dispatcher has refused a second mutable reference to the account.
        let mut list = unsafe { Outlined::<AllowlistAccount>::load_mut(**next_allowlist) }?;
        close_list(&mut list, next_rent_receiver.as_ref())?;
    }
    let event = PolicyClosed {
        org: *org.address(),
        policy: *policy.address(),
        sequence: org.next_authority_sequence()?,
    };
    policy.close(*policy_rent_receiver.account())?;
    emit_event!(ctx, event);
    Ok(())
}
