use std::time::Duration;

use distlock_core::ErrorKind;

use super::*;
use crate::config::{DEFAULT_COLLECTION, DEFAULT_DATABASE, Names};

fn read(url: &str) -> Result<MongoConfig> {
    MongoConfig::from_url(&StoreUrl::parse(url)?)
}

fn connection(url: &str) -> ConnectionString {
    match read(url).unwrap_or_else(|error| panic!("{url}: {error}")).connection {
        ConnectionSource::Url { connection, .. } => *connection,
        ConnectionSource::Options(_) => panic!("{url} was not read as a URL"),
    }
}

fn names(url: &str) -> Names {
    let config = read(url).unwrap_or_else(|error| panic!("{url}: {error}"));
    config.names(config.default_database()).unwrap()
}

#[test]
fn a_url_names_database_collection_and_retention() {
    let default = names("mongodb://h/");
    assert_eq!((default.database.as_str(), default.locks.as_str()), (DEFAULT_DATABASE, DEFAULT_COLLECTION));
    let named = names("mongodb://u:p@a:1,b:2/app?replicaSet=r&distlock.collection=my.locks");
    assert_eq!((named.database.as_str(), named.locks.as_str()), ("app", "my.locks"));
    assert_eq!(named.queues, "my.locks.queues");
    assert_eq!(names("mongodb://h/?distlock.retention=90m").retention, Duration::from_secs(5400));
}

#[test]
fn illegal_names_and_unknown_options_are_refused() {
    for bad in [
        "mongodb://h/local",
        "mongodb://h/config",
        "mongodb://h/app?distlock.collection=",
        "mongodb://h/app?distlock.collection=a%24b",
        "mongodb://h/app?distlock.collection=.a",
        "mongodb://h/app?distlock.collection=a..b",
        "mongodb://h/app?distlock.collection=a%00b",
        "mongodb://h/app?distlock.collection=system.users",
        "mongodb://h/app?distlock.retention=60",
        "mongodb://h/app?distlock.retention=0s",
        "mongodb://h/app?distlock.table=locks",
        "mongodb://h/app?nonsense",
        "mongodb://h/app?nonsense=1",
        "mongodb://",
        "mongodb:h/app",
        "mongodb://%2Frun%2Fmongo/app",
    ] {
        let error = read(bad).err().unwrap_or_else(|| panic!("{bad} was accepted"));
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}: {error}");
    }
    let option = read("mongodb://h/app?directConnection=secret").err().unwrap().to_string();
    assert!(option.contains("directConnection") && !option.contains("secret"), "{option}");
    let unknown = read("mongodb://h/app?w=1&bogus=secret").err().unwrap().to_string();
    assert!(unknown.contains("parameter \"bogus\"") && !unknown.contains("secret"), "{unknown}");
}

#[test]
fn the_driver_reads_what_was_written() {
    let full = connection(
        "mongodb://u%40x:p%2540%2F%3A+,@H1:1,[::1]:2,h3/app?appName=me@host%26tls=false&w=majority",
    );
    let credential = full.credential.unwrap();
    assert_eq!(credential.username.as_deref(), Some("u@x"));
    assert_eq!(credential.password.as_deref(), Some("p%40/:+,"));
    assert_eq!(full.app_name.as_deref(), Some("me@host&tls=false"));
    assert_eq!((full.tls, full.default_database.as_deref()), (None, Some("app")));
    let HostInfo::HostIdentifiers(hosts) = full.host_info else { panic!("no hosts") };
    assert_eq!(hosts.len(), 3);
    let socket = connection("mongodb://%2Frun%2Fmongodb-27017.sock/app");
    let HostInfo::HostIdentifiers(hosts) = socket.host_info else { panic!("no hosts") };
    assert_eq!(hosts, [ServerAddress::Unix { path: "/run/mongodb-27017.sock".into() }]);
    let record = connection("mongodb+srv://cluster.example.com/app");
    assert_eq!(record.host_info, HostInfo::DnsRecord("cluster.example.com".to_owned()));
    assert!(matches!(record.tls, Some(Tls::Enabled(_))));
}

#[test]
fn no_option_disables_requested_encryption() {
    for secure in ["tls=true", "ssl=true", "tls=true&ssl=true", "tlsCAFile=/ca", "appName=a@b&tls=true"] {
        for scheme in ["mongodb", "mongodb+srv"] {
            let url = format!("{scheme}://h.example.com/app?{secure}");
            let Some(Tls::Enabled(tls)) = connection(&url).tls else { panic!("{url} is not encrypted") };
            assert_ne!(tls.allow_invalid_certificates, Some(true), "{url}");
        }
        for less in [
            "tls=false",
            "TLS=false",
            "t%6cs=false",
            "ssl=false",
            "SSL=false",
            "tls=true",
            "tlsCAFile=/ca&tlsInsecure=true",
            "tlsCAFile=/ca&tlsAllowInvalidCertificates=true",
            "tlsInsecure=true&tlsInsecure=false",
            "\u{17f}sl=false",
            "tlsAllowInvalidHostnames=true",
            "tlsDisableCertificateRevocationCheck=true",
        ] {
            // The same option twice is refused too.
            if less.starts_with("tls=true") && !secure.contains("tls=true") {
                continue;
            }
            for url in [
                format!("mongodb://h/app?{secure}&{less}"),
                format!("mongodb://h/app?{less}&{secure}"),
                format!("mongodb://h/app?{secure}&appName=x@y&{less}"),
            ] {
                assert!(read(&url).is_err(), "{url} was accepted");
            }
        }
    }
    // Explicitly requested, it is allowed.
    let unchecked = connection("mongodb://h/app?tls=true&tlsInsecure=true");
    assert!(matches!(unchecked.tls, Some(Tls::Enabled(tls)) if tls.allow_invalid_certificates == Some(true)));
    assert_eq!(connection("mongodb+srv://h.example.com/app?tls=false").tls, Some(Tls::Disabled));
}

#[test]
fn a_login_is_never_dropped() {
    for bad in ["mongodb://@h/app", "mongodb://:p@h/app", "mongodb://u:%ff@h/app", "mongodb://u:p@x:y@h/app"]
    {
        assert!(read(bad).is_err(), "{bad}");
    }
    let x509 = connection("mongodb://h/app?authMechanism=MONGODB-X509&tls=true&tlsCertificateKeyFile=/k");
    assert!(x509.credential.is_some_and(|credential| credential.mechanism.is_some()));
}

#[test]
fn a_password_is_not_repeated_in_errors() {
    let error = read("mongodb://u:s3cr@t:/@h/app").err().unwrap();
    assert!(!error.to_string().contains("s3cr"), "{error}");
}
