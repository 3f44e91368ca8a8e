//! A recipient's standing under a policy: its category, and whether it is on the allowlist. Payments and previews
//! compute it with the same function.

use crate::{
    errors::VaultError,
    state::{attestation, AllowlistAccount, Policy, Unloaded, Versioned, NONE},
};
use agent_vault_policy::{rules::allowed_recipients::contains, Category, UnixTime};
use anchor_lang::{address_eq, prelude::*};

/// Category code of a recipient without an attestation.
const UNCATEGORIZED: u8 = 0;

/// A recipient's standing under a policy.
pub struct RecipientStanding {
    /// True if the recipient is on the allowlist, by address or by a domain whose attestation is in effect.
    pub listed: bool,
    /// The category by which the policy judges the recipient.
    pub category: Category,
    /// Time of effect of the recipient's attestation, if there is one.
    pub effective_at: Option<UnixTime>,
}

/// Looks `address` up in the policy's allowlist and in the organisation's attestations.
///
/// # Errors
/// [`VaultError::RecipientAccountRequired`] if the policy blocks categories and `recipient` is missing;
/// [`VaultError::WrongRecipientAccount`] if it belongs to a different organisation or address;
/// [`VaultError::AllowlistRequired`] if the policy has an allowlist that is missing; [`VaultError::WrongAllowlist`] if
/// a different list was passed.
#[inline(never)]
pub fn recipient_standing(
    policy: &Policy,
    allowlist: Option<&Unloaded<AllowlistAccount>>,
    recipient: Option<&UncheckedAccount>,
    org: &Address,
    address: &Address,
    now: UnixTime,
) -> Result<RecipientStanding> {
    let attested = match recipient {
        Some(account) => attestation(account.account(), org, address)?,
        None => {
            require!(policy.blocked_categories == 0, VaultError::RecipientAccountRequired);
            None
        }
    };
    // Before its time of effect, an attestation can restrict payments but not permit them. This remains true if the
    // clock steps back.
    let counts = attested.as_ref().is_some_and(|about| now >= UnixTime(about.effective_at));
    let category = match &attested {
        Some(about) if counts || policy.blocked_categories & (1 << UNCATEGORIZED) == 0 => about.category,
        _ => UNCATEGORIZED,
    };
    let mut listed = false;
    if policy.is_restricted() && !address_eq(&policy.allowlist, &NONE) {
        let list = allowlist.ok_or(VaultError::AllowlistRequired)?;
        let Versioned(list) = Versioned::<AllowlistAccount>::load(*list.account())?;
        require!(address_eq(list.address(), &policy.allowlist), VaultError::WrongAllowlist);
        let entries = list.as_slice();
        listed = contains(entries, address.as_array())
            || attested.as_ref().is_some_and(|about| {
                counts && about.has_domain != 0 && contains(entries, &about.domain_hash)
            });
    }
    let effective_at = attested.as_ref().map(|about| UnixTime(about.effective_at));
    Ok(RecipientStanding { listed, category: Category(category), effective_at })
}
