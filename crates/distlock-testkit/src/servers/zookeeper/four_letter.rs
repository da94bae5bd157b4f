//! Four-letter commands: a word on a connection of its own, and the text that comes back.

use std::io::{Read, Write};
use std::time::Duration;

use crate::servers::tcp;

pub(super) fn ask(port: u16, command: &str, limit: Duration) -> std::io::Result<String> {
    let mut stream = tcp::connect(port, limit)?;
    stream.write_all(command.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
