//! Releases an escrow, given a proof of completion.

use super::{
    attestation::{self, Attested},
    parties::{check_party, receiver_key},
    settle_escrow::{settle, SettleEscrow},
};
use crate::{
    errors::VaultError,
    events::emit_event,
    state::{proof, same_address, NONE},
};
use agent_vault_policy::UnixTime;
use anchor_lang::prelude::*;

/// See [`crate::agent_vault::complete_escrow`].
///
/// Anyone may present a signature as proof. The hash of an output alone can be known to others, so only a party may
/// present it.
///
/// # Errors
/// [`VaultError::EscrowExpired`], [`VaultError::EscrowDisputed`] and [`VaultError::EscrowDecided`] if the escrow is in
/// that state; [`VaultError::ProofKindNotAccepted`] if it does not accept `kind`; [`VaultError::UnexpectedOutput`] if
/// the output does not match the commitment; [`VaultError::InvalidProof`] if the required signature is missing;
/// [`VaultError::Unauthorized`] if the presenter of a hash is not a party; [`VaultError::SessionExpired`] if the key of
/// a side has expired; the errors of [`receiver_key`] for a signature of the receiver; the errors of [`settle`].
pub fn handler(ctx: &mut Context<SettleEscrow>, kind: u8, output_hash: [u8; 32]) -> Result<()> {
    let a = &mut ctx.accounts;
    let now = a.now()?;
    let settlement = a.escrow.as_policy().complete(now).map_err(VaultError::from)?;
    let accepted = kind <= proof::WEBHOOK_CALLBACK && a.escrow.proof_kinds & (1 << kind) != 0;
    require!(accepted, VaultError::ProofKindNotAccepted);
    let expected = a.escrow.has_output_commitment == 0 || a.escrow.output_commitment == sha256(&output_hash);
    require!(expected, VaultError::UnexpectedOutput);
    if kind == proof::OUTPUT_HASH {
        let signer = a.signer.as_ref().ok_or(VaultError::Unauthorized)?;
        check_party(signer.address(), &a.org, &a.vault, &a.escrow, a.receiver.as_ref(), now)?;
    } else {
        let (name, (key, until)): (&[u8], (Address, UnixTime)) = if kind == proof::SIGNED_ATTESTATION {
            (b"signed_attestation", receiver_key(&a.escrow, a.receiver.as_ref())?)
        } else {
            (b"webhook_callback", (a.escrow.verifier, UnixTime(i64::MAX)))
        };
        require!(!same_address(&key, &NONE), VaultError::InvalidProof);
        require!(now < until, VaultError::SessionExpired);
        let attested = Attested {
            kind: name,
            genesis_hash: &a.org.genesis_hash,
            escrow: a.escrow.address(),
            task_hash: &a.escrow.task_hash,
            output_hash: &output_hash,
        };
        attestation::verify(a.instructions.as_ref(), &key, &attested)?;
    }
    let mut event = settle(a, &settlement, now)?;
    event.output_hash = output_hash;
    event.proof_kind = kind;
    emit_event!(ctx, event);
    Ok(())
}
