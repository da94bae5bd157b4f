//! Output to stdout. A reader that closes the pipe (`distlock ls | head -1`) is not an error.

use std::io::{self, IsTerminal, Write};

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

/// Writes the whole text.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            Err(Failure::new(1, format!("cannot write to stdout: {error}; check the file or pipe behind it")))
        }
    }
}

/// Writes a value as JSON.
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(1, format!("cannot write JSON: {error}")))?;
    text.push('\n');
    write(&text)
}
