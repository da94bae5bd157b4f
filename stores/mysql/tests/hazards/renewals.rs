//! A renewal is answered by a count. It must not renew in our eyes what it did not renew on the server.

use crate::common::{Claims, SECOND, database_on, granted, lease_store, release, server};
use distlock_core::FencingToken;
use distlock_core::store::{Attempt, Claim, Lease, LeaseStore, Renewal};

fn of(claim: &Claim) -> Lease {
    Lease::of(claim, FencingToken::new(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_renewals_renews_exactly_those_that_are_still_ours() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let (ours, others) = (Claims::new("ours"), Claims::new("other"));
    for kind in ["mutex", "permit"] {
        let of_claims = |claims: &Claims, n: usize| match kind {
            "mutex" => claims.mutex(&format!("{kind}/{n}")),
            _ => claims.permit(&format!("{kind}/{n}"), 1),
        };
        let claims: Vec<Claim> = (0..40).map(|n| of_claims(&ours, n)).collect();
        let answers = store.try_acquire(&claims).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Attempt::Granted { .. }))), "{answers:?}");
        // Released; released and taken by another client; expired; without a row; with a lock id that begins like ours.
        release(&store, &claims[3]).await.unwrap();
        release(&store, &claims[12]).await.unwrap();
        granted(&store, &of_claims(&others, 12)).await;
        let (table, name) = match kind {
            "mutex" => ("distribute_lock", format!("name = '{kind}/21'")),
            _ => ("distribute_lock_entry", format!("id = '{}'", claims[21].lock_id)),
        };
        server().sql(&format!("UPDATE {database}.{table} SET expires_at = 1 WHERE {name}"));
        let mut leases: Vec<Lease> = claims.iter().map(of).collect();
        leases.push(of(&of_claims(&ours, 1000)));
        leases.push(of(&of_claims(&ours, 5)));
        let answers = store.renew(&leases).await.unwrap();
        assert_eq!(answers.len(), 42);
        for (n, answer) in answers.iter().enumerate() {
            let is_ours = ![3, 12, 21, 40, 41].contains(&n);
            let expected = if is_ours { Renewal::Renewed } else { Renewal::NotYours };
            assert_eq!(answer.as_ref().ok(), Some(&expected), "{kind} {n}");
        }
        // None of them, one alone, and a lease of another client beside ours.
        let gone = [of(&claims[3]), of(&claims[12]), of(&claims[21])];
        let answers = store.renew(&gone).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::NotYours))), "{answers:?}");
        for (claim, expected) in [(&claims[3], Renewal::NotYours), (&claims[4], Renewal::Renewed)] {
            assert_eq!(store.renew(&[of(claim)]).await.unwrap()[0].as_ref().ok(), Some(&expected));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_two_clients_in_one_batch_are_told_apart_by_their_whole_lock_ids() {
    let database = database_on(server());
    let store = lease_store(&server().url_of("mysql", &database)).await;
    let (one, other) = (Claims::new("same"), Claims::new("same"));
    let claims: Vec<Claim> =
        (0..20).map(|n| if n % 2 == 0 { &one } else { &other }.mutex(&format!("m{n}"))).collect();
    for claim in &claims {
        granted(&store, claim).await;
    }
    let leases: Vec<Lease> = claims.iter().map(|claim| Lease::of(claim, FencingToken::new(0))).collect();
    let answers = store.renew(&leases).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::Renewed))), "{answers:?}");
    // Each asks with a longer expiry for what the other one holds.
    let swapped: Vec<Lease> = (0..20)
        .map(|n| {
            let (of, id) = (leases[n ^ 1].resource.clone(), leases[n].lock_id.clone());
            Lease::new(of, id, FencingToken::new(0), 3600 * SECOND)
        })
        .collect();
    let answers = store.renew(&swapped).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::NotYours))), "{answers:?}");
    let prolonged = server().value(&format!(
        "SELECT COUNT(*) FROM {database}.distribute_lock WHERE expires_at > acquired_at + 1000 * 1000000"
    ));
    assert_eq!(prolonged, "0");
}
