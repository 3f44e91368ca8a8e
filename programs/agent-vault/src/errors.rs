//! Every cause of refusal has its own code. Codes are only ever appended.

use agent_vault_policy::{escrow::EscrowRefusal, Refusal, Rule};
use anchor_lang::prelude::*;

/// The program's errors.
#[error_code]
pub enum VaultError {
    // The first ten stand in the order of `agent_vault_policy::Rule`: code = 6000 + rule. The rules added later have theirs
    // further down: see `From<Rule>`.
    #[msg("The organisation is paused.")]
    OrgPaused,
    #[msg("The vault is frozen.")]
    WalletFrozen,
    #[msg("The policy has expired.")]
    PolicyExpired,
    #[msg("The recipient is not on the policy's allowlist.")]
    RecipientNotAllowed,
    #[msg("The recipient's category is blocked by the policy.")]
    CategoryBlocked,
    #[msg("The amount is above the policy's maximum of one payment.")]
    MaxPerTxExceeded,
    #[msg("The payment would exceed the policy's number of payments in an hour.")]
    VelocityCapExceeded,
    #[msg("The payment would exceed the policy's maximum of 24 hours.")]
    MaxPerDayExceeded,
    #[msg("The payment would exceed the policy's maximum of the calendar month.")]
    MaxPerMonthExceeded,
    #[msg("An amount above the policy's threshold needs the operator's co-signature or approval.")]
    CoSignRequired,

    #[msg("The vault's balance is too low.")]
    InsufficientBalance,
    #[msg("The reserve's balance is too low.")]
    ReserveInsufficient,
    #[msg("The amount must be greater than zero.")]
    ZeroAmount,
    #[msg("A vault cannot pay itself.")]
    PaymentToSelf,
    #[msg("The signer does not have the role that this needs.")]
    Unauthorized,
    #[msg("The session authority's time has passed.")]
    SessionExpired,
    #[msg("The account belongs to another organisation.")]
    WrongOrg,
    #[msg("The account is not a vault.")]
    WrongVault,
    #[msg("The policy is not the one attached to the vault.")]
    WrongPolicy,
    #[msg("The allowlist is not the policy's.")]
    WrongAllowlist,
    #[msg("The mint is not the organisation's.")]
    WrongMint,
    #[msg("The token account is not the one meant.")]
    WrongTokenAccount,
    #[msg("The token program is not the organisation's.")]
    WrongTokenProgram,
    #[msg("The recipient account is not that of the paid address.")]
    WrongRecipientAccount,
    #[msg("The policy needs the recipient account of the paid address.")]
    RecipientAccountRequired,
    #[msg("The approval is for another vault, recipient, amount or kind.")]
    WrongApproval,
    #[msg("The account that gets the rent back is not the one that paid it.")]
    WrongRentReceiver,
    #[msg("A preset cannot be changed.")]
    PolicyImmutable,
    #[msg("Vaults are still attached to the policy.")]
    PolicyInUse,
    #[msg("The policy or the budget has changed since it was read.")]
    VersionMismatch,
    #[msg("The vault holds as much already.")]
    BalanceNotBelow,
    #[msg("The entries are not in ascending order, or repeat.")]
    AllowlistUnsorted,
    #[msg("The chunk does not continue the list.")]
    AllowlistGap,
    #[msg("The list has more entries than allowed.")]
    AllowlistTooLong,
    #[msg("The list is not sealed.")]
    AllowlistNotSealed,
    #[msg("The operator's funding of the last 24 hours would exceed its limit.")]
    OperatorLimitExceeded,
    #[msg("The vault is frozen already.")]
    AlreadyFrozen,
    #[msg("The vault is not frozen.")]
    NotFrozen,
    #[msg("The policy has not expired.")]
    PolicyNotExpired,
    #[msg("The vault still holds USDC.")]
    WalletNotEmpty,
    #[msg("The vault still has open escrows.")]
    OpenEscrows,
    #[msg("There is no such category.")]
    UnknownCategory,
    #[msg("An approval ends after now and within 24 hours.")]
    InvalidTime,
    #[msg("A number does not fit.")]
    Overflow,
    #[msg("The escrow's deadline has passed.")]
    EscrowExpired,
    #[msg("The escrow cannot be refunded yet.")]
    EscrowNotExpired,
    #[msg("The escrow is disputed.")]
    EscrowDisputed,
    #[msg("The escrow is not disputed.")]
    EscrowNotDisputed,
    #[msg("More would be released than the escrow holds.")]
    EscrowAmountExceeded,
    #[msg(
        "The instruction before this one verifies no signature of this escrow and output by the right key."
    )]
    InvalidProof,
    #[msg("The vault has as many open escrows as it may.")]
    TooManyEscrows,
    #[msg("The account is not an escrow of the vault.")]
    WrongEscrow,
    #[msg("The receiver is not the one of the escrow.")]
    WrongReceiver,
    #[msg("The receiving vault is frozen.")]
    ReceiverFrozen,
    #[msg("The receiving vault is archived.")]
    ReceiverArchived,
    #[msg("The organisation or the vault has changed since its sequence was read.")]
    SequenceMismatch,
    #[msg("The organisation lets nobody attach policies without its authority.")]
    AuthorityRequired,
    #[msg("The policy needs its allowlist.")]
    AllowlistRequired,
    #[msg("The entries of the list have another count or hash.")]
    AllowlistMismatch,
    #[msg("The list is sealed.")]
    AllowlistSealed,
    #[msg("Both the policy attached and the one to attach are needed.")]
    PolicyRequired,
    #[msg("The mint is not one that can be used.")]
    UnsupportedMint,
    #[msg("The token program is not one that can be used.")]
    UnsupportedTokenProgram,
    #[msg("The account is no token account of the organisation's token program.")]
    NotATokenAccount,
    #[msg("The token account exists in a state in which it cannot be used.")]
    UnusableTokenAccount,
    #[msg("The approval has expired.")]
    ApprovalExpired,
    #[msg("The policy or the operator is no longer that of the approval.")]
    ApprovalOutdated,
    #[msg("The account that gets the rent back is missing.")]
    RentReceiverRequired,
    #[msg("An escrow accepts at least one of the known kinds of proof.")]
    InvalidProofKinds,
    #[msg("The escrow does not accept this kind of proof.")]
    ProofKindNotAccepted,
    #[msg("The output is not the one that the escrow expects.")]
    UnexpectedOutput,
    #[msg("An escrow's time is 60 seconds to 30 days.")]
    InvalidTimeout,
    #[msg("The receiver's account, or one to pay for and make its token account with, is missing.")]
    ReceiverRequired,
    #[msg("The escrow is decided.")]
    EscrowDecided,
    #[msg("The escrow is not decided.")]
    EscrowUndecided,
    #[msg("No side that the escrow owes a share can be paid.")]
    NothingToCollect,
    #[msg("The payment would exceed the budget's maximum of 24 hours.")]
    BudgetMaxPerDayExceeded,
    #[msg("The payment would exceed the budget's maximum of the calendar month.")]
    BudgetMaxPerMonthExceeded,
    #[msg("The payment would exceed the budget's number of payments in an hour.")]
    BudgetVelocityCapExceeded,
    #[msg("The account of the vault's or the escrow's budget is missing.")]
    BudgetRequired,
    #[msg("The budget is not the one of the vault or the escrow.")]
    WrongBudget,
    #[msg("Vaults are still attached to the budget.")]
    BudgetInUse,
    #[msg("The policy permits no allowances.")]
    AllowancesNotAllowed,
    #[msg("The vault has as many outstanding allowances as it may.")]
    TooManyAllowances,
    #[msg("The vault still has outstanding allowances.")]
    OpenAllowances,
    #[msg("The delegate is address zero, an account of this program, or a key that has a role.")]
    UnusableDelegate,
    #[msg("An allowance ends after now, within 180 seconds, and not after its session or policy.")]
    InvalidAllowanceTime,
    #[msg("The account is not an allowance of the vault.")]
    WrongAllowance,
    #[msg("The allowance is not yet for anyone to settle.")]
    AllowanceNotExpired,
    #[msg("This side has raised a dispute of the escrow before.")]
    DisputeRaisedBefore,
    #[msg("The organisation is paused already.")]
    AlreadyPaused,
}

impl From<EscrowRefusal> for VaultError {
    fn from(refusal: EscrowRefusal) -> Self {
        match refusal {
            EscrowRefusal::Expired => VaultError::EscrowExpired,
            EscrowRefusal::NotExpired => VaultError::EscrowNotExpired,
            EscrowRefusal::Disputed => VaultError::EscrowDisputed,
            EscrowRefusal::RaisedBefore => VaultError::DisputeRaisedBefore,
            EscrowRefusal::NotDisputed => VaultError::EscrowNotDisputed,
            EscrowRefusal::ExceedsAmount => VaultError::EscrowAmountExceeded,
            EscrowRefusal::Decided => VaultError::EscrowDecided,
        }
    }
}

impl From<Rule> for VaultError {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Paused => VaultError::OrgPaused,
            Rule::Frozen => VaultError::WalletFrozen,
            Rule::Expiry => VaultError::PolicyExpired,
            Rule::AllowedRecipients => VaultError::RecipientNotAllowed,
            Rule::BlockedCategories => VaultError::CategoryBlocked,
            Rule::MaxPerTx => VaultError::MaxPerTxExceeded,
            Rule::VelocityCap => VaultError::VelocityCapExceeded,
            Rule::MaxPerDay => VaultError::MaxPerDayExceeded,
            Rule::MaxPerMonth => VaultError::MaxPerMonthExceeded,
            Rule::RequireCoSign => VaultError::CoSignRequired,
            Rule::BudgetMaxPerDay => VaultError::BudgetMaxPerDayExceeded,
            Rule::BudgetMaxPerMonth => VaultError::BudgetMaxPerMonthExceeded,
            Rule::BudgetVelocityCap => VaultError::BudgetVelocityCapExceeded,
        }
    }
}

impl From<Refusal> for VaultError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Violation(violation) => violation.rule.into(),
            Refusal::Overflow => VaultError::Overflow,
        }
    }
}
