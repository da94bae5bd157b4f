//! What a store must do. Two traits, one for each way in which stores keep locks:
//! a [`LeaseStore`] has records that expire, a [`SessionStore`] has holds that live with a connection.
//!
//! A store does single atomic steps. Waiting, renewing, noticing loss, batching and undoing are the
//! engine's, once for all stores.

mod admin;
mod capabilities;
mod driver;
mod lease;
mod record;
mod session;
mod source;
pub mod support;
pub mod url;
mod wake;

pub use admin::{Finding, Level, Store};
pub use capabilities::{Capabilities, Fairness};
pub use driver::{Backend, Driver, UrlOption, WakeStream};
pub use lease::{Attempt, Batch, Claim, Inbox, Lease, LeaseStore, Released, Renewal, Waiting};
pub use record::{Holder, Mode, Query, Record, Waiter};
pub(crate) use session::Dependent;
pub use session::{LossReason, Session, SessionHold, SessionStore};
pub(crate) use source::Source;
pub use source::{Connected, Lazy, StoreSource};
pub use url::StoreUrl;
pub use wake::{GRANT_WINDOW, PushedGrant, Wake};
