//! A minimal client, to check readiness and to query a server from a test.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::servers::sql::{Rows, SqlConnection};
use crate::servers::tcp;

/// Protocol 4.1, transactions, secure connection, several statements and results, plugins.
const CAPABILITIES: u32 = 0x0000_0200 | 0x0000_2000 | 0x0000_8000 | 0x0001_0000 | 0x0002_0000 | 0x0008_0000;
const MORE_RESULTS: u16 = 0x0008;
const UTF8MB4: u8 = 45;

/// A blocking session of the superuser `root`, without a password.
#[derive(Debug)]
pub struct MysqlConnection {
    stream: TcpStream,
    id: u32,
}

impl SqlConnection for MysqlConnection {
    const TIME: &'static str = "SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())";

    fn open(port: u16, limit: Duration) -> io::Result<Self> {
        MysqlConnection::open(port, limit)
    }

    fn query(&mut self, sql: &str) -> io::Result<Rows> {
        MysqlConnection::query(self, sql)
    }
}

impl MysqlConnection {
    /// Opens a session on a loopback port; every wait ends after `limit`.
    ///
    /// # Errors
    /// If the server does not open a session: it may still be starting.
    pub fn open(port: u16, limit: Duration) -> io::Result<Self> {
        let mut connection = Self { stream: tcp::connect(port, limit)?, id: 0 };
        let (_, greeting) = connection.receive()?;
        check(&greeting)?;
        let version =
            greeting.iter().skip(1).position(|byte| *byte == 0).ok_or(io::ErrorKind::InvalidData)?;
        let id = greeting.get(version + 2..version + 6).and_then(|bytes| bytes.try_into().ok());
        connection.id = u32::from_le_bytes(id.ok_or(io::ErrorKind::InvalidData)?);
        let plugin = greeting.split(|byte| *byte == 0).rfind(|part| !part.is_empty()).unwrap_or_default();
        let mut reply = CAPABILITIES.to_le_bytes().to_vec();
        reply.extend((1_u32 << 24).to_le_bytes());
        reply.push(UTF8MB4);
        reply.extend([0; 23]);
        reply.extend(b"root\0\0");
        reply.extend(plugin);
        reply.push(0);
        connection.send(1, &reply)?;
        loop {
            let (number, packet) = connection.receive()?;
            check(&packet)?;
            match packet.first() {
                Some(0) => return Ok(connection),
                // Another plugin: without a password the answer is empty for all of them.
                Some(0xfe) => connection.send(number.wrapping_add(1), &[])?,
                _ => {}
            }
        }
    }

    /// The server's number of this session.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Runs one or several SQL statements and returns all their rows.
    ///
    /// # Errors
    /// If the connection fails or times out, or the server returns an error: the message then has its text.
    pub fn query(&mut self, sql: &str) -> io::Result<Rows> {
        self.send(0, &[&[3], sql.as_bytes()].concat())?;
        let mut rows = Rows::new();
        while self.result(&mut rows)? {}
        Ok(rows)
    }

    /// Reads the result of one statement; true if another follows.
    fn result(&mut self, rows: &mut Rows) -> io::Result<bool> {
        let (_, head) = self.receive()?;
        check(&head)?;
        let mut head = &head[..];
        if head.first() == Some(&0) {
            head = &head[1..];
            number(&mut head)?;
            number(&mut head)?;
            return Ok(status(head) & MORE_RESULTS != 0);
        }
        let columns = number(&mut head)?;
        for _ in 0..=columns {
            // Their definitions, and the end of them.
            self.receive()?;
        }
        loop {
            let (_, packet) = self.receive()?;
            check(&packet)?;
            if packet.first() == Some(&0xfe) && packet.len() < 9 {
                return Ok(status(packet.get(3..).unwrap_or_default()) & MORE_RESULTS != 0);
            }
            let mut rest = &packet[..];
            rows.push((0..columns).map(|_| value(&mut rest)).collect::<io::Result<_>>()?);
        }
    }

    fn send(&mut self, number: u8, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?.to_le_bytes();
        self.stream.write_all(&[&length[..3], &[number], body].concat())
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((header[3], body))
    }
}

fn check(packet: &[u8]) -> io::Result<()> {
    if packet.first() != Some(&0xff) {
        return Ok(());
    }
    let code = packet.get(1..3).map_or(0, |code| u16::from_le_bytes([code[0], code[1]]));
    let text = String::from_utf8_lossy(packet.get(3..).unwrap_or_default()).into_owned();
    Err(io::Error::other(format!("{code}: {text}")))
}

fn status(bytes: &[u8]) -> u16 {
    bytes.get(..2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// A length-encoded number.
fn number(bytes: &mut &[u8]) -> io::Result<usize> {
    let width = match bytes.first() {
        Some(first @ 0..=0xfa) => {
            *bytes = &bytes[1..];
            return Ok(usize::from(*first));
        }
        Some(0xfc) => 2,
        Some(0xfd) => 3,
        Some(0xfe) => 8,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let digits = bytes.get(1..=width).ok_or(io::ErrorKind::InvalidData)?;
    let number = digits.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    *bytes = &bytes[width + 1..];
    Ok(number)
}

fn value(bytes: &mut &[u8]) -> io::Result<Option<String>> {
    if bytes.first() == Some(&0xfb) {
        *bytes = &bytes[1..];
        return Ok(None);
    }
    let length = number(bytes)?;
    let (text, rest) = bytes.split_at_checked(length).ok_or(io::ErrorKind::InvalidData)?;
    *bytes = rest;
    Ok(Some(String::from_utf8_lossy(text).into_owned()))
}
