//! An agent's vault, live and archived.

use super::{check_layout, check_sequence, head_of, next_sequence, seeds, space_of, Ledger, NONE};
use crate::errors::VaultError;
use agent_vault_policy::{payees::Key, Payees, UnixTime};
use anchor_lang::{address_eq, cpi::rent_exempt_lamports, prelude::*, Discriminator};
use core::mem::size_of;

/// The values of [`Vault::frozen`]: the reason why a vault makes no payments.
pub mod frozen {
    /// The vault is not frozen.
    pub const NO: u8 = 0;
    /// Frozen by the operator or the authority. Only the authority can lift this freeze.
    pub const MANUAL: u8 = 1;
    /// Frozen because the policy had expired.
    pub const EXPIRY: u8 = 2;
}

/// Defines an account that begins with the fields shared by live and archived vaults.
macro_rules! vault_account {
    ($(#[$docs:meta])* $name:ident { $($(#[$field_docs:meta])* $field:ident: $type:ty),* }) => {
        $(#[$docs])*
        #[account]
        pub struct $name {
            /// Layout version of the account: see [`super::Layout`].
            pub layout: u8,
            /// The freeze state; see [`frozen`].
            pub frozen: u8,
            /// Bump of this address.
            pub bump: u8,
            /// Number of allowances that are not settled yet.
            pub open_allowances: u8,
            /// Number of escrows that are not settled yet, or hold a share that is still to be collected.
            pub open_escrows: u32,
            /// The organisation.
            pub org: Address,
            /// SHA-256 of the agent's id.
            pub agent_hash: [u8; 32],
            /// The attached policy.
            pub policy: Address,
            /// The vault's associated token account.
            pub tokens: Address,
            /// The key that signs payments; all zero if only the operator signs.
            pub session_authority: Address,
            /// Payer of the rent, most of it refunded when the vault is archived.
            pub payer: Address,
            /// Unix time of the session's expiry. The session authority's signature no longer counts from then on.
            pub session_expires_at: i64,
            /// Number of changes. Each event carries the number of its change.
            pub sequence: u64,
            /// Number of the next escrow. Numbers are never reused.
            pub escrow_counter: u64,
            $($(#[$field_docs])* pub $field: $type,)*
        }
    };
}

vault_account! {
    /// An agent's vault: it owns a token account that only the program can spend from, and counts the spending. Behind
    /// these fields, the account may have the lists of payees: 24 known ones and 8 strangers with 40 bytes each. See
    /// `agent_vault_policy::payees`.
    Vault {
        /// The shared budget; all zero if there is none and only the policy limits the vault.
        budget: Address,
        /// Number of the next allowance. Numbers are never reused.
        allowance_counter: u64,
        /// Number of the change that froze the vault last. An unfreeze must name this number.
        frozen_sequence: u64,
        /// Number of times that a policy or a budget was attached, replaced or detached. The next such change must name
        /// this number.
        attachments: u64,
        /// Number of sessions, including those without a key. The next change of the session must name this number.
        sessions: u64,
        /// Number of approvals given so far. The next approval must name this number.
        approvals: u64,
        /// The vault's spending over time.
        ledger: Ledger
    }
}

vault_account! {
    /// The fields that remain of an archived vault. They suffice to withdraw a stray deposit into the reserve.
    ArchivedVault {}
}

/// Size in bytes of a vault's account with its lists of payees, which [`crate::agent_vault::migrate`] adds.
pub const SPACE_WITH_PAYEES: usize = space_of::<Vault>() + size_of::<Payees>();

/// Size of an archived vault's account in bytes.
pub const ARCHIVED_SPACE: usize = 8 + size_of::<ArchivedVault>();

const _: () = assert!(size_of::<Payees>() == 32 * 40);
const _: () = assert!(
    size_of::<Vault>()
        == size_of::<ArchivedVault>() + size_of::<Address>() + 5 * size_of::<u64>() + size_of::<Ledger>()
);

impl Vault {
    /// Returns true if the vault is frozen and therefore makes no payments.
    #[inline(always)]
    pub fn is_frozen(&self) -> bool {
        self.frozen != frozen::NO
    }

    /// Counts a change of the vault and returns its number.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if the number exceeds 64 bits.
    #[inline(always)]
    pub fn next_sequence(&mut self) -> Result<u64> {
        next_sequence(&mut self.sequence)
    }

    /// Returns the seeds that sign for this vault's tokens.
    #[inline(always)]
    pub fn signer_seeds<'a>(&'a self, bump: &'a [u8; 1]) -> [&'a [u8]; 4] {
        [seeds::VAULT, self.org.as_ref(), &self.agent_hash, bump]
    }

    /// Returns true if `signer` is the session authority at `now`.
    ///
    /// # Errors
    /// [`VaultError::SessionExpired`] if `signer` is the session authority but its time has passed.
    #[inline(always)]
    pub fn is_session(&self, signer: &Address, now: UnixTime) -> Result<bool> {
        if !address_eq(&self.session_authority, signer) {
            return Ok(false);
        }
        require!(now < UnixTime(self.session_expires_at), VaultError::SessionExpired);
        Ok(true)
    }

    /// Checks that the budget's account is given if the vault has a budget. The constraints on the instruction's
    /// accounts check that `given` is the right one.
    ///
    /// # Errors
    /// [`VaultError::BudgetRequired`] if the vault has a budget and `given` is missing.
    #[inline(always)]
    pub fn check_budget<T>(&self, given: Option<&T>) -> Result<()> {
        require!(given.is_some() || address_eq(&self.budget, &NONE), VaultError::BudgetRequired);
        Ok(())
    }

    /// Sets the vault's session authority and counts the session. Address zero removes the authority.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] if the number exceeds 64 bits.
    pub fn set_session(&mut self, session: &Session) -> Result<()> {
        next_sequence(&mut self.sessions)?;
        self.session_authority = session.authority;
        self.session_expires_at = if address_eq(&session.authority, &NONE) { 0 } else { session.expires_at };
        Ok(())
    }

    /// Counts a change of the vault's policy or budget that was built from `expected` earlier ones.
    ///
    /// # Errors
    /// [`VaultError::SequenceMismatch`] if there were more; [`VaultError::Overflow`] if the number exceeds 64 bits.
    pub fn count_attachment(&mut self, expected: u64) -> Result<()> {
        check_sequence(expected, self.attachments)?;
        next_sequence(&mut self.attachments)?;
        Ok(())
    }
}

/// Returns the lists of payees behind a vault's fields.
///
/// # Errors
/// [`VaultError::PayeeListsRequired`] if the account has none.
///
/// # Safety
/// The account holds a [`Vault`], no other reference to its lists exists, and writing requires a writable account.
#[inline(always)]
pub unsafe fn payees_of<'a>(mut vault: AccountView) -> Result<&'a mut Payees> {
    require!(vault.data_len() >= SPACE_WITH_PAYEES, VaultError::PayeeListsRequired);
    // SAFETY: the lists are within the account and aligned to 8 bytes, and every bit pattern is valid.
    Ok(&mut *vault.data_mut_ptr().add(space_of::<Vault>()).cast())
}

/// Returns the first 16 bytes of an address, by which a vault remembers a payee.
#[inline(always)]
pub fn payee_key(address: &Address) -> Key {
    let ([first, second, ..], _) = address.as_array().as_chunks::<8>() else {
        return [0; 2];
    };
    [u64::from_le_bytes(*first), u64::from_le_bytes(*second)]
}

/// The key that signs an agent's payments, and its expiry.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, anchor_lang::IdlType)]
pub struct Session {
    /// The session authority; all zero if there is none.
    pub authority: Address,
    /// Unix time of expiry. The key's signature no longer counts from then on.
    pub expires_at: i64,
}

/// Returns the fields shared by live and archived vaults, from an account of either kind.
///
/// # Errors
/// [`VaultError::WrongVault`] if the account is neither; [`VaultError::UnsupportedLayout`] if it has a different
/// layout.
pub fn live_or_archived(account: &AccountView) -> Result<ArchivedVault> {
    use anchor_lang::Owner;
    check_layout(account, head_of::<Vault>())?;
    check_layout(account, head_of::<ArchivedVault>())?;
    let data = account.try_borrow()?;
    let known = data.get(..8).is_some_and(|discriminator| {
        discriminator == Vault::DISCRIMINATOR || discriminator == ArchivedVault::DISCRIMINATOR
    });
    require!(known && account.owned_by(&Vault::OWNER), VaultError::WrongVault);
    let fields = data.get(8..ARCHIVED_SPACE).ok_or(VaultError::WrongVault)?;
    Ok(anchor_lang::bytemuck::pod_read_unaligned(fields))
}

/// Returns true if an account that [`live_or_archived`] has accepted is archived.
///
/// # Errors
/// Fails while the account is borrowed for writing.
pub fn is_archived(account: &AccountView) -> Result<bool> {
    Ok(account.try_borrow()?.get(..8) == Some(ArchivedVault::DISCRIMINATOR))
}

/// Pays the lamports above the vault account's rent exemption to `receiver`, who paid the rent. The surplus comes from
/// third parties, or from the rent of closed escrows and allowances with a payer that cannot receive lamports. If the
/// receiver has become a program, it cannot receive lamports either, so they stay in the vault.
///
/// # Errors
/// [`VaultError::Overflow`] if the lamports do not fit.
pub fn sweep(vault: &mut AccountView, receiver: &AccountView) -> Result<()> {
    let needed = rent_exempt_lamports(vault.data_len())?;
    let surplus = vault.lamports().saturating_sub(needed);
    if surplus == 0 || receiver.executable() {
        return Ok(());
    }
    let sum = receiver.lamports().checked_add(surplus).ok_or(VaultError::Overflow)?;
    let mut receiver = *receiver;
    receiver.set_lamports(sum);
    vault.set_lamports(needed);
    Ok(())
}

/// Counts a change of a vault that [`live_or_archived`] has accepted, and returns its number.
///
/// # Errors
/// [`VaultError::WrongVault`] if the account is too small.
pub fn count_change(account: &mut AccountView, vault: &mut ArchivedVault) -> Result<u64> {
    let sequence = next_sequence(&mut vault.sequence)?;
    let mut data = account.try_borrow_mut()?;
    let fields = data.get_mut(8..ARCHIVED_SPACE).ok_or(VaultError::WrongVault)?;
    fields.copy_from_slice(anchor_lang::bytemuck::bytes_of(vault));
    Ok(sequence)
}
