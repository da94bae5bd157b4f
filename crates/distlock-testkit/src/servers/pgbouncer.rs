//! PgBouncer in front of a PostgreSQL server.

use std::fmt::Write as _;
use std::ops::Deref;
use std::time::Duration;

use super::data::DataFolder;
use super::port::Port;
use super::postgres::PostgresServer;
use super::postgres::wire::PostgresConnection;
use super::process::{Launch, ServerProcess};
use super::program::PGBOUNCER;

/// A PgBouncer that accepts any user without a password.
#[derive(Debug)]
pub struct PgBouncer {
    process: ServerProcess,
}

impl PgBouncer {
    /// Starts one in transaction mode: each transaction of a client may use another session of the server.
    #[must_use]
    pub fn start(server: &PostgresServer) -> Self {
        Self::start_in(server, "transaction", &[])
    }

    /// Starts one in this mode, with additional settings.
    #[must_use]
    pub fn start_in(server: &PostgresServer, mode: &str, settings: &[(&str, &str)]) -> Self {
        let (folder, port) = (DataFolder::create(), Port::reserve());
        let users = folder.write("users.txt", "\"postgres\" \"\"\n");
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = any\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = 10\nmax_client_conn = 200\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.port(),
            port.number(),
            users.display()
        );
        for (name, value) in settings {
            let _ = writeln!(text, "{name} = {value}");
        }
        let config = folder.write("pgbouncer.ini", &text);
        let ready = |port| {
            PostgresConnection::open(port, Duration::from_secs(1)).map(drop).map_err(|e| e.to_string())
        };
        let launch = Launch::new(PGBOUNCER.find(), folder, port, ready).args([config]);
        Self { process: launch.start() }
    }

    /// Its URL, for the server's database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }
}

impl Deref for PgBouncer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}
