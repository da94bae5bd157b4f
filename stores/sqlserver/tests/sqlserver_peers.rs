//! What is said before a session exists, to a peer that plays the server's part: no server here has named instances or Azure AD.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use distlock_core::ErrorKind;
use distlock_core::store::StoreUrl;
use distlock_sqlserver::{SqlServerConfig, SqlServerStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

const PRELOGIN: u8 = 0x12;
const LOGIN7: u8 = 0x10;
const REPLY: u8 = 0x04;
const ENCRYPT_OFF: u8 = 0;
const ENCRYPT_NOT_SUPPORTED: u8 = 2;
/// A test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(url: &str) -> SqlServerConfig {
    SqlServerConfig::from_url(&StoreUrl::parse(url).unwrap()).unwrap()
}

/// The type and the content of a packet; `None` at the end of the connection.
async fn packet(socket: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut header = [0; 8];
    socket.read_exact(&mut header).await.ok()?;
    let mut content = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]])) - header.len()];
    socket.read_exact(&mut content).await.ok()?;
    Some((header[0], content))
}

/// Answers the first packet of a client, and says how it may encrypt.
async fn pre_login(socket: &mut TcpStream, encryption: u8) -> Vec<u8> {
    let (kind, asked) = packet(socket).await.unwrap();
    assert_eq!(kind, PRELOGIN);
    // Two options and where they are: the version of the server, and its encryption.
    let options = [0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 0xff, 16, 0, 0, 0, 0, 0, encryption];
    let mut reply = vec![REPLY, 1, 0, u8::try_from(8 + options.len()).unwrap(), 0, 0, 1, 0];
    reply.extend(options);
    socket.write_all(&reply).await.unwrap();
    asked
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[tokio::test]
async fn an_instance_is_found_by_its_name_and_an_access_token_is_sent_in_the_login() {
    // An address of its own: the port of the browser service is fixed.
    let host = "127.0.14.33";
    let (browser, server) =
        (UdpSocket::bind((host, 1434)).await.unwrap(), TcpListener::bind((host, 0)).await.unwrap());
    let port = server.local_addr().unwrap().port();
    let peer = tokio::spawn(async move {
        let mut question = [0; 64];
        let (length, client) = browser.recv_from(&mut question).await.unwrap();
        assert_eq!(&question[..length], b"\x04EXPRESS");
        let found = format!("ServerName;H;InstanceName;EXPRESS;IsClustered;No;Version;16.0;tcp;{port};;");
        let length = u16::try_from(found.len()).unwrap().to_le_bytes();
        let answer = [&[5], &length[..], found.as_bytes()].concat();
        browser.send_to(&answer, client).await.unwrap();
        let mut socket = server.accept().await.unwrap().0;
        pre_login(&mut socket, ENCRYPT_NOT_SUPPORTED).await;
        packet(&mut socket).await.unwrap()
    });
    let url = format!("sqlserver://{host}/orders?instancename=EXPRESS&encrypt=danger_plaintext");
    let config = config(&url).access_token_from(|| async { Ok("ey.fresh".to_owned()) });
    let connected = tokio::time::timeout(PATIENCE, SqlServerStore::connect(config)).await.unwrap();
    assert_eq!(connected.unwrap_err().kind(), ErrorKind::Unavailable, "the peer hangs up");
    let (kind, login) = peer.await.unwrap();
    assert_eq!(kind, LOGIN7);
    for part in ["ey.fresh", "orders", "distlock"] {
        assert!(contains(&login, &utf16(part)), "{part} is not in the login");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn no_login_is_sent_to_a_server_that_does_not_encrypt() {
    for (parameters, encryption) in [
        ("", ENCRYPT_NOT_SUPPORTED),
        ("", ENCRYPT_OFF),
        ("?encrypt=true&trustservercertificate=true", ENCRYPT_NOT_SUPPORTED),
        ("?encrypt=true&trustservercertificate=true", ENCRYPT_OFF),
        ("?encrypt=false", ENCRYPT_NOT_SUPPORTED),
        ("?encrypt=strict", ENCRYPT_NOT_SUPPORTED),
    ] {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("sqlserver://app:s3cret@{}/orders{parameters}", server.local_addr().unwrap());
        let strict = parameters.contains("strict");
        let peer = tokio::spawn(async move {
            let mut socket = server.accept().await.unwrap().0;
            let mut heard = vec![0; 4096];
            if !strict {
                pre_login(&mut socket, encryption).await;
            } else {
                // TLS comes before all else, and the peer does not speak it.
                socket.write_all(&[REPLY; 64]).await.unwrap();
            }
            // What follows, or the end.
            let length = socket.read(&mut heard).await.unwrap_or(0);
            heard.truncate(length);
            heard
        });
        let connected = tokio::time::timeout(PATIENCE, SqlServerStore::connect(config(&url))).await.unwrap();
        let error = connected.unwrap_err();
        assert!(!format!("{error:#}").contains("s3cret"), "{error:#}");
        let heard = peer.await.unwrap();
        assert!(!contains(&heard, &utf16("app")), "{parameters}: a login in plain text");
        assert!(!heard.starts_with(&[LOGIN7]), "{parameters}: a login in plain text");
    }
}
