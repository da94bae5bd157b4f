//! A minimal Redis client, to set servers up and to query them from a test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::servers::tcp;

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Status(String),
    /// An error of the server.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A string; invalid UTF-8 in it is replaced.
    Text(String),
    /// No value.
    Nil,
    /// A list of replies.
    List(Vec<Reply>),
}

impl Reply {
    /// The reply as text: statuses, errors, strings and integers; empty for the rest.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) | Self::Error(text) | Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Nil | Self::List(_) => String::new(),
        }
    }

    /// The entries of a list; none for the rest.
    #[must_use]
    pub fn list(&self) -> &[Reply] {
        if let Self::List(entries) = self { entries } else { &[] }
    }
}

/// A blocking connection to a Redis server.
#[derive(Debug)]
pub struct RedisConnection {
    stream: BufReader<TcpStream>,
}

impl RedisConnection {
    /// Connects to a loopback port; every wait ends after `limit`.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn open(port: u16, limit: Duration) -> io::Result<Self> {
        let stream = tcp::connect(port, limit)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and reads its reply. An error of the server is a [`Reply::Error`].
    ///
    /// # Errors
    /// If the connection fails or times out.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.reply()
    }

    /// Reads one reply, or the next message of a subscription.
    ///
    /// # Errors
    /// If the connection fails or times out.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number(rest)?),
            "$" => match usize::try_from(number(rest)?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number(rest)?) {
                Ok(length) => Reply::List((0..length).map(|_| self.reply()).collect::<io::Result<_>>()?),
                Err(_) => Reply::Nil,
            },
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("not a Redis reply: {line:?}"),
                ));
            }
        })
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("not a number: {text:?}")))
}
