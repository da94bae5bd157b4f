//! The cost of the engine itself, on the memory store: `cargo run --release -p distlock-bench --bin engine-cost`.
//!
//! Prints time, allocations and store requests of uncontended cycles, of many tasks and of contended ones; and for a hundred
//! thousand held locks the bytes per lock, the requests per tick and the share of a core.

mod allocations;
mod engine;

fn main() {
    let seconds = match std::env::args().nth(1).map(|text| text.parse::<u64>()) {
        None => 3,
        Some(Ok(seconds)) if (1..=600).contains(&seconds) => seconds,
        Some(_) => {
            eprintln!("usage: engine-cost [SECONDS], from 1 to 600");
            std::process::exit(64);
        }
    };
    let limit = std::time::Duration::from_secs(seconds);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            std::process::exit(1);
        }
    };
    if let Err(error) = runtime.block_on(engine::run(limit)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
