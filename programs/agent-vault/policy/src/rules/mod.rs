//! One rule per file. Each `check` defines the rule's verdict on a payment; the tests below it check the values at its
//! boundary.

pub mod allowed_recipients;
pub mod blocked_categories;
pub mod expiry;
pub mod frozen;
pub mod max_per_day;
pub mod max_per_month;
pub mod max_per_tx;
pub mod paused;
pub mod require_co_sign;
pub mod velocity_cap;
