//! Sends one command to a MongoDB server (`OP_MSG`), without a driver.

use std::io::{self, Read, Write};
use std::time::Duration;

use super::bson::{Document, Value};
use crate::servers::tcp;

const OP_MSG: u32 = 2013;
/// Length, request id, id of the answered request, operation.
const HEADER: usize = 16;

/// Runs one command on its own connection; every wait ends after `limit`.
///
/// # Errors
/// If the server does not answer, or the command failed: the error then has the server's message.
pub fn run(port: u16, database: &str, command: &Document, limit: Duration) -> io::Result<Document> {
    let mut stream = tcp::connect(port, limit)?;

    let mut command = command.clone();
    command.0.push(("$db".to_owned(), Value::from(database)));
    // Flags 0, then one section of kind 0: the document.
    let body = [&[0, 0, 0, 0, 0], command.to_bytes().as_slice()].concat();
    let length = u32::try_from(HEADER + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let header = [length, 1, 0, OP_MSG].map(u32::to_le_bytes).concat();
    stream.write_all(&[header, body].concat())?;

    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let mut body = vec![0; length.saturating_sub(HEADER)];
    stream.read_exact(&mut body)?;
    let reply = Document::from_bytes(body.get(5..).unwrap_or_default())?;
    if reply.is_true("ok") {
        Ok(reply)
    } else {
        Err(io::Error::other(format!("{} ({})", reply.text("errmsg"), reply.text("codeName"))))
    }
}
