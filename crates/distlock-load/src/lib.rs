//! Puts load on a real store and on its bare driver (the baseline) in the same run.
//!
//! Every scenario is a closed loop: a task starts its next operation when the previous one has ended. So latencies are those of
//! operations, without time in a queue of the benchmark. Slices of distlock and of the baseline alternate (ours, baseline,
//! baseline, ours, …), so that other activity of the machine affects both alike and their ratio is meaningful.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use distlock_load::{Bench, Plan, NoObserver, BenchStore};
//!
//! # let open: distlock_load::Open = |_| unimplemented!();
//! let store = BenchStore::new("redis://127.0.0.1", open);
//! let mut bench = Bench::connect(store).await?;
//! let outcomes = bench.run(&Plan::default(), &NoObserver).await;
//! bench.finish().await?;
//! for outcome in outcomes? {
//!     println!("{}: {:?} µs", outcome.scenario, outcome.p50_us);
//! }
//! # Ok(()) }
//! ```

mod bench;
mod counter;
mod handoffs;
mod interleave;
mod latencies;
mod outcome;
mod plan;
pub mod render;
mod scenarios;
mod usage;
mod worker;
mod workload;

pub use bench::{Bench, BenchStore, NoObserver, Observer, Open, OpenBaseline};
pub use latencies::Latencies;
pub use outcome::{JsonRecord, Outcome};
pub use plan::{Plan, Scenario};
pub use worker::{WORKER_ARG, worker};
