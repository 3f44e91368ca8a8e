//! The organisation's attestations about addresses that may be paid.

use super::{create_seeded, head_of, space_of, write_head, Seeded, Versioned};
use crate::{errors::VaultError, ID};
use anchor_lang::{address_eq, bytemuck, prelude::*};

/// Category and domain of a recipient, as attested by the operator or the authority. The account is never closed.
#[account]
pub struct Recipient {
    /// Layout version of the account: see [`super::Layout`].
    pub layout: u8,
    /// Category code.
    pub category: u8,
    /// One if `domain_hash` is set.
    pub has_domain: u8,
    /// Zero; aligns the next field.
    pub padding: [u8; 5],
    /// The attesting organisation.
    pub org: Address,
    /// The recipient: the owner of the paid token account.
    pub address: Address,
    /// SHA-256 of the SHA-256 of the lower-case domain, as on allowlists; see `has_domain`.
    pub domain_hash: [u8; 32],
    /// Unix time of effect. From then on, the attestation can permit payments. Before it, the attestation can only
    /// restrict them: the recipient counts both as its category and as `uncategorized`, and as having no domain.
    pub effective_at: i64,
    /// The organisation's sequence at this registration. A registration that replaces this one must name this number.
    pub sequence: u64,
}

/// Returns the seed of the Recipient account of `address`: the SHA-256 of the address, with the highest bit of each
/// byte cleared, because the system program requires text.
///
/// The hash keeps addresses apart. With the address itself as the seed, another address that differs only in those bits
/// would share it. Finding two addresses with the same 224 bits of a hash is infeasible.
fn seed_of(address: &Address) -> [u8; 32] {
    const TEXT: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let words: [u64; 4] = bytemuck::cast(sha256(address.as_ref()));
    bytemuck::cast(words.map(|word| word & TEXT))
}

/// Returns the address of the Recipient account of `address`. The system program derives it from the organisation, the
/// seed and this program (`create_with_seed`).
///
/// It is not a program-derived address, because deriving one involves a search, which costs hundreds of compute units
/// more for some addresses than for others. A payment to an unregistered recipient has to derive exactly this address
/// to show that nothing is there.
#[inline(always)]
pub fn recipient_address(org: &Address, address: &Address) -> Address {
    let parts: [[u8; 32]; 3] = [org.to_bytes(), seed_of(address), ID.to_bytes()];
    Address::new_from_array(sha256(bytemuck::cast_slice(&parts)))
}

/// Creates the Recipient account of `address`, zeroed except for its head. `org_seeds` sign for the
/// organisation. The account's address is derived from the organisation's, so only this program can create it.
///
/// # Errors
/// [`VaultError::WrongRecipientAccount`] if `account` is at a different address.
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
    write_head(account, head_of::<Recipient>())
}

/// Returns the organisation's attestation about `address`, read from `account`, its Recipient account; `None` if there
/// is none.
///
/// An account of the program names its own organisation and address, which can be trusted because the program creates
/// Recipient accounts only at their addresses. For an account that does not exist, the address is derived instead.
/// Otherwise a caller could evade an attested category by passing some other empty account.
///
/// # Errors
/// [`VaultError::WrongRecipientAccount`] if the account does not belong to this organisation and address;
/// [`VaultError::UnsupportedLayout`] if it has a different layout.
#[inline(always)]
pub fn attestation(
    account: &AccountView,
    org: &Address,
    address: &Address,
) -> Result<Option<Versioned<Account<Recipient>>>> {
    if !account.owned_by(&ID) {
        let expected = recipient_address(org, address);
        require!(address_eq(&expected, account.address()), VaultError::WrongRecipientAccount);
        return Ok(None);
    }
    let recipient = Versioned::<Account<Recipient>>::load(*account).map_err(|error| {
        let known = error == ProgramError::from(VaultError::UnsupportedLayout);
        if known {
            error
        } else {
            VaultError::WrongRecipientAccount.into()
        }
    })?;
    let about = address_eq(&recipient.org, org) && address_eq(&recipient.address, address);
    require!(about, VaultError::WrongRecipientAccount);
    Ok(Some(recipient))
}
