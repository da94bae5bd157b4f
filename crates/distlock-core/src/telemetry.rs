//! What locks tell: `tracing` spans and events always, metrics with the feature `metrics` (through the `metrics` facade).
//! Install the recorder before connecting, so that it gets the units and descriptions.
//!
//! | span (debug) | fields | covers |
//! | --- | --- | --- |
//! | `distlock.acquire` | `resource`, `store` | an acquisition, including its wait |
//! | `distlock.queue` | `resource`, `store` | the wait in the queue of a fair mutex, before its `distlock.acquire` |
//! | `distlock.release` | `resource`, `store` | a release, also that of a dropped guard |
//! | `distlock.renew` | `leases`, `store` | one batch of renewals, or one [`Guard::renew`](crate::Guard::renew) |
//! | `distlock.listen` | `store` | the subscription for wake-ups |
//!
//! | event | level | inside | fields |
//! | --- | --- | --- | --- |
//! | `acquired` | debug | `distlock.acquire` | `resource`, `lock_id`, `token`, `waited` |
//! | `waiting`, once for each acquisition that waits | debug | `distlock.acquire`, `distlock.queue` | `resource`, `retry_after` |
//! | `busy`, an attempt found it held | trace | `distlock.acquire`, `distlock.queue` | `resource` |
//! | `this task waits for a lock that it holds: …` | warn | `distlock.acquire`, `distlock.queue` | `resource`, `store` |
//! | `timed out` | debug | `distlock.acquire`, `distlock.queue` | `resource` |
//! | `released` | debug | `distlock.release` | `resource`, `lock_id`, `token`, `held` |
//! | `renewed` | trace | `distlock.renew` | `leases`, `latency` |
//! | `lost` | warn | where it is noticed: `distlock.renew`, or none | `resource`, `lock_id`, `token`, `reason`, `store` |
//! | `a request to the store failed` | warn | the span of the request | `doing`, `error`, `store` |
//!
//! | metric | type | unit | labels | what |
//! | --- | --- | --- | --- | --- |
//! | `distlock_acquired_total` | counter | count | `kind`, `store` | locks granted |
//! | `distlock_busy_total` | counter | count | `kind`, `store` | attempts that found the lock held by another client |
//! | `distlock_timed_out_total` | counter | count | `kind`, `store` | acquisitions that reached their time limit |
//! | `distlock_lost_total` | counter | count | `kind`, `store` | guards lost while they were held |
//! | `distlock_errors_total` | counter | count | `doing`, `store` | requests to the store that failed; most are retried |
//! | `distlock_held` | gauge | count | `kind`, `store` | locks held now |
//! | `distlock_waiting` | gauge | count | `kind`, `store` | acquisitions that wait now |
//! | `distlock_wait_seconds` | histogram | seconds | `kind`, `store` | time from the request to the grant, the queue of a fair mutex included |
//! | `distlock_hold_seconds` | histogram | seconds | `kind`, `store` | time from the grant to the release |
//! | `distlock_renewal_seconds` | histogram | seconds | `store` | time that a batch of renewals took |
//!
//! `kind` is `mutex`, `rw_lock` or `semaphore`; `store` is what [`Locks::store`](crate::Locks::store) says, without secrets. The
//! queue of a fair mutex is no lock of its own: its waiters and time-outs count as those of the mutex. On stores with sessions
//! an acquisition counts as waiting from the moment its claim is sent, since the server does the waiting.
