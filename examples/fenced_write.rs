//! A fenced write: a holder that was paused beyond its lease comes back and is refused by the resource itself.
//!
//! The gate here is in memory; the same rule for SQL, Redis, MongoDB and files is in `distlock::fencing`.

use std::sync::Mutex;
use std::time::Duration;

use distlock::{FencingToken, Options, Result, StaleToken, TokenGate};

/// A ledger that checks tokens. In a database the check and the write are one statement.
#[derive(Default)]
struct Ledger {
    gate: TokenGate,
    entries: Mutex<Vec<String>>,
}

impl Ledger {
    fn write(&self, token: FencingToken, entry: &str) -> std::result::Result<(), StaleToken> {
        self.gate.run(token, || {
            if let Ok(mut entries) = self.entries.lock() {
                entries.push(entry.to_owned());
            }
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let ledger = Ledger::default();
    // Two processes; they share the store, not the engine.
    let store = distlock::memory::MemoryStore::new();
    let process = || distlock::Locks::new(distlock::store::Backend::lease(store.clone()));
    let (paused, next) = (process()?, process()?);

    // A lease without renewal stands for a paused process: SIGSTOP, a long garbage collection, a closed laptop.
    let lease = Options::new().expiry(Duration::from_millis(150))?.auto_extend(false);
    let old = paused.mutex("ledger").options(lease).acquire().await?;
    ledger.write(old.token(), "first")?;

    let new = next.mutex("ledger").acquire().await?; // gets it when the lease is over
    ledger.write(new.token(), "second")?;

    println!("the old guard knows: lost = {}", old.is_lost());
    match ledger.write(old.token(), "too late") {
        Ok(()) => println!("written: this must not happen"),
        Err(stale) => println!("refused: {stale}"),
    }
    new.release().await?;
    Ok(())
}
