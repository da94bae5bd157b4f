//! PostgreSQL: one server, and a primary with a replica.

mod pair;
pub(super) mod shared_memory;
pub mod wire;

use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use pair::PostgresPair;

use super::data::DataFolder;
use super::port::Port;
use super::process::Launch;
use super::program::POSTGRES_BIN;
use super::spawn;
use super::sql::SqlServer;
use rustix::process::Signal;
use wire::PostgresConnection;

/// A PostgreSQL server with the superuser `postgres`, without a password, and the database `postgres`.
///
/// It does not sync to disk, which tests do not need: data in the kernel survives a kill of the server.
#[derive(Debug)]
pub struct PostgresServer {
    server: SqlServer<PostgresConnection>,
}

impl PostgresServer {
    /// Creates a database cluster and starts its server.
    #[must_use]
    pub fn start() -> Self {
        Self::configure().start()
    }

    /// A builder for a server with other settings than the defaults.
    pub fn configure() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }
}

impl Deref for PostgresServer {
    type Target = SqlServer<PostgresConnection>;

    fn deref(&self) -> &SqlServer<PostgresConnection> {
        &self.server
    }
}

/// How to start a [`PostgresServer`].
#[derive(Debug, Default, Clone)]
#[must_use]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    movable_clock: bool,
}

impl PostgresBuilder {
    /// Sets a value in `postgresql.conf`: `setting("max_connections", "10")`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets the test move the server's wall clock.
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Creates a database cluster, starts its server and waits until it accepts sessions.
    #[must_use]
    pub fn start(self) -> PostgresServer {
        let folder = DataFolder::create();
        let data = data_of(&folder);
        // Checksums, which pg_rewind needs.
        let args =
            ["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "--encoding=UTF8", "-k", "-D"];
        spawn::run(&bin("initdb"), args.map(OsString::from).into_iter().chain([data.into()]));
        self.start_in(folder)
    }

    /// Starts a server on the database cluster in `folder`.
    fn start_in(self, folder: DataFolder) -> PostgresServer {
        let port = Port::reserve();
        let mut args: Vec<OsString> = vec!["-D".into(), data_of(&folder).into()];
        args.extend(["-p".into(), port.number().to_string().into()]);
        let sockets = folder.path().display().to_string();
        let defaults = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", &sockets),
            ("fsync", "off"),
            // Files in the data folder, because a killed server would leave them in /dev/shm.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in defaults.into_iter().chain(own) {
            args.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        // SIGTERM would wait for the last client to disconnect.
        let launch = Launch::new(bin("postgres"), folder, port, ready).args(args).stop_signal(Signal::INT);
        PostgresServer { server: SqlServer::new(launch.movable_clock(self.movable_clock).start()) }
    }
}

fn bin(name: &str) -> PathBuf {
    POSTGRES_BIN.find().join(name)
}

fn data_of(folder: &DataFolder) -> PathBuf {
    Path::join(folder.path(), "data")
}

fn ready(port: u16) -> Result<(), String> {
    PostgresConnection::open(port, Duration::from_secs(1)).map(drop).map_err(|e| e.to_string())
}
