//! What the tests share: one server for a test program, and a corner of it for each test.
#![allow(dead_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_testkit::servers::PostgresServer;

/// The server that the tests of a program share. It ends with the program.
pub(crate) fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::configure().setting("max_connections", "400").start())
}

/// A schema that nobody else uses, and an application name to tell its connections by.
#[derive(Clone, Debug)]
pub(crate) struct Corner {
    pub(crate) schema: String,
}

impl Corner {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Corner { schema: format!("corner_{}_{number}", std::process::id()) }
    }

    /// A URL of this corner, on a server or a proxy with the given URL.
    pub(crate) fn url(&self, scheme: &str, server: &str) -> String {
        let rest = server.strip_prefix("postgres").expect("a URL of a server");
        let Corner { schema } = self;
        format!("{scheme}{rest}?application_name={schema}&distlock.schema={schema}")
    }

    /// Ends all sessions of this corner.
    pub(crate) fn cut(&self, server: &PostgresServer) {
        server.sql(&format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '{}'",
            self.schema
        ));
    }
}
