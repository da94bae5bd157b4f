//! What tests do with every SQL server.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use super::clock;
use super::process::ServerProcess;

/// The rows of a result.
pub type Rows = Vec<Vec<Option<String>>>;

/// A session of a SQL server.
pub trait SqlConnection: Sized {
    /// The server's clock, in whole seconds since 1970.
    const TIME: &'static str;

    /// Opens a session with a server on this machine.
    ///
    /// # Errors
    /// If the server does not open one in time.
    fn open(port: u16, limit: Duration) -> io::Result<Self>;

    /// Runs SQL.
    ///
    /// # Errors
    /// If it fails, or does not end in time.
    fn query(&mut self, sql: &str) -> io::Result<Rows>;
}

/// A running server whose sessions are `C`.
#[derive(Debug)]
pub struct SqlServer<C> {
    process: ServerProcess,
    connections: PhantomData<fn() -> C>,
}

impl<C: SqlConnection> SqlServer<C> {
    pub(super) fn new(process: ServerProcess) -> Self {
        SqlServer { process, connections: PhantomData }
    }

    /// Opens a session.
    ///
    /// # Errors
    /// If the server does not open one within two seconds.
    pub fn connect(&self) -> io::Result<C> {
        C::open(self.port(), Duration::from_secs(2))
    }

    /// Runs SQL in its own session.
    ///
    /// # Panics
    /// If it fails, or does not end within twenty seconds.
    pub fn sql(&self, sql: &str) -> Rows {
        let rows = C::open(self.port(), Duration::from_secs(20)).and_then(|mut session| session.query(sql));
        rows.unwrap_or_else(|e| panic!("{sql} on {}: {e}\n{}", self.name(), self.log_tail()))
    }

    /// [`sql`](Self::sql) for servers that may be down or paused.
    ///
    /// # Errors
    /// If it fails, or does not end within two seconds.
    pub fn try_sql(&self, sql: &str) -> io::Result<Rows> {
        self.connect()?.query(sql)
    }

    /// The first value of the result, empty without rows.
    ///
    /// # Panics
    /// If it fails, or does not end within twenty seconds.
    #[must_use]
    pub fn value(&self, sql: &str) -> String {
        self.sql(sql).into_iter().flatten().flatten().next().unwrap_or_default()
    }

    /// The server's clock, in seconds since 1970; `None` if it does not answer in time.
    #[must_use]
    pub fn time(&self) -> Option<i64> {
        self.try_sql(C::TIME).ok()?.first()?.first()?.as_ref()?.parse().ok()
    }

    /// Moves the server's wall clock by this many seconds from the true time, and waits until the server sees it.
    ///
    /// # Panics
    /// If the server was not started with a movable clock, or does not see it.
    pub fn move_clock(&self, seconds: i64) {
        self.set_clock_offset(&format!("{seconds:+}"));
        clock::wait_until_moved(seconds, || self.time());
    }
}

impl<C> Deref for SqlServer<C> {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}
