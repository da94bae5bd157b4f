//! Runs a fixed number of acquire-and-release cycles on the memory store, on one thread. `bench/instructions` runs it under
//! callgrind with two numbers; the difference is the cost of the cycles alone.

use std::sync::Arc;
use std::time::Instant;

use distlock_core::memory::MemoryStore;
use distlock_core::store::Backend;
use distlock_core::{Clock, Locks, Moment, Result};

/// Replaces the boot clock, which valgrind does not support.
#[derive(Debug)]
struct PlainClock(Instant);

impl Clock for PlainClock {
    fn now(&self) -> Moment {
        Moment::from_origin(self.0.elapsed())
    }
}

fn main() {
    let Some(cycles) = std::env::args().nth(1).and_then(|text| text.parse::<u64>().ok()) else {
        eprintln!("usage: hot-path CYCLES");
        std::process::exit(64);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run(cycles)).map_err(|error| error.to_string()));
    if let Err(error) = done {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run(cycles: u64) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(PlainClock(Instant::now()));
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let locks = Locks::builder(Backend::lease(store)).clock(clock).build()?;
    let mutex = locks.mutex("hot");
    for _ in 0..cycles {
        mutex.acquire().await?.release().await?;
    }
    locks.shutdown().await
}
