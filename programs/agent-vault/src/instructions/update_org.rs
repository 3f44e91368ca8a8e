//! Changes an organisation.

use crate::{
    errors::VaultError,
    events::{emit_event, with_event_accounts, OrgUpdated},
    state::{Org, Outlined},
};
use anchor_lang::{prelude::*, IdlType};

/// The changes to make; `None` leaves a value unchanged.
#[derive(Clone, Copy, AnchorSerialize, AnchorDeserialize, IdlType)]
pub struct OrgChanges {
    /// Proposed next authority. All zero withdraws the proposal.
    pub pending_authority: Option<Address>,
    /// The new operator.
    pub operator: Option<Address>,
    /// The new arbiter.
    pub arbiter: Option<Address>,
    /// The new verifier.
    pub verifier: Option<Address>,
    /// Maximum micro-USDC that the operator may move into vaults in any 24 hours; `u64::MAX` means no limit.
    pub operator_daily_limit: Option<u64>,
    /// Seconds until a recipient's registration by the operator can permit payments.
    pub attestation_delay: Option<u64>,
    /// True stops payments, escrow creation, new allowances and funding; false resumes them.
    pub paused: Option<bool>,
    /// True if the operator needs the authority's signature to attach a policy, or a vault's first budget.
    pub authority_attaches: Option<bool>,
}

impl OrgChanges {
    /// Returns true if the changes do nothing but pause. The operator may make such a call too, and it needs no
    /// sequence. The handler refuses it if the organisation is already paused, because repeated pauses would invalidate
    /// changes that the authority has signed.
    fn only_pauses(&self) -> bool {
        self.paused == Some(true)
            && self.pending_authority.is_none()
            && self.operator.is_none()
            && self.arbiter.is_none()
            && self.verifier.is_none()
            && self.operator_daily_limit.is_none()
            && self.attestation_delay.is_none()
            && self.authority_attaches.is_none()
    }
}

with_event_accounts! {
    /// Accounts of `update_org`.
    #[derive(Accounts)]
    pub struct UpdateOrg {
        /// The authority, or the operator for a pure pause.
        pub signer: Signer,
        /// The organisation.
        #[account(mut)]
        pub org: Outlined<Account<Org>>,
    }
}

/// See [`crate::agent_vault::update_org`].
///
/// # Errors
/// [`VaultError::Unauthorized`] if the changes need a different signer; [`VaultError::SequenceMismatch`] if
/// `expected_sequence` is not the current one; [`VaultError::AlreadyPaused`] for a pure pause of a paused organisation.
pub fn handler(
    ctx: &mut Context<UpdateOrg>,
    changes: OrgChanges,
    expected_sequence: Option<u64>,
) -> Result<()> {
    let signer = ctx.accounts.signer.address();
    let org = &mut ctx.accounts.org;
    let pauses = changes.only_pauses();
    require!(org.is_authority(signer) || (org.is_operator(signer) && pauses), VaultError::Unauthorized);
    require!(pauses || expected_sequence == Some(org.authority_sequence), VaultError::SequenceMismatch);
    require!(!pauses || !org.is_paused(), VaultError::AlreadyPaused);
    replace(&mut org.pending_authority, &changes.pending_authority);
    replace(&mut org.operator, &changes.operator);
    replace(&mut org.arbiter, &changes.arbiter);
    replace(&mut org.verifier, &changes.verifier);
    org.operator_daily_limit = changes.operator_daily_limit.unwrap_or(org.operator_daily_limit);
    org.attestation_delay = changes.attestation_delay.unwrap_or(org.attestation_delay);
    org.paused = changes.paused.map_or(org.paused, u8::from);
    org.authority_attaches = changes.authority_attaches.map_or(org.authority_attaches, u8::from);
    let sequence = org.next_authority_sequence()?;
    emit_event!(
        ctx,
        OrgUpdated {
            org: *org.address(),
            authority: org.authority,
            pending_authority: org.pending_authority,
            operator: org.operator,
            arbiter: org.arbiter,
            verifier: org.verifier,
            signer: *signer,
            sequence,
            operator_daily_limit: org.operator_daily_limit,
            attestation_delay: org.attestation_delay,
            paused: org.paused,
            authority_attaches: org.authority_attaches,
            reserved: [0; 6],
        }
    );
    Ok(())
}

/// Replaces the address by `change`, if there is one.
fn replace(address: &mut Address, change: &Option<Address>) {
    if let Some(change) = change {
        *address = *change;
    }
}
