//! MariaDB, or MySQL where `DISTLOCK_MARIADB_SERVER` names one.

mod galera;
pub mod wire;

use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::data::DataFolder;
use super::port::Port;
use super::process::Launch;
use super::program::{MARIADB_INSTALL_DB, MARIADB_SERVER, MYSQL_5_6};
use super::spawn;
use super::sql::SqlServer;
pub use galera::GaleraCluster;
use wire::MysqlConnection;

/// The database that every server has.
const DATABASE: &str = "app";

/// A server with the superuser `root`, without a password, and the database `app`.
///
/// It does not sync to disk, which tests do not need: data in the kernel survives a kill of the server.
#[derive(Debug)]
pub struct MysqlServer {
    server: SqlServer<MysqlConnection>,
}

impl MysqlServer {
    /// Creates the system tables and starts the server.
    #[must_use]
    pub fn start() -> Self {
        Self::configure().start()
    }

    /// A builder for a server with other settings than the defaults.
    pub fn configure() -> MysqlBuilder {
        MysqlBuilder::default()
    }

    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("mysql", DATABASE)
    }

    /// The URL of a store of this scheme in this database.
    #[must_use]
    pub fn url_of(&self, scheme: &str, database: &str) -> String {
        format!("{scheme}://root@127.0.0.1:{}/{database}", self.port())
    }
}

impl Deref for MysqlServer {
    type Target = SqlServer<MysqlConnection>;

    fn deref(&self) -> &SqlServer<MysqlConnection> {
        &self.server
    }
}

/// How to start a [`MysqlServer`].
#[derive(Debug, Default, Clone)]
#[must_use]
pub struct MysqlBuilder {
    settings: Vec<(String, String)>,
    movable_clock: bool,
    only_mariadb: bool,
    version_5_6: bool,
}

impl MysqlBuilder {
    /// Sets a value: `setting("max_connections", "10")`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets the test move the server's wall clock.
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// A server of MariaDB, also where `DISTLOCK_MARIADB_SERVER` names one of MySQL.
    pub fn only_mariadb(mut self) -> Self {
        self.only_mariadb = true;
        self
    }

    /// A server of MySQL 5.6, which our stores refuse.
    pub fn version_5_6(mut self) -> Self {
        self.version_5_6 = true;
        self
    }

    /// Creates the system tables, starts the server and waits until it accepts sessions.
    #[must_use]
    pub fn start(self) -> MysqlServer {
        let folder = DataFolder::create();
        let data = Path::join(folder.path(), "data");
        let program = match self.version_5_6 {
            true => MYSQL_5_6.find(),
            false => MARIADB_SERVER.find_fitting(|program| !self.only_mariadb || !is_mysql(program)),
        };
        let data_argument = || OsString::from(format!("--datadir={}", data.display()));
        // A server that starts removes the temporary tables of all others in its folder for them.
        let temporary = || OsString::from(format!("--tmpdir={}", folder.path().display()));
        // The files beside the program of MySQL 5.6.
        let beside = |name: &str| program.with_file_name(name).into_os_string();
        if self.version_5_6 {
            // It has no option that creates the tables.
            spawn::run(
                Path::new("/bin/cp"),
                ["-r".into(), beside("data/mysql"), data.clone().into_os_string()],
            );
        } else if is_mysql(&program) {
            let args = ["--no-defaults", "--initialize-insecure"].map(OsString::from);
            spawn::run(&program, args.into_iter().chain([data_argument(), temporary()]));
        } else {
            let args = [
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=8M",
                "--innodb-use-native-aio=0",
            ];
            let installer: PathBuf = MARIADB_INSTALL_DB.find();
            spawn::run(
                &installer,
                args.map(OsString::from).into_iter().chain([data_argument(), temporary()]),
            );
        }
        let port = Port::reserve();
        let path = |name: &str| Path::join(folder.path(), name).display().to_string();
        let defaults = [
            ("port", port.number().to_string()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("socket", path("s")),
            ("pid-file", path("pid")),
            ("innodb-buffer-pool-size", "32M".to_owned()),
            ("innodb-flush-method", "nosync".to_owned()),
            ("sync-binlog", "0".to_owned()),
            // The kernel's places for asynchronous requests are few, and every server of every test takes thousands.
            ("innodb-use-native-aio", "0".to_owned()),
            ("max-connections", "500".to_owned()),
        ];
        let mut args: Vec<OsString> = vec!["--no-defaults".into(), data_argument(), temporary()];
        // MySQL has root at localhost alone, which 127.0.0.1 is only by name.
        let by_name = is_mysql(&program) && !self.version_5_6;
        args.push(if by_name { "--mysqlx=OFF" } else { "--skip-name-resolve=1" }.into());
        if self.version_5_6 {
            args.push(OsString::from(format!(
                "--lc-messages-dir={}",
                program.with_file_name("share").display()
            )));
        }
        let own = self.settings.into_iter();
        let all = defaults.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own);
        args.extend(all.map(|(name, value)| format!("--{name}={value}").into()));
        let libraries = beside("").to_string_lossy().into_owned();
        let mut launch = Launch::new(program, folder, port, ready).args(args);
        if self.version_5_6 {
            launch = launch.env("LD_LIBRARY_PATH", &libraries);
        }
        let server = MysqlServer { server: SqlServer::new(launch.movable_clock(self.movable_clock).start()) };
        // A node of Galera accepts sessions before it accepts statements.
        super::wait_for("the server creates a database", Duration::from_secs(60), || {
            server.connect().ok()?.query(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}")).ok()
        });
        server
    }
}

/// Whether the program is MySQL's and not MariaDB's.
fn is_mysql(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.to_string_lossy().contains("mysqld"))
}

fn ready(port: u16) -> Result<(), String> {
    MysqlConnection::open(port, Duration::from_secs(1)).map(drop).map_err(|e| e.to_string())
}
