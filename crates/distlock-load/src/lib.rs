//! Load on a real store, beside the same driver doing the bare round trips, in one run.
//!
//! Every scenario is a closed loop: a task begins its next operation when the last one has ended, so a slow answer
//! delays the load instead of piling it up, and latencies are those of one operation, not of a queue in front of it.
//! Ours and the raw driver's slices alternate (ours, raw, raw, ours, …), so that whatever else the machine does falls
//! on both, and the ratio of the two means something even where the figures do not.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_load::{Bench, Plan, Silent, Target};
//!
//! # let open: distlock_load::Open = |_| unimplemented!();
//! let target = Target::new("redis://127.0.0.1", open);
//! let mut bench = Bench::prepare(target).await?;
//! let outcomes = bench.run(&Plan::default(), &Silent).await;
//! bench.finish().await?;
//! for outcome in outcomes? {
//!     println!("{}: {:?} µs", outcome.scenario, outcome.p50_us);
//! }
//! # Ok(()) }
//! ```

mod bench;
mod counter;
mod interleave;
mod latencies;
mod load;
mod outcome;
mod plan;
pub mod render;
mod scenarios;
mod usage;
mod worker;

pub use bench::{Bench, Observer, Open, OpenBaseline, Silent, Target};
pub use latencies::Latencies;
pub use outcome::{Line, Outcome};
pub use plan::{Plan, Scenario};
pub use worker::{WORD, worker};
