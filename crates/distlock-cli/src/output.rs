//! Output to stdout. A reader that closes the pipe (`distlock ls | head -1`) is not an error.

use std::io::{self, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::exit::Failure;

/// A text style, used on a terminal without `NO_COLOR`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Bold,
    Green,
    Yellow,
}

/// Whether to colour stdout: it is a terminal that is not dumb, and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

/// The text in a style, if colours are on.
pub(crate) fn styled(text: &str, style: Style, on: bool) -> String {
    if !on {
        return text.to_owned();
    }
    let code = match style {
        Style::Bold => "1",
        Style::Green => "32",
        Style::Yellow => "33",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Writes the whole text. False if the reader of stdout is gone, also if there is nothing to write.
pub(crate) fn write_if_read(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(!is_reader_gone()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(cannot_write(&error)),
    }
}

/// Whether stdout is a pipe or a socket that is not read any more.
fn is_reader_gone() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|_| polled[0].revents().contains(PollFlags::ERR))
}

fn cannot_write(error: &io::Error) -> Failure {
    Failure::new(1, format!("cannot write to stdout: {error}; check the file or pipe behind it"))
}

/// Writes the whole text.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(cannot_write(&error)),
    }
}

/// A value as JSON on one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string(value).map_err(|error| cannot_serialize(&error))?;
    text.push('\n');
    Ok(text)
}

fn cannot_serialize(error: &serde_json::Error) -> Failure {
    Failure::new(1, format!("cannot write JSON: {error}"))
}

/// Writes a value as JSON.
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| cannot_serialize(&error))?;
    text.push('\n');
    write(&text)
}
