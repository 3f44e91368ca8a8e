//! What the organisation attests about an address that may be paid.

use super::{create_seeded, space_of, Seeded};
use crate::{errors::VaultError, ID};
use anchor_lang::{address_eq, bytemuck, prelude::*, Discriminator};

/// Category and domain of a recipient, as operator or authority attest them. Never closed.
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
    /// Zero.
    pub reserved: [u8; 6],
}

/// The seed under which an organisation keeps the Recipient account of `address`: its SHA-256 without the highest bit of
/// each byte, because the system program wants text.
///
/// The hash keeps addresses apart: of the address itself, another one with a flipped bit would share the seed, and 224
/// bits of a hash collide for nobody.
fn seed_of(address: &Address) -> [u8; 32] {
    const TEXT: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let words: [u64; 4] = bytemuck::cast(sha256(address.as_ref()));
    bytemuck::cast(words.map(|word| word & TEXT))
}

/// Address of the Recipient account of `address`: as the system program derives it from the organisation, the seed and
/// this program (`create_with_seed`).
///
/// Not a program-derived address: those are searched for, which costs hundreds of compute units more for some addresses
/// than for others, and a payment to a recipient that is not registered has to show just that.
#[inline(always)]
pub fn recipient_address(org: &Address, address: &Address) -> Address {
    let parts: [[u8; 32]; 3] = [org.to_bytes(), seed_of(address), ID.to_bytes()];
    Address::new_from_array(sha256(bytemuck::cast_slice(&parts)))
}

/// Makes the Recipient account of `address`, zero but for its discriminator. `org_seeds` sign for the organisation, from
/// whose address it is derived: so only this program can make it.
///
/// # Errors
/// [`VaultError::WrongRecipientAccount`] when `account` is at another address.
pub fn create_recipient(
    payer: &AccountView,
    account: &AccountView,
    org: &AccountView,
    org_seeds: &[&[u8]; 4],
    address: &Address,
) -> Result<()> {
    let expected = recipient_address(org.address(), address);
    require!(address_eq(&expected, account.address()), VaultError::WrongRecipientAccount);
    let (seed, space) = (seed_of(address), space_of::<Recipient>());
    create_seeded(&Seeded {
        payer,
        account,
        base: org,
        base_seeds: org_seeds,
        seed: &seed,
        space,
        owner: &ID,
    })?;
    let mut view = *account;
    let mut data = view.try_borrow_mut()?;
    data.get_mut(..8).ok_or(VaultError::WrongRecipientAccount)?.copy_from_slice(Recipient::DISCRIMINATOR);
    Ok(())
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
        let expected = recipient_address(org, address);
        require!(address_eq(&expected, account.address()), VaultError::WrongRecipientAccount);
        return Ok(None);
    }
    let recipient = Account::<Recipient>::load(*account).map_err(|_| VaultError::WrongRecipientAccount)?;
    let about = address_eq(&recipient.org, org) && address_eq(&recipient.address, address);
    require!(about, VaultError::WrongRecipientAccount);
    Ok(Some(recipient))
}
