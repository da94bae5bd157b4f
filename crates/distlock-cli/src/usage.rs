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
            let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
            say(&line(&text.to_string(), &args.collect::<Vec<_>>()));
            ExitCode::from(USAGE)
        }
    }
}

/// One line without secrets. They are taken out first: a password may have line breaks in it.
fn line(text: &str, args: &[String]) -> String {
    one_line(&redact::urls(text, args))
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
    use clap::Parser as _;

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

    /// The places where a URL is written by mistake, and the one where it belongs.
    fn command_lines(url: &str) -> Vec<Vec<String>> {
        let option = format!("--stroe={url}");
        let lines: [&[&str]; 9] = [
            &[url],
            &["run", "--stroe", url, "x", "true"],
            &[&option, "ls"],
            &["ls", "one", url],
            &["run", "--timeout", url, "x", "true"],
            &["run", "--permits", url, "x", "true"],
            &["bench", "--scenario", url],
            &["completions", url],
            &["--store", url, "schema"],
        ];
        lines.iter().map(|line| line.iter().map(|word| (*word).to_owned()).collect()).collect()
    }

    /// What is said about a command line, nothing if it is right.
    fn said(args: &[String]) -> String {
        let words = std::iter::once("distlock").chain(args.iter().map(String::as_str));
        match crate::cli::Cli::try_parse_from(words) {
            Err(error) => line(&error.render().to_string(), args),
            Ok(cli) => {
                let done = cli.store.url().and_then(distlock::schema).map_err(crate::exit::Failure::from);
                format!("{cli:?} {:?}", done.map(drop))
            }
        }
    }

    #[test]
    fn no_command_line_shows_the_secret_of_a_url() {
        let mut state: u32 = 21;
        let mut random = |limit: usize| {
            // Numerical Recipes' generator: the same URLs in each run.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % limit
        };
        let special: Vec<char> = "@#?/:%\\,&=+[]! \n\t'\"<>{".chars().collect();
        let mut tried = 0;
        let schemes = distlock::drivers().iter().flat_map(|driver| driver.schemes());
        for scheme in schemes.copied().chain(["u", "QXZ"]) {
            for place in [
                "://u:SECRET@h/db",
                "://SECRET@h",
                "://h/db?password=SECRET&user=me@srv",
                ":SECRET",
                "//u:SECRET@h",
            ] {
                // Two rare letters and a special one, and so on.
                let secret: String = (0..12)
                    .map(|n| {
                        if n % 3 == 2 {
                            special[random(special.len())]
                        } else {
                            char::from(b"QXZJKVW"[random(7)])
                        }
                    })
                    .collect();
                // A word with a colon in it is no URL unless a store answers to what stands before.
                if place == ":SECRET" && ["u", "QXZ"].contains(&scheme) {
                    continue;
                }
                let url = format!("{scheme}{}", place.replace("SECRET", &secret));
                let letters: Vec<char> = secret.chars().collect();
                for args in command_lines(&url) {
                    let said = said(&args);
                    for piece in letters.windows(4).map(|piece| piece.iter().collect::<String>()) {
                        let escaped = format!("{piece:?}");
                        let shown = said.contains(&piece) || said.contains(escaped.trim_matches('"'));
                        assert!(!shown, "{args:?} shows {piece:?}: {said}");
                    }
                    tried += 1;
                }
            }
        }
        assert!(tried > 500, "{tried}");
    }
}
