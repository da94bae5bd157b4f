//! A secret in a store's URL shows in no message, however the URL was mangled, and no URL panics a parser.
#![cfg(all(
    feature = "etcd",
    feature = "file",
    feature = "mongodb",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlserver",
    feature = "zookeeper",
    unix
))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod places;

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};

use distlock_core::store::StoreUrl;
use distlock_file::FileConfig;
use distlock_mysql::MysqlConfig;
use distlock_postgres::PostgresConfig;
use distlock_redis::{RedisConfig, RedlockConfig};
use distlock_sqlserver::SqlServerConfig;
use distlock_zookeeper::ZookeeperConfig;
use fastrand::Rng;
use places::PLACES;

/// Letters that no message of ours has two of beside a special character. No host's name has one of the latter.
const RARE: &[char] = &['Q', 'X', 'Z', 'J', 'K', 'V', 'W'];
const SPECIAL: &[char] = &[
    '@', '#', '?', '/', ':', '%', '\\', ',', '&', '=', '+', '[', ']', '!', '$', '\'', '"', '(', '*', ';',
    '~', '^', '|', '<', '{', ' ', '\n', '\t', '\0', '\u{20ac}',
];

/// A piece of this many characters is a leak.
const PIECE: usize = 4;

/// Everything that the parsers say about a URL.
fn told(url: &str) -> Vec<String> {
    fn both(shown: &(impl Display + Debug)) -> String {
        format!("{shown}\n{shown:?}\n{shown:#?}")
    }
    fn outcome<T>(read: distlock::Result<T>, shown: impl FnOnce(T) -> String) -> String {
        match read {
            Ok(config) => shown(config),
            Err(error) => {
                let mut text = both(&error);
                let mut below = std::error::Error::source(&error);
                while let Some(cause) = below {
                    text.push_str(&format!("\n{cause}\n{cause:?}"));
                    below = cause.source();
                }
                text
            }
        }
    }
    // What it prints are names of tables and databases, for people who run it.
    let mut all = vec![outcome(distlock::schema(url), |_| String::new())];
    let split = StoreUrl::parse(url);
    let scheme = split.as_ref().map(|url| url.scheme().to_owned()).unwrap_or_default();
    all.push(outcome(split.clone(), |split| both(&split)));
    match scheme.as_str() {
        "file" => all
            .push(outcome(split.and_then(|url| FileConfig::from_url(&url)), |config| format!("{config:?}"))),
        "etcd" => all
            .push(outcome(split.and_then(|url| distlock::etcd::EtcdConfig::from_url(&url)), |config| {
                format!("{config:?}")
            })),
        "mongodb" | "mongodb+srv" => {}
        "mysql" | "mysql+session" => {
            all.push(outcome(split.and_then(|url| MysqlConfig::from_url(&url)), |config| {
                format!("{config:?}")
            }));
        }
        "sqlserver" => {
            all.push(outcome(split.and_then(|url| SqlServerConfig::from_url(&url)), |config| both(&config)));
            all.push(outcome(SqlServerConfig::from_connection_string(url), |config| both(&config)));
        }
        "zookeeper" | "zookeepers" => {
            all.push(outcome(split.and_then(|url| ZookeeperConfig::from_url(&url)), |config| {
                format!("{config:?}")
            }));
        }
        "redlock" | "redlocks" => {
            all.push(outcome(split.and_then(|url| RedlockConfig::from_url(&url)), |config| {
                format!("{config:?}")
            }));
        }
        scheme if scheme.starts_with("postgres") => {
            all.push(outcome(split.and_then(|url| PostgresConfig::from_url(&url)), |config| both(&config)));
        }
        scheme if distlock_redis::DRIVER.schemes().contains(&scheme) => {
            all.push(outcome(split.and_then(|url| RedisConfig::from_url(&url)), |config| {
                format!("{config:?}")
            }));
        }
        // In memory, or refused: nothing is waited for.
        _ => all.push(outcome(ready_now(distlock::open(url)), |_| String::new())),
    }
    all
}

/// The outcome of a future that waits for nothing.
fn ready_now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(outcome) => outcome,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// What of a secret is in a text, however it is escaped there.
fn leak(secret: &str, text: &str) -> Option<String> {
    let text = text.to_lowercase();
    let letters: Vec<char> = secret.chars().collect();
    letters.windows(PIECE).find_map(|piece| {
        let piece: String = piece.iter().collect::<String>().to_lowercase();
        let escaped = format!("{piece:?}");
        let found = text.contains(&piece) || text.contains(escaped.trim_matches('"'));
        found.then_some(piece)
    })
}

fn rare(random: &mut Rng) -> char {
    RARE[random.usize(..RARE.len())]
}

/// Two rare letters, a special one, and so on: no piece of it can be a host's name.
fn special_secret(random: &mut Rng) -> String {
    let length = random.usize(6..18);
    (0..length)
        .map(|n| if n % 3 == 2 { SPECIAL[random.usize(..SPECIAL.len())] } else { rare(random) })
        .collect()
}

fn plain_secret(random: &mut Rng) -> String {
    (0..random.usize(8..16)).map(|_| rare(random)).collect()
}

fn escaped(secret: &str) -> String {
    secret.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn boundary(random: &mut Rng, text: &str) -> usize {
    let mut at = random.usize(..=text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Changes a URL in a way that may take it apart elsewhere. `free`: also in ways that may make anything a host or a path.
fn mutate(random: &mut Rng, url: &str, free: bool) -> String {
    let at = boundary(random, url);
    let mut text = url.to_owned();
    match random.u32(..if free { 10 } else { 4 }) {
        0 => {
            let special = SPECIAL[random.usize(..SPECIAL.len())];
            // After the first @ of a URL anything is a host.
            if free || special != '@' || url.contains('@') {
                text.insert(at, special);
            }
        }
        1 => text.push_str(
            ["@h", "?x", "#insecure", "&sslmode=disable", "&tls=false", "/", "%"][random.usize(..7)],
        ),
        2 => {
            if let Some(c) = text[at..].chars().next() {
                let mut bytes = [0; 4];
                text.replace_range(at..at + c.len_utf8(), &escaped(c.encode_utf8(&mut bytes)));
            }
        }
        3 => {
            let (name, rest) = text.split_once(':').unwrap_or((&text, ""));
            text = format!("{}:{rest}", name.to_uppercase());
        }
        4 => {
            if let Some(c) = text[at..].chars().next() {
                text.replace_range(at..at + c.len_utf8(), "");
            }
        }
        5 => {
            let end = boundary(random, url).max(at);
            let slice = text[at..end].to_owned();
            text.insert_str(boundary(random, url), &slice);
        }
        6 => text.truncate(at),
        7 => text = text.replacen("://", [":", ":/", "//", ":///"][random.usize(..4)], 1),
        8 => text = text.replacen('@', "", 1),
        _ => text = text.replacen('?', ["", "&", "/", "#"][random.usize(..4)], 1),
    }
    text
}

/// Where a folder or a socket is named in the path, the path is no secret.
fn is_path(url: &str, piece: &str) -> bool {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let scheme = scheme.to_lowercase();
    let path = rest.split('?').next().unwrap_or_default();
    (scheme == "file" || scheme.ends_with("unix")) && decoded(path).to_lowercase().contains(piece)
}

fn decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        match piece.get(..2).map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(byte)) => {
                bytes.push(byte);
                bytes.extend_from_slice(&piece.as_bytes()[2..]);
            }
            _ => {
                bytes.push(b'%');
                bytes.extend_from_slice(piece.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn assert_silent(url: &str, secret: &str) {
    for text in told(url) {
        if let Some(piece) = leak(secret, &text).filter(|piece| !is_path(url, piece)) {
            panic!("{url:?} with the secret {secret:?} shows {piece:?}: {text}");
        }
    }
}

#[test]
fn every_scheme_is_tried() {
    let tried: BTreeSet<&str> = PLACES.iter().flat_map(|(schemes, _)| *schemes).copied().collect();
    for driver in distlock::drivers() {
        for scheme in driver.schemes() {
            assert!(tried.contains(scheme), "{scheme} has no URLs here");
        }
    }
}

#[test]
fn a_secret_that_was_not_escaped_does_not_show() {
    for url in [
        "redis+cluster://:half1?half2@h",
        "redis+cluster://:half1/half2@h",
        "redis+sentinel://:half1?half2@h/main",
        "redlock://:half1?half2@a,b",
        "redlock://u:half1,half2@a,b",
        "redlock://half1,half2@a,b",
        "redis://:half1#half2@h",
        "redis://:half1\nhalf2@h",
        "redis:/:half1half2@h",
        "postgres://localhost/db?password=half1half2&user=me@srv",
        "postgres://u:half1?half2@h/db",
        "postgres://u:1234/half1half2@h/db",
        "postgres://u:half1@half2@h/db",
        "mongodb://u:half1/half2@h/app",
        "mongodb://u:half1@half2/x@h/app",
        "file:half1half2",
        "file://half1half2/x",
        "memory:half1half2",
        "half1half2",
        "half1half2://h",
        "half1:half2@h",
    ] {
        for text in told(url) {
            assert!(!text.contains("half1") && !text.contains("half2"), "{url}: {text}");
        }
    }
}

#[test]
fn no_mangled_url_shows_its_secret_or_panics() {
    let mut random = Rng::with_seed(21);
    let mut tried = 0;
    for (schemes, places) in PLACES {
        for scheme in *schemes {
            for place in *places {
                for round in 0..90 {
                    let free = round % 3 != 0;
                    let secret = if free { special_secret(&mut random) } else { plain_secret(&mut random) };
                    let written = if random.bool() { secret.clone() } else { escaped(&secret) };
                    let mut url = place.replace("SCHEME", scheme).replace("SECRET", &written);
                    for _ in 0..random.usize(..4) {
                        url = mutate(&mut random, &url, free);
                    }
                    assert_silent(&url, &secret);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 10_000, "{tried}");
}
