//! Wrong usage: one line and the exit code 64, where the parser's own are a paragraph and 2.

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::exit::USAGE;
use crate::notes::say;
use crate::{output, redact};

/// Says what is wrong with the command line, or prints the help or version that was asked for.
pub(crate) fn explain(error: &clap::Error) -> ExitCode {
    let text = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = if output::colours() { text.ansi().to_string() } else { text.to_string() };
            match output::write(&text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => ExitCode::from(failure.code),
            }
        }
        // A bare `distlock` asks what it can do.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            say(&redact::urls(&one_line(&text.to_string())));
            ExitCode::from(USAGE)
        }
    }
}

/// What is wrong and what to do, without the usage lines between them.
fn one_line(text: &str) -> String {
    let mut usage = false;
    let mut parts = Vec::new();
    for line in text.lines().map(str::trim) {
        usage |= line.starts_with("Usage:");
        if line.is_empty() || (usage && !line.starts_with("For more information")) {
            continue;
        }
        let line = line.strip_prefix("error: ").or_else(|| line.strip_prefix("tip: ")).unwrap_or(line);
        parts.push(line.trim_end_matches('.'));
    }
    let text = parts.join("; ").replace(":; ", ": ");
    text.replace("For more information, try '--help'", "try --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_becomes_a_line() {
        let text = "error: the following required arguments were not provided:\n  --of <MAX>\n\n\
                    Usage: distlock run --of <MAX> <NAME>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(text),
            "the following required arguments were not provided: --of <MAX>; try --help"
        );
    }
}
