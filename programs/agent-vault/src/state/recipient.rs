//! What the organisation attests about an address that may be paid.

use super::{space_of, Unloaded};
use crate::{errors::VaultError, ID};
use anchor_lang::{
    address_eq, bytemuck, cpi::rent_exempt_lamports, pinocchio::instruction::InstructionAccount, prelude::*,
    unchecked_invoke_signed_fixed, Discriminator,
};

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
    /// Zero.
    pub reserved: [u8; 6],
}

/// The seed under which an organisation keeps the Recipient account of `address`: the address without the highest bit of
/// each byte, because the system program wants text.
///
/// 224 bits tell addresses apart: nobody finds a key whose address shares them with another one.
fn seed_of(address: &Address) -> [u8; 32] {
    const TEXT: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let words: [u64; 4] = bytemuck::cast(address.to_bytes());
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
/// whose address it is derived: so only this program can make it. Lamports that are there already do not stop it.
///
/// # Errors
/// [`VaultError::WrongRecipientAccount`] when `account` is at another address.
pub fn create_recipient<'a>(
    payer: CpiHandleMut<'a>,
    account: &'a mut Unloaded<Recipient>,
    org: CpiHandle<'a>,
    system_program: &'a Address,
    address: &Address,
    org_seeds: &'a [&'a [u8]],
) -> Result<()> {
    const TRANSFER: u32 = 2;
    const ALLOCATE_WITH_SEED: u32 = 9;
    let expected = recipient_address(org.address(), address);
    require!(address_eq(&expected, account.address()), VaultError::WrongRecipientAccount);
    let space = space_of::<Recipient>();
    let missing = rent_exempt_lamports(space)?.saturating_sub(account.lamports());
    let (payer, made) = (CpiHandle::from(payer), account.account().to_cpi_handle());
    if missing > 0 {
        let mut data = [0; 12];
        data[..4].copy_from_slice(&TRANSFER.to_le_bytes());
        data[4..].copy_from_slice(&missing.to_le_bytes());
        let metas = [
            InstructionAccount::writable_signer(payer.address()),
            InstructionAccount::writable(made.address()),
        ];
        unchecked_invoke_signed_fixed(system_program, &data, &metas, &[payer, made], &[]);
    }
    let mut data = alloc::vec::Vec::with_capacity(116);
    data.extend_from_slice(&ALLOCATE_WITH_SEED.to_le_bytes());
    data.extend_from_slice(org.address().as_ref());
    data.extend_from_slice(&32u64.to_le_bytes());
    data.extend_from_slice(&seed_of(address));
    data.extend_from_slice(&(space as u64).to_le_bytes());
    data.extend_from_slice(ID.as_ref());
    let metas =
        [InstructionAccount::writable(made.address()), InstructionAccount::readonly_signer(org.address())];
    unchecked_invoke_signed_fixed(system_program, &data, &metas, &[made, org], &[org_seeds]);
    let mut view = *account.account();
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
