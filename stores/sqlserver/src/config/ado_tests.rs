use super::*;

fn read(text: &str) -> SqlServerConfig {
    SqlServerConfig::from_connection_string(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn login(config: &SqlServerConfig) -> (String, String) {
    match &config.login {
        Login::Sql { user, password } => (user.clone(), password.expose().to_owned()),
        _ => panic!("no login"),
    }
}

#[test]
fn the_usual_strings_are_understood() {
    let config = read("Server=tcp:db.example,1533;Database=orders;User Id=app;Password=s3cret;");
    assert_eq!((config.host.as_str(), config.port), ("db.example", 1533));
    assert_eq!(config.database.as_deref(), Some("orders"));
    assert_eq!(login(&config), ("app".to_owned(), "s3cret".to_owned()));
    assert_eq!(config.encrypt, Encrypt::Mandatory);
    let config =
        read(r"Data Source=db\SQLEXPRESS;Initial Catalog=o;uid=a;pwd='p;=''x';MultiSubnetFailover=True");
    assert_eq!(config.instance.as_deref(), Some("SQLEXPRESS"));
    assert_eq!(login(&config).1, "p;='x");
    assert!(config.multi_subnet_failover);
    // A port wins over the name of the instance, as in ADO.NET.
    assert_eq!(read(r"Server=db\X,1444;Database=d").instance, None);
    assert_eq!(read("Server=(local)").host, "localhost");
    assert!(matches!(read("Server=h;Access Token=ey.x").login, Login::AccessToken(_)));
    let config = read("Server=h;User=u;Password=a=b==");
    assert_eq!(login(&config).1, "a=b==");
}

#[test]
fn encryption_is_on_and_no_other_keyword_weakens_it() {
    assert_eq!(read("Server=h").encrypt, Encrypt::Mandatory);
    assert_eq!(read("Server=h;Encrypt=strict").encrypt, Encrypt::Strict);
    assert_eq!(read("Server=h;TrustServerCertificate=true").encrypt, Encrypt::Mandatory);
    assert_eq!(read("Server=h;Encrypt=false").encrypt, Encrypt::LoginOnly);
    for bad in [
        "Server=h;Encrypt=true;encrypt=false",
        "Server=h;Encrypt=maybe",
        "Server=h;Encrypt=strict;TrustServerCertificate=true",
        "Server=h;TrustServerCertificate=true;HostNameInCertificate=x",
        "Server=h;Encrypt=danger_plaintext;HostNameInCertificate=x",
        "Server=h;TrustServerCertificate=perhaps",
    ] {
        assert!(SqlServerConfig::from_connection_string(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_is_not_understood_is_refused_and_not_repeated() {
    for bad in [
        "Server=h;Passwrd=s3cret",
        "s3cret",
        "Server=h;Password='s3cret",
        "Server=h;Password='s3cret'x;Database=d",
        "Server=h;User=a;uid=s3cret",
        "Server=s3cret s3cret",
        "Server=np:s3cret",
        "Server=h,s3cret",
        "Server=h;Integrated Security=SSPI",
        "Server=h;ApplicationIntent=ReadOnly",
        "Server=h;Password=s3cret",
        "Server=h;User=a;Password=b;AccessToken=s3cret",
        "Database=s3cret",
    ] {
        let error = SqlServerConfig::from_connection_string(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
        assert!(!format!("{error:#}").contains("s3cret"), "{error:#}");
    }
    assert!(!format!("{:?}", read("Server=h;User=a;Password=s3cret")).contains("s3cret"));
}
