//! An agent's vault, live and archived.

use super::{next_sequence, seeds, Ledger, NONE};
use crate::errors::VaultError;
use agent_vault_policy::UnixTime;
use anchor_lang::{address_eq, cpi::rent_exempt_lamports, prelude::*, Discriminator};
use core::mem::size_of;

/// Why a vault does not pay, in [`Vault::frozen`].
pub mod frozen {
    /// It pays.
    pub const NO: u8 = 0;
    /// Frozen by operator or authority; only the authority lifts it.
    pub const MANUAL: u8 = 1;
    /// Frozen because the policy's time had passed.
    pub const EXPIRY: u8 = 2;
}

/// Defines an account that begins with the fields that live and archived vaults share.
macro_rules! vault_account {
    ($(#[$docs:meta])* $name:ident { $($(#[$field_docs:meta])* $field:ident: $type:ty),* }) => {
        $(#[$docs])*
        #[account]
        pub struct $name {
            /// The organisation.
            pub org: Address,
            /// SHA-256 of the agent's id.
            pub agent_hash: [u8; 32],
            /// The policy attached.
            pub policy: Address,
            /// Its associated token account.
            pub tokens: Address,
            /// Signs payments; none (all zero): only the operator does.
            pub session_authority: Address,
            /// Paid the rent, gets it back.
            pub payer: Address,
            /// Unix time from which the session authority's signature no longer counts.
            pub session_expires_at: i64,
            /// Number of changes; each event carries its number.
            pub sequence: u64,
            /// Number of the next escrow; never reused.
            pub escrow_counter: u64,
            /// Escrows not settled yet.
            pub open_escrows: u32,
            /// See [`frozen`].
            pub frozen: u8,
            /// Bump of this address.
            pub bump: u8,
            /// Allowances not settled yet.
            pub open_allowances: u8,
            /// Zero.
            pub reserved: [u8; 1],
            $($(#[$field_docs])* pub $field: $type,)*
        }
    };
}

vault_account! {
    /// An agent's vault: a token account that only the program can spend from, and what was spent.
    Vault {
        /// The budget that it shares; none (all zero): only its policy bounds it.
        budget: Address,
        /// Number of the next allowance; never reused.
        allowance_counter: u64,
        /// Number of the change that froze it last: what lifts that freeze names it.
        frozen_sequence: u64,
        /// What was spent, and when.
        ledger: Ledger
    }
}

vault_account! {
    /// What is left of an archived vault: enough to withdraw a stray deposit into the reserve.
    ArchivedVault {}
}

/// Bytes of an archived vault's account.
pub const ARCHIVED_SPACE: usize = 8 + size_of::<ArchivedVault>();

const _: () = assert!(
    size_of::<Vault>()
        == size_of::<ArchivedVault>() + size_of::<Address>() + 2 * size_of::<u64>() + size_of::<Ledger>()
);

impl Vault {
    /// It pays nothing while frozen.
    #[inline(always)]
    pub fn is_frozen(&self) -> bool {
        self.frozen != frozen::NO
    }

    /// Counts a change of the vault.
    ///
    /// # Errors
    /// [`VaultError::Overflow`] at the end of 64 bits.
    #[inline(always)]
    pub fn next_sequence(&mut self) -> Result<u64> {
        next_sequence(&mut self.sequence)
    }

    /// The seeds that sign for this vault's tokens.
    #[inline(always)]
    pub fn signer_seeds<'a>(&'a self, bump: &'a [u8; 1]) -> [&'a [u8]; 4] {
        [seeds::VAULT, self.org.as_ref(), &self.agent_hash, bump]
    }

    /// Whether `signer` is the session authority at `now`.
    ///
    /// # Errors
    /// [`VaultError::SessionExpired`] when it is, but its time has passed.
    #[inline(always)]
    pub fn is_session(&self, signer: &Address, now: UnixTime) -> Result<bool> {
        if !address_eq(&self.session_authority, signer) {
            return Ok(false);
        }
        require!(now < UnixTime(self.session_expires_at), VaultError::SessionExpired);
        Ok(true)
    }

    /// Checks that the account of the vault's budget is there where it has one. That `given` is that one, and not another,
    /// its instruction's accounts say.
    ///
    /// # Errors
    /// [`VaultError::BudgetRequired`].
    #[inline(always)]
    pub fn check_budget<T>(&self, given: Option<&T>) -> Result<()> {
        require!(given.is_some() || address_eq(&self.budget, &NONE), VaultError::BudgetRequired);
        Ok(())
    }

    /// Gives the vault a session authority. Address zero takes it away.
    pub fn set_session(&mut self, session: &Session) {
        self.session_authority = session.authority;
        self.session_expires_at = if address_eq(&session.authority, &NONE) { 0 } else { session.expires_at };
    }
}

/// The key that signs an agent's payments, and until when.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, anchor_lang::IdlType)]
pub struct Session {
    /// The session authority; all zero: none.
    pub authority: Address,
    /// Unix time from which it no longer counts.
    pub expires_at: i64,
}

/// The fields that live and archived vaults share, of an account that is either.
///
/// # Errors
/// [`VaultError::WrongVault`] when it is neither.
pub fn live_or_archived(account: &AccountView) -> Result<ArchivedVault> {
    use anchor_lang::Owner;
    let data = account.try_borrow()?;
    let known = data.get(..8).is_some_and(|discriminator| {
        discriminator == Vault::DISCRIMINATOR || discriminator == ArchivedVault::DISCRIMINATOR
    });
    require!(known && account.owned_by(&Vault::OWNER), VaultError::WrongVault);
    let fields = data.get(8..ARCHIVED_SPACE).ok_or(VaultError::WrongVault)?;
    Ok(anchor_lang::bytemuck::pod_read_unaligned(fields))
}

/// Whether an account that [`live_or_archived`] has accepted is archived.
///
/// # Errors
/// When the account is being written.
pub fn is_archived(account: &AccountView) -> Result<bool> {
    Ok(account.try_borrow()?.get(..8) == Some(ArchivedVault::DISCRIMINATOR))
}

/// Pays what a vault's account holds above its rent exemption to `receiver`, who paid the rent: strangers' lamports, and the
/// rent of escrows and allowances whose payer could take none. A receiver that became a program can take none either; then it stays.
///
/// # Errors
/// [`VaultError::Overflow`] when the lamports do not fit.
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

/// Counts a change of a vault that [`live_or_archived`] has accepted.
///
/// # Errors
/// [`VaultError::WrongVault`] when the account is too small.
pub fn count_change(account: &mut AccountView, vault: &mut ArchivedVault) -> Result<u64> {
    let sequence = next_sequence(&mut vault.sequence)?;
    let mut data = account.try_borrow_mut()?;
    let fields = data.get_mut(8..ARCHIVED_SPACE).ok_or(VaultError::WrongVault)?;
    fields.copy_from_slice(anchor_lang::bytemuck::bytes_of(vault));
    Ok(sequence)
}
