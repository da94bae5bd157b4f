//! What a store must do. Two traits, one for each way in which stores keep locks:
//! a [`LeaseStore`] has records that expire, a [`SessionStore`] has holds that live with a connection.
//!
//! A store does single atomic steps. Waiting, extending, noticing loss, batching and undoing are the
//! engine's, once for all stores.

mod admin;
mod driver;
mod lease;
mod session;
pub mod support;
pub mod url;

pub use admin::{Capabilities, Fairness, Finding, Holder, Level, Mode, Query, Record, Store, Waiter};
pub use driver::{Backend, Driver, UrlOption, WakeStream};
pub use lease::{
    Attempt, Batch, Claim, GRANT_WINDOW, Inbox, Lease, LeaseStore, PushedGrant, Released, Renewal, Waiting,
    Wake,
};
pub(crate) use session::Dependent;
pub use session::{LossReason, Session, SessionHold, SessionStore};
pub use url::StoreUrl;
