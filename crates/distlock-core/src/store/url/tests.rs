use super::*;

#[test]
fn the_authority_ends_at_the_first_slash_or_question_mark() {
    let mut url = StoreUrl::parse("X+y://u:p@h:1/a%2Fb?application_name=me@host/?&x=1+1").unwrap();
    assert_eq!(url.scheme(), "x+y");
    assert_eq!(url.authority().unwrap().servers[0].port, Some(1));
    assert_eq!(url.path().unwrap(), "/a/b");
    assert_eq!(url.take_driver("application_name").as_deref(), Some("me@host/?"));
    assert_eq!(url.driver_parameters().collect::<Vec<_>>(), [("x", "1+1")]);
    let bare = StoreUrl::parse("file:").unwrap();
    assert!(!bare.has_authority() && bare.path().unwrap().is_empty());
    let folder = StoreUrl::parse("file:///a@b%ff").unwrap();
    assert!(folder.has_authority() && folder.authority().unwrap().servers.is_empty());
    assert!(folder.path().is_err() && folder.file_path().is_ok());
}

#[test]
fn what_parsers_read_differently_is_refused_without_its_text() {
    for bad in [
        "",
        "secret",
        "://secret",
        "1secret://h",
        "se cret://h",
        "x://u:secret#x@h",
        "x://h/#insecure",
        "x://h/a?b=secret#c",
        "x://u:sec\nret@h",
        "x://u:sec\tret@h",
        "x://u:sec\0ret@h",
        "x://h\\secret@h2",
        "x://:secret?half@h",
        "x://h?application_name=secret@host",
        "x://u:1/secret@h",
        "x://u:secret/x@h/db?y=1",
        "x://h?secret",
        "x://h?secret%=1",
        "x://h?a=secret%zz",
        "x://h?a=%ffsecret",
        "x://h?a=secret%00",
    ] {
        let error = StoreUrl::parse(bad).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
        assert!(
            !format!("{error} {error:?}").contains("ecret") && error.advice().is_some(),
            "{bad}: {error}"
        );
    }
}

#[test]
fn a_parameter_cannot_undo_an_earlier_one() {
    for bad in [
        "sslmode=require&sslmode=disable",
        "tls=true&TLS=false",
        "sslmode=require&%73slmode=disable",
        "sslmode=require&x=1&ssl%4dode=disable",
        "distlock.a=1&distlock.a=1",
        "distlock.a=1&distlock.%41=2",
    ] {
        let error = StoreUrl::parse(&format!("x://h/db?{bad}")).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("earlier"), "{bad}: {error}");
    }
}

#[test]
fn our_parameters_are_taken_and_unknown_ones_refused_by_name() {
    let twice = StoreUrl::parse("x:?distlock.mode=a&x=1&distlock.oops=1&Distlock.mode=2").unwrap_err();
    assert!(twice.to_string().contains("4th parameter"), "{twice}");
    let mut url = StoreUrl::parse("x:?distlock.mode=a%20b&x=1&Distlock.oops=1").unwrap();
    assert_eq!(url.take("mode").as_deref(), Some("a b"));
    let error = url.refuse_unknown(&["mode"]).unwrap_err().to_string();
    assert!(error.contains("parameter \"Distlock.oops\"") && error.contains("distlock.mode"), "{error}");
    let error = url.refuse_unknown_driver(&[]).unwrap_err().to_string();
    assert!(error.contains("parameter \"x\"") && !error.contains("oops"), "{error}");
    assert_eq!(url.take_driver("x").as_deref(), Some("1"));
    assert!(url.refuse_unknown_driver(&[]).is_ok());
}

#[test]
fn a_piece_of_a_password_is_not_taken_for_the_name_of_a_parameter() {
    for text in [
        "x://h?password=ab&half=cd",
        "x://h?sslKey=ab&half=cd",
        "x://u:ab?half=cd@h/db",
        "x://u:ab?half=cd%40h",
        "x://u:ab?half=cd",
        "x://h/db?half=cd&user=me@srv",
        "x://h?a=1&authSource=b&half=c",
    ] {
        let Ok(mut url) = StoreUrl::parse(text) else { continue };
        for known in ["password", "sslKey", "a", "authSource"] {
            url.take_driver(known);
        }
        let error = format!("{:#}", url.refuse_unknown_driver(&[]).unwrap_err());
        assert!(!error.contains("half") && error.contains(" parameter is no parameter"), "{text}: {error}");
    }
}

#[test]
fn values_of_ours_have_one_grammar() {
    let read = |value: &str| StoreUrl::parse(&format!("x:?distlock.k={value}")).unwrap();
    assert_eq!(read("2m").take_duration("k").unwrap(), Some(Duration::from_secs(120)));
    assert_eq!(read("off").take_switch("k").unwrap(), Some(false));
    assert_eq!(read("b").take_word("k", &["a", "b"]).unwrap(), Some("b"));
    for error in [
        read("secret").take_duration("k").unwrap_err(),
        read("2").take_duration("k").unwrap_err(),
        read("secret").take_switch("k").unwrap_err(),
        read("secret").take_word("k", &["a", "b"]).unwrap_err(),
    ] {
        assert!(error.to_string().contains("distlock.k") && !error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn nothing_but_an_accepted_scheme_is_shown() {
    for (text, shown) in
        [("redis://u:s@h/1?x=2", "redis://***"), ("file:", "file:***"), ("MEMORY:s", "memory:***")]
    {
        let mut url = StoreUrl::parse(text).unwrap();
        assert_eq!((url.to_string(), format!("{url:?}")), ("***".to_owned(), "***".to_owned()));
        let error = url.accept(&["mysql"]).unwrap_err().to_string();
        assert!(!error.contains(url.scheme()) && error.contains("mysql"), "{error}");
        url.accept(&["redis", "file", "memory"]).unwrap();
        assert_eq!((url.to_string(), format!("{url:?}")), (shown.to_owned(), shown.to_owned()));
    }
}
