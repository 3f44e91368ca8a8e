//! Attests the category and domain of a recipient.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, RecipientRegistered},
    instructions::clock,
    state::{
        check_sequence, create_recipient, recipient_address, same_address, Org, Outlined, Recipient, Unloaded,
    },
    ID,
};
use agent_vault_policy::CATEGORIES;
use anchor_lang::prelude::*;

with_event_accounts! {
    /// Accounts of `register_recipient`.
    #[derive(Accounts)]
    pub struct RegisterRecipient {
        /// Payer of the rent.
        #[account(mut, unsafe(dup))]
        pub payer: Signer,
        /// The operator or the authority for a new recipient, only the authority for one that is already registered.
        pub signer: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
        /// The Recipient account of the address. Checked in the handler.
        #[account(mut)]
        pub recipient: Unloaded<Recipient>,
        /// The system program, used to create the account.
        pub system_program: Program<System>,
    }
}

/// See [`crate::agent_vault::register_recipient`].
///
/// A registration by the operator permits no payments before the organisation's delay has passed, so that the authority
/// can see and correct it. A registration by the authority takes effect immediately and replaces any existing one. A
/// registration is never closed, so an address cannot shed its category.
///
/// # Errors
/// [`VaultError::Unauthorized`] if the signer may not register this recipient; [`VaultError::SequenceMismatch`] if
/// `replaces` is not the sequence of the present registration, or zero if there is none;
/// [`VaultError::UnknownCategory`] if the category does not exist; [`VaultError::WrongRecipientAccount`] if `recipient`
/// is not the account of this address.
pub fn handler(
    ctx: &mut Context<RegisterRecipient>,
    address: Address,
    domain_digest: Option<[u8; 32]>,
    category: u8,
    replaces: u64,
) -> Result<()> {
    require!(category < CATEGORIES, VaultError::UnknownCategory);
    let signer = ctx.accounts.signer.address();
    let view = *ctx.accounts.recipient.account();
    let at = *view.address();
    let is_new = !view.owned_by(&ID);
    let is_authority = ctx.accounts.org.is_authority(signer);
    let may = is_authority || (is_new && ctx.accounts.org.is_operator(signer));
    require!(may, VaultError::Unauthorized);
    if is_new {
        let a = &mut ctx.accounts;
        let bump = [a.org.bump];
        create_recipient(
            a.payer.account(),
            a.recipient.account(),
            a.org.account(),
            &a.org.signer_seeds(&bump),
            &address,
        )?;
    }

    // Use the cluster's time, because an organisation has no ledger. For a vault with a time ahead of the clock, the
    // attestation takes effect earlier, but by no more than the clock stepped back.
    let now = clock()?.0;
    let delay = i64::try_from(ctx.accounts.org.attestation_delay).unwrap_or(i64::MAX);
    let effective_at = if is_authority { now } else { now.saturating_add(delay) };
    // SAFETY: the dispatcher has refused a second mutable reference to the account.
    let mut recipient = unsafe { Outlined::<Account<Recipient>>::load_mut(view) }?;
    // Derive the address instead of reading it from the account, so that the authority can replace the account even if
    // its contents are wrong.
    let expected = recipient_address(ctx.accounts.org.address(), &address);
    require!(same_address(&expected, &at), VaultError::WrongRecipientAccount);
    check_sequence(replaces, recipient.sequence)?;
    recipient.org = *ctx.accounts.org.address();
    recipient.address = address;
    recipient.domain_hash = [0; 32];
    if let Some(digest) = &domain_digest {
        // Hash the digest here: an operator that could choose these bytes freely could choose those of a listed
        // address.
        recipient.domain_hash = sha256(digest);
    }
    recipient.has_domain = u8::from(domain_digest.is_some());
    recipient.category = category;
    recipient.effective_at = effective_at;

    let sequence = ctx.accounts.org.next_sequence()?;
    recipient.sequence = sequence;
    emit_event!(
        ctx,
        RecipientRegistered {
            org: recipient.org,
            address,
            signer: *ctx.accounts.signer.address(),
            domain_hash: recipient.domain_hash,
            sequence,
            effective_at,
            category,
            has_domain: u8::from(domain_digest.is_some()),
            reserved: [0; 6],
        }
    );
    Ok(())
}
