//! The keys that act for the two sides of an escrow.

use crate::{
    errors::VaultError,
    state::{live_or_archived, same_address, Escrow, Org, Vault},
};
use agent_vault_policy::{escrow::Side, UnixTime};
use anchor_lang::prelude::*;

/// Returns the key that signs for the receiver, and its expiry. For a receiving vault, this is its session authority
/// (all zero if it has none). For any other receiver, it is the receiving address itself, without expiry.
///
/// # Errors
/// [`VaultError::ReceiverRequired`] if the receiver is a vault and its account is missing;
/// [`VaultError::WrongReceiver`] if a different account was passed instead.
pub fn receiver_key(escrow: &Escrow, receiver: Option<&UncheckedAccount>) -> Result<(Address, UnixTime)> {
    if escrow.receiver_is_vault == 0 {
        return Ok((escrow.receiver, UnixTime(i64::MAX)));
    }
    let receiver = receiver.ok_or(VaultError::ReceiverRequired)?;
    require!(same_address(&escrow.receiver, receiver.address()), VaultError::WrongReceiver);
    let vault = live_or_archived(receiver.account())?;
    Ok((vault.session_authority, UnixTime(vault.session_expires_at)))
}

/// Returns the side that `signer` acts for. The operator and the paying vault's live session authority act for that
/// vault. The key returned by [`receiver_key`] acts for the receiver.
///
/// # Errors
/// [`VaultError::SessionExpired`] if `signer` acted for a side until its session expired;
/// [`VaultError::UnsupportedLayout`] if the receiving vault has a different layout; [`VaultError::Unauthorized`]
/// otherwise.
pub fn check_party(
    signer: &Address,
    org: &Org,
    vault: &Vault,
    escrow: &Escrow,
    receiver: Option<&UncheckedAccount>,
    now: UnixTime,
) -> Result<Side> {
    let own = vault.is_session(signer, now);
    if matches!(own, Ok(true)) || same_address(&org.operator, signer) {
        return Ok(Side::Requester);
    }
    match receiver_key(escrow, receiver) {
        Ok((key, until)) if same_address(&key, signer) => {
            require!(now < until, VaultError::SessionExpired);
            return Ok(Side::Receiver);
        }
        Err(error) if error == VaultError::UnsupportedLayout.into() => return Err(error),
        _ => {}
    }
    own?;
    Err(VaultError::Unauthorized.into())
}
