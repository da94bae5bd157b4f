//! A minimal PostgreSQL client, to check readiness and to query a server from a test.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::servers::sql::{Rows, SqlConnection};
use crate::servers::tcp;

const VERSION_3: u32 = 196_608;

/// A blocking session of the superuser `postgres`, without a password.
#[derive(Debug)]
pub struct PostgresConnection {
    stream: TcpStream,
}

impl SqlConnection for PostgresConnection {
    const TIME: &'static str = "SELECT extract(epoch FROM clock_timestamp())::bigint";

    fn open(port: u16, limit: Duration) -> io::Result<Self> {
        PostgresConnection::open(port, limit)
    }

    fn query(&mut self, sql: &str) -> io::Result<Rows> {
        PostgresConnection::query(self, sql)
    }
}

impl PostgresConnection {
    /// Opens a session on a loopback port; every wait ends after `limit`.
    ///
    /// # Errors
    /// If the server does not open a session: it may still be starting.
    pub fn open(port: u16, limit: Duration) -> io::Result<Self> {
        let stream = tcp::connect(port, limit)?;
        let mut connection = Self { stream };
        let parameters = b"user\0postgres\0database\0postgres\0application_name\0testkit\0\0";
        let packet = [&VERSION_3.to_be_bytes(), parameters.as_slice()].concat();
        connection.send(None, &packet)?;
        connection.rows()?;
        Ok(connection)
    }

    /// Runs one or several SQL statements and returns all their rows.
    ///
    /// # Errors
    /// If the connection fails or times out, or the server returns an error: the message then has its text.
    pub fn query(&mut self, sql: &str) -> io::Result<Rows> {
        self.send(Some(b'Q'), &[sql.as_bytes(), &[0]].concat())?;
        self.rows()
    }

    fn send(&mut self, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).map_err(|_| io::ErrorKind::InvalidInput)?;
        let kind = kind.map(|byte| vec![byte]).unwrap_or_default();
        self.stream.write_all(&[kind.as_slice(), &length.to_be_bytes(), body].concat())
    }

    /// Reads until the server is ready for the next query.
    fn rows(&mut self) -> io::Result<Rows> {
        let mut rows = Rows::new();
        let mut error = None;
        loop {
            let message = self.receive();
            let (kind, body) = match (message, error.take()) {
                (Ok(message), none) => {
                    error = none;
                    message
                }
                // A server that refuses a session sends the reason and closes the connection.
                (Err(_), Some(text)) => return Err(io::Error::other(text)),
                (Err(e), None) => return Err(e),
            };
            match kind {
                b'D' => rows.push(data_row(&body).ok_or(io::ErrorKind::InvalidData)?),
                b'E' => error = Some(error_text(&body)),
                b'R' if body != [0; 4] => return Err(io::Error::other("the server wants a password")),
                b'Z' => return error.map_or(Ok(rows), |text| Err(io::Error::other(text))),
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        self.stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        let mut body = vec![0; length.saturating_sub(4)];
        self.stream.read_exact(&mut body)?;
        Ok((header[0], body))
    }
}

fn data_row(mut body: &[u8]) -> Option<Vec<Option<String>>> {
    let count = u16::from_be_bytes(take(&mut body, 2)?.try_into().ok()?);
    (0..count)
        .map(|_| {
            let length = i32::from_be_bytes(take(&mut body, 4)?.try_into().ok()?);
            match usize::try_from(length) {
                Ok(length) => Some(Some(String::from_utf8_lossy(take(&mut body, length)?).into_owned())),
                Err(_) => Some(None),
            }
        })
        .collect()
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

/// SQLSTATE and message of an error.
fn error_text(body: &[u8]) -> String {
    let fields: Vec<String> =
        body.split(|byte| *byte == 0).map(|f| String::from_utf8_lossy(f).into_owned()).collect();
    let field = |kind: char| fields.iter().find_map(|field| field.strip_prefix(kind)).unwrap_or_default();
    format!("{}: {}", field('C'), field('M'))
}
