//! From the reports of the stores to the table of the page: what was aimed at, what was reached, on what.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::aims::{self, Reached, Row};
use crate::servers;

/// What stands in the page between these two lines is written anew.
const BEGIN: &str = "<!-- begin: written by bench/run -->";
const END: &str = "<!-- end: written by bench/run -->";

/// Where the reports are, and which page gets the table.
#[derive(clap::Args, Debug)]
pub(crate) struct Pages {
    /// The folder with the reports
    #[arg(long)]
    out: PathBuf,
    /// The page that gets the table
    #[arg(long)]
    page: Option<PathBuf>,
}

pub(crate) fn run(pages: &Pages) -> Result<(), String> {
    let reports: Vec<Value> = servers::ALL
        .iter()
        .filter_map(|contestant| read(&pages.out.join(format!("{}.json", contestant.name))))
        .collect();
    if reports.is_empty() {
        return Err(format!(
            "there is no report in {}; run distlock-bench stores first",
            pages.out.display()
        ));
    }
    let rows = aims::judge(&reports);
    print!("{}", as_text(&reports, &rows));
    let json =
        serde_json::to_string_pretty(&aims::as_json(&reports, &rows)).map_err(|error| error.to_string())?;
    write(&pages.out.join("aims.json"), &(json + "\n"))?;
    let Some(page) = &pages.page else { return Ok(()) };
    let mut generated = setting(&reports);
    generated.push_str(&as_markdown(&reports, &rows));
    if let Some(peers) = read(&pages.out.join("peers.json")) {
        generated.push_str(&peers_as_markdown(&peers));
    }
    let before =
        std::fs::read_to_string(page).map_err(|error| format!("cannot read {}: {error}", page.display()))?;
    let after = between(&before, &generated)
        .ok_or_else(|| format!("{} has no lines {BEGIN:?} and {END:?}", page.display()))?;
    write(page, &after)
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The page with what stands between the two lines replaced.
fn between(page: &str, generated: &str) -> Option<String> {
    let (head, rest) = page.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", generated.trim()))
}

/// When, and on what.
fn setting(reports: &[Value]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let first = &reports[0];
    let machine = &first["machine"];
    let mut setting = format!(
        "Taken on {}: {}, {} cores, {} of memory, Linux {}; {} s for each run.\n\n",
        text(&first["date"]),
        text(&machine["processor"]),
        machine["cores"],
        text(&machine["memory"]),
        text(&machine["kernel"]),
        first["seconds_each"],
    );
    for report in reports {
        setting.push_str(&format!(
            "- **{}**: {}, {}; load average before its runs {}\n",
            text(&report["store"]),
            text(&report["server"]),
            text(&report["setup"]),
            report["load_average_before"],
        ));
        if let Some(failure) = report["failure"].as_str() {
            setting.push_str(&format!("  - a run failed: {failure}\n"));
        }
    }
    setting.push('\n');
    setting
}

fn mark(reached: &Reached) -> &'static str {
    match reached.is_met {
        Some(true) => " ✓",
        Some(false) => " ✗",
        None => "",
    }
}

fn names(reports: &[Value]) -> impl Iterator<Item = &str> {
    reports.iter().map(|report| report["store"].as_str().unwrap_or("?"))
}

fn as_markdown(reports: &[Value], rows: &[Row]) -> String {
    let mut text = String::from("| | peers before | aim |");
    names(reports).for_each(|name| text.push_str(&format!(" reached: {name} |")));
    text.push_str("\n| --- | --- | --- |");
    names(reports).for_each(|_| text.push_str(" --- |"));
    text.push('\n');
    for row in rows {
        text.push_str(&format!("| {} | {} | {} |", row.title, row.peers, row.aim));
        for reached in &row.reached {
            let bold = if reached.is_met == Some(false) { "**" } else { "" };
            text.push_str(&format!(" {bold}{}{bold}{} |", reached.text, mark(reached)));
        }
        text.push('\n');
    }
    text.push_str("\n✓ reached, ✗ missed, no mark: no aim; –: not measured or not applicable.\n");
    text
}

fn as_text(reports: &[Value], rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![vec!["FIGURE".to_owned(), "AIM".to_owned()]];
    lines[0].extend(names(reports).map(|name| format!("REACHED: {name}")));
    for row in rows {
        let mut cells = vec![row.title.to_owned(), row.aim.to_owned()];
        cells.extend(row.reached.iter().map(|reached| format!("{}{}", reached.text, mark(reached))));
        lines.push(cells);
    }
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let aligned = lines.iter().map(|cells| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    });
    aligned.collect()
}

/// The tables that `bench/peers/run --json` leaves.
fn peers_as_markdown(arenas: &Value) -> String {
    let mut text = String::from("\n### Us, the raw driver and the peers\n");
    for arena in arenas.as_array().into_iter().flatten() {
        let word = |name: &str| arena[name].as_str().unwrap_or("?");
        text.push_str(&format!("\n{} ({}), {}\n\n", word("arena"), word("server"), word("setup")));
        let rows = arena["table"].as_array().map_or(&[][..], Vec::as_slice);
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<&str> = row.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
            if number == 0 {
                text.push_str(&format!("|{}\n", " --- |".repeat(cells.len())));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_lines_is_replaced() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = between(&page, "new").unwrap_or_default();
        assert_eq!(new, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(between(&new, "new").as_deref(), Some(new.as_str()));
        assert!(between("no lines", "new").is_none());
    }

    #[test]
    fn a_figure_is_held_against_the_aim_of_its_store() {
        let report = |store: &str, ratio: f64| serde_json::json!({ "store": store, "outcomes": [{ "scenario": "uncontended", "ratio": ratio }] });
        let reports = [report("redis", 1.03), report("postgres", 1.03), report("file", 9.0)];
        let rows = aims::judge(&reports);
        let met: Vec<_> = rows[0].reached.iter().map(|reached| reached.is_met).collect();
        assert_eq!(met, [Some(false), Some(true), None]);
        // What was not measured is neither reached nor missed.
        assert!(rows[2].reached.iter().all(|reached| reached.is_met.is_none()));
    }
}
