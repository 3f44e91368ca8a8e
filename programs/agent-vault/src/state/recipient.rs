//! What the organisation attests about an address that may be paid.

use super::seeds;
use crate::{errors::VaultError, ID};
use anchor_lang::{address_eq, find_and_verify_program_address, prelude::*};

/// Category and domain of a recipient, as the operator attests them. Never closed.
#[account]
pub struct Recipient {
    /// The organisation that attests.
    pub org: Address,
    /// The recipient: the owner of the token account that is paid.
    pub address: Address,
    /// SHA-256 of the SHA-256 of the lower-case domain, as on allowlists; see `has_domain`.
    pub domain_hash: [u8; 32],
    /// Unix time from which the attestation opens anything; before it, it only closes: the recipient is both of its
    /// category and `uncategorized`, and of no domain.
    pub effective_at: i64,
    /// Category code.
    pub category: u8,
    /// One when `domain_hash` counts.
    pub has_domain: u8,
    /// Bump of this address.
    pub bump: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// What the organisation attests about `address`, read from `account`, its Recipient account; `None` when nothing.
///
/// An account of the program says itself whom it is about: the program makes Recipient accounts only at their addresses.
/// One that does not exist must be shown to be the right one, lest an attested category be evaded by passing some other
/// empty account; so its address is derived.
///
/// # Errors
/// [`VaultError::WrongRecipientAccount`] when the account is not the one of this organisation and address.
#[inline(always)]
pub fn attestation(
    account: &AccountView,
    org: &Address,
    address: &Address,
) -> Result<Option<Account<Recipient>>> {
    if !account.owned_by(&ID) {
        find_and_verify_program_address(
            &[seeds::RECIPIENT, org.as_ref(), address.as_ref()],
            &ID,
            account.address(),
        )
        .map_err(|_| VaultError::WrongRecipientAccount)?;
        return Ok(None);
    }
    let recipient = Account::<Recipient>::load(*account).map_err(|_| VaultError::WrongRecipientAccount)?;
    let about = address_eq(&recipient.org, org) && address_eq(&recipient.address, address);
    require!(about, VaultError::WrongRecipientAccount);
    Ok(Some(recipient))
}
