//! The reading of URLs, compared with the driver's.

use distlock_core::ErrorKind;

use super::*;

fn from_url(text: &str) -> Result<PostgresConfig> {
    PostgresConfig::from_url(&StoreUrl::parse(text)?)
}

fn read(text: &str) -> Result<Config> {
    let mut url = StoreUrl::parse(text)?;
    let tls = TlsOptions::take_from(&mut url)?;
    let config = read_client(&mut url, &tls)?;
    url.refuse_unknown_driver(DRIVER_OPTIONS)?;
    Ok(config)
}

#[test]
fn a_url_means_to_us_what_it_means_to_the_driver() {
    for url in [
        "postgresql://user@localhost",
        "postgres://user:password@%2Fvar%2Frun%2Fpostgresql/mydb?connect_timeout=10",
        "postgresql://user@host1:1234,host2,host3:5678?target_session_attrs=read-write",
        "postgresql:///mydb?user=user&host=/var/run/postgresql",
        "postgres://u%40x:p%40%2F%3A%25ss@[::1]:5433/my%20db/x?application_name=my%20app&options=-c%20geqo%3Doff",
        "postgres://u:a:b,c+d@h/?keepalives=0&keepalives_idle=7&keepalives_interval=8&keepalives_retries=9",
        "postgres://h:1/db?tcp_user_timeout=3&load_balance_hosts=random&channel_binding=require&sslmode=require",
        "postgres://h/db?hostaddr=127.0.0.1&sslnegotiation=direct&sslmode=require",
        "postgres:///?host=h&port=7&user=u&password=p%26&dbname=d",
        "postgres://",
    ] {
        let theirs: Config = url.parse().unwrap();
        assert!(read(url).unwrap() == theirs, "{url}: {:?}, and the driver {theirs:?}", read(url).unwrap());
    }
}

#[test]
fn an_at_sign_in_the_query_hides_no_option() {
    let url = "postgres://h/db?sslmode=require&channel_binding=require&application_name=me@host&user=me@srv";
    let config = read(url).unwrap();
    assert_eq!(
        (config.get_ssl_mode(), config.get_channel_binding()),
        (SslMode::Require, ChannelBinding::Require)
    );
    assert_eq!((config.get_user(), config.get_application_name()), (Some("me@srv"), Some("me@host")));
    assert_eq!(config.get_hosts(), [tokio_postgres::config::Host::Tcp("h".to_owned())]);
    // Before a path it could be the end of a password.
    assert!(read("postgres://h?sslmode=require&application_name=me@host").is_err());
}

#[test]
fn an_option_given_twice_or_against_another_is_refused() {
    for bad in [
        "postgres://u@h/db?user=v",
        "postgres://u:p@h/db?password=q",
        "postgres://h/db?dbname=other",
        "postgres://h/db?host=other",
        "postgres://h:1/db?port=2",
        "postgres://h1,h2/db?port=1,2,3",
        "postgres://h1,h2/db?hostaddr=127.0.0.1",
        "postgres:///db?host=a&host=b",
        "postgres://h/db?sslmode=disable&channel_binding=require",
        "postgres://h/db?sslnegotiation=direct",
        "postgres://h/db?sslmode=disable&sslnegotiation=direct",
        "postgres://h/db?channel_binding=Require",
        "postgres://h/db?sslcrl=/crl",
        "postgres://h/db?require_auth=scram-sha-256",
        "postgres://h/db?gssencmode=require",
        "postgres://h/db?ssl=true",
        "postgres://h/db?requiressl=1",
        "postgres://h/db?host=a b",
        "postgres:h/db",
        "postgres:host=h sslmode=require",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn ports_of_the_query_belong_to_the_hosts() {
    let ports = |url: &str| read(url).unwrap().get_ports().to_vec();
    assert_eq!(ports("postgres://h/db?port=7"), [7]);
    assert_eq!(ports("postgres://a,b/db?port=7,"), [7, 5432]);
    assert_eq!(ports("postgres://a:7,b/db"), [7, 5432]);
    assert!(ports("postgres:///db").is_empty());
}

#[test]
fn our_options_and_those_of_the_driver_are_separated() {
    let url = "postgres://u:pw@h1:1,h2:2/db?connect_timeout=3&distlock.schema=s&distlock.table=t\
               &distlock.listen=off&distlock.create=off&distlock.retention=2m";
    let config = from_url(url).unwrap();
    assert_eq!((config.schema.as_str(), config.table.as_str()), ("s", "t"));
    assert_eq!((config.listen, config.create), (Listen::Off, false));
    assert_eq!(config.retention, Duration::from_secs(120));
    assert_eq!(config.client.get_connect_timeout(), Some(&Duration::from_secs(3)));
    assert_eq!(config.client.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    assert_eq!(config.to_string(), "postgres h1:1,h2:2/db");
    let advisory = from_url("postgres+advisory://h/db?distlock.keys=raw").unwrap();
    assert_eq!(advisory.keys, KeyScheme::Raw);
}

#[test]
fn an_unknown_option_is_refused_and_no_password_is_shown() {
    for url in [
        "postgres://u:s3cret@h/db?distlock.tabel=x",
        "postgres://u:s3cret@h/db?distlock.keys=raw",
        "postgres+advisory://u:s3cret@h/db?distlock.listen=on",
        "postgres://u:s3cret@h/db?distlock.table=a%22b",
        "postgres://u:s3cret@h/db?distlock.table=",
        "postgres://u:s3cret@h/db?distlock.schema=1a",
        "postgres://u:s3cret@h/db?distlock.listen=maybe",
        "postgres://u:s3cret@h/db?distlock.retention=1s",
        "postgres://u:s3cret@h/db?distlock.retention=3600",
        "postgres+advisory://u:s3cret@h/db?distlock.session_timeout=2",
        "postgres://u:s3cret@h/db?port=x",
        "postgres://u:s3cret@h/db?unheard=of",
        "postgres://u:s3cret@h:port/db",
        "postgres://u:s3cret@h/db?sslmode=never",
    ] {
        let error = from_url(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
    for url in ["postgres://u:s3cret@h/db", "postgres://s3cret@h", "postgres://h/db?password=s3cret"] {
        let config = from_url(url).unwrap();
        assert!(!format!("{config} {config:?}").contains("s3cret"));
    }
}

#[test]
fn the_documentation_lists_every_option_with_its_default() {
    let documentation = include_str!("../../lib.rs");
    for (options, store) in [(LEASE_OPTIONS, "lease"), (ADVISORY_OPTIONS, "advisory")] {
        for option in options {
            let row = format!("//! | `distlock.{}` | `{}` | ", option.name, option.default);
            let stores = documentation.lines().find_map(|text| text.strip_prefix(&row));
            let listed = stores.is_some_and(|stores| stores.starts_with(store) || stores.starts_with("both"));
            assert!(listed, "missing in the documentation: {row}{store}");
        }
    }
}
