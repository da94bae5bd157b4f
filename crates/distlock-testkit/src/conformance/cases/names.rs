//! Any non-empty UTF-8 string is a name of its own.

use distlock_core::{ErrorKind, Locks, MAX_NAME_BYTES};

use crate::conformance::{Fixture, Harness};
use crate::history::LockSpec;

/// One lock of this name for each kind that the store supports.
fn each_kind(locks: &Locks, name: &str) -> Vec<LockSpec> {
    let mut specs = LockSpec::every_exclusive(locks.capabilities(), name);
    specs.retain(|spec| !matches!(spec, LockSpec::FairMutex(_)));
    specs
}

/// Names that a store may confuse: by case, accents, trailing blanks, path or pattern syntax, string terminators, or
/// truncation.
fn lookalikes() -> Vec<String> {
    let long = "x".repeat(MAX_NAME_BYTES - 1);
    let mut names: Vec<String> = [
        "orders",
        "Orders",
        "ORDERS",
        "orders ",
        " orders",
        "orders\t",
        "orders\n",
        "orders\0",
        "orders\0more",
        "orders/",
        "./orders",
        "a/../orders",
        "orders%20",
        "orders%",
        "order_",
        "ordérs",
        "orde\u{301}rs",
        "ordеrs",
        "straße",
        "strasse",
        "STRASSE",
        "ﬁle",
        "file",
        "Ⅳ",
        "IV",
        "istanbul",
        "İstanbul",
        "ıstanbul",
        "１",
        "1",
        "01",
        "1.0",
        "true",
        "null",
    ]
    .map(str::to_owned)
    .into();
    // Around and beyond the limits of indexes and file names; some differ in the last byte only.
    for length in [63, 64, 127, 128, 190, 191, 254, 255, 256, 767, 1023, 1024, 2000] {
        names.push("x".repeat(length));
    }
    names.push(format!("{long}a"));
    names.push(format!("{long}b"));
    names.push(format!("a{long}"));
    names
}

/// One engine holds all of them at once, and each excludes another engine.
pub async fn names_that_look_alike_are_different_locks<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    let mut held = Vec::new();
    for name in lookalikes() {
        let spec = LockSpec::mutex(name);
        let acquired = recorder.try_acquire(&one, &spec).await.unwrap();
        held.push((acquired.unwrap_or_else(|| panic!("{spec:?} is confused with another name")), spec));
    }
    for (_, spec) in &held {
        assert!(
            spec.try_acquire(&other).await.unwrap().is_none(),
            "{spec:?} does not exclude another engine"
        );
    }
    for (guard, _) in held {
        guard.release().await.unwrap();
    }
    // Other kinds may be stored in another record, which may confuse names of its own.
    for make in [LockSpec::write as fn(String) -> LockSpec, |name| LockSpec::permits(name, 1, 1)] {
        if !harness.supports(&one, &make("any".into())).await {
            continue;
        }
        let mut held = Vec::new();
        for name in ["orders", "ORDERS", "orders ", "orders\0", "ordérs", "orde\u{301}rs"] {
            let spec = make(name.into());
            let acquired = recorder.try_acquire(&one, &spec).await.unwrap();
            held.push(acquired.unwrap_or_else(|| panic!("{spec:?} is confused with another name")));
        }
    }
}

/// Names that a store may interpret: as a path, SQL, Lua, a glob, a format string, a header, an end of input.
pub async fn any_name_works_and_is_shown_unchanged<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    let names: Vec<String> = [
        " ",
        ".",
        "..",
        "/",
        "//",
        "/etc/passwd",
        "../../etc/passwd",
        "a/b/c",
        "C:\\temp\\x",
        "CON",
        "\0",
        "\u{1}\u{2}\u{1f}\u{7f}",
        "\r\n",
        "\u{feff}bom",
        "\u{202e}right to left",
        "'",
        "''; DROP TABLE locks; --",
        "\" OR \"\"=\"",
        "`; $(reboot)",
        "${jndi:x}",
        "$where",
        "$set.a",
        "a.b.c",
        "{curly}",
        "{a}{b}",
        "*",
        "[a-z]?",
        "%s%n",
        "_%",
        "return redis.call('flushall')",
        "]]--[[",
        "\\",
        "\\0",
        "#-1",
        "host:1#0123-1",
        "🦀",
        "日本語",
        "e\u{301}\u{301}\u{301}",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(["x".repeat(MAX_NAME_BYTES), "é".repeat(MAX_NAME_BYTES / 2), "\0".repeat(MAX_NAME_BYTES)])
    .collect();
    for name in &names {
        for spec in each_kind(&one, name) {
            let held = harness.acquire(&recorder, &one, &spec).await;
            assert_eq!(held.resource().name(), name);
            assert!(
                spec.try_acquire(&other).await.unwrap().is_none(),
                "{spec:?} does not exclude another engine"
            );
            let record = harness.record(&other, &spec).await;
            let record = record.unwrap_or_else(|| panic!("{spec:?} is not shown"));
            match (&record.name, &record.key) {
                (Some(shown), _) => assert_eq!(shown, name),
                (None, key) => assert!(key.is_some(), "{spec:?} is shown without name or key"),
            }
            held.release().await.unwrap();
        }
    }
}

/// Invalid names are refused by every method before a request is sent.
pub async fn empty_and_overlong_names_are_refused<F: Fixture>(harness: Harness<F>) {
    let locks = harness.locks().await;
    for name in [String::new(), "x".repeat(MAX_NAME_BYTES + 1), "é".repeat(MAX_NAME_BYTES / 2 + 1)] {
        for spec in each_kind(&locks, &name) {
            let refused = [
                spec.acquire(&locks).await.err(),
                spec.try_acquire(&locks).await.err(),
                locks.acquire_all([spec.request()]).await.err(),
                locks.break_lock(spec.kind(), spec.name()).await.err(),
            ];
            for error in refused {
                let error = error.unwrap_or_else(|| panic!("a name of {} bytes was accepted", name.len()));
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
        }
    }
}

/// A mutex, a reader-writer lock and a semaphore of one name do not affect each other.
pub async fn kinds_of_the_same_name_are_independent<F: Fixture>(harness: Harness<F>) {
    let (one, other) = (harness.locks().await, harness.locks().await);
    let recorder = harness.recorder("both");
    let specs = each_kind(&one, "one name");
    let mut held = Vec::new();
    for spec in &specs {
        let acquired = recorder.try_acquire(&one, spec).await.unwrap();
        held.push(acquired.unwrap_or_else(|| panic!("{spec:?} conflicts with another kind of its name")));
    }
    for (spec, guard) in specs.iter().zip(held) {
        guard.release().await.unwrap();
        let again = recorder.try_acquire(&other, spec).await.unwrap();
        again
            .unwrap_or_else(|| panic!("{spec:?} conflicts with another kind of its name"))
            .release()
            .await
            .unwrap();
    }
}
