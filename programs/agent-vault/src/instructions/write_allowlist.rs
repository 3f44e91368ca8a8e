//! Writes a policy's next allowlist.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, AllowlistWritten},
    state::{
        create_pda, head_of, same_address, seeds, Allowlist, AllowlistAccount, Entry, Org, Outlined, Policy,
        Versioned, MAX_ENTRIES,
    },
    ID,
};
use agent_vault_policy::rules::allowed_recipients::follows;
use alloc::vec::Vec;
use anchor_lang::{prelude::*, realloc_account};

with_event_accounts! {
    /// Accounts of `write_allowlist`.
    #[derive(Accounts)]
    pub struct WriteAllowlist {
        /// Payer of the rent. When the list is closed, all of its rent goes to the payer that created its account.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The organisation's operator or authority. The entries count only once the authority names their digest.
        #[account(constraint = org.is_operator(writer.address()) || org.is_authority(writer.address()) @ VaultError::Unauthorized)]
        pub writer: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The policy that the list belongs to.
        #[account(
            constraint = same_address(&policy.org, org.address()) @ VaultError::WrongOrg,
            constraint = policy.immutable == 0 @ VaultError::PolicyImmutable)]
        pub policy: Outlined<Account<Policy>>,
        /// The policy's next list, created by its first chunk. The address is checked in the handler.
        #[account(mut)]
        pub allowlist: UncheckedAccount,
        /// The system program, used to create the account.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::write_allowlist`].
///
/// # Errors
/// [`VaultError::WrongAllowlist`] if the account is not the policy's next list; [`VaultError::AllowlistSealed`] if that
/// list is already sealed; [`VaultError::AllowlistGap`] if `offset` is neither zero nor the list's length;
/// [`VaultError::AllowlistTooLong`] if the list would exceed [`MAX_ENTRIES`]; [`VaultError::AllowlistUnsorted`] if the
/// entries are not in ascending order without duplicates.
pub fn handler(
    ctx: &mut Context<WriteAllowlist>,
    offset: u32,
    entries: Vec<Entry>,
    seal: bool,
) -> Result<()> {
    let version = ctx.accounts.policy.next_allowlist_version;
    let policy = ctx.accounts.policy.address();
    let mut view = *ctx.accounts.allowlist.account();
    let version_seed = version.to_le_bytes();
    let list_seeds: [&[u8]; 3] = [seeds::ALLOWLIST, policy.as_ref(), &version_seed];
    let added = u32::try_from(entries.len()).map_err(|_| VaultError::AllowlistTooLong)?;
    let count = offset.checked_add(added).ok_or(VaultError::AllowlistTooLong)?;
    require!(count <= MAX_ENTRIES, VaultError::AllowlistTooLong);

    let payer = *ctx.accounts.payer.account();
    let space = AllowlistAccount::space_for(count);
    if !view.owned_by(&ID) {
        require!(offset == 0, VaultError::AllowlistGap);
        let bump = create_pda(&payer, &view, &list_seeds, space, head_of::<Allowlist>())
            .map_err(|_| VaultError::WrongAllowlist)?;
        // SAFETY: the dispatcher has refused a second mutable reference to the account.
        let mut list = unsafe { Outlined::<AllowlistAccount>::load_mut(view) }?;
        list.policy = *policy;
        list.version = version;
        list.payer = *payer.address();
        list.bump = bump;
    } else if view.data_len() < space {
        realloc_account(&mut view, space, &payer, true)?;
    }

    // SAFETY: the dispatcher has refused a second mutable reference to the account.
    let Versioned(mut list) = unsafe { Versioned::<AllowlistAccount>::load_mut(view) }?;
    // The program creates lists only at their addresses, so a list that names this policy and version is the right one.
    let right = same_address(&list.policy, policy) && list.version == version;
    require!(right, VaultError::WrongAllowlist);
    require!(list.sealed == 0, VaultError::AllowlistSealed);
    if offset == 0 {
        // The first chunk starts the list over. The list in force has a different version, so it is never this one.
        list.clear();
    }
    require!(list.len() == offset as usize, VaultError::AllowlistGap);
    for entry in entries {
        let ascending = list.last().is_none_or(|last| follows(last, &entry));
        require!(ascending, VaultError::AllowlistUnsorted);
        list.try_push(entry)?;
    }
    list.sealed = u8::from(seal);

    let event = AllowlistWritten {
        org: *ctx.accounts.org.address(),
        policy: *policy,
        allowlist: *list.address(),
        sequence: ctx.accounts.org.next_sequence()?,
        version,
        count,
        sealed: u8::from(seal),
        reserved: [0; 3],
    };
    drop(list);
    emit_event!(ctx, event);
    Ok(())
}
