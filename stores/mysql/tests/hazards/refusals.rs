//! What is refused, and how clearly: rights, read-only servers, engines, versions, TLS.

use crate::common::{Claims, attempt, config, database_on, granted, lease_store, release, server};
use distlock_core::store::{Level, Store, StoreUrl};
use distlock_core::{Error, ErrorKind};
use distlock_mysql::{DRIVER, MysqlSessionStore, MysqlStore};
use distlock_testkit::servers::MysqlServer;

async fn refused(url: &str) -> Error {
    MysqlStore::connect(config(url)).await.err().unwrap_or_else(|| panic!("{url} was accepted"))
}

fn as_user(url: &str, login: &str) -> String {
    url.replace("root@", &format!("{login}@"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named_and_lost_rights_too() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    server().sql(&format!(
        "CREATE USER 'few_{database}'@'%' IDENTIFIED BY 's3cret';
         GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO 'few_{database}'@'%'"
    ));
    let few = as_user(&url, &format!("few_{database}:s3cret"));
    let wrong = as_user(&url, &format!("few_{database}:wr0ng"));
    let error = refused(&wrong).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
    // Tables are missing, and the user may not create them.
    let error = refused(&few).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("distlock schema"), "{error}");
    // With what `distlock schema` prints, it works.
    let schema = DRIVER.schema(&StoreUrl::parse(&url).unwrap()).unwrap().unwrap();
    server().sql(&schema);
    let store = lease_store(&few).await;
    let claims = Claims::new("few");
    let claim = claims.mutex("a");
    granted(&store, &claim).await;
    server().sql(&format!("REVOKE INSERT ON {database}.* FROM 'few_{database}'@'%'"));
    // The server looks at rights again when a session begins.
    let store = lease_store(&few).await;
    let error = attempt(&store, &claims.mutex("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.level == Level::Warning), "{findings:?}");
    release(&store, &claim).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_not_there_and_a_server_that_is_not_there_are_told_apart() {
    let error = refused(&server().url_of("mysql", "no_such_database")).await;
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = refused("mysql://root@127.0.0.1:1/app").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = refused("mysql://root@no-such-host.invalid/app").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_engine_is_refused() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    let schema = DRIVER.schema(&StoreUrl::parse(&url).unwrap()).unwrap().unwrap();
    server().sql(&schema);
    server().sql(&format!("ALTER TABLE {database}.distribute_lock ENGINE = MyISAM"));
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("InnoDB"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_an_earlier_version_is_named_when_the_store_connects() {
    let database = database_on(server());
    let url = server().url_of("mysql+session", &database);
    let connect = || MysqlSessionStore::connect(config(&url));
    drop(connect().await.unwrap());
    server().sql(&format!(
        "ALTER TABLE {database}.distribute_lock_session DROP COLUMN process, DROP COLUMN pending_process"
    ));
    let error = connect().await.expect_err("every claim would fail");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("distribute_lock_session has no column"), "{error}");
    server().sql(&format!("DROP TABLE {database}.distribute_lock_session"));
    drop(connect().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_program_is_an_error_and_not_contention() {
    let database = database_on(server());
    let url = server().url_of("mysql", &database);
    server().sql(&format!("CREATE TABLE {database}.distribute_lock (id INT PRIMARY KEY) ENGINE = InnoDB"));
    let store = lease_store(&url).await;
    let error = attempt(&store, &Claims::new("x").mutex("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_named() {
    let server = MysqlServer::start();
    server.sql("CREATE USER 'app'@'%'; GRANT ALL ON app.* TO 'app'@'%'");
    let url = as_user(&server.url(), "app");
    let store = lease_store(&url).await;
    server.sql("SET GLOBAL read_only = 1");
    let error = attempt(&store, &Claims::new("x").mutex("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("takes writes"), "{error}");
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what.contains("read-only")), "{findings:?}");
    server.sql("SET GLOBAL read_only = 0");
    granted(&store, &Claims::new("x").mutex("a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_setting_of_the_server_changes_what_a_statement_means() {
    let server = MysqlServer::configure()
        .setting("sql-mode", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH")
        .setting("character-set-server", "latin1")
        .setting("collation-server", "latin1_swedish_ci")
        .setting("autocommit", "0")
        .setting("default-time-zone", "+09:30")
        .setting("transaction-isolation", "SERIALIZABLE")
        .setting("completion-type", "CHAIN")
        .start();
    let store = lease_store(&server.url()).await;
    let session = MysqlSessionStore::connect(config(&server.url_of("mysql+session", "app"))).await.unwrap();
    let claims = Claims::new("odd");
    let names = ["A", "a", "a ", "ä", "a\u{308}", "'; --", "\\", "\0", "𝄞", " "];
    for name in names {
        granted(&store, &claims.mutex(name)).await;
        granted(&store, &claims.permit(name, 1)).await;
    }
    let locks = distlock_core::Locks::new(distlock_core::store::Backend::session(session)).unwrap();
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.mutex(name).try_acquire().await.unwrap().expect("a lock of its own"));
    }
    assert_eq!(store.inspect(&distlock_core::store::Query::default()).await.unwrap().len(), 2 * names.len());
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| !finding.what.contains("differ by")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_and_checked_as_the_url_says() {
    // Another store of the same build may bring a second provider; the choice is the program's.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::Builder::new().prefix("distlock-tls-").tempdir_in("/tmp").unwrap();
    let made = |names: Vec<String>| rcgen::generate_simple_self_signed(names).unwrap();
    let certified = made(vec!["localhost".to_owned()]);
    let write = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        path.display().to_string()
    };
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let certificate = write("cert.pem", &certified.cert.pem());
    let key = write("key.pem", &certified.signing_key.serialize_pem());
    let other = write("other.pem", &made(vec!["localhost".to_owned()]).cert.pem());
    let server = MysqlServer::configure().setting("ssl-cert", &certificate).setting("ssl-key", &key).start();
    server.sql("CREATE USER 'tls'@'%' REQUIRE SSL; GRANT ALL ON app.* TO 'tls'@'%'");
    let url = |host: &str, query: &str| as_user(&server.url(), "tls").replace("127.0.0.1", host) + query;
    // The account refuses plain text, so what connects is encrypted.
    assert_eq!(refused(&url("127.0.0.1", "")).await.kind(), ErrorKind::Denied);
    lease_store(&url("127.0.0.1", "?ssl-mode=REQUIRED")).await;
    lease_store(&url("localhost", &format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={certificate}"))).await;
    for (host, ca) in [("127.0.0.1", &certificate), ("localhost", &other)] {
        let error = refused(&url(host, &format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"))).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    #[cfg(feature = "sqlx")]
    pool_of_sqlx(&url("localhost", ""), &certificate, &other).await;
    // A server without TLS is not talked to in plain text.
    let is_mariadb = server.value("SELECT VERSION()").contains("MariaDB");
    let without_tls = if is_mariadb { ("skip-ssl", "1") } else { ("tls-version", "") };
    let plain = MysqlServer::configure().setting(without_tls.0, without_tls.1).start();
    let error = refused(&format!("{}?ssl-mode=REQUIRED", plain.url())).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    #[cfg(feature = "sqlx")]
    {
        use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlSslMode};
        let options: MySqlConnectOptions = plain.url().parse().unwrap();
        let pool = MySqlPool::connect_lazy_with(options.clone());
        MysqlStore::with_sqlx_pool(&pool, Default::default()).await.unwrap();
        let pool = MySqlPool::connect_lazy_with(options.ssl_mode(MySqlSslMode::Required));
        let error = MysqlStore::with_sqlx_pool(&pool, Default::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

/// An account that refuses plain text, with the options of a pool of sqlx.
#[cfg(feature = "sqlx")]
async fn pool_of_sqlx(url: &str, certificate: &str, other: &str) {
    use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlSslMode};
    let base: MySqlConnectOptions = url.parse().unwrap();
    let connect = async |options: MySqlConnectOptions| {
        MysqlStore::with_sqlx_pool(&MySqlPool::connect_lazy_with(options), Default::default()).await
    };
    connect(base.clone()).await.unwrap();
    connect(base.clone().ssl_mode(MySqlSslMode::VerifyIdentity).ssl_ca(certificate)).await.unwrap();
    for options in [
        base.clone().ssl_mode(MySqlSslMode::Disabled),
        base.ssl_mode(MySqlSslMode::VerifyIdentity).ssl_ca(other),
    ] {
        assert_eq!(connect(options).await.unwrap_err().kind(), ErrorKind::Denied);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_second_get_lock_frees_the_first_is_refused() {
    let server = MysqlServer::configure().version_5_6().start();
    // What we know it by is its version. This is why.
    let locks = server.sql("SELECT GET_LOCK('x', 0), GET_LOCK('y', 0), IS_USED_LOCK('x')");
    assert_eq!(locks, [[Some("1".to_owned()), Some("1".to_owned()), None]]);
    let error = MysqlSessionStore::connect(config(&server.url_of("mysql+session", "app"))).await.err();
    let error = error.expect("a lock would be free while its guard is held");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a second GET_LOCK of a session frees the first"), "{error}");
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(server.sql("SHOW TABLES FROM app"), Vec::<Vec<Option<String>>>::new(), "it was written to");
}
