//! Stdout: a reader that goes away (`distlock ls | head -1`) ends us quietly.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::exit::Failure;

/// What to paint, on a terminal and without `NO_COLOR`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paint {
    Bold,
    Green,
    Yellow,
}

/// Whether stdout may be coloured: a terminal that is not dumb, and no `NO_COLOR`.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

/// The text, painted if that is wanted.
pub(crate) fn painted(text: &str, paint: Paint, on: bool) -> String {
    if !on {
        return text.to_owned();
    }
    let code = match paint {
        Paint::Bold => "1",
        Paint::Green => "32",
        Paint::Yellow => "33",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Writes the whole text.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        // The reader has seen all it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(1, format!("cannot write to stdout: {error}; check where it leads"))),
    }
}

/// Writes a value as JSON, for other programs.
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(1, format!("cannot write JSON: {error}")))?;
    text.push('\n');
    write(&text)
}
