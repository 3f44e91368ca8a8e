//! Who speaks for the two sides of an escrow.

use crate::{
    errors::VaultError,
    state::{live_or_archived, same_address, Escrow, Org, Vault, NONE},
};
use agent_vault_policy::UnixTime;
use anchor_lang::prelude::*;

/// The key that signs for the receiver: the receiving vault's live session authority, or the receiving address itself.
///
/// # Errors
/// [`VaultError::WrongReceiver`], [`VaultError::SessionExpired`]; [`VaultError::Unauthorized`] when the vault has no
/// session authority.
pub fn receiver_key(escrow: &Escrow, receiver: Option<&UncheckedAccount>, now: UnixTime) -> Result<Address> {
    if escrow.receiver_is_vault == 0 {
        return Ok(escrow.receiver);
    }
    let receiver = receiver.ok_or(VaultError::WrongReceiver)?;
    require!(same_address(&escrow.receiver, receiver.address()), VaultError::WrongReceiver);
    let vault = live_or_archived(receiver.account())?;
    require!(!same_address(&vault.session_authority, &NONE), VaultError::Unauthorized);
    require!(now < UnixTime(vault.session_expires_at), VaultError::SessionExpired);
    Ok(vault.session_authority)
}

/// Checks that `signer` speaks for one side: the operator, the paying vault's live session authority, or the receiver.
///
/// # Errors
/// [`VaultError::Unauthorized`], [`VaultError::SessionExpired`], and those of [`receiver_key`].
pub fn check_party(
    signer: &Address,
    org: &Org,
    vault: &Vault,
    escrow: &Escrow,
    receiver: Option<&UncheckedAccount>,
    now: UnixTime,
) -> Result<()> {
    if same_address(&org.operator, signer) || vault.is_session(signer, now)? {
        return Ok(());
    }
    require!(same_address(&receiver_key(escrow, receiver, now)?, signer), VaultError::Unauthorized);
    Ok(())
}
