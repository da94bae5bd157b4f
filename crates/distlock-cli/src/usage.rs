//! Wrong usage: one line and exit code 64, in place of the parser's paragraph and exit code 2.

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::exit::USAGE;
use crate::stderr::print;
use crate::{output, redact};

/// Reports what is wrong with the command line, or prints the requested help or version.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    let text = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = if output::colours() { text.ansi().to_string() } else { text.to_string() };
            match output::write(&text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => ExitCode::from(failure.code),
            }
        }
        // `distlock` without arguments shows the help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
            print(&line(&text.to_string(), &args.collect::<Vec<_>>()));
            ExitCode::from(USAGE)
        }
    }
}

/// One line without secrets. They are removed first: a password may contain line breaks.
fn line(text: &str, args: &[String]) -> String {
    one_line(&redact::urls(text, args))
}

/// The error and the advice, without the usage lines between them.
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
    fn a_paragraph_becomes_one_line() {
        let text = "error: the following required arguments were not provided:\n  --of <MAX>\n\n\
                    Usage: distlock run --of <MAX> <NAME>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(text),
            "the following required arguments were not provided: --of <MAX>; try --help"
        );
    }

    /// Command lines with a URL in a wrong place, and one with it in the right place.
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

    /// What is printed about a command line.
    fn printed(args: &[String]) -> String {
        let words = std::iter::once("distlock").chain(args.iter().map(String::as_str));
        match crate::cli::Cli::try_parse_from(words) {
            Err(error) => line(&error.render().to_string(), args),
            Ok(cli) => {
                let result = cli.store.url().and_then(distlock::schema).map_err(crate::exit::Failure::from);
                format!("{cli:?} {:?}", result.map(drop))
            }
        }
    }

    #[test]
    fn no_command_line_shows_the_secret_of_a_url() {
        let mut state: u32 = 21;
        let mut random = |limit: usize| {
            // A linear congruential generator: the same URLs in every run.
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
                // Two rare letters, then a special character, repeated.
                let secret: String = (0..12)
                    .map(|n| {
                        if n % 3 == 2 {
                            special[random(special.len())]
                        } else {
                            char::from(b"QXZJKVW"[random(7)])
                        }
                    })
                    .collect();
                // A word with a colon is a URL only if a store has the scheme before it.
                if place == ":SECRET" && ["u", "QXZ"].contains(&scheme) {
                    continue;
                }
                let url = format!("{scheme}{}", place.replace("SECRET", &secret));
                let letters: Vec<char> = secret.chars().collect();
                for args in command_lines(&url) {
                    let printed = printed(&args);
                    for piece in letters.windows(4).map(|piece| piece.iter().collect::<String>()) {
                        let escaped = format!("{piece:?}");
                        let shown = printed.contains(&piece) || printed.contains(escaped.trim_matches('"'));
                        assert!(!shown, "{args:?} shows {piece:?}: {printed}");
                    }
                    tried += 1;
                }
            }
        }
        assert!(tried > 500, "{tried}");
    }
}
