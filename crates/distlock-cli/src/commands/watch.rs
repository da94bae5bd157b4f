//! `distlock ls --watch`: the list again and again. In place on a terminal, elsewhere one block per change.

use std::io::{self, IsTerminal};
use std::time::Duration;

use distlock::Locks;
use distlock::store::Query;

use crate::exit::Failure;
use crate::listing::{self, ListEntry};
use crate::output::{self, Style};
use crate::stderr::print;
use crate::table::escape;

/// To the upper left corner, without clearing: a cleared screen flickers.
const TOP: &str = "\x1b[H";
const CLEAR_SCREEN: &str = "\x1b[2J";
const CLEAR_REST_OF_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Prints the list until the reader of stdout is gone.
pub(super) async fn watch(locks: &Locks, query: &Query, json: bool, every: Duration) -> Result<(), Failure> {
    let in_place = io::stdout().is_terminal() && !json;
    let mut shown: Option<Vec<ListEntry>> = None;
    let mut last_error: Option<String> = None;
    loop {
        match locks.inspect(query).await {
            Ok(records) => {
                last_error = None;
                let entries = listing::holders(&records, locks.capabilities().shows_waiters);
                let changed = shown.as_ref().is_none_or(|before| !listing::is_same(before, &entries));
                let text = match (in_place, changed, json) {
                    (true, ..) => frame(&entries, locks.store(), shown.is_none(), None),
                    (false, true, true) => output::json_line(&entries)?,
                    (false, true, false) => block(&entries, locks.store()),
                    (false, false, _) => String::new(),
                };
                if !output::write_if_read(&text)? {
                    return Ok(());
                }
                shown = Some(entries);
            }
            // An outage that began meanwhile may end.
            Err(error) if shown.is_some() && error.can_retry() => {
                let text = format!("{error:#}");
                let entries = shown.as_deref().unwrap_or_default();
                if in_place {
                    output::write(&frame(entries, locks.store(), false, Some(&text)))?;
                } else if last_error.as_ref() != Some(&text) {
                    print(&text);
                }
                last_error = Some(text);
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(every).await;
    }
}

fn free(store: &str) -> String {
    format!("no lock is held on {}\n", escape(store))
}

/// The list and an empty line.
fn block(entries: &[ListEntry], store: &str) -> String {
    let text = if entries.is_empty() { free(store) } else { listing::table(entries) };
    format!("{text}\n")
}

/// Rows and columns of the terminal. One that does not know its size says zero.
fn screen_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    let (rows, columns) = size.map_or((0, 0), |size| (size.ws_row, size.ws_col));
    let or = |known: u16, default| if known > 1 { usize::from(known) } else { default };
    (or(rows, 24), or(columns, 80))
}

/// The list on the whole screen, cut to its size.
fn frame(entries: &[ListEntry], store: &str, first: bool, error: Option<&str>) -> String {
    let (rows, columns) = screen_size();
    let table = if entries.is_empty() { free(store) } else { listing::plain_table(entries) };
    let mut lines: Vec<String> =
        error.map(escape).into_iter().chain(table.lines().map(str::to_owned)).collect();
    let room = rows - 1;
    if lines.len() > room {
        let hidden = lines.len() - room + 1;
        lines.truncate(room - 1);
        lines.push(format!("… and {hidden} more"));
    }
    let header = usize::from(error.is_some());
    let colours = output::colours();
    let mut text = String::from(if first { CLEAR_SCREEN } else { "" });
    text.push_str(TOP);
    for (place, line) in lines.iter().enumerate() {
        let cut: String = line.chars().take(columns).collect();
        let styled = if place == header && !entries.is_empty() {
            output::styled(&cut, Style::Bold, colours)
        } else if place < header {
            output::styled(&cut, Style::Yellow, colours)
        } else {
            cut
        };
        text.push_str(&format!("{styled}{CLEAR_REST_OF_LINE}\n"));
    }
    text.push_str(CLEAR_BELOW);
    text
}
