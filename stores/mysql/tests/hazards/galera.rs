//! A real node of Galera: what it cannot do is refused, and what it refuses is explained.

use crate::common::{Claims, SECOND, attempt, config, granted, lease_store, release};
use distlock_core::ErrorKind;
use distlock_mysql::MysqlSessionStore;
use distlock_testkit::servers::{MysqlServer, Port};

/// Debian installs it with the server.
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_quorum_is_explained_and_get_lock_is_refused_there() {
    assert!(std::path::Path::new(PROVIDER).exists(), "install it: sudo apt-get install galera-4");
    let port = Port::reserve();
    let listen = format!("gmcast.listen_addr=tcp://{};gcache.size=1M", port.addr());
    // MySQL has no Galera.
    let server = MysqlServer::configure()
        .only_mariadb()
        .setting("wsrep-on", "ON")
        .setting("wsrep-provider", PROVIDER)
        .setting("wsrep-cluster-address", "gcomm://")
        .setting("wsrep-node-address", &port.addr().to_string())
        .setting("wsrep-provider-options", &listen)
        .setting("binlog-format", "ROW")
        .setting("innodb-autoinc-lock-mode", "2")
        .start();
    assert_eq!(server.value("SELECT @@wsrep_on"), "1");
    let store = lease_store(&server.url()).await;
    let claims = Claims::new("galera");
    let claim = claims.mutex("a");
    granted(&store, &claim).await;
    let error = MysqlSessionStore::connect(config(&server.url_of("mysql+session", "app"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("mysql://"), "{error}");
    // As a node answers that lost its cluster.
    let mut admin = server.connect().unwrap();
    admin.query("SET GLOBAL wsrep_reject_queries = ALL").unwrap();
    let error = attempt(&store, &claims.mutex("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("Galera") && !error.is_outcome_unknown(), "{error}");
    admin.query("SET GLOBAL wsrep_reject_queries = NONE").unwrap();
    release(&store, &claim).await.unwrap();
    granted(&store, &claims.mutex("a").with_expiry(SECOND)).await;
}
