//! The CPU time of the server per lock, by the number of locks in one request, with parsing the request and writing the reply.
//! The minimum of many rounds. `cargo run --release -p distlock-redis --example server_cost [SIZE…]` starts a server; Linux only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, StoreUrl};
use distlock_core::{Kind, LockIds, Resource};
use distlock_redis::{RedisConfig, RedisStore};
use distlock_testkit::servers::RedisServer;

const ROUNDS: usize = 100;
/// Requests of each verb in a round.
const CALLS: usize = 16;

/// The CPU time of a process's first thread so far.
fn cpu(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = RedisServer::start();
    let store = RedisStore::connect(RedisConfig::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap())
        .await
        .unwrap();
    let pid = server.pid().unwrap();
    let ids = LockIds::new(&LockIds::default_label());
    let given: Vec<usize> = std::env::args().skip(1).map(|size| size.parse().unwrap()).collect();
    let sizes = if given.is_empty() { vec![1, 16, 64, 128, 256] } else { given };
    println!("locks  acquire   renew  release  µs of server CPU per lock");
    for size in sizes {
        let mut least = [Duration::MAX; 3];
        for _ in 0..ROUNDS {
            let mut spent = [Duration::ZERO; 3];
            for call in 0..CALLS {
                let claims: Vec<Claim> = (0..size)
                    .map(|n| {
                        Claim::new(
                            Resource::new(Kind::Mutex, format!("server-cost/{}", call * size + n)).unwrap(),
                            ids.next(),
                            Duration::from_secs(30),
                        )
                    })
                    .collect();
                let before = cpu(pid);
                let answers = store.try_acquire(&claims).await.unwrap();
                let acquired = settled(pid);
                let leases: Vec<Lease> = claims
                    .iter()
                    .zip(answers)
                    .map(|(claim, answer)| match answer {
                        Ok(Attempt::Granted { token, .. }) => Lease::of(claim, token),
                        other => panic!("{other:?}"),
                    })
                    .collect();
                // In practice no renewal comes within the millisecond of its grant.
                std::thread::sleep(Duration::from_millis(2));
                let before_renewal = cpu(pid);
                store.renew(&leases).await.unwrap();
                let renewed = settled(pid);
                store.release(&leases).await.unwrap();
                let released = settled(pid);
                spent[0] += acquired - before;
                spent[1] += renewed - before_renewal;
                spent[2] += released - renewed;
            }
            for (least, spent) in least.iter_mut().zip(spent) {
                *least = (*least).min(spent / u32::try_from(CALLS * size).unwrap());
            }
        }
        let [acquire, renew, release] = least.map(|time| time.as_secs_f64() * 1e6);
        println!("{size:>5}  {acquire:>7.2} {renew:>7.2} {release:>8.2}");
    }
}

/// The CPU time once the server sleeps again: what it does after the reply belongs to that request.
fn settled(pid: u32) -> Duration {
    std::thread::sleep(Duration::from_micros(50));
    cpu(pid)
}
