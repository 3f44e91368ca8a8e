//! The program's errors. Each reason for a refusal has its own code, and codes are only ever appended.

use agent_vault_policy::{escrow::EscrowRefusal, Refusal, Rule};
use anchor_lang::prelude::*;

/// The program's errors.
#[error_code]
pub enum VaultError {
    // The first ten follow the order of `agent_vault_policy::Rule`, so their code is 6000 + rule. Rules added later
    // have their errors further down: see `From<Rule>`.
    #[msg("The organisation is paused.")]
    OrgPaused,
    #[msg("The vault is frozen.")]
    WalletFrozen,
    #[msg("The policy has expired.")]
    PolicyExpired,
    #[msg("The recipient is not on the policy's allowlist.")]
    RecipientNotAllowed,
    #[msg("The policy blocks the recipient's category.")]
    CategoryBlocked,
    #[msg("The amount exceeds the policy's limit per payment.")]
    MaxPerTxExceeded,
    #[msg("The payment would exceed the policy's maximum number of payments per hour.")]
    VelocityCapExceeded,
    #[msg("The payment would exceed the policy's limit for 24 hours.")]
    MaxPerDayExceeded,
    #[msg("The payment would exceed the policy's limit for the calendar month.")]
    MaxPerMonthExceeded,
    #[msg("The amount is above the policy's threshold. It needs the operator's co-signature or approval.")]
    CoSignRequired,

    #[msg("The vault's balance is too low for this amount.")]
    InsufficientBalance,
    #[msg("The reserve's balance is too low for this amount.")]
    ReserveInsufficient,
    #[msg("The amount must be greater than zero.")]
    ZeroAmount,
    #[msg("A vault cannot pay itself.")]
    PaymentToSelf,
    #[msg("The signer does not have the required role.")]
    Unauthorized,
    #[msg("The session authority has expired.")]
    SessionExpired,
    #[msg("The account belongs to a different organisation.")]
    WrongOrg,
    #[msg("The account is not a vault.")]
    WrongVault,
    #[msg("The policy is not attached to this vault.")]
    WrongPolicy,
    #[msg("The allowlist is not the one that the policy expects here.")]
    WrongAllowlist,
    #[msg("The mint is not the organisation's mint.")]
    WrongMint,
    #[msg("The token account is not the expected one.")]
    WrongTokenAccount,
    #[msg("The token program is not the organisation's token program.")]
    WrongTokenProgram,
    #[msg("The Recipient account does not belong to this organisation and address.")]
    WrongRecipientAccount,
    #[msg("The policy blocks categories. Pass the Recipient account of the paid address.")]
    RecipientAccountRequired,
    #[msg(
        "The approval is for a different vault, recipient, amount, kind of spending or terms of an escrow."
    )]
    WrongApproval,
    #[msg("The rent receiver must be the account that paid the rent.")]
    WrongRentReceiver,
    #[msg("Presets cannot be changed.")]
    PolicyImmutable,
    #[msg("Vaults are still attached to the policy. Attach a different one to them first.")]
    PolicyInUse,
    #[msg("The policy or budget is no longer at the expected version. Read it again and retry.")]
    VersionMismatch,
    #[msg("The vault's balance is not below the given threshold.")]
    BalanceNotBelow,
    #[msg("The entries must be in ascending order and without duplicates.")]
    AllowlistUnsorted,
    #[msg("The chunk must start at zero or where the list ends.")]
    AllowlistGap,
    #[msg("The list would exceed the maximum number of entries.")]
    AllowlistTooLong,
    #[msg("The list is not sealed. Seal it before putting it in force.")]
    AllowlistNotSealed,
    #[msg("Funding would exceed the operator's limit for 24 hours.")]
    OperatorLimitExceeded,
    #[msg("The vault or budget is already frozen.")]
    AlreadyFrozen,
    #[msg("The vault or budget is not frozen.")]
    NotFrozen,
    #[msg("The policy has not expired yet.")]
    PolicyNotExpired,
    #[msg("The vault still holds USDC. Withdraw it first.")]
    WalletNotEmpty,
    #[msg("The vault still has open escrows. Settle them first.")]
    OpenEscrows,
    #[msg("The category does not exist.")]
    UnknownCategory,
    #[msg("An approval must expire in the future and within 24 hours.")]
    InvalidTime,
    #[msg("A computed number is out of range.")]
    Overflow,
    #[msg("The escrow's deadline has passed.")]
    EscrowExpired,
    #[msg("The escrow cannot be refunded yet.")]
    EscrowNotExpired,
    #[msg("The escrow is disputed.")]
    EscrowDisputed,
    #[msg("The escrow is not disputed.")]
    EscrowNotDisputed,
    #[msg("The amount to release exceeds the escrow's amount.")]
    EscrowAmountExceeded,
    #[msg("The preceding instruction must verify the required key's signature of this escrow and output.")]
    InvalidProof,
    #[msg("The vault has reached its maximum number of open escrows.")]
    TooManyEscrows,
    #[msg("The escrow does not belong to this vault.")]
    WrongEscrow,
    #[msg("The receiver does not match the escrow.")]
    WrongReceiver,
    #[msg("The receiving vault is frozen.")]
    ReceiverFrozen,
    #[msg("The receiving vault is archived.")]
    ReceiverArchived,
    #[msg("The state that the instruction names has changed since. Read it again and retry.")]
    SequenceMismatch,
    #[msg("This organisation requires its authority's signature to attach a policy or budget.")]
    AuthorityRequired,
    #[msg("The policy's allowlist account, or the digest of a new allowlist, is missing.")]
    AllowlistRequired,
    #[msg("The entries of the list do not match the given count and hash.")]
    AllowlistMismatch,
    #[msg("The list is sealed and cannot be changed.")]
    AllowlistSealed,
    #[msg("The attached policy's account is missing, or the new policy's account or version.")]
    PolicyRequired,
    #[msg("The mint is not supported.")]
    UnsupportedMint,
    #[msg("The token program is not supported.")]
    UnsupportedTokenProgram,
    #[msg("The account is not a token account of the organisation's token program.")]
    NotATokenAccount,
    #[msg("The token account cannot be used, for example because it is frozen.")]
    UnusableTokenAccount,
    #[msg("The approval has expired.")]
    ApprovalExpired,
    #[msg("The policy or the operator has changed since the approval was given.")]
    ApprovalOutdated,
    #[msg("The account of the rent receiver is missing.")]
    RentReceiverRequired,
    #[msg("An escrow must accept at least one kind of proof, and only known kinds.")]
    InvalidProofKinds,
    #[msg("The escrow does not accept this kind of proof.")]
    ProofKindNotAccepted,
    #[msg("The output does not match the escrow's output commitment.")]
    UnexpectedOutput,
    #[msg("An escrow's timeout must be between 60 seconds and 30 days.")]
    InvalidTimeout,
    #[msg("The receiver's account, or an account needed to create its token account, is missing.")]
    ReceiverRequired,
    #[msg("The escrow is already decided.")]
    EscrowDecided,
    #[msg("The escrow is not decided yet.")]
    EscrowUndecided,
    #[msg("No share left in the escrow can be paid to the given accounts yet.")]
    NothingToCollect,
    #[msg("The payment would exceed the budget's limit for 24 hours.")]
    BudgetMaxPerDayExceeded,
    #[msg("The payment would exceed the budget's limit for the calendar month.")]
    BudgetMaxPerMonthExceeded,
    #[msg("The payment would exceed the budget's maximum number of payments per hour.")]
    BudgetVelocityCapExceeded,
    #[msg("A budget's account is missing, or the new budget's version.")]
    BudgetRequired,
    #[msg("The budget is not the one of this vault, escrow or allowance.")]
    WrongBudget,
    #[msg("Vaults or budgets still belong to the budget. Detach or close them first.")]
    BudgetInUse,
    #[msg("The policy does not permit allowances.")]
    AllowancesNotAllowed,
    #[msg("The vault has reached its maximum number of outstanding allowances.")]
    TooManyAllowances,
    #[msg("The vault still has outstanding allowances. Settle them first.")]
    OpenAllowances,
    #[msg(
        "The delegate must not be address zero, an account of this program, the operator, the authority or the session authority."
    )]
    UnusableDelegate,
    #[msg(
        "An allowance must expire in the future, within 180 seconds, and no later than its session and policy."
    )]
    InvalidAllowanceTime,
    #[msg("The allowance does not belong to this vault.")]
    WrongAllowance,
    #[msg(
        "With these accounts, only the operator, session authority or authority can settle the allowance now."
    )]
    AllowanceNotExpired,
    #[msg("This side has already raised its dispute of the escrow.")]
    DisputeRaisedBefore,
    #[msg("The organisation is already paused.")]
    AlreadyPaused,
    #[msg("The account has a different layout version. Migrate an earlier one; a later one needs a newer program.")]
    UnsupportedLayout,
    #[msg("The payment would exceed the budget's limit for its whole life.")]
    BudgetMaxTotalExceeded,
    #[msg("The budget has expired.")]
    BudgetExpired,
    #[msg("The budget is frozen.")]
    BudgetFrozen,
    #[msg("The account of the budget's parent is missing, or the parent's version.")]
    BudgetParentRequired,
    #[msg("The parent of a budget must not have a parent itself.")]
    BudgetTooDeep,
    #[msg("The payee is not known yet, and its cap or the room for strangers is used up.")]
    NewRecipientCapped,
    #[msg("The vault has no room for the payees that the policy's cap needs. Migrate the vault first.")]
    PayeeListsRequired,
    #[msg("The vault does not know this payee.")]
    PayeeUnknown,
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
            Rule::BudgetMaxTotal => VaultError::BudgetMaxTotalExceeded,
            Rule::BudgetExpired => VaultError::BudgetExpired,
            Rule::BudgetFrozen => VaultError::BudgetFrozen,
            Rule::NewRecipient => VaultError::NewRecipientCapped,
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
