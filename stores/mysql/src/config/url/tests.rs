use std::time::Duration;

use distlock_core::ErrorKind;

use super::*;

fn read(text: &str) -> Result<MysqlConfig> {
    MysqlConfig::from_url(&StoreUrl::parse(text)?)
}

#[test]
fn a_url_is_read_part_by_part() {
    let config = read("mysql://app:p%40ss@db:3307/orders?distlock.table=t&distlock.retention=2h").unwrap();
    assert_eq!(
        (config.opts.user(), config.opts.pass(), config.opts.ip_or_hostname(), config.opts.tcp_port()),
        (Some("app"), Some("p@ss"), "db", 3307)
    );
    assert_eq!(config.location(), "mysql db:3307/orders.t");
    assert_eq!(config.retention, Duration::from_secs(7200));
    let config = read("mysql+session://u@%2Frun%2Fm.sock/d?distlock.session_timeout=5s").unwrap();
    assert_eq!(config.opts.socket(), Some("/run/m.sock"));
    assert_eq!(config.session_timeout, Duration::from_secs(5));
}

#[test]
fn a_loopback_address_is_not_left_for_a_socket() {
    let config = read("mysql://u@127.0.0.1/d").unwrap();
    assert!(!config.driver_options().unwrap().prefer_socket());
}

#[test]
fn what_asks_for_tls_gets_it_or_is_refused() {
    for (text, encrypted) in [
        ("mysql://h/d", false),
        ("mysql://h/d?ssl-mode=DISABLED", false),
        ("mysql://h/d?ssl-mode=REQUIRED", true),
        ("mysql://h/d?ssl-mode=required", true),
        ("mysql://h/d?ssl-mode=VERIFY_IDENTITY", true),
    ] {
        let tls = read(text).unwrap().tls.unwrap();
        assert_eq!(tls.is_encrypted(), encrypted, "{text}");
    }
    let checked = read("mysql://h/d?ssl-mode=VERIFY_IDENTITY").unwrap();
    // The system may have no certificates; then it is refused.
    if let Ok(options) = checked.driver_options() {
        let ssl = options.ssl_opts().unwrap();
        assert!(!ssl.accept_invalid_certs() && !ssl.skip_domain_validation() && ssl.disable_built_in_roots());
    }
    for bad in [
        "mysql://h/d?ssl-mode=PREFERRED",
        "mysql://h/d?ssl-mode=VERIFY_CA",
        "mysql://h/d?ssl-mode=",
        "mysql://h/d?ssl-ca=/ca.pem",
        "mysql://h/d?ssl-mode=DISABLED&ssl-ca=/ca.pem",
        "mysql://h/d?ssl-mode=REQUIRED&ssl-ca=/ca.pem",
        "mysql://h/d?ssl-mode=REQUIRED&ssl-mode=DISABLED",
        "mysql://h/d?ssl-mode=REQUIRED&SSL-MODE=DISABLED",
        "mysql://h/d?ssl-mode=REQUIRED&ssl-cert=/c",
        "mysql://h/d?ssl-cert=/c&ssl-key=/k",
        "mysql://h/d?require_ssl=true",
        "mysql://h/d?verify_ca=false&ssl-mode=VERIFY_IDENTITY",
        "mysql://%2Frun%2Fm.sock/d?ssl-mode=REQUIRED",
    ] {
        assert_eq!(read(bad).err().map(|error| error.kind()), Some(ErrorKind::InvalidInput), "{bad}");
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    for bad in [
        "mysql://h",
        "mysql://h/",
        "mysql:///d",
        "mysql://h1,h2/d",
        "mysql://@h/d",
        "mysql://:pass@h/d",
        "mysql://h/a%60b",
        "mysql://h/1",
        "mysql://h/d?distlock.table=a%60b",
        "mysql://h/d?distlock.tabel=a",
        "mysql://h/d?distlock.session_timeout=5s",
        "mysql+session://h/d?distlock.session_timeout=1s",
        "mysql://h/d?distlock.retention=0s",
        "mysql://h/d?pool_max=3",
        "mariadb://h/d",
    ] {
        assert_eq!(read(bad).err().map(|error| error.kind()), Some(ErrorKind::InvalidInput), "{bad}");
    }
}

#[test]
fn no_secret_is_shown() {
    let config = read("mysql://app:s3cret@db/orders").unwrap();
    assert!(!format!("{config:?}").contains("s3cret"));
}
